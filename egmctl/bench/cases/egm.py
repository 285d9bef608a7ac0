"""Memory of a host NUMA node to and from every GPU. Where the platform has EGM, this is the EGM path."""

from __future__ import annotations

from dataclasses import replace

from egmctl.bench.case import Case, End
from egmctl.bench.cases.host import ENGINES, at_once, bulk, copies, one_sided
from egmctl.model.measurement import Engine, MemoryKind, Pattern

_VMM = ("host_numa", MemoryKind.HOST_NUMA, "HOST_NUMA memory (cuMemCreate)", "egm")
_POOL = ("host_numa_pool", MemoryKind.HOST_NUMA_POOL, "HOST_NUMA memory from a pool (cuMemPoolCreate)", "egm")
_DEFAULT_POOL = (
    "host_numa_default_pool",
    MemoryKind.HOST_NUMA_DEFAULT_POOL,
    "HOST_NUMA memory from the driver's own pool of the node (cuMemGetDefaultMemPool, CUDA 13.0)",
    "egm",
)

_COPIES = copies(*_VMM)

_NODE_TO_NODE = tuple(
    Case(
        name=f"host_numa_to_host_numa_memcpy_{suffix}",
        family="egm",
        source=MemoryKind.HOST_NUMA,
        destination=MemoryKind.HOST_NUMA,
        engine=engine,
        pattern=Pattern.PAIR,
        initiator=End.SOURCE,
        description=f"HOST_NUMA memory (cuMemCreate) of one NUMA node to that of another {how}, each GPU; or within it",
    )
    for engine, suffix, how in (
        # Between host memory the driver chooses: on HGX H100 the CPU copied most of the bytes.
        (Engine.COPY_ENGINE, "ce", "by cuMemcpyAsync (copy engine or CPU: the link's counters tell)"),
        *(one for one in ENGINES if one[0] is not Engine.COPY_ENGINE),
    )
)

_BY_OWNER = Case(
    name="host_numa_by_owner_to_device_memcpy_ce",
    family="egm",
    source=MemoryKind.HOST_NUMA,
    destination=MemoryKind.DEVICE,
    engine=Engine.COPY_ENGINE,
    pattern=Pattern.PAIR,
    initiator=End.DESTINATION,
    description="HOST_NUMA memory (cuMemCreate) allocated under each GPU of a NUMA node to device memory of each of "
    "these GPUs by the GPU's copy engine: which of them owns it",
    by_owner=True,
)

CASES = (
    *_COPIES,
    # One stream is said not to fill NVLink-C2C.
    *(
        replace(case, name=f"{case.name}_4_streams", streams=4, description=f"{case.description}, 4 streams")
        for case in _COPIES
        if case.engine is Engine.COPY_ENGINE
    ),
    *at_once(*_VMM),
    *one_sided(*_VMM),
    *bulk(*_VMM),
    *_NODE_TO_NODE,
    _BY_OWNER,
    *copies(*_POOL),
    *at_once(*_POOL),
    *one_sided(*_POOL),
    *copies(*_DEFAULT_POOL),
)
