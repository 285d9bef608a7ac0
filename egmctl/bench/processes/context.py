"""The resources for all measurements of a process, set up once: contexts, kernels, gate, buffers."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

from egmctl.bench.buffers import Buffer
from egmctl.bench.evidence import LinkCounters
from egmctl.bench.processes.collective import Exchange
from egmctl.bench.processes.protocol import Preparation
from egmctl.dataclass import dataclass
from egmctl.driver.cuda import call
from egmctl.errors import DriverCallError
from egmctl.facts.buffers import Before, NoPages, huge_page_bytes
from egmctl.gpu.context import Context, ReleaseStack
from egmctl.gpu.cpu_threads import Node
from egmctl.gpu.handles import SharedMemory, SharedPart
from egmctl.gpu.memory import (
    DefaultPool,
    DefaultPoolMemory,
    DeviceMemory,
    HostNumaMemory,
    HostNumaPoolMemory,
    ManagedMemory,
    MappedMemory,
    PinnedMemory,
    PinnedWords,
    SystemMemory,
    location,
)
from egmctl.gpu.pattern import PatternKernels, WordPairs
from egmctl.gpu.program import Kernels, NoKernels
from egmctl.gpu.telemetry import Telemetry
from egmctl.gpu.timing import Gate, Stream
from egmctl.model.measurement import Phase, PhaseSeconds, Placement
from egmctl.model.route import HOST_MEMORY, HOST_NAMES, MemoryKind
from egmctl.model.task import Endpoint, Flow, HandleKind
from egmctl.units import format_size


@dataclass(slots=True)
class AllocatedBuffer:
    """A buffer in this process, with its contents."""

    memory: MappedMemory
    seed: int
    """The seed of its pattern. Every buffer has a different seed, so that data from the wrong buffer is detected."""
    filled_bytes: int = 0
    """The number of bytes from the start of a source that contain the pattern. Nothing overwrites them."""
    is_compared_by_cpu: bool = False
    """Whether the CPU has compared one sample of it."""
    first_touch_ms: float | None = None
    """The milliseconds of the memory's first write if it covered the whole buffer; else ``None``."""
    is_reused: bool = False
    """Whether an earlier buffer used the memory, so that no write is its first."""


_REUSED = frozenset(
    {MemoryKind.HOST_NUMA, MemoryKind.HOST_NUMA_POOL, MemoryKind.PINNED, MemoryKind.REGISTERED, MemoryKind.HUGETLB}
)
"""Host memory whose pages stay where they are, and whose allocation takes longer than its use: a buffer of the next
step takes over the memory of one that is released."""


