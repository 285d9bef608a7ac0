"""The task that a case makes of some flows: the amount of data, and the reasons why it cannot be measured. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from egmctl.bench.case import ALL_SMS, Case, End
from egmctl.bench.engine import ENGINES
from egmctl.bench.plan.paths import Path
from egmctl.driver.signatures import cause_of
from egmctl.model.finding import Waiver, WaiverKind
from egmctl.model.gpu import Gpu
from egmctl.model.listing import PlannedTask
from egmctl.model.machine import Machine
from egmctl.model.measurement import Settings
from egmctl.model.route import HOST_MEMORY, MemoryKind, Rank
from egmctl.model.task import Engine, Flow, HandleKind, Pattern, Point, Quantity, Task
from egmctl.units import GB, MIB, round_up

AnyTask = TypeVar("AnyTask", bound=Task)

COPIES_LIMIT = 128
"""The maximum number of copies queued behind a closed gate. More can fill the driver's queue, which then blocks for
ever."""

SAMPLE_S = 0.02
"""The minimum duration of a sample; see :func:`copies_for`."""

_ROUND_COPIES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, COPIES_LIMIT)

BLOCK_GB_S = 25.0
"""The rate to plan with per block of a kernel: on H200 sixteen write 367 GB/s to a peer (docs/hardware-notes.md)."""

FITS_L2_BYTES = 32 * MIB
"""The largest footprint that is walked once before the samples; it fits the L2 cache of every supported GPU."""

_USUAL_L2_BYTES = 128 * MIB
"""The assumed L2 cache size if a GPU does not report it: no supported GPU has more."""


class Candidate(NamedTuple):
    """The flows that a case makes a task of."""

    flows: tuple[Flow, ...]
    paths: tuple[Path, ...]
    gpus: tuple[Gpu, ...]
    """All GPUs that take part."""
    cache: Gpu | None
    """The GPU that caches what a latency reads: the owner of device memory, or the reader of host memory."""
    ranks: tuple[Rank, ...] = ()
    """The ranks of these GPUs if several processes measure."""


def planned_task(
    case: Case, point: Point, made: Candidate, settings: Settings, waivers: Iterable[Waiver | None] = ()
) -> PlannedTask:
    """Return the task of a case at a point for a candidate.

    Parameters
    ----------
    waivers
        The reasons why it cannot run, the most important first. Duplicates and ``None`` are dropped.
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
        by_cache = round_up(case.footprint.l2_times * _l2_bytes(made.cache), MIB)
        size_bytes = point.footprint or max(case.footprint.least_bytes, by_cache)
    usual_copies = copies_for(size_bytes * flows_on_a_link(case.pattern, made.flows), rate)
    copies = settings.copies or max(usual_copies, ENGINES[case.engine].least_copies)
    return PlannedTask(
        case=case.name,
        point=point,
        family=case.family,
        quantity=case.quantity,
        engine=case.engine,
        pattern=case.pattern,
        flows=made.flows,
        counted=ENGINES[case.engine].counted if bandwidth else "",
        size_bytes=size_bytes,
        copies=copies if bandwidth else 1,
        rotated_bytes=_rotated_bytes(case, made.gpus) if bandwidth else 0,
        chase=chase,
        waivers=tuple(dict.fromkeys(waiver for waiver in waivers if waiver is not None)),
        planned_gb_s=rate,
        # Life cycles run alone, because other work of the host would disturb them.
        disjoint=case.engine is not Engine.LIFE_CYCLE and all(path.disjoint for path in made.paths),
    )


def copies_for(size_bytes: int, rate_gb_s: float) -> int:
    """Return the number of copies that last :data:`SAMPLE_S` or longer, at most :data:`COPIES_LIMIT`.

    It is a power of two, or one and a half times one.
    """
    return next(
        copies for copies in _ROUND_COPIES if copies == COPIES_LIMIT or copies * size_bytes >= SAMPLE_S * rate_gb_s * GB
    )


def flows_on_a_link(pattern: Pattern, flows: Sequence[Flow]) -> int:
    """Return how many flows of a task share the busiest link, that of the GPU that sends or receives them all."""
    if pattern in (Pattern.ONE_TO_ALL, Pattern.ALL_TO_ONE):
        return len(flows)
    if pattern is Pattern.ALL_PAIRS:
        return len({flow.source.bus_id for flow in flows}) - 1
    return 1


