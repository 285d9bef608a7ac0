"""The answer of a run of the bench: what is proven to be wrong with its paths, and what of them is not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from egmctl.doctor.job import of_others
from egmctl.doctor.kernel_faults import Blame, kernel_faults
from egmctl.model.answer import Answer, Cause, Clauses, Gap, GapKind, State, worst
from egmctl.model.doubt import DoubtReason, Effect
from egmctl.model.finding import TOLD, UNEXPLAINED, Finding, Status, Waiver, WaiverKind
from egmctl.model.kernel_log import LoggedFault
from egmctl.model.measurement import Measurement, MeasurementStatus, RunReport
from egmctl.model.nccl import NcclRun, NcclStatus
from egmctl.model.remedy import Remedy
from egmctl.model.route import Egm, LinkKind
from egmctl.model.task import Quantity
from egmctl.model.verdict import Grade, Yardstick
from egmctl.topology.platform import in_rack
from egmctl.units import several, shortened
from egmctl.verdict.answers.run_words import Decided, left_out, nccl_notes, next_step, run_word, sentence
from egmctl.verdict.answers.words import cause_words, crosses_unknown_links, doubt_words, first_causes
from egmctl.verdict.explain import CHANGED, EXCUSES, IN_USE, Shortfalls, shortfalls
from egmctl.verdict.nccl import NCCL_CHECK
from egmctl.verdict.trust import with_effect


def of_run(report: RunReport, *, whole_node: bool = False) -> Answer:
    """Return what a run answers.

    Parameters
    ----------
    whole_node
        Whether it is asked if all of the node can be handed over, as by a bring-up: a GPU that CUDA_VISIBLE_DEVICES
        hides and a link without a reference are gaps then. For a bench the first is a selection and the second a note,
        with ``--strict`` a gap.
    """
    short = shortfalls(report)
    causes = tuple(_causes(report, short))
    all_gaps = [*_gaps(report, causes, short, whole_node=whole_node), *_nccl_gaps(report.nccl, causes)]
    gaps = tuple(sorted(all_gaps, key=lambda gap: list(GapKind).index(gap.kind)))
    verdict = report.verdict
    states = [cause.state for cause in causes] + [gap.kind.state for gap in gaps]
    doubted = any(doubt.effect is Effect.WARN for doubt in report.doubts)
    if doubted or (verdict is not None and (verdict.warnings or short.warned)):
        strict = verdict is not None and verdict.strict
        states.append(State.BAD if strict else State.WARN)
    decided = Decided(report=report, state=worst(states), causes=causes, gaps=gaps, short=short, whole_node=whole_node)
    return Answer(
        state=decided.state,
        word=run_word(decided),
        sentence=sentence(decided),
        causes=causes,
        gaps=gaps,
        notes=(*_doubted(report), *left_out(decided), *nccl_notes(report.nccl)),
        next_step=next_step(decided),
        counts=run_counts(report),
    )


def logged_faults(report: RunReport) -> tuple[LoggedFault, ...]:
    """Return what the kernel logged during a run, by device and kind, the most severe first."""
    log = report.kernel_messages
    if log is None or not log.events or not report.machines:
        return report.logged
    # Under MPI this is the log of rank 0's node, which is the first machine.
    faults = sorted(kernel_faults(report.machines[0], log.events), key=lambda fault: list(Status).index(fault.status))
    return tuple(
        LoggedFault(
            status=fault.status,
            words=f"{fault.title}{fault.times}" + ("" if fault.blame is Blame.UNKNOWN else f" ({fault.blame.value})"),
            remedy=fault.remedy,
        )
        for fault in faults
    )


def run_counts(report: RunReport) -> Mapping[str, int]:
    """Return what a run counts: paths, which are pairs of ends; measurements by status; classes of paths by grade."""
    statuses = Counter(m.status for m in report.measurements)
    grades = Counter(path_class.grade for path_class in (report.verdict.classes if report.verdict else ()))
    return {
        "paths": len({m.path for m in report.measurements}),
        "measurements": len(report.measurements),
        **{f"measurements_{status}": statuses[status] for status in MeasurementStatus if statuses[status]},
        "classes": sum(grades.values()),
        **{f"classes_{grade}": grades[grade] for grade in Grade if grades[grade]},
    }


def _doubted(report: RunReport) -> Iterator[str]:
    """Yield a sentence on the measurements that are doubted and still count; causes and gaps name the others."""
    doubted = [doubt for doubt in report.doubts if doubt.effect is Effect.WARN]
    if doubted:
        count = len({doubt.measurement for doubt in doubted})
        yield f"{several(count, 'measurement')} doubted: {doubt_words(report, doubted[0])}"


# --- causes ----------------------------------------------------------------------------------------------------------


def _causes(report: RunReport, short: Shortfalls) -> Iterator[Cause]:
    """Yield the causes, the most severe first; one of them for all paths that are slow or broken for no known reason.

    What others do on a GPU or the host is never a failure, also if ``--gpus`` names the GPU.
    """
    strict = report.verdict is not None and report.verdict.strict
    found = list(report.causes)
    # What is not the number of its path says nothing about the path: it is a gap.
    void = with_effect(report.doubts, Effect.VOID) - short.failing
    if left := short.slow.difference(void, *(cause.measurements for cause in found)):
        found.append(unexplained(report, left, Status.FAIL if left & short.broken else Status.WARN))
    graded = [replace(cause, status=_status(cause, strict=strict)) for cause in found]

    is_corrupt = report.nccl is not None and report.nccl.status is NcclStatus.CORRUPT

    def place(cause: Cause) -> tuple[bool, bool, int, int]:
        # Corrupt data first; then what changed during the run: the other causes may only be its effects.
        ordered = not (is_corrupt and cause.finding.check == NCCL_CHECK), cause.finding.check != CHANGED
        return *ordered, list(Status).index(cause.status), -len(cause.measurements)

    yield from sorted(graded, key=place)


def _status(cause: Cause, *, strict: bool) -> Status:
    if cause.finding.check == IN_USE or cause.finding.check in EXCUSES:
        return cause.finding.status
    return Status.FAIL if strict and cause.status in TOLD else cause.status


def unexplained(report: RunReport, numbers: Collection[int], status: Status) -> Cause:
    """Return the cause of slow or broken measurements that no known cause explains."""
    measurements = [report.measurements[number] for number in numbers]
    noun = "slow path" if all(m.measured for m in measurements) else "slow or broken path"
    summary = f"{several(len({m.path for m in measurements}), noun)}, cause unknown"
    flapping = [
        doubt for doubt in report.doubts if doubt.measurement in numbers and doubt.reason is DoubtReason.WORST_SAMPLE
    ]
    if len({doubt.measurement for doubt in flapping}) == len(numbers):
        others = f", and {several(len(flapping) - 1, 'more path')}" if len(flapping) > 1 else ""
        summary = f"{doubt_words(report, flapping[0])}{others}, cause unknown"
    finding = Finding(check=UNEXPLAINED, status=status, summary=summary, remedy=to_find(report, numbers))
    return Cause(status=status, finding=finding, measurements=tuple(sorted(numbers)))


def to_find(report: RunReport, numbers: Collection[int]) -> Remedy:
    """Return how to find the cause of slow or broken measurements that no known cause explains: where, and with what.

    It names the measurement that is farthest from what its class is expected to reach, and doctor's command for its
    GPUs, which also copies between them (``--active``).
    """
    expected = {
        number: entry.expected
        for entry in (report.verdict.classes if report.verdict is not None else ())
        for number in entry.measurements
        if entry.expected
    }

    def share(number: int) -> float:
        """Return what a measurement reaches of what is expected; 0 without a value, 1 if nothing is expected."""
        m = report.measurements[number]
        if m.headline is None:
            return 0.0
        ratio = m.headline.median / expected.get(number, m.headline.median or 1)
        return ratio if m.quantity is Quantity.BANDWIDTH else 1 / (ratio or 1)

    worst = min(sorted(numbers), key=share)
    m = report.measurements[worst]
    value = ""
    if m.headline is not None:
        against = f", {expected[worst]:.1f} expected" if worst in expected else ""
        value = f" ({m.headline.median:.1f} {m.quantity.unit}{against})"
    indices = sorted(gpu.index for gpu in report.gpus if gpu.label in m.ends)
    look = f"egmctl doctor --active --gpus {','.join(map(str, indices))}" if indices else "egmctl doctor --active"
    text = f"Look for the cause of {m.path}{value} with {look!r}, then measure again"
    if indices:
        text += "; if nothing changes, inspect these GPUs and their links"
    return Remedy(text=f"{text}.", look=look)


# --- gaps ------------------------------------------------------------------------------------------------------------

_GAPS = frozenset(
    {
        *(WaiverKind.GPU_UNUSABLE, WaiverKind.GPU_BUSY, WaiverKind.NO_PEER_ACCESS, WaiverKind.NO_NUMA_MEMORY),
        *(WaiverKind.EGM_BLOCKED, WaiverKind.NO_ROOM, WaiverKind.GIVEN_UP, WaiverKind.INTERRUPTED),
    }
)
"""The waivers that leave something unknown. For the others, the GPU or the driver lacks the feature, or the user chose
the GPUs: there is nothing to measure."""
VISIBLE = "env.visible-devices"
"""The check of CUDA_VISIBLE_DEVICES."""
_OF_DOMAIN = frozenset({WaiverKind.NO_IMEX_CHANNEL, WaiverKind.NO_NVLINK})
"""The waivers that are gaps where an NVLink domain of several nodes is expected."""


def _gaps(report: RunReport, causes: Sequence[Cause], short: Shortfalls, *, whole_node: bool) -> Iterator[Gap]:
    """Yield what a run does not know, in the order of :class:`GapKind`."""
    measurements, verdict = report.measurements, report.verdict
    made = sum(m.measured for m in measurements)
    if report.interrupted:
        waived = tuple(number for number, m in enumerate(measurements) if m.status is MeasurementStatus.WAIVED)
        parts = [f"{made} of {len(measurements)} measurements"] if measurements else []
        if report.nccl is not None and report.nccl.is_interrupted:
            parts.append(f"{len(report.nccl.results)} of {len(report.nccl.plan.collectives)} collectives of NCCL")
        reason = f"stopped with {' and '.join(parts)} made" if parts else "stopped before anything was measured"
        yield Gap(kind=GapKind.INTERRUPTED, reason=reason, measurements=waived)
    if short.lost or report.problems:
        yield _broke(report, sorted(short.lost), causes)
    if not any(m.status is not MeasurementStatus.WAIVED for m in measurements):
        if not report.interrupted and not (report.nccl is not None and not measurements):
            yield _nothing(report, causes)
    elif not report.interrupted and (missed := _missed(report, causes, whole_node=whole_node)):
        yield _of(GapKind.WAIVED, report, missed, causes, f"{len(missed)} of {len(measurements)} measurements")
    unread = [place for place, cause in enumerate(causes) if _hides_links(report, cause)]
    if unread:
        numbers = sorted({number for place in unread for number in causes[place].measurements})
        reason = first_causes(report, [causes[place] for place in unread])
        yield Gap(kind=GapKind.UNREADABLE, reason=reason, measurements=tuple(numbers), causes=tuple(unread))
    if void := sorted(with_effect(report.doubts, Effect.VOID)):
        first = next(doubt for doubt in report.doubts if doubt.measurement == void[0] and doubt.effect is Effect.VOID)
        reason = Clauses.explained(f"{several(len(void), 'measurement')} not believed", doubt_words(report, first))
        yield Gap(kind=GapKind.NOT_BELIEVED, reason=reason, measurements=tuple(void))
    changed = [place for place, cause in enumerate(causes) if cause.finding.check == CHANGED]
    if changed:
        numbers = sorted({number for place in changed for number in causes[place].measurements})
        reason = first_causes(report, [causes[place] for place in changed])
        yield Gap(kind=GapKind.CHANGED, reason=reason, measurements=tuple(numbers), causes=tuple(changed))
    if excused := _excused(causes, short):
        what = f"{several(len(excused), 'measurement')} slow only while others used the GPUs or the host"
        gap = _of(GapKind.EXCUSED, report, excused, causes, "")
        yield replace(gap, reason=Clauses.explained(what, gap.reason))
    if (whole_node or (verdict is not None and verdict.strict)) and made:
        yield from _without_reference(report)


def _nccl_gaps(nccl: NcclRun | None, causes: Sequence[Cause]) -> Iterator[Gap]:
    """Yield the gap if NCCL was to be run and its number is not known. A known error is a failure, not a gap."""
    own = [place for place, cause in enumerate(causes) if cause.finding.check == NCCL_CHECK]
    if nccl is None or any(causes[place].state is State.BAD for place in own):
        return
    if nccl.status is NcclStatus.FAILED:
        yield Gap(kind=GapKind.BROKE, reason=nccl.reason or "", causes=tuple(own))
    elif nccl.status is NcclStatus.WAIVED and not nccl.is_interrupted:
        reason = Clauses.explained("NCCL was not run", nccl.reason or "")
        yield Gap(kind=GapKind.WAIVED, reason=reason, causes=tuple(own))


def _broke(report: RunReport, lost: Sequence[int], causes: Sequence[Cause]) -> Gap:
    """Return the gap of measurements that crashed, hung or broke, with the cause if it is known."""
    known = [place for place, cause in enumerate(causes) if {*cause.measurements} & {*lost}]
    known = [place for place in known if causes[place].finding.check != UNEXPLAINED]
    reasons = [report.measurements[number].reason for number in lost]
    because = cause_words(report, causes[known[0]]) if known else next(filter(None, (*reasons, *report.problems)), "")
    what = f"{len(lost)} of {len(report.measurements)} measurements crashed, timed out or broke" if lost else ""
    reason = Clauses.explained(what or "the run broke", because)
    return Gap(kind=GapKind.BROKE, reason=reason, measurements=tuple(lost), causes=tuple(known))


def _nothing(report: RunReport, causes: Sequence[Cause]) -> Gap:
    """Return the gap if nothing was measured: the first cause, and a reason for measurements without a cause."""
    explained = {number for cause in causes for number in cause.measurements}
    numbers = tuple(range(len(report.measurements)))
    reasons = Counter(m.reason for n, m in enumerate(report.measurements) if n not in explained and m.reason)
    if causes:
        rest = (f"{count} more: {reason}" for reason, count in reasons.most_common(1))
        reason = Clauses.explained(_NOTHING, Clauses.of(causes[0].title, *rest))
        return Gap(kind=GapKind.NOT_MEASURED, reason=reason, measurements=numbers, causes=(0,))
    because = next(iter(reasons), "there was nothing to measure")
    return Gap(kind=GapKind.NOT_MEASURED, reason=Clauses.explained(_NOTHING, because), measurements=numbers)


_NOTHING = "nothing was measured"


def _missed(report: RunReport, causes: Sequence[Cause], *, whole_node: bool) -> list[int]:
    """Return the measurements that were not made on the planned path and that leave something unknown.

    A measurement leaves nothing unknown if one of its waivers says that there is nothing to measure. For a bench that
    is also so with a GPU that somebody else's job has.
    """
    kinds = {*_GAPS}
    if whole_node:
        kinds.add(WaiverKind.GPU_HIDDEN)
    if any(in_rack(machine, gpu) for machine in report.machines for gpu in machine.gpus or ()):
        kinds |= _OF_DOMAIN
    # CUDA_VISIBLE_DEVICES that does not do what it says is no choice.
    mistaken = {
        n
        for cause in causes
        if cause.finding.check == VISIBLE and cause.state is not State.GOOD
        for n in cause.measurements
    }
    without_gpu = any(waiver.kind is WaiverKind.GPU_UNUSABLE for m in report.measurements for waiver in m.waivers)
    others = _of_others(report) if without_gpu and not whole_node else frozenset[str]()

    def leaves_unknown(waiver: Waiver) -> bool:
        of_another_job = waiver.kind is WaiverKind.GPU_UNUSABLE and waiver.gpus and others.issuperset(waiver.gpus)
        return waiver.kind in kinds and not of_another_job

    return [
        number
        for number, m in enumerate(report.measurements)
        if m.missed_path and (number in mistaken or all(map(leaves_unknown, m.waivers)))
    ]


def _of_others(report: RunReport) -> frozenset[str]:
    """Return the bus ids of the GPUs of other jobs; none in a run on several nodes, where bus ids repeat."""
    return of_others(report.machines[0]) if len(report.machines) == 1 else frozenset()


def _of(kind: GapKind, report: RunReport, numbers: Sequence[int], causes: Sequence[Cause], what: str) -> Gap:
    """Return the gap of some measurements with the causes that explain them, otherwise the first reason."""
    found = [place for place, cause in enumerate(causes) if {*cause.measurements} & {*numbers}]
    reasons = [report.measurements[number].reason for number in numbers]
    words = first_causes(report, [causes[place] for place in found])
    reason = next(filter(None, reasons), "the reason is not known")
    because = words or Clauses.explained(f"{what} were not made", reason)
    return Gap(kind=kind, reason=because, measurements=tuple(numbers), causes=tuple(found))


def _hides_links(report: RunReport, cause: Cause) -> bool:
    """Return whether a cause is that driver libraries could not be read, so that links of paths are unknown."""
    unreadable = "drv.libraries" in (cause.finding.check, *cause.finding.explains)
    return unreadable and any(crosses_unknown_links(report.measurements[number]) for number in cause.measurements)


def _excused(causes: Sequence[Cause], short: Shortfalls) -> list[int]:
    """Return the measurements that fail, but only while others used the GPUs or the host."""
    excuses = [cause for cause in causes if cause.finding.check in EXCUSES and cause.finding.check != CHANGED]
    excusing = {n for cause in excuses for n in cause.measurements}
    proven = {n for cause in causes if cause.state is State.BAD for n in cause.measurements}
    return sorted(short.failing & excusing - proven)


def _without_reference(report: RunReport) -> Iterator[Gap]:
    """Yield the gap of the links of GPUs on which the profile judged no measurement."""
    verdict = report.verdict
    if verdict is None or verdict.profile is None:
        reason = "measured, but not judged"
        if verdict is not None:
            reason = Clauses.explained("measured, but there is nothing to judge by", verdict.profile_reason or "")
        yield Gap(kind=GapKind.NO_REFERENCE, reason=reason)
        return
    judged = {
        each.measurement
        for each in verdict.judged
        for judgement in each.judgements
        if judgement.yardstick is Yardstick.PROFILE and judgement.grade is not Grade.NO_REFERENCE
    }
    valued = [number for number, m in enumerate(report.measurements) if m.headline is not None]
    known = {link for number in judged for link in _links(report.measurements[number])}
    unknown = {link: None for number in valued for link in _links(report.measurements[number]) if link not in known}
    numbers = tuple(n for n in valued if not known.issuperset(_links(report.measurements[n])))
    if unknown:
        names = shortened([" ".join(link[1:]) for link in unknown], _NAMED)
        what = f"profile {verdict.profile} has no reference for {several(len(unknown), 'link')} of GPUs"
        reason = Clauses.explained(what, names)
        yield Gap(kind=GapKind.NO_REFERENCE, reason=reason, measurements=numbers)


_NAMED = 3
"""The number of links without a reference that a sentence names."""
_LINKS = {LinkKind.NVLINK: "NVLink", LinkKind.C2C: "C2C", LinkKind.PCIE: "PCIe", LinkKind.UNKNOWN: "unknown link"}


def _links(m: Measurement) -> Iterator[tuple[str, str, str]]:
    """Yield the links of GPUs that a measurement uses: bus id, label, kind of link with EGM apart from other memory."""
    for flow in m.flows:
        link = flow.route.first_link
        if link is None:
            continue
        kind = f"{_LINKS[link]}{' to EGM' if flow.route.egm is Egm.YES else ''}"
        for end in (flow.source, flow.destination):
            if end.bus_id is not None:
                yield f"{end.rank}:{end.bus_id}", end.label, kind
