"""The scale of heat maps: how near a number comes to the best of its table, in eight steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from egmctl.model.measurement import RunReport
from egmctl.model.verdict import Grade
from egmctl.report.grid import Grid, Shade, lines

BOUNDS = (0.40, 0.65, 0.80, 0.90, 0.95, 0.97, 0.99)
"""Shares of the best at which a step ends. They lie closer near the best: cells that are alike within one per cent, as
those of a healthy switch are, look alike, and what is some per cent behind is seen."""

Marks = Mapping[int, Grade]
"""By a measurement's ``id``: what the verdict says of it, where that is a warning or a failure."""


def best(grid: Grid) -> float | None:
    """Return the best number of a grid; ``None`` where it is not to be shaded."""
    values = [cell.value for line in lines(grid) for cell in line.cells if cell.value]
    if grid.shade is None or not values:
        return None
    return max(values) if grid.shade is Shade.HIGH else min(values)


def step(value: float, of: float, shade: Shade) -> int:
    """Return the step of a number, 7 for the best and what equals it within one per cent."""
    share = value / of if shade is Shade.HIGH else of / value if value > 0 else 1
    return bisect_right(BOUNDS, share)


def marks(report: RunReport) -> Marks:
    """Return what the verdict of a run says of each measurement, by the gravest of its judgements."""
    found: dict[int, Grade] = {}
    grades = list(Grade)
    for judged in report.verdict.judged if report.verdict else ():
        gravest = min((one.grade for one in judged.judgements), key=grades.index, default=Grade.PASS)
        if gravest in (Grade.FAIL, Grade.WARN):
            found[id(report.measurements[judged.measurement])] = gravest
    return found


def legend(shade: Shade) -> list[tuple[int, str]]:
    """Return each step with the words that explain it, the best first."""
    percents = [f"{100 * bound:.0f}" for bound in BOUNDS]
    of = "of the most" if shade is Shade.HIGH else "of the pace of the least"
    steps = [(7, f"{percents[-1]} % {of} and above")]
    steps += [(place, f"{percents[place - 1]} to {percents[place]} %") for place in range(6, 0, -1)]
    return [*steps, (0, f"below {percents[0]} %")]
