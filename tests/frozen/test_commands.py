"""What every command answers for every shipped and recorded machine stays what it is, unless a change is meant.

After a change that is meant: ``EGMCTL_WRITE_GOLDEN=1 pytest tests/frozen``; say in CHANGELOG.md what is different.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from egmctl import __version__
from egmctl.data import profiles_dir
from egmctl.facts import record, replay
from tests.conftest import ROOT, Ended
from tests.doctor.scenes import scenes
from tests.frozen.fold import Parts, fold, parts_of, readable
from tests.golden import compare
from tests.in_process import run

FOLDER = Path(__file__).parent
SCENES = scenes()
SHIPPED = replay.names()
FEW = (*SHIPPED, "gb200-slurm-denies-one", "gb200-cpuset", "h200-imex-channel", "h200-v2-cgroup", "h200-driver-updated")
COMPARED = (
    ("gb200-egm-on", "gb200-egm-off"),
    ("gb200-egm-off", "gb200-egm-on"),
    ("gb200-egm-on", "gb200-slurm-denies-one"),
    ("gb200-egm-on", "gb200-cdmm"),
    ("hgx-h200x4", "h200-links-down"),
    ("hgx-h200x4", "h200-sick-gpus"),
    ("hgx-h200x4", "h200-driver-updated"),
    ("nvl72-stale-imex-channel", "nvl72-port-down"),
)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a file for each machine of the corpus."""
    folder = tmp_path_factory.mktemp("machines")
    files = {name: folder / f"{name}.json" for name in SCENES}
    for name, file in files.items():
        file.write_text(record.text(SCENES[name].machine()))
    return files


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return files of real runs on 4 H200."""
    folder = tmp_path_factory.mktemp("runs")
    files = {name: folder / f"{name}.json" for name in ("idle", "idle-again", "beside-traffic")}
    for name, file in files.items():
        file.write_bytes(gzip.decompress((ROOT / f"tests/data/runs/{name}.json.gz").read_bytes()))
    return files


def json_parts(ended: Ended) -> Parts:
    """Return the parts of a JSON document; which version wrote it does not matter."""
    document = json.loads(re.sub(r"egmctl \d+\.\d+\.\d+", "egmctl VERSION", ended.out))
    assert document["exit_code"] == ended.code
    return parts_of(document)


def frozen(name: str, outputs: dict[str, Parts]) -> None:
    compare(fold(outputs), FOLDER / name)


@pytest.mark.long
def test_topo(machines: dict[str, Path]) -> None:
    frozen("topo.txt", {n: json_parts(run("topo", "--machine", file, "--json")) for n, file in machines.items()})


@pytest.mark.long
def test_doctor(machines: dict[str, Path]) -> None:
    outputs = {
        name: json_parts(run("doctor", "--machine", file, *SCENES[name].options, "--json"))
        for name, file in machines.items()
    }
    frozen("doctor.txt", outputs)


@pytest.mark.long
def test_profile_match(machines: dict[str, Path]) -> None:
    outputs = {n: json_parts(run("profile", "match", "--machine", file, "--json")) for n, file in machines.items()}
    frozen("profile-match.txt", outputs)


def test_profiles() -> None:
    shown = run("profile", "list", "--json")
    document = json.loads(shown.out.replace(str(profiles_dir()), "PROFILES"))
    frozen("profiles.txt", {"list": {one["file"]: readable(one["profile"]) for one in document["result"]["profiles"]}})


@pytest.mark.long
def test_bench_list(machines: dict[str, Path]) -> None:
    outputs = {n: _cases(run("bench", "--machine", file, "--list")) for n, file in machines.items()}
    frozen("bench-list.txt", outputs)


@pytest.mark.long
def test_bench_dry_run(machines: dict[str, Path]) -> None:
    outputs = {n: _steps(run("bench", "--machine", file, "--dry-run")) for n, file in machines.items()}
    frozen("bench-dry-run.txt", outputs)


@pytest.mark.long
@pytest.mark.parametrize(
    ("suite", "options"),
    [("full", ("--full", "--gpus", "0-1")), ("ipc", ("--suite", "ipc", "--gpus", "0-1"))],
)
def test_bench_dry_run_of_more(suite: str, options: tuple[str, ...]) -> None:
    shipped = [name for name in SHIPPED if name != "gh200"]
    outputs = {name: _steps(run("bench", "--machine", name, "--dry-run", *options)) for name in shipped}
    frozen(f"bench-dry-run-{suite}.txt", outputs)


@pytest.mark.long
def test_bench_dry_run_of_ranks(machines: dict[str, Path]) -> None:
    command = ("bench", "--dry-run", "--suite", "fabric", "--ranks", "16")
    frozen("bench-dry-run-ranks.txt", {n: _text(run(*command, "--machine", machines[n]), n) for n in FEW})


@pytest.mark.long
def test_compare_of_runs(runs: dict[str, Path]) -> None:
    outputs = {
        f"{first} {second}": _unplaced(run("compare", runs[first], runs[second], "--json"), runs)
        for first, second in itertools.combinations(runs, 2)
    }
    outputs["all"] = _unplaced(run("compare", *runs.values(), "--json"), runs)
    frozen("compare-runs.txt", outputs)


@pytest.mark.long
@pytest.mark.parametrize("command", ["topo", "doctor"])
def test_compare_of_machines(machines: dict[str, Path], tmp_path: Path, command: str) -> None:
    saved = {}
    for name in sorted({name for pair in COMPARED for name in pair}):
        saved[name] = tmp_path / f"{name}.json"
        saved[name].write_text(run(command, "--machine", machines[name], "--json").out)
    outputs = {}
    for first, second in COMPARED:
        outputs[f"{first}/{second}"] = _unplaced(run("compare", saved[first], saved[second], "--json"), saved)
    frozen(f"compare-{command}.txt", outputs)


@pytest.mark.parametrize("form", ["csv", "prom"])
def test_show_of_a_run(runs: dict[str, Path], form: str) -> None:
    ended = run("show", runs["idle"], "--format", form)
    assert ended.code == 0
    compare(ended.out.replace(__version__, "VERSION"), FOLDER / f"show-run.{form}")


@pytest.mark.long
def test_show_of_json_is_the_content_of_the_file_in_ascii(
    runs: dict[str, Path], machines: dict[str, Path], tmp_path: Path
) -> None:
    saved = tmp_path / "doctor.json"
    saved.write_text(run("doctor", "--machine", machines["gb200-egm-off"], "--json").out)
    today = tmp_path / "run.json"
    # The runs are of schema 1, and shown in schema 2.
    today.write_text(run("show", next(iter(runs.values())), "--json").out)
    for file in (today, saved):
        shown = run("show", file, "--json").out
        assert json.loads(shown) == json.loads(file.read_text())
        assert shown.isascii()


def _unplaced(ended: Ended, files: dict[str, Path]) -> Parts:
    """Return the parts of a comparison; files have their names alone."""
    text = ended.out
    for file in files.values():
        text = text.replace(f"{file.parent}/", "")
    return json_parts(ended._replace(out=text))


def _cases(ended: Ended) -> Parts:
    """Return what a list says of each case."""
    parts: dict[str, str] = {}
    for block in re.split(r"\n(?=\S)", ended.out.rstrip("\n")):
        head, _, rest = block.partition("\n")
        said, would, reason = rest.partition("  would")
        parts[head] = said.rstrip("\n")
        if would:
            parts[f"{head.split()[0]} runs"] = would + reason
    return {"exit code": str(ended.code)} | parts


def _steps(ended: Ended) -> Parts:
    """Return the steps of each case of a plan, those that are alike in one line, without their numbers."""
    parts = {"exit code": str(ended.code)}
    for block in re.split(r"\n(?=\S)", ended.out.rstrip("\n")):
        head, *lines = block.split("\n")
        found = [re.fullmatch(r" +\d+  (.*?)  (\S.*)", line) for line in lines]
        if not all(found):
            parts[head] = "\n".join(lines)
            continue
        steps = [(match[1], match[2]) for match in found if match is not None]
        alike = itertools.groupby(steps, key=lambda step: step[1])
        parts[head] = "\n".join(_wrapped(f"{what}: {'; '.join(path for path, _ in group)}") for what, group in alike)
    return parts


def _wrapped(line: str) -> str:
    return textwrap.fill(line, 120, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)


def _text(ended: Ended, name: str) -> Parts:
    def lines() -> Iterator[str]:
        for line in ended.out.replace(name, "MACHINE").splitlines():
            yield line.rstrip()

    return {"exit code": str(ended.code), "text": "\n".join(lines())}
