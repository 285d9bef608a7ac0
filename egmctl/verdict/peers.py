"""Holds measurements of one class against each other: which GPU is out of line, and in which direction. Pure.

On a switch a pair of GPUs shares nothing with another pair but its two GPUs' own links, so a weak link or a busy GPU
slows everything that leaves that GPU (a row of the matrix) or arrives there (a column), hardly ever one cell. The
matrix is therefore taken apart as

    log value(i, j) = overall + egress(i) + ingress(j) + rest(i, j)

by Tukey's median polish (Exploratory Data Analysis, 1977, ch. 11): take the median out of every row, then out of every
column, until nothing is left to take. Medians are not moved by the few cells that are weak, so these are left standing
out. Where only one end is a GPU, or a measurement belongs to one GPU, there is one effect for each GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_high

from egmctl.model.verdict import Direction, Grade

LEAST_GPUS = 4
"""With fewer GPUs nobody can say which of two that differ is the odd one."""

BANDWIDTH_WARN, BANDWIDTH_FAIL = 0.05, 0.15
"""How far below its siblings is a warning, a fault. Chosen: healthy pairs of one node are 0.1 % apart on HGX H200
(docs/hardware-notes.md) and up to 3.5 % below their median in published matrices of HGX H100 (docs/profiles.md); one of
18 links that is missing costs 5.6 %."""
HOST_WARN, HOST_FAIL = 0.2, 0.4
"""The same between GPUs and host memory, which share more than their own links: root complexes, memory, and on virtual
machines neighbours. Chosen: of 28 runs on HGX H200 a single GPU was up to 15 % below the others (docs/profiles.md); a
PCIe link that trained at half its width or rate loses half."""
LATENCY_WARN, LATENCY_FAIL = 0.15, 0.5
"""How far above, for latencies. Chosen: on HGX H200 they are up to 6 % apart, by the place of GPU and SM."""

_MOST_OF = 0.75
"""So many of a GPU's cells must be weak to call it the GPU: otherwise they are pairs."""
_ROUNDS = 20
_SETTLED = 1e-9

End = str | None
"""A GPU, or ``None`` where that end of a path is none."""


