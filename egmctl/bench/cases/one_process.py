"""Cases of one process: bandwidths of host memory of every kind to and from every GPU and between GPUs, and latencies.

HOST_NUMA memory (family ``egm``) uses the EGM path if the platform has EGM. The family ``host`` never does. The names
of latencies have the direction of the data: in ``device_to_device`` the GPU on the right reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from egmctl.bench.case import Case, End, Footprint
from egmctl.model.route import MemoryKind
from egmctl.model.task import Chase, ChaseOrder, Engine, Pattern, Point, Quantity
from egmctl.units import GIB, MIB

ENGINES = ((Engine.COPY_ENGINE, "ce"), (Engine.SM_COPY, "sm"))

CaseMemory = tuple[str, MemoryKind, str]
"""A kind of memory: the word for it in case names, the memory and the family."""

_VMM = ("host_numa", MemoryKind.HOST_NUMA, "egm")
_POOL = ("host_numa_pool", MemoryKind.HOST_NUMA_POOL, "egm")
_PINNED = ("host", MemoryKind.PINNED, "host")


def to_gpu(name: str, kind: CaseMemory, engine: Engine, pattern: Pattern = Pattern.PAIR) -> Case:
    """Return a case that moves host memory to device memory."""
    _, memory, family = kind
    return Case(name, family, memory, MemoryKind.DEVICE, engine, End.DESTINATION, pattern=pattern)


def from_gpu(name: str, kind: CaseMemory, engine: Engine, pattern: Pattern = Pattern.PAIR) -> Case:
    """Return a case that moves device memory to host memory."""
    _, memory, family = kind
    return Case(name, family, MemoryKind.DEVICE, memory, engine, End.SOURCE, pattern=pattern)


def copies(kind: CaseMemory) -> Iterator[Case]:
    """Yield the cases that copy between each GPU and each NUMA node."""
    word = kind[0]
    for engine, suffix in ENGINES:
        yield to_gpu(f"{word}_to_device_memcpy_{suffix}", kind, engine)
        yield from_gpu(f"device_to_{word}_memcpy_{suffix}", kind, engine)


def at_once(kind: CaseMemory) -> Iterator[Case]:
    """Yield the cases that copy in both directions at once, and with all GPUs at once."""
    word = kind[0]
    for engine, suffix in ENGINES:
        yield to_gpu(f"{word}_to_device_bidirectional_memcpy_{suffix}", kind, engine, Pattern.BOTH_DIRECTIONS)
        yield to_gpu(f"{word}_to_all_memcpy_{suffix}", kind, engine, Pattern.OWN_NODE)
        yield from_gpu(f"all_to_{word}_memcpy_{suffix}", kind, engine, Pattern.OWN_NODE)
        yield to_gpu(f"{word}_to_all_bidirectional_memcpy_{suffix}", kind, engine, Pattern.OWN_NODE_BOTH)
        yield to_gpu(f"{word}_one_node_to_all_memcpy_{suffix}", kind, engine, Pattern.ONE_NODE)
        yield from_gpu(f"all_to_{word}_one_node_memcpy_{suffix}", kind, engine, Pattern.ONE_NODE)


def one_sided(kind: CaseMemory) -> Iterator[Case]:
    """Yield the cases that only read or only write."""
    word, memory, family = kind
    for engine, suffix in ((Engine.SM_READ, "read_sm"), (Engine.CPU, "read_cpu")):
        yield Case(f"{word}_{suffix}", family, memory, MemoryKind.REGISTERS, engine, End.DESTINATION)
    for engine, suffix in ((Engine.SM_WRITE, "write_sm"), (Engine.ATOMIC, "atomic_add"), (Engine.CPU, "write_cpu")):
        yield Case(f"{word}_{suffix}", family, MemoryKind.REGISTERS, memory, engine, End.SOURCE)


EGM_CASES = (
    *copies(_VMM),
    *at_once(_VMM),
    *one_sided(_VMM),
    to_gpu("host_numa_to_device_memcpy_tma", _VMM, Engine.BULK),
    from_gpu("device_to_host_numa_memcpy_tma", _VMM, Engine.BULK),
    # Between host memory the driver selects the copier: on HGX H100 the CPU copied most of the bytes.
    *(
        Case(
            f"host_numa_to_host_numa_memcpy_{suffix}",
            *("egm", MemoryKind.HOST_NUMA, MemoryKind.HOST_NUMA, engine, End.SOURCE),
        )
        for engine, suffix in ENGINES
    ),
    Case(
        "host_numa_by_owner_to_device_memcpy_ce",
        *("egm", MemoryKind.HOST_NUMA, MemoryKind.DEVICE, Engine.COPY_ENGINE, End.DESTINATION),
        by_owner=True,
    ),
    *copies(_POOL),
    *at_once(_POOL),
    *one_sided(_POOL),
    *copies(("host_numa_default_pool", MemoryKind.HOST_NUMA_DEFAULT_POOL, "egm")),
)

_GPU_NUMA = ("gpu_numa", MemoryKind.GPU_NUMA, "host")

HOST_CASES = (
    *copies(_PINNED),
    *at_once(_PINNED),
    *one_sided(_PINNED),
    # STREAM is about the CPUs' own memory: no GPU reaches it, so it is neither pinned nor registered.
    Case("host_triad_cpu", "host", MemoryKind.SYSTEM, MemoryKind.REGISTERS, Engine.CPU_TRIAD, End.DESTINATION),
    *(
        case
        for case in copies(("host_default_pool", MemoryKind.HOST_DEFAULT_POOL, "host"))
        if case.engine is Engine.COPY_ENGINE
    ),
    *copies(("registered", MemoryKind.REGISTERED, "host")),
    *copies(("hugetlb", MemoryKind.HUGETLB, "host")),
    *copies(("thp", MemoryKind.THP, "host")),
    *copies(("managed", MemoryKind.MANAGED, "host")),
    *copies(("system", MemoryKind.SYSTEM, "host")),
    # A GPU's memory, if it is a NUMA node of the host, accessed by CPU threads.
    *(case for case in one_sided(_GPU_NUMA) if case.engine is Engine.CPU),
)


_DEVICE, _OWN_POOL, _REGISTERS = MemoryKind.DEVICE, MemoryKind.DEVICE_DEFAULT_POOL, MemoryKind.REGISTERS
_WAYS = (("write", End.SOURCE), ("read", End.DESTINATION))


def _peer_case(
    name: str,
    pattern: Pattern,
    engine: Engine = Engine.COPY_ENGINE,
    initiator: End = End.SOURCE,
    *,
    source: MemoryKind = _DEVICE,
    destination: MemoryKind = _DEVICE,
    staged: bool = False,
) -> Case:
    return Case(name, "p2p", source, destination, engine, initiator, pattern=pattern, staged=staged)


P2P_CASES = (
    *(
        _peer_case(f"device_to_device_{word}memcpy_{way}_{suffix}", pattern, engine, end)
        for pattern, word in ((Pattern.PAIR, ""), (Pattern.BOTH_DIRECTIONS, "bidirectional_"))
        for engine, suffix in (*ENGINES, (Engine.BULK, "tma"))
        for way, end in _WAYS
    ),
    # The case that cuda-samples' p2pBandwidthLatencyTest calls P2P=Disabled; P2P=Enabled is the copy engine's writes
    # above. It has one flow at a time: the driver returns from a staged copy when the previous one has completed, so
    # work queued for one flow delays the next (H100: both directions together 40 to 49 GB/s, less with more copies; one
    # alone 37.5).
    _peer_case("device_to_device_staged_memcpy_ce", Pattern.PAIR, staged=True),
    _peer_case("device_local_copy", Pattern.LOCAL),
    _peer_case("device_local_copy_sm", Pattern.LOCAL, Engine.SM_COPY),
    _peer_case("device_local_copy_tma", Pattern.LOCAL, Engine.BULK),
    _peer_case("device_local_read_sm", Pattern.LOCAL, Engine.SM_READ, destination=_REGISTERS),
    _peer_case("device_local_write_sm", Pattern.LOCAL, Engine.SM_WRITE, source=_REGISTERS),
    _peer_case("device_default_pool_memcpy_write_ce", Pattern.PAIR, source=_OWN_POOL, destination=_OWN_POOL),
    _peer_case("device_default_pool_local_copy", Pattern.LOCAL, source=_OWN_POOL, destination=_OWN_POOL),
    _peer_case("device_to_device_read_sm", Pattern.PAIR, Engine.SM_READ, End.DESTINATION, destination=_REGISTERS),
    _peer_case("device_to_device_write_sm", Pattern.PAIR, Engine.SM_WRITE, source=_REGISTERS),
    _peer_case("device_to_device_atomic_add", Pattern.PAIR, Engine.ATOMIC, source=_REGISTERS),
    _peer_case("device_local_atomic_add", Pattern.LOCAL, Engine.ATOMIC, source=_REGISTERS),
    *(
        _peer_case(f"{name}_{suffix}", pattern, engine, end)
        for engine, suffix in ENGINES
        for name, pattern, end in (
            ("ring_write", Pattern.RING, End.SOURCE),
            ("one_to_all_write", Pattern.ONE_TO_ALL, End.SOURCE),
            ("one_to_all_read", Pattern.ONE_TO_ALL, End.DESTINATION),
            ("all_to_one_write", Pattern.ALL_TO_ONE, End.SOURCE),
            ("all_to_one_read", Pattern.ALL_TO_ONE, End.DESTINATION),
            ("bisect_write", Pattern.BISECT, End.SOURCE),
            ("all_pairs_write", Pattern.ALL_PAIRS, End.SOURCE),
        )
    ),
)


# --- latencies: one access to a GPU's own memory, a peer's and the host's, idle and loaded, and a flag's round trip ---

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

_LOCAL_PATH = "device_local", MemoryKind.DEVICE, Pattern.LOCAL
_PEER_PATH = "device_to_device", MemoryKind.DEVICE, Pattern.PAIR
_HOST_NUMA_PATH = "host_numa_to_device", MemoryKind.HOST_NUMA, Pattern.PAIR
_POOL_PATH = "host_numa_pool_to_device", MemoryKind.HOST_NUMA_POOL, Pattern.PAIR
_PINNED_PATH = "host_to_device", MemoryKind.PINNED, Pattern.PAIR


def sequential(loads: int) -> Chase:
    """Return a walk from line to line, or ``loads`` round trips."""
    return Chase(order=ChaseOrder.SEQUENTIAL, stride_bytes=LINE_BYTES, warm=True, loads=loads)


def random_lines(*, warm: bool = False, loads: int = LAP_LOADS) -> Chase:
    """Return a walk over lines in random order."""
    return Chase(order=ChaseOrder.RANDOM, stride_bytes=LINE_BYTES, warm=warm, loads=loads)


def _latency(
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
    return _latency(name, memory, Pattern.LOADED, random_lines(), UNCACHED, points=points)


def _footprints(word: str, memory: MemoryKind, pattern: Pattern, sizes: Sequence[int]) -> Case:
    points = [Point(footprint=size) for size in sizes]
    return _latency(f"{word}_footprint", memory, pattern, random_lines(loads=LOADS), CACHED, points=points)


def _ping_pong(name: str, memory: MemoryKind, pattern: Pattern) -> Case:
    return Case(
        name,
        *("latency", MemoryKind.DEVICE, memory, Engine.PING_PONG, End.SOURCE),
        pattern=pattern,
        quantity=Quantity.LATENCY,
        chase=sequential(LAPS),
        footprint=Footprint(least_bytes=FLAG_BYTES),
    )


LATENCY_CASES = (
    *(
        _latency(name, memory, Pattern.PAIR, sequential(LOADS), CACHED, engine=engine)
        for name, memory, engine in (
            ("device_to_device_latency_sm", MemoryKind.DEVICE, Engine.CHASE),
            ("device_to_device_latency_tma", MemoryKind.DEVICE, Engine.CHASE_BULK),
            ("host_device_latency_sm", MemoryKind.PINNED, Engine.CHASE),
        )
    ),
    *(
        _latency(f"{word}_latency_{suffix}", memory, pattern, random_lines(warm=warm), footprint)
        for word, memory, pattern in (_LOCAL_PATH, _PEER_PATH, _HOST_NUMA_PATH, _POOL_PATH, _PINNED_PATH)
        for suffix, warm, footprint in (("cached", True, CACHED), ("uncached", False, UNCACHED))
    ),
    _ping_pong("device_to_device_ping_pong_latency", MemoryKind.DEVICE, Pattern.BOTH_DIRECTIONS),
    _ping_pong("host_numa_ping_pong_latency", MemoryKind.HOST_NUMA, Pattern.PAIR),
    *(
        _latency(
            f"{word}_atomic_round_trip",
            *(memory, pattern, sequential(LOADS), Footprint(least_bytes=FLAG_BYTES)),
            engine=Engine.ATOMIC_LATENCY,
        )
        for word, memory, pattern in (_LOCAL_PATH, _PEER_PATH, _HOST_NUMA_PATH, _PINNED_PATH)
    ),
    _loaded("device_to_device_latency_loaded", MemoryKind.DEVICE, LOAD_BLOCKS_PEER),
    _loaded("host_numa_to_device_latency_loaded", MemoryKind.HOST_NUMA, LOAD_BLOCKS_HOST),
    _footprints(*_LOCAL_PATH, FOOTPRINTS_LOCAL),
    _footprints(*_PEER_PATH, FOOTPRINTS_LOCAL),
    _footprints(*_HOST_NUMA_PATH, FOOTPRINTS_HOST),
    *(
        _latency(
            f"cpu_latency_{memory.value.replace('-', '_')}",
            *(memory, Pattern.PAIR, random_lines(loads=LOADS), CPU_UNCACHED),
            engine=Engine.CPU_CHASE,
        )
        for memory in (MemoryKind.HOST_NUMA, MemoryKind.GPU_NUMA)
    ),
)
