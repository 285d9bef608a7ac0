"""How much a path's median differs from run to run where nothing has changed.

The samples of one run understate it: buffers lie elsewhere in the next one, and clocks and neighbours are others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from egmctl.model.machine import Machine
from egmctl.model.measurement import Measurement, Quantity
from egmctl.model.profile import Profile
from egmctl.model.task import CPU_ENGINES
from egmctl.saved import Saved
from egmctl.verdict.against_profile import reference_for
from egmctl.verdict.classes import is_by_host
from egmctl.verdict.load import load_all
from egmctl.verdict.match import choose, match_profile

TOLERANCE = 0.05
"""What a median may differ by: a little less than what one lost NVLink of 18 costs, which is 5.6 %. Any other fault of
a link (a PCIe link at half its width or speed, a C2C link down) costs more."""

TIMES = 3
"""How many times the known spread a difference must be, of two runs: ``sqrt(2)`` times that of one."""

OUTLIER = 5
"""Of more than two nodes, how many standard deviations of their paths' distances from the medians a difference must be
as well: a node has hundreds of paths, and of a normal spread one in a million is farther out."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Standard deviation of one path's medians over many runs, as a part of their middle."""

    value: float
    source: str

    @property
    def bound(self) -> float:
        """What two runs may differ by."""
        return TIMES * math.sqrt(2) * self.value


DEFAULTS = {
    "between GPUs": Spread(0.005, "default for bandwidths between GPUs"),
    "latency": Spread(0.01, "default for latencies between GPUs"),
    "host": Spread(0.04, "default for paths to host memory, which others use too"),
    "cpu": Spread(0.1, "default for CPU threads, which share their memory with all else on the host"),
    "duration": Spread(0.15, "default for durations and round trips by message"),
}
"""Where no profile says more: rounded up from what was seen on H200 nodes, which docs/compare.md has."""

TRUSTED_RUNS = 20
"""A profile of fewer runs may have met quiet hours only: its spread counts where it is larger than the default."""

SpreadOf = Callable[[Measurement], Spread]


def default_spread(measurement: Measurement) -> Spread:
    """Return the spread of what was measured where no profile has one."""
    if measurement.quantity is Quantity.DURATION or is_by_host(measurement):
        return DEFAULTS["duration"]
    if measurement.engine in CPU_ENGINES:
        return DEFAULTS["cpu"]
    ends = (end for flow in measurement.flows for end in (flow.source, flow.destination))
    if any(end.bus_id is None for end in ends):
        return DEFAULTS["host"]
    return DEFAULTS["latency" if measurement.quantity is Quantity.LATENCY else "between GPUs"]


def spread_of(saved: Sequence[Saved], warn: Callable[[str], None]) -> SpreadOf:
    """Return a function that knows the spreads of the profile that fits all machines of some results.

    Parameters
    ----------
    warn
        Told in a sentence of each profile that is broken: the comparison goes on without it.
    """
    known = load_all(lambda error: warn(f"{error}; continuing without it"))
    return known_spread([machine for one in saved for machine in one.machines], [profile for profile, _ in known])


def known_spread(machines: Sequence[Machine], profiles: Sequence[Profile]) -> SpreadOf:
    """Return a function that knows the spreads of the profile that fits all of the machines, and else the defaults.

    Parameters
    ----------
    profiles
        In the order in which they are asked: :func:`egmctl.verdict.load.load_all`.
    """
    profile = choose(machines[0], profiles)[0] if machines else None
    if profile is not None and not all(match_profile(machine, profile).fits for machine in machines[1:]):
        profile = None

    def spread(measurement: Measurement) -> Spread:
        reference = reference_for(measurement, profile)[0] if profile is not None and measurement.flows else None
        default = default_spread(measurement)
        if profile is None or reference is None or reference.run_to_run is None:
            return default
        runs = profile.sources[reference.source].runs or 0
        if runs < TRUSTED_RUNS and reference.run_to_run < default.value:
            return default
        return Spread(reference.run_to_run, f"profile {profile.name}")

    return spread
