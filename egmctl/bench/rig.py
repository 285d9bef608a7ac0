"""What measurements are made with, set up once in the worker and reused by all: contexts, kernels, gate, buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Protocol, TypeVar

from egmctl.errors import DriverCallError
from egmctl.gpu.context import Context
from egmctl.gpu.driver import call, initialise
from egmctl.gpu.memory import DeviceMemory, HostNumaMemory, Memory, PinnedWords
from egmctl.gpu.pattern import HostPattern, KernelPattern, Pattern
from egmctl.gpu.program import Kernels, NoCompiler
from egmctl.gpu.timing import Stream, choose_gate
from egmctl.model.measurement import Endpoint, MemoryKind, Task, Verification


class _Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=_Closable)


class Rig:
    """The GPUs of one run and everything taken on them, released in reverse order by :meth:`close`.

    Parameters
    ----------
    gpus
        Bus ids. One that cannot be opened fails the tasks that need it, not the others.
    host_access
        For each NUMA node the GPUs that get access to its memory.
    size_bytes
        Of every buffer.
    """

    def __init__(self, gpus: Sequence[str], host_access: Mapping[int, Sequence[str]], size_bytes: int) -> None:
        initialise()
        self._host_access = host_access
        self._size_bytes = size_bytes
        self._contexts: dict[str, Context] = {}
        self._unusable: dict[str, DriverCallError] = {}
        self._streams: dict[str, Stream] = {}
        self._sources: dict[Endpoint, tuple[Memory, int]] = {}
        self._destinations: dict[Endpoint, Memory] = {}
        self.note: str | None = None
        with ExitStack() as undo:
            self._undo = undo
            for bus_id in gpus:
                try:
                    self._contexts[bus_id] = self._keep(Context(bus_id))
                except DriverCallError as error:
                    self._unusable[bus_id] = error
            if self._contexts:
                self._set_up()
            self._undo = undo.pop_all()

    def _set_up(self) -> None:
        """Make what all tasks share, on every GPU, before anything is timed."""
        for bus_id, context in self._contexts.items():
            self._streams[bus_id] = self._keep(Stream(context))
        kernels: dict[str, Kernels] | None
        try:
            kernels = {bus_id: self._keep(Kernels(context)) for bus_id, context in self._contexts.items()}
        except NoCompiler as error:
            kernels = None
            self.note = f"measured without kernels, which takes longer and checks less: {error}"
        words = self._keep(PinnedWords(2))
        self.gate = choose_gate(words, list(self._contexts.values()), kernels)
        self.pattern: Pattern
        if kernels is not None:
            self.pattern = self._keep(KernelPattern(kernels, self._contexts))
            self.verification = Verification.GPU_EVERY_SAMPLE
        else:
            self.pattern = HostPattern()
            self.verification = Verification.HOST_FIRST_AND_LAST_SAMPLE

    def stream(self, bus_id: str) -> Stream:
        """Return a GPU's stream.

        Raises
        ------
        DriverCallError
            The one that kept the GPU from being opened.
        """
        if bus_id in self._unusable:
            raise self._unusable[bus_id]
        return self._streams[bus_id]

    def source(self, task: Task) -> tuple[Memory, int]:
        """Return the buffer that a task copies from, filled with the pattern of the seed beside it.

        A buffer is filled once: nothing writes to it afterwards. No two have the same seed, so that data that came
        from the wrong one is seen.
        """
        if task.source not in self._sources:
            memory = self._allocate(task.source)
            seed = 1 + len(self._sources)
            self.pattern.fill(self.stream(task.source.bus_id or task.initiator), memory, seed)
            self._sources[task.source] = memory, seed
        return self._sources[task.source]

    def destination(self, task: Task) -> Memory:
        """Return the buffer that a task copies to."""
        if task.destination not in self._destinations:
            self._destinations[task.destination] = self._allocate(task.destination)
        return self._destinations[task.destination]

    def connect(self, task: Task) -> None:
        """Let the GPU that issues a task's work reach the memory of the GPU at its other end."""
        initiator = self.stream(task.initiator).context
        for end in (task.source, task.destination):
            if end.bus_id is not None and end.bus_id != task.initiator:
                initiator.enable_access_to(self.stream(end.bus_id).context)

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
        self._undo.close()

    def _allocate(self, end: Endpoint) -> Memory:
        if end.memory is MemoryKind.DEVICE:
            return self._keep(DeviceMemory(self.stream(end.bus_id or "").context, self._size_bytes))
        node = end.numa_node or 0
        contexts = [self._contexts[bus_id] for bus_id in self._host_access[node] if bus_id in self._contexts]
        return self._keep(HostNumaMemory(node, self._size_bytes, contexts))

    def _keep(self, resource: T) -> T:
        return self._undo.enter_context(closing(resource))
