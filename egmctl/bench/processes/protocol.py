"""The messages between the command and its worker.

The worker is started while the command still collects facts, and initialises CUDA meanwhile. The command then sends a
:class:`Preparation`, one :class:`OrderedStep` after the other, and at last nothing more but that it is over; the worker
answers with events.
"""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.bench.buffers import Buffer
from egmctl.compat import StrEnum
from egmctl.model.measurement import Settings
from egmctl.model.record import BusId
from egmctl.model.route import Rank
from egmctl.model.task import NumberedTask

ENVIRONMENT = {
    # CUDA_VISIBLE_DEVICES is left as the user set it; this says how its numbers are meant (egmctl.bench.plan.paths).
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    # A kernel that is loaded at its first launch waits for the GPU to be idle, which it never is behind a gate.
    "CUDA_MODULE_LOADING": "EAGER",
    # The launch of a gate that waits for the gate to open would never return.
    "CUDA_LAUNCH_BLOCKING": None,
}
"""Changes to the environment of a process that works GPUs for the bench."""


class Request(StrEnum):
    """The command's messages, under the key ``do``."""

    PREPARE = "prepare"
    """``preparation``: set up the GPUs."""
    MEASURE = "measure"
    """``step``: the next one."""
    FINISH = "finish"
    """The run has ended: release everything."""
    EXCHANGED = "exchanged"
    """To a rank: ``items``, the contributions by rank (``data``, and the number of descriptors, ``fds``)."""
    ABANDON = "abandon"
    """To a rank, instead of ``items``: another rank failed, ``why``."""


class Event(StrEnum):
    """The worker's messages, under the key ``event``."""

    READY = "ready"
    """All GPUs are set up."""
    MEASURED = "measured"
    """``task``, a number, is over; ``measurement`` is its outcome."""
    OVER = "over"
    """All tasks of the step are; ``broken``: a context is beyond use after an error, and the rest needs a new
    process; ``problem``: which GPU NVML has lost, or why a buffer could not be given back, or null; ``spent``: what the
    time of the step went to (:class:`egmctl.model.measurement.PhaseSeconds`)."""
    DONE = "done"
    """Everything is released."""
    EXCHANGE = "exchange"
    """A rank contributes ``data`` and waits for the others'; ``call`` is the number of the exchange."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAccess:
    """A NUMA node whose memory some step uses, and its CPUs."""

    numa_node: int
    gpus: tuple[BusId, ...]
    cpus: tuple[int, ...] = ()
    """The node's CPUs; empty if it has only memory, or if they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Facts that a worker needs before the first step."""

    settings: Settings
    gpus: tuple[BusId, ...]
    """All that take part in some step."""
    host_access: tuple[NodeAccess, ...] = ()
    ranks: tuple[Rank, ...] = ()
    """The ranks, if this is for one of several processes."""
    no_counters: str | None = None
    """Why NVML must not be called: it failed when the facts were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedStep:
    """Tasks to measure at the same time."""

    tasks: tuple[NumberedTask, ...]
    proof: bool = False
    """The one task was measured with others at the same time before, so that one sample alone is enough."""
    release: tuple[Buffer, ...] = ()
    """The buffers (:func:`egmctl.bench.buffers.assign`) to free after the step: no later step needs them."""
