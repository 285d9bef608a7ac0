"""Memory that one process makes and another one works on, one process a GPU: what training and inference really use.

What is done with shared memory is stated once: for :data:`NODE` between the processes of a node, by every kind of
handle; for :data:`JOB` between those of all nodes of an NVLink domain, by fabric handles (the others end at the node's
border). A node's cases name the one that takes the same path within one process, so that what IPC costs is seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from egmctl.bench.case import Case, End, Footprint, Processes
from egmctl.bench.cases.latency import FLAG_BYTES, LAP_LOADS, LAPS, LINE_BYTES, UNCACHED
from egmctl.model.measurement import Chase, ChaseOrder, Engine, HandleKind, MemoryKind, Pattern, Quantity
from egmctl.units import MIB

MESSAGES = 500
"""Round trips of a sample that go through the kernel: 20 ms of 40 us each."""
LIFE_CYCLE_BYTES = 64 * MIB
"""Of the memory whose export, opening and closing is timed: what of it depends on the size is seen in the first touch,
what does not is not drowned by it."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Memory that is opened by handles of a kind."""

    word: str
    """In the names of its cases."""
    handle: HandleKind
    memory: MemoryKind
    counterpart: str
    """In the names of the cases within one process."""
    what: str


_HANDLES = {
    HandleKind.LEGACY: "legacy handle (cuIpcOpenMemHandle)",
    HandleKind.POSIX_FD: "file descriptor",
    HandleKind.POOL: "handle of its memory pool",
    HandleKind.POOL_FABRIC: "fabric handle of its memory pool",
    HandleKind.FABRIC: "fabric handle",
}


def shared(handle: HandleKind) -> Iterator[Shared]:
    """Yield what can be shared by a kind of handle: legacy handles open a GPU's memory only."""
    word = handle.value.replace("-", "_")
    yield Shared(
        f"{word}_device",
        handle,
        MemoryKind.DEVICE,
        "device",
        f"another process' device memory, opened by {_HANDLES[handle]}",
    )
    if handle is not HandleKind.LEGACY:
        pool = handle in (HandleKind.POOL, HandleKind.POOL_FABRIC)
        yield Shared(
            f"{word}_host_numa",
            handle,
            MemoryKind.HOST_NUMA_POOL if pool else MemoryKind.HOST_NUMA,
            "host_numa_pool" if pool else "host_numa",
            f"another process' HOST_NUMA memory, opened by {_HANDLES[handle]}",
        )


@dataclass(frozen=True, slots=True)
class Among:
    """Between which processes memory is shared."""

    processes: Processes
    family: str
    prefix: str
    """Of the names of its cases."""


NODE = Among(Processes.NODE, "ipc", "ipc_")
JOB = Among(Processes.JOB, "fabric", "")

_ENGINES = ((Engine.COPY_ENGINE, "ce"), (Engine.SM_COPY, "sm"))
_AT_ONCE = (
    (Pattern.BOTH_DIRECTIONS, "bidirectional", "two processes to each other's at the same time", (JOB,)),
    (Pattern.RING, "ring", "each process to the next one's, all at once", (NODE, JOB)),
    (Pattern.BISECT, "bisect", "each process to the one halfway around the ring, all at once", (JOB,)),
    (Pattern.ONE_TO_ALL, "one_to_all", "one process to all others', all at once", (JOB,)),
    (Pattern.ALL_TO_ONE, "all_to_one", "all other processes to one's, all at once", (JOB,)),
)
"""What several processes do at the same time, and between which."""
_DEVICE_ONLY = ((NODE, Pattern.RING), (JOB, Pattern.BOTH_DIRECTIONS))


def copies(of: Shared, among: Among) -> tuple[Case, ...]:
    """Return the copies into and out of shared memory, by the process that has opened it."""

    def case(way: str, engine: Engine, suffix: str) -> Case:
        writes = way == "write"
        if of.memory is MemoryKind.DEVICE:
            counterpart = f"device_to_device_memcpy_{way}_{suffix}"
        elif writes:
            counterpart = f"device_to_{of.counterpart}_memcpy_{suffix}"
        else:
            counterpart = f"{of.counterpart}_to_device_memcpy_{suffix}"
        by = "by the copy engine" if engine is Engine.COPY_ENGINE else "by a kernel"
        return Case(
            name=f"{among.prefix}{of.word}_{way}_{suffix}",
            family=among.family,
            source=MemoryKind.DEVICE if writes else of.memory,
            destination=of.memory if writes else MemoryKind.DEVICE,
            engine=engine,
            pattern=Pattern.PAIR,
            initiator=End.SOURCE if writes else End.DESTINATION,
            description=f"{'to' if writes else 'from'} {of.what}, {by}",
            processes=among.processes,
            handle=of.handle,
            in_process=counterpart,
        )

    return tuple(case(way, engine, suffix) for engine, suffix in _ENGINES for way in ("write", "read"))


