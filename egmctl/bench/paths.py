"""Which way the bytes between two ends take, how fast that may be, and why it cannot be measured: pure."""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.bench.flows import HOST_MEMORY, Place
from egmctl.model.machine import Gpu, Machine
from egmctl.model.measurement import MemoryKind
from egmctl.model.task import HOST_NAMES
from egmctl.topology import rates
from egmctl.topology.access import Step, classify
from egmctl.topology.health import C2c, c2c, egm
from egmctl.topology.links import LinkClass, active_nvlinks, cpu_node_ids, gpu_link
from egmctl.topology.rates import Rate
from egmctl.topology.routes import RouteKind, route

_NEEDS_ATTRIBUTE = {
    MemoryKind.HOST_NUMA: "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    MemoryKind.HOST_NUMA_POOL: "HOST_NUMA_MEMORY_POOLS_SUPPORTED",
    MemoryKind.PINNED: "CAN_MAP_HOST_MEMORY",
    MemoryKind.REGISTERED: "HOST_REGISTER_SUPPORTED",
    MemoryKind.SYSTEM: "PAGEABLE_MEMORY_ACCESS",
}
"""The device attribute that is 0 where a GPU cannot use a kind of host memory."""
_USUAL_GB_S = {"NV": 20.0, "C2C": 300.0, "PCIe": 25.0, "local": 1500.0, "CPU": 100.0}
"""What to plan with where the driver does not report a rate: per NVLink for ``NV``. Nothing is judged by it."""
_REACHED = 0.88
"""The part of the nominal rate that copies reach: 396 of 450 GB/s over NVLink, 55.5 of 63 over PCIe 5.0 on H200."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The way between two ends."""

    wire: str
    egm: bool | None = None
    waiver: str | None = None
    """Why nothing can be measured over it."""
    rate_gb_s: float
    """What to plan with: an estimate, not an expectation."""
    disjoint: bool = False
    """Pairs that share no GPU do not share wires either: NVLink, or a GPU's own memory."""


def device_path(machine: Machine, initiator: Gpu, other: Gpu) -> Path:
    """Return the path between the memory of two GPUs, or within one."""
    if initiator is other:
        return Path(wire="local", rate_gb_s=_USUAL_GB_S["local"], disjoint=True)
    link = gpu_link(machine, initiator, other)
    if link.kind is LinkClass.NVLINK:
        count = link.nvlinks or 1
        rate = _planned(rates.nvlink(initiator, count), count * _USUAL_GB_S["NV"])
    else:
        rate = _planned(rates.pcie(initiator), _USUAL_GB_S["PCIe"])
    waiver = _peer_waiver(machine, initiator, other)
    return Path(wire=link.symbol, waiver=waiver, rate_gb_s=rate, disjoint=link.kind is LinkClass.NVLINK)


def host_path(machine: Machine, gpu: Gpu, node: int, memory: MemoryKind) -> Path:
    """Return the path between a GPU and host memory of a kind on a NUMA node."""
    name = HOST_NAMES[memory]
    found = route(machine, gpu, node)
    if gpu.nvml is None and gpu.cuda is not None:
        wire = f"{name}, not known whether EGM: NVML does not list GPU{gpu.index}"
        return Path(wire=wire, rate_gb_s=_USUAL_GB_S["PCIe"])
    if found.kind is RouteKind.BLOCKED:
        return Path(wire=f"{name}, blocked", egm=False, waiver=found.reason, rate_gb_s=_USUAL_GB_S["PCIe"])
    waiver = None
    attribute = _NEEDS_ATTRIBUTE[memory]
    if gpu.cuda is not None and gpu.cuda.attributes.get(attribute) == 0:
        waiver = f"GPU{gpu.index} cannot use {name} memory: CU_DEVICE_ATTRIBUTE_{attribute} is 0"
    if memory not in (MemoryKind.HOST_NUMA, MemoryKind.HOST_NUMA_POOL):
        wire, rate = _system_wire(machine, gpu, node)
        return Path(wire=f"{name} over {wire}, not EGM", egm=False, waiver=waiver, rate_gb_s=rate)
    usual = _USUAL_GB_S["PCIe" if found.kind is RouteKind.PCIE else "C2C"]
    rate = _REACHED * (found.at_most_gb_s or usual / _REACHED)
    if found.egm is None:
        wire = f"{name}, not known whether EGM: {found.reason}"
    elif found.egm:
        wire = f"EGM {'pool ' * (memory is MemoryKind.HOST_NUMA_POOL)}over {found.symbol}"
    else:
        wire = f"{name} over {found.symbol}, not EGM"
    return Path(wire=wire, egm=found.egm, waiver=waiver, rate_gb_s=rate)


