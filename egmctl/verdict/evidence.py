"""Settle what egmctl assumes of coherent machines, by doctor's checks and a bench of few cases. Pure.

The questions are in ``evidence.toml``. A node without NVLink-C2C settles those that are asked of any GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from statistics import median

from egmctl.dataclass import dataclass
from egmctl.doctor.situation import coherent
from egmctl.files import read_toml
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.evidence import EvidenceReport, EvidenceState, Observation, Reply
from egmctl.model.finding import Status, WaiverKind
from egmctl.model.measurement import NVLINK_COUNT, LinkProof, Measurement, RunReport, counted_bytes
from egmctl.model.probes import ProbeOutcome
from egmctl.model.route import HOST_NAMES, LinkKind, MemoryKind
from egmctl.units import format_size, grouped
from egmctl.verdict.answers import answered


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceQuestion:
    """An entry of ``evidence.toml``, which describes the fields."""

    claim: str
    checks: tuple[str, ...] = ()
    probes: str = ""
    by: str = ""
    cases: tuple[str, ...] = ()
    link: str = ""
    anywhere: bool = False
    of_nics: bool = False
    marked: Mapping[str, str] = field(default_factory=dict)


@cache
def questions() -> Mapping[str, EvidenceQuestion]:
    """Return all questions by id."""
    tables = read_toml(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {name: EvidenceQuestion(**entries) for name, entries in tables.items()}


def evidence_cases() -> tuple[str, ...]:
    """Return the names of the bench's cases that settle questions."""
    return tuple(dict.fromkeys(case for question in questions().values() for case in question.cases))


def evidence(diagnosis: Diagnosis, run: RunReport | None, *, not_measured: str = "") -> EvidenceReport:
    """Return the answers to all questions.

    Parameters
    ----------
    diagnosis
        The diagnosis by all checks, after the active probes.
    run
        The bench of :func:`evidence_cases` on the same node, with its verdict; ``None`` if there was none.
    not_measured
        The reason why there was no bench.
    """
    answers = [_answer(name, question, diagnosis, run, not_measured) for name, question in questions().items()]
    return answered(EvidenceReport(answers=tuple(answers), diagnosis=diagnosis, run=run))


_Observed = Iterator[tuple[bool | None, str, str]]
"""Whether something agrees with the claim, the words for it, and the GPU, NUMA node or path that showed it."""
_STATES = {False: EvidenceState.CONTRADICTED, True: EvidenceState.SETTLED, None: EvidenceState.NOT_SETTLED}


def _answer(
    name: str, question: EvidenceQuestion, diagnosis: Diagnosis, run: RunReport | None, not_measured: str
) -> Reply:
    if not (question.anywhere or coherent(diagnosis.machine)):
        observed: _Observed = iter([(None, "no coherent GPU here", "")])
    elif question.of_nics and not diagnosis.machine.nics:
        observed = iter([(None, "no NIC here", "")])
    elif question.checks:
        observed = _by_checks(question, diagnosis)
    elif question.probes:
        observed = _by_probes(question, diagnosis)
    elif run is None:
        observed = iter([(None, not_measured, "")])
    else:
        observed = _by_run(question, run)
    shown = list(observed)
    answers = [agrees for agrees, _, _ in shown]
    groups = grouped(((agrees, value), where) for agrees, value, where in shown)
    observations = [
        Observation(agrees=agrees, value=value, locations=tuple(dict.fromkeys(filter(None, locations))))
        for (agrees, value), locations in groups.items()
    ] or [Observation(agrees=None, value="nothing here shows it")]
    observations.sort(key=lambda each: list(_STATES).index(each.agrees))
    is_complete = _all_pass(question, diagnosis) if question.checks else None not in answers
    state = _STATES[observations[0].agrees and (is_complete or None)]
    if state is EvidenceState.NOT_SETTLED and True in answers and not question.checks:
        part = f"{answers.count(True)} of {len(answers)} observations agree: only all of them settle it"
        observations.insert(0, Observation(agrees=None, value=part))
    return Reply(question=name, claim=question.claim, state=state, observations=tuple(observations))


def _by_checks(question: EvidenceQuestion, diagnosis: Diagnosis) -> _Observed:
    agrees = {Status.PASS: True, Status.FAIL: False, Status.WARN: False}
    for finding in diagnosis.findings:
        if finding.check in question.checks:
            shown = "; ".join(f"{each.source}: {each.value}" for each in finding.evidence[:1])
            yield agrees.get(finding.status), f"{finding.summary} ({shown or finding.check})", finding.place.label


def _by_probes(question: EvidenceQuestion, diagnosis: Diagnosis) -> _Observed:
    """Yield what each probe of a kind showed: an error is the driver's answer, any other end decides nothing."""
    agrees = {ProbeOutcome.OK: True, ProbeOutcome.ERROR: False}
    for probe in diagnosis.machine.probes or ():
        if probe.kind == question.probes:
            decides = probe.outcome is ProbeOutcome.OK or probe.error_number is not None
            value = probe.detail or probe.outcome.value
            yield agrees.get(probe.outcome) if decides else None, value, f"NUMA{probe.numa_node}"


