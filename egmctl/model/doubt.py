"""Doubts: the reasons not to believe a measurement, or not all of it, and the effect of each."""

from __future__ import annotations

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.record import Plain


class DoubtReason(StrEnum):
    """The reasons to doubt a measurement."""

    UNSTABLE = "unstable"
    """The samples of the last attempt vary too much."""
    WORST_SAMPLE = "worst-sample"
    """A sample is beyond the bound of a failure, though the median is not."""
    ATTEMPTS_DIFFER = "attempts-differ"
    """The medians of two attempts differ by more than samples of one attempt may."""
    PLACEMENT = "placement"
    """A buffer of host memory is not on its NUMA node."""
    ROUTE = "route"
    """The counters of the links refute the route."""
    ROUTE_UNKNOWN = "route-unknown"
    """No counter says over which links EGM traffic went."""
    NO_COUNTERS = "no-counters"
    """The counters of a link contradict each other, or none answers."""
    TOO_FAST = "too-fast"
    """It is faster than its link: not all bytes crossed it."""
    OTHER_PROCESSES = "other-processes"
    """Other processes used a GPU of the path."""
    HOST_BUSY = "host-busy"
    """Other processes kept the host's CPUs busy, and with them the host's memory."""
    THROTTLED = "throttled"
    """Heat or a power supply lowered the clocks of a GPU of the path."""
    ERRORS_ROSE = "errors-rose"
    """An error counter of a GPU of the path rose."""
    DEGRADED = "degraded"
    """The EGM route is blocked; what was measured is another one."""
    UNGATED = "ungated"
    """Work was not held back until all of it was queued: the time contains queueing."""
    UNVERIFIED = "unverified"
    """No byte was verified."""


class Effect(StrEnum):
    """The effects of a doubt on the answer, the most severe first."""

    FAIL = "fail"
    """It proves a fault."""
    VOID = "void"
    """The number is not that of this path: it neither passes nor condemns."""
    LOW = "low"
    """The path may be faster than this: a pass stands, slowness condemns nothing."""
    WARN = "warn"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A reason to doubt a measurement."""

    reason: DoubtReason
    effect: Effect
    measurement: int
    """The index in ``RunReport.measurements``."""
    lowest: float | None = None
    """The lowest value that was seen, in the unit of the measurement; ``None`` if the doubt is not about values."""
    highest: float | None = None
    bound: float | None = None
    """The bound that a value is beyond; ``None`` without one."""
    attempts: int | None = None
    """The number of attempts in which it was seen."""
    detail: Plain = ""
    """What was read, where it is no number: a buffer's place, a link, the processes, a counter."""
    details: tuple[Plain, ...] = ()
    """The parts of the detail, one for each GPU or buffer; empty if it is not of several."""
