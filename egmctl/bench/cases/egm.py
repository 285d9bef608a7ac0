"""Memory of a host NUMA node to and from every GPU. Where the platform has EGM, this is the EGM path."""

from __future__ import annotations

from egmctl.bench.case import Case, End
from egmctl.model.measurement import Engine, MemoryKind, Pattern

CASES = (
    Case(
        name="host_numa_to_device_memcpy_ce",
        family="egm",
        source=MemoryKind.HOST_NUMA,
        destination=MemoryKind.DEVICE,
        engine=Engine.COPY_ENGINE,
        pattern=Pattern.PAIR,
        initiator=End.DESTINATION,
        description="HOST_NUMA memory to device memory by the GPU's copy engine, each GPU with each NUMA node",
    ),
    Case(
        name="device_to_host_numa_memcpy_ce",
        family="egm",
        source=MemoryKind.DEVICE,
        destination=MemoryKind.HOST_NUMA,
        engine=Engine.COPY_ENGINE,
        pattern=Pattern.PAIR,
        initiator=End.SOURCE,
        description="device memory to HOST_NUMA memory by the GPU's copy engine, each GPU with each NUMA node",
    ),
)
