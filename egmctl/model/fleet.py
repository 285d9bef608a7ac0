"""The results of ``egmctl fleet``: the outcome on each node, and groups of nodes with the same result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from egmctl.compat import StrEnum
from egmctl.errors import ExitCode
from egmctl.model.bringup import ANSWER_CODES, Answer
from egmctl.model.comparison import Comparison, Outcome
from egmctl.model.measurement import RunReport
from egmctl.model.record import Command, Plain, Shown
from egmctl.units import format_kernel_list, grouped


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
    domain_gpus: int | None = None
    """The number of GPUs that the domain must have, of ``--expect domain-gpus=N``."""


class Unready(StrEnum):
    """The kinds of reasons why GPUs of a fleet are not ready."""

    OUTSIDE = "outside"
    """They are in no NVLink domain, or in another one than those of other nodes."""
    FAULT = "fault"
    """A finding failed."""
    MISSING = "missing"
    """The node has fewer GPUs than most nodes."""
    UNKNOWN = "unknown"
    """The node did not answer, or answered that its state or domain is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetGpu:
    """The state of one GPU of a node: whether it is ready, and what is wrong with it."""

    index: int | None = None
    """The number in ``GPU2``; ``None`` for a GPU that was expected and not read."""
    kind: Unready | None = None
    """Why it is not ready; ``None`` if it is."""
    reason: str = ""
    """The finding, or the slowest path that no other GPU explains; a warning if it is ready; the node's
    :class:`Reach` if it is unknown."""
    clique_id: int | None = None
    """Its clique, if it is outside the domain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """The outcome on one node."""

    node: str
    reach: Reach
    exit_code: int
    """The exit code that counts for the node: that of egmctl if it answered or failed, or 1 if the node is outside the
    NVLink domain of the others; 130 if it was stopped or not queried because of an interruption, else 4."""
    reason: str = ""
    """The reason why there is no document, with the launcher's message."""
    version: str = ""
    """The output of ``egmctl --version`` on the node; empty if it was not queried."""
    duration_s: float | None = None
    file: str = ""
    """The node's document, relative to the folder. If the command was stopped, it contains the result until then."""
    gpus: tuple[FleetGpu, ...] = ()
    """The GPUs of the node, those of a silent node as assumed; empty unless doctor, bringup or bench was run."""
    domain: Plain = ""
    """The NVLink domain of its GPUs, by cluster and clique; empty if they are in none that is expected."""

    @property
    def state(self) -> NodeState:
        """The state by reach and exit code."""
        if self.reach is not Reach.ANSWERED:
            return NodeState.UNREACHABLE
        known = {int(ExitCode.OK): NodeState.HEALTHY, int(ExitCode.NOTHING): NodeState.NOT_DETERMINED}
        return known.get(self.exit_code, NodeState.FAILED)

    @property
    def by_state(self) -> Iterator[tuple[str, int, FleetGpu]]:
        """The label of the GPUs in each state, empty if they are all of the node; their number; the state."""
        for state, gpus in grouped((replace(gpu, index=None), gpu) for gpu in self.gpus).items():
            numbers = [gpu.index for gpu in gpus if gpu.index is not None]
            is_part = numbers and len(gpus) < len(self.gpus)
            yield f"GPU{format_kernel_list(numbers)}" if is_part else "", len(gpus), state


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
class UnreadyGpus:
    """GPUs that are not ready for one reason. A GPU with several reasons counts for the first one."""

    kind: Unready
    nodes: tuple[str, ...] = ()
    folded: str = ""
    """The nodes in short form."""
    gpus: int = 0
    """Their number on all these nodes; on silent nodes an assumption: as many as most nodes have."""
    label: Plain = ""
    """The GPUs on each node: ``GPU2``; empty for all of the node."""
    clique_id: int | None = None
    """Their clique, if they are outside the domain."""
    reason: str = ""
    """The summary of the finding; if it is unknown, the node's :class:`Reach`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """The GPUs of a fleet in NVLink domains, and those that are not ready."""

    gpus: int
    """The number of GPUs on all nodes, with those assumed."""
    ready: int
    expected: int | None = None
    """The number of GPUs that the domain must have, of ``--expect domain-gpus=N``."""
    domains: int
    """The number of cliques, one in each NVLink domain, that the GPUs are expected in."""
    unready: tuple[UnreadyGpus, ...] = ()

    @property
    def outside(self) -> frozenset[str]:
        """The nodes with GPUs outside the NVLink domain."""
        return frozenset(node for item in self.unready if item.kind is Unready.OUTSIDE for node in item.nodes)

    @property
    def answer(self) -> Answer:
        """Whether the domain is ready; ``INCOMPLETE`` if all GPUs that are not ready are unknown."""
        if self.expected not in (None, self.gpus) or any(item.kind is not Unready.UNKNOWN for item in self.unready):
            return Answer.NO_GO
        return Answer.INCOMPLETE if self.unready else Answer.GO


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The measurement between the GPUs of all nodes, by the ranks of an MPI job."""

    answer: Answer
    """``GO`` if every path was measured and is as fast as expected."""
    run: RunReport | None = None
    """The run, without its machines; null if it could not begin."""
    reason: str = ""
    """The reason why there is no run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport(Shown):
    """One run of ``egmctl fleet``."""

    SCHEMA: ClassVar[str] = "egmctl.fleet/2"

    asked: Asked
    folded: str
    """The names of all nodes in short form."""
    launcher: Launcher | None
    """The program that started the command on each node; null: its ranks are an MPI job (:attr:`fabric`)."""
    folder: str
    """The folder of the results; empty for an MPI job."""
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
    readiness: Readiness | None = None
    """The GPUs of ``doctor`` and ``bringup`` by NVLink domain; null if none is in one and none is expected."""
    fabric: Fabric | None = None
    """What an MPI job measured between the nodes; null for other launchers."""

    @property
    def exit_code(self) -> ExitCode:
        """The most severe of the codes of the nodes, the comparison and the NVLink domain (``docs/exit-codes.md``).

        Of two nodes, the first is no better reference than the second, so a difference in either direction counts.
        """
        return worst_exit_code(self._codes)

    @property
    def answer(self) -> Answer:
        """Whether all nodes and the fabric between them can be handed over."""
        if ExitCode.FAILED in self._codes:
            return Answer.NO_GO
        return Answer.GO if self.exit_code is ExitCode.OK else Answer.INCOMPLETE

    @property
    def _codes(self) -> list[int]:
        codes = [answer.exit_code for answer in self.answers]
        if self.comparison is not None:
            grave = {Outcome.WORSE} if self.comparison.of_nodes else {Outcome.WORSE, Outcome.BETTER}
            codes += [ExitCode.FAILED] if grave & {*self.comparison.outcomes} else []
        codes += [ANSWER_CODES[self.readiness.answer]] if self.readiness else []
        codes += [ANSWER_CODES[self.fabric.answer]] if self.fabric else []
        return [*codes, *([self.fabric.run.exit_code] if self.fabric and self.fabric.run else [])]


def worst_exit_code(codes: Iterable[int]) -> ExitCode:
    """Return the most severe exit code. A code that egmctl does not define counts as a crash."""
    order = (ExitCode.OK, ExitCode.NOTHING, ExitCode.FAILED, ExitCode.USAGE, ExitCode.CRASHED, ExitCode.INTERRUPTED)
    known = [ExitCode(code) if code in order else ExitCode.CRASHED for code in codes]
    return max(known, key=order.index, default=ExitCode.OK)


def counts(answers: Iterable[NodeAnswer]) -> dict[str, int]:
    """Return the number of nodes by outcome, in the order of :class:`Reach`, without zeros."""
    reached = Counter(answer.reach for answer in answers)
    return {reach.value: reached[reach] for reach in Reach if reached[reach]}
