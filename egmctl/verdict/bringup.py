"""Whether a node can be handed over: doctor's root causes joined with what the bench found on the same paths. Pure.

A root cause explains a measurement that is slow, broken or was not made where it is about one of its GPUs, pairs or
NUMA nodes, and the measurement crosses what the check guards (:data:`_REACH`). What nothing explains is a cause of its
own: that something is slow at the same time proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from egmctl.model.bringup import Answer, Bringup, Gap, GapKind, JoinedCause
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Finding, Place, PlaceKind
from egmctl.model.finding import Status as Found
from egmctl.model.measurement import Flow, Measurement, RunReport, Status
from egmctl.model.route import Carrier, LinkKind
from egmctl.model.verdict import Grade
from egmctl.verdict.causes import Cause, causes
from egmctl.verdict.classes import BROKEN, is_lost


def bringup(diagnosis: Diagnosis, run: RunReport | None, *, not_measured: str = "") -> Bringup:
    """Judge a node.

    Parameters
    ----------
    run
        The bench on the same node, with its verdict; ``None`` where there was none.
    not_measured
        Why there was none.
    """
    joined = tuple(sorted(_joined(diagnosis, run), key=_gravity))
    gaps = tuple(_gaps(diagnosis, run, joined, not_measured))
    failed = any(cause.status is Found.FAIL for cause in joined)
    answer = Answer.NO_GO if failed else Answer.INCOMPLETE if gaps else Answer.GO
    return Bringup(answer=answer, causes=joined, gaps=gaps, diagnosis=diagnosis, run=run)


def _gravity(cause: JoinedCause) -> tuple[int, int]:
    return list(Found).index(cause.status), -len(cause.slow)


# --- causes ----------------------------------------------------------------------------------------------------------


def _joined(diagnosis: Diagnosis, run: RunReport | None) -> Iterator[JoinedCause]:
    measurements = () if run is None else run.measurements
    failing, warned = _slow(run)
    slow = failing | warned
    waived = {number for number, one in enumerate(measurements) if one.status is Status.WAIVED}
    places = {id(finding): place for place, finding in enumerate(diagnosis.findings)}
    told: set[int] = set()
    worst: list[Found] = []
    for cause in causes(diagnosis.findings):
        explained = {number for number in slow | waived if _explains(cause, measurements[number])}
        told |= explained
        status = Found.FAIL if explained & failing else cause.status
        worst.append(status)
        yield JoinedCause(
            status=status,
            findings=tuple(places[id(one)] for one in (cause.finding, *cause.explains)),
            slow=tuple(sorted(explained & slow)),
            waived=tuple(sorted(explained & waived)),
        )
    left = slow - told
    # A run fails too where no single path does: the verdict of a class is its own.
    failed = run is not None and run.verdict is not None and run.verdict.failed and Found.FAIL not in worst
    if left or failed:
        yield JoinedCause(
            status=Found.FAIL if failed or left & failing else Found.WARN, findings=(), slow=tuple(sorted(left))
        )


def _slow(run: RunReport | None) -> tuple[set[int], set[int]]:
    """Return the measurements that failed, for their speed or a known cause, and those that are a little slow."""
    if run is None:
        return set(), set()
    failing = {number for number, one in enumerate(run.measurements) if one.status in BROKEN and not is_lost(one)}
    warned: set[int] = set()
    for judged in run.verdict.judged if run.verdict is not None else ():
        grades = {one.grade for one in judged.judgements}
        if Grade.FAIL in grades:
            failing.add(judged.measurement)
        elif Grade.WARN in grades:
            warned.add(judged.measurement)
    return failing, warned - failing


def _explains(cause: Cause, measurement: Measurement) -> bool:
    return any(
        _touches(finding.place, flow) and _reaches(finding, flow)
        for finding in (cause.finding, *cause.explains)
        for flow in measurement.flows
    )


def _touches(place: Place, flow: Flow) -> bool:
    ends = (flow.source.bus_id, flow.destination.bus_id)
    match place.kind:
        case PlaceKind.NODE:
            return True
        case PlaceKind.GPU:
            return not {*ends, flow.initiator}.isdisjoint(place.ids)
        case PlaceKind.PAIR:
            return f"{ends[0]}>{ends[1]}" in place.ids or f"{ends[1]}>{ends[0]}" in place.ids
        case PlaceKind.NUMA:
            nodes = (flow.source.numa_node, flow.destination.numa_node)
            return any(str(node) in place.ids for node in nodes if node is not None)
        case PlaceKind.NIC:
            return False


def _reaches(finding: Finding, flow: Flow) -> bool:
    return any(
        fnmatchcase(finding.check, pattern) and all(holds(flow) for holds in conditions)
        for pattern, conditions in _REACH.items()
    )


_Holds = Callable[[Flow], bool]


def _between_gpus(flow: Flow) -> bool:
    return None not in (flow.source.bus_id, flow.destination.bus_id) and flow.source.bus_id != flow.destination.bus_id


def _host_memory(flow: Flow) -> bool:
    return flow.source.numa_node is not None or flow.destination.numa_node is not None


def _over(link: LinkKind, otherwise: _Holds) -> _Holds:
    """Return whether a flow crosses a link; of a blocked route, which has none, whether it would."""

    def holds(flow: Flow) -> bool:
        if flow.route.carrier is Carrier.NONE:
            return otherwise(flow)
        return any(hop.link is link for hop in flow.route.hops)

    return holds


_NVLINK = _over(LinkKind.NVLINK, _between_gpus)
_C2C = _over(LinkKind.C2C, _host_memory)
_PCIE = _over(LinkKind.PCIE, _host_memory)

_REACH: Mapping[str, tuple[_Holds, ...]] = {
    **dict.fromkeys(("dev.*", "drv.libraries", "drv.versions", "drv.nouveau", "env.visible-devices"), ()),
    **dict.fromkeys(("gpu.health", "gpu.mig", "gpu.cc-mode", "gpu.vgpu", "gpu.compute-mode", "gpu.throttle"), ()),
    **dict.fromkeys(("mps.env", "env.bad-cuda-env", "kernel.xid"), ()),
    **dict.fromkeys(("nvlink.*", "kernel.sxid", "fabric.manager", "fabric.management", "fabric.state"), (_NVLINK,)),
    **dict.fromkeys(("p2p.*", "egm.peer-route"), (_between_gpus,)),
    **dict.fromkeys(("pcie.acs", "pcie.iommu"), (_between_gpus, _PCIE)),
    **dict.fromkeys(("pcie.link", "kernel.aer"), (_PCIE,)),
    "c2c.link": (_C2C,),
    **dict.fromkeys(("egm.*", "numa.*"), (_host_memory,)),
}
"""By check, or glob of checks: what a flow has to cross for its faults to concern it. Other checks explain no speed."""


# --- gaps ------------------------------------------------------------------------------------------------------------


def _gaps(
    diagnosis: Diagnosis, run: RunReport | None, joined: Sequence[JoinedCause], not_measured: str
) -> Iterator[Gap]:
    if run is None:
        yield Gap(kind=GapKind.NOT_MEASURED, reason=not_measured, causes=_stopping(joined))
    else:
        yield from _gaps_of_run(run, joined)
    number = diagnosis.counts
    if diagnosis.nothing is not None or number.get(Found.UNKNOWN, 0) >= number.get(Found.PASS, 0):
        yield Gap(kind=GapKind.NOT_DETERMINED, reason=diagnosis.nothing or "")


def _stopping(joined: Sequence[JoinedCause]) -> tuple[int, ...]:
    return tuple(place for place, cause in enumerate(joined) if cause.status is Found.FAIL)


def _gaps_of_run(run: RunReport, joined: Sequence[JoinedCause]) -> Iterator[Gap]:
    by_status = {status: [n for n, one in enumerate(run.measurements) if one.status is status] for status in Status}
    lost = [number for number, one in enumerate(run.measurements) if is_lost(one)]
    waived = by_status[Status.WAIVED]
    if run.interrupted:
        yield Gap(kind=GapKind.INTERRUPTED, measurements=tuple(waived))
    if lost or run.problems:
        yield _gap(GapKind.BROKE, run, lost, joined, next(iter(run.problems), ""))
    if waived and not run.interrupted:
        yield _gap(GapKind.WAIVED, run, waived, joined)
    if not run.measurements:
        yield Gap(kind=GapKind.NOT_MEASURED, reason="there was nothing to measure")
    elif len(waived) < len(run.measurements) and (run.verdict is None or run.verdict.grade is Grade.NO_REFERENCE):
        yield Gap(kind=GapKind.NO_REFERENCE, reason="" if run.verdict is None else run.verdict.reason)


def _gap(
    kind: GapKind, run: RunReport, numbers: Collection[int], joined: Sequence[JoinedCause], reason: str = ""
) -> Gap:
    from_ = tuple(place for place, cause in enumerate(joined) if {*cause.waived, *cause.slow} & {*numbers})
    first = next((why for number in numbers if (why := run.measurements[number].reason)), "")
    return Gap(kind=kind, reason=first or reason, measurements=tuple(numbers), causes=from_)
