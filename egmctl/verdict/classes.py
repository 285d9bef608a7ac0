"""Which measurements belong together, and the one number of each that is judged. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from egmctl.bench.engines import engine_for
from egmctl.model.measurement import Measurement, Quantity, Status
from egmctl.model.memory import MemoryKind
from egmctl.model.profile import Unit
from egmctl.units import MIB, format_size

JUDGED_FROM_BYTES = 64 * MIB
"""Bandwidths of smaller buffers say what it costs to begin a copy, and are not judged. On HGX H200 copies of 64 MiB
reach 98 % of what copies of 512 MiB do (docs/profiles.md)."""


def is_lost(measurement: Measurement) -> bool:
    """Say whether a measurement ended for no cause that is known: the command ends with 4 then."""
    unexplained = measurement.status is Status.FAILED and not measurement.known_cause
    return unexplained or measurement.status in (Status.CRASHED, Status.TIMED_OUT)


@dataclass(frozen=True, slots=True, order=True)
class PathClass:
    """Case, links and size: what may be compared."""

    case: str
    link: str
    """The symbol of the route."""
    size_bytes: int


SEVERAL = "several routes at once"
"""In place of a symbol, of flows that take different routes at the same time."""


def class_of(measurement: Measurement) -> PathClass:
    """Return the class of a measurement; flows that take different ways at once have a class of their own."""
    return PathClass(measurement.case, _one(flow.route.symbol for flow in measurement.flows), measurement.size_bytes)


def kind_of(measurement: Measurement) -> str:
    """Return the links of a measurement without the number of NVLinks: ``NV`` of ``NV18`` and of ``NV16``."""
    return _one(flow.route.kind for flow in measurement.flows)


def _one(symbols: Iterable[str]) -> str:
    found = set(symbols)
    return found.pop() if len(found) == 1 else SEVERAL


def several_sizes(classes: Iterable[PathClass]) -> frozenset[PathClass]:
    """Return the classes of cases that were measured at several sizes."""
    sizes: dict[tuple[str, str], set[int]] = {}
    known = tuple(classes)
    for one in known:
        sizes.setdefault((one.case, one.link), set()).add(one.size_bytes)
    return frozenset(one for one in known if len(sizes[one.case, one.link]) > 1)


def names(classes: Iterable[PathClass]) -> dict[PathClass, str]:
    """Return what each class is called: with its size only where a case was measured at several."""
    known = tuple(classes)
    sized = several_sizes(known)
    return {
        one: f"{one.case} over {one.link}{f', {format_size(one.size_bytes)}' if one in sized else ''}" for one in known
    }


def unit_of(measurement: Measurement) -> Unit:
    """Return the unit of a measurement's number."""
    return Unit.NS if measurement.quantity is Quantity.LATENCY else Unit.GB_S


def value_of(measurement: Measurement) -> float | None:
    """Return the median of a latency, or of the bandwidth of all flows together; ``None`` where there is none."""
    summary = measurement.headline
    return summary.median if summary is not None and summary.median > 0 else None


def is_degraded(measurement: Measurement) -> bool:
    """Say whether an EGM route was blocked and another one was tried."""
    return any(flow.route.degraded for flow in measurement.flows)


def not_judged(measurement: Measurement) -> str | None:
    """Say why a number is not judged; ``None`` if it is."""
    if is_degraded(measurement):
        return "its EGM route is blocked: what is left has no reference"
    if measurement.blocks is not None:
        return "one of a series by the number of SMs: few need not fill a link"
    if any(MemoryKind.GPU_NUMA in (flow.source.memory, flow.destination.memory) for flow in measurement.flows):
        return "CPU threads are a lower bound"
    if measurement.quantity is Quantity.BANDWIDTH and measurement.size_bytes < JUDGED_FROM_BYTES:
        return f"buffers of less than {format_size(JUDGED_FROM_BYTES)} are not judged"
    return None


def is_by_host(measurement: Measurement) -> bool:
    """Say whether it is a round trip of messages between processes: where the host runs these is in the number.

    On eight idle H200 round trips by event were 24.7 to 38.6 us from pair to pair (docs/hardware-notes.md).
    """
    return measurement.quantity is Quantity.LATENCY and engine_for(measurement.engine).timed_by_host
