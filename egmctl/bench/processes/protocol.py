"""The messages between the command and its worker.

The worker starts while the command still collects facts, and initializes CUDA meanwhile. The command then sends a
:class:`Preparation`, one :class:`OrderedStep` after the other, and at last :attr:`Request.FINISH`. The worker answers
with events. Ranks that measure after a worker leave the driver alone until the worker has measured its last step: then
:attr:`Request.OPEN` has them initialize CUDA while the worker releases everything.
"""

from __future__ import annotations

from egmctl.bench.buffers import Buffer
from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.measurement import Settings
from egmctl.model.record import BusId
from egmctl.model.route import Rank
from egmctl.model.task import NumberedTask

ENVIRONMENT = {
    # CUDA_VISIBLE_DEVICES stays as the user set it; this defines what its numbers mean (egmctl.bench.plan.paths).
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    # Loading a kernel at its first launch waits until the GPU is idle, which it never is behind a gate.
    "CUDA_MODULE_LOADING": "EAGER",
    # With blocking launches, the launch of a gate would return only when the gate opens.
    "CUDA_LAUNCH_BLOCKING": None,
}
"""The changes to the environment of a process that measures."""


class Request(StrEnum):
    """The command's messages, under the key ``do``."""

    OPEN = "open"
    """``gpus``: open the contexts of these GPUs, before the preparation is known or may begin. There is no answer."""
    PREPARE = "prepare"
    """``preparation``: set up the GPUs."""
    MEASURE = "measure"
    """``step``: measure it."""
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
    """``measurement`` is the outcome of the task with the number ``task``."""
    OVER = "over"
    """The step has ended. ``broken``: whether the rest needs a new process, because a context is unusable or the step
    was abandoned. ``problem``: the GPU that NVML has lost, or why a buffer was not freed, or null. ``spent``: the time
    of the step (:class:`egmctl.model.measurement.PhaseSeconds`)."""
    DONE = "done"
    """Everything is released."""
    EXCHANGE = "exchange"
    """A rank contributes ``data`` and waits for the other ranks; ``call`` identifies the exchange."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAccess:
    """A NUMA node whose memory some step uses."""

    numa_node: int
    gpus: tuple[BusId, ...]
    """The GPUs with access to the memory."""
    cpus: tuple[int, ...] = ()
    """The node's CPUs; empty if it has only memory, or if they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """The facts that a worker needs before the first step."""

    settings: Settings
    gpus: tuple[BusId, ...]
    """All GPUs that take part in some step."""
    host_access: tuple[NodeAccess, ...] = ()
    ranks: tuple[Rank, ...] = ()
    """The ranks; empty for a single worker."""
    no_counters: str | None = None
    """The reason not to call NVML: it failed when the facts were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedStep:
    """Tasks to measure at the same time."""

    tasks: tuple[NumberedTask, ...]
    proof: bool = False
    """Whether the only task was measured before, together with others, so that one sample alone is enough."""
    release: tuple[Buffer, ...] = ()
    """The buffers (:func:`egmctl.bench.buffers.assign_buffers`) to free after the step: no later step uses them."""
