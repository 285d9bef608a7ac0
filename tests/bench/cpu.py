"""Measurements by CPU threads of this machine."""

from __future__ import annotations

import ctypes
from typing import Any

from egmctl.bench.engines import cpu
from egmctl.bench.processes.context import AllocatedBuffer, Stopwatch
from egmctl.model.measurement import Measurement, Placement, Settings
from egmctl.model.route import Route
from egmctl.model.task import Endpoint, Engine, Flow, Pattern, Quantity, Task

SETTINGS = Settings(size_bytes=1 << 20, copies=2, samples=3, timeout_s=1)


class Memory:
    """Memory of this process; its size is no multiple of the threads."""

    def __init__(self, size_bytes: int = 1 << 20) -> None:
        self._bytes = ctypes.create_string_buffer(size_bytes)
        self.address, self.size_bytes = ctypes.addressof(self._bytes), size_bytes


class StubRig:
    """A worker whose one buffer is memory of this process, of which the kernel says where it is."""

    def __init__(self, memory: Memory, *placements: Placement) -> None:
        self._memory, self._placements = memory, placements
        self.stopwatch = Stopwatch()

    def held(self, _buffer: object) -> AllocatedBuffer:
        memory: Any = self._memory
        return AllocatedBuffer(memory, seed=7)

    def placements(self, _buffers: object) -> tuple[Placement, ...]:
        return self._placements

    def new_seed(self) -> int:
        return 7


def measured(
    task: Task, *placements: Placement, memory: Memory | None = None, how: type[cpu.Passes | cpu.Walks] = cpu.Passes
) -> Measurement:
    """Measure a task on memory of this process."""
    worker: Any = StubRig(memory or Memory(), *placements)
    (found,) = cpu.measure_by_cpu(how, worker, [task], SETTINGS)
    return found


def task(source: Endpoint, destination: Endpoint) -> Task:
    flow = Flow(source=source, destination=destination, initiator=None, initiator_label="CPU0", route=Route())
    return Task(
        case="host_numa_read_cpu",
        family="egm",
        quantity=Quantity.BANDWIDTH,
        engine=Engine.CPU,
        pattern=Pattern.PAIR,
        flows=(flow,),
        counted="each byte read or written by the CPUs",
        size_bytes=1 << 20,
        copies=2,
    )
