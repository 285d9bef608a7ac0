"""From the facts of a node to what will be measured on it, and why the rest will not: pure.

The plan is made in the command before anything touches a GPU, so that ``--list`` and a refusal cost nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from egmctl.bench.case import Case, End
from egmctl.errors import UsageError
from egmctl.model.machine import Gpu, Machine
from egmctl.model.measurement import BenchGpu, Endpoint, MemoryKind, Settings, Task
from egmctl.topo.health import obstacle
from egmctl.topo.links import gpu_link
from egmctl.topo.routes import RouteKind, route
from egmctl.units import MIB, format_size

SECTIONS = ("host", "gpus", "pairs", "driver", "process")
"""The facts a plan needs."""

SIZE_MULTIPLE_BYTES = 16
"""A size is a multiple of this: the widest word that a GPU moves, and a whole number of the pattern's words."""


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A task, and why it will not be run."""

    task: Task
    waiver: str | None = None
    """One sentence; ``None`` if the task will be run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one run of the bench does, in order."""

    settings: Settings
    gpus: tuple[BenchGpu, ...]
    numa_nodes: tuple[int, ...]
    tasks: tuple[PlannedTask, ...]
    notes: tuple[str, ...] = ()
    """Cases that these GPUs and nodes make no task of, and why."""

    @property
    def runnable(self) -> tuple[Task, ...]:
        """The tasks that will be run."""
        return tuple(planned.task for planned in self.tasks if planned.waiver is None)


def make_plan(
    machine: Machine, gpus: Sequence[Gpu], numa_nodes: Sequence[int], cases: Sequence[Case], settings: Settings
) -> Plan:
    """Combine cases with GPUs and NUMA nodes.

    Raises
    ------
    UsageError
        If the settings make no sense.
    """
    if settings.size_bytes <= 0 or settings.size_bytes % SIZE_MULTIPLE_BYTES:
        raise UsageError(f"--size {settings.size_bytes}: it must be a multiple of {SIZE_MULTIPLE_BYTES} bytes above 0")
    visible = cuda_visible(machine)
    tasks = {case.name: tuple(_tasks(case, machine, gpus, numa_nodes, settings, visible)) for case in cases}
    return Plan(
        settings=settings,
        gpus=tuple(BenchGpu(label=_label(g), index=g.index, bus_id=g.bus_id, uuid=g.uuid, name=g.name) for g in gpus),
        numa_nodes=tuple(numa_nodes),
        tasks=tuple(task for of_case in tasks.values() for task in of_case),
        notes=tuple(f"{name} needs two GPUs" for name, of_case in tasks.items() if not of_case),
    )


def check_memory(plan: Plan, machine: Machine) -> None:
    """Refuse a plan whose buffers would take more than half of what is free on a GPU, a NUMA node or the host.

    Every place holds at most two buffers at a time, one to copy from and one to copy to: they are reused by all tasks.

    Raises
    ------
    UsageError
        Naming the first place that is too small and the size that would fit it.
    """
    sources = {task.source for task in plan.runnable}
    destinations = {task.destination for task in plan.runnable}
    buffers = Counter([*sources, *destinations])
    places = [(end.label, count, _free_bytes(machine, end)) for end, count in buffers.items()]
    on_host = sum(count for end, count in buffers.items() if end.memory is MemoryKind.HOST_NUMA)
    places.append(("the host", on_host, machine.host.memory_available_bytes if machine.host else None))
    for place, count, free in sorted(places, key=lambda item: item[0]):
        if count and free is not None and count * plan.settings.size_bytes > free // 2:
            fits = free // 2 // count // MIB
            raise UsageError(
                f"--size {format_size(plan.settings.size_bytes)} takes {format_size(count * plan.settings.size_bytes)} "
                f"on {place}, more than half of the {format_size(free)} free there; "
                + (f"at most --size {fits}M fits" if fits else "nothing fits")
            )


def gpu_waiver(machine: Machine, gpu: Gpu, visible: frozenset[str] | None) -> str | None:
    """Say why nothing can be measured on a GPU; ``None`` if it can.

    Parameters
    ----------
    visible
        Bus ids that CUDA_VISIBLE_DEVICES leaves to a process, ``None`` if it is not set.
    """
    if gpu.cuda is None:
        if (stopped := obstacle(machine, gpu)) is not None:
            return f"{_label(gpu)}: {stopped.cause}"
        why = gpu.unread.get("cuda")
        return f"CUDA does not see {_label(gpu)}" + (f": {why.detail or why.reason}" if why else "")
    if visible is not None and gpu.bus_id not in visible:
        return f"CUDA_VISIBLE_DEVICES hides {_label(gpu)}"
    if gpu.nvml is not None and gpu.nvml.mig_mode:
        return f"MIG is on: {_label(gpu)} can only be used in parts"
    if gpu.nvml is not None and gpu.nvml.compute_mode == "prohibited":
        return f"the compute mode of {_label(gpu)} is prohibited"
    return None


def cuda_visible(machine: Machine) -> frozenset[str] | None:
    """Return the bus ids that CUDA_VISIBLE_DEVICES leaves to a worker; ``None`` if it is not set.

    Notes
    -----
    Entries are numbers in the order of bus ids (the worker sets CUDA_DEVICE_ORDER so) or UUIDs and unique prefixes of
    them; the first invalid entry ends the list (CUDA C++ Programming Guide, "CUDA Environment Variables").
    """
    text = (machine.process.environment or {}).get("CUDA_VISIBLE_DEVICES") if machine.process else None
    if text is None:
        return None
    gpus = [gpu for gpu in machine.gpus or () if gpu.cuda is not None]
    visible: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if part.isascii() and part.isdigit():
            found = [gpu for gpu in gpus if gpu.cuda and gpu.cuda.ordinal == int(part)]
        else:
            found = [gpu for gpu in gpus if part.startswith("GPU-") and (gpu.uuid or "").startswith(part)]
        if len(found) != 1:
            break
        visible.append(found[0].bus_id)
    return frozenset(visible)


def _tasks(
    case: Case,
    machine: Machine,
    gpus: Sequence[Gpu],
    numa_nodes: Sequence[int],
    settings: Settings,
    visible: frozenset[str] | None,
) -> Iterator[PlannedTask]:
    """Yield every task of a case: each GPU that issues work, with each far end it works with."""
    for gpu, far in _pairs(case, gpus, numa_nodes):
        waiver = gpu_waiver(machine, gpu, visible)
        egm = None
        if isinstance(far, Gpu):
            wire = gpu_link(machine, gpu, far).symbol
            waiver = waiver or gpu_waiver(machine, far, visible) or _peer_waiver(machine, gpu, far)
        else:
            wire, egm, blocked = _host_wire(machine, gpu, far)
            waiver = waiver or blocked
        ends = (gpu, far) if case.initiator is End.SOURCE else (far, gpu)
        task = Task(
            case=case.name,
            source=_endpoint(case.source, ends[0]),
            destination=_endpoint(case.destination, ends[1]),
            engine=case.engine,
            pattern=case.pattern,
            initiator=gpu.bus_id,
            initiator_label=_label(gpu),
            wire=wire,
            egm=egm,
            counted="each byte copied, once",
            size_bytes=settings.size_bytes,
            copies=settings.copies,
        )
        yield PlannedTask(task, waiver)


def _pairs(case: Case, gpus: Sequence[Gpu], numa_nodes: Sequence[int]) -> Iterator[tuple[Gpu, Gpu | int]]:
    """Yield the GPU that issues the work and the far end: another GPU, or the number of a NUMA node."""
    if MemoryKind.HOST_NUMA in (case.source, case.destination):
        yield from ((gpu, node) for node in numa_nodes for gpu in gpus)
    else:
        yield from permutations(gpus, 2)


def _endpoint(memory: MemoryKind, end: Gpu | int) -> Endpoint:
    if isinstance(end, Gpu):
        return Endpoint(memory=memory, label=_label(end), bus_id=end.bus_id)
    return Endpoint(memory=memory, label=f"NUMA{end}", numa_node=end)


def _label(gpu: Gpu) -> str:
    return f"GPU{gpu.index}"


def _host_wire(machine: Machine, gpu: Gpu, node: int) -> tuple[str, bool | None, str | None]:
    """Say which way a GPU reaches HOST_NUMA memory, whether that is EGM, and why it cannot be measured."""
    found = route(machine, gpu, node)
    if gpu.nvml is None and gpu.cuda is not None:
        return f"HOST_NUMA, not known whether EGM: NVML does not list {_label(gpu)}", None, None
    if found.kind is RouteKind.BLOCKED:
        return "HOST_NUMA, blocked", False, found.reason
    waiver = None
    attribute = "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"
    if gpu.cuda is not None and gpu.cuda.attributes.get(attribute) == 0:
        waiver = f"{_label(gpu)} cannot use HOST_NUMA memory: CU_DEVICE_ATTRIBUTE_{attribute} is 0"
    if found.egm is None:
        return f"HOST_NUMA, not known whether EGM: {found.reason}", None, waiver
    return f"EGM over {found.symbol}" if found.egm else f"HOST_NUMA over {found.symbol}, not EGM", found.egm, waiver


def _peer_waiver(machine: Machine, initiator: Gpu, other: Gpu) -> str | None:
    pair = machine.pair(initiator.bus_id, other.bus_id)
    if pair is None or pair.can_access_peer is not False:
        return None
    refused = [f"P2P {word} is {status}" for word, status in pair.p2p_status.items() if status not in ("OK", None)]
    why = ", ".join(refused) or "cuDeviceCanAccessPeer says 0"
    return f"{_label(initiator)} has no peer access to {_label(other)}: {why}"


def _free_bytes(machine: Machine, end: Endpoint) -> int | None:
    """Return what is free at one end, ``None`` where the facts do not say."""
    if end.memory is MemoryKind.HOST_NUMA:
        nodes = (machine.host.numa_nodes if machine.host else None) or ()
        return next((node.memory_free_bytes for node in nodes if node.id == end.numa_node), None)
    nvml = machine.gpu(end.bus_id or "").nvml
    if nvml is None or nvml.memory_total_bytes is None or nvml.memory_used_bytes is None:
        return None
    return nvml.memory_total_bytes - nvml.memory_used_bytes
