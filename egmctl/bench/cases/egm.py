"""Memory of a host NUMA node to and from every GPU. Where the platform has EGM, this is the EGM path."""

from __future__ import annotations

from dataclasses import replace

from egmctl.bench.cases.host import at_once, bulk, copies, one_sided
from egmctl.model.measurement import Engine, MemoryKind

_VMM = ("host_numa", MemoryKind.HOST_NUMA, "HOST_NUMA memory (cuMemCreate)", "egm")
_POOL = ("host_numa_pool", MemoryKind.HOST_NUMA_POOL, "HOST_NUMA memory from a pool (cuMemPoolCreate)", "egm")

_COPIES = copies(*_VMM)

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
    *copies(*_POOL),
    *at_once(*_POOL),
    *one_sided(*_POOL),
)
