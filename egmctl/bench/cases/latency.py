"""How long one access takes: to a GPU's own memory, a peer's and the host's, idle and loaded; a flag's round trip.

The names say the way that the data takes: ``device_to_device`` is read by the GPU on the right.
"""

from __future__ import annotations

from collections.abc import Sequence

from egmctl.bench.case import Case, End, Footprint
from egmctl.model.measurement import Chase, ChaseOrder, Engine, MemoryKind, Pattern, Quantity
from egmctl.model.route import HOST_MEMORY
from egmctl.units import GIB, MIB, format_size

LOADS = 40_000
"""In one sample of what needs many: nvbandwidth's definition, which takes one multiprocessor after the other;
footprints, whose pages the loads before do not all reach; the loads of a CPU; and atomic additions."""
LAPS = 2_000
LINE_BYTES = 128
"""Of the GPUs' caches, and of nvbandwidth's chain."""
FLAG_BYTES = 64 * LINE_BYTES
"""Of a flag of a ping-pong, or of counters: laps and additions take the lines in turn (``egmctl/gpu/kernels/``)."""

CACHED = Footprint(least_bytes=2 * MIB)
"""nvbandwidth's size: it fits every supported GPU's L2 cache."""
UNCACHED = Footprint(least_bytes=64 * MIB, l2_times=4)

LAP_LOADS = CACHED.least_bytes // LINE_BYTES
"""In one sample of a GPU's other loads: each line of :data:`CACHED` once. 5 ms in a GPU's own memory, 22 ms in the
host's; the clock that times them ticks every 32 ns."""

LOAD_BLOCKS_PEER = (0, 1, 2, 4, 8, 16, 32, 64, 128)
LOAD_BLOCKS_HOST = (0, 1, 2, 4, 8, 16, 32)
"""Blocks of 128 threads with 8 KiB under way: from idle to more than the link carries, on H200 from 64 on over NVLink
(366 GB/s) and from 16 on over PCIe (51 GB/s)."""

FOOTPRINTS_LOCAL = (
    2 * MIB,
    8 * MIB,
    32 * MIB,
    128 * MIB,
    512 * MIB,
    *(size * GIB for size in (1, 2, 4, 8, 16, 32, 64)),
)
FOOTPRINTS_HOST = (
    *(size for size in FOOTPRINTS_LOCAL if size <= 16 * GIB),
    *(size * GIB for size in (32, 64, 128, 256)),
)
IF_ROOM_ABOVE_BYTES = 16 * GIB
"""Host memory takes a third of a second a GiB to come by, and how much there is differs by a thousand times: footprints
above this are measured where they have room, so that the reach of the TLB shows there."""
_FITS_L2_BYTES = 32 * MIB
"""Footprints up to this are walked once before, as they fit the L2 cache of every supported GPU."""

_LOCAL = "device_local", MemoryKind.DEVICE, Pattern.LOCAL, "each GPU's own memory"
_PEER = "device_to_device", MemoryKind.DEVICE, Pattern.PAIR, "a peer's device memory, every ordered pair"
_HOST_NUMA = "host_numa_to_device", MemoryKind.HOST_NUMA, Pattern.PAIR, "HOST_NUMA memory, each GPU with each NUMA node"
_POOL = (
    "host_numa_pool_to_device",
    MemoryKind.HOST_NUMA_POOL,
    Pattern.PAIR,
    "HOST_NUMA memory from a pool, each GPU with each NUMA node",
)
_PINNED = "host_to_device", MemoryKind.PINNED, Pattern.PAIR, "pinned memory, each GPU with each NUMA node"


def _chase(
    *,
    order: ChaseOrder = ChaseOrder.RANDOM,
    warm: bool = False,
    loads: int = LAP_LOADS,
    load_blocks: int = 0,
    by_footprint: bool = False,
) -> Chase:
    return Chase(
        order=order,
        stride_bytes=LINE_BYTES,
        warm=warm,
        loads=loads,
        load_blocks=load_blocks,
        by_footprint=by_footprint,
    )


def _case(
    name: str,
    memory: MemoryKind,
    pattern: Pattern,
    description: str,
    chase: Chase,
    footprint: Footprint,
    *,
    one_path: bool = False,
) -> Case:
    return Case(
        name=name,
        family="latency",
        source=memory,
        destination=MemoryKind.REGISTERS,
        engine=Engine.CHASE,
        pattern=pattern,
        initiator=End.DESTINATION,
        description=description,
        quantity=Quantity.LATENCY,
        chase=chase,
        footprint=footprint,
        one_path=one_path,
    )


def _nvbandwidth(name: str, memory: MemoryKind, what: str) -> Case:
    return _case(
        name,
        memory,
        Pattern.PAIR,
        f"latency as nvbandwidth defines it: {what}, 2 MiB, line after line",
        _chase(order=ChaseOrder.SEQUENTIAL, warm=True, loads=LOADS),
        CACHED,
    )


