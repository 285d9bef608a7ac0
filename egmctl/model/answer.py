"""The answer of a command: one record in every result. All formats and the exit code follow from it by one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.errors import ExitCode
from egmctl.model.finding import Finding, Guard, Status
from egmctl.model.record import Command, Plain
from egmctl.model.remedy import Remedy


class State(StrEnum):
    """What a command answers, the worst first: a whole has the worst state of its parts."""

    BAD = "bad"
    """Something is proven to be wrong. Running it again does not take that back, so it comes before the two below."""
    INTERRUPTED = "interrupted"
    """It was stopped before it had an answer."""
    BROKE = "broke"
    """It crashed, hung, or failed for an unknown reason, or there is no document."""
    INCOMPLETE = "incomplete"
    """Nothing is proven to be wrong, but something that was asked is not known."""
    WARN = "warn"
    """It works, with a degradation."""
    GOOD = "good"


class JUnit(StrEnum):
    """How a test case ends: the element of JUnit XML that says so."""

    FAILURE = "failure"
    ERROR = "error"
    PASSES = "passes"


@dataclass(frozen=True, slots=True)
class StateRow:
    """What the formats say for one state."""

    exit_code: ExitCode
    junit: JUnit
    nagios: int
    """0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN (https://nagios-plugins.org/doc/guidelines.html#AEN78)."""
    tone: str
    """The name of a tone of documents, which selects the colour."""
    tag: str
    """The word before a line about something in this state; empty if nothing is wrong."""


TABLE: Mapping[State, StateRow] = {
    State.BAD: StateRow(ExitCode.FAILED, JUnit.FAILURE, 2, "bad", "fail"),
    State.INTERRUPTED: StateRow(ExitCode.INTERRUPTED, JUnit.ERROR, 3, "warn", "interrupted"),
    State.BROKE: StateRow(ExitCode.CRASHED, JUnit.ERROR, 3, "warn", "broke"),
    State.INCOMPLETE: StateRow(ExitCode.NOTHING, JUnit.ERROR, 3, "unknown", "incomplete"),
    State.WARN: StateRow(ExitCode.OK, JUnit.PASSES, 1, "warn", "warn"),
    State.GOOD: StateRow(ExitCode.OK, JUnit.PASSES, 0, "good", ""),
}
"""What each format says for each state, by :class:`State`, the worst first."""


def of_exit_code(code: int | None) -> State:
    """Return what a result answered of which only the exit code is known, as of version 0.1; ``None``: it ended without
    one. Of the states with one code it is the last of :data:`TABLE`."""
    states: dict[int | None, State] = {int(row.exit_code): state for state, row in TABLE.items()}
    return states.get(code, State.BROKE)


class CommandQuestion(StrEnum):
    """The questions of the commands, which have words of their own for the same states."""

    DOCTOR = "doctor"
    """Does the node work? Also the question of topo."""
    PURPOSE = "purpose"
    """Can this job do that here: ``--for``."""
    BENCH = "bench"
    """Are the paths as fast as they should be?"""
    BRINGUP = "bringup"
    """Can the node, or all of these nodes, be handed over? Also the question of a fleet and a rack."""
    COMPARE = "compare"
    """Is the second worse?"""
    EXPLAIN = "explain"
    """Why did this call fail?"""


def _words(bad: str, incomplete: str, warn: str, good: str) -> Mapping[State, str]:
    return {
        State.BAD: bad,
        State.INTERRUPTED: "INTERRUPTED",
        State.BROKE: "BROKE",
        State.INCOMPLETE: incomplete,
        State.WARN: warn,
        State.GOOD: good,
    }


WORDS: Mapping[CommandQuestion, Mapping[State, str]] = {
    CommandQuestion.DOCTOR: _words("PROBLEMS", "NOT DETERMINED", "OK WITH WARNINGS", "OK"),
    CommandQuestion.PURPOSE: _words("BLOCKED", "NOT DETERMINED", "OK WITH WARNINGS", "OK"),
    CommandQuestion.BENCH: _words("FAIL", "INCOMPLETE", "PASS WITH WARNINGS", "PASS"),
    CommandQuestion.BRINGUP: _words("NO-GO", "INCOMPLETE", "GO WITH WARNINGS", "GO"),
    CommandQuestion.COMPARE: _words("WORSE", "NOT COMPARED", "DIFFERENT", "SAME"),
    CommandQuestion.EXPLAIN: _words("CAUSE", "NOT KNOWN", "POSSIBLE CAUSE", "CAUSE"),
}
"""The word for each state, by question. An answer may have a more exact one: ``NO REFERENCE``, ``BETTER``."""


def asked(command: Command) -> CommandQuestion:
    """Return the question of a command that a fleet runs on its nodes."""
    return {Command.BRINGUP: CommandQuestion.BRINGUP, Command.BENCH: CommandQuestion.BENCH}.get(
        command, CommandQuestion.DOCTOR
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A finding that no other one explains, and what it explains."""

    status: Status
    """How severe it is here: the most severe status of the finding and of what it explains; a failure if ``asked`` or
    with ``--strict``."""
    finding: Finding
    """The finding of a doctor check, with the checks that it explains in ``finding.explains``, or of the run itself,
    with one of the ids in :mod:`egmctl.verdict.explain`."""
    measurements: tuple[int, ...] = ()
    """Indices into the run's ``measurements``: those that are slow, broken or waived because of the cause."""
    paths: tuple[int, ...] = ()
    """Indices into the comparison's ``paths`` that are worse because of the cause."""
    node: Plain = ""
    """The node with the finding, if there are several: in a run the prefix of its GPUs' labels, ``node1``."""
    asked: Plain = ""
    """The GPUs that the user named, ``GPU2-3``, and that have no measurement because of the cause."""
    under_load: bool = False
    """Whether the cause was absent before the bench of a bring-up and appeared during it."""

    @property
    def by_run(self) -> bool:
        """Whether the run itself found the cause, not a doctor check."""
        return self.finding.check.startswith("bench.")

    @property
    def asked_words(self) -> str:
        """The words on GPUs that the user named with ``--gpus``; empty for a failed check, which contains them."""
        return f", but --gpus names {self.asked}" if self.asked and self.finding.status is not Status.FAIL else ""

    @property
    def title(self) -> str:
        """Its node if there are several, the finding, and whether it is new in the bench."""
        node = f"{self.node}: " if self.node else ""
        new = " (appeared during the bench)" if self.under_load else ""
        return f"{node}{self.finding.title}{self.asked_words}{new}"

    @property
    def is_broken_part(self) -> bool:
        """Whether a GPU, or a link between GPUs, may be broken: a vendor asks for the logs of the driver."""
        return self.state is State.BAD and self.finding.hardware and self.finding.place.gpus is not None

    @property
    def state(self) -> State:
        """What the cause makes of an answer. What only notes, passes or is unknown worsens none by itself."""
        return {Status.FAIL: State.BAD, Status.WARN: State.WARN}.get(self.status, State.GOOD)


@dataclass(frozen=True, slots=True, kw_only=True)
class PurposeAnswer:
    """What doctor answers for one of the purposes of ``--for``."""

    purpose: Guard
    state: State
    word: Plain
    sentence: str


class GapKind(StrEnum):
    """The reasons why something that was asked is not known, the most important first."""

    INTERRUPTED = "interrupted"
    BROKE = "broke"
    """Measurements crashed, timed out or failed for an unknown reason, the run itself did, or there is no document."""
    NOT_MEASURED = "not-measured"
    """Nothing was measured: the machine is recorded, it has no GPU to measure, or all was waived."""
    WAIVED = "waived"
    """Measurements were waived: this process cannot use a GPU, or other processes use it."""
    UNREADABLE = "unreadable"
    """Links are unknown, because a driver library could not be read."""
    NOT_BELIEVED = "not-believed"
    """What was measured is not the number of the path that was asked."""
    EXCUSED = "excused"
    """Paths are slow, but only while others used the GPU or the host."""
    CHANGED = "changed"
    """The node changed while it was measured."""
    NO_REFERENCE = "no-reference"
    """Some or all links that were measured have no reference."""
    NOT_DETERMINED = "not-determined"
    """Too many checks had no data."""
    DOMAIN = "domain"
    """It is not known whether the GPUs are in the NVLink domain where they are expected."""
    FABRIC = "fabric"
    """The fabric to the other nodes of the job was not measured."""

    @property
    def state(self) -> State:
        """What such a gap makes of an answer."""
        return {GapKind.INTERRUPTED: State.INTERRUPTED, GapKind.BROKE: State.BROKE}.get(self, State.INCOMPLETE)


class Clauses(str):
    """A sentence that still knows its clauses: the first says what is so, the others explain it."""

    parts: tuple[str, ...]
    lead: tuple[str, str] | None
    """The first clause in two, what is so and why; ``None`` if it does not say why, or if that is not known."""

    @classmethod
    def of(cls, first: str, *others: str) -> Clauses:
        """Return the sentence of some clauses, without those that are empty; each may itself be of several."""
        clauses = [clause for clause in (first, *others) if clause]
        lead = lead_of(clauses[0]) if clauses else None
        return cls._of_parts([part for clause in clauses for part in clauses_of(clause)], lead)

    @classmethod
    def explained(cls, what: str, why: str) -> Clauses:
        """Return the sentence ``what: why``; only ``what`` without a reason, which may itself be of several clauses."""
        if not why:
            return cls.of(what)
        first, *others = clauses_of(why)
        return cls._of_parts([f"{what}: {first}", *others], (what, first))

    @classmethod
    def _of_parts(cls, parts: Sequence[str], lead: tuple[str, str] | None) -> Clauses:
        sentence = cls("; ".join(parts))
        sentence.parts = tuple(parts)
        sentence.lead = lead
        return sentence


def clauses_of(sentence: str) -> tuple[str, ...]:
    """Return the clauses of a sentence; of a plain text itself, of an empty one none."""
    if isinstance(sentence, Clauses):
        return sentence.parts
    return (sentence,) if sentence else ()


def lead_of(sentence: str) -> tuple[str, str] | None:
    """Return :attr:`Clauses.lead` of a sentence; ``None`` of a plain text."""
    return sentence.lead if isinstance(sentence, Clauses) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Something that was asked and is not known."""

    kind: GapKind
    reason: Plain = ""
    """A clause, without a full stop."""
    measurements: tuple[int, ...] = ()
    """Indices into the run's ``measurements``."""
    checks: tuple[Plain, ...] = ()
    """The checks that could not be determined."""
    nodes: tuple[str, ...] = ()
    causes: tuple[int, ...] = ()
    """Indices into the answer's ``causes``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command answers. Its functions are in ``egmctl/verdict/answers``; everything else only shows it."""

    state: State
    word: Plain
    """The word of people for it: ``PASS``, ``NO-GO``, ``BLOCKED`` (:data:`WORDS`)."""
    sentence: str = ""
    """One sentence with the numbers, without a full stop."""
    clauses: tuple[str, ...] = ()
    """The clauses of the sentence: the first one says what is so, the others explain it. Empty if only the sentence is
    known."""
    lead: tuple[str, ...] = ()
    """The first clause in two, what is so and why (``what: why``); empty if it does not say why."""
    causes: tuple[Cause, ...] = ()
    """The causes, the most severe first."""
    gaps: tuple[Gap, ...] = ()
    """What is not known, in the order of :class:`GapKind`."""
    notes: tuple[str, ...] = ()
    """What a reader should know beside the answer, and that does not change it."""
    purposes: tuple[PurposeAnswer, ...] = ()
    """The answer for each purpose of ``--for``, the worst first: that one decides. Empty if none was named."""
    next_step: Remedy | None = None
    """What to do next; null if there is nothing to do."""
    counts: Mapping[Plain, int] = field(default_factory=dict)
    """What was counted: checks by status; paths (pairs of ends), measurements by status and classes of a run."""

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the command (``docs/exit-codes.md``)."""
        return TABLE[self.state].exit_code

    @property
    def junit(self) -> JUnit:
        """How the test case ``answer`` ends in JUnit XML."""
        return TABLE[self.state].junit

    @property
    def nagios(self) -> int:
        """The state of a Nagios plugin."""
        return TABLE[self.state].nagios

    @property
    def nothing(self) -> str | None:
        """Why there is no answer, as a sentence with a full stop; ``None`` if there is one."""
        return f"{self.sentence}." if self.state is State.INCOMPLETE else None

    @property
    def blamed(self) -> Cause | None:
        """The cause of the answer: the first of its state, otherwise that of the first gap; ``None`` if not known."""
        if self.state in (State.BAD, State.WARN):
            return next((cause for cause in self.causes if cause.state is self.state), None)
        return next((self.causes[place] for gap in self.gaps for place in gap.causes), None)

    @property
    def proven(self) -> frozenset[int]:
        """The measurements of the causes that are faults, by their indices."""
        return frozenset(n for cause in self.causes if cause.state is State.BAD for n in cause.measurements)

    @property
    def excused(self) -> frozenset[int]:
        """The measurements that are slow only while others used the GPU or the host, by their indices."""
        return frozenset(n for gap in self.gaps if gap.kind is GapKind.EXCUSED for n in gap.measurements)

    @property
    def fault(self) -> str | None:
        """The first inconsistency, as half a sentence that begins with the key; ``None`` if there is none."""
        if any(not 0 <= place < len(self.causes) for gap in self.gaps for place in gap.causes):
            return "answer.gaps: one is of a cause that is not there"
        return None


UNANSWERED = Answer(state=State.INCOMPLETE, word="NOT DETERMINED", sentence="it was not judged")
"""The answer of a result that nothing has judged yet. It never passes."""


def worst(states: Iterable[State]) -> State:
    """Return the worst state; without any, ``good``."""
    return min(states, key=list(State).index, default=State.GOOD)
