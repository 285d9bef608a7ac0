"""The static properties of each engine, for the planner, the buffers, the views and the verdict.

The code of an engine is in its file in ``engines/``, which only a worker imports.
"""

from __future__ import annotations

from collections.abc import Mapping

from egmctl.dataclass import dataclass
from egmctl.model.task import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """The properties of one engine."""

    caption: str
    """Its name at the start of the titles of its matrices."""
    counted: str = ""
    """A phrase for the bytes that its bandwidth counts; empty without a bandwidth."""
    needs_kernels: bool = False
    """Whether it launches kernels of egmctl."""
    needs_capability: tuple[int, int] = (0, 0)
    """The minimum compute capability. Its tasks are waived on older GPUs."""
    atomics: bool = False
    """Whether it adds atomically. In a peer's memory this needs native atomics between the two GPUs."""
    blocks_on_pageable: bool = False
    """Whether queueing a copy of pageable memory may block until the copy is complete."""
    round_trip: bool = False
    """Whether its latency is that of a round trip, not of a load."""
    writes_source: bool = False
    """Whether it writes its own words into the memory that it then reads. Its source is not shared and has one slot."""
    arrays: int = 1
    """The number of arrays of ``size_bytes`` in a flow's buffer; each pass moves all of them."""
    least_copies: int = 1
    """The minimum number of passes per sample."""
    timed_by_host: bool = False
    """Whether the host takes part in the timed work, so that the choice of CPUs affects the result."""


_COPIED = "each byte copied, once"


class _Specs(dict[Engine, EngineSpec]):
    """The properties by engine; of one that only a newer version knows, no more than its word."""

    def __missing__(self, engine: Engine) -> EngineSpec:
        return EngineSpec(caption=engine.value)


ENGINES: Mapping[Engine, EngineSpec] = _Specs(
    {
        Engine.COPY_ENGINE: EngineSpec(caption="memcpy CE", counted=_COPIED, blocks_on_pageable=True),
        Engine.SM_COPY: EngineSpec(caption="memcpy SM", counted=_COPIED, needs_kernels=True),
        Engine.SM_READ: EngineSpec(caption="read SM", counted="each byte read", needs_kernels=True),
        Engine.SM_WRITE: EngineSpec(caption="write SM", counted="each byte written", needs_kernels=True),
        Engine.BULK: EngineSpec(caption="memcpy bulk", counted=_COPIED, needs_kernels=True, needs_capability=(9, 0)),
        Engine.ATOMIC: EngineSpec(
            caption="atomic add", counted="8 bytes for each addition", needs_kernels=True, atomics=True
        ),
        Engine.ATOMIC_LATENCY: EngineSpec(caption="atomic addition and its answer", needs_kernels=True, atomics=True),
        Engine.CPU: EngineSpec(
            caption="CPU threads, a lower bound,",
            counted="each byte read or written by the CPUs",
            writes_source=True,
            timed_by_host=True,
        ),
        # Eight passes: threads of 72 CPUs start up to a millisecond apart.
        Engine.CPU_TRIAD: EngineSpec(
            caption="STREAM triad by CPU threads,",
            counted="each byte of three arrays, read or written once",
            writes_source=True,
            arrays=3,
            least_copies=8,
            timed_by_host=True,
        ),
        Engine.CPU_CHASE: EngineSpec(caption="pointer chase by a CPU", writes_source=True, timed_by_host=True),
        Engine.CHASE: EngineSpec(caption="pointer chase", needs_kernels=True),
        Engine.CHASE_BULK: EngineSpec(caption="pointer chase by TMA", needs_kernels=True, needs_capability=(9, 0)),
        Engine.PING_PONG: EngineSpec(caption="a flag", needs_kernels=True, round_trip=True),
        Engine.EVENT: EngineSpec(
            caption="an interprocess event, and of the messages that announce it,", round_trip=True, timed_by_host=True
        ),
        Engine.SOCKET: EngineSpec(caption="a message over a socket", round_trip=True, timed_by_host=True),
        Engine.UCX: EngineSpec(caption="UCX", counted=_COPIED, timed_by_host=True),
        Engine.UCX_PUT: EngineSpec(caption="UCX put", counted=_COPIED, timed_by_host=True),
        Engine.UCX_GET: EngineSpec(caption="UCX get", counted=_COPIED, timed_by_host=True),
        Engine.LIFE_CYCLE: EngineSpec(caption="life cycle", timed_by_host=True),
    }
)
