"""Cases between processes, one per GPU, as in training or inference: memory that one exports and another one uses.

Each use of shared memory is stated once: for :data:`NODE` between the processes of a node, with every kind of handle;
for :data:`JOB` between those of all nodes of an NVLink domain, with fabric handles, because no other handle is valid on
another node. A case of a node names the case on the same path within one process, which shows the cost of IPC. UCX
messages between two processes, which need no memory in common, are at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from egmctl.bench.case import Case, End, Footprint, Processes
from egmctl.bench.cases.one_process import ENGINES, FLAG_BYTES, LAPS, UNCACHED, random_lines, sequential
from egmctl.dataclass import dataclass
from egmctl.model.route import MemoryKind
from egmctl.model.task import Chase, ChaseOrder, Engine, HandleKind, Pattern, Point, Quantity
from egmctl.units import KIB, MIB

MESSAGES = 500
"""The number of round trips through the kernel in a sample: 20 ms at 40 us each."""
LIFE_CYCLE_BYTES = 64 * MIB
"""The size of memory whose export, import and close are timed: large enough to show the cost of the first touch, which
depends on the size, and small enough not to hide the rest."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Memory that is opened by a kind of handle."""

    handle: HandleKind
    memory: MemoryKind

    @property
    def word(self) -> str:
        """The word for the handle and memory in case names."""
        return f"{self.handle}_{'device' if self.memory is MemoryKind.DEVICE else 'host-numa'}".replace("-", "_")

    @property
    def counterpart(self) -> str:
        """The word for the memory in the names of cases within one process."""
        return self.memory.value.replace("-", "_")


@dataclass(frozen=True, slots=True)
class Among:
    """The processes between which memory is shared."""

    processes: Processes
    family: str
    prefix: str
    """The prefix of the names of its cases."""


NODE = Among(Processes.NODE, "ipc", "ipc_")
JOB = Among(Processes.JOB, "fabric", "")

_WAYS = tuple((engine, suffix, way) for engine, suffix in ENGINES for way in ("write", "read"))


def shared() -> Iterator[Shared]:
    """Yield the memory that each kind of handle can share. Legacy handles open only a GPU's memory."""
    for handle in HandleKind:
        yield Shared(handle, MemoryKind.DEVICE)
        if handle in (HandleKind.POOL, HandleKind.POOL_FABRIC):
            yield Shared(handle, MemoryKind.HOST_NUMA_POOL)
        elif handle is not HandleKind.LEGACY:
            yield Shared(handle, MemoryKind.HOST_NUMA)


def shared_copies(memory: Shared, among: Among) -> Iterator[Case]:
    """Yield the cases that copy into and out of shared memory, by the process that opened it."""
    for engine, suffix, way in _WAYS:
        writes = way == "write"
        ends = (MemoryKind.DEVICE, memory.memory) if writes else (memory.memory, MemoryKind.DEVICE)
        if memory.memory is MemoryKind.DEVICE:
            counterpart = f"device_to_device_memcpy_{way}_{suffix}"
        else:
            words = ("device", memory.counterpart) if writes else (memory.counterpart, "device")
            counterpart = f"{'_to_'.join(words)}_memcpy_{suffix}"
        yield Case(
            f"{among.prefix}{memory.word}_{way}_{suffix}",
            *(among.family, *ends, engine, End.SOURCE if writes else End.DESTINATION),
            processes=among.processes,
            handle=memory.handle,
            in_process=counterpart,
        )


def shared_at_once(memory: Shared, among: Among, pattern: Pattern, word: str) -> Case:
    """Return a case in which several processes copy at the same time."""
    return Case(
        f"{among.prefix}{memory.word}_{word}_write_ce",
        *(among.family, MemoryKind.DEVICE, memory.memory, Engine.COPY_ENGINE, End.SOURCE),
        pattern=pattern,
        processes=among.processes,
        handle=memory.handle,
        in_process="ring_write_ce" if among is NODE else None,
    )


def latency(memory: Shared, among: Among) -> Case:
    """Return a pointer chase through shared memory that its owner has written."""
    return Case(
        f"{among.prefix}{memory.word}_latency",
        *(among.family, memory.memory, MemoryKind.REGISTERS, Engine.CHASE, End.DESTINATION),
        quantity=Quantity.LATENCY,
        chase=random_lines(),
        footprint=UNCACHED,
        processes=among.processes,
        handle=memory.handle,
        in_process=f"{memory.counterpart}_to_device_latency_uncached",
    )


def life_cycle(memory: Shared) -> Case:
    """Return the case that times each stage from the allocation of shared memory to its end."""
    return Case(
        f"ipc_{memory.word}_life_cycle",
        *("ipc", memory.memory, MemoryKind.REGISTERS, Engine.LIFE_CYCLE, End.DESTINATION),
        quantity=Quantity.DURATION,
        footprint=Footprint(least_bytes=LIFE_CYCLE_BYTES),
        processes=Processes.NODE,
        handle=memory.handle,
    )


def _round_trip(
    word: str,
    engine: Engine,
    memory: MemoryKind = MemoryKind.REGISTERS,
    pattern: Pattern = Pattern.PAIR,
    in_process: str | None = None,
) -> Case:
    flag = engine is Engine.PING_PONG
    return Case(
        f"ipc_{word}_round_trip",
        *("ipc", MemoryKind.DEVICE if flag else memory, memory, engine, End.SOURCE),
        pattern=pattern,
        quantity=Quantity.LATENCY,
        chase=sequential(LAPS if flag else MESSAGES),
        footprint=Footprint(least_bytes=FLAG_BYTES),
        processes=Processes.NODE,
        handle=HandleKind.POSIX_FD if flag else None,
        in_process=in_process,
    )