class WorkerContext:
    """The state of a process that measures: its GPUs, their resources, and the exchange with the other processes.

    A GPU that cannot be used, or for which there are no kernels, ends only the tasks that need it.

    Parameters
    ----------
    exchange
        The exchange with the other processes. Its rank determines the process' range of seeds.

    Attributes
    ----------
    ranks
        The ranks of all processes; empty for a single worker.
    stopwatch
        The time that the process spends in each phase.
    gate
        The gate of this process. It must not hold work whose queueing may block until it completes.
    """

    def __init__(self, preparation: Preparation, exchange: Exchange) -> None:
        self.exchange = exchange
        self.stopwatch = Stopwatch()
        self.ranks = preparation.ranks
        self._nodes = {access.numa_node: access for access in preparation.host_access}
        self.gpus = preparation.gpus
        self._contexts: dict[str, Context] = {}
        self._more: dict[str, Context] = {}
        self._unusable: dict[str, DriverCallError | NoKernels] = {}
        self._streams: dict[tuple[str, int], Stream] = {}
        self._buffers: dict[Buffer, AllocatedBuffer] = {}
        self._spares: dict[Buffer, AllocatedBuffer] = {}
        """The buffers that the last step released and whose memory the next one may use."""
        self._shared: dict[Buffer, SharedMemory] = {}
        self._pools: dict[str, DefaultPool] = {}
        self._ordinals: dict[str, int | None] = {}
        self._before: dict[Buffer, Before] = {}
        self._placements: dict[Buffer, Placement] = {}
        self._new_seeds = count(1 + (exchange.rank << 32))
        self.gate = Gate()
        self.kernels: dict[str, Kernels] = {}
        with ReleaseStack() as undo:
            self._undo = undo
            for bus_id in preparation.gpus:
                try:
                    self._contexts[bus_id] = self._undo.keep(Context(bus_id))
                except DriverCallError as error:
                    self._unusable[bus_id] = error
            self.link_counters = LinkCounters(self._undo.keep(Telemetry(self._contexts, preparation.no_counters)))
            if self._contexts:
                self._set_up(gated=preparation.settings.gate)
            self._undo = undo.pop_all()

    def _set_up(self, *, gated: bool) -> None:
        """Create the shared resources on every GPU before anything is timed."""
        for bus_id in self._contexts:
            self.stream(bus_id)
        for bus_id, context in list(self._contexts.items()):
            try:
                self.kernels[bus_id] = self._undo.keep(Kernels(context))
            except NoKernels as error:
                self._unusable[bus_id] = error
                del self._contexts[bus_id]
        words = self._undo.keep(PinnedWords(2))
        if gated:
            self.gate = Gate(words, self.kernels)
        self.results = self._undo.keep(WordPairs(self._contexts))
        self.pattern = PatternKernels(self.kernels, self.results)

    def one_more(self, bus_id: str) -> Context:
        """Return the context of a GPU outside of the run, created on first use."""
        if bus_id not in self._more:
            self._more[bus_id] = self._undo.keep(Context(bus_id))
        return self._more[bus_id]

    def stream(self, bus_id: str, number: int = 0) -> Stream:
        """Return one of the streams of a GPU.

        Raises
        ------
        DriverCallError, NoKernels
            The GPU's set-up failed with this error.
        """
        if bus_id in self._unusable:
            raise self._unusable[bus_id]
        if (bus_id, number) not in self._streams:
            self._streams[bus_id, number] = self._undo.keep(Stream(self._contexts[bus_id]))
        return self._streams[bus_id, number]

    def near(self, end: Endpoint, flow: Flow) -> Stream:
        """Return a stream of the GPU that fills and verifies this process' memory at an end of a flow.

        It is the GPU that owns the memory, so that a check does not use the path under test. For host memory it is the
        GPU that issues the flow's work, or else the process' first GPU.
        """
        candidates = (end.bus_id, flow.initiator, *self.gpus)
        return self.stream(next(bus_id for bus_id in candidates if bus_id in self.gpus))

    @property
    def own_stream(self) -> Stream:
        """A stream of the first GPU, which for a rank is its only one."""
        return self.stream(self.gpus[0])

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All allocated or open buffers, the oldest first."""
        return tuple(self._buffers)

    def has(self, buffer: Buffer) -> bool:
        """Return whether a buffer is allocated or open."""
        return buffer in self._buffers

    def held(self, buffer: Buffer) -> AllocatedBuffer:
        """Return a buffer, allocated on first use."""
        if buffer not in self._buffers:
            self._buffers[buffer] = self._from_spare(buffer) or AllocatedBuffer(self._allocate(buffer), self.new_seed())
        return self._buffers[buffer]

    def _from_spare(self, buffer: Buffer) -> AllocatedBuffer | None:
        """Return a new buffer with the memory of a spare one; without such memory free what needs its place."""
        if buffer.end.memory not in HOST_MEMORY:
            return None
        fitting = [spare for spare in self._spares if _memory_of(spare) == _memory_of(buffer)]
        spare = buffer if buffer in fitting else next(iter(fitting), None)
        if spare is None:
            self._free_spares()
            return None
        held = self._spares.pop(spare)
        if spare in self._before:
            self._before[buffer] = self._before.pop(spare)
        if spare in self._placements:
            self._placements[buffer] = self._placements.pop(spare)
        return AllocatedBuffer(held.memory, self.new_seed(), first_touch_ms=held.first_touch_ms, is_reused=True)

    def _free_spares(self) -> None:
        with ReleaseStack() as undo:
            for spare in list(self._spares):
                undo.callback(self._free, spare, self._spares.pop(spare))

    def adopt(self, buffer: Buffer, memory: MappedMemory, seed: int) -> None:
        """Use existing memory, e.g. opened memory of another process, as a buffer."""
        self._buffers[buffer] = AllocatedBuffer(memory, seed)

    def new_seed(self) -> int:
        """Return a seed that no rank has used."""
        return next(self._new_seeds)

    def placements(self, buffers: Iterable[Buffer]) -> tuple[Placement, ...]:
        """Return the placements of the buffers that are on a NUMA node. They must have been written."""
        buffers = [buffer for buffer in dict.fromkeys(buffers) if buffer in self._before]
        for buffer in buffers:
            if buffer in self._buffers and buffer not in self._placements:
                memory = self._buffers[buffer].memory
                where = self._before[buffer].where(buffer.end.label, memory.address, memory.size_bytes)
                if where.right is None and memory.refused is not None:
                    where = replace(where, detail=f"{where.detail}; binding refused: {memory.refused}")
                self._placements[buffer] = where
        return tuple(self._placements[buffer] for buffer in buffers if buffer in self._placements)

    def release(self, buffer: Buffer) -> None:
        """Free or close a buffer, if there is one."""
        if (held := self._buffers.pop(buffer, None)) is not None:
            self._free(buffer, held)

    def _free(self, buffer: Buffer, held: AllocatedBuffer) -> None:
        self._placements.pop(buffer, None)
        self._before.pop(buffer, None)
        held.memory.close()

    def release_after_step(self, buffers: Iterable[Buffer]) -> str | None:
        """Free buffers that no later step uses, or keep their memory for the next step; return the first error.

        Memory that an earlier step left and this one did not use is freed.
        """
        problem = None
        try:
            self._free_spares()
        except DriverCallError as error:
            problem = str(error)
        for buffer in buffers:
            # Where the pages are must be known already: the node's free memory changes.
            is_placed = buffer not in self._before or buffer in self._placements
            if buffer.end.memory in _REUSED and buffer.end.handle is None and buffer in self._buffers and is_placed:
                self._spares[buffer] = self._buffers.pop(buffer)
                continue
            try:
                self.release(buffer)
            except DriverCallError as error:
                problem = problem or str(error)
        return problem

    def connect(self, initiator: str, end: Endpoint) -> None:
        """Give the GPU that issues work access to another GPU's memory."""
        if end.bus_id is None or end.bus_id == initiator:
            return
        issuer = self.stream(initiator).context
        if end.memory is MemoryKind.DEVICE_DEFAULT_POOL:
            self._default_pool(end, self.stream(end.bus_id).context).open_to([issuer])
        else:
            issuer.enable_access_to(self.stream(end.bus_id).context)

    def begin_step(self) -> None:
        """Let access to peers that earlier steps needed make place for that of the next."""
        for context in self._contexts.values():
            context.begin_step()

    def disconnect_unused(self) -> None:
        """Revoke access to default pools from which no memory was allocated."""
        with ReleaseStack() as undo:
            for pool in self._pools.values():
                undo.callback(pool.close_unused)

    def disconnect(self, bus_id: str, other: str) -> None:
        """Disable peer access between two GPUs, so that copies between them go through host memory."""
        first, peer = self.stream(bus_id).context, self.stream(other).context
        first.disable_access_to(peer)
        peer.disable_access_to(first)

    def works(self) -> bool:
        """Return whether every context still works. After some errors, every further call in a context fails."""
        try:
            for context in self._contexts.values():
                context.make_current()
                call("cuCtxSynchronize")
        except DriverCallError:
            return False
        return True

    def close(self) -> None:
        """Release all resources in reverse order, despite errors.

        Raises
        ------
        DriverCallError
            The first failure.
        """
        with self._undo:
            self._undo.callback(self._free_spares)
            for buffer in self._buffers:
                self._undo.callback(self.release, buffer)

    def share(self, end: Endpoint, size_bytes: int) -> SharedMemory:
        """Allocate memory for other processes; if the end has parts, with access for the GPUs of all ranks."""
        (bus_id,) = self.gpus
        others = {rank.bus_id for rank in self.ranks if end.parts} - {bus_id}
        contexts = [self.one_more(other) for other in sorted(others)]
        handle = end.handle or HandleKind.POSIX_FD
        return SharedMemory(handle, self.stream(bus_id).context, size_bytes, end.numa_node, contexts)

    def others_for(self, end: Endpoint) -> list[int]:
        """Return CUDA's ordinals of this node's other GPUs for which memory of another process is mapped too.

        They are those of all ranks here that this process sees and that can access the memory: host memory, and memory
        of a GPU of another node, is open to all of them; the memory of a GPU of this node to its peers.
        """
        own = self.ranks[self.exchange.rank]
        here = dict.fromkeys(rank.bus_id for rank in self.ranks if rank.host == own.host and rank.bus_id != own.bus_id)
        ordinals = [ordinal for bus_id in here if (ordinal := self._ordinal(bus_id)) is not None]
        owner = None if end.bus_id is None or self.ranks[end.rank or 0].host != own.host else self._ordinal(end.bus_id)
        if owner is None:
            return ordinals
        return [other for other in ordinals if other == owner or call("cuDeviceCanAccessPeer", other, owner)]

    def _ordinal(self, bus_id: str) -> int | None:
        """Return CUDA's ordinal of a GPU; ``None`` if this process does not see it."""
        if bus_id not in self._ordinals:
            try:
                self._ordinals[bus_id] = int(call("cuDeviceGetByPCIBusId", bus_id.encode()))
            except DriverCallError:
                self._ordinals[bus_id] = None
        return self._ordinals[bus_id]

    def _allocate(self, buffer: Buffer) -> MappedMemory:
        end, kind, size_bytes = buffer.end, buffer.end.memory, buffer.size_bytes
        if end.numa_node is not None and not (end.parts and buffer.index):
            self._before[buffer] = Before(end.numa_node)
        if end.parts:
            whole = self._shared.get(key := replace(buffer, index=0))
            if whole is None or not whole.parts:
                whole = self._shared[key] = self.share(end, end.parts * size_bytes)
            return SharedPart(whole, buffer.index, size_bytes)
        if end.handle is not None:
            return self.share(end, size_bytes)
        if kind is MemoryKind.DEVICE:
            return DeviceMemory(self.stream(end.bus_id or "").context, size_bytes)
        if kind is MemoryKind.DEVICE_DEFAULT_POOL:
            return DefaultPoolMemory(self._default_pool(end, self.stream(end.bus_id or "").context), size_bytes)
        if kind is MemoryKind.GPU_NUMA and end.numa_node is not None:
            return SystemMemory(Node(end.numa_node), size_bytes)
        access = self._nodes[end.numa_node or 0]
        node = Node(access.numa_node, access.cpus)
        if kind is MemoryKind.SYSTEM:
            return SystemMemory(node, size_bytes)
        contexts = [self._contexts[bus_id] for bus_id in access.gpus if bus_id in self._contexts]
        if not contexts:
            raise self._unusable[access.gpus[0]]
        match kind:
            case MemoryKind.HOST_NUMA:
                if end.allocated_by is not None:
                    # The first context is current during the allocation.
                    contexts.insert(0, self.stream(end.allocated_by).context)
                return HostNumaMemory(node.id, size_bytes, list(dict.fromkeys(contexts)))
            case MemoryKind.HOST_NUMA_POOL:
                return HostNumaPoolMemory(node.id, size_bytes, contexts)
            case MemoryKind.HOST_NUMA_DEFAULT_POOL:
                return DefaultPoolMemory(self._default_pool(end, contexts[0]), size_bytes, contexts)
            case MemoryKind.HOST_DEFAULT_POOL:
                return DefaultPoolMemory(self._default_pool(end, contexts[0]), size_bytes, contexts, node)
            case MemoryKind.MANAGED:
                return ManagedMemory(node, size_bytes, contexts)
            case MemoryKind.PINNED:
                return PinnedMemory(node, size_bytes, contexts[0])
            case _:
                return _registered(kind, node, size_bytes, contexts[0])

    def _default_pool(self, end: Endpoint, context: Context) -> DefaultPool:
        """Return the driver's default pool for the memory at an end."""
        if end.memory is MemoryKind.HOST_DEFAULT_POOL:
            key, place = "host", location("HOST")
        elif end.numa_node is not None:
            key, place = f"NUMA{end.numa_node}", location("HOST_NUMA", end.numa_node)
        else:
            key, place = context.bus_id, None
        if key not in self._pools:
            self._pools[key] = self._undo.keep(DefaultPool(context, place))
        return self._pools[key]


