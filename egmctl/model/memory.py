"""Where bytes are, by how the memory was allocated."""

from __future__ import annotations

from egmctl.compat import StrEnum


class MemoryKind(StrEnum):
    """How memory was allocated."""

    DEVICE = "device"
    """cuMemAlloc."""
    DEVICE_DEFAULT_POOL = "device-default-pool"
    """cuMemAllocFromPoolAsync from the driver's own pool of a GPU (cuDeviceGetDefaultMemPool)."""
    HOST_NUMA = "host-numa"
    """cuMemCreate on a host NUMA node. It is EGM only where the platform has EGM: see
    :attr:`egmctl.model.route.Route.egm`."""
    HOST_NUMA_POOL = "host-numa-pool"
    """cuMemAllocFromPoolAsync from a pool that cuMemPoolCreate made on a host NUMA node."""
    HOST_NUMA_DEFAULT_POOL = "host-numa-default-pool"
    """cuMemAllocFromPoolAsync from the driver's own pool of a host NUMA node (cuMemGetDefaultMemPool, CUDA 13.0)."""
    HOST_DEFAULT_POOL = "host-default-pool"
    """cuMemAllocFromPoolAsync from the driver's own pool of the host (cuMemGetDefaultMemPool with
    CU_MEM_LOCATION_TYPE_HOST, CUDA 13.0), by a thread bound to the node."""
    PINNED = "pinned"
    """cuMemHostAlloc, by a thread bound to the node."""
    REGISTERED = "registered"
    """mmap, bound to the node, then cuMemHostRegister."""
    HUGETLB = "hugetlb"
    """mmap of huge pages (MAP_HUGETLB, hugetlbfs), bound to the node, then cuMemHostRegister."""
    THP = "thp"
    """mmap, advised to be transparent huge pages (MADV_HUGEPAGE), bound to the node, then cuMemHostRegister."""
    MANAGED = "managed"
    """cuMemAllocManaged, preferred on the node, mapped by the GPUs, and first written by threads on the node."""
    SYSTEM = "system"
    """mmap, bound to the node, and nothing else: only GPUs with access to pageable memory reach it."""
    GPU_NUMA = "gpu-numa"
    """mmap, bound to the NUMA node that a GPU's own memory is on a coherent platform: CPUs reach it as memory."""
    REGISTERS = "registers"
    """No memory: the end of a kernel or of a CPU thread that only reads or only writes."""


POOLS = frozenset({MemoryKind.HOST_NUMA_POOL, MemoryKind.HOST_NUMA_DEFAULT_POOL})
"""HOST_NUMA memory from a pool: one of our own, or the driver's."""

NUMA_MEMORY = frozenset({MemoryKind.HOST_NUMA, *POOLS})
"""What the driver allocates on a NUMA node by number: EGM where the platform has it. Other host memory never is; of
managed memory that is not known there."""

HOST_NAMES = {
    MemoryKind.HOST_NUMA: "HOST_NUMA",
    MemoryKind.HOST_NUMA_POOL: "HOST_NUMA pool",
    MemoryKind.HOST_NUMA_DEFAULT_POOL: "HOST_NUMA default pool",
    MemoryKind.HOST_DEFAULT_POOL: "HOST default pool",
    MemoryKind.PINNED: "pinned",
    MemoryKind.REGISTERED: "registered",
    MemoryKind.HUGETLB: "hugetlb",
    MemoryKind.THP: "THP",
    MemoryKind.MANAGED: "managed",
    MemoryKind.SYSTEM: "system",
}
"""Memory of the host as people call it."""

HOST_MEMORY = frozenset(HOST_NAMES)
