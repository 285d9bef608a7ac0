"""Writes the reference of suites and cases in ``docs/cases.md`` from the registry.

python tools/bench_reference.py            write it
python tools/bench_reference.py --check    write nothing; exit 1 if the file is not what would be written
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from generated import ROOT, settle

from egmctl.bench.case import Case
from egmctl.bench.suites import CASES, FABRIC_CASES, SUITES

DOCUMENT = ROOT / "docs" / "cases.md"
HEAD = """\
# Suites and cases of egmctl bench

<!-- This file is written by tools/bench_reference.py. -->

[bench.md](bench.md) has the options, [measurement.md](measurement.md) the method. On a machine,
`egmctl bench --list` says which of the cases can run, and why others cannot.
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
    rows = [(f"`{case.name}`", case.description) for case in cases]
    return f"## Family {name}\n\n{_table(('case', 'what'), rows)}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
