"""CPU threads on a GPU's memory: on coherent platforms, where that is a NUMA node of the host."""

from __future__ import annotations

from egmctl.bench.case import Case, End
from egmctl.model.measurement import Engine, MemoryKind, Pattern

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