def _all_pass(question: EvidenceQuestion, diagnosis: Diagnosis) -> bool:
    """Return whether each check of a question passes somewhere and is unknown, assumed or a note nowhere."""
    by_status = grouped((each.status, each.check) for each in diagnosis.findings)
    open_checks = {
        check for status in (Status.UNKNOWN, Status.NOTE, Status.ASSUMED) for check in by_status.get(status, ())
    }
    return {*question.checks} <= {*by_status.get(Status.PASS, ())} - open_checks


def _by_run(question: EvidenceQuestion, run: RunReport) -> _Observed:
    chosen = {number: each for number, each in enumerate(run.measurements) if _concerns(question, run, each)}
    measured = {number: each for number, each in chosen.items() if each.measured}
    yield from _BY_RUN[question.by](question, run, measured)
    for each in (each for each in chosen.values() if not each.measured):
        # The claim is about the kinds of memory that the GPUs can use.
        if not measured or all(waiver.kind is not WaiverKind.UNSUPPORTED_MEMORY for waiver in each.waivers):
            yield None, each.reason or each.status.value, each.path


def _concerns(question: EvidenceQuestion, run: RunReport, measurement: Measurement) -> bool:
    """Return whether a question is about a measurement: its case, its link if it names one, rates of own nodes only."""
    if measurement.case not in question.cases:
        return False
    flow = measurement.flows[0]
    if not question.link:
        return question.by != "rates" or len(flow.route.hops) == 1
    owners: dict[tuple[int | None, str | None], str | None] = {}
    owners |= {(each.numa_node, each.allocated_by): each.owner for each in (run.verdict.owners if run.verdict else ())}
    owner = owners.get((flow.source.numa_node, flow.source.allocated_by)) or flow.source.allocated_by
    near = owner == flow.initiator if owner else len(flow.route.hops) == 1
    return near == (question.link == LinkKind.C2C)


_Measured = Mapping[int, Measurement]
"""The measured cases of a question, by their index in the run."""


def _owner(_question: EvidenceQuestion, run: RunReport, _measured: _Measured) -> _Observed:
    for memory in run.verdict.owners if run.verdict else ():
        agrees = None if memory.owner is None else memory.owner == memory.allocated_by
        where = f"NUMA{memory.numa_node} by {memory.allocated_by_label}"
        yield agrees, f"the owner is {memory.owner_label or f'unknown: {memory.unknown}'}", where


def _route(question: EvidenceQuestion, _run: RunReport, measured: _Measured) -> _Observed:
    for each in measured.values():
        source, proof = each.flows[0].source, each.evidence.route if each.evidence else None
        if proof is None or proof.verdict is LinkProof.UNKNOWN:
            yield None, "no counter shows the link", each.path
        else:
            agrees = proof.link == question.link and proof.verdict is not LinkProof.REFUTED
            fields = f" by NVML's fields {proof.fields}" if proof.fields else ""
            # Which GPU of a CPU owns the usual HOST_NUMA memory is not known, so it contradicts nothing.
            if agrees or source.memory is not MemoryKind.HOST_NUMA or source.allocated_by is not None:
                yield agrees, f"{proof.link.upper()}, {proof.verdict}{fields}", each.path


def _counters(_question: EvidenceQuestion, _run: RunReport, measured: _Measured) -> _Observed:
    for gpu in (gpu for each in measured.values() for gpu in (each.evidence.gpus if each.evidence else ())):
        names = sorted({LinkKind.NVLINK.value, NVLINK_COUNT} & gpu.received_bytes.keys())
        agrees = counted_bytes(gpu.received_bytes, LinkKind.NVLINK) is not None if len(names) > 1 else None
        yield agrees, f"{' and '.join(names) or 'neither'} answered", gpu.label


def _units(_question: EvidenceQuestion, _run: RunReport, measured: _Measured) -> _Observed:
    for cost in (cost for each in measured.values() for cost in each.costs if cost.memory == MemoryKind.HOST_NUMA):
        sizes = cost.granularity_bytes or 0, cost.recommended_granularity_bytes or 0
        yield all(sizes) or None, "at least {}, recommended {}".format(*map(format_size, sizes)), cost.label


def _pages(_question: EvidenceQuestion, _run: RunReport, measured: _Measured) -> _Observed:
    for placement in (placement for each in measured.values() for placement in each.placements):
        yield placement.right, f"{placement.proof}: {placement.detail}", placement.label


_ABOVE = 1.02
"""The part of its nominal rate above which a rate contradicts it. Chosen: runs of one path differ by less."""


def _rates(_question: EvidenceQuestion, _run: RunReport, measured: _Measured) -> _Observed:
    """Yield the median of each kind of memory on the GPUs' own nodes, as parts of the link and of the first kind."""
    near = [each for each in measured.values() if each.bandwidth_gb_s]
    first = 0.0
    for memory, same in grouped((each.flows[0].source.memory, each) for each in near).items():
        rate = median(each.bandwidth_gb_s.median for each in same if each.bandwidth_gb_s)
        first, hop = first or rate, same[0].flows[0].route.hops[0]
        nominal = hop.nominal_gb_s
        share = f"{100 * rate / nominal:.0f} % of {hop.link.upper()}" if nominal else "the link's rate is unknown"
        words = f"{HOST_NAMES[memory]} {rate:.1f} GB/s: {share}, {rate / first:.2f} of the first"
        yield None if nominal is None else rate <= _ABOVE * nominal, words, ""


_BY_RUN = {"owner": _owner, "route": _route, "counters": _counters, "units": _units, "pages": _pages, "rates": _rates}
