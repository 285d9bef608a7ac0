"""CPU threads on a GPU's memory, on coherent platforms where that is a NUMA node of the host.

Bandwidth, and latency beside that of the host's own memory.
"""

from __future__ import annotations

from egmctl.bench.case import Case, End, Footprint
from egmctl.bench.cases.latency import LINE_BYTES, LOADS
from egmctl.model.measurement import Chase, ChaseOrder, Engine, MemoryKind, Pattern, Quantity
from egmctl.units import MIB, format_size

UNCACHED_BYTES = 512 * MIB
"""More than a CPU's caches hold: 114 MiB on Grace, 384 MiB on the largest x86 ones without stacked caches."""

_WHAT = "a GPU's memory as a NUMA node of the host"
_WHO = "CPU threads of each NUMA node: a lower bound"


def _case(name: str, source: MemoryKind, destination: MemoryKind, initiator: End, how: str) -> Case:
    return Case(
        name=name,
        family="host",
        source=source,
        destination=destination,
        engine=Engine.CPU,
        pattern=Pattern.PAIR,
        initiator=initiator,
        description=f"{_WHAT}, {how} by {_WHO}",
    )


CASES = (
    _case("gpu_numa_read_cpu", MemoryKind.GPU_NUMA, MemoryKind.REGISTERS, End.DESTINATION, "read"),
    _case("gpu_numa_write_cpu", MemoryKind.REGISTERS, MemoryKind.GPU_NUMA, End.SOURCE, "written"),
)

LATENCY_CASES = tuple(
    Case(
        name=f"cpu_latency_{word}",
        family="latency",
        source=memory,
        destination=MemoryKind.REGISTERS,
        engine=Engine.CPU_CHASE,
        pattern=Pattern.PAIR,
        initiator=End.DESTINATION,
        description=f"latency of {what}, random lines of {format_size(UNCACHED_BYTES)} read by one thread of a CPU",
        quantity=Quantity.LATENCY,
        chase=Chase(order=ChaseOrder.RANDOM, stride_bytes=LINE_BYTES, warm=False, loads=LOADS),
        footprint=Footprint(least_bytes=UNCACHED_BYTES),
    )
    for word, memory, what in (
        ("host_numa", MemoryKind.HOST_NUMA, "HOST_NUMA memory of each NUMA node"),
        ("gpu_numa", MemoryKind.GPU_NUMA, _WHAT),
    )
)
