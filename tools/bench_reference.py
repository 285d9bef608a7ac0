"""Writes the reference of suites and cases in ``docs/cases.md`` from the registry.

python tools/bench_reference.py            write it
python tools/bench_reference.py --check    write nothing; exit 1 if the file is not what would be written
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace

from generated import ROOT, settle

from egmctl.bench.case import Case
from egmctl.bench.suites import CASES, FABRIC_CASES, SUITES
from egmctl.model.task import Engine

COPIES = (Engine.COPY_ENGINE, Engine.SM_COPY, Engine.BULK)
DOCUMENT = ROOT / "docs" / "cases.md"
HEAD = """\
# Suites and cases of egmctl bench

<!-- This file is written by tools/bench_reference.py. -->

[bench.md](bench.md) has the options, [measurement.md](measurement.md) the method, the calls that make each kind of
memory and what moves the bytes. On a machine, `egmctl bench --list` says which of the cases can run, and why others
cannot.

Where cases share a row, the first is described: `sm` copies by a kernel and `tma` by bulk copies (TMA) in place of the
copy engine (`ce`), and other handles open the memory in the same way. Cases with host memory are measured for each GPU
with each NUMA node, cases between GPUs for every ordered pair, unless they say otherwise. Cases with `loaded` or
`footprint` in their names and messages by UCX are measured at all of their points; `--sweep` measures other series.
"""


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    return settle(arguments, DOCUMENT, reference(), "tools/bench_reference.py")


def reference() -> str:
    """Return the whole document."""
    parts = [HEAD, _suites()]
    cases = (*CASES, *FABRIC_CASES)
    for family in dict.fromkeys(case.family for case in cases):
        parts.append(_family(family, [case for case in cases if case.family == family]))
    return "\n".join(parts)


def _suites() -> str:
    every = (*CASES, *FABRIC_CASES)
    rows = [
        (f"`{name}`", suite.description, str(sum(map(suite.has, every))), str(suite.samples))
        for name, suite in SUITES.items()
    ]
    return f"## Suites\n\n{_table(('suite', 'what', 'cases', 'samples'), rows)}"


def _family(name: str, cases: Sequence[Case]) -> str:
    groups: dict[Case, list[str]] = {}
    for case in cases:
        groups.setdefault(_alike(case), []).append(f"`{case.name}`")
    first = {_alike(case): case for case in reversed(cases)}
    rows = [(", ".join(names), first[group].description) for group, names in groups.items()]
    return f"## Family {name}\n\n{_table(('cases', 'what'), rows)}"


def _alike(case: Case) -> Case:
    """Return a case without the properties in which the cases of a row differ: copying engine, handle and points."""
    return replace(
        case,
        name="",
        engine=Engine.COPY_ENGINE if case.engine in COPIES else case.engine,
        handle=None,
        in_process=None,
        points=(),
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
