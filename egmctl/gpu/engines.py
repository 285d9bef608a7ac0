"""What moves the bytes of a flow: copy engines, or kernels on the multiprocessors that copy, only read or only write.

Each function returns the parts of one flow for :func:`egmctl.gpu.timing.time_together`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from egmctl.gpu.pattern import VECTOR_BYTES
from egmctl.gpu.program import Kernels
from egmctl.gpu.timing import FlowParts, Stream

THREADS = 512
BLOCKS = 2
"""Blocks of a kernel on each multiprocessor. On H200 more or larger ones move nothing faster, and reading alone then
only seems to: with four blocks a kernel that only reads its peer's memory counts 389 GB/s, but for each byte counted
0.967 come over NVLink, 376 GB/s; the rest is in the reader's own L2 (docs/hardware-notes.md)."""

_SPLIT_BYTES = 4096
"""Where a copy is split over streams, at a multiple of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What one flow moves in one sample: pass p moves slot p % slots; slots are neighbours in memory."""

    source: int
    destination: int
    """Addresses of the first slots; 0 at an end without memory."""
    slot_bytes: int
    slots: int
    passes: int

    @property
    def vectors(self) -> int:
        """Of a slot, as kernels count."""
        return self.slot_bytes // VECTOR_BYTES


def copy_by_engine(streams: Sequence[Stream], move: Move) -> FlowParts:
    """Have the copy engines of one GPU copy, each copy split over all the streams."""
    unit = -(-move.slot_bytes // len(streams) // _SPLIT_BYTES) * _SPLIT_BYTES
    edges = [min(move.slot_bytes, unit * number) for number in range(len(streams))] + [move.slot_bytes]

    def copy(stream: Stream, start: int, end: int) -> None:
        for number in range(move.passes if end > start else 0):
            offset = number % move.slots * move.slot_bytes + start
            stream.copy(move.destination + offset, move.source + offset, end - start)

    return [
        (stream, partial(copy, stream, start, end))
        for stream, start, end in zip(streams, edges, edges[1:], strict=False)
    ]


def copy_by_kernel(kernels: Kernels, stream: Stream, move: Move, share: int) -> FlowParts:
    """Have a kernel read and write.

    Parameters
    ----------
    share
        How many kernels share the GPU: each gets its part of the blocks, so that all of them run at the same time.
    """
    return _kernel(
        kernels,
        stream,
        share,
        "copy_vectors",
        *(move.destination, move.source, move.vectors, move.passes, move.slots),
    )


def read_by_kernel(kernels: Kernels, stream: Stream, move: Move, share: int, result: int) -> FlowParts:
    """Have a kernel read and add the sum of what it read to the word at ``result``."""
    return _kernel(
        kernels,
        stream,
        share,
        "sum_vectors",
        *(move.source, move.vectors, move.passes, move.slots, result),
    )


def write_by_kernel(kernels: Kernels, stream: Stream, move: Move, share: int, seed: int) -> FlowParts:
    """Have a kernel write the pattern of a seed."""
    return _kernel(
        kernels,
        stream,
        share,
        "fill_pattern",
        *(move.destination, move.vectors, seed, move.passes, move.slots),
    )


def _kernel(kernels: Kernels, stream: Stream, share: int, name: str, *arguments: int) -> FlowParts:
    grid = max(1, BLOCKS * stream.context.multiprocessors // share)
    return [(stream, partial(kernels.launch, name, stream.handle, grid, THREADS, *arguments))]
