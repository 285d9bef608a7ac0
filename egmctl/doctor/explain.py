"""From failures to their causes: what is known of each, and which of it doctor's checks find on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from egmctl.doctor.assumed import completed
from egmctl.doctor.check import Check, Scope
from egmctl.doctor.kernel_faults import REMOTE_ACCESS_XIDS, Action, Blame, catalogue, meaning
from egmctl.doctor.remedies import fitted_anywhere
from egmctl.doctor.runner import diagnose, select
from egmctl.driver.messages import messages
from egmctl.driver.signatures import nearest_function, signatures
from egmctl.errors import UsageError
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.explanation import (
    DECIDED,
    CauseState,
    ErrorLog,
    Explanation,
    Explanations,
    Failure,
    KnownCause,
    Library,
    Severity,
)
from egmctl.model.finding import TOLD, Guard, Status
from egmctl.model.kernel_log import EventKind, KernelEvent
from egmctl.model.machine import Machine
from egmctl.model.remedy import Remedy
from egmctl.units import did_you_mean, grouped, printable

XID_SOURCE = "https://docs.nvidia.com/deploy/xid-errors/"


def checks_of(failures: Iterable[Failure]) -> tuple[Check, ...]:
    """Return the checks that decide between the known causes of these failures, in the order in which they run."""
    ids = tuple(dict.fromkeys(check for each in failures for cause in _known(each).causes for check in cause.checks))
    return select(only=ids) if ids else ()


def diagnosis_of(failures: Iterable[Failure], machine: Machine) -> Diagnosis | None:
    """Return what the checks of :func:`checks_of` find on a machine; ``None`` if there are none.

    Who meets a failure needs what failed, so every purpose is named: what blocks one is a failure.
    """
    checks = checks_of(failures)
    if not checks:
        return None
    return diagnose(machine, Scope(purposes=tuple(Guard)), checks, completed=completed(machine))


def explain_failures(log: ErrorLog, diagnosis: Diagnosis | None) -> Explanations:
    """Return what is known of failures, the gravest first.

    Parameters
    ----------
    diagnosis
        The result of :func:`diagnosis_of`; ``None`` if no check was run: then no cause is excluded.
    """
    # A text may come from anywhere: a node without a GPU says nothing about it.
    is_elsewhere = diagnosis is not None and log.lines is not None and not diagnosis.machine.gpus
    judge = None if is_elsewhere else diagnosis
    explanations = list(_with_consequences([_explained(failure, judge) for failure in log.failures]))
    return Explanations(
        checked=None if judge is None else judge.machine.origin,
        explanations=tuple(sorted(explanations, key=_place)),
        lines=log.lines,
        left_out=log.left_out,
        interrupted=log.interrupted,
        purposes=log.purposes,
    )


def failures_of(call: str | None, error: str | int | None) -> tuple[Failure, ...]:
    """Return the failure of a call with an error, or of an error alone; of a call alone, each failure that is known.

    Parameters
    ----------
    call
        The name of a function of CUDA's driver or runtime, or of NVML.
    error
        The name of an error, or its number.

    Raises
    ------
    UsageError
        There is no such error, or the function's name is misspelt.
    """
    known = signatures()
    if call is not None and not known.of_call(call) and (nearest := nearest_function(call)) is not None:
        raise UsageError(f"there is no function {printable(call[:100])}; did you mean {nearest}?")
    library = Library.NVML if (call or "").startswith("nvml") else Library.CUDA
    number: int | None = None
    if error is not None:
        number = int(error) if str(error).isdecimal() else 0
        library, number = known.numbers.get(str(error), (library, number))
        if (library, number) not in known.names:
            hint = did_you_mean(str(error), known.numbers, most=1)
            raise UsageError("; ".join(filter(None, (f"there is no error {error} of {library.upper()}", hint))))
    if call is not None and number is not None:
        return (Failure(library=library, number=number, call=call),)
    entries = known.of_call(call) if call else []
    listed = tuple(Failure(library=each.library, number=each.number, call=each.call) for each in entries)
    return listed or (Failure(library=library, number=number, call=call),)


def _known(failure: Failure) -> Explanation:
    """Return what is known of a failure anywhere: its causes, the most likely first, none of them decided by checks."""
    if failure.library is Library.XID:
        return _of_xid(failure)
    if failure.library is Library.MESSAGE:
        return _of_message(failure)
    if failure.number is None:
        entries = signatures().of_call(failure.call or "")
    else:
        entries = signatures().find(failure.library, failure.call, failure.number)
    causes = tuple(dict.fromkeys(cause for each in entries for cause in each.causes))
    vague = failure.call is None and any(entry.vague for entry in entries)
    if vague:
        causes = (*_by_function(failure), *causes)
    error = signatures().names.get((failure.library, failure.number or 0))
    return Explanation(
        failure=failure,
        name=error.name if error else "",
        severity=Severity.ERROR if failure.call is None else Severity.CALL,
        runtime_name=error.runtime_name if error else "",
        meaning=error.words if error else "",
        causes=causes,
        vague=vague,
        sources=tuple(dict.fromkeys(source for each in entries for source in each.sources)),
    )


def _by_function(failure: Failure) -> Iterator[KnownCause]:
    """Yield the causes of an error from each function that is known to return it."""
    entries = signatures().errors.values()
    same = [entry for entry in entries if (entry.library, entry.number) == (failure.library, failure.number)]
    for cause, calls in grouped((cause, entry.call) for entry in same if entry.call for cause in entry.causes).items():
        yield replace(cause, calls=tuple(call for call in calls if call))


def _place(explanation: Explanation) -> tuple[int, bool]:
    """Return the place in the order: the gravest first; of equal ones what is not fatal last, after its Xid 154."""
    return explanation.severity.rank, explanation.failure.fatal is False


def _of_xid(failure: Failure) -> Explanation:
    xid = meaning(KernelEvent(kind=EventKind.XID, time_s=0, number=failure.number, fatal=failure.fatal))
    remedy = catalogue().remedies[xid.action]
    cause = KnownCause(f"{xid.name} ({xid.blame.value})", remedy, state=CauseState.STATED)
    severities = {Status.FAIL: Severity.HARDWARE, Status.WARN: Severity.SYSTEM}
    # A fatal event of a link may come from the GPU at its other end, whose own Xid says more.
    status = Status.WARN if failure.fatal else xid.status
    return Explanation(
        failure=failure,
        name=f"Xid {failure.number}",
        severity=Severity.CONTEXT if xid.action is Action.BEFORE else severities.get(status, Severity.FAULT),
        causes=(cause,),
        sources=(XID_SOURCE,),
    )


def _of_message(failure: Failure) -> Explanation:
    message = messages().entries[failure.message]
    first, *others = message.causes
    # What was found only by reading a paste without its lines and spaces is not certain.
    is_certain = message.states and failure.line_number is not None
    stated = replace(first, state=CauseState.STATED) if is_certain else first
    return Explanation(
        failure=failure,
        name=message.program,
        severity=message.severity,
        meaning=message.means,
        causes=(stated, *others),
        sources=(message.source,),
    )


def _explained(failure: Failure, diagnosis: Diagnosis | None) -> Explanation:
    known = _known(failure)
    known = replace(known, causes=tuple(replace(each, remedy=fitted_anywhere(each.remedy)) for each in known.causes))
    judged = [_judged(failure, cause, diagnosis) for cause in known.causes]
    # The driver's log states some causes in words; without words, those are less likely.
    left = [cause for cause in judged if cause.state is CauseState.UNKNOWN and not (cause.log and failure.log == "")]
    if len(judged) > len(left) == 1 and not any(cause.state in DECIDED for cause in judged) and not known.vague:
        judged[judged.index(left[0])] = replace(left[0], state=CauseState.LIKELY)
    judged.sort(key=lambda cause: list(CauseState).index(cause.state))
    return replace(known, causes=tuple(judged))


def _with_consequences(explanations: list[Explanation]) -> Iterator[Explanation]:
    """Yield explanations; what may follow from another fault in the same text names that, and blames no program.

    CUDA's errors may follow from a fault of a GPU or a link, and that a GPU does not start from what the driver says
    of it before.
    """
    faults = [each for each in explanations if each.is_decided]
    hardware = next((each for each in faults if each.severity is Severity.HARDWARE and each.name not in _NO_GPU), None)
    link = next((each for each in faults if _is_of_a_link(each.failure)), hardware)
    for each in explanations:
        fault = None
        if _is_remote_access(each.failure):
            fault = link
        elif _is_asynchronous(each.failure):
            fault = hardware
        elif each.failure.message == _START_FAILED:
            fault = next((earlier for earlier in faults if _stops_start(earlier.failure, each.failure)), None)
        if fault is None or fault is each:
            yield each
            continue
        name = fault.name if fault.failure.library is Library.XID else fault.causes[0].cause
        cause = KnownCause(
            f"a consequence of the fault that the same text states: {name}",
            Remedy(text="Mend that first, then run the program again."),
        )
        yield replace(each, severity=Severity.CONTEXT, causes=(cause,), vague=False)


_NO_GPU = ("mlx5 driver",)
"""Programs whose faults of hardware are none of a GPU, so that no error of CUDA follows from them."""
_START_FAILED = "init-adapter"
"""The driver's last line on a GPU that did not start; a line before it states why."""


