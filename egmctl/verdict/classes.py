"""Which measurements belong together, and the one number of each that is judged. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from egmctl.bench.engines import engine_for
from egmctl.bench.wires import symbol
from egmctl.model.measurement import Measurement, Quantity, Status
from egmctl.model.profile import Unit
from egmctl.units import MIB, format_size

JUDGED_FROM_BYTES = 64 * MIB
"""Bandwidths of smaller buffers say what it costs to begin a copy, and are not judged. On HGX H200 copies of 64 MiB
reach 98 % of what copies of 512 MiB do (docs/profiles.md)."""

BROKEN = (Status.CORRUPT, Status.FAILED, Status.CRASHED, Status.TIMED_OUT)


@dataclass(frozen=True, slots=True, order=True)
class PathClass:
    """Case, wire and size: what may be compared."""

    case: str
    wire: str
    size_bytes: int


def class_of(measurement: Measurement) -> PathClass:
    """Return the class of a measurement; flows that take different ways at once have a class of their own."""
    wires = list(dict.fromkeys(symbol(flow) for flow in measurement.flows))
    wire = wires[0] if len(wires) == 1 else "several ways at once"
    return PathClass(measurement.case, wire, measurement.size_bytes)


def names(classes: Sequence[PathClass]) -> dict[PathClass, str]:
    """Return what each class is called: with its size only where a case was measured at several."""
    sizes: dict[tuple[str, str], set[int]] = {}
    for one in classes:
        sizes.setdefault((one.case, one.wire), set()).add(one.size_bytes)
    return {
        one: f"{one.case} over {one.wire}"
        + (f", {format_size(one.size_bytes)}" if len(sizes[one.case, one.wire]) > 1 else "")
        for one in classes
    }


def unit_of(measurement: Measurement) -> Unit:
    """Return the unit of a measurement's number."""
    return Unit.NS if measurement.quantity is Quantity.LATENCY else Unit.GB_S


def value_of(measurement: Measurement) -> float | None:
    """Return the median of a latency, or of the bandwidth of all flows together; ``None`` where there is none."""
    summary = measurement.headline
    return summary.median if summary is not None and summary.median > 0 else None


def too_small(measurement: Measurement) -> str | None:
    """Say why a bandwidth is not judged; ``None`` if it is, or is a latency."""
    if measurement.quantity is Quantity.BANDWIDTH and measurement.size_bytes < JUDGED_FROM_BYTES:
        return f"buffers of less than {format_size(JUDGED_FROM_BYTES)} are not judged"
    return None


def is_by_host(measurement: Measurement) -> bool:
    """Say whether it is a round trip of messages between processes: where the host runs these is in the number.

    On eight idle H200 round trips by event were 24.7 to 38.6 us from pair to pair (docs/hardware-notes.md).
    """
    return measurement.quantity is Quantity.LATENCY and engine_for(measurement.engine).timed_by_host


def alike(wire: str, other: str) -> bool:
    """Say whether two wires are of one kind, however many NVLinks they are of: ``NV18`` and ``NV16``."""
    return _kind(wire) == _kind(other)


def _kind(wire: str) -> str:
    return re.sub(r"NV\d+", "NV", wire)