def host_to_host(of: Shared) -> tuple[Case, ...]:
    """Return the copies between HOST_NUMA memory of two ranks, by the GPU of the one that has opened the other's."""

    def case(way: str, engine: Engine, suffix: str) -> Case:
        writes = way == "write"
        # As within one process: between host memory the driver chooses who copies.
        by = "cuMemcpyAsync (copy engine or CPU: the link's counters tell)" if suffix == "ce" else "a kernel"
        ends = f"own HOST_NUMA memory to {of.what}" if writes else f"{of.what}, to own HOST_NUMA memory"
        return Case(
            name=f"{of.word}_to_host_numa_{way}_{suffix}",
            family=JOB.family,
            source=of.memory,
            destination=of.memory,
            engine=engine,
            pattern=Pattern.PAIR,
            initiator=End.SOURCE if writes else End.DESTINATION,
            description=f"EGM to EGM: {ends}, by {by}, through the GPU of the process that issues it",
            processes=JOB.processes,
            handle=of.handle,
        )

    return tuple(case(way, engine, suffix) for engine, suffix in _ENGINES for way in ("write", "read"))


def at_once(of: Shared, among: Among) -> Iterator[Case]:
    """Yield what several processes do at the same time."""
    device = of.memory is MemoryKind.DEVICE
    for pattern, word, description, where in _AT_ONCE:
        if among not in where or ((among, pattern) in _DEVICE_ONLY and not device):
            continue
        yield Case(
            name=f"{among.prefix}{of.word}_{word}_write_ce",
            family=among.family,
            source=MemoryKind.DEVICE,
            destination=of.memory,
            engine=Engine.COPY_ENGINE,
            pattern=pattern,
            initiator=End.SOURCE,
            description=f"{description}: {of.what}",
            processes=among.processes,
            handle=of.handle,
            in_process="ring_write_ce" if among is NODE else None,
        )


def latency(of: Shared, among: Among) -> Case:
    """Return a pointer chase through shared memory, which its owner has written."""
    return Case(
        name=f"{among.prefix}{of.word}_latency",
        family=among.family,
        source=of.memory,
        destination=MemoryKind.REGISTERS,
        engine=Engine.CHASE,
        pattern=Pattern.PAIR,
        initiator=End.DESTINATION,
        description=f"latency of {of.what}: random lines of 4 times the L2 cache, each read once",
        quantity=Quantity.LATENCY,
        chase=Chase(order=ChaseOrder.RANDOM, stride_bytes=LINE_BYTES, warm=False, loads=LAP_LOADS),
        footprint=UNCACHED,
        processes=among.processes,
        handle=of.handle,
        in_process=f"{of.counterpart}_to_device_latency_uncached",
    )


def _life_cycle(of: Shared) -> Case:
    return Case(
        name=f"ipc_{of.word}_life_cycle",
        family="ipc",
        source=of.memory,
        destination=MemoryKind.REGISTERS,
        engine=Engine.LIFE_CYCLE,
        pattern=Pattern.PAIR,
        initiator=End.DESTINATION,
        description=f"cost of each stage, from allocation to free: {of.what}",
        quantity=Quantity.DURATION,
        footprint=Footprint(least_bytes=LIFE_CYCLE_BYTES),
        processes=Processes.NODE,
        handle=of.handle,
    )


def _round_trip(
    name: str,
    engine: Engine,
    description: str,
    *,
    memory: MemoryKind = MemoryKind.REGISTERS,
    pattern: Pattern = Pattern.PAIR,
    in_process: str | None = None,
) -> Case:
    handle = None if memory is MemoryKind.REGISTERS else HandleKind.POSIX_FD
    laps = LAPS if handle else MESSAGES
    return Case(
        name=name,
        family="ipc",
        source=MemoryKind.DEVICE if handle else memory,
        destination=memory,
        engine=engine,
        pattern=pattern,
        initiator=End.SOURCE,
        description=f"{description}, every pair",
        quantity=Quantity.LATENCY,
        chase=Chase(order=ChaseOrder.SEQUENTIAL, stride_bytes=LINE_BYTES, warm=True, loads=laps),
        footprint=Footprint(least_bytes=FLAG_BYTES),
        processes=Processes.NODE,
        handle=handle,
        in_process=in_process,
    )


_SIGNALS = (
    _round_trip(
        "ipc_flag_device_round_trip",
        Engine.PING_PONG,
        "round trip of a flag: each process' kernel polls its own device memory and writes to the other's",
        memory=MemoryKind.DEVICE,
        pattern=Pattern.BOTH_DIRECTIONS,
        in_process="device_to_device_ping_pong_latency",
    ),
    _round_trip(
        "ipc_flag_host_numa_round_trip",
        Engine.PING_PONG,
        "round trip of a flag: both processes' kernels write and poll one HOST_NUMA memory",
        memory=MemoryKind.HOST_NUMA,
        in_process="host_numa_ping_pong_latency",
    ),
    _round_trip(
        "ipc_event_round_trip", Engine.EVENT, "round trip of interprocess events and the messages that announce them"
    ),
    _round_trip("ipc_socket_round_trip", Engine.SOCKET, "round trip of a message alone: the lower bound for events"),
)

_SHARED = tuple(of for handle in HandleKind for of in shared(handle))
_FABRIC = tuple(of for of in _SHARED if of.handle is HandleKind.FABRIC)

CASES = (
    # One kind after the other, so that of each memory is let go before there is any of the next kind.
    *(case for of in _SHARED for case in (*copies(of, NODE), *at_once(of, NODE), latency(of, NODE))),
    *_SIGNALS,
    *(_life_cycle(of) for of in _SHARED),
)

FABRIC_CASES = (
    *(case for of in _FABRIC for case in copies(of, JOB)),
    *(case for of in _FABRIC if of.memory is MemoryKind.HOST_NUMA for case in host_to_host(of)),
    *(case for of in _FABRIC for case in at_once(of, JOB)),
    *(latency(of, JOB) for of in _FABRIC),
)
