"""Judge a run: each measurement against three yardsticks, then each path class, then the whole run. Pure.

The verdict also names the GPU that owns HOST_NUMA memory, as inferred from the links that carried its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median

from egmctl.bench.path_class import PathClass, class_of, gpu_kinds, is_degraded, unit_of
from egmctl.doctor.kernel_faults import kernel_faults
from egmctl.model.doubt import Doubt, DoubtReason, Effect
from egmctl.model.finding import Status
from egmctl.model.measurement import (
    BROKEN,
    COUNTED_AT_LEAST,
    STRAY_AT_MOST,
    LinkProof,
    Measurement,
    RunReport,
    counted_bytes,
)
from egmctl.model.profile import Profile, Unit
from egmctl.model.route import Egm, LinkKind, MemoryKind
from egmctl.model.task import USUAL, Engine, Pattern, Quantity
from egmctl.model.verdict import (
    BAD_GRADES,
    ClassVerdict,
    Culprit,
    EgmReads,
    Grade,
    Judged,
    Judgement,
    MemoryOwner,
    OwnerUnknown,
    RunVerdict,
    Yardstick,
    worst_grade,
)
from egmctl.units import several
from egmctl.verdict import yardsticks
from egmctl.verdict.trust import of_other_paths, with_doubts


def with_verdict(
    report: RunReport, profile: Profile | None, *, profile_reason: str = "", strict: bool = False
) -> RunReport:
    """Return a run with its verdict, and the doubts about its measurements.

    A class counts the samples that are beyond a bound, though their medians are not.

    Parameters
    ----------
    profile
        The profile of the machine, ``None`` if there is none.
    profile_reason
        The reason why this profile was selected, or why there is none.
    strict
        Whether warnings make the command exit with status 1.
    """
    verdict = judge(report, profile, profile_reason=profile_reason, strict=strict)
    doubted = with_doubts(replace(report, verdict=verdict))
    classes = tuple(_with_doubts(path_class, doubted.doubts) for path_class in verdict.classes)
    return replace(doubted, verdict=replace(verdict, classes=classes))


def judge(report: RunReport, profile: Profile | None, *, profile_reason: str = "", strict: bool = False) -> RunVerdict:
    """Return the verdict on a run by the medians of its measurements, with the parameters of :func:`with_verdict`."""
    measurements = report.measurements
    values = [yardsticks.value_of(measurement) for measurement in measurements]
    kinds = gpu_kinds(report)
    members: dict[PathClass, list[int]] = {}
    for number, measurement in enumerate(measurements):
        if (values[number] is not None and measurement.point.sms is None) or measurement.status in BROKEN:
            # A point of a series by the number of SMs has no reference: it counts only if it broke.
            members.setdefault(class_of(measurement, kinds), []).append(number)
    other_paths = of_other_paths(measurements)
    culprits: list[Culprit] = []
    by_number: dict[int, Judged] = {}
    for path_class, numbers in members.items():
        of_class = {number: value for number in numbers if (value := values[number]) is not None}
        believed = {number: value for number, value in of_class.items() if number not in other_paths}
        peers, class_culprits = yardsticks.against_peers(report, path_class.name, believed)
        culprits += class_culprits
        for number, value in of_class.items():
            if number in other_paths:
                by_number[number] = _not_believed(number, value, other_paths[number])
            else:
                by_number[number] = _judged(number, measurements[number], value, profile, peers[number])
    classes = tuple(
        _class_verdict(path_class, numbers, measurements, by_number, profile) for path_class, numbers in members.items()
    )
    warnings = (*_warnings(measurements), *_kernel_warnings(report), *_profile_warnings(measurements, profile))
    return RunVerdict(
        profile=profile.name if profile else None,
        profile_reason=profile_reason,
        healthy=profile.healthy if profile else None,
        classes=classes,
        culprits=tuple(culprits),
        judged=tuple(by_number[number] for number in sorted(by_number)),
        warnings=warnings,
        owners=owners(measurements),
        egm=egm_reads(measurements),
        strict=strict,
    )


def _with_doubts(path_class: ClassVerdict, doubts: Sequence[Doubt]) -> ClassVerdict:
    numbers = set(path_class.measurements)
    beyond = [each for each in doubts if each.reason is DoubtReason.WORST_SAMPLE and each.measurement in numbers]
    worst = [each.lowest if path_class.unit == Unit.GB_S else each.highest for each in beyond]
    values = [value for value in worst if value is not None]
    if not values:
        return path_class
    worst_value = min(values) if path_class.unit == Unit.GB_S else max(values)
    grade = Grade.FAIL if any(each.effect is Effect.FAIL for each in beyond) else Grade.WARN
    return replace(
        path_class,
        grade=worst_grade((grade, path_class.grade)),
        reason=f"{len(beyond)} of {len(numbers)} have samples beyond the bound: {worst_value:.4g} {path_class.unit}",
        worst=worst_value,
    )


_NOT_BELIEVED = {
    DoubtReason.PLACEMENT: "not believed: the memory is on another NUMA node",
    DoubtReason.ROUTE: "not believed: the counters refute the route",
    DoubtReason.TOO_FAST: "not believed: faster than the link",
    DoubtReason.DEGRADED: "its EGM route is blocked: what is left has no reference",
}


def _not_believed(number: int, value: float, reason: DoubtReason) -> Judged:
    """Return the judgements of a number that is not that of its path: none."""
    words = _NOT_BELIEVED[reason]
    judgements = tuple(yardsticks.no_reference(yardstick, value, words) for yardstick in Yardstick)
    return Judged(measurement=number, judgements=judgements)


def _judged(number: int, measurement: Measurement, value: float, profile: Profile | None, peers: Judgement) -> Judged:
    if (reason := yardsticks.not_judged(measurement)) is not None:
        judgements = tuple(yardsticks.no_reference(yardstick, value, reason) for yardstick in Yardstick)
    else:
        by_profile = yardsticks.against_profile(measurement, value, profile)
        judgements = (by_profile, yardsticks.against_link(measurement, value, profile), peers)
    return Judged(measurement=number, judgements=judgements)


def _class_verdict(
    path_class: PathClass,
    numbers: Sequence[int],
    measurements: Sequence[Measurement],
    judged: dict[int, Judged],
    profile: Profile | None,
) -> ClassVerdict:
    judgements = [judgement for number in numbers if number in judged for judgement in judged[number].judgements]
    grades = {y: worst_grade(j.grade for j in judgements if j.yardstick is y) for y in Yardstick}
    broken = [measurements[number] for number in numbers if measurements[number].status in BROKEN]
    grade = worst_grade(grades.values())
    if broken:
        grade = Grade.FAIL
    elif grade is Grade.PASS and grades[Yardstick.PROFILE] is not Grade.PASS:
        # Agreement among paths without a reference does not prove that they are healthy.
        grade = Grade.NO_REFERENCE
    values = [value for number in numbers if (value := yardsticks.value_of(measurements[number])) is not None]
    unit = unit_of(measurements[numbers[0]])
    worst_of = min if unit is Unit.GB_S else max
    by_profile = [judgement for judgement in judgements if judgement.yardstick is Yardstick.PROFILE]
    # A reference without bounds judges nothing, but says what is usual.
    compared = any(each.grade is not Grade.NO_REFERENCE or each.expected is not None for each in by_profile)
    known = profile if compared else None
    reference = yardsticks.reference_for(measurements[numbers[0]], known)[0] if known else None
    return ClassVerdict(
        path_class=path_class.name,
        case=path_class.case,
        link=path_class.link,
        gpus=path_class.gpus,
        point=path_class.point,
        grade=grade,
        reason=_class_reason(grade, broken, judgements, len(numbers)),
        by_profile=grades[Yardstick.PROFILE],
        by_link=grades[Yardstick.LINK],
        by_peers=grades[Yardstick.PEERS],
        measurements=tuple(numbers),
        median=median(values) if values else None,
        worst=worst_of(values, default=None),
        unit=unit,
        expected=reference.typical if reference else None,
        warn=reference.warn if reference else None,
        fail=reference.fail if reference else None,
        source=yardsticks.cite(profile, reference) if profile and reference else None,
    )


def _class_reason(grade: Grade, broken: Sequence[Measurement], judgements: Sequence[Judgement], count: int) -> str:
    if broken:
        return f"{len(broken)} of {count} failed: {broken[0].path} is {broken[0].status}"
    gravest = [judgement for judgement in judgements if judgement.grade is grade]
    if grade in BAD_GRADES:
        first = gravest[0]
        outliers = [judgement for judgement in gravest if judgement.yardstick is first.yardstick]
        return f"{len(outliers)} of {count}: {first.reason}"
    by_profile = [judgement for judgement in judgements if judgement.yardstick is Yardstick.PROFILE]
    return by_profile[0].reason if by_profile else "nothing was measured"


def _warnings(measurements: Sequence[Measurement]) -> Iterator[str]:
    """Yield a warning for each error counter that rose, and one for measurements that were made without EGM."""
    rises: dict[tuple[str, str], int] = {}
    for measurement in measurements:
        for gpu in measurement.evidence.gpus if measurement.evidence else ():
            for counter, rise in gpu.errors.items():
                rises[counter, gpu.label] = rises.get((counter, gpu.label), 0) + rise
    yield from (f"{counter} of {label} rose by {rise}" for (counter, label), rise in rises.items())
    degraded = [m.path for m in measurements if m.measured and is_degraded(m)]
    if degraded:
        paths = ", ".join(dict.fromkeys(degraded))
        yield f"{several(len(degraded), 'measurement')} went without EGM, whose route is blocked (degraded): {paths}"


def _kernel_warnings(report: RunReport) -> Iterable[str]:
    """Yield a warning for each fault that the kernel logged during the run; paths may be fast in spite of it."""
    log = report.kernel_messages
    if log is None or not log.events or not report.machines:
        return
    for fault in kernel_faults(report.machines[0], log.events):
        if fault.status is not Status.PASS:
            yield f"the kernel logged meanwhile: {fault.title}{fault.times}"


def _profile_warnings(measurements: Sequence[Measurement], profile: Profile | None) -> Iterable[str]:
    """Return a warning for each reference of a profile that expects more than the links carry: it judges nothing."""
    excesses = []
    for measurement in measurements if profile is not None else ():
        reference = yardsticks.reference_for(measurement, profile)[0] if measurement.measured and profile else None
        if reference is not None and (excess := yardsticks.more_than_it_carries(measurement, reference)) is not None:
            excesses.append(f"the profile {profile.name if profile else ''} is wrong: {excess}")
    return dict.fromkeys(excesses)


def egm_reads(measurements: Sequence[Measurement]) -> EgmReads | None:
    """Return how fast copy engines read EGM memory, beside other memory; ``None`` without reads of GPUs' own CPUs."""
    reads: dict[tuple[MemoryKind, bool], dict[object, float]] = {}
    for measurement in measurements:
        flow, value = measurement.flows[0], yardsticks.value_of(measurement)
        source, links = flow.source, {hop.link for hop in flow.route.hops}
        copy = measurement.engine, measurement.pattern, flow.destination.memory, measurement.point
        usual = copy == (Engine.COPY_ENGINE, Pattern.PAIR, MemoryKind.DEVICE, USUAL)
        if value is None or source.allocated_by or not usual:
            continue
        if flow.route.egm is Egm.YES or source.memory is not MemoryKind.HOST_NUMA:
            paths = reads.setdefault((source.memory, links == {LinkKind.C2C}), {})
            paths[flow.initiator, source.numa_node] = value
    if (own := reads.get((MemoryKind.HOST_NUMA, True))) is None:
        return None

    def ratio(memory: MemoryKind) -> float | None:
        others = reads.get((memory, True), {})
        ratios = [own[path] / others[path] for path in own.keys() & others.keys()]
        return median(ratios) if ratios else None

    local, remote = median(own.values()), reads.get((MemoryKind.HOST_NUMA, False))
    far = median(remote.values()) / local if remote else None
    pinned, system = ratio(MemoryKind.PINNED), ratio(MemoryKind.SYSTEM)
    return EgmReads(local_gb_s=local, of_pinned=pinned, of_system=system, remote_of_local=far)


