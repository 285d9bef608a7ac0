"""From failures to their causes: what is known of each, and which of it doctor's checks find on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from egmctl.doctor.kernel_faults import catalogue, meaning
from egmctl.driver.signatures import nearest_function, signatures
from egmctl.errors import UsageError
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.explanation import CauseState, ErrorLog, Explanation, Explanations, Failure, KnownCause, Library
from egmctl.model.finding import Finding, Status
from egmctl.model.kernel_log import EventKind, KernelEvent
from egmctl.units import did_you_mean, printable

XID_SOURCE = "https://docs.nvidia.com/deploy/xid-errors/"


def checks_of(failures: Iterable[Failure]) -> tuple[str, ...]:
    """Return the ids of the checks that decide between the known causes of these failures; each once."""
    return tuple(dict.fromkeys(check for each in failures for cause in _known(each)[0] for check in cause.checks))


def explained(log: ErrorLog, diagnosis: Diagnosis | None) -> Explanations:
    """Return what is known of failures.

    Parameters
    ----------
    diagnosis
        The findings of the checks of :func:`checks_of`; ``None`` if none were run: then no cause is excluded.
    """
    findings = () if diagnosis is None else diagnosis.findings
    return Explanations(
        checked=None if diagnosis is None else diagnosis.machine.origin,
        explanations=tuple(_explained(failure, findings) for failure in log.failures),
        lines=log.lines,
        left_out=log.left_out,
    )


def failures_of(call: str | None, error: str | int | None) -> tuple[Failure, ...]:
    """Return the failure of a call with an error; of one alone, every failure of it that is known.

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
    same = [each for each in known.errors.values() if (each.library, each.number) == (library, number)]
    entries = known.of_call(call) if call else same
    listed = tuple(Failure(library=each.library, number=each.number, call=each.call) for each in entries)
    return listed or (Failure(library=library, number=number, call=call),)


def _known(failure: Failure) -> tuple[tuple[KnownCause, ...], tuple[str, ...]]:
    """Return the known causes of a failure, the most likely first, and their sources."""
    if failure.library is Library.XID:
        xid = meaning(KernelEvent(kind=EventKind.XID, time_s=0, number=failure.number))
        words, remedy = f"{xid.name} ({xid.blame.value})", catalogue().remedies[xid.action].text
        return (KnownCause(words, remedy, "the kernel log around it", checks=("kernel.xid",)),), (XID_SOURCE,)
    if failure.number is None:
        entries = signatures().of_call(failure.call or "")
    else:
        entries = signatures().find(failure.library, failure.call, failure.number)
    causes = dict.fromkeys(cause for each in entries for cause in each.causes)
    return tuple(causes), tuple(dict.fromkeys(source for each in entries for source in each.sources))


def _explained(failure: Failure, findings: Sequence[Finding]) -> Explanation:
    causes, sources = _known(failure)
    judged = [_judged(failure, cause, findings) for cause in causes]
    # The driver's log states some causes in words; without words, those are less likely.
    left = [cause for cause in judged if cause.state is CauseState.UNKNOWN and not (cause.log and failure.log == "")]
    if len(judged) > len(left) == 1 and all(cause.state is not CauseState.HOLDS for cause in judged):
        judged[judged.index(left[0])] = replace(left[0], state=CauseState.LIKELY)
    judged.sort(key=lambda cause: (not _stated(failure, cause), list(CauseState).index(cause.state)))
    error = signatures().names.get((failure.library, failure.number or 0))
    return Explanation(
        failure=failure,
        name=error.name if error else f"Xid {failure.number}" if failure.library is Library.XID else "",
        runtime_name=error.runtime_name if error else "",
        meaning=error.words if error else "",
        causes=tuple(judged),
        sources=sources,
    )


def _judged(failure: Failure, cause: KnownCause, findings: Sequence[Finding]) -> KnownCause:
    own = [finding for check in cause.checks for finding in findings if finding.check == check]
    wrong = [finding for finding in own if finding.status in (Status.FAIL, Status.WARN)]
    # What explains the others comes first: its remedy is the one that helps.
    wrong.sort(key=lambda finding: bool(finding.explained_by))
    unsure = [finding for finding in own if finding.status is Status.UNKNOWN]
    # A check that does not apply says nothing, and a note may be the cause: a deliberate configuration.
    passes = bool(own) and all(finding.status is Status.PASS for finding in own)
    state = CauseState.EXCLUDED if passes and cause.decides else CauseState.UNKNOWN
    if wrong or _stated(failure, cause):
        state = CauseState.HOLDS
    return replace(cause, state=state, findings=tuple(wrong if state is CauseState.HOLDS else unsure))


def _stated(failure: Failure, cause: KnownCause) -> bool:
    """Return whether CUDA's own log names the cause."""
    return bool(cause.log) and cause.log in (failure.log or "")
