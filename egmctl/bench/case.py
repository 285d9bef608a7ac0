"""The types and descriptions of cases, which the files of ``cases/`` define, and the axes of series."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.route import HOST_MEMORY, MemoryKind
from egmctl.model.task import UCX_ENGINES, Axis, Chase, ChaseOrder, Engine, HandleKind, Pattern, Point, Quantity
from egmctl.units import format_size

ALL_SMS = 0
"""The value of :attr:`Point.sms` for one block on each multiprocessor of the GPU."""

BY_SMS = tuple(Point(sms=sms) for sms in (1, 2, 4, 8, 16, 32, 64, ALL_SMS))
BY_STREAMS = tuple(Point(streams=streams) for streams in (1, 2, 4, 8))


class End(StrEnum):
    """One end of a flow."""

    SOURCE = "source"
    DESTINATION = "destination"


class Processes(StrEnum):
    """The processes that measure a case together."""

    ONE = "one"
    """The worker, one process for all GPUs."""
    NODE = "node"
    """One process per GPU of the node, and one per NUMA node that exports memory for all (:attr:`Case.for_all`). UCX
    messages also go between the nodes of a job."""
    JOB = "job"
    """One process per GPU of all nodes of a run (:mod:`egmctl.bench.plan.fabric`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The bytes that a chase visits: the larger of two minimums."""

    least_bytes: int
    l2_times: int = 0
    """The other minimum, in sizes of the L2 cache of the GPU that owns the memory or, for host memory, reads it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A combination of memory, engine and pattern to measure if it applies; a new case is a line in ``cases/``."""

    name: str
    """The name. It follows nvbandwidth for cases that nvbandwidth has, so that the numbers can be compared."""
    family: str
    source: MemoryKind
    """The source of every flow; in a bidirectional case, the destination of the second flow."""
    destination: MemoryKind
    engine: Engine
    initiator: End
    """The end whose GPU issues the work if both ends are GPUs."""
    _: KW_ONLY
    pattern: Pattern = Pattern.PAIR
    points: tuple[Point, ...] = (Point(),)
    """The points at which the case is measured, in order. A suite or ``--sweep`` may choose others."""
    quantity: Quantity = Quantity.BANDWIDTH
    chase: Chase | None = None
    """The loads or round trips of a latency."""
    footprint: Footprint | None = None
    """The size of a latency's buffers; that of a bandwidth's is a setting."""
    processes: Processes = Processes.ONE
    handle: HandleKind | None = None
    """The handle by which the process that issues the work opens the other process' memory."""
    in_process: str | None = None
    """The name of the case that measures the same path within one process."""
    by_owner: bool = False
    """Whether host memory is allocated under each GPU of its NUMA node in turn and measured by each GPU of the node."""
    for_all: bool = False
    """Whether a process of its own exports one allocation of host memory, mapped for the CPUs and for all GPUs, which
    the process of each GPU imports."""
    staged: bool = False
    """Whether peer access between the two GPUs stays off, so that the driver copies through host memory."""
    one_path: bool = False
    """Whether one path of each kind of route is enough. Suites set this for cases that compare kinds of memory."""

    def memory(self, end: End) -> MemoryKind:
        """Return the kind of memory at an end."""
        return self.source if end is End.SOURCE else self.destination

    @property
    def description(self) -> str:
        """A phrase that says what is measured."""
        return _description(self)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes along which the case can be measured."""
        return tuple(axis for axis in Axis if self.along(axis))

    def along(self, axis: Axis) -> tuple[Point, ...]:
        """Return the points of a series along an axis; none if the case does not have the axis.

        A series by size has one point without a value, because sizes depend on the machine
        (:func:`egmctl.bench.plan.make.sized`).
        """
        alone = self.processes is Processes.ONE and self.pattern in (Pattern.PAIR, Pattern.LOCAL) and not self.staged
        match axis:
            case Axis.SIZE:
                return (Point(),) if self.quantity is Quantity.BANDWIDTH else ()
            case Axis.SMS:
                return BY_SMS if alone and self.engine in (Engine.SM_COPY, Engine.BULK) else ()
            case Axis.STREAMS:
                return BY_STREAMS if alone and self.engine is Engine.COPY_ENGINE else ()
            case _:
                return tuple(point for point in self.points if point.at(axis) is not None)


_MEMORY: Mapping[MemoryKind, str] = {
    MemoryKind.DEVICE: "device memory",
    MemoryKind.DEVICE_DEFAULT_POOL: "memory from a GPU's default pool",
    MemoryKind.GPU_NUMA: "a GPU's memory as a NUMA node of the host",
    MemoryKind.HOST_NUMA: "HOST_NUMA memory",
    MemoryKind.HOST_NUMA_POOL: "HOST_NUMA memory from a pool",
    MemoryKind.HOST_NUMA_DEFAULT_POOL: "HOST_NUMA memory from the node's default pool",
    MemoryKind.HOST_DEFAULT_POOL: "memory from the host's default pool",
    MemoryKind.PINNED: "pinned memory",
    MemoryKind.REGISTERED: "registered memory",
    MemoryKind.HUGETLB: "registered memory of huge pages",
    MemoryKind.THP: "registered memory of transparent huge pages",
    MemoryKind.MANAGED: "managed memory",
    MemoryKind.SYSTEM: "plain memory",
}
_BY: Mapping[Engine, str] = {
    Engine.COPY_ENGINE: "copied by the copy engine",
    Engine.SM_COPY: "copied by a kernel",
    Engine.BULK: "copied by bulk copies (TMA)",
    Engine.SM_READ: "only read by a kernel",
    Engine.SM_WRITE: "only written by a kernel",
    Engine.ATOMIC: "each word added to by a kernel",
    Engine.ATOMIC_LATENCY: "round trip of an atomic addition by one thread",
    Engine.PING_PONG: "round trip of a flag between kernels of two GPUs",
    Engine.EVENT: "round trip of interprocess events and the messages that announce them",
    Engine.SOCKET: "round trip of a message alone: the lower bound for events",
    Engine.UCX: "messages by UCX",
    Engine.UCX_PUT: "one-sided put by UCX",
    Engine.UCX_GET: "one-sided get by UCX",
    Engine.LIFE_CYCLE: "each stage from allocation to free",
}
AT_ONCE: Mapping[Pattern, str] = {
    Pattern.RING: ", each to the next one, all at once",
    Pattern.BISECT: ", each to the one N/2 on, all at once",
    Pattern.BOTH_DIRECTIONS: ", both directions at once",
    Pattern.ONE_TO_ALL: ", one to all others at once",
    Pattern.ALL_TO_ONE: ", all others to one at once",
    Pattern.ALL_PAIRS: ", all pairs at once",
    Pattern.ONE_NODE: ", all GPUs at once",
    Pattern.OWN_NODE: ", every GPU with its own NUMA node at once",
    Pattern.OWN_NODE_BOTH: ", every GPU with its own NUMA node in both directions at once",
}
"""The phrases, in tables and lists, for the flows that a pattern runs at the same time."""
HANDLES: Mapping[HandleKind, str] = {
    HandleKind.LEGACY: "legacy handle",
    HandleKind.POSIX_FD: "file descriptor",
    HandleKind.POOL: "file descriptor of its pool",
    HandleKind.POOL_FABRIC: "fabric handle of its pool",
    HandleKind.FABRIC: "fabric handle",
}


def _description(case: Case) -> str:
    moved = " to ".join(_end(case, end) for end in End if case.memory(end) is not MemoryKind.REGISTERS)
    if case.engine in (Engine.CHASE, Engine.CHASE_BULK):
        by = " by bulk loads (TMA)" if case.engine is Engine.CHASE_BULK else ""
        text = f"latency of {moved}{by}: {_chase(case)}"
    elif case.engine is Engine.CPU_CHASE:
        text = f"latency of {moved}: {_chase(case)} by a CPU thread"
    elif case.engine is Engine.CPU:
        verb = "read" if case.destination is MemoryKind.REGISTERS else "written"
        text = f"{moved}, {verb} by CPU threads of each NUMA node: a lower bound"
    elif case.engine is Engine.CPU_TRIAD:
        text = f"STREAM's triad in {moved} by all CPUs of its NUMA node"
    elif case.engine in (Engine.EVENT, Engine.SOCKET):
        text = _BY[case.engine]
    elif case.quantity is Quantity.LATENCY and case.engine in UCX_ENGINES:
        text = f"round trip of 16 bytes by UCX, {moved}"
    elif case.engine is Engine.COPY_ENGINE and {case.source, case.destination} <= set(HOST_MEMORY):
        text = f"{moved}, copied by cuMemcpyAsync (copy engine or CPU, as the driver chooses)"
    elif case.quantity is Quantity.BANDWIDTH and case.engine not in UCX_ENGINES:
        text = f"{moved}, {_BY[case.engine]}{_side(case)}"
    else:
        text = f"{_BY[case.engine]}: {moved}"
    both = AT_ONCE.get(case.pattern, "") if case.quantity is Quantity.BANDWIDTH else ""
    loaded = ", while other blocks of the same GPU read it" if case.pattern is Pattern.LOADED else ""
    owner = ", allocated under each GPU of the node: which of them owns it" if case.by_owner else ""
    mapped = ", one allocation mapped for the CPUs and all GPUs" if case.for_all else ""
    return text + mapped + both + loaded + owner


def _end(case: Case, end: End) -> str:
    """Return a phrase for the memory at an end, with its owner if that is another GPU or process."""
    memory = case.memory(end)
    if case.pattern is Pattern.LOCAL:
        return "the same GPU's" if end is End.DESTINATION and memory is case.source else _MEMORY[memory]
    if end is case.initiator and MemoryKind.REGISTERS not in (case.source, case.destination):
        return _MEMORY[memory]
    if case.processes is not Processes.ONE:
        opened = f" opened by {HANDLES[case.handle]}" if case.handle is not None else ""
        return f"another process' {_MEMORY[memory]}{opened}"
    if case.staged:
        return "another GPU's without peer access, through host memory"
    return f"a peer's {_MEMORY[memory]}" if memory not in (*HOST_MEMORY, MemoryKind.GPU_NUMA) else _MEMORY[memory]


def _side(case: Case) -> str:
    """Return a phrase for the one of two GPUs that issues the work."""
    if {case.source, case.destination} - {MemoryKind.DEVICE} or case.pattern is Pattern.LOCAL:
        return ""
    return " of the source (push)" if case.initiator is End.SOURCE else " of the destination (pull)"


def _chase(case: Case) -> str:
    """Return a phrase for the lines that a chase reads."""
    if case.chase is None or case.footprint is None:
        return "random lines"
    size = f"{case.footprint.l2_times} x L2" if case.footprint.l2_times else format_size(case.footprint.least_bytes)
    if case.chase.order is ChaseOrder.SEQUENTIAL:
        return f"{size} line after line, as nvbandwidth reads it"
    return f"random lines of {size}, {'read once before' if case.chase.warm else 'each read once'}"
