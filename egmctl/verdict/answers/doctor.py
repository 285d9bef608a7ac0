"""The answer of doctor: what its checks prove to be wrong, and whether enough of them had data.

Without ``--for`` it is about the node. With it, it is about each purpose that was named: whether a job can do it here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from egmctl.dataclass import dataclass
from egmctl.doctor.expected import DECIDING, FABRIC_DOMAIN
from egmctl.model.answer import (
    WORDS,
    Answer,
    Cause,
    Clauses,
    CommandQuestion,
    Gap,
    GapKind,
    PurposeAnswer,
    State,
    worst,
)
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import TOLD, Guard, RootCause, Status, root_causes
from egmctl.model.machine import OriginKind
from egmctl.model.remedy import Remedy
from egmctl.topology.egm_mode import all_handed_over
from egmctl.units import several


def of_doctor(diagnosis: Diagnosis) -> Answer:
    """Return what doctor answers about a node, or about the purposes that were named.

    The node has a problem if a check failed, or with ``--strict`` warned or noted. It is not known if there is no GPU,
    or if at least as many checks had no data as passed: a machine that is mostly unknown is not reported as healthy.
    """
    roots = root_causes(diagnosis.findings)
    causes = tuple(_cause(root, strict=diagnosis.strict) for root in roots)
    whole = _part(diagnosis, roots, causes)
    if diagnosis.purposes_asked is None:
        return Answer(
            state=whole.state,
            word=WORDS[CommandQuestion.DOCTOR][whole.state],
            sentence=_sentence(whole),
            causes=causes,
            gaps=whole.gaps,
            next_step=_next_step(diagnosis, whole, causes),
            counts=diagnosis.counts,
        )
    parts = {purpose: _part(diagnosis, roots, causes, purpose) for purpose in diagnosis.purposes_asked}
    order = sorted(parts, key=lambda purpose: list(State).index(parts[purpose].state))
    answers = tuple(_for_purpose(purpose, parts[purpose], is_one=len(parts) == 1) for purpose in order)
    gaps = tuple(dict.fromkeys(gap for purpose in order for gap in parts[purpose].gaps))
    return Answer(
        state=answers[0].state,
        word=answers[0].word,
        sentence=answers[0].sentence,
        causes=causes,
        gaps=gaps,
        purposes=answers,
        next_step=_next_step(diagnosis, parts[order[0]], causes),
        counts=diagnosis.counts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What the checks know of the node, or of what one purpose needs of it."""

    causes: tuple[Cause, ...]
    gaps: tuple[Gap, ...]
    counts: Mapping[Status, int]
    """The number of checks by status."""

    @property
    def state(self) -> State:
        return worst([*(cause.state for cause in self.causes), *(gap.kind.state for gap in self.gaps)])

    @property
    def bad(self) -> tuple[Cause, ...]:
        return tuple(cause for cause in self.causes if cause.state is State.BAD)


def _part(
    diagnosis: Diagnosis, roots: Sequence[RootCause], causes: Sequence[Cause], purpose: Guard | None = None
) -> _Part:
    """Return what is known of the node (no purpose) or of a purpose, from all root causes and what they are here."""
    guarded = {finding.check for finding in diagnosis.findings if purpose is None or purpose in finding.guards}
    verdicts = {check: status for check, status in diagnosis.verdicts.items() if check in guarded}
    statuses = list(verdicts.values())
    counts = {status: statuses.count(status) for status in Status}
    places = [place for place, root in enumerate(roots) if purpose is None or _concerns(root, purpose)]
    unknown = tuple(check for check, status in verdicts.items() if status is Status.UNKNOWN)
    gaps = list(_undetermined(diagnosis, counts, unknown))
    if not gaps:
        gaps += _unread(diagnosis, verdicts, purpose)
    gaps += _outside(causes, places)
    return _Part(causes=tuple(causes[place] for place in places), gaps=tuple(gaps), counts=counts)


def _cause(root: RootCause, *, strict: bool) -> Cause:
    status = Status.FAIL if strict and root.finding.status in TOLD else root.finding.status
    return Cause(finding=root.finding, status=status)


def _concerns(root: RootCause, purpose: Guard) -> bool:
    """Return whether a cause concerns a purpose: it, or what it explains, blocks it; else one guards it.

    What fails blocks exactly what it says. A warning or a note is worth a look wherever its check guards the purpose.
    """
    findings = (root.finding, *root.explains)
    if root.finding.status is Status.FAIL:
        return any(purpose in finding.blocks for finding in findings)
    return any(purpose in finding.guards for finding in findings)


def _undetermined(diagnosis: Diagnosis, counts: Mapping[Status, int], unknown: tuple[str, ...]) -> Iterator[Gap]:
    nothing = _nothing(diagnosis, counts)
    # At least as many checks are unknown as passed; a warning does not outweigh that.
    if nothing is not None or 0 < counts[Status.UNKNOWN] >= counts[Status.PASS]:
        applied = counts[Status.UNKNOWN] + counts[Status.PASS] + counts[Status.WARN]
        reason = nothing or f"{counts[Status.UNKNOWN]} of {several(applied, 'check')} had no data"
        yield Gap(kind=GapKind.NOT_DETERMINED, reason=reason, checks=unknown)


