"""Failed calls of CUDA and NVML, Xids, and what is known of each: the result of ``egmctl explain``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from egmctl.compat import StrEnum
from egmctl.model.answer import UNANSWERED, Answer
from egmctl.model.finding import Finding
from egmctl.model.machine import Origin
from egmctl.model.record import Plain, Shown


class Library(StrEnum):
    """The libraries that number their errors, and the kernel driver, whose errors are Xids."""

    CUDA = "cuda"
    NVML = "nvml"
    XID = "xid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed call or an Xid, as arguments or a text state it. Failures of the same call and error are one."""

    library: Library
    number: int | None
    """The error number; ``None``: any error of the call."""
    call: Plain | None = None
    """The function as it was written; ``None`` if only the error is known."""
    log: str | None = None
    """The driver's own reason, from the line before it in CUDA's error log: empty if it gives none, ``None`` if the
    failure is not from that log."""
    line: str = ""
    """The first line that states it, cut to 300 characters; empty if arguments state it, and in documents."""
    line_number: int | None = None
    """The number of that line, from 1."""
    count: int = 1
    """The number of lines that state it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorLog:
    """The failures that arguments or a text state."""

    failures: tuple[Failure, ...]
    lines: int | None = None
    """The number of lines of the text; ``None`` without a text."""
    left_out: int = 0
    """The number of lines with further kinds of failures than are kept."""


class CauseState(StrEnum):
    """Whether a known cause applies here."""

    HOLDS = "holds"
    """One of its checks fails or warns here, or the driver's own log states it."""
    LIKELY = "likely"
    """It is the only known cause that is left: checks exclude the others, or the driver's log would state them."""
    UNKNOWN = "unknown"
    """No check can decide it, its checks lack data, or none was run."""
    EXCLUDED = "excluded"
    """The checks that decide it pass here."""


@dataclass(frozen=True, slots=True)
class KnownCause:
    """A condition that makes a call fail."""

    cause: Plain
    """The condition, as a clause."""
    remedy: Plain
    """What to do, as one sentence."""
    see: Plain = ""
    """How to see it."""
    checks: tuple[Plain, ...] = ()
    """The checks of doctor that fail where it holds."""
    decides: bool = False
    """Whether it does not hold where these checks pass."""
    log: Plain = ""
    """Words of CUDA's own error log that state it."""
    state: CauseState = CauseState.UNKNOWN
    findings: tuple[Finding, ...] = ()
    """The findings of these checks that fail or warn; for an unknown cause, those that lack data."""

    def __str__(self) -> str:
        return f"{self.cause}: {self.remedy[0].lower()}{self.remedy[1:].rstrip('.')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What is known of one failure."""

    failure: Failure
    name: Plain
    """The driver's name of the error: ``CUDA_ERROR_NOT_PERMITTED``, ``Xid 79``; empty for any error of a call."""
    runtime_name: Plain = ""
    """The name of the same number in CUDA's runtime; empty if it has none."""
    meaning: Plain = ""
    """The library's words for the error."""
    causes: tuple[KnownCause, ...] = ()
    """The known causes: those that hold here first, then by likelihood. Empty if none is known."""
    sources: tuple[Plain, ...] = ()
    """Where the causes were seen or are documented."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanations(Shown):
    """The result of ``egmctl explain``."""

    SCHEMA: ClassVar[str] = "egmctl.explain/1"

    checked: Origin | None
    """The machine on which the checks were run; ``None`` if none were."""
    explanations: tuple[Explanation, ...]
    lines: int | None = None
    """The number of lines of the text that was read; ``None`` without a text."""
    left_out: int = 0
    """The number of lines with further kinds of failures than are kept."""
    answer: Answer = UNANSWERED
    """What the command answers (:mod:`egmctl.verdict.answers`)."""
