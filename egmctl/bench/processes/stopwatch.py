"""What a process that measures spends its time on."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from egmctl.model.timing import Phase, PhaseSeconds


class Stopwatch:
    """Counts the seconds of phases; within one phase another may lie, and its seconds are its own."""

    def __init__(self) -> None:
        self._spent: defaultdict[Phase, float] = defaultdict(float)
        self._under_way: list[Phase] = []
        self._since = 0.0

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Count what a ``with`` block takes, also one that fails."""
        self._count()
        self._under_way.append(phase)
        try:
            yield
        finally:
            self._count()
            self._under_way.pop()

    def take(self) -> PhaseSeconds:
        """Return what was spent since the last time."""
        self._count()
        spent, self._spent = self._spent, defaultdict(float)
        return PhaseSeconds(
            set_up_s=spent[Phase.SET_UP],
            warm_up_s=spent[Phase.WARM_UP],
            measuring_s=spent[Phase.MEASURING],
            verifying_s=spent[Phase.VERIFYING],
            tear_down_s=spent[Phase.TEAR_DOWN],
        )

    def _count(self) -> None:
        now = time.perf_counter()
        if self._under_way:
            self._spent[self._under_way[-1]] += now - self._since
        self._since = now
