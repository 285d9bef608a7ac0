"""What several checks want to know of a machine before they judge it: is it coherent, a container, virtual?"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

from egmctl.model.machine import Confinement, Fabric, Gpu, GpuNvml, Machine
from egmctl.model.process import INITIAL_NAMESPACES
from egmctl.topology.access import DENIED, obstacle
from egmctl.topology.health import C2c, c2c, multi_node

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

_NVLINK_5, _BLACKWELL = 7, 10
"""``NVML_NVLINK_VERSION_5_0`` of nvml.h, and the compute capability's major number."""

NOT_EGM = "not an EGM platform: no GPU has NVLink-C2C"
NO_GPU = "no required GPU can be used from here; the dev.* checks say why"
NOT_COHERENT = "no GPU has NVLink-C2C"
NO_COHERENT_GPU = "none of these GPUs has NVLink-C2C, though others of this node have"


def coherent(machine: Machine) -> bool | None:
    """Say whether GPUs reach the CPUs' memory over NVLink-C2C; ``None`` where no GPU's link was told."""
    states = [c2c(machine, gpu) for gpu in machine.gpus or ()]
    if any(state in (C2c.UP, C2c.DOWN) for state in states):
        return True
    return None if C2c.UNKNOWN in states else False


def coherent_gpus(machine: Machine, gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs that have NVLink-C2C, or of which it is unknown.

    Coherence belongs to a GPU: a DGX Station has a GB300 on its Grace CPU and may have another card on PCIe
    (https://github.com/NVIDIA/dgx-spark-playbooks).
    """
    return tuple(gpu for gpu in gpus if c2c(machine, gpu) is not C2c.ABSENT)


def usable(machine: Machine, gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs that NVML lists: what is lost is told by the checks of access."""
    return tuple(gpu for gpu in gpus if gpu.nvml is not None and obstacle(machine, gpu) is None)


def kept_away(machine: Machine) -> tuple[Gpu, ...]:
    """Return the GPUs that the device cgroup or the container keeps from this process."""
    return tuple(gpu for gpu in machine.gpus or () if (stopped := obstacle(machine, gpu)) and stopped.block in DENIED)


def fabric(gpu: Gpu) -> Fabric | None:
    """Return what NVML says of a GPU's fabric, ``None`` where that is nothing."""
    return gpu.nvml.fabric if gpu.nvml else None


def in_domain(machine: Machine) -> bool:
    """Say whether a GPU of this node is in a multi-node NVLink domain."""
    return any(multi_node(machine, gpu) for gpu in machine.gpus or ())


def manages_nvlink5(machine: Machine) -> bool:
    """Say whether this node's own services run an NVLink 5 fabric: HGX B200 and newer, whose switches are on the board.

    A tray with NVLink-C2C has its switches in the rack. NVLink 5 is told by NVML's version of a link, or, where no link
    is up, by the GPU's architecture (compute capability 10.x).
    """
    return any(
        gpu.nvml is not None and _has_nvlink5(gpu.nvml) and c2c(machine, gpu) is C2c.ABSENT
        for gpu in machine.gpus or ()
    )


def _has_nvlink5(nvml: GpuNvml) -> bool:
    links = nvml.nvlinks or ()
    versions = (link.version for link in links if link.version is not None)
    is_blackwell = (nvml.compute_capability or (0, 0))[0] == _BLACKWELL
    return bool(links) and (is_blackwell or any(version >= _NVLINK_5 for version in versions))


def in_container(machine: Machine) -> bool:
    """Say whether there are signs of a container."""
    return bool(machine.process and machine.process.container_signs)


def services_hidden(machine: Machine) -> bool:
    """Say whether a service of the host may run unseen, because this process sees those of its PID namespace only."""
    namespaces = (machine.confinement or Confinement()).namespaces or {}
    number = namespaces.get("pid")
    return in_container(machine) if number is None else number != INITIAL_NAMESPACES["pid"]


def virtual(machine: Machine) -> bool:
    """Say whether the GPUs are handed into a virtual machine."""
    modes = {gpu.nvml.virtualization for gpu in machine.gpus or () if gpu.nvml}
    return bool(modes & {"passthrough", "vgpu"})


def by_value(things: Iterable[T], value: Callable[[T], K]) -> Iterator[tuple[K, tuple[T, ...]]]:
    """Return the things with equal values together, in the order of the first of each."""
    groups: dict[K, list[T]] = {}
    for thing in things:
        groups.setdefault(value(thing), []).append(thing)
    for key, members in groups.items():
        yield key, tuple(members)