def _unread(diagnosis: Diagnosis, verdicts: Mapping[str, Status], purpose: Guard | None) -> Iterator[Gap]:
    """Yield the gap if there was no data on what ``--expect`` states, or on what the purpose is about."""
    essential = () if purpose is None else DECIDING.get(purpose, ())
    unknown = [check for check in essential if verdicts.get(check) is Status.UNKNOWN]
    checks = tuple(dict.fromkeys([*(check for check in diagnosis.undecided if check in verdicts), *unknown]))
    if checks:
        without_data = (Status.UNKNOWN, Status.SKIP)
        findings = (each for each in diagnosis.findings if each.check == checks[0] and each.status in without_data)
        # A document from elsewhere may name a check without such a finding.
        finding = next(findings, None)
        reason = f"{checks[0]} had no data" if finding is None else finding.title
        yield Gap(kind=GapKind.NOT_DETERMINED, reason=reason, checks=checks)


def _outside(causes: Sequence[Cause], places: Sequence[int]) -> Iterator[Gap]:
    """Yield a gap for a tray of a rack that is outside of its domain: it may have been taken out on purpose."""
    for place in places:
        finding = causes[place].finding
        if finding.check == FABRIC_DOMAIN and finding.status is Status.WARN:
            yield Gap(kind=GapKind.DOMAIN, reason=finding.title, checks=(FABRIC_DOMAIN,), causes=(place,))


def _nothing(diagnosis: Diagnosis, counts: Mapping[Status, int]) -> str | None:
    """Return why nothing could be determined; ``None`` if something was."""
    # Documents of an earlier version store no machine.
    if diagnosis.machines and not diagnosis.machine.gpus:
        return "there is no NVIDIA GPU on this machine"
    if diagnosis.machines and all_handed_over(diagnosis.machine):
        return "this node gives its GPUs to virtual machines"
    if not any(counts[status] for status in (Status.PASS, *TOLD)):
        return "no check could determine anything here"
    return None


# --- words -----------------------------------------------------------------------------------------------------------


def _for_purpose(purpose: Guard, part: _Part, *, is_one: bool) -> PurposeAnswer:
    """Return the answer for a purpose; what is blocked is named by its place, and by the purpose if there are more."""
    state, word = part.state, WORDS[CommandQuestion.PURPOSE][part.state]
    if state is not State.BAD:
        return PurposeAnswer(purpose=purpose, state=state, word=f"{word} for {purpose}", sentence=_sentence(part))
    first, *others = part.bad
    place = first.finding.place.label
    more = f"and {several(len(others), 'more cause')}" if others else ""
    if is_one and place:
        sentence = Clauses.of(first.finding.summary, more)
        return PurposeAnswer(purpose=purpose, state=state, word=f"{word} for {place}", sentence=sentence)
    sentence = Clauses.of(first.finding.title, more)
    return PurposeAnswer(purpose=purpose, state=state, word=f"{word} for {purpose}", sentence=sentence)


def _sentence(part: _Part) -> str:
    """Return what was counted: a failure is a cause, and what it explains is not counted again."""
    statuses = [cause.finding.status for cause in part.causes]
    counts = {"failure": statuses.count(Status.FAIL), "warning": statuses.count(Status.WARN)}
    problems = " and ".join(several(count, what) for what, count in counts.items() if count)
    if part.gaps and not part.bad:
        reasons = (gap.reason for gap in part.gaps)
        rest = _counted(part.counts, Status.PASS, Status.ASSUMED, Status.SKIP)
        return Clauses.of("", *reasons, problems, rest)
    rest = _counted(part.counts, Status.NOTE, Status.PASS, Status.ASSUMED, Status.UNKNOWN, Status.SKIP)
    return Clauses.of(problems, rest)


def _counted(number: Mapping[Status, int], *statuses: Status) -> str:
    words = {
        Status.NOTE: ("note", "notes"),
        Status.PASS: ("check passed", "checks passed"),
        Status.ASSUMED: ("assumed", "assumed"),
        Status.UNKNOWN: ("not determined", "not determined"),
        Status.SKIP: ("does not apply", "do not apply"),
    }
    counts = ((number[status], words[status]) for status in statuses)
    return ", ".join(f"{count} {singular if count == 1 else plural}" for count, (singular, plural) in counts if count)


def _next_step(diagnosis: Diagnosis, part: _Part, causes: Sequence[Cause]) -> Remedy | None:
    if part.bad:
        return part.bad[0].finding.remedy
    if part.gaps:
        blamed = next((causes[place] for gap in part.gaps for place in gap.causes), None)
        return Remedy(text=_how_to_know(diagnosis)) if blamed is None else blamed.finding.remedy
    return next((cause.finding.remedy for cause in part.causes if cause.state is State.WARN), None)


def _how_to_know(diagnosis: Diagnosis) -> str:
    """Return the next step for a machine about which too little is known."""
    if diagnosis.machines and all_handed_over(diagnosis.machine):
        return "run it inside a virtual machine that has these GPUs"
    if not diagnosis.machines or diagnosis.machine.origin.kind is not OriginKind.LIVE:
        return "take a new 'egmctl snapshot' of the node; -v says what this one does not state"
    if not diagnosis.machine.gpus:
        return "run it where the GPUs are; 'lspci -d 10de:' lists those on this node's bus"
    return "run it as root on the host, outside of containers; -v says what could not be read"
