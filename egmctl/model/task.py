"""The vocabulary of the bench, memory, engines and patterns, and the tasks that are made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from egmctl.compat import StrEnum
from egmctl.model.record import BusId, Plain
from egmctl.model.route import Carrier, MemoryKind, Route
from egmctl.units import format_size, several


class HandleKind(StrEnum):
    """How one process opens memory that another one has made."""

    LEGACY = "legacy"
    """cuIpcGetMemHandle and cuIpcOpenMemHandle."""
    POSIX_FD = "posix-fd"
    """cuMemExportToShareableHandle to a file descriptor, which goes over a socket."""
    POOL = "pool"
    """cuMemPoolExportToShareableHandle to a file descriptor, and cuMemPoolExportPointer."""
    POOL_FABRIC = "pool-fabric"
    """The same with a fabric handle of the pool in place of the file descriptor."""
    FABRIC = "fabric"
    """cuMemExportToShareableHandle to 64 bytes that are good on every node of an IMEX domain."""


class Engine(StrEnum):
    """The means that move the bytes."""

    COPY_ENGINE = "ce"
    """cuMemcpyAsync."""
    SM_COPY = "sm-copy"
    """A kernel that reads and writes."""
    SM_READ = "sm-read"
    """A kernel that only reads, and sums what it reads."""
    SM_WRITE = "sm-write"
    """A kernel that only writes."""
    BULK = "bulk"
    """A kernel that has the copy unit of each multiprocessor (TMA) move chunks through shared memory."""
    ATOMIC = "atomic"
    """A kernel that adds to every word, atomically, and asks for no result."""
    ATOMIC_LATENCY = "atomic-latency"
    """One thread of one kernel that adds to one counter after another, atomically, and waits for each answer."""
    CPU = "cpu"
    """Threads bound to the CPUs of a NUMA node: a lower bound of what those can do."""
    CPU_CHASE = "cpu-chase"
    """One thread of a CPU that follows a chain of addresses."""
    CHASE = "chase"
    """One thread of one kernel that follows a chain of offsets."""
    PING_PONG = "ping-pong"
    """One thread on each of two GPUs that wait for each other's flag."""
    EVENT = "event"
    """Two processes that wait for each other's interprocess event."""
    SOCKET = "socket"
    """Two processes that wait for each other's message: what of an event's round trip is not the event."""
    UCX = "ucx"
    """Messages between two processes, carried by whatever UCX finds best for them."""
    UCX_PUT = "ucx-put"
    """The same, one-sided: the sender writes to memory that the receiver has registered."""
    UCX_GET = "ucx-get"
    """The receiver reads from memory that the sender has registered."""
    LIFE_CYCLE = "life-cycle"
    """Nothing is moved: memory is exported, sent, opened, mapped, touched and closed."""


CPU_ENGINES = frozenset({Engine.CPU, Engine.CPU_CHASE})
"""Engines of CPU threads: no GPU issues their work."""
UCX_ENGINES = frozenset({Engine.UCX, Engine.UCX_PUT, Engine.UCX_GET})
"""What UCX carries, between two processes."""


class Pattern(StrEnum):
    """The flows that one task runs at the same time."""

    PAIR = "pair"
    """One source and one destination."""
    BOTH_DIRECTIONS = "both-directions"
    """One pair, there and back."""
    LOCAL = "local"
    """Both ends are one GPU's memory."""
    RING = "ring"
    """Each GPU to the next one, the last to the first."""
    ONE_TO_ALL = "one-to-all"
    """From one GPU to each of the others."""
    ALL_TO_ONE = "all-to-one"
    """From each of the other GPUs to one."""
    BISECT = "bisect"
    """From each GPU to the one half of the GPUs further on."""
    ALL_PAIRS = "all-pairs"
    """From each GPU to each other one."""
    ONE_NODE = "everyone-to-one-node"
    """Every GPU with the memory of one NUMA node."""
    OWN_NODE = "own-node"
    """Every GPU with the memory of its own NUMA node, the one that is nearest to it."""
    OWN_NODE_BOTH = "own-node-both-directions"
    """The same, there and back."""
    LOADED = "loaded"
    """A latency, while other threads of the same GPU move bytes over the same path."""


class Quantity(StrEnum):
    """The quantity that a task measures."""

    BANDWIDTH = "bandwidth"
    LATENCY = "latency"
    DURATION = "duration"
    """The stages of a handle's life cycle."""

    @property
    def unit(self) -> str:
        """The unit of its numbers: GB/s are 1e9 bytes a second."""
        return {Quantity.BANDWIDTH: "GB/s", Quantity.LATENCY: "ns", Quantity.DURATION: "ms"}[self]


class ChaseOrder(StrEnum):
    """In which order a pointer chase visits the lines of its buffer."""

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
    """A point on the axes of a case; ``None`` on an axis means what the case does without it."""

    size: int | None = None
    """Bytes of each buffer, or of each message."""
    sms: int | None = None
    """Blocks of the kernel that moves the bytes, one on each of so many multiprocessors (SM); 0: one on every SM of a
    GPU that does not say how many it has."""
    footprint: int | None = None
    """Bytes that a chase visits."""
    load: int | None = None
    """Blocks of the kernel that loads the same path meanwhile; 0: the path is idle."""
    streams: int | None = None
    """CUDA streams that share the copies of each flow."""

    def __str__(self) -> str:
        return ", ".join(f"{_AXIS_WORDS[axis](value)}" for axis in Axis if (value := self.at(axis)) is not None)

    def at(self, axis: Axis) -> int | None:
        """Return the value on an axis."""
        value: int | None = getattr(self, axis.value)
        return value

    @property
    def unsized(self) -> Point:
        """The same point without a size: profiles hold references for large buffers of any size."""
        return replace(self, size=None)

    @property
    def one_path(self) -> bool:
        """Whether one path of each kind of route is enough: a series other than by size is about the link."""
        return self.unsized != Point()


