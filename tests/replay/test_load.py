"""Loading a machine from a file that may hold anything: a machine, or one sentence that names the bad part."""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from egmctl import documents, files
from egmctl.errors import UsageError
from egmctl.facts import replay
from egmctl.facts.cuda import ATTRIBUTES
from egmctl.files import machines_dir
from egmctl.model.gpu import Gpu, GpuNvml, GpuPair
from egmctl.model.host import Host, Nic, NumaKind, NumaNode
from egmctl.model.machine import MACHINE_SCHEMA, Machine, Origin, OriginKind, SectionStatus
from egmctl.model.record import Reason, Unread
from tests.conftest import ROOT
from tests.known import known
from tests.random_machines import machines
from tests.schemas import fits, validate

FIRST, SECOND = "0000:1b:00.0", "0000:1c:00.0"


MACHINE = Machine(
    origin=Origin(kind=OriginKind.LIVE, tool="egmctl 0.1.0", recorded_at="2026-01-01T00:00:00Z"),
    sections={"gpus": SectionStatus(version=1, duration_ms=1.5)},
    host=Host(
        hostname="a [bold]name[/] with \x1b[31m",
        numa_nodes=(
            NumaNode(id=0, kind=NumaKind.CPU, cpus="0-71", distances=(10, 80)),
            NumaNode(id=2, kind=NumaKind.MEMORY_ONLY, distances=(80, 10)),
        ),
    ),
    gpus=(
        Gpu(bus_id=FIRST, index=0, nvml=GpuNvml(index=0, cpu_affinity="0-3,8", compute_capability=(9, 0))),
        Gpu(bus_id=SECOND, index=1),
    ),
    pairs=(GpuPair(source=FIRST, target=SECOND, p2p_status={"read": "OK"}), GpuPair(source=SECOND, target=FIRST)),
    nics=(Nic(name="mlx5_0"),),
)

Document = dict[str, Any]


@pytest.fixture
def document() -> Document:
    return copy.deepcopy(replay.document(MACHINE))


def load(tmp_path: Path, content: object) -> Machine:
    path = tmp_path / "node7.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return replay.load_machine(str(path))


def refusal(tmp_path: Path, content: object) -> str:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, content)
    return str(caught.value)


# --- what loads ------------------------------------------------------------------------------------------------------


def test_a_recorded_machine_is_what_was_written_and_knows_its_name(tmp_path: Path, document: Document) -> None:
    machine = load(tmp_path, replay.machine_text(MACHINE))
    assert document["origin"]["kind"] == "recorded", "a file is not live"
    assert (machine.origin.kind, machine.origin.name) == (OriginKind.RECORDED, "node7")
    assert machine.gpus == MACHINE.gpus
    assert machine.host == MACHINE.host, "control characters and markup are data"
    document["origin"]["kind"] = "live"
    assert load(tmp_path, document).origin.kind is OriginKind.RECORDED, "whatever it says"


def test_a_modelled_machine_stays_modelled(tmp_path: Path, document: Document) -> None:
    document["origin"].update(kind="modelled", name="gh200", sources=["https://example.org"])
    origin = load(tmp_path, document).origin
    assert (origin.kind, origin.name, origin.sources) == (OriginKind.MODELLED, "gh200", ("https://example.org",))


def test_unknown_keys_are_a_newer_writers(tmp_path: Path, document: Document) -> None:
    document["weather"] = {"rain": [1, 2, {}]}
    document["gpus"][0]["nvml"]["colour"] = "green"
    assert load(tmp_path, document).gpus == MACHINE.gpus


def test_a_newer_section_is_left_out_with_its_reason(tmp_path: Path, document: Document) -> None:
    document["sections"]["nics"] = {"version": 2, "shape": "new"}
    document["nics"] = {"entirely": "different"}
    machine = load(tmp_path, document)
    assert machine.nics is None
    unread = known(machine.sections["nics"].unread)
    assert (unread.reason, "version 2" in unread.detail) == (Reason.NOT_SUPPORTED, True)

    document["sections"]["gpus"]["version"] = 7
    machine = load(tmp_path, document)
    assert machine.gpus is None
    assert machine.pairs == MACHINE.pairs


@pytest.mark.long
@settings(suppress_health_check=list(HealthCheck))
@given(machines())
def test_any_machine_fits_the_schema_and_survives_writing_and_reading(
    tmp_path_factory: pytest.TempPathFactory, machine: Machine
) -> None:
    machine = dataclasses.replace(machine, sections={})
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(replay.machine_text(machine))
    validate(json.loads(path.read_text()), "machine")
    loaded = replay.load_machine(str(path))
    assert {name for name in loaded.sections if getattr(machine, name) is not None} == set(), "only nulls need a reason"
    assert dataclasses.replace(loaded, origin=machine.origin, sections={}) == machine


