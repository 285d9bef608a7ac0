"""Engines that move the bytes of flows by work that is queued on streams, and what is common to them.

The memory at the two ends of a flow may be two processes': who owns the source fills it, who issues the work moves it,
who owns the destination looks at it. :class:`Source`, :class:`Mover` and :class:`Destination` are these three.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from egmctl.bench.buffers import Window
from egmctl.bench.case import End
from egmctl.bench.engine import ENGINES
from egmctl.gpu.context import ms_since
from egmctl.gpu.pattern import VECTOR_BYTES, Check, Difference, Region, poison
from egmctl.gpu.timing import FlowParts, Stream
from egmctl.model.measurement import Flow, Task, Verification

if TYPE_CHECKING:
    from egmctl.bench.processes.context import AllocatedBuffer, WorkerContext
    from egmctl.gpu.chase import Result
    from egmctl.gpu.memory import BufferMemory
    from egmctl.gpu.program import Kernels

THREADS = 512
BLOCKS = 2
"""Blocks of a kernel on each multiprocessor. On H200 more or larger ones move nothing faster, and reading alone then
only seems to: with four blocks a kernel that only reads its peer's memory counts 389 GB/s, but for each byte counted
0.967 come over NVLink, 376 GB/s; the rest is in the reader's own L2 (docs/hardware-notes.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What one flow moves in one sample: pass p moves slot p % slots; slots are neighbours in memory."""

    source: int
    destination: int
    """Addresses of the first slots; 0 at an end without memory."""
    slot_bytes: int
    slots: int
    passes: int
    seed: int
    """Of the pattern that the bytes are, from the first slot on."""

    @property
    def vectors(self) -> int:
        """Of a slot, as kernels count."""
        return self.slot_bytes // VECTOR_BYTES


class CompareDestination:
    """Every byte of the destination, which holds poison before each sample, is compared with what was sent.

    Other ways to verify what a sample has moved are subclasses: who owns the destination does one part, who issues the
    work the other.
    """

    name = Verification.GPU_EVERY_SAMPLE

    def prepare_destination(self, destination: Destination, part: Window) -> None:
        """Begin to make sure that what a sample leaves in memory is not there already."""
        destination.poison(part)

    def prepare_mover(self, mover: Mover) -> None:
        """Begin to do the same for what is kept in the process that issues the work: nothing is kept there."""

    def check_destination(self, destination: Destination, part: Window, passes: int) -> Check:  # noqa: ARG002
        """Begin to look at what a sample has left in memory."""
        return destination.check(part)

    def check_mover(self, mover: Mover, part: Window, passes: int) -> Check | None:  # noqa: ARG002
        """Begin to look at what the process that issues the work has kept; ``None`` if that is nothing."""
        return None


_COMPARE_DESTINATION = CompareDestination()


@dataclass(frozen=True)
class Transfer:
    """How one engine moves the bytes of a flow by work that is queued on streams behind a gate, and verifies them."""

    launch: Callable[[Mover, Move], FlowParts]
    """Returns the work of one flow: each part's stream, and what queues its operations there and returns."""
    verified_by: CompareDestination = _COMPARE_DESTINATION


class Source:
    """Memory that a flow reads, as its owner has it.

    Parameters
    ----------
    stream
        Of the GPU that fills it.
    """

    def __init__(self, worker: WorkerContext, held: AllocatedBuffer, stream: Stream) -> None:
        self.held = held
        self.stream = stream
        self._worker = worker

    def fill(self, part: Window) -> None:
        """Write the pattern as far as a window reaches, beyond what is filled already."""
        held = self.held
        start, end = held.filled_bytes, part.offset_bytes + part.size_bytes
        if end <= start:
            return
        started = time.perf_counter()
        self._worker.pattern.fill(self.stream, _region(held.memory, Window(start, 1, end - start), held.seed))
        # Other flows of the step may read the same source, by streams that do not wait for this one.
        self.stream.synchronize()
        if (start, end) == (0, held.memory.size_bytes):
            held.first_touch_ms = ms_since(started)
        held.filled_bytes = end


class Destination:
    """Memory that a flow writes, as its owner has it.

    Parameters
    ----------
    stream
        Of the GPU that looks at it.
    seed
        Of what is moved there.
    """

    def __init__(self, worker: WorkerContext, held: AllocatedBuffer, stream: Stream, seed: int) -> None:
        self.held = held
        self.stream = stream
        self.worker = worker
        self._seed = seed

    def address(self, part: Window) -> int:
        """Return where a window begins, as its owner addresses it."""
        return self.held.memory.address + part.offset_bytes

    def first_touch(self, part: Window) -> None:
        """See what it costs to write all of it for the first time, if the window is all of it."""
        if part.size_bytes == self.held.memory.size_bytes:
            started = time.perf_counter()
            self.poison(part)
            self.stream.synchronize()
            self.held.first_touch_ms = ms_since(started)

    def poison(self, part: Window) -> None:
        """Begin to overwrite it with what no flow brings."""
        poison(self.stream, _region(self.held.memory, part, self._seed))

    def check(self, part: Window) -> Check:
        """Begin to compare all of a window with what is to be there."""
        return self.worker.pattern.check(self.stream, _region(self.held.memory, part, self._seed))


