"""Machines built by hand, each just large enough for what a test says about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from egmctl.model.gpu import C2cLink, Fabric, Gpu, GpuCuda, GpuNvml, GpuPair, NvLink
from egmctl.model.host import DeviceNode, Driver, Host, Nic, NumaKind, NumaNode, PcieLink, PciFunction, Process
from egmctl.model.machine import Machine, Origin, OriginKind

NO_CLUSTER = "00000000-0000-0000-0000-000000000000"
CLUSTER = "5f3d6c1e-1111-2222-3333-444455556666"


def bus_id(index: int) -> str:
    """``0000:10:00.0`` for GPU 0, ``0000:11:00.0`` for GPU 1, ..."""
    return f"0000:{0x10 + index:02x}:00.0"


def gpu(
    index: int,
    *,
    node: int = 0,
    name: str = "NVIDIA H200",
    nvlinks: int = 18,
    active: int | None = None,
    nvlink_version: int = 6,
    speed: int | None = 26562,
    c2c: int = 0,
    c2c_up: bool = True,
    egm: bool | None = False,
    fabric: Fabric | None = None,
    **nvml: Any,
) -> Gpu:
    """A GPU that every source knows, on its own root complex of NUMA node ``node``."""
    up = nvlinks if active is None else active
    values: dict[str, Any] = {
        "index": index,
        "uuid": f"GPU-{index:08x}-0000-0000-0000-000000000000",
        "name": name,
        "link": PcieLink(speed_gt_s=2.5, width=16, max_speed_gt_s=32.0, max_width=16),
        "cpu_affinity": f"{node * 56}-{node * 56 + 55}",
        "numa_affinity": str(node),
        "capabilities": None if egm is None else int(egm),
        "c2c_enabled": c2c > 0 and c2c_up,
        "c2c_links": tuple(C2cLink(link=i, active=c2c_up, max_rate_mb_s=45000) for i in range(c2c)),
        "nvlinks": tuple(
            NvLink(link=i, active=i < up, version=nvlink_version, remote_type="switch", speed_mb_s=speed)
            for i in range(nvlinks)
        ),
        "nvlink_count": nvlinks,
        "fabric": fabric or Fabric(state="completed", status=0, cluster_uuid=NO_CLUSTER, clique_id=0),
    }
    return Gpu(
        bus_id=bus_id(index),
        index=index,
        pci=PciFunction(
            bus_id=bus_id(index),
            path=(f"pci0000:{0x10 + index:02x}", f"0000:{0x10 + index:02x}:01.0"),
            numa_node=node,
            driver="nvidia",
            responds=True,
        ),
        node=DeviceNode(path=f"/dev/nvidia{index}", exists=True, access="ok"),
        nvml=GpuNvml(**(values | nvml)),
        cuda=GpuCuda(ordinal=index, attributes={"HOST_NUMA_ID": node}),
    )


def out_of_sight(known: Gpu, *, access: str | None = "EPERM", exists: bool = True) -> Gpu:
    """The same GPU as a process sees it whose access(2) of the device node fails."""
    assert known.node is not None
    return replace(known, nvml=None, cuda=None, node=replace(known.node, access=access, exists=exists))


def pairs(gpus: Sequence[Gpu], *, nvlinks: int | Mapping[tuple[int, int], int], **values: Any) -> tuple[GpuPair, ...]:
    """All ordered pairs of the GPUs that NVML lists, joined by a number of NVLinks."""
    seen = [g for g in gpus if g.nvml is not None]
    found = []
    for one in seen:
        for other in seen:
            if one is other:
                continue
            ends = (min(one.index, other.index), max(one.index, other.index))
            count = nvlinks if isinstance(nvlinks, int) else nvlinks.get(ends, 0)
            status = {"read": "OK", "write": "OK", "nvlink": "OK" if count else "NS", "atomics": "OK", "pci": "NS"}
            fields: dict[str, Any] = {
                "common_ancestor": "system",
                "p2p_status": status,
                "nvlink_count": count,
                "nvlink_through": "switch" if count else None,
                "can_access_peer": True,
                "cuda_attributes": {
                    "PERFORMANCE_RANK": 0,
                    "ACCESS_SUPPORTED": 1,
                    "NATIVE_ATOMIC_SUPPORTED": 1,
                    "CUDA_ARRAY_ACCESS_SUPPORTED": 1,
                },
            }
            found.append(GpuPair(source=one.bus_id, target=other.bus_id, **(fields | values)))
    return tuple(found)


def nic(index: int, *, node: int = 0, path: tuple[str, ...] | None = None, bus: str | None = None) -> Nic:
    """A NIC on its own root complex, or below ``path``."""
    where = bus or f"0000:{0x80 + index:02x}:00.0"
    above = path or (f"pci0000:{0x80 + index:02x}", f"0000:{0x80 + index:02x}:01.0")
    return Nic(name=f"mlx5_{index}", pci=PciFunction(bus_id=where, path=above, numa_node=node))


def node(number: int, kind: NumaKind = NumaKind.CPU) -> NumaNode:
    """A NUMA node with 56 CPUs."""
    cpus = f"{number * 56}-{number * 56 + 55}" if kind is NumaKind.CPU else ""
    return NumaNode(id=number, kind=kind, cpus=cpus, memory_total_bytes=512 << 30)


def machine(
    gpus: Sequence[Gpu],
    *,
    nodes: Sequence[NumaNode] | None = None,
    nvlinks: int | Mapping[tuple[int, int], int] = 18,
    architecture: str = "x86_64",
    origin: OriginKind = OriginKind.LIVE,
    allowed: str | None = None,
    container_signs: tuple[str, ...] = (),
    **sections: Any,
) -> Machine:
    """A machine of these GPUs with all the sections that topo reads."""
    numbers = sorted({g.host_numa_id or 0 for g in gpus} | {0})
    values: dict[str, Any] = {
        "origin": Origin(kind=origin, name="by-hand"),
        "host": Host(
            architecture=architecture,
            numa_nodes=tuple(nodes if nodes is not None else map(node, numbers)),
            allowed_numa_nodes=allowed,
        ),
        "gpus": tuple(gpus),
        "pairs": pairs(gpus, nvlinks=nvlinks),
        "nics": (),
        "driver": Driver(module_version="580.159.04", driver_version="580.159.04"),
        "process": Process(container_signs=container_signs, environment={}),
    }
    return Machine(**(values | sections))


def hgx(count: int = 8, **options: Any) -> Machine:
    """An x86 node of H200s behind NVSwitches on two sockets."""
    gpus = [gpu(i, node=0 if i < (count + 1) // 2 else 1) for i in range(count)]
    return machine(gpus, **options)


def grace(count: int = 4, per_node: int = 2, **options: Any) -> Machine:
    """An Arm node of GPUs with NVLink-C2C and EGM, ``per_node`` on each CPU."""
    gpus = [grace_gpu(i, node=i // per_node) for i in range(count)]
    return machine(gpus, **({"architecture": "aarch64"} | options))


def grace_gpu(index: int, **options: Any) -> Gpu:
    """A GB200-like GPU: 18 NVLink 5, ten C2C links of 45 GB/s, EGM."""
    usual: dict[str, Any] = {
        "name": "NVIDIA GB200",
        "nvlink_version": 7,
        "speed": 53125,
        "c2c": 10,
        "egm": True,
        "addressing_mode": "ats",
        "numa_node": 2 + index,
    }
    return gpu(index, **(usual | options))