def cpu_path(node: int, cpu_node: int) -> Path:
    """Return the path between the CPUs of a NUMA node and the memory of one."""
    wire = "the node's own memory" if node == cpu_node else "between NUMA nodes"
    return Path(wire=wire, rate_gb_s=_USUAL_GB_S["CPU"])


def path_across(initiator: Gpu, owner_machine: Machine, owner: Gpu, *, host: bool) -> Path:
    """Return the path from a GPU of one node to memory of another node of its NVLink domain.

    Parameters
    ----------
    owner_machine
        The owner's node.
    host
        Whether it is EGM of the owner's nearest NUMA node, and not the owner's own memory.
    """
    count = active_nvlinks(initiator) or 0
    rate = _planned(rates.nvlink(initiator, count), count * _USUAL_GB_S["NV"])
    if not count:
        return Path(
            wire="no NVLink", waiver=f"GPU{initiator.index} has no active NVLink", rate_gb_s=_USUAL_GB_S["PCIe"]
        )
    if not host:
        return Path(wire=f"NV{count} across nodes", rate_gb_s=rate, disjoint=True)
    missing = next(
        (gpu for gpu in (initiator, owner) if _attribute(gpu, "HOST_NUMA_MULTINODE_IPC_SUPPORTED") == 0), None
    )
    waiver = None
    if missing is not None:
        name = "CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED"
        waiver = f"GPU{missing.index} shares no host memory across nodes: {name} is 0"
    able = egm(owner_machine, owner).able
    c2c_rate = _planned(rates.c2c(owner), _USUAL_GB_S["C2C"])
    name = "EGM" if able else "HOST_NUMA"
    tail = "" if able else ", not EGM" if able is False else ", not known whether EGM"
    return Path(
        wire=f"{name} over NV{count}>C2C across nodes{tail}",
        egm=able,
        waiver=waiver,
        rate_gb_s=min(rate, c2c_rate),
        disjoint=True,
    )


def path_between(
    machine: Machine, memory: tuple[MemoryKind, MemoryKind], ends: tuple[Place, Place], initiator: Gpu | None
) -> Path:
    """Return the path of a flow.

    Parameters
    ----------
    memory, ends
        Of its source and of its destination.
    initiator
        The GPU that issues its work, ``None`` for CPU threads.
    """
    nodes = [place for place in ends if not isinstance(place, Gpu)]
    if initiator is None:
        return cpu_path(*nodes)
    if nodes:
        kind = next(kind for kind in memory if kind in HOST_MEMORY)
        return host_path(machine, initiator, nodes[0], kind)
    other = next((place for place in ends if isinstance(place, Gpu) and place is not initiator), initiator)
    return device_path(machine, initiator, other)


def gpu_waiver(machine: Machine, gpu: Gpu, visible: frozenset[str] | None) -> str | None:
    """Say why nothing can be measured on a GPU; ``None`` if it can.

    Parameters
    ----------
    visible
        Bus ids that CUDA_VISIBLE_DEVICES leaves to a process, ``None`` if it is not set.
    """
    stopped = classify(machine, gpu, through=Step.WHOLE)
    if gpu.cuda is not None and visible is not None and gpu.bus_id not in visible:
        return f"CUDA_VISIBLE_DEVICES hides GPU{gpu.index}"
    if stopped is not None:
        return f"GPU{gpu.index}: {stopped.cause}"
    return None if gpu.cuda is not None else f"GPU{gpu.index}: CUDA was not asked"


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


def _system_wire(machine: Machine, gpu: Gpu, node: int) -> tuple[str, float]:
    """Return the way to host memory that is not EGM whatever the platform: over the GPU's own C2C, or PCIe."""
    coherent = c2c(machine, gpu) is C2c.UP
    rate = rates.c2c(gpu) if coherent else rates.pcie(gpu)
    wire = "C2C" if coherent else "PCIe"
    planned = _planned(rate, _USUAL_GB_S[wire])
    across = len(cpu_node_ids(machine)) > 1 and gpu.host_numa_id != node
    return f"{wire}>{'?' if gpu.host_numa_id is None else 'SMP'}" if across else wire, planned


def _attribute(gpu: Gpu, name: str) -> int | None:
    return None if gpu.cuda is None else gpu.cuda.attributes.get(name)


def _planned(rate: Rate, usual_gb_s: float) -> float:
    return usual_gb_s if rate.gb_s is None else _REACHED * rate.gb_s


def _peer_waiver(machine: Machine, initiator: Gpu, other: Gpu) -> str | None:
    pair = machine.pair(initiator.bus_id, other.bus_id)
    if pair is None or pair.can_access_peer is not False:
        return None
    refused = [f"P2P {word} is {status}" for word, status in pair.p2p_status.items() if status not in ("OK", None)]
    why = ", ".join(refused) or "cuDeviceCanAccessPeer says 0"
    return f"GPU{initiator.index} has no peer access to GPU{other.index}: {why}"
