"""The task that a case makes of some flows: how much it moves, and why it cannot be measured. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from egmctl.bench.case import ALL_SMS, Case, Footprint
from egmctl.bench.engine import ENGINES
from egmctl.bench.plan.paths import Path
from egmctl.model.finding import Waiver, WaiverKind
from egmctl.model.gpu import Gpu
from egmctl.model.listing import PlannedTask
from egmctl.model.machine import Machine
from egmctl.model.measurement import Settings
from egmctl.model.route import MemoryKind
from egmctl.model.task import Engine, Flow, Pattern, Point, Quantity, Task
from egmctl.units import GB, MIB

AnyTask = TypeVar("AnyTask", bound=Task)

COPIES_LIMIT = 128
"""More copies than this queued behind a closed gate can fill the driver's queue, which would then wait for ever."""

SAMPLE_S = 0.02
"""How long one sample is to take at least; see :func:`copies_for`."""

_ROUND_COPIES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, COPIES_LIMIT)

BLOCK_GB_S = 25.0
"""The rate to plan a block of a kernel with: on H200 sixteen write 367 GB/s to a peer (docs/hardware-notes.md)."""

FITS_L2_BYTES = 32 * MIB
"""Footprints up to this are walked once before, as they fit the L2 cache of every supported GPU."""

_USUAL_L2_BYTES = 128 * MIB
"""Assumed of a GPU that does not say how large its L2 cache is: no supported GPU has more."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Flows of which a case makes a task."""

    flows: tuple[Flow, ...]
    paths: tuple[Path, ...]
    gpus: tuple[Gpu, ...]
    """All that take part."""
    cache: Gpu | None
    """The GPU that caches what a latency reads: the owner of device memory, and who reads host memory."""


def planned_task(
    case: Case, point: Point, made: Candidate, settings: Settings, waivers: Iterable[Waiver | None] = ()
) -> PlannedTask:
    """Return the task that a case at a point makes of a candidate.

    Parameters
    ----------
    waivers
        What stops it, the most telling first: each counts once, and ``None`` does not.
    """
    rate = min(path.rate_gb_s for path in made.paths)
    if point.sms is not None:
        point = replace(point, sms=point.sms or _multiprocessors(made.gpus) or ALL_SMS)
        rate = min(rate, point.sms * BLOCK_GB_S) if point.sms else rate
    chase = case.chase
    if chase is not None and point.footprint is not None:
        chase = replace(chase, warm=point.footprint <= FITS_L2_BYTES)
    bandwidth = case.quantity is Quantity.BANDWIDTH
    size_bytes = point.size or settings.size_bytes
    if case.footprint is not None:
        size_bytes = point.footprint or _footprint(case.footprint, made.cache)
    task = PlannedTask(
        case=case.name,
        point=point,
        family=case.family,
        quantity=case.quantity,
        engine=case.engine,
        pattern=case.pattern,
        flows=made.flows,
        counted=ENGINES[case.engine].counted if bandwidth else "",
        size_bytes=size_bytes,
        copies=1,
        chase=chase,
        waivers=tuple(dict.fromkeys(waiver for waiver in waivers if waiver is not None)),
        planned_gb_s=rate,
        disjoint=all(path.disjoint for path in made.paths),
    )
    if bandwidth:
        copies = settings.copies or copies_for(size_bytes * flows_on_a_link(task), rate)
        task = replace(task, copies=copies)
    return task


def copies_for(size_bytes: int, rate_gb_s: float) -> int:
    """Return how many copies make a sample of :data:`SAMPLE_S` or more, at most what can be queued.

    A round number: a power of two, or half as much again.
    """
    return next(
        copies for copies in _ROUND_COPIES if copies == COPIES_LIMIT or copies * size_bytes >= SAMPLE_S * rate_gb_s * GB
    )


def flows_on_a_link(task: Task) -> int:
    """Return how many flows of a task share the busiest link: the one of the GPU that sends or receives them all."""
    if task.pattern in (Pattern.ONE_TO_ALL, Pattern.ALL_TO_ONE):
        return len(task.flows)
    if task.pattern is Pattern.ALL_PAIRS:
        return len({flow.source.bus_id for flow in task.flows}) - 1
    return 1


def shortened(task: AnyTask) -> AnyTask:
    """Return a bandwidth that takes a quarter of the time, enough for a proof to see a difference of 1 %.

    A latency stays as it is: its first loads are slower than the rest, so that a shorter walk is another quantity.
    """
    return task if task.chase is not None else replace(task, copies=max(1, task.copies // 4))


def capability_waiver(engine: Engine, gpu: Gpu) -> Waiver | None:
    """Say why a GPU is too old for an engine; ``None`` if it is not, or its compute capability is not known."""
    needed = ENGINES[engine].needs_capability
    attributes = gpu.cuda.attributes if gpu.cuda is not None else {}
    major, minor = (attributes.get(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
    if major is None or minor is None or (major, minor) >= needed:
        return None
    reason = f"GPU{gpu.index} has compute capability {major}.{minor}, and {ENGINES[engine].caption} needs "
    return Waiver.about(WaiverKind.UNSUPPORTED_ENGINE, f"{reason}{needed[0]}.{needed[1]}", gpu)


def blocks_waiver(point: Point, gpu: Gpu) -> Waiver | None:
    """Say why a GPU cannot give each block a multiprocessor; ``None`` if it can, or did not say."""
    there = _multiprocessors((gpu,))
    if point.sms is None or there is None or point.sms <= there:
        return None
    return Waiver.about(WaiverKind.UNSUPPORTED_ENGINE, f"GPU{gpu.index} has {there} multiprocessors", gpu)


def _multiprocessors(gpus: Sequence[Gpu]) -> int | None:
    """Return how many the GPU has that has the fewest; ``None`` where one does not say."""
    counts = [gpu.cuda.attributes.get("MULTIPROCESSOR_COUNT") if gpu.cuda is not None else None for gpu in gpus]
    known = [count for count in counts if count is not None]
    return min(known) if known and len(known) == len(counts) else None


def atomics_waiver(engine: Engine, machine: Machine, flow: Flow) -> Waiver | None:
    """Say why a GPU cannot add to a peer's memory atomically; ``None`` if it can, or the driver did not report it."""
    owner = flow.source if flow.destination.memory is MemoryKind.REGISTERS else flow.destination
    if not ENGINES[engine].atomics or flow.initiator is None or owner.bus_id is None:
        return None
    pair = machine.pair(flow.initiator, owner.bus_id)
    if pair is None or pair.cuda_attributes.get("NATIVE_ATOMIC_SUPPORTED") != 0:
        return None
    return Waiver(
        kind=WaiverKind.NO_ATOMICS,
        reason=f"{flow.initiator_label} has no native atomics on {owner.label}: "
        "CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED is 0",
        gpus=(flow.initiator, owner.bus_id),
    )


def _footprint(footprint: Footprint, gpu: Gpu | None) -> int:
    """Return how many bytes a chase visits that a GPU caches, a whole number of MiB where the L2 cache decides."""
    l2 = gpu.cuda.attributes.get("L2_CACHE_SIZE") if gpu is not None and gpu.cuda is not None else None
    times = footprint.l2_times * (l2 or _USUAL_L2_BYTES)
    return max(footprint.least_bytes, -(-times // MIB) * MIB)