_AXIS_WORDS: Mapping[Axis, Callable[[int], str]] = {
    Axis.SIZE: format_size,
    Axis.SMS: lambda sms: several(sms, "SM") if sms else "all SMs",
    Axis.FOOTPRINT: format_size,
    Axis.LOAD: lambda blocks: several(blocks, "block"),
    Axis.STREAMS: lambda streams: several(streams, "stream"),
}


USUAL = Point()
"""Every case has this point: it is measured once, with what its engine and the run have."""


def named(case: str, point: Point) -> str:
    """Return what people call a case at a point: ``device_local_bulk 16 SMs``."""
    return f"{case} {point}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One end of a flow: memory of a kind on a GPU or on a NUMA node."""

    memory: MemoryKind
    label: Plain
    """``GPU0``, ``NUMA1``, ``CPU1`` (threads of that node): for people."""
    bus_id: BusId | None = None
    """The GPU of device memory and of a GPU's registers."""
    numa_node: int | None = None
    """For host memory and a CPU's registers."""
    rank: int | None = None
    """In a measurement by several processes, the one that has made the memory (``RunReport.ranks``)."""
    handle: HandleKind | None = None
    """How the process that issues the work has opened it; ``None`` where the memory is its own."""
    allocated_by: BusId | None = None
    """The GPU whose context was current when this host memory was allocated, where the case chooses it, or the one GPU
    of the process that allocated it; ``None``: any GPU's. EGM memory belongs to one GPU
    (:mod:`egmctl.topology.routes`)."""
    allocated_by_label: Plain | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """One stream of bytes, in the direction in which they move."""

    source: Endpoint
    destination: Endpoint
    initiator: BusId | None
    """The GPU whose context issues the work: it writes to the destination (push) or reads from the source (pull);
    ``None`` where CPU threads do."""
    initiator_label: Plain
    initiator_rank: int | None = None
    """In a measurement by several processes, the one that issues the work."""
    route: Route
    """Over which links the bytes are expected to travel."""

    @property
    def pushed(self) -> bool:
        """Whether the end of the one that issues the work is the source; bus ids of several nodes may be alike."""
        if self.initiator_rank is not None:
            return self.source.rank == self.initiator_rank
        return self.source.bus_id == self.initiator

    @property
    def sent(self) -> bool:
        """Whether the GPU that issues the work sends the bytes; one that only reads or only writes is no end itself."""
        if self.source.memory is MemoryKind.REGISTERS:
            return True
        return self.destination.memory is not MemoryKind.REGISTERS and self.pushed

    @property
    def path(self) -> str:
        """The two ends, for people, and the GPU that issues the work, where it is at neither."""
        by = f" by {self.initiator_label}" if self.through_gpu else ""
        return f"{self.source.label} -> {self.destination.label}{by}"

    @property
    def through_gpu(self) -> bool:
        """Whether a GPU moves bytes between memory that is all the host's."""
        on_host = self.source.bus_id is None and self.destination.bus_id is None
        return on_host and self.initiator is not None and self.route.carrier is not Carrier.UCX


@dataclass(frozen=True, slots=True, kw_only=True)
class Chase:
    """How a latency is measured: see ``docs/measurement.md``."""

    order: ChaseOrder
    stride_bytes: int
    """Distance of the lines that hold one link of the chain each."""
    warm: bool
    """The buffer is walked once before the timed walk, so that it is in the owner's L2 if it fits."""
    loads: int
    """Loads (or round trips) in one sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to measure: flows that run at the same time, and how."""

    case: Plain
    """The case's name, in nvbandwidth's words where it has one."""
    point: Point = USUAL
    """Where on the case's axes it is measured: case and point name a measurement."""
    family: Plain
    quantity: Quantity
    engine: Engine
    pattern: Pattern
    flows: tuple[Flow, ...]
    """At least one: a pair is one flow, both directions are two, a ring of N is N."""
    counted: Plain
    """The bytes that the bandwidth counts."""
    size_bytes: int
    """The size of each flow's buffer at either end; of a latency, the bytes that the chase visits."""
    copies: int
    """Times that each flow moves ``size_bytes`` in one sample, one after the other."""
    chase: Chase | None = None
    """For a latency."""

    @property
    def name(self) -> str:
        """The case and its point, for people."""
        return named(self.case, self.point)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The processes that take part in a measurement by several; of one by the worker, none."""
        numbers = (
            number for flow in self.flows for number in (flow.initiator_rank, flow.source.rank, flow.destination.rank)
        )
        return tuple(dict.fromkeys(number for number in numbers if number is not None))

    @property
    def path(self) -> str:
        """The ends, for people: ``GPU0 -> GPU1``, ``GPU0 <-> GPU1``, ``GPU0,GPU1 -> NUMA0``; of one flow its own."""
        if len(self.flows) == 1:
            return self.flows[0].path
        source, destination = self.ends
        return f"{source} {'<->' if self.pattern is Pattern.BOTH_DIRECTIONS else '->'} {destination}"

    @property
    def ends(self) -> tuple[str, str]:
        """The sources and the destinations, for people; of both directions, those of the first."""
        flows = self.flows[:1] if self.pattern is Pattern.BOTH_DIRECTIONS else self.flows
        sources = ",".join(dict.fromkeys(flow.source.label for flow in flows))
        return sources, ",".join(dict.fromkeys(flow.destination.label for flow in flows))


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedTask:
    """A task, and its place in the plan."""

    number: int
    task: Task
