"""Where the time of a run goes, put together from what the processes tell at the end of each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from egmctl.model.codec import from_json
from egmctl.model.timing import CaseSeconds, PhaseSeconds, RunSeconds


class Spent:
    """What the time of a run went to."""

    def __init__(self) -> None:
        self.starting_s = 0.0
        self.ending_s = 0.0
        """Of processes that ended as they should."""
        self._cases: dict[str, tuple[int, PhaseSeconds]] = {}

    def add(self, case: str, spent: Mapping[str, float] | None) -> None:
        """Note what a step's time went to, as the first process has told it; a step of which it has not counts too."""
        steps, before = self._cases.get(case, (0, PhaseSeconds()))
        found = PhaseSeconds() if spent is None else from_json(PhaseSeconds, spent)
        self._cases[case] = steps + 1, before.plus(found)

    def of_run(self, wall_s: float) -> RunSeconds:
        """Return it for a run that took so long."""
        cases = tuple(
            CaseSeconds(case=case, steps=steps, **asdict(found)) for case, (steps, found) in self._cases.items()
        )
        total = PhaseSeconds(tear_down_s=self.ending_s)
        for one in cases:
            total = total.plus(one)
        return RunSeconds(
            **asdict(total),
            starting_s=self.starting_s,
            waiting_s=max(0.0, wall_s - self.starting_s - total.sum_s),
            cases=cases,
        )
