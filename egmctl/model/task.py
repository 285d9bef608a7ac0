"""The vocabulary of the bench (handles, engines, patterns, axes) and its tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.record import BusId, Plain
from egmctl.model.route import Carrier, MemoryKind, Route
from egmctl.units import format_size, several


class HandleKind(StrEnum):
    """The handles by which one process opens memory of another."""

    LEGACY = "legacy"
    """cuIpcGetMemHandle and cuIpcOpenMemHandle."""
    POSIX_FD = "posix-fd"
    """cuMemExportToShareableHandle to a file descriptor, which is sent over a socket."""
    POOL = "pool"
    """cuMemPoolExportToShareableHandle to a file descriptor, and cuMemPoolExportPointer."""
    POOL_FABRIC = "pool-fabric"
    """cuMemPoolExportToShareableHandle to a fabric handle, and cuMemPoolExportPointer."""
    FABRIC = "fabric"
    """cuMemExportToShareableHandle to a fabric handle of 64 bytes, valid on every node of an IMEX domain."""


class Engine(StrEnum):
    """The engines that move the bytes."""

    COPY_ENGINE = "ce"
    """cuMemcpyAsync."""
    SM_COPY = "sm-copy"
    """A kernel that reads and writes."""
    SM_READ = "sm-read"
    """A kernel that only reads, and sums the words."""
    SM_WRITE = "sm-write"
    """A kernel that only writes."""
    BULK = "bulk"
    """A kernel that moves chunks through shared memory with bulk copies (TMA)."""
    ATOMIC = "atomic"
    """A kernel that atomically adds to every word without using the result."""
    ATOMIC_LATENCY = "atomic-latency"
    """A single-thread kernel that atomically adds to one counter after another, and waits for each result."""
    CPU = "cpu"
    """Threads bound to the CPUs of a NUMA node: a lower bound of the CPUs' bandwidth."""
    CPU_TRIAD = "cpu-triad"
    """STREAM's triad, a = b + factor * c, in machine code by threads on all CPUs of a NUMA node."""
    CPU_CHASE = "cpu-chase"
    """One CPU thread that follows a chain of addresses."""
    CHASE = "chase"
    """A single-thread kernel that follows a chain of offsets."""
    CHASE_BULK = "chase-bulk"
    """The same by bulk loads (TMA) of 16 bytes into shared memory."""
    PING_PONG = "ping-pong"
    """Single-thread kernels on two GPUs that wait for each other's flag."""
    EVENT = "event"
    """Two processes that wait for each other's interprocess event."""
    SOCKET = "socket"
    """Two processes that wait for each other's message: the part of an event's round trip without the event."""
    UCX = "ucx"
    """Messages between two processes over the transport that UCX selects."""
    UCX_PUT = "ucx-put"
    """One-sided UCX: the sender writes to memory that the receiver has registered."""
    UCX_GET = "ucx-get"
    """One-sided UCX: the receiver reads from memory that the sender has registered."""
    LIFE_CYCLE = "life-cycle"
    """No engine: memory is exported, sent, opened, mapped, touched and closed."""


CPU_ENGINES = frozenset({Engine.CPU, Engine.CPU_TRIAD, Engine.CPU_CHASE})
"""The engines of CPU threads, without a GPU that issues the work."""
UCX_ENGINES = frozenset({Engine.UCX, Engine.UCX_PUT, Engine.UCX_GET})
"""The engines that use UCX, between two processes."""


class Pattern(StrEnum):
    """The flows that one task runs at the same time."""

    PAIR = "pair"
    """One source and one destination."""
    BOTH_DIRECTIONS = "both-directions"
    """One pair in both directions."""
    LOCAL = "local"
    """One GPU's memory is source and destination."""
    RING = "ring"
    """Each GPU to the next one, the last to the first."""
    ONE_TO_ALL = "one-to-all"
    """From one GPU to each of the others."""
    ALL_TO_ONE = "all-to-one"
    """From each of the other GPUs to one."""
    BISECT = "bisect"
    """From each GPU to the one N/2 further on."""
    ALL_PAIRS = "all-pairs"
    """From each GPU to every other GPU."""
    ONE_NODE = "everyone-to-one-node"
    """Between every GPU and the memory of one NUMA node."""
    OWN_NODE = "own-node"
    """Between every GPU and the memory of its nearest NUMA node."""
    OWN_NODE_BOTH = "own-node-both-directions"
    """The same in both directions."""
    LOADED = "loaded"
    """A latency while other threads of the same GPU load the same path."""