# --- files that hold no machine --------------------------------------------------------------------------------------


def test_shipped_machines_load_by_their_names() -> None:
    assert replay.machine_names() == sorted(path.stem for path in files.machines_dir().glob("*.json"))
    for name in replay.machine_names():
        machine = replay.load_machine(name)
        assert machine.origin.kind is not OriginKind.LIVE
        assert machine.origin.name == name


@pytest.mark.parametrize("name", ["missing.json", "no/such/file", "gb3000", "", "x" * 5000, "nul\0.json", "../gh200"])
def test_a_machine_that_does_not_exist_names_those_that_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "gh200.json").touch()
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setattr(files, "machines_dir", lambda: tmp_path)
    with pytest.raises(UsageError, match="valid are a file that 'egmctl snapshot' wrote and gh200") as caught:
        replay.load_machine(name)
    assert name[:20] in str(caught.value) or "\0" in name


def test_a_directory_and_a_huge_file_are_no_machine(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        replay.load_machine(str(tmp_path))
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(documents.FILE_LIMIT + 1)
    for huge in (str(path), "/dev/zero"):
        with pytest.raises(UsageError, match="larger than 64 MiB"):
            replay.load_machine(huge)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is not JSON, or is truncated: Expecting value at line 1 column 1"),
        (replay.machine_text(MACHINE)[:400], "is not JSON, or is truncated: "),
        (b'{"schema": "egmctl', "is not JSON, or is truncated: Unterminated string starting at line 1 column 12"),
        (b'{"schema": "\xff"}', "is not UTF-8 text: byte 12 is 0xff"),
        ('{"schema": NaN}', "holds NaN, which JSON has no number for"),
        ('{"schema": -Infinity}', "holds -Infinity"),
        ("[" * 1_000_000, "nested more deeply"),
        ('{"schema": ' * 100_000, "nested more deeply"),
        ('{"schema": ' + "9" * 5000 + "}", "a whole number of thousands of digits"),
        ([1], "is not a machine: expected an object"),
        ("null", "expected an object"),
        ({}, "it states no schema, expected egmctl.machine/1"),
        ({"schema": 1}, "it states no schema"),
        ({"schema": "egmctl.topo/1"}, "its schema is 'egmctl.topo/1', expected egmctl.machine/1"),
        ({"schema": "egmctl.machine/2"}, "of another version of egmctl: this one reads egmctl.machine/1"),
        ({"schema": "egmctl.machine/1\n"}, "this one reads egmctl.machine/1"),
        ({"schema": MACHINE_SCHEMA}, "the key 'origin' is missing"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_content_that_is_no_machine(tmp_path: Path, content: object, sentence: str) -> None:
    message = refusal(tmp_path, content)
    assert sentence in message
    assert message.startswith(f"machine file {tmp_path}")
    assert "\n" not in message.removeprefix(f"machine file {tmp_path}")


# --- parts that do not fit -------------------------------------------------------------------------------------------


def put(*path: str | int, value: object) -> Callable[[Document], None]:
    """Return a change that puts a value at a place in a document."""

    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    return change


def append(key: str, index: int) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        document[key].append(document[key][index])

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (put("gpus", value={}), "gpus: expected a list, found an object"),
        (put("gpus", 0, "index", value="0"), "gpus[0].index: expected a whole number, found '0'"),
        (put("gpus", 0, "index", value=True), "gpus[0].index: expected a whole number, found true"),
        (put("gpus", 0, "index", value=10**30), "gpus[0].index: expected a whole number of 64 bits"),
        (put("gpus", 0, "nvml", "name", value=["x"]), "gpus[0].nvml.name: expected a string, found a list"),
        (put("gpus", 0, "nvml", "compute_capability", value=[9]), "expected 2 items, found 1"),
        (put("gpus", 0, "bus_id", value="0000:1B:00.0"), "gpus[0].bus_id: expected a spelling such as 0000:1b:00.0"),
        (put("gpus", 0, "nvml", "cpu_affinity", value="0-99999999999"), "expected a spelling such as 0-3,8"),
        (put("gpus", 0, "nvml", "cpu_affinity", value="3-1"), "expected a spelling such as 0-3,8, found '3-1'"),
        (put("origin", "kind", value="dreamt"), "expected one of live, recorded, modelled, found 'dreamt'"),
        (put("sections", "gpus", "duration_ms", value=10**400), "sections.gpus.duration_ms: expected a number"),
        (put("host", "hostname", value="\ud800"), "host.hostname: expected Unicode text"),
        (put("host", "kernel_command_line", value={"\udc00": "x"}), "expected Unicode text"),
        (put("sections", value=[]), "sections: expected an object"),
        (append("gpus", 0), f"gpus: the bus id {FIRST} is there twice"),
        (append("nics", 0), "nics: the name mlx5_0 is there twice"),
        (append("pairs", 0), "is there twice"),
        (put("gpus", 1, "index", value=0), "gpus: index 0 after 0, expected ascending"),
        (put("gpus", 0, "index", value=-1), "gpus: index -1 after -1, expected ascending from 0"),
        (put("pairs", 0, "target", value="0000:99:00.0"), "pairs: there is no GPU 0000:99:00.0"),
        (put("host", "numa_nodes", 1, "id", value=0), "host.numa_nodes: id 0 after 0"),
        (put("host", "numa_nodes", 1, "distances", value=[10]), "node 2 has 1 distances to 2 nodes"),
    ],
)
def test_the_bad_part_is_named(
    tmp_path: Path, document: Document, change: Callable[[Document], None], sentence: str
) -> None:
    change(document)
    assert sentence in refusal(tmp_path, document)


