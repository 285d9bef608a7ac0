"""Loading what a command saved: the very dataclass that was written, or one sentence that names the bad part."""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from egmctl import saved
from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.runner import CHECKS
from egmctl.documents import FILE_LIMIT
from egmctl.errors import ERROR_SCHEMA, NothingToDo, UsageError
from egmctl.facts import replay
from egmctl.facts.redact import redact
from egmctl.model.codec import from_json, to_json
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.explanation import Explanations
from egmctl.model.finding import Finding, Status
from egmctl.model.fleet import FleetReport
from egmctl.model.measurement import RunReport
from egmctl.model.record import Command
from egmctl.model.remedy import Need, Site
from egmctl.report.exports.json import dump, envelope, result_json
from egmctl.report.kinds import Format
from egmctl.topology.topology import topology
from egmctl.verdict.judge import with_verdict
from tests.answers import diagnose, render, with_answer
from tests.doctor.machines import shipped
from tests.fleet.racks import REPORT
from tests.memory import most_bytes
from tests.report.runs import run as run_of
from tests.saved.documents import bench_document, machine_of, measured_report
from tests.tiers import few


def write(folder: Path, content: object, name: str = "node7.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


# --- what was written is what is loaded ------------------------------------------------------------------------------


def test_a_run_of_the_bench(tmp_path: Path) -> None:
    report = with_answer(measured_report("hgx-h200x4"))
    loaded = saved.load(write(tmp_path, bench_document(report)))
    assert (loaded.kind, loaded.name, loaded.exit_code) == (Command.BENCH, "node7", 0)
    assert loaded.result == report
    assert loaded.machines == report.machines


@pytest.mark.parametrize("name", few(replay.machine_names(), every=4))
def test_a_run_shown_again_is_what_the_command_printed(tmp_path: Path, name: str) -> None:
    report = measured_report(name)
    printed = str(render(report, Format.TEXT))
    loaded = saved.load(write(tmp_path, bench_document(report)))
    assert str(render(saved.viewed(loaded), Format.TEXT)) == printed


@pytest.mark.long
@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(replay.machine_names()),
    values=st.lists(st.floats(min_value=0, max_value=1e6, allow_subnormal=False), min_size=1, max_size=9),
)
def test_any_numbers_come_back_as_they_were(name: str, values: list[float]) -> None:
    report = measured_report(name, values)
    assert from_json(RunReport, json.loads(json.dumps(to_json(report)))) == report


@pytest.mark.parametrize("name", few(replay.machine_names(), every=4))
def test_a_diagnosis(tmp_path: Path, name: str) -> None:
    diagnosis = diagnose(shipped(name), EVERYTHING, CHECKS, strict=True)
    loaded = saved.load(write(tmp_path, result_json(diagnosis)))
    assert loaded.kind is Command.DOCTOR
    assert isinstance(loaded.result, Diagnosis)
    assert loaded.result.findings == diagnosis.findings
    assert loaded.result.strict
    assert loaded.machines == (redact(shipped(name)),)


@pytest.mark.parametrize("name", few(replay.machine_names(), every=4))
def test_a_topology(tmp_path: Path, name: str) -> None:
    written = result_json(with_answer(topology(shipped(name))))
    loaded = saved.load(write(tmp_path, written))
    assert loaded.kind is Command.TOPO
    document = json.loads(written)
    assert to_json(loaded.result) == document["result"] | {"answer": document["answer"]}, (
        "and it would be written the same"
    )


def test_a_snapshot(tmp_path: Path) -> None:
    machine = machine_of("hgx-h200x4")
    loaded = saved.load(write(tmp_path, replay.machine_text(machine)))
    assert (loaded.kind, loaded.name) == (Command.SNAPSHOT, "node7")
    assert loaded.tool.startswith("egmctl ")
    assert loaded.machines[0].gpus == machine.gpus
    assert loaded.machines[0].origin.name == "node7"


def test_the_document_of_a_command_that_had_no_result(tmp_path: Path) -> None:
    error = NothingToDo("there is no GPU to measure")
    loaded = saved.load(write(tmp_path, dump(envelope(ERROR_SCHEMA, 3, None, machine=None, errors=[error]))))
    assert (loaded.kind, loaded.result, loaded.exit_code) == (None, None, 3)
    assert loaded.failure == "there is no GPU to measure"


def test_an_answer_of_explain_whose_remedies_were_texts(tmp_path: Path) -> None:
    """``egmctl.explain/1``: the keys of a cause's remedy were the cause's own, and empty instead of null."""
    cause = {"cause": "it is off", "remedy": "Load it.", "see": "", "state": "stated", "checks": [], "findings": []}
    older = cause | {"look": "lsmod", "run": "", "needs": ["root"], "works_in": ["host"]}
    failure = {"library": "cuda", "number": 999, "call": "cuInit", "log": None}
    explanation = {"failure": failure, "name": "CUDA_ERROR_UNKNOWN", "causes": [older, cause]}
    result = {"checked": None, "explanations": [explanation]}
    document = {"schema": "egmctl.explain/1", "tool": "egmctl 0.2.0", "exit_code": 0, "machine": None, "errors": []}
    loaded = saved.load_any(write(tmp_path, json.dumps(document | {"result": result}))).result
    assert isinstance(loaded, Explanations)
    first, second = (each.remedy for each in loaded.explanations[0].causes)
    assert (first.text, first.look, first.run) == ("On the host: Load it.", "lsmod", None)
    assert (first.needs, first.works_in) == ((Need.ROOT,), (Site.HOST,))
    assert (second.text, second.look, second.works_in) == ("Load it.", None, tuple(Site))
    assert loaded.answer.word == "CAUSE"