class Quantity(StrEnum):
    """The quantities that tasks measure."""

    BANDWIDTH = "bandwidth"
    LATENCY = "latency"
    DURATION = "duration"
    """The durations of the stages of a handle's life cycle."""

    @property
    def unit(self) -> str:
        """The unit of the quantity; GB/s is 1e9 bytes per second. Empty if only a newer version knows the quantity."""
        return {Quantity.BANDWIDTH: "GB/s", Quantity.LATENCY: "ns", Quantity.DURATION: "ms"}.get(self, "")


class ChaseOrder(StrEnum):
    """The orders in which a pointer chase visits the lines of its buffer."""

    RANDOM = "random"
    SEQUENTIAL = "sequential"


class Axis(StrEnum):
    """The axes along which a case can be measured: the fields of :class:`Point`."""

    SIZE = "size"
    SMS = "sms"
    FOOTPRINT = "footprint"
    LOAD = "load"
    STREAMS = "streams"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point on the axes of a case; ``None`` on an axis selects the case's default."""

    size: int | None = None
    """The bytes of each buffer or message."""
    sms: int | None = None
    """The number of blocks of the kernel that moves the bytes, one per multiprocessor (SM). 0: one on every SM of a GPU
    that does not report their number."""
    footprint: int | None = None
    """The bytes that a pointer chase visits."""
    load: int | None = None
    """The number of blocks of the kernel that loads the same path; 0: the path is idle."""
    streams: int | None = None
    """The number of CUDA streams that share the copies of each flow."""

    def __str__(self) -> str:
        return ", ".join(f"{_AXIS_WORDS[axis](value)}" for axis in Axis if (value := self.at(axis)) is not None)

    def at(self, axis: Axis) -> int | None:
        """Return the value on an axis."""
        value: int | None = getattr(self, axis.value)
        return value

    @property
    def unsized(self) -> Point:
        """The same point without a size, for references of profiles, which apply to all large buffers."""
        return replace(self, size=None)

    @property
    def one_path(self) -> bool:
        """Whether one path per kind of route suffices: any series except one by size characterises the link."""
        return self.unsized != Point()


_AXIS_WORDS: Mapping[Axis, Callable[[int], str]] = {
    Axis.SIZE: format_size,
    Axis.SMS: lambda sms: several(sms, "SM") if sms else "all SMs",
    Axis.FOOTPRINT: format_size,
    Axis.LOAD: lambda blocks: several(blocks, "block"),
    Axis.STREAMS: lambda streams: several(streams, "stream"),
}


USUAL = Point()
"""The point of every case that leaves all axes at their defaults."""


