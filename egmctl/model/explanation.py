"""Failed calls of CUDA and NVML, Xids, and what is known of each: the result of ``egmctl explain``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.answer import UNANSWERED, Answer
from egmctl.model.finding import Finding
from egmctl.model.machine import Origin
from egmctl.model.record import Plain, Shown
from egmctl.model.remedy import Remedy


class Library(StrEnum):
    """The source of an error's number: a library or the kernel driver. Messages of programs have no numbers."""

    CUDA = "cuda"
    NVML = "nvml"
    XID = "xid"
    MESSAGE = "message"
    """A message of ``egmctl.driver.messages``; of an SXid, :attr:`Failure.number` is its number."""


class Severity(StrEnum):
    """How grave a failure is, the gravest first: what is upstream of others comes before what it causes."""

    HARDWARE = "hardware"
    """A GPU, a switch, a link or a board failed."""
    SYSTEM = "system"
    """A driver, a service, a container runtime or a setting of the node failed."""
    FAULT = "fault"
    """A program failed, and its message says in what."""
    CALL = "call"
    """A call of CUDA or NVML failed."""
    ERROR = "error"
    """An error without the call that returned it."""
    WARNING = "warning"
    """The program goes on, slower or with less."""
    CONTEXT = "context"
    """A consequence of something that other lines say."""
    HARMLESS = "harmless"
    """No fault."""

    @property
    def rank(self) -> int:
        """The place in the order, from 0 for the gravest."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed call or an Xid, as arguments or a text state it. Failures of the same call and error are one."""

    library: Library
    number: int | None
    """The error number; ``None``: any error of the call."""
    call: Plain | None = None
    """The function as it was written; ``None`` if only the error is known."""
    message: Plain = ""
    """The id of the entry in ``egmctl.driver.messages``; empty if it is an error of a library or an Xid."""
    log: str | None = None
    """The driver's own reason, from the line before it in CUDA's error log: empty if it gives none, ``None`` if the
    failure is not from that log."""
    line: str = ""
    """The first line that states it, cut to 300 characters; empty if arguments state it, and in documents."""
    line_number: int | None = None
    """The number of that line, from 1."""
    count: int = 1
    """The number of lines that state it."""
    devices: tuple[Plain, ...] = ()
    """The GPUs that these lines name, as they name them: ``GPU 2``, ``0000:09:00``; the first eight."""
    fatal: bool | None = None
    """Whether the driver calls an Xid of NVLink 5 (144 to 150) ``Fatal``; ``None`` if it says nothing of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorLog:
    """The failures that arguments or a text state."""

    failures: tuple[Failure, ...]
    lines: int | None = None
    """The number of lines of the text; ``None`` without a text."""
    left_out: int = 0
    """The number of lines with further kinds of failures than are kept, none of them graver."""
    interrupted: bool = False
    """Whether the text was read in part only."""
    purposes: tuple[str, ...] = ()
    """The purposes of doctor (:class:`~egmctl.model.finding.Guard`) that a text without known failures is about."""


class CauseState(StrEnum):
    """Whether a known cause applies here."""

    STATED = "stated"
    """The line itself or CUDA's own log states it."""
    HOLDS = "holds"
    """One of its checks fails or warns here."""
    LIKELY = "likely"
    """It is the only known cause that is left: checks exclude the others, or the driver's log would state them."""
    UNKNOWN = "unknown"
    """No check can decide it, its checks lack data, or none was run."""
    EXCLUDED = "excluded"
    """The checks that decide it pass here."""


DECIDED = (CauseState.STATED, CauseState.HOLDS)
"""The states of a cause that is known to apply."""


@dataclass(frozen=True, slots=True)
class KnownCause:
    """A condition that makes a call fail."""

    cause: Plain
    """The condition, as a clause."""
    remedy: Remedy
    """What to do. Where neither the node's GPUs nor the place of the process are known, its text says what is for the
    host."""
    alternative: Plain = ""
    """What the program of the message can do instead of the remedy, wherever it runs: a sentence."""
    see: Plain = ""
    """How to see it, in words; a command that shows it is in the remedy."""
    holds_in: Plain = ""
    """``container`` if only a container has it: then checks on a host exclude nothing."""
    confirmable: bool = True
    """Whether what its remedy shows (``look``) confirms it. If not, it refers to other lines, or its remedy states when
    it is for."""
    calls: tuple[Plain, ...] = ()
    """The functions that fail so, if the text names none; empty if it does."""
    checks: tuple[Plain, ...] = ()
    """The checks of doctor that fail where it holds."""
    decides: bool = False
    """Whether it does not hold where these checks pass."""
    noted: bool = False
    """Whether a note of these checks shows that it holds: it is a deliberate setting."""
    log: Plain = ""
    """Words of CUDA's own error log that state it."""
    state: CauseState = CauseState.UNKNOWN
    findings: tuple[Finding, ...] = ()
    """The findings of these checks that fail or warn, or note it; for an unknown cause, those that lack data."""

    def __str__(self) -> str:
        text = self.remedy.text
        return f"{self.cause}: {text[0].lower()}{text[1:].rstrip('.')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What is known of one failure."""

    failure: Failure
    name: Plain
    """The driver's name of the error: ``CUDA_ERROR_NOT_PERMITTED``, ``Xid 79``; the program that printed a message;
    empty for any error of a call."""
    severity: Severity = Severity.CALL
    runtime_name: Plain = ""
    """The name of the same number in CUDA's runtime; empty if it has none."""
    meaning: Plain = ""
    """The library's words for the error, or what the message says."""
    causes: tuple[KnownCause, ...] = ()
    """The known causes: those that are stated or hold here first, then by likelihood. Empty if none is known."""
    vague: bool = False
    """Whether the error is ambiguous without the function that returned it."""
    sources: tuple[Plain, ...] = ()
    """Where the causes were seen or are documented."""

    @property
    def is_decided(self) -> bool:
        """Whether a cause is stated or holds here."""
        return bool(self.causes) and self.causes[0].state in DECIDED

    @property
    def is_fault(self) -> bool:
        """Whether it has a cause of its own: neither a consequence of other lines nor harmless."""
        return self.severity not in (Severity.CONTEXT, Severity.HARMLESS)


