"""The results of ``egmctl fleet``: how each node answered, and which nodes are alike."""

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
    """How asking a node ended; everything but ``answered`` has a reason."""

    ANSWERED = "answered"
    """Its document is in the folder."""
    FAILED = "failed"
    """egmctl ran there and ended without a result."""
    GARBAGE = "garbage"
    """What came back is no document of egmctl's."""
    WRONG_VERSION = "wrong-version"
    """Another version than the one that asks; nothing was run."""
    NO_EGMCTL = "no-egmctl"
    FLOODED = "flooded"
    """It sent more than any document holds, and was stopped."""
    TIMED_OUT = "timed-out"
    """The command there did not end in time, and was stopped."""
    LOST = "lost"
    """The connection ended before the command there did, or what came over it could not be kept here."""
    UNREACHABLE = "unreachable"
    """The launcher got no command started there."""
    INTERRUPTED = "interrupted"
    """The command there was stopped: because this one was interrupted, or by somebody there."""
    NOT_ASKED = "not-asked"
    """Its turn had not come when this command was interrupted."""


class NodeState(StrEnum):
    """How it stands with a node."""

    HEALTHY = "healthy"
    """It answered, and nothing is wrong there."""
    FAILED = "failed"
    """It answered that something is wrong."""
    NOT_DETERMINED = "not-determined"
    """It answered that nothing could be run or determined there."""
    UNREACHABLE = "unreachable"
    """It did not answer; the reason says how."""


class Launcher(StrEnum):
    """How to start the command on a node."""

    SSH = "ssh"
    SRUN = "srun"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The question to the nodes, which ``--resume`` repeats."""

    command: Command
    arguments: tuple[str, ...] = ()
    """Options of the command, as they were given after ``--``."""
    nodes: tuple[str, ...]
    remote_command: str
    """egmctl on the nodes."""
    version: Plain
    """What ``egmctl --version`` had to say there; empty: any version was welcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """How asking one node ended."""

    node: str
    reach: Reach
    exit_code: int
    """What it counts as: the exit code of egmctl there where it answered or failed, else 4; of a node that was stopped
    or not asked because of an interruption 130."""
    reason: str = ""
    """Why there is no document, in words, with what the launcher said."""
    version: str = ""
    """What ``egmctl --version`` said there; empty where it was not asked."""
    duration_s: float | None = None
    file: str = ""
    """Its document, relative to the folder; of a command that was stopped, what it had until then."""

    @property
    def state(self) -> NodeState:
        """How it stands with the node."""
        if self.reach is not Reach.ANSWERED:
            return NodeState.UNREACHABLE
        known = {int(ExitCode.OK): NodeState.HEALTHY, int(ExitCode.NOTHING): NodeState.NOT_DETERMINED}
        return known.get(self.exit_code, NodeState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLine:
    """One thing that a group of nodes has in common."""

    key: str
    """What it is about: ``egm.cgroup-route GPU0``, ``driver``; empty where the value says it."""
    value: str
    check: str = ""
    """The check of doctor that it was."""
    status: str = ""
    """``fail`` or ``warn``, or how asking ended; empty where nothing is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes on which it stands alike; what they differ in beyond that is in the comparison."""

    nodes: tuple[str, ...]
    folded: str
    """The nodes in short: ``node[01-17]``."""
    lines: tuple[GroupLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """One run of ``egmctl fleet``."""

    SCHEMA: ClassVar[str] = "egmctl.fleet/2"

    asked: Asked
    folded: str
    """All nodes in short."""
    launcher: Launcher
    folder: str
    started_at: Plain
    """UTC, ISO 8601, to the second."""
    finished: bool
    """Whether every node was asked until it answered, failed or ran out of time."""
    counts: Mapping[Plain, int]
    """Number of nodes by how asking them ended."""
    answers: tuple[NodeAnswer, ...]
    """In the order of the nodes."""
    groups: tuple[NodeGroup, ...] = ()
    """The largest first, those that did not answer last."""
    comparison: Comparison | None = None
    """What ``egmctl compare`` says of the answers; null of fewer than two."""

    @property
    def exit_code(self) -> ExitCode:
        """The worst of the nodes' exit codes and of the comparison's (``docs/exit-codes.md``).

        Of two nodes the first is no better reference than the second: if one is worse than the other, that counts.
        """
        codes = [answer.exit_code for answer in self.answers]
        if self.comparison is not None:
            grave = {Outcome.WORSE} if self.comparison.of_nodes else {Outcome.WORSE, Outcome.BETTER}
            codes += [ExitCode.FAILED] if grave & {*self.comparison.outcomes} else []
        return worst_exit_code(codes)


def worst_exit_code(codes: Iterable[int]) -> ExitCode:
    """Return the gravest of exit codes; one that is none of egmctl's is a crash."""
    order = (ExitCode.OK, ExitCode.NOTHING, ExitCode.FAILED, ExitCode.USAGE, ExitCode.CRASHED, ExitCode.INTERRUPTED)
    known = [ExitCode(code) if code in order else ExitCode.CRASHED for code in codes]
    return max(known, key=order.index, default=ExitCode.OK)


def counts(answers: Iterable[NodeAnswer]) -> dict[str, int]:
    """Return the number of nodes by how asking them ended, in the order of :class:`Reach`, without zeros."""
    reached = Counter(answer.reach for answer in answers)
    return {reach.value: reached[reach] for reach in Reach if reached[reach]}
