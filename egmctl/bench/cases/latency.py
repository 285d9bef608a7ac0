"""Latencies of one access to a GPU's own memory, a peer's and the host's, idle and loaded, and of a flag's round trip.

The names have the direction of the data: in ``device_to_device`` the GPU on the right reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from egmctl.bench.case import Case, End, Footprint
from egmctl.model.route import MemoryKind
from egmctl.model.task import Chase, ChaseOrder, Engine, Pattern, Point, Quantity
from egmctl.units import GIB, MIB

LOADS = 40_000
"""Loads of one sample in cases that need many: nvbandwidth's cases, which use one multiprocessor after the other; large
footprints, whose pages fewer loads would not all reach; loads by a CPU; and atomic additions."""
LAPS = 2_000
LINE_BYTES = 128
"""The cache line size of GPUs, and the stride of nvbandwidth's chain, in bytes."""
FLAG_BYTES = 64 * LINE_BYTES
"""The size of the flags of a ping-pong, or of counters. Laps and additions use the lines in turn
(``egmctl/gpu/kernels/``)."""

CACHED = Footprint(least_bytes=2 * MIB)
"""nvbandwidth's size, which fits the L2 cache of every supported GPU."""
UNCACHED = Footprint(least_bytes=64 * MIB, l2_times=4)
CPU_UNCACHED = Footprint(least_bytes=512 * MIB)
"""A footprint larger than a CPU's caches: 114 MiB on Grace, 384 MiB on the largest x86 CPUs without stacked caches."""

LAP_LOADS = CACHED.least_bytes // LINE_BYTES
"""Loads of one sample in a GPU's other cases: each line of :data:`CACHED` once. They take 5 ms in a GPU's own memory
and 22 ms in the host's. The clock that times them has a resolution of 32 ns."""

LOAD_BLOCKS_PEER = (0, 1, 2, 4, 8, 16, 32, 64, 128)
LOAD_BLOCKS_HOST = (0, 1, 2, 4, 8, 16, 32)
"""The numbers of blocks of 128 threads that load a path, each with 8 KiB in flight: from idle to more than the link
carries, which on H200 is from 64 on over NVLink (366 GB/s) and from 16 on over PCIe (51 GB/s)."""

FOOTPRINTS_LOCAL = (*(size * MIB for size in (2, 8, 32, 128, 512)), *(size * GIB for size in (1, 2, 4, 8, 16, 32, 64)))
FOOTPRINTS_HOST = (*FOOTPRINTS_LOCAL, 128 * GIB, 256 * GIB)
"""Footprints in host memory; large ones are measured only if they fit
(:data:`egmctl.bench.plan.make.IF_ROOM_ABOVE_BYTES`)."""

_LOCAL = "device_local", MemoryKind.DEVICE, Pattern.LOCAL
_PEER = "device_to_device", MemoryKind.DEVICE, Pattern.PAIR
_HOST_NUMA = "host_numa_to_device", MemoryKind.HOST_NUMA, Pattern.PAIR
_POOL = "host_numa_pool_to_device", MemoryKind.HOST_NUMA_POOL, Pattern.PAIR
_PINNED = "host_to_device", MemoryKind.PINNED, Pattern.PAIR


def sequential(loads: int) -> Chase:
    """Return a walk from line to line, or ``loads`` round trips."""
    return Chase(order=ChaseOrder.SEQUENTIAL, stride_bytes=LINE_BYTES, warm=True, loads=loads)


def random_lines(*, warm: bool = False, loads: int = LAP_LOADS) -> Chase:
    """Return a walk over lines in random order."""
    return Chase(order=ChaseOrder.RANDOM, stride_bytes=LINE_BYTES, warm=warm, loads=loads)


def _case(
    name: str,
    memory: MemoryKind,
    pattern: Pattern,
    chase: Chase,
    footprint: Footprint,
    *,
    engine: Engine = Engine.CHASE,
    points: Sequence[Point] = (Point(),),
) -> Case:
    return Case(
        name,
        *("latency", memory, MemoryKind.REGISTERS, engine, End.DESTINATION),
        pattern=pattern,
        points=tuple(points),
        quantity=Quantity.LATENCY,
        chase=chase,
        footprint=footprint,
    )


def _loaded(name: str, memory: MemoryKind, load_blocks: Sequence[int]) -> Case:
    points = [Point(load=blocks) for blocks in load_blocks]
    return _case(name, memory, Pattern.LOADED, random_lines(), UNCACHED, points=points)


def _footprints(word: str, memory: MemoryKind, pattern: Pattern, sizes: Sequence[int]) -> Case:
    points = [Point(footprint=size) for size in sizes]
    return _case(f"{word}_footprint", memory, pattern, random_lines(loads=LOADS), CACHED, points=points)


def _ping_pong(name: str, memory: MemoryKind, pattern: Pattern) -> Case:
    return Case(
        name,
        *("latency", MemoryKind.DEVICE, memory, Engine.PING_PONG, End.SOURCE),
        pattern=pattern,
        quantity=Quantity.LATENCY,
        chase=sequential(LAPS),
        footprint=Footprint(least_bytes=FLAG_BYTES),
    )


CASES = (
    *(
        _case(name, memory, Pattern.PAIR, sequential(LOADS), CACHED, engine=engine)
        for name, memory, engine in (
            ("device_to_device_latency_sm", MemoryKind.DEVICE, Engine.CHASE),
            ("device_to_device_latency_tma", MemoryKind.DEVICE, Engine.CHASE_BULK),
            ("host_device_latency_sm", MemoryKind.PINNED, Engine.CHASE),
        )
    ),
    *(
        _case(f"{word}_latency_{suffix}", memory, pattern, random_lines(warm=warm), footprint)
        for word, memory, pattern in (_LOCAL, _PEER, _HOST_NUMA, _POOL, _PINNED)
        for suffix, warm, footprint in (("cached", True, CACHED), ("uncached", False, UNCACHED))
    ),
    _ping_pong("device_to_device_ping_pong_latency", MemoryKind.DEVICE, Pattern.BOTH_DIRECTIONS),
    _ping_pong("host_numa_ping_pong_latency", MemoryKind.HOST_NUMA, Pattern.PAIR),
    *(
        _case(
            f"{word}_atomic_round_trip",
            *(memory, pattern, sequential(LOADS), Footprint(least_bytes=FLAG_BYTES)),
            engine=Engine.ATOMIC_LATENCY,
        )
        for word, memory, pattern in (_LOCAL, _PEER, _HOST_NUMA, _PINNED)
    ),
    _loaded("device_to_device_latency_loaded", MemoryKind.DEVICE, LOAD_BLOCKS_PEER),
    _loaded("host_numa_to_device_latency_loaded", MemoryKind.HOST_NUMA, LOAD_BLOCKS_HOST),
    _footprints(*_LOCAL, FOOTPRINTS_LOCAL),
    _footprints(*_PEER, FOOTPRINTS_LOCAL),
    _footprints(*_HOST_NUMA, FOOTPRINTS_HOST),
    *(
        _case(
            f"cpu_latency_{memory.value.replace('-', '_')}",
            *(memory, Pattern.PAIR, random_lines(loads=LOADS), CPU_UNCACHED),
            engine=Engine.CPU_CHASE,
        )
        for memory in (MemoryKind.HOST_NUMA, MemoryKind.GPU_NUMA)
    ),
)
