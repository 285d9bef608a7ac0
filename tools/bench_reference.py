"""Writes the reference of suites, cases and options in ``docs/cases.md`` from the registry and the command line.

python tools/bench_reference.py            write it
python tools/bench_reference.py --check    write nothing; exit 1 if the file is not what would be written
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from command_line import Option, commands
from generated import ROOT, settle

from egmctl.bench.case import Case
from egmctl.bench.registry import CASES, FABRIC_CASES
from egmctl.bench.suites import SUITES
from egmctl.model.memory import MemoryKind
from egmctl.model.task import Quantity

DOCUMENT = ROOT / "docs" / "cases.md"
HEAD = """\
# Suites, cases and options of egmctl bench

<!-- This file is written by tools/bench_reference.py. -->

What each word means is in [measurement.md](measurement.md), how to run it in [bench.md](bench.md). On a machine,
`egmctl bench --list` says which of the cases would run, and why not.
"""


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    return settle(arguments, DOCUMENT, reference(), "tools/bench_reference.py")


def reference() -> str:
    """Return the whole document."""
    parts = [HEAD, _suites(), _options(commands()["bench"].options)]
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


def _options(options: Sequence[Option]) -> str:
    rows = [(f"`{option.spelling}`", option.help) for option in options]
    return f"## Options\n\n{_table(('option', 'meaning'), rows)}"


def _family(name: str, cases: Sequence[Case]) -> str:
    rows = [(f"`{case.name}`", case.description, _memory(case), case.engine.value, _how(case)) for case in cases]
    return f"## Family {name}\n\n{_table(('case', 'what', 'from, to', 'engine', 'how'), rows)}"


def _memory(case: Case) -> str:
    ends = [end.value for end in (case.source, case.destination) if end is not MemoryKind.REGISTERS]
    return ", ".join(dict.fromkeys(ends))


def _how(case: Case) -> str:
    words = [case.pattern.value]
    if case.quantity is not Quantity.BANDWIDTH:
        words.append(case.quantity.value)
    if case.streams > 1:
        words.append(f"{case.streams} streams")
    if case.handle is not None:
        words.append(f"handle {case.handle.value}")
    return ", ".join(words)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