def _stops_start(fault: Failure, start: Failure) -> bool:
    """Return whether a GPU did not start for a reason that the driver gave before, of it or of no certain GPU."""
    if fault.library is not Library.MESSAGE or not messages().entries[fault.message].stops_start:
        return False
    is_before = (fault.line_number or 0) < (start.line_number or 0)
    return is_before and (not fault.devices or not start.devices or not {*fault.devices}.isdisjoint(start.devices))


def _is_of_a_link(failure: Failure) -> bool:
    if failure.library is not Library.XID:
        return failure.library is Library.MESSAGE and failure.number is not None
    return meaning(KernelEvent(kind=EventKind.XID, time_s=0, number=failure.number)).blame is Blame.LINK


def _is_remote_access(failure: Failure) -> bool:
    return failure.library is Library.XID and failure.number in REMOTE_ACCESS_XIDS


def _is_asynchronous(failure: Failure) -> bool:
    entries = signatures().find(failure.library, failure.call, failure.number or 0)
    return any(entry.asynchronous for entry in entries)


def _judged(failure: Failure, cause: KnownCause, diagnosis: Diagnosis | None) -> KnownCause:
    """Return a cause with its state on the machine of a diagnosis, and the findings that decide it or lack data."""
    findings = () if diagnosis is None else diagnosis.findings
    own = [finding for check in cause.checks for finding in findings if finding.check == check]
    shows = TOLD if cause.noted else (Status.FAIL, Status.WARN)
    wrong = [finding for finding in own if finding.status in shows]
    # What explains the others comes first: its remedy is the one that helps.
    wrong.sort(key=lambda finding: bool(finding.explained_by))
    if cause.state is CauseState.STATED or (cause.log and cause.log in (failure.log or "")):
        return replace(cause, state=CauseState.STATED, findings=tuple(wrong))
    if wrong:
        return replace(cause, state=CauseState.HOLDS, findings=tuple(wrong))
    # A check that does not apply says nothing, and a note may be the cause: a deliberate configuration.
    passes = bool(own) and all(finding.status is Status.PASS for finding in own)
    is_excluded = passes and cause.decides and not (cause.holds_in == "container" and not _in_container(diagnosis))
    unsure = tuple(finding for finding in own if finding.status in (Status.UNKNOWN, Status.ASSUMED))
    return replace(cause, state=CauseState.EXCLUDED if is_excluded else CauseState.UNKNOWN, findings=unsure)


def _in_container(diagnosis: Diagnosis | None) -> bool:
    """Return whether the process that was checked is in a container."""
    process = None if diagnosis is None else diagnosis.machine.process
    return process is not None and bool(process.container_signs)