def _node_cases() -> Iterator[Case]:
    # One kind after the other, so that the memory of each kind is freed before the next kind is allocated.
    for memory in shared():
        yield from shared_copies(memory, NODE)
        if memory.memory is MemoryKind.DEVICE:
            yield shared_at_once(memory, NODE, Pattern.RING, "ring")
        yield latency(memory, NODE)
    both = Pattern.BOTH_DIRECTIONS
    yield _round_trip("flag_device", Engine.PING_PONG, MemoryKind.DEVICE, both, "device_to_device_ping_pong_latency")
    yield _round_trip(
        "flag_host_numa", Engine.PING_PONG, MemoryKind.HOST_NUMA, in_process="host_numa_ping_pong_latency"
    )
    yield _round_trip("event", Engine.EVENT)
    yield _round_trip("socket", Engine.SOCKET)
    yield from map(life_cycle, shared())


def _shared_cases() -> Iterator[Case]:
    """Yield the cases of memory that is allocated once for all GPUs, as applications use EGM."""
    memory = Shared(HandleKind.POSIX_FD, MemoryKind.HOST_NUMA)
    for case in (*shared_copies(memory, NODE), life_cycle(memory)):
        name = case.name.removeprefix(f"{NODE.prefix}{memory.word}")
        yield (alone := replace(case, name=f"egm_shared{name}", family="egm_shared", for_all=True))
        if case.quantity is Quantity.BANDWIDTH:
            way, engine = name.split("_")[1:]
            word = "all_to_host_numa_one_node" if way == "write" else "host_numa_one_node_to_all"
            beside = f"{word}_memcpy_{engine}"
            yield replace(alone, name=f"egm_shared_all{name}", pattern=Pattern.ONE_NODE, in_process=beside)


def _job_cases() -> Iterator[Case]:
    device, host = (Shared(HandleKind.FABRIC, memory) for memory in (MemoryKind.DEVICE, MemoryKind.HOST_NUMA))
    yield from shared_copies(device, JOB)
    yield from shared_copies(host, JOB)
    for engine, suffix, way in _WAYS:
        # EGM to EGM, through the GPU of the process that issues the copy.
        yield Case(
            f"{host.word}_to_host_numa_{way}_{suffix}",
            *(JOB.family, host.memory, host.memory, engine, End.SOURCE if way == "write" else End.DESTINATION),
            processes=JOB.processes,
            handle=host.handle,
        )
    yield shared_at_once(device, JOB, Pattern.BOTH_DIRECTIONS, "bidirectional")
    for memory in (device, host):
        yield shared_at_once(memory, JOB, Pattern.RING, "ring")
        yield shared_at_once(memory, JOB, Pattern.BISECT, "bisect")
        yield shared_at_once(memory, JOB, Pattern.ONE_TO_ALL, "one_to_all")
        yield shared_at_once(memory, JOB, Pattern.ALL_TO_ONE, "all_to_one")
    yield latency(device, JOB)
    yield latency(host, JOB)


CASES = (*_node_cases(), *_shared_cases())
FABRIC_CASES = tuple(_job_cases())


# --- UCX between two processes ---------------------------------------------------------------------------------------
#
# Access from a GPU to remote memory without NVLink between nodes, for all pairs of memory. UCX selects the transport,
# and so whether it uses RDMA or GPUDirect RDMA. Each measurement reports the route that was used (docs/rdma.md).

ROUND_TRIPS = 1000
MESSAGE_BYTES = 16
"""The size of a message of a round trip."""
MESSAGE_POINTS = (*(Point(size=size) for size in (4 * KIB, 64 * KIB, MIB, 16 * MIB)), Point())
"""The message sizes; the last one is the size of the run. UCX uses other protocols for small messages."""

_UCX_MEMORY = (("device", MemoryKind.DEVICE), ("host_numa", MemoryKind.HOST_NUMA), ("host", MemoryKind.PINNED))


def _ucx_cases() -> Iterator[Case]:
    ends = [(*source, *destination) for source in _UCX_MEMORY for destination in _UCX_MEMORY]
    for source, source_kind, destination, destination_kind in ends:
        yield Case(
            f"ucx_{source}_to_{destination}",
            *("rdma", source_kind, destination_kind, Engine.UCX, End.SOURCE),
            points=MESSAGE_POINTS,
            processes=Processes.NODE,
        )
    for source, source_kind, destination, destination_kind in ends:
        yield Case(
            f"ucx_{source}_to_{destination}_round_trip",
            *("rdma", source_kind, destination_kind, Engine.UCX, End.SOURCE),
            quantity=Quantity.LATENCY,
            chase=Chase(order=ChaseOrder.SEQUENTIAL, stride_bytes=MESSAGE_BYTES, warm=True, loads=ROUND_TRIPS),
            # If the first message is as long as the buffers, UCX prints what it does with shorter ones.
            footprint=Footprint(least_bytes=4 * KIB),
            processes=Processes.NODE,
        )
    # Only between memory of one kind: the messages above show how the kinds differ.
    for engine, word, end in ((Engine.UCX_PUT, "put", End.SOURCE), (Engine.UCX_GET, "get", End.DESTINATION)):
        for name, kind in _UCX_MEMORY:
            yield Case(
                f"ucx_{word}_{name}_to_{name}",
                *("rdma", kind, kind, engine, end),
                points=MESSAGE_POINTS,
                processes=Processes.NODE,
            )


UCX_CASES = tuple(sorted(_ucx_cases(), key=lambda case: MemoryKind.HOST_NUMA in (case.source, case.destination)))
"""Cases with HOST_NUMA memory come last: UCX has crashed processes with it (:func:`egmctl.gpu.ucx.taken_for`), and
ranks that crash repeatedly delay the cases after them."""