class Mover:
    """What moves the bytes of a flow, in the process that issues the work.

    Parameters
    ----------
    source, destination
        Memory that its GPU reaches; ``None`` at an end without memory.
    seed
        Of what is moved.
    streams
        Of the GPU that issues the work, for this flow alone: as many as the task has.
    share
        How many kernels work on that GPU at the same time: each gets its part of the blocks, so that all run at once.
    """

    def __init__(
        self,
        worker: WorkerContext,
        transfer: Transfer,
        task: Task,
        flow: Flow,
        source: BufferMemory | None,
        destination: BufferMemory | None,
        *,
        seed: int,
        streams: Sequence[Stream],
        share: int,
    ) -> None:
        self._spec = ENGINES[task.engine]
        ends = {End.SOURCE: source, End.DESTINATION: destination}
        if {end for end, memory in ends.items() if memory is not None} != self._spec.carries:
            raise ValueError(
                f"{self._spec.caption} moves bytes of memory at {', '.join(sorted(self._spec.carries))} alone"
            )
        self.streams = streams
        self.worker = worker
        self._transfer = transfer
        self._flow = flow
        self._source = source
        self._destination = destination
        self._seed = seed
        self._share = share
        self._blocks = task.point.sms
        self._kernels = worker.kernels[streams[0].context.bus_id] if self._spec.needs_kernels else None

    @property
    def ungated(self) -> str | None:
        """Why queueing the work may take until it is done, so that a gate would never be opened; ``None`` if not."""
        memories = (self._source, self._destination)
        if self._spec.blocks_on_pageable and any(m.pageable for m in memories if m is not None):
            return "copies of pageable memory block the host until they are done"
        # cuMemcpyAsync is then "fully synchronous with respect to the host" (CUDA driver API, "API synchronization
        # behavior"), pinned or not.
        if self._spec.blocks_on_pageable and self._flow.through_gpu:
            return "copies from host memory to host memory block the host until they are done"
        # That the driver never waits for a staged copy with the host is not documented.
        return "copies that are staged may block the host until they are done" if self._flow.route.staged else None

    @property
    def kernels(self) -> Kernels:
        """Those of the GPU that issues the work."""
        if self._kernels is None:
            raise ValueError(f"{self._spec.caption} does not say that it needs kernels")
        return self._kernels

    @cached_property
    def result(self) -> Result:
        """Words in the GPU's memory that a kernel leaves what it has found in."""
        return self.worker.results.take(self.streams[0])

    def parts(self, part: Window, passes: int) -> FlowParts:
        """Return the work of one sample."""
        move = Move(
            source=self._source.address + part.offset_bytes if self._source else 0,
            destination=self._destination.address + part.offset_bytes if self._destination else 0,
            slot_bytes=part.slot_bytes,
            slots=part.slots,
            passes=passes,
            seed=self.expected(part).own_seed,
        )
        return self._transfer.launch(self, move)

    def by_kernel(self, name: str, *arguments: int) -> FlowParts:
        """Return the work of a flow that one launch of a kernel does, on its share of the GPU."""
        stream = self.streams[0]
        grid = self.blocks_of(BLOCKS)
        return [(stream, partial(self.kernels.launch, name, stream.handle, grid, THREADS, *arguments))]

    def blocks_of(self, per_multiprocessor: int) -> int:
        """Return the blocks of a flow's kernel: those of the task, or so many on its share of each multiprocessor.

        The GPU gives a block to the multiprocessor that has the least to do, so blocks that are no more than its
        multiprocessors have one each.
        """
        multiprocessors = self.streams[0].context.multiprocessors
        if self._blocks is not None:
            return self._blocks or multiprocessors
        return max(1, per_multiprocessor * multiprocessors // self._share)

    def expected(self, part: Window) -> Region:
        """Return the part of a buffer at one end with what is in it, or will be."""
        memory = self._source or self._destination
        assert memory is not None  # noqa: S101 - an engine carries bytes of one end at least
        return _region(memory, part, self._seed)


class ChecksumOfReads(CompareDestination):
    """The sum of all that a sample's kernel has read, which it wrote nowhere, is compared with the pattern's sum."""

    name = Verification.CHECKSUM_EVERY_SAMPLE

    def prepare_mover(self, mover: Mover) -> None:
        mover.result.clear()

    def check_mover(self, mover: Mover, part: Window, passes: int) -> Check:
        mover.result.fetch()
        pattern, stream = mover.worker.pattern, mover.streams[0]
        whole, rest = divmod(passes, part.slots)
        region = mover.expected(part)
        expected = whole * pattern.sum(stream, region)
        if rest:
            expected += pattern.sum(stream, mover.expected(Window(part.offset_bytes, rest, part.slot_bytes)))
        expected %= 1 << 64

        def finish() -> Difference | None:
            total = mover.result.words()[0]
            if total == expected:
                return None
            # The same way again: it may show where.
            difference = pattern.check(stream, region)()
            return difference or Difference(0, part.offset_bytes, expected, total)

        return finish


def _region(memory: BufferMemory, part: Window, seed: int) -> Region:
    return Region(memory.address + part.offset_bytes, part.size_bytes, seed, part.offset_bytes, memory.pageable)
