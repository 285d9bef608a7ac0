"""Parts of every Grace system here: Grace CPUs, coherent NVLink-C2C, GPU memory as NUMA nodes, EGM on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from egmctl.facts.cuda import ATTRIBUTES
from egmctl.model.gpu import C2cLink, Gpu, GpuCuda, GpuNvml, GpuProc, NvLink
from egmctl.model.host import Host, NumaKind, NumaNode, PcieLink, PciFunction
from egmctl.model.record import Unread
from egmctl.units import format_kernel_list
from machine_models.stating import CLASS_3D, MIB, NOT_STATED, NVIDIA, among, gpu_device_node, numa_node, stated

CORES = 72
"""Cores of one Grace CPU; one NUMA node has them all."""
MIG_NODES = 8
"""NUMA nodes of one GPU: its memory, then a placeholder for each further MIG instance."""
PAGE_64K = 64 << 10
C2C_MB_S = 44712
"""Rate of one NVLink-C2C link of a GH200 and of a GB200, one direction (``nvidia-smi c2c -s``: 44.712 GB/s)."""
EGM_CAPABLE = 1
"""NVML_DEV_CAP_EGM."""

COHERENT = {
    # CUDA Programming Guide, Unified Memory: hardware-coherent systems.
    "PAGEABLE_MEMORY_ACCESS": 1,
    "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES": 1,
    "HOST_NATIVE_ATOMIC_SUPPORTED": 1,
    "DIRECT_MANAGED_MEM_ACCESS_FROM_HOST": 1,
    "CONCURRENT_MANAGED_ACCESS": 1,
    "MANAGED_MEMORY": 1,
    "UNIFIED_ADDRESSING": 1,
    # CUDA Programming Guide, Extended GPU Memory: cuMemCreate and memory pools on HOST_NUMA.
    "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 1,
    "HOST_NUMA_MEMORY_POOLS_SUPPORTED": 1,
    "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 1,
    "MEMORY_POOLS_SUPPORTED": 1,
    # CUDA Programming Guide, Virtual Memory Management: the handle type of Linux.
    "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": 1,
    # CU_DEVICE_NUMA_CONFIG_NUMA_NODE: the GPU's memory is a NUMA node, as "GPU NUMA ID" shows.
    "NUMA_CONFIG": 1,
}
"""CUDA attributes of a GPU with NVLink-C2C, NUMA mode and EGM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The location of one GPU."""

    bus_id: str
    host_node: int
    """NUMA node of its Grace CPU."""
    own_node: int
    """NUMA node of its own memory."""
    numa_affinity: str
    """Column ``NUMA Affinity`` of ``nvidia-smi topo -m``."""

    @property
    def cpus(self) -> str:
        """The CPUs of its Grace CPU."""
        return cpus(self.host_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Facts that all GPUs of one machine share."""

    name: str
    compute_capability: tuple[int, int]
    memory_mib: int
    """FB memory total of nvidia-smi."""
    c2c_links: int
    cuda_memory_bytes: int | Unread = NOT_STATED
    device_id: int | Unread = NOT_STATED
    subsystem_device_id: int | Unread = NOT_STATED
    link: PcieLink | Unread = NOT_STATED
    attributes: tuple[tuple[str, int], ...] = ()
    """CUDA attributes beside :data:`COHERENT`."""