def test_a_crowd_of_gpus_is_refused_before_anything_loops_over_their_pairs(tmp_path: Path, document: Document) -> None:
    document["gpus"] = [{"bus_id": f"{i:04x}:00:00.0", "index": i} for i in range(300)]
    assert "300 gpus, a node has at most 256" in refusal(tmp_path, document)


def test_a_long_key_is_not_repeated_in_full(tmp_path: Path, document: Document) -> None:
    document["host"]["kernel_command_line"] = {"x" * 100_000: 1}
    assert len(refusal(tmp_path, document)) < 1000


# --- what a file leaves out ------------------------------------------------------------------------------------------


def test_what_a_file_leaves_out_is_not_stated(tmp_path: Path, document: Document) -> None:
    del document["gpus"][0]["nvml"]["serial"]
    del document["host"]["cpu_model"]
    del document["kernel_log"]
    machine = load(tmp_path, document)
    assert machine.sections["kernel_log"].unread == Unread(reason=Reason.NOT_STATED)
    assert known(machine.host).unread["cpu_model"] == Unread(reason=Reason.NOT_STATED)
    nvml = known(known(machine.gpus)[0].nvml)
    assert (nvml.serial, nvml.unread["serial"].reason) == (None, Reason.NOT_STATED)


def test_a_reason_that_a_file_gives_stays_and_so_does_a_default_that_is_no_null(
    tmp_path: Path, document: Document
) -> None:
    why = Unread(reason=Reason.NO_PERMISSION, detail="open: EACCES")
    document["host"]["unread"] = {"cpu_model": {"reason": "no-permission", "detail": "open: EACCES"}}
    del document["host"]["cpu_model"]
    document["gpus"][0]["node"] = {"path": "/dev/nvidia0", "exists": True}
    machine = load(tmp_path, document)
    assert known(machine.host).unread["cpu_model"] == why
    assert known(known(machine.gpus)[0].node).kind == "character"


def test_an_attribute_that_the_tool_has_learnt_since_is_not_stated(tmp_path: Path, document: Document) -> None:
    document["gpus"][0]["cuda"] = {"ordinal": 0, "attributes": {"NUMA_ID": 4}}
    cuda = known(known(load(tmp_path, document).gpus)[0].cuda)
    assert tuple(cuda.attributes) == ATTRIBUTES
    assert cuda.unread["attributes.HOST_NUMA_ID"].reason is Reason.NOT_STATED
    assert "attributes.NUMA_ID" not in cuda.unread


@pytest.mark.parametrize("name", replay.machine_names())
def test_a_shipped_file_says_nothing_that_the_loader_says_by_itself(name: str) -> None:
    stored = json.loads((files.machines_dir() / f"{name}.json").read_text())
    assert json.dumps({"reason": "not-stated", "detail": ""}) not in json.dumps(stored)


# --- the JSON Schema in the documentation ---------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.processes
def test_the_file_is_what_the_generator_writes() -> None:
    generate = [sys.executable, str(ROOT / "tools/make_schemas.py"), "--check"]
    done = subprocess.run(generate, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", replay.machine_names())
def test_shipped_machines_fit(name: str) -> None:
    validate(json.loads((machines_dir() / f"{name}.json").read_text()), "machine")


@pytest.mark.parametrize(
    ("section", "value"),
    [("gpus", {}), ("gpus", [{"index": 0}]), ("gpus", [{"bus_id": "1b:00.0", "index": 0}]), ("host", {"kernel": 6})],
)
def test_what_a_reader_refuses_does_not_fit(section: str, value: Any) -> None:
    document = {"schema": "egmctl.machine/1", "origin": {"kind": "recorded"}, section: value}
    assert not fits(document, "machine")


def test_unknown_keys_fit() -> None:
    validate({"schema": "egmctl.machine/1", "origin": {"kind": "recorded", "new": 1}, "newer": []}, "machine")
