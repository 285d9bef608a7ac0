"""Which GPU memory belongs to that was allocated under each GPU of a NUMA node."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.model.measurement import RunReport
from egmctl.model.verdict import MemoryOwner, OwnerUnknown
from egmctl.units import printable
from egmctl.wording import listed

_WHY = {
    OwnerUnknown.NO_COUNTERS: "no counters show which link carried the bytes",
    OwnerUnknown.TOO_FEW: "the reads that were measured leave several GPUs",
    OwnerUnknown.OWN_LINK_EACH: "each GPU read it over its own NVLink-C2C, as memory that belongs to none",
    OwnerUnknown.CONTRADICTORY: "the link counters of its reads contradict each other",
}


def owner_lines(report: RunReport) -> Iterator[str]:
    """Yield a sentence for each NUMA node: the owner of what was allocated under each GPU, or why it is not known."""
    unknown: dict[tuple[int, str], list[str]] = {}
    known: dict[int, list[str]] = {}
    for one in report.verdict.owners if report.verdict is not None else ():
        if one.unknown is not None:
            unknown.setdefault((one.numa_node, _why(report, one)), []).append(one.allocated_by_label)
        else:
            verb = "to" if one.numa_node in known else "belongs to"
            known.setdefault(one.numa_node, []).append(f"under {one.allocated_by_label} {verb} {one.owner_label}")
    for node, those in known.items():
        yield f"NUMA{node}: memory allocated {', '.join(those)}, by the link counters"
    for (node, why), labels in unknown.items():
        yield f"NUMA{node}: memory allocated under {listed(labels)}: owner unknown: {why}"


def unexpected_owners(report: RunReport) -> Iterator[str]:
    """Yield a sentence for each EGM memory that does not belong to the GPU under which it was allocated."""
    for one in report.verdict.owners if report.verdict is not None else ():
        if one.owner is not None and one.owner != one.allocated_by:
            yield (
                f"EGM memory of NUMA{one.numa_node} allocated under {one.allocated_by_label} belongs to "
                f"{one.owner_label}, by the link counters: its NVLink-C2C carries the bytes"
            )


def _why(report: RunReport, one: MemoryOwner) -> str:
    if one.unknown is not None and one.unknown is not OwnerUnknown.NOT_EGM:
        return _WHY[one.unknown]
    flow = report.measurements[one.measurements[0]].flows[0]
    return f"not EGM ({printable(flow.route.egm_reason)})"
