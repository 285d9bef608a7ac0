"""The results of ``egmctl fleet``: the outcome on each node, and groups of nodes with the same result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from egmctl.compat import StrEnum
from egmctl.errors import ExitCode
from egmctl.model.comparison import Comparison, Outcome
from egmctl.model.record import Command, Plain


class Reach(StrEnum):
    """The outcomes of querying a node; all but ``answered`` have a reason."""

    ANSWERED = "answered"
    """The node's document is in the folder."""
    FAILED = "failed"
    """egmctl ran on the node and ended without a result."""
    GARBAGE = "garbage"
    """The output is not a document of egmctl."""
    WRONG_VERSION = "wrong-version"
    """The node has another version of egmctl than this command; nothing was run."""
    NO_EGMCTL = "no-egmctl"
    FLOODED = "flooded"
    """The node exceeded the size limit of documents and was stopped."""
    TIMED_OUT = "timed-out"
    """The command on the node timed out and was stopped."""
    LOST = "lost"
    """The connection ended before the remote command did, or its output could not be stored."""
    UNREACHABLE = "unreachable"
    """The launcher could not start a command on the node."""
    INTERRUPTED = "interrupted"
    """The remote command was stopped, on the node or because this command was interrupted."""
    NOT_ASKED = "not-asked"
    """This command was interrupted before it queried the node."""


class NodeState(StrEnum):
    """The state of a node."""

    HEALTHY = "healthy"
    """The node answered, and no problem was found."""
    FAILED = "failed"
    """The node answered and reported a problem."""
    NOT_DETERMINED = "not-determined"
    """The node answered that nothing could be run or determined."""
    UNREACHABLE = "unreachable"
    """The node did not answer; the reason says why."""


class Launcher(StrEnum):
    """The programs that start the command on a node."""

    SSH = "ssh"
    SRUN = "srun"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The command to run on the nodes, which ``--resume`` repeats."""

    command: Command
    arguments: tuple[str, ...] = ()
    """The options of the command, as given after ``--``."""
    nodes: tuple[str, ...]
    remote_command: str
    """The egmctl command on the nodes."""
    version: Plain
    """The required output of ``egmctl --version`` on the nodes; empty if any version is accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """The outcome on one node."""

    node: str
    reach: Reach
    exit_code: int
    """The exit code that counts for the node: that of egmctl if it answered or failed, 130 if it was stopped or not
    queried because of an interruption, else 4."""
    reason: str = ""
    """The reason why there is no document, with the launcher's message."""
    version: str = ""
    """The output of ``egmctl --version`` on the node; empty if it was not queried."""
    duration_s: float | None = None
    file: str = ""
    """The node's document, relative to the folder. If the command was stopped, it contains the result until then."""

    @property
    def state(self) -> NodeState:
        """The state by reach and exit code."""
        if self.reach is not Reach.ANSWERED:
            return NodeState.UNREACHABLE
        known = {int(ExitCode.OK): NodeState.HEALTHY, int(ExitCode.NOTHING): NodeState.NOT_DETERMINED}
        return known.get(self.exit_code, NodeState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLine:
    """One property that the nodes of a group share."""

    key: str
    """The subject: ``egm.cgroup-route GPU0``, ``driver``; empty if the value is sufficient."""
    value: str
    check: str = ""
    """The doctor check."""
    status: str = ""
    """``fail`` or ``warn``, or the node's :class:`Reach`; empty if there is no problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes with the same result. Their other differences are in the comparison."""

    nodes: tuple[str, ...]
    folded: str
    """The nodes in short form: ``node[01-17]``."""
    lines: tuple[GroupLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """One run of ``egmctl fleet``."""

    SCHEMA: ClassVar[str] = "egmctl.fleet/2"

    asked: Asked
    folded: str
    """The names of all nodes in short form."""
    launcher: Launcher
    folder: str
    started_at: Plain
    """UTC, ISO 8601, to the second."""
    finished: bool
    """Whether every node answered, failed or timed out."""
    counts: Mapping[Plain, int]
    """The number of nodes by :class:`Reach`."""
    answers: tuple[NodeAnswer, ...]
    """In the order of the nodes."""
    groups: tuple[NodeGroup, ...] = ()
    """The largest first; those of nodes that did not answer last."""
    comparison: Comparison | None = None
    """The comparison of the answers; null for fewer than two."""

    @property
    def exit_code(self) -> ExitCode:
        """The most severe of the nodes' exit codes and the comparison's (``docs/exit-codes.md``).

        Of two nodes, the first is no better reference than the second, so a difference in either direction counts.
        """
        codes = [answer.exit_code for answer in self.answers]
        if self.comparison is not None:
            grave = {Outcome.WORSE} if self.comparison.of_nodes else {Outcome.WORSE, Outcome.BETTER}
            codes += [ExitCode.FAILED] if grave & {*self.comparison.outcomes} else []
        return worst_exit_code(codes)


def worst_exit_code(codes: Iterable[int]) -> ExitCode:
    """Return the most severe exit code. A code that egmctl does not define counts as a crash."""
    order = (ExitCode.OK, ExitCode.NOTHING, ExitCode.FAILED, ExitCode.USAGE, ExitCode.CRASHED, ExitCode.INTERRUPTED)
    known = [ExitCode(code) if code in order else ExitCode.CRASHED for code in codes]
    return max(known, key=order.index, default=ExitCode.OK)


def counts(answers: Iterable[NodeAnswer]) -> dict[str, int]:
    """Return the number of nodes by outcome, in the order of :class:`Reach`, without zeros."""
    reached = Counter(answer.reach for answer in answers)
    return {reach.value: reached[reach] for reach in Reach if reached[reach]}
