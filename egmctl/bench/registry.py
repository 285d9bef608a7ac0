"""Every case there is, in the order in which they run and are shown."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from egmctl.bench.case import Case
from egmctl.bench.cases import egm, p2p
from egmctl.errors import UsageError
from egmctl.units import printable

CASES: tuple[Case, ...] = (*egm.CASES, *p2p.CASES)


def select_cases(patterns: Sequence[str]) -> tuple[Case, ...]:
    """Return the cases whose names fit one of the shell patterns, in the registry's order; all for no pattern.

    Raises
    ------
    UsageError
        For a pattern that fits no case.
    """
    for pattern in patterns:
        if not any(fnmatchcase(case.name, pattern) for case in CASES):
            raise UsageError(
                f"--case {printable(pattern)!r} fits no case; there are {', '.join(case.name for case in CASES)}"
            )
    return tuple(case for case in CASES if not patterns or any(fnmatchcase(case.name, pattern) for pattern in patterns))
