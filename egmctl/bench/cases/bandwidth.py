"""Bandwidths within one process: host memory of every kind to and from every GPU, and device memory between GPUs.

HOST_NUMA memory (family ``egm``) uses the EGM path if the platform has EGM. The family ``host`` never does.
"""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.bench.case import Case, End
from egmctl.model.route import MemoryKind
from egmctl.model.task import Engine, Pattern

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


def _case(
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
        _case(f"device_to_device_{word}memcpy_{way}_{suffix}", pattern, engine, end)
        for pattern, word in ((Pattern.PAIR, ""), (Pattern.BOTH_DIRECTIONS, "bidirectional_"))
        for engine, suffix in (*ENGINES, (Engine.BULK, "tma"))
        for way, end in _WAYS
    ),
    # The case that cuda-samples' p2pBandwidthLatencyTest calls P2P=Disabled; P2P=Enabled is the copy engine's writes
    # above. It has one flow at a time: the driver returns from a staged copy when the previous one has completed, so
    # work queued for one flow delays the next (H100: both directions together 40 to 49 GB/s, less with more copies; one
    # alone 37.5).
    _case("device_to_device_staged_memcpy_ce", Pattern.PAIR, staged=True),
    _case("device_local_copy", Pattern.LOCAL),
    _case("device_local_copy_sm", Pattern.LOCAL, Engine.SM_COPY),
    _case("device_local_copy_tma", Pattern.LOCAL, Engine.BULK),
    _case("device_local_read_sm", Pattern.LOCAL, Engine.SM_READ, destination=_REGISTERS),
    _case("device_local_write_sm", Pattern.LOCAL, Engine.SM_WRITE, source=_REGISTERS),
    _case("device_default_pool_memcpy_write_ce", Pattern.PAIR, source=_OWN_POOL, destination=_OWN_POOL),
    _case("device_default_pool_local_copy", Pattern.LOCAL, source=_OWN_POOL, destination=_OWN_POOL),
    _case("device_to_device_read_sm", Pattern.PAIR, Engine.SM_READ, End.DESTINATION, destination=_REGISTERS),
    _case("device_to_device_write_sm", Pattern.PAIR, Engine.SM_WRITE, source=_REGISTERS),
    _case("device_to_device_atomic_add", Pattern.PAIR, Engine.ATOMIC, source=_REGISTERS),
    _case("device_local_atomic_add", Pattern.LOCAL, Engine.ATOMIC, source=_REGISTERS),
    *(
        _case(f"{name}_{suffix}", pattern, engine, end)
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