# --- what is refused -------------------------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        saved.load(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"file {path}"[:120]), "it names the file"
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize(
    ("name", "fault"),
    [("none", "No such file or directory"), ("", "Is a directory"), ("a" * 300, "File name too long")],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str, fault: str) -> None:
    assert f"cannot be read: {fault}" in refusal(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("", "is not JSON, or is truncated"),
        ("[]", "expected an object"),
        ("{}", "it states no schema, expected egmctl.bench/3, egmctl.topo/2, egmctl.doctor/1, egmctl.bringup/"),
        ('{"schema": "egmctl.bench/4"}', "has the schema 'egmctl.bench/4', of a newer version of egmctl: this one"),
        ('{"schema": "egmctl.bench/1"}', "this one reads egmctl.bench/3"),
        ('{"schema": "egmctl.bench/2"}', "the key 'tool' is missing"),
        ('{"schema": "other/1"}', "its schema is 'other/1', expected egmctl.bench/3"),
    ],
)
def test_a_file_that_is_none_of_ours(tmp_path: Path, content: str, part: str) -> None:
    assert part in refusal(write(tmp_path, content))


def test_the_folder_of_a_fleet_is_its_report(tmp_path: Path) -> None:
    (tmp_path / "fleet.json").write_text(result_json(REPORT))
    assert isinstance(saved.load_any(tmp_path).result, FleetReport)


@pytest.mark.parametrize(
    ("place", "value", "fault"),
    [
        (("measurements", 3, "status"), "wonderful", "measurements[3].status: expected one of ok, unstable"),
        (("machines", 0, "gpus", 1, "index"), "one", "machines[0].gpus[1].index: expected a whole number"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(
    tmp_path: Path, place: tuple[str | int, ...], value: str, fault: str
) -> None:
    document = bench_document(measured_report("hgx-h200x4"))
    *above, last = place
    functools.reduce(lambda part, key: part[key], above, document["result"])[last] = value
    assert f"result.{fault}" in refusal(write(tmp_path, document))


def test_what_unpacks_to_more_than_the_bound_is_refused_there(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * FILE_LIMIT, 1) * 6)
    assert path.stat().st_size < 4 << 20

    def refused() -> None:
        assert "is larger than 64 MiB, which no result of egmctl is" in refusal(path)

    assert most_bytes(refused) < 3 * FILE_LIMIT


@pytest.mark.parametrize("number", [-1, 10**6])
def test_a_cause_explains_measurements_that_are_there(tmp_path: Path, number: int) -> None:
    document = bench_document(measured_report("hgx-h200x4"))
    finding = to_json(Finding(status=Status.FAIL, summary="x"))
    document["result"]["causes"] = [{"status": "fail", "finding": finding, "measurements": [number]}]
    count = len(document["result"]["measurements"])
    assert f"result.causes[0]: there is no measurement {number} of {count}" in refusal(write(tmp_path, document))


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"measurements": []}, "result.verdict.owners[0].measurements: there is none"),
        ({"measurements": [10**6]}, "result.verdict.owners: there is no measurement 1000000 of "),
        ({"unknown": None}, "result.verdict.owners[0]: one of owner and unknown is there, and not both"),
        ({"owner": "0000:1b:00.0"}, "result.verdict.owners[0]: one of owner and unknown is there, and not both"),
        ({"owner_label": "GPU1"}, "result.verdict.owners[0].owner_label: it is there where owner is"),
    ],
)
def test_an_owner_of_memory_fits_what_was_measured(tmp_path: Path, changed: dict[str, Any], fault: str) -> None:
    run = run_of("hgx-h200x4", cases=("host_numa_by_owner_to_device_memcpy_ce",))
    document = bench_document(with_verdict(run, None))
    assert saved.load(write(tmp_path, document))
    document["result"]["verdict"]["owners"][0] |= changed
    assert fault in refusal(write(tmp_path, document))


@pytest.mark.parametrize("cut", [1, 100, 5000, -2])
def test_a_truncated_file(tmp_path: Path, cut: int) -> None:
    text = json.dumps(bench_document(measured_report("hgx-h200x4")))
    assert "is not JSON, or is truncated" in refusal(write(tmp_path, text[:cut]))


# --- several files ---------------------------------------------------------------------------------------------------


def test_files_with_the_same_stem_are_told_apart_by_their_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = bench_document(measured_report("hgx-h200x4"))
    for folder in ("monday", "tuesday"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, report)
    write(tmp_path, report, "node8.json")
    monkeypatch.chdir(tmp_path)
    loaded = saved.load_all(["monday/node7.json", "tuesday/node7.json", "node8.json"])
    assert [run.name for run in loaded] == ["monday/node7.json", "tuesday/node7.json", "node8"]


def test_a_file_named_twice(tmp_path: Path) -> None:
    path = write(tmp_path, bench_document(measured_report("hgx-h200x4")))
    with pytest.raises(UsageError, match="is named 2 times"):
        saved.load_all([path, path])
