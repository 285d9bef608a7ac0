"""The text that commands print for six machines stays what it is, unless a change is meant.

An output is cut into parts that have names (a finding, a link, the steps of a case); a part that is the same on several
machines stands in the file once, with their names below it. A change then shows once, and with it where it happens.

Every machine is held by rules instead (tests/properties), and by what doctor says of it (tests/doctor/corpus).
After a change that is meant: ``EGMCTL_WRITE_GOLDEN=1 pytest tests/frozen``; say in CHANGELOG.md what is different.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from egmctl import __version__
from tests.conftest import ROOT, Ended
from tests.golden import compare
from tests.in_process import run

FOLDER = Path(__file__).parent
MACHINES = ("hgx-h200x4", "dgx-h100", "gb200-tray", "gb200-nvl72", "gh200", "gb300-nvl72")
PLANNED = ("hgx-h200x4", "dgx-h100", "gb200-nvl72", "gh200")
"""The others have the plans of ``gb200-nvl72``."""
Parts = Mapping[str, str]
"""The text of each part of an output, by its name."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return files of real runs on 4 H200."""
    folder = tmp_path_factory.mktemp("runs")
    files = {name: folder / f"{name}.json" for name in ("idle", "idle-again", "beside-traffic")}
    for name, file in files.items():
        file.write_bytes(gzip.decompress((ROOT / f"tests/data/runs/{name}.json.gz").read_bytes()))
    return files


def test_details_of_topo() -> None:
    """What ``-v`` adds, of the first two GPUs: tests/replay has the rest for every machine that ships."""
    outputs: dict[str, Parts] = {}
    for name in MACHINES:
        shown = _sections(run("topo", "--machine", name)).items()
        detailed = _sections(run("topo", "-v", "--machine", name)).items()
        outputs[name] = dict(part for part in detailed if part not in shown and not re.match(r"GPU[2-9] ", part[0]))
    compare(fold(outputs), FOLDER / "topo.txt")


def test_profile_match() -> None:
    outputs = {name: _sections(run("profile", "match", "--machine", name)) for name in MACHINES}
    compare(fold(outputs), FOLDER / "profile-match.txt")


def test_bench_list() -> None:
    outputs = {name: _sections(run("bench", "--machine", name, "--list")) for name in PLANNED}
    compare(fold(outputs), FOLDER / "bench-list.txt")


@pytest.mark.parametrize(
    ("suite", "options"), [("standard", ()), ("ipc", ("--gpus", "0-1")), ("fabric", ("--ranks", "16"))]
)
def test_bench_dry_run(suite: str, options: tuple[str, ...]) -> None:
    command = ("bench", "--dry-run", "--suite", suite, *options)
    parts = _sections if suite == "fabric" else _steps
    outputs = {name: parts(run(*command, "--machine", name)) for name in PLANNED}
    compare(fold(outputs), FOLDER / f"bench-dry-run-{suite}.txt")


def test_compare(runs: dict[str, Path]) -> None:
    outputs = {
        " ".join(pair): _sections(run("compare", *(runs[name] for name in pair)))
        for pair in (*itertools.combinations(runs, 2), tuple(runs))
    }
    compare(fold(outputs).replace(f"{runs['idle'].parent}/", ""), FOLDER / "compare.txt")


@pytest.mark.parametrize("form", ["csv", "prom"])
def test_show_of_a_run(runs: dict[str, Path], form: str) -> None:
    """The first of the rows of a case, and of the samples of a metric; how many follow."""
    ended = run("show", runs["idle"], "--format", form)
    assert ended.code == 0
    lines = ended.out.replace(__version__, "VERSION").splitlines()
    subject = (lambda line: line.split(",")[3]) if form == "csv" else (lambda line: line.partition("{")[0])
    compare("".join(f"{line}\n" for line in _first_of_each(lines, subject)), FOLDER / f"show-run.{form}")


def test_show_of_json_is_the_content_of_the_file_in_ascii(runs: dict[str, Path], tmp_path: Path) -> None:
    doctor = tmp_path / "doctor.json"
    doctor.write_text(run("doctor", "--machine", "gb200-tray", "--json").out)
    bench = tmp_path / "run.json"
    # The runs are of schema 1, and shown in schema 2.
    bench.write_text(run("show", runs["idle"], "--json").out)
    for file in (bench, doctor):
        shown = run("show", file, "--json").out
        assert json.loads(shown) == json.loads(file.read_text())
        assert shown.isascii()


def _first_of_each(lines: list[str], subject: Callable[[str], str]) -> Iterator[str]:
    for _, group in itertools.groupby(lines, key=subject):
        first, *others = group
        yield first
        if others:
            yield f"... and {len(others)} more"


def fold(outputs: Mapping[str, Parts]) -> str:
    """Return the parts of all outputs, in the order of the outputs, each with the names of those that have it."""
    groups: dict[str, dict[str, list[str]]] = {}
    for name, parts in outputs.items():
        for part, text in parts.items():
            groups.setdefault(part, {}).setdefault(text, []).append(name)
    lines: list[str] = []
    for part, texts in groups.items():
        lines.append(f"== {part}")
        for text, names in texts.items():
            lines += [*text.splitlines(), *_named(names, list(outputs))]
    return "".join(f"{line}\n" for line in lines)


def _named(names: list[str], everywhere: list[str]) -> list[str]:
    others = [name for name in everywhere if name not in names]
    if not others:
        text = "everywhere" if len(everywhere) > 1 else ""
    else:
        text = f"everywhere but {' '.join(others)}" if len(others) < len(names) else " ".join(names)
    return textwrap.wrap(text, 120, initial_indent="    # ", subsequent_indent="    # ", break_on_hyphens=False)


def _sections(ended: Ended) -> Parts:
    """Return what stands between empty lines, by the line that begins it."""
    parts = {"exit code": str(ended.code)}
    for block in ended.out.rstrip("\n").split("\n\n"):
        head, *lines = block.splitlines()
        parts[head.rstrip()] = "\n".join(line.rstrip() for line in lines)
    return parts


def _steps(ended: Ended) -> Parts:
    """Return the steps of each case of a plan, those that are alike in one line, without their numbers."""
    parts = {"exit code": str(ended.code)}
    for block in re.split(r"\n(?=\S)", ended.out.rstrip("\n")):
        head, *lines = block.rstrip().split("\n")
        found = [re.fullmatch(r" +\d+  (.*?)  (\S.*)", line) for line in lines]
        if not all(found):
            parts[head] = "\n".join(lines)
            continue
        steps = [(match[2], *match[1].rpartition(" ")[::2]) for match in found if match is not None]
        of_a_size = itertools.groupby(steps, key=lambda step: step[0])
        parts[head] = "\n".join(_wrapped(f"{size}: {'; '.join(_paths(group))}") for size, group in of_a_size)
    return parts


def _paths(steps: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield the paths of steps, those that differ in their ends alone as one: ``NUMA0 -> GPU0 GPU1``."""
    for start, group in itertools.groupby(steps, key=lambda step: step[1]):
        yield " ".join((start, *(end for _, _, end in group)))


def _wrapped(line: str) -> str:
    return textwrap.fill(line, 120, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
