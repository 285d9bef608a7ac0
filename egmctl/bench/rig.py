"""What measurements are made with, set up once in the worker and reused by all: contexts, kernels, gate, buffers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from itertools import count
from typing import Protocol, TypeVar

from egmctl.bench.buffers import Buffer
from egmctl.bench.evidence import Witness
from egmctl.bench.protocol import Preparation
from egmctl.errors import DriverCallError
from egmctl.gpu.context import Context
from egmctl.gpu.driver import call
from egmctl.gpu.memory import DeviceMemory, HostNumaMemory, Memory, PinnedWords
from egmctl.gpu.pattern import HostPattern, KernelPattern, Pattern
from egmctl.gpu.placement import Before
from egmctl.gpu.program import Kernels, NoCompiler
from egmctl.gpu.telemetry import Telemetry
from egmctl.gpu.timing import Stream, choose_gate
from egmctl.model.measurement import MemoryKind, Placement, Verification


class _Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=_Closable)


class Rig:
    """The GPUs of one run and everything taken on them, released in reverse order by :meth:`close`.

    A GPU that cannot be opened fails the tasks that need it, not the others.
    """

    def __init__(self, preparation: Preparation) -> None:
        self._host_access = {access.numa_node: access.gpus for access in preparation.host_access}
        self._contexts: dict[str, Context] = {}
        self._unusable: dict[str, DriverCallError] = {}
        self._streams: dict[tuple[str, int], Stream] = {}
        self._buffers: dict[Buffer, Memory] = {}
        self._seeds: dict[Buffer, int] = {}
        self._before: dict[Buffer, Before] = {}
        self._placements: dict[Buffer, Placement] = {}
        self._new_seeds = count(1)
        self.note: str | None = None
        self.kernels: dict[str, Kernels] | None = None
        with ExitStack() as undo:
            self._undo = undo
            for bus_id in preparation.gpus:
                try:
                    self._contexts[bus_id] = self._keep(Context(bus_id))
                except DriverCallError as error:
                    self._unusable[bus_id] = error
            if self._contexts:
                self._set_up()
            self._undo = undo.pop_all()

    def _set_up(self) -> None:
        """Make what all tasks share, on every GPU, before anything is timed."""
        for bus_id in self._contexts:
            self.stream(bus_id)
        try:
            self.kernels = {bus_id: self._keep(Kernels(context)) for bus_id, context in self._contexts.items()}
        except NoCompiler as error:
            self.note = f"measured without kernels, which takes longer and checks less: {error}"
        self.witness = Witness(self._keep(Telemetry(self._contexts)))
        words = self._keep(PinnedWords(2))
        self.gate = choose_gate(words, list(self._contexts.values()), self.kernels)
        self.pattern: Pattern
        if self.kernels is not None:
            self.pattern = self._keep(KernelPattern(self.kernels, self._contexts))
            self.verification = Verification.GPU_EVERY_SAMPLE
        else:
            self.pattern = HostPattern()
            self.verification = Verification.HOST_FIRST_AND_LAST_SAMPLE

    def stream(self, bus_id: str, number: int = 0) -> Stream:
        """Return one of a GPU's streams.

        Raises
        ------
        DriverCallError
            The one that kept the GPU from being opened.
        """
        if bus_id in self._unusable:
            raise self._unusable[bus_id]
        if (bus_id, number) not in self._streams:
            self._streams[bus_id, number] = self._keep(Stream(self._contexts[bus_id]))
        return self._streams[bus_id, number]

    def source(self, buffer: Buffer, initiator: str) -> tuple[Memory, int]:
        """Return a buffer to copy from, filled with the pattern of the seed beside it.

        It is filled once: nothing writes to it afterwards. No two have the same seed, so that data that came from the
        wrong one is seen.
        """
        if buffer not in self._buffers:
            memory, seed = self._allocate(buffer), self.new_seed()
            try:
                self.pattern.fill(self.stream(buffer.end.bus_id or initiator), memory, seed)
            except DriverCallError:
                # The kernel may still be writing to it.
                self._keep(memory)
                raise
            self._buffers[buffer], self._seeds[buffer] = memory, seed
        return self._buffers[buffer], self._seeds[buffer]

    def destination(self, buffer: Buffer) -> Memory:
        """Return a buffer to copy to."""
        if buffer not in self._buffers:
            self._buffers[buffer] = self._allocate(buffer)
        return self._buffers[buffer]

    def new_seed(self) -> int:
        """Return a seed that no buffer has had."""
        return next(self._new_seeds)

    def placements(self, buffers: Sequence[Buffer]) -> tuple[Placement, ...]:
        """Return where those of some buffers lie that are in host memory, once they have been written."""
        for buffer in buffers:
            if buffer in self._before and buffer in self._buffers and buffer not in self._placements:
                memory = self._buffers[buffer]
                where = self._before[buffer].where(buffer.end.label, memory.address, memory.size_bytes)
                self._placements[buffer] = where
        return tuple(self._placements[buffer] for buffer in buffers if buffer in self._placements)

    def release(self, buffer: Buffer) -> None:
        """Give a buffer back, if it was ever made."""
        self._placements.pop(buffer, None)
        self._before.pop(buffer, None)
        if (memory := self._buffers.pop(buffer, None)) is not None:
            memory.close()

    def connect(self, initiator: str, bus_id: str | None) -> None:
        """Let the GPU that issues work reach the memory of another one."""
        if bus_id is not None and bus_id != initiator:
            self.stream(initiator).context.enable_access_to(self.stream(bus_id).context)

    def works(self) -> bool:
        """Say whether every context still works: some errors leave one that fails every further call."""
        try:
            for context in self._contexts.values():
                context.make_current()
                call("cuCtxSynchronize")
        except DriverCallError:
            return False
        return True

    def close(self) -> None:
        """Release everything, in reverse order, whatever fails.

        Raises
        ------
        DriverCallError
            The last failure.
        """
        with self._undo:
            for buffer in self._buffers:
                self._undo.callback(self.release, buffer)

    def _allocate(self, buffer: Buffer) -> Memory:
        end = buffer.end
        if end.memory is MemoryKind.DEVICE:
            return DeviceMemory(self.stream(end.bus_id or "").context, buffer.size_bytes)
        node = end.numa_node or 0
        self._before[buffer] = Before(node)
        contexts = [self._contexts[bus_id] for bus_id in self._host_access[node] if bus_id in self._contexts]
        return HostNumaMemory(node, buffer.size_bytes, contexts)

    def _keep(self, resource: T) -> T:
        return self._undo.enter_context(closing(resource))
