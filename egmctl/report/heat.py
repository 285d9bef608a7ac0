"""The scale of heat maps: how near a number comes to the best of its wire in its table, in eight steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from egmctl.model.measurement import RunReport
from egmctl.model.verdict import Grade
from egmctl.report.grid import Cell, Grid, Shade, lines
from egmctl.report.table import BAD, WARN

BOUNDS = (0.40, 0.65, 0.80, 0.90, 0.95, 0.97, 0.99)
"""Shares of the best at which a step ends. They lie closer near the best: cells that are alike within one per cent, as
those of a healthy switch are, look alike, and what is some per cent behind is seen."""

Marks = Mapping[int, Grade]
"""By a measurement's ``id``: what the verdict says of it, where that is a warning or a failure."""


def best(grid: Grid) -> dict[str, float]:
    """Return the best number of each wire of a grid; nothing where it is not to be shaded."""
    found: dict[str, float] = {}
    better = max if grid.shade is Shade.HIGH else min
    for cell in (cell for line in lines(grid) for cell in line.cells):
        if grid.shade is not None and cell.value:
            found[cell.wire] = better(found.get(cell.wire, cell.value), cell.value)
    return found


def step_of(cell: Cell, best_of: Mapping[str, float], shade: Shade | None) -> int | None:
    """Return the step of a cell, ``None`` where it has no shade."""
    if shade is None or not cell.value or cell.wire not in best_of:
        return None
    return step(cell.value, best_of[cell.wire], shade)


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


def mark_of(cell: Cell, marked: Marks) -> Grade | None:
    """Return how a cell is branded: for its own value, never because the sum that it is a part of failed."""
    if cell.of is None:
        return None
    whole = cell.of.headline
    own = len(cell.of.flows) == 1 or cell.value is None or (whole is not None and cell.value == whole.median)
    return marked.get(id(cell.of)) if own else None


_SIGNS = {Grade.FAIL: ("!", BAD), Grade.WARN: ("~", WARN)}


def branded(grid: Grid, marked: Marks) -> Grid:
    """Return a grid whose failed and warned cells have a sign and a colour, for text."""
    groups = tuple(
        tuple(replace(line, cells=tuple(_branded(cell, marked) for cell in line.cells)) for line in group)
        for group in grid.groups
    )
    return replace(grid, groups=groups)


def _branded(cell: Cell, marked: Marks) -> Cell:
    mark = mark_of(cell, marked)
    if mark is None:
        return cell
    sign, style = _SIGNS[mark]
    return replace(cell, text=f"{cell.text}{sign}", style=style)


def legend(shade: Shade) -> list[tuple[int, str]]:
    """Return each step with the words that explain it, the best first."""
    if shade is Shade.HIGH:
        ends = [f"{100 * bound:.0f}" for bound in reversed(BOUNDS)]
        between = [f"{low} to {high} %" for high, low in pairwise(ends)]
        words = (f"{ends[0]} % of the most and above", *between, f"below {ends[-1]} %")
    else:
        ends = [f"{100 / bound - 100:.0f}" for bound in reversed(BOUNDS)]
        between = [f"{low} to {high} % longer" for low, high in pairwise(ends)]
        words = (f"the least, and up to {ends[0]} % longer", *between, f"more than {ends[-1]} % longer")
    return list(zip(range(len(BOUNDS), -1, -1), words, strict=True))
