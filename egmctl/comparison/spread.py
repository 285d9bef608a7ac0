"""How much a path's median differs from run to run where nothing has changed.

The samples of one run understate it: buffers lie elsewhere in the next one, and clocks and neighbours are others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from egmctl.model.measurement import Engine, Measurement, Quantity

TOLERANCE = 0.05
"""What a median may differ by: a little less than what one lost NVLink of 18 costs, which is 5.6 %. Any other fault of
a wire (a PCIe link at half its width or speed, a C2C link down) costs more."""

TIMES = 3
"""How many times the known spread a difference must be."""

OUTLIER = 5
"""Of more than two nodes, how many standard deviations of their paths' distances from the medians a difference must be
as well: a node has hundreds of paths, and of a normal spread one in a million is farther out."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How far one run's median of a path is from the path's middle over many runs, as a part of it."""

    value: float
    source: str


DEFAULTS = {
    Quantity.BANDWIDTH: Spread(0.01, "default for bandwidths"),
    Quantity.LATENCY: Spread(0.02, "default for latencies"),
    Quantity.DURATION: Spread(0.2, "default for durations"),
}
"""Where no profile says more (docs/compare.md has what was seen)."""

CPU_DEFAULT = Spread(0.05, "default for CPU threads")
"""Of threads on CPUs: other threads of the node share cores, caches and memory with them."""

SpreadOf = Callable[[Measurement], Spread]


def default_spread(measurement: Measurement) -> Spread:
    """Return the spread of what was measured where no profile has one."""
    return CPU_DEFAULT if measurement.engine is Engine.CPU else DEFAULTS[measurement.quantity]
