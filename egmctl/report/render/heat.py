"""The scale of heat maps: how near a number comes to the best of its kind in its matrix, in eight steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import pairwise

from egmctl.report.document import Better, Cell, Matrix, columns

BOUNDS = (0.40, 0.65, 0.80, 0.90, 0.95, 0.97, 0.99)
"""Shares of the best at which a step ends. They lie closer near the best: cells that are alike within one per cent, as
those of a healthy switch are, look alike, and what is some per cent behind is seen."""

DRAWN_CELLS = 72 * 72
"""Larger matrices are not drawn: 72 are the GPUs of the largest NVLink domain of one rack."""


def best(matrix: Matrix) -> dict[str, float]:
    """Return the best number of each kind of a matrix; nothing where it is not to be shaded."""
    found: dict[str, float] = {}
    better = max if matrix.better is Better.HIGH else min
    for cell in (cell for series in columns(matrix) for cell in series.cells):
        if matrix.better is not None and cell.value:
            found[cell.kind] = better(found.get(cell.kind, cell.value), cell.value)
    return found


def step_of(cell: Cell, best_of: Mapping[str, float], better: Better | None) -> int | None:
    """Return the step of a cell, ``None`` where it has no shade."""
    if better is None or not cell.value or cell.kind not in best_of:
        return None
    return step(cell.value, best_of[cell.kind], better)


def step(value: float, of: float, better: Better) -> int:
    """Return the step of a number, 7 for the best and what equals it within one per cent."""
    share = value / of if better is Better.HIGH else of / value if value > 0 else 1
    return bisect_right(BOUNDS, share)


def legend(better: Better) -> list[tuple[int, str]]:
    """Return each step with the words that explain it, the best first."""
    if better is Better.HIGH:
        ends = [f"{100 * bound:.0f}" for bound in reversed(BOUNDS)]
        between = [f"{low} to {high} %" for high, low in pairwise(ends)]
        words = (f"{ends[0]} % of the most and above", *between, f"below {ends[-1]} %")
    else:
        ends = [f"{100 / bound - 100:.0f}" for bound in reversed(BOUNDS)]
        between = [f"{low} to {high} % longer" for low, high in pairwise(ends)]
        words = (f"the least, and up to {ends[0]} % longer", *between, f"more than {ends[-1]} % longer")
    return list(zip(range(len(BOUNDS), -1, -1), words, strict=True))


def cells_of(matrix: Matrix) -> int:
    """Return the number of a matrix' cells."""
    return len(matrix.rows) * sum(map(len, matrix.groups))