class Word(StrEnum):
    """The answers of ``explain``; naming a cause is neither good nor bad."""

    CAUSE = "CAUSE"
    """A cause is stated by the text, or holds on this node."""
    POSSIBLE_CAUSE = "POSSIBLE CAUSE"
    WHICH_ERROR = "WHICH ERROR?"
    """A call without its error, or an error that means something else for each function."""
    NO_FAULT = "NO FAULT"
    """Every line of the text is known to be harmless."""
    NOT_KNOWN = "NOT KNOWN"
    INTERRUPTED = "INTERRUPTED"
    """Reading ended before the end of the text."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explanations(Shown):
    """The result of ``egmctl explain``."""

    SCHEMA: ClassVar[str] = "egmctl.explain/2"

    checked: Origin | None
    """The machine on which the checks were run; ``None`` if none were."""
    explanations: tuple[Explanation, ...]
    """The gravest first."""
    lines: int | None = None
    """The number of lines of the text that was read; ``None`` without a text."""
    left_out: int = 0
    """The number of lines with further kinds of failures than are kept, none of them graver."""
    interrupted: bool = False
    """Whether the text was read in part only."""
    purposes: tuple[str, ...] = ()
    """The purposes of doctor that a text without known failures is about: values of ``--for``."""
    answer: Answer = UNANSWERED
    """What the command answers (:mod:`egmctl.verdict.answers`)."""

    @property
    def asks_for_error(self) -> bool:
        """Whether a call was named without its error, and several errors of it are known."""
        calls = {each.failure.call for each in self.explanations}
        return self.lines is None and len(self.explanations) > 1 and len(calls) == 1

    @property
    def is_harmless(self) -> bool:
        """Whether every line of a text is known to be harmless: a line that is not known could state a fault."""
        harmless = [each.failure.count for each in self.explanations if each.severity is Severity.HARMLESS]
        return len(harmless) == len(self.explanations) and sum(harmless) == self.lines and not self.left_out

    @property
    def leading(self) -> Explanation | None:
        """The explanation that answers; ``None`` if no cause is known."""
        return leading(self.explanations)

    @property
    def word(self) -> Word:
        """The answer, in one word."""
        return explanations_word(self)


def leading(explanations: Sequence[Explanation]) -> Explanation | None:
    """Return the explanation that answers: the first of the gravest kind in which a cause is decided, else the first.

    A cause that holds for a call decides before a possible one of a graver message; hardware faults always lead.
    """
    known = [each for each in explanations if each.is_fault and _open(each)]
    known = known or [each for each in explanations if each.severity is Severity.CONTEXT and _open(each)]
    if not known:
        return None
    if known[0].severity is Severity.HARDWARE:
        return known[0]
    grave = [each for each in known if each.severity is not Severity.WARNING]
    return next((each for each in grave if each.is_decided), known[0])


def explanations_word(result: Explanations) -> Word:
    """Return the answer of explanations: the one place that decides it."""
    if result.interrupted:
        return Word.INTERRUPTED
    leader = leading(result.explanations)
    if leader is None and any(each.failure.log for each in result.explanations):
        # The driver's own log states it, in words that no entry has.
        return Word.CAUSE
    if leader is None:
        return Word.NO_FAULT if result.is_harmless else Word.NOT_KNOWN
    if leader.is_decided and not result.asks_for_error:
        return Word.CAUSE
    if leader.vague or result.asks_for_error:
        return Word.WHICH_ERROR
    return Word.POSSIBLE_CAUSE


def _open(explanation: Explanation) -> bool:
    """Return whether a cause is known that is not excluded."""
    return any(cause.state is not CauseState.EXCLUDED for cause in explanation.causes)