def shortened_task(task: AnyTask) -> AnyTask:
    """Return a bandwidth task with a quarter of the copies, enough for a proof to see a difference of 1 %.

    A latency stays as it is: its first loads are slower than the rest, so a shorter walk would be another quantity.
    """
    return task if task.chase is not None else replace(task, copies=max(1, task.copies // 4))


def capability_waiver(engine: Engine, gpu: Gpu) -> Waiver | None:
    """Return why a GPU is too old for an engine; ``None`` if it is not, or its capability is unknown."""
    needed = ENGINES[engine].needs_capability
    major, minor = (gpu.attribute(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
    if major is None or minor is None or (major, minor) >= needed:
        return None
    least = f"{ENGINES[engine].caption} needs {needed[0]}.{needed[1]}"
    reason = f"GPU{gpu.index} has compute capability {major}.{minor}, and {least}"
    return Waiver.about(WaiverKind.UNSUPPORTED_ENGINE, reason, gpu)


def blocks_waiver(point: Point, gpu: Gpu) -> Waiver | None:
    """Return why a GPU has too few multiprocessors for one block each; ``None`` if enough or unknown."""
    available = _multiprocessors((gpu,))
    if point.sms is None or available is None or point.sms <= available:
        return None
    return Waiver.about(WaiverKind.UNSUPPORTED_ENGINE, f"GPU{gpu.index} has {available} multiprocessors", gpu)


_NEEDS_ATTRIBUTE = {
    HandleKind.POSIX_FD: "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
    **dict.fromkeys((HandleKind.FABRIC, HandleKind.POOL_FABRIC), "HANDLE_TYPE_FABRIC_SUPPORTED"),
}
_POOL_HANDLES = "MEMPOOL_SUPPORTED_HANDLE_TYPES"
_POOL_BITS = {HandleKind.POOL: (1, "file descriptor"), HandleKind.POOL_FABRIC: (8, "fabric handle")}
"""CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR and CU_MEM_HANDLE_TYPE_FABRIC (cuda.h), in the mask of pools."""


def handle_waiver(machine: Machine, handle: HandleKind | None, gpu: Gpu) -> Waiver | None:
    """Return why a rank cannot export or import memory with a kind of handle; ``None`` if none is known.

    Attributes that report support are not taken as proof; the first allocation is.
    """
    needed = _NEEDS_ATTRIBUTE.get(handle) if handle is not None else None
    if needed is not None and gpu.attribute(needed) == 0:
        return _unsupported(gpu, f"does not support these handles: CU_DEVICE_ATTRIBUTE_{needed} is 0")
    mask = gpu.attribute(_POOL_HANDLES)
    bit, handle_name = _POOL_BITS.get(handle, (0, "")) if handle is not None else (0, "")
    if bit and mask is not None and not mask & bit:
        return _unsupported(gpu, f"exports no pools by {handle_name}: CU_DEVICE_ATTRIBUTE_{_POOL_HANDLES} is {mask}")
    return _imex_waiver(machine) if handle in (HandleKind.FABRIC, HandleKind.POOL_FABRIC) else None


def _unsupported(gpu: Gpu, reason: str) -> Waiver:
    return Waiver.about(WaiverKind.UNSUPPORTED_HANDLE, f"GPU{gpu.index} {reason}", gpu)


def _imex_waiver(machine: Machine) -> Waiver | None:
    channels = machine.driver.imex_channels if machine.driver is not None else None
    if channels is None or any(channel.access == "ok" for channel in channels):
        return None
    listed = ", ".join(f"{channel.path}: {channel.access}" for channel in channels)
    reason = f"{cause_of('cuMemCreate', 800)} ({listed or '/dev/nvidia-caps-imex-channels is empty'})"
    return Waiver(kind=WaiverKind.NO_IMEX_CHANNEL, reason=reason)


def _multiprocessors(gpus: Sequence[Gpu]) -> int | None:
    """Return the smallest number of multiprocessors among GPUs; ``None`` if one is unknown."""
    counts = [gpu.attribute("MULTIPROCESSOR_COUNT") for gpu in gpus]
    known = [count for count in counts if count is not None]
    return min(known) if known and len(known) == len(counts) else None


def atomics_waiver(engine: Engine, machine: Machine, flow: Flow) -> Waiver | None:
    """Return why a GPU cannot add to a peer's memory atomically; ``None`` if it can, or if unknown."""
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


def _l2_bytes(gpu: Gpu | None) -> int:
    return (gpu is not None and gpu.attribute("L2_CACHE_SIZE")) or _USUAL_L2_BYTES


_MEASURED_L2_BYTES = 64 * MIB
"""The largest L2 cache for which the usual rotation was seen to suffice: H200 has 60 MiB (docs/hardware-notes.md)."""
_ROTATED_L2_TIMES = 8
"""The size of rotated buffers in sizes of a larger L2 cache. Chosen: it then holds an eighth at most."""


def _rotated_bytes(case: Case, gpus: Sequence[Gpu]) -> int:
    """Return the least size of buffers that an L2 cache could serve: a GPU's own, or a peer's that its kernel reads.

    A kernel's GPU keeps in its own L2 cache what it reads of a peer. All other bytes cross a link each time.
    """
    reads_peer = case.initiator is End.DESTINATION and ENGINES[case.engine].needs_kernels
    device_only = HOST_MEMORY.isdisjoint((case.source, case.destination))
    l2 = max(map(_l2_bytes, gpus), default=0)
    if not device_only or not (case.pattern is Pattern.LOCAL or reads_peer) or l2 <= _MEASURED_L2_BYTES:
        return 0
    return round_up(_ROTATED_L2_TIMES * l2, MIB)