def _idle(word: str, memory: MemoryKind, pattern: Pattern, what: str) -> tuple[Case, ...]:
    return (
        _case(
            f"{word}_latency_cached",
            memory,
            pattern,
            f"latency of {what}: random lines of 2 MiB, read once before",
            _chase(warm=True),
            CACHED,
        ),
        _case(
            f"{word}_latency_uncached",
            memory,
            pattern,
            f"latency of {what}: random lines of 4 times the L2 cache, each read once",
            _chase(),
            UNCACHED,
        ),
    )


def _loaded(word: str, memory: MemoryKind, what: str, load_blocks: Sequence[int]) -> tuple[Case, ...]:
    return tuple(
        _case(
            f"{word}_latency_loaded_{blocks}",
            memory,
            Pattern.LOADED,
            f"latency of {what} (uncached) while {blocks} blocks of the same GPU read from there",
            _chase(load_blocks=blocks),
            UNCACHED,
            one_path=True,
        )
        for blocks in load_blocks
    )


def _footprints(word: str, memory: MemoryKind, pattern: Pattern, what: str, sizes: Sequence[int]) -> tuple[Case, ...]:
    return tuple(
        _case(
            f"{word}_footprint_{format_size(size).replace(' ', '').lower()}",
            memory,
            pattern,
            f"latency of {what}: random lines of {format_size(size)}",
            _chase(warm=size <= _FITS_L2_BYTES, loads=LOADS, by_footprint=True),
            Footprint(least_bytes=size, if_room=memory in HOST_MEMORY and size > IF_ROOM_ABOVE_BYTES),
            one_path=True,
        )
        for size in sizes
    )


def _atomic(word: str, memory: MemoryKind, pattern: Pattern, what: str) -> Case:
    return Case(
        name=f"{word}_atomic_round_trip",
        family="latency",
        source=memory,
        destination=MemoryKind.REGISTERS,
        engine=Engine.ATOMIC_LATENCY,
        pattern=pattern,
        initiator=End.DESTINATION,
        description=f"an atomic addition by one thread until it has the answer: {what}",
        quantity=Quantity.LATENCY,
        chase=Chase(order=ChaseOrder.SEQUENTIAL, stride_bytes=LINE_BYTES, warm=True, loads=LOADS),
        footprint=Footprint(least_bytes=FLAG_BYTES),
    )


def _ping_pong(name: str, memory: MemoryKind, pattern: Pattern, what: str) -> Case:
    return Case(
        name=name,
        family="latency",
        source=MemoryKind.DEVICE,
        destination=memory,
        engine=Engine.PING_PONG,
        pattern=pattern,
        initiator=End.SOURCE,
        description=f"round trip of a flag between two GPUs, {what}, every pair",
        quantity=Quantity.LATENCY,
        chase=Chase(order=ChaseOrder.SEQUENTIAL, stride_bytes=LINE_BYTES, warm=True, loads=LAPS),
        footprint=Footprint(least_bytes=FLAG_BYTES),
    )


CASES = (
    _nvbandwidth("device_to_device_latency_sm", MemoryKind.DEVICE, "a peer's device memory"),
    _nvbandwidth("host_device_latency_sm", MemoryKind.PINNED, "pinned memory"),
    *_idle(*_LOCAL),
    *_idle(*_PEER),
    *_idle(*_HOST_NUMA),
    *_idle(*_POOL),
    *_idle(*_PINNED),
    _ping_pong(
        "device_to_device_ping_pong_latency",
        MemoryKind.DEVICE,
        Pattern.BOTH_DIRECTIONS,
        "each polls its own memory and writes to the other's",
    ),
    _ping_pong(
        "host_numa_ping_pong_latency", MemoryKind.HOST_NUMA, Pattern.PAIR, "both write and poll HOST_NUMA memory"
    ),
    _atomic(*_LOCAL),
    _atomic(*_PEER),
    _atomic(*_HOST_NUMA),
    _atomic(*_PINNED),
    *_loaded("device_to_device", MemoryKind.DEVICE, "a peer's device memory", LOAD_BLOCKS_PEER),
    *_loaded("host_numa_to_device", MemoryKind.HOST_NUMA, "HOST_NUMA memory", LOAD_BLOCKS_HOST),
    *_footprints(*_LOCAL[:3], "the first GPU's own memory", FOOTPRINTS_LOCAL),
    *_footprints(*_PEER[:3], "a peer's device memory, the first pair", FOOTPRINTS_LOCAL),
    *_footprints(*_HOST_NUMA[:3], "HOST_NUMA memory, the first GPU with each NUMA node", FOOTPRINTS_HOST),
)