# --- owner of EGM memory ---------------------------------------------------------------------------------------------


def owners(measurements: Sequence[Measurement]) -> tuple[MemoryOwner, ...]:
    """Return the owner of the memory on each NUMA node, per case and per GPU that was current when it was allocated.

    EGM memory belongs to one GPU. The owner reads it over its own NVLink-C2C, every other GPU over NVLink to the owner
    (:mod:`egmctl.topology.routes`; from the driver's source, not measured). A GPU that read over NVLink is not the
    owner. A GPU that read without NVLink may be the owner. A GPU that sent over NVLink what another GPU read is the
    owner. NVML counts bytes of NVLink and PCIe but not of NVLink-C2C, so use of C2C is inferred by exclusion.

    Memory that another process allocated counts only if it is EGM.
    """
    labels: dict[str, str] = {}
    reads: dict[tuple[str, int, str], list[int]] = {}
    for number, measurement in enumerate(measurements):
        flow = measurement.flows[0]
        end = flow.source if flow.source.allocated_by is not None else flow.destination
        is_single = measurement.quantity is Quantity.BANDWIDTH and len(measurement.flows) == 1
        if not is_single or not measurement.measured or end.allocated_by is None or end.numa_node is None:
            continue
        if flow.initiator is None or (end.rank is not None and flow.route.egm is not Egm.YES):
            continue
        reads.setdefault((measurement.case, end.numa_node, end.allocated_by), []).append(number)
        labels[flow.initiator] = flow.initiator_label
        labels[end.allocated_by] = end.allocated_by_label or end.allocated_by
    result = []
    for (case, node, allocated_by), numbers in reads.items():
        owner, unknown = _owner(allocated_by, [measurements[number] for number in numbers])
        result.append(
            MemoryOwner(
                case=case,
                numa_node=node,
                allocated_by=allocated_by,
                allocated_by_label=labels[allocated_by],
                owner=owner,
                owner_label=None if owner is None else labels[owner],
                unknown=unknown,
                measurements=tuple(numbers),
            )
        )
    return tuple(result)


