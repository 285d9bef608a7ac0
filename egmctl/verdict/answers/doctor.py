"""The answer of doctor: what its checks prove to be wrong, and whether enough of them had data."""

from __future__ import annotations

from collections.abc import Mapping

from egmctl.model.answer import WORDS, Answer, Asked, Cause, Gap, GapKind, worst
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import TOLD, Remedy, Status, root_causes
from egmctl.model.machine import OriginKind
from egmctl.units import several


def of_doctor(diagnosis: Diagnosis) -> Answer:
    """Return what doctor answers about a node.

    The node has a problem if a check failed, or with ``--strict`` warned or noted. It is not known if there is no GPU,
    or if at least as many checks had no data as passed: a machine that is mostly unknown is not reported as healthy.
    """
    causes = tuple(
        Cause(finding=root.finding, status=_status(root.finding.status, strict=diagnosis.strict))
        for root in root_causes(diagnosis.findings)
    )
    nothing = _nothing(diagnosis)
    unknown = () if nothing is None and not _is_mostly_unknown(diagnosis) else (_gap(diagnosis, nothing),)
    state = worst([*(cause.state for cause in causes), *(gap.kind.state for gap in unknown)])
    return Answer(
        state=state,
        word=WORDS[Asked.DOCTOR][state],
        sentence=_sentence(diagnosis, causes, unknown),
        causes=causes,
        gaps=unknown,
        next_step=_next_step(diagnosis, causes, unknown),
        counts=diagnosis.counts,
    )


def _status(status: Status, *, strict: bool) -> Status:
    return Status.FAIL if strict and status in TOLD else status


def _nothing(diagnosis: Diagnosis) -> str | None:
    """Return why nothing could be determined; ``None`` if something was."""
    if not diagnosis.machine.gpus:
        return "there is no NVIDIA GPU on this machine"
    if not any(diagnosis.counts.get(status) for status in (Status.PASS, *TOLD)):
        return "no check could determine anything here"
    return None


def _is_mostly_unknown(diagnosis: Diagnosis) -> bool:
    """Return whether checks are unknown, and at least as many as passed. A warning does not outweigh that."""
    unknown = diagnosis.counts.get(Status.UNKNOWN, 0)
    return unknown > 0 and unknown >= diagnosis.counts.get(Status.PASS, 0)


def _gap(diagnosis: Diagnosis, nothing: str | None) -> Gap:
    number = diagnosis.counts
    applied = number[Status.UNKNOWN] + number[Status.PASS] + number[Status.WARN]
    checks = tuple(check for check, status in diagnosis.verdicts.items() if status is Status.UNKNOWN)
    reason = nothing or f"{number[Status.UNKNOWN]} of {several(applied, 'check')} had no data"
    return Gap(kind=GapKind.NOT_DETERMINED, reason=reason, checks=checks)


def _sentence(diagnosis: Diagnosis, causes: tuple[Cause, ...], gaps: tuple[Gap, ...]) -> str:
    """Return what was counted: a failure is a cause, and what it explains is not counted again."""
    statuses = [cause.finding.status for cause in causes]
    counts = {"failure": statuses.count(Status.FAIL), "warning": statuses.count(Status.WARN)}
    problems = " and ".join(several(count, what) for what, count in counts.items() if count)
    if gaps and not any(cause.status is Status.FAIL for cause in causes):
        rest = _counted(diagnosis.counts, Status.PASS, Status.SKIP)
        return "; ".join(filter(None, (gaps[0].reason, problems, rest)))
    rest = _counted(diagnosis.counts, Status.NOTE, Status.PASS, Status.UNKNOWN, Status.SKIP)
    return "; ".join(filter(None, (problems, rest)))


def _counted(number: Mapping[str, int], *statuses: Status) -> str:
    words = {
        Status.NOTE: ("note", "notes"),
        Status.PASS: ("check passed", "checks passed"),
        Status.UNKNOWN: ("not determined", "not determined"),
        Status.SKIP: ("does not apply", "do not apply"),
    }
    counts = ((number.get(status, 0), words[status]) for status in statuses)
    return ", ".join(f"{count} {singular if count == 1 else plural}" for count, (singular, plural) in counts if count)


def _next_step(diagnosis: Diagnosis, causes: tuple[Cause, ...], gaps: tuple[Gap, ...]) -> Remedy | None:
    if causes and causes[0].status is Status.FAIL:
        return causes[0].finding.remedy
    if gaps:
        return Remedy(text=_how_to_know(diagnosis))
    return causes[0].finding.remedy if causes and causes[0].status is Status.WARN else None


def _how_to_know(diagnosis: Diagnosis) -> str:
    """Return the next step for a machine about which too little is known."""
    if diagnosis.machine.origin.kind is not OriginKind.LIVE:
        return "take a new 'egmctl snapshot' of the node; -v says what this one does not state"
    if not diagnosis.machine.gpus:
        return "run it where the GPUs are; 'lspci -d 10de:' lists those on this node's bus"
    return "run it as root on the host, outside of containers; -v says what could not be read"