def named(case: str, point: Point) -> str:
    """Return the name of a case at a point: ``device_local_copy_tma 16 SMs``."""
    return f"{case} {point}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One end of a flow: a kind of memory on a GPU or NUMA node."""

    memory: MemoryKind
    label: Plain
    """The display label: ``GPU0``, ``NUMA1``, ``CPU1`` (threads of that node)."""
    bus_id: BusId | None = None
    """The GPU, for device memory and a GPU's registers."""
    numa_node: int | None = None
    """The NUMA node, for host memory and a CPU's registers."""
    rank: int | None = None
    """The rank that allocated the memory, in a measurement between several processes (``RunReport.ranks``)."""
    handle: HandleKind | None = None
    """The handle by which the issuing process opened the memory; ``None`` if the memory is its own."""
    allocated_by: BusId | None = None
    """The GPU whose context was current when this host memory was allocated, if the case chooses it, or the only GPU of
    the allocating process; else ``None``. EGM memory belongs to one GPU (:mod:`egmctl.topology.routes`)."""
    allocated_by_label: Plain | None = None
    parts: int | None = None
    """The number of equal parts, one per flow, of one allocation that its process maps for the node's CPUs and all GPUs
    and that the issuing processes import as a whole. ``None``: an allocation per flow, which its process maps
    for one GPU. Importers map memory from cuMemCreate for all GPUs of their node in either case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """One stream of bytes from a source to a destination."""

    source: Endpoint
    destination: Endpoint
    initiator: BusId | None
    """The GPU whose context issues the work: it writes to the destination (push) or reads from the source (pull).
    ``None`` for CPU threads."""
    initiator_label: Plain
    initiator_rank: int | None = None
    """The rank that issues the work, in a measurement between several processes."""
    route: Route
    """The expected route of the bytes."""

    @property
    def pushed(self) -> bool:
        """Whether the initiator is at the source, by rank if set, because bus ids are unique per node only."""
        if self.initiator_rank is not None:
            return self.source.rank == self.initiator_rank
        return self.source.bus_id == self.initiator

    @property
    def sent(self) -> bool:
        """Whether the bytes leave the initiating GPU; a kernel that only writes sends, one that only reads receives."""
        if self.source.memory is MemoryKind.REGISTERS:
            return True
        return self.destination.memory is not MemoryKind.REGISTERS and self.pushed

    @property
    def path(self) -> str:
        """Both endpoints, with the GPU that issues the work if it is neither."""
        by = f" by {self.initiator_label}" if self.through_gpu else ""
        return f"{self.source.label} -> {self.destination.label}{by}"

    @property
    def through_gpu(self) -> bool:
        """Whether a GPU moves bytes between two host memories."""
        on_host = self.source.bus_id is None and self.destination.bus_id is None
        return on_host and self.initiator is not None and self.route.carrier is not Carrier.UCX


@dataclass(frozen=True, slots=True, kw_only=True)
class Chase:
    """The method of a latency measurement: see ``docs/measurement.md``."""

    order: ChaseOrder
    stride_bytes: int
    """The distance between the lines, each of which contains one link of the chain."""
    warm: bool
    """Whether the buffer is walked once before the timed walk. If it fits, it is then in the owner's L2 cache."""
    loads: int
    """The number of loads or round trips per sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One measurement to make: flows that run at the same time, and the method."""

    case: Plain
    """The name of the case; that of nvbandwidth if it has one."""
    point: Point = USUAL
    """The point on the axes of the case. Case and point name a measurement."""
    family: Plain
    quantity: Quantity
    engine: Engine
    pattern: Pattern
    flows: tuple[Flow, ...]
    """At least one flow: a pair has one, both directions have two, a ring of N has N."""
    counted: Plain
    """A phrase for the bytes that the bandwidth counts."""
    size_bytes: int
    """The size of each flow's buffer at either end; for a latency, the bytes that the chase visits."""
    copies: int
    """The number of times that each flow moves ``size_bytes`` in one sample, sequentially."""
    rotated_bytes: int = 0
    """The least size of a buffer, in slots of ``size_bytes`` that copies move in turn, so that the L2 cache of a GPU
    does not serve them; 0 for the usual one (:data:`egmctl.bench.buffers.ROTATED_OVER_BYTES`)."""
    chase: Chase | None = None
    """The method of a latency, else ``None``."""

    @property
    def name(self) -> str:
        """The name of the case at its point."""
        return named(self.case, self.point)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that take part in a measurement between several processes; empty for a single process."""
        numbers = (
            number for flow in self.flows for number in (flow.initiator_rank, flow.source.rank, flow.destination.rank)
        )
        return tuple(dict.fromkeys(number for number in numbers if number is not None))

    @property
    def path(self) -> str:
        """The endpoints: ``GPU0 -> GPU1``, ``GPU0 <-> GPU1``, ``GPU0,GPU1 -> NUMA0``; for one flow, its path."""
        if len(self.flows) == 1:
            return self.flows[0].path
        source, destination = self.ends
        return f"{source} {'<->' if self.pattern is Pattern.BOTH_DIRECTIONS else '->'} {destination}"

    @property
    def ends(self) -> tuple[str, str]:
        """The labels of the sources and of the destinations; for both directions, those of the first flow."""
        flows = self.flows[:1] if self.pattern is Pattern.BOTH_DIRECTIONS else self.flows
        sources = ",".join(dict.fromkeys(flow.source.label for flow in flows))
        return sources, ",".join(dict.fromkeys(flow.destination.label for flow in flows))


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedTask:
    """A task, and its place in the plan."""

    number: int
    task: Task