def _owner(allocated_by: str, reads: Sequence[Measurement]) -> tuple[str | None, OwnerUnknown | None]:
    """Return the owner of memory as inferred from the links that its reads and writes used, or why it is unknown."""
    egm_reads = [read for read in reads if read.flows[0].route.egm is Egm.YES]
    links: list[LinkKind] = []
    possible: set[str] = set()
    impossible: set[str] = set()
    for read in egm_reads:
        flow, evidence = read.flows[0], read.evidence
        route = evidence.route if evidence is not None else None
        if evidence is None or route is None or route.verdict in (LinkProof.UNKNOWN, LinkProof.REFUTED):
            continue
        links.append(route.link)
        reader = str(flow.initiator)
        if route.link is LinkKind.C2C:
            possible.add(reader)
        elif route.link is LinkKind.NVLINK:
            impossible.add(reader)
            for gpu in evidence.gpus if reader != allocated_by else ():
                passed = counted_bytes(gpu.received_bytes if flow.sent else gpu.sent_bytes, LinkKind.NVLINK)
                if gpu.bus_id != allocated_by or passed is None:
                    continue
                if passed >= COUNTED_AT_LEAST * route.expected_bytes:
                    possible.add(allocated_by)
                elif passed <= STRAY_AT_MOST * route.expected_bytes:
                    impossible.add(allocated_by)
    if not links:
        return None, OwnerUnknown.NO_COUNTERS if egm_reads else OwnerUnknown.NOT_EGM
    if LinkKind.NVLINK not in links:
        return None, OwnerUnknown.OWN_LINK_EACH if len(possible) > 1 else OwnerUnknown.TOO_FEW
    if len(possible) > 1 or possible & impossible:
        return None, OwnerUnknown.CONTRADICTORY
    return (possible.pop(), None) if possible else (None, OwnerUnknown.TOO_FEW)