@dataclass(frozen=True, slots=True)
class PeerCell:
    """One value of a class."""

    measurement: int
    source: End
    destination: End
    value: float


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far off is how bad, as parts of what the siblings reach."""

    warn: float
    fail: float
    latency: bool

    def grade(self, ratio: float) -> Grade:
        """Grade what a cell reaches by what its siblings do: of a bandwidth below 1, of a latency above."""
        off = ratio - 1 if self.latency else 1 - ratio
        return Grade.FAIL if off > self.fail else Grade.WARN if off > self.warn else Grade.PASS

    def bound(self, typical: float, off: float) -> float:
        """Return the value that is as far off."""
        return typical * (1 + off) if self.latency else typical * (1 - off)


BANDWIDTH = Tolerance(BANDWIDTH_WARN, BANDWIDTH_FAIL, latency=False)
HOST = Tolerance(HOST_WARN, HOST_FAIL, latency=False)
LATENCY = Tolerance(LATENCY_WARN, LATENCY_FAIL, latency=True)


@dataclass(frozen=True, slots=True)
class Outlier:
    """A GPU in one direction, or a pair."""

    gpus: tuple[str, ...]
    direction: Direction | None
    ratio: float
    """What it reaches by what its siblings do; a GPU's is that of all its cells in the direction."""
    grade: Grade
    cells: tuple[PeerCell, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """One class taken apart."""

    typical: float | None
    """What its members reach that are not out of line; ``None`` where there are too few."""
    outliers: tuple[Outlier, ...] = ()
    """GPUs first, then pairs; the worst first."""


def fit(cells: Sequence[PeerCell], tolerance: Tolerance) -> Fit:
    """Find what is out of line among cells of one class.

    Parameters
    ----------
    cells
        Values above 0, each of its own pair of ends.
    """
    if len({end for cell in cells for end in (cell.source, cell.destination) if end is not None}) < LEAST_GPUS:
        return Fit(None)
    sign = -1 if tolerance.latency else 1
    good = {cell: sign * math.log(cell.value) for cell in cells}
    pairs = all(cell.source is not None and cell.destination not in (None, cell.source) for cell in cells)
    rows, columns = _polish(good) if pairs else ({}, {})
    usual = _usual(good, rows, columns)
    weak = {cell for cell in cells if tolerance.grade(math.exp(sign * (good[cell] - usual))) is not Grade.PASS}
    named: dict[tuple[str, Direction], float] = {}
    for effects, direction in ((rows, Direction.EGRESS), (columns, Direction.INGRESS)):
        base = median_high(effects.values()) if effects else 0.0
        for gpu, effect in effects.items():
            its = [cell for cell in cells if _end(cell, direction) == gpu]
            off = tolerance.grade(math.exp(sign * (effect - base))) is not Grade.PASS
            if off and len(its) > 1 and len(weak.intersection(its)) >= _MOST_OF * len(its):
                named[gpu, direction] = effect - base
    found = [
        _outlier((gpu,), direction, sign * effect, [c for c in cells if _end(c, direction) == gpu], tolerance)
        for (gpu, direction), effect in named.items()
    ]
    for cell in cells:
        explained = usual + sum(
            named.get((gpu, direction), 0.0)
            for gpu, direction in ((cell.source, Direction.EGRESS), (cell.destination, Direction.INGRESS))
            if gpu is not None
        )
        rest = good[cell] - explained
        if tolerance.grade(math.exp(sign * rest)) is not Grade.PASS:
            gpus = tuple(dict.fromkeys(end for end in (cell.source, cell.destination) if end is not None))
            found.append(_outlier(gpus, _direction(cell), sign * (good[cell] - usual), [cell], tolerance))
    found.sort(key=lambda one: (len(one.gpus), -abs(math.log(one.ratio))))
    return Fit(math.exp(sign * usual), tuple(found))


def _polish(good: Mapping[PeerCell, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the effect of each source and of each destination."""
    rows = dict.fromkeys((str(cell.source) for cell in good), 0.0)
    columns = dict.fromkeys((str(cell.destination) for cell in good), 0.0)
    rest = dict(good)
    for _ in range(_ROUNDS):
        moved = 0.0
        for effects, direction in ((rows, Direction.EGRESS), (columns, Direction.INGRESS)):
            for gpu in effects:
                its = [cell for cell in rest if _end(cell, direction) == gpu]
                step = median(rest[cell] for cell in its)
                effects[gpu] += step
                moved = max(moved, abs(step))
                for cell in its:
                    rest[cell] -= step
        if moved < _SETTLED:
            break
    return rows, columns


def _usual(good: Mapping[PeerCell, float], rows: Mapping[str, float], columns: Mapping[str, float]) -> float:
    """Return what a path between two ordinary GPUs reaches.

    Of an even number the better of the two in the middle: nothing is faster than its link, so where half are slow,
    those are the odd ones.
    """
    if rows:
        return median_high(rows.values()) + median_high(columns.values())
    return median_high(good.values())


def _outlier(
    gpus: tuple[str, ...], direction: Direction | None, effect: float, cells: Iterable[PeerCell], tolerance: Tolerance
) -> Outlier:
    ratio = math.exp(effect)
    return Outlier(gpus, direction, ratio, tolerance.grade(ratio), tuple(cells))


def _end(cell: PeerCell, direction: Direction) -> End:
    return cell.source if direction is Direction.EGRESS else cell.destination


def _direction(cell: PeerCell) -> Direction | None:
    """Return a single cell's direction: of a pair, and of a GPU's own memory, there is none."""
    if cell.source is not None and cell.destination is not None:
        return None
    return Direction.EGRESS if cell.source is not None else Direction.INGRESS