def gpu(index: int, place: Place, part: Part, nvlinks: tuple[NvLink, ...] | Unread, **nvml: Any) -> Gpu:
    """Return a GPU on a Grace CPU, with EGM on.

    Parameters
    ----------
    **nvml
        Further fields of :class:`GpuNvml`.
    """
    major, minor = part.compute_capability
    return stated(
        Gpu,
        bus_id=place.bus_id,
        index=index,
        pci=stated(
            PciFunction,
            bus_id=place.bus_id,
            vendor_id=NVIDIA,
            device_id=part.device_id,
            subsystem_vendor_id=NOT_STATED if isinstance(part.subsystem_device_id, Unread) else NVIDIA,
            subsystem_device_id=part.subsystem_device_id,
            class_code=CLASS_3D,
            path=root_port_path(place.bus_id),
            numa_node=place.host_node,
            local_cpus=place.cpus,
            link=part.link,
            driver="nvidia",
            responds=True,
        ),
        proc=stated(GpuProc, model=part.name, minor=index, excluded=False, numa_node=place.own_node),
        node=gpu_device_node(index),
        nvml=stated(
            GpuNvml,
            index=index,
            name=part.name,
            minor=index,
            compute_capability=part.compute_capability,
            memory_total_bytes=part.memory_mib * MIB,
            link=part.link,
            cpu_affinity=place.cpus,
            numa_affinity=place.numa_affinity,
            numa_node=place.own_node,
            capabilities=EGM_CAPABLE,
            c2c_enabled=True,
            c2c_links=tuple(
                stated(C2cLink, link=link, active=True, max_rate_mb_s=C2C_MB_S) for link in range(part.c2c_links)
            ),
            addressing_mode="ats",
            nvlinks=nvlinks,
            **({} if isinstance(nvlinks, Unread) else {"nvlink_count": len(nvlinks)}),
            **nvml,
        ),
        cuda=stated(
            GpuCuda,
            ordinal=index,
            name=part.name,
            memory_total_bytes=part.cuda_memory_bytes,
            attributes=among(
                ATTRIBUTES,
                {
                    "COMPUTE_CAPABILITY_MAJOR": major,
                    "COMPUTE_CAPABILITY_MINOR": minor,
                    "HOST_NUMA_ID": place.host_node,
                    "NUMA_ID": place.own_node,
                    **COHERENT,
                    **dict(part.attributes),
                },
            ),
        ),
    )


def root_port_path(bus_id: str) -> tuple[str, ...]:
    """Return the path of a GPU on bus 1 of a PCI domain of its own: one root port lies above it."""
    domain = bus_id.partition(":")[0]
    return (f"pci{domain}:00", f"{domain}:00:00.0")


def cpus(node: int) -> str:
    """Return the CPUs of a Grace CPU by its NUMA node."""
    return f"{node * CORES}-{(node + 1) * CORES - 1}"


def host(
    cpu_nodes: int,
    gpus: int,
    *,
    cpu_memory_mib: tuple[int | None, ...],
    gpu_memory_mib: int | None,
    distances: tuple[tuple[int, ...], ...] | None = None,
    **values: Any,
) -> Host:
    """Return a Grace host: the CPU nodes first, then for each GPU its memory and the MIG placeholders.

    Parameters
    ----------
    cpu_memory_mib
        The memory of each CPU node, as numactl -H prints it; ``None`` if it is not published.
    gpu_memory_mib
        The memory of each GPU's node.
    distances
        One row of distances per node.
    """
    total = cpu_nodes + gpus * MIG_NODES
    own_nodes = tuple(cpu_nodes + MIG_NODES * index for index in range(gpus))

    def node(number: int) -> NumaNode:
        size = cpu_memory_mib[number] if number < cpu_nodes else gpu_memory_mib
        memory = {} if size is None else {"memory_total_bytes": size * MIB}
        row = {} if distances is None else {"distances": distances[number]}
        if number < cpu_nodes:
            return numa_node(number, NumaKind.CPU, cpus=cpus(number), **memory, **row)
        if number in own_nodes:
            return numa_node(number, NumaKind.MEMORY_ONLY, **memory, **row)
        return numa_node(number, NumaKind.EMPTY, **row)

    sizes = (*cpu_memory_mib, *[gpu_memory_mib] * gpus)
    known = [size for size in sizes if size is not None]
    return stated(
        Host,
        architecture="aarch64",
        cpu_model="Neoverse-V2",
        cpu_count=cpu_nodes * CORES,
        page_size_bytes=PAGE_64K,
        memory_total_bytes=sum(known) * MIB if len(known) == len(sizes) else NOT_STATED,
        numa_nodes=tuple(node(number) for number in range(total)),
        allowed_cpus=f"0-{cpu_nodes * CORES - 1}",
        allowed_numa_nodes=format_kernel_list((*range(cpu_nodes), *own_nodes)),
        **values,
    )
