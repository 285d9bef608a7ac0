"""The results of ``egmctl fleet``: the outcome on each node, and groups of nodes with the same result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import ClassVar

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.answer import UNANSWERED, Answer, State
from egmctl.model.comparison import Comparison
from egmctl.model.finding import Status
from egmctl.model.measurement import RunReport
from egmctl.model.record import BusId, Command, Plain, Shown
from egmctl.model.remedy import Remedy
from egmctl.units import fold, format_kernel_list, grouped, several


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


class Launcher(StrEnum):
    """The programs that start the command on a node."""

    SSH = "ssh"
    SRUN = "srun"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCommand:
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


class Condition(StrEnum):
    """The conditions of a GPU or a node in a fleet, the worst first."""

    FAULT = "fault"
    OUTSIDE = "outside"
    MISSING = "missing"
    UNKNOWN = "unknown"
    WARNING = "warning"
    """It is ready; a finding or a path warns."""
    READY = "ready"


_CONDITIONS = {
    State.BAD: Condition.FAULT,
    State.INTERRUPTED: Condition.UNKNOWN,
    State.BROKE: Condition.UNKNOWN,
    State.INCOMPLETE: Condition.UNKNOWN,
    State.WARN: Condition.WARNING,
    State.GOOD: Condition.READY,
}
"""The condition of a node by the state of its answer."""


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
    share: float | None = None
    """The speed of its slowest path that no other GPU explains, as a share of what the profile expects; null without
    one."""
    links_active: int | None = None
    """The number of its NVLinks that are active, if some are not."""
    links: int | None = None
    """The number of its NVLinks, if some are not active."""

    @property
    def condition(self) -> Condition:
        """Why it is not ready; otherwise, whether something warns."""
        if self.kind is not None:
            return Condition(self.kind)
        return Condition.WARNING if self.reason else Condition.READY


def unready_words(state: FleetGpu | UnreadyGpus, gpus: int) -> str:
    """Return what is wrong with a number of GPUs; empty if they are ready."""
    match state.kind:
        case Unready.OUTSIDE:
            return f"outside the NVLink domain (clique {state.clique_id})"
        case Unready.MISSING:
            return f"{several(gpus, 'GPU')} fewer than on most nodes"
        case Unready.UNKNOWN:
            known = {Reach.ANSWERED.value: "not determined", Reach.UNREACHABLE.value: "cannot be reached"}
            return known.get(state.reason, f"no answer ({state.reason})")
    return state.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    """The outcome on one node."""

    node: str
    reach: Reach
    state: State
    """What counts for the node: the state of its document's answer; ``broke`` without a document, and ``interrupted``
    if it was stopped or not queried because of an interruption."""
    word: Plain = ""
    """The word of its document's answer; empty without a document."""
    sentence: str = ""
    """The sentence of its document's answer; empty without a document."""
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
    slot: int | None = None
    """Its slot in the rack (NVML), for its place in the picture; null if its GPUs do not say."""

    @property
    def condition(self) -> Condition:
        """The worst of its answer and of its GPUs."""
        conditions = [_CONDITIONS[self.state], *(gpu.condition for gpu in self.gpus)]
        return min(conditions, key=list(Condition).index)

    @property
    def by_state(self) -> Iterator[tuple[str, int, FleetGpu]]:
        """The label of the GPUs in each state, empty if they are all of the node; their number; the state."""
        states = ((replace(gpu, index=None, share=None, links_active=None, links=None), gpu) for gpu in self.gpus)
        for state, gpus in grouped(states).items():
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
    place: Plain = ""
    """The label of what the finding is about: ``GPU2``; empty for the node."""
    explains: tuple[Plain, ...] = ()
    """The checks that the finding explains."""
    cause: str = ""
    """Why it is so."""
    remedy: Remedy | None = field(default=None, compare=False)
    """What to do about it, without what differs between the nodes. Nodes are alike whatever it names."""
    status: str = ""
    """``fail``, ``warn`` or ``note``; of an answer also ``incomplete``, ``broke`` or ``interrupted``; or the node's
    :class:`Reach`. Empty if there is no problem."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlikeGpus:
    """GPUs of a node that differ from those of their kind on other nodes."""

    node: str
    label: Plain
    """The GPUs: ``GPU2``; empty for all of the node."""
    gpus: tuple[BusId, ...]
    name: Plain
    """The property: ``ECC``, ``VBIOS``."""
    value: Plain
    usual: Plain | None
    """The value of most GPUs of the kind on all nodes; null if none has a majority."""
    others: str
    """The nodes with the usual value, or all others, in short form."""
    status: Status
    """``warn`` if work that uses all GPUs waits for these, else ``note``."""

    @property
    def slows(self) -> bool:
        """Whether work that uses all GPUs waits for these."""
        return self.status is Status.WARN

    @property
    def words(self) -> str:
        """The difference as a clause."""
        rest = "most differ from it" if self.usual is None else f"it is {self.usual}"
        return f"{self.name} is {self.value}; on {self.others} {rest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricRun:
    """The measurement between the GPUs of all nodes, by the ranks of an MPI job."""

    run: RunReport | None = None
    """The run with its answer and without its machines; null if it could not begin."""
    reason: str = ""
    """The reason why there is no run."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FleetReport(Shown):
    """One run of ``egmctl fleet``."""

    SCHEMA: ClassVar[str] = "egmctl.fleet/3"

    asked: NodeCommand
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
    answers: tuple[NodeResult, ...]
    """In the order of the nodes."""
    groups: tuple[NodeGroup, ...] = ()
    """The largest first; those of nodes that did not answer last."""
    comparison: Comparison | None = None
    """The comparison of the answers; null for fewer than two."""
    unlike: tuple[UnlikeGpus, ...] = ()
    """The GPUs that differ from most of their kind on all nodes, and that their own node cannot name."""
    readiness: Readiness | None = None
    """The GPUs of ``doctor`` and ``bringup`` by NVLink domain; null if none is in one and none is expected."""
    fabric: FabricRun | None = None
    """What an MPI job measured between the nodes; null for other launchers."""
    answer: Answer = UNANSWERED
    """Whether all nodes and the fabric between them can be handed over (:mod:`egmctl.verdict.answers`)."""

    def in_state(self, state: State) -> str:
        """Return the names of the nodes in a state in short form (``--list``)."""
        return fold(node.node for node in self.answers if node.state is state)


def reach_counts(answers: Iterable[NodeResult]) -> dict[str, int]:
    """Return the number of nodes by outcome, in the order of :class:`Reach`, without zeros."""
    reached = Counter(answer.reach for answer in answers)
    return {reach.value: reached[reach] for reach in Reach if reached[reach]}