def _memory_of(buffer: Buffer) -> tuple[object, ...]:
    """Return what the memory of two buffers has in common if one can take over that of the other."""
    end = buffer.end
    return end.memory, end.numa_node, end.allocated_by, end.handle, end.parts, buffer.size_bytes


def _registered(memory: MemoryKind, node: Node, size_bytes: int, context: Context) -> MappedMemory:
    """Return registered memory in normal, huge or transparent huge pages.

    Raises
    ------
    NoPages
        There are no such pages.
    """
    page_bytes = huge_page_bytes(node.id, size_bytes) if memory is MemoryKind.HUGETLB else None
    transparent = memory is MemoryKind.THP
    try:
        return SystemMemory(node, size_bytes, context, huge_page_bytes=page_bytes, transparent=transparent)
    except OSError as error:
        raise NoPages(f"{format_size(size_bytes)} of {HOST_NAMES[memory]} memory: {error.strerror}") from error


class Stopwatch:
    """A timer of phases. The seconds of a nested phase do not count for the outer one."""

    def __init__(self) -> None:
        self._spent: defaultdict[Phase, float] = defaultdict(float)
        self._under_way: list[Phase] = []
        self._since = 0.0

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Count the seconds of a ``with`` block, even if it raises an exception."""
        self._count()
        self._under_way.append(phase)
        try:
            yield
        finally:
            self._count()
            self._under_way.pop()

    def take(self) -> PhaseSeconds:
        """Return the seconds by phase since the last call."""
        self._count()
        spent, self._spent = self._spent, defaultdict(float)
        return PhaseSeconds(**{f"{phase.name.lower()}_s": seconds for phase, seconds in spent.items()})

    def _count(self) -> None:
        now = time.perf_counter()
        if self._under_way:
            self._spent[self._under_way[-1]] += now - self._since
        self._since = now
