"""What a case of the bench is, and all cases in one registry: the files of ``cases/`` state them."""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.compat import StrEnum
from egmctl.model.measurement import Chase, Engine, HandleKind, MemoryKind, Pattern, Quantity

ALL_SMS = 0
"""In place of a number of blocks: one on each multiprocessor of the GPU."""


class End(StrEnum):
    """One end of a flow."""

    SOURCE = "source"
    DESTINATION = "destination"


class Processes(StrEnum):
    """Which processes measure a case together."""

    ONE = "one"
    """The one worker, which works all GPUs."""
    NODE = "node"
    """One a GPU of the node; messages by UCX also between the nodes of a job."""
    JOB = "job"
    """One a GPU of all nodes of a run, one or many (:mod:`egmctl.bench.plan.fabric`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """How many bytes a chase visits."""

    least_bytes: int
    l2_times: int = 0
    """At least so many times the L2 cache of the GPU that owns the memory or, for host memory, reads it."""
    if_room: bool = False
    """One of a series that goes as far as memory does: without room there is no task, and nothing is missing. One that
    the user named by itself is no part of a series (:func:`egmctl.bench.suites.select_cases`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A combination to measure wherever it makes sense: a new case is a new line in ``cases/``, not new code."""

    name: str
    """In nvbandwidth's words, so that people can compare numbers."""
    family: str
    source: MemoryKind
    """Of every flow; of the second one of both directions, the destination's."""
    destination: MemoryKind
    engine: Engine
    pattern: Pattern
    initiator: End
    """Whose GPU issues the work, where both ends are GPUs."""
    description: str
    """One sentence for ``--list``."""
    streams: int = 1
    blocks: int | None = None
    """Blocks of the kernel that moves the bytes, one on each of so many multiprocessors; :data:`ALL_SMS`: on every one.
    ``None``: as many as its engine moves most with."""
    quantity: Quantity = Quantity.BANDWIDTH
    chase: Chase | None = None
    """For a latency."""
    footprint: Footprint | None = None
    """For a latency; a bandwidth's buffers have the size of the run."""
    processes: Processes = Processes.ONE
    handle: HandleKind | None = None
    """How the process that issues the work opens the memory at the flow's other end, which is another process'."""
    in_process: str | None = None
    """The case that takes the same path within one process."""
    by_owner: bool = False
    """The host memory is allocated under each GPU of its NUMA node in turn, and each GPU of the node works on it."""
    staged: bool = False
    """Between two GPUs, without the peer access that they have: the driver copies through host memory."""
    one_path: bool = False
    """Measured over one path of each link only: it is about the link, and takes long or fills tables."""
