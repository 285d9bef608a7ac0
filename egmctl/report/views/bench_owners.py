"""Which GPU memory belongs to that was allocated under each GPU of a NUMA node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from egmctl.model.measurement import RunReport
from egmctl.model.verdict import MemoryOwner, OwnerUnknown
from egmctl.units import printable
from egmctl.wording import listed, shortened

_CASES = 2
"""Cases that are named."""
_WHY = {
    OwnerUnknown.NO_COUNTERS: "no counters show which link carried the bytes",
    OwnerUnknown.TOO_FEW: "the reads that were measured leave several GPUs",
    OwnerUnknown.OWN_LINK_EACH: "each GPU read it over its own NVLink-C2C, as memory that belongs to none",
    OwnerUnknown.CONTRADICTORY: "the link counters of its reads contradict each other",
}


def owner_lines(report: RunReport) -> Iterator[str]:
    """Yield a sentence for each NUMA node: the owner of what was allocated under each GPU, or why it is not known."""
    cases: dict[str, list[str]] = {}
    found = report.verdict.owners if report.verdict is not None else ()
    for (case, node), those in groupby(sorted(found, key=_of_case), key=_of_case):
        for sentence in _sentences(report, tuple(those)):
            cases.setdefault(f"NUMA{node}: {sentence}", []).append(case)
    yield from (f"{sentence} ({shortened(names, _CASES)})" for sentence, names in cases.items())


def _of_case(one: MemoryOwner) -> tuple[str, int]:
    return one.case, one.numa_node


def _sentences(report: RunReport, those: Sequence[MemoryOwner]) -> Iterator[str]:
    known = [f"under {one.allocated_by_label}: {one.owner_label}" for one in those if one.owner is not None]
    if known:
        yield f"owner by the link counters of memory allocated {', '.join(known)}"
    unknown: dict[str, list[str]] = {}
    for one in those:
        if one.owner is None:
            unknown.setdefault(_why(report, one), []).append(one.allocated_by_label)
    yield from (f"owner unknown of memory allocated under {listed(names)}: {why}" for why, names in unknown.items())


def unexpected_owners(report: RunReport) -> Iterator[str]:
    """Yield a sentence for each EGM memory that does not belong to the GPU under which it was allocated."""
    found = report.verdict.owners if report.verdict is not None else ()
    other = [one for one in found if one.owner is not None and one.owner != one.allocated_by]
    yield from dict.fromkeys(
        f"EGM memory of NUMA{one.numa_node} allocated under {one.allocated_by_label} belongs to {one.owner_label}, by "
        "the link counters: its NVLink-C2C carries the bytes"
        for one in other
    )


def _why(report: RunReport, one: MemoryOwner) -> str:
    if one.unknown is not None and one.unknown is not OwnerUnknown.NOT_EGM:
        return _WHY[one.unknown]
    flow = report.measurements[one.measurements[0]].flows[0]
    return f"not EGM ({printable(flow.route.egm_reason)})"
