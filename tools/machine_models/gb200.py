"""GB200: a node of two superchips (two Grace CPUs, four GPUs), alone and as one tray of an NVL72 rack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from egmctl.model.gpu import Fabric, Gpu, Platform
from egmctl.model.host import DeviceNode, Driver, Host, Nic, NicPort, PciFunction
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from machine_models import grace, nvlink
from machine_models.gh200 import COHERENCE, CUDA_GUIDE
from machine_models.stating import MELLANOX, NOT_STATED, NVLINK_5, machine, stated

SOURCES = (
    "NV18 between all GPUs, CPU and NUMA affinity, GPU NUMA IDs: https://github.com/sgl-project/sglang/issues/11208",
    "34 NUMA nodes and their memory, Mems_allowed, CUDA 13.0: "
    "https://github.com/sirius-db/sirius/blob/0bc03cca272766033a9bb9beaa7a3d8e215e2db9/"
    "experimental/starrocks/configs/gb200-4gpu/README.md",
    "bus ids, GPU memory, clock, driver, module ids, NIC paths (simulated compute tray): NVIDIA Infra Controller, "
    "https://github.com/NVIDIA/infra-controller/blob/a02fa34b71dcd413a81329dd77ac24e57c164295/"
    "crates/bmc-mock/src/hw/nvidia_gb200.rs",
    "PCI paths of the GPUs: https://lore.kernel.org/all/20250904040828.319452-15-ankita@nvidia.com/",
    "PCI device id: https://github.com/NVIDIA/mig-parted/issues/227",
    "NVLinks of a GPU and their speed: NVIDIA Health Validation, "
    "https://docs.nvidia.com/health-validation/reference/checks/nvlink",
    "P2P between all GPUs (p2pBandwidthLatencyTest), NVLink-C2C rate: "
    "https://github.com/stas00/ml-engineering/blob/744d01e18b79512572f64a6bbd8b5f4a725203a7/network/README.md",
    "rate of one NVLink-C2C link: "
    "https://github.com/dmlc/xgboost/blob/ab1e531d288f59136d8f4cac8469e2fdd457bf47/tests/cpp/common/test_cuda_dr_utils.cc",
    COHERENCE,
    CUDA_GUIDE,
)

PLACES = tuple(
    grace.Place(bus_id=bus_id, host_node=host, own_node=own, numa_affinity=affinity)
    for bus_id, host, own, affinity in (
        ("0008:01:00.0", 0, 2, "0,3-9,11-17"),
        ("0009:01:00.0", 0, 10, "0,3-9,11-17"),
        ("0018:01:00.0", 1, 18, "1,19-25,27-33"),
        ("0019:01:00.0", 1, 26, "1,19-25,27-33"),
    )
)
BUS_IDS = tuple(place.bus_id for place in PLACES)
MODULE_IDS = (2, 1, 4, 3)

C2C_LINKS = 5
"""A Grace CPU's 450 GB/s of each direction are ten links (GH200); two GPUs share them."""

FABRIC_ATTRIBUTES = (("HANDLE_TYPE_FABRIC_SUPPORTED", 1), ("HOST_NUMA_MULTINODE_IPC_SUPPORTED", 1))
"""The EGM guide's multi-node platform: HOST_NUMA memory exported by fabric handle to another node."""

MODELLED_CLUSTER_UUID = "00000000-0000-0000-0000-000000000072"
MODELLED_CLIQUE_ID = 1
"""Constants of the model, chosen not to look like those of a real rack."""


def tray() -> Machine:
    """Return ``gb200-tray``: the four GPUs of one node, in no multi-node NVLink domain."""
    fabric = Unread(reason=Reason.NOT_STATED, detail="no public nvidia-smi -q of a node outside a rack's NVLink domain")
    return machine(
        "gb200-tray",
        "A GB200 node with two Grace CPUs and four GPUs, NV18 between all of them, EGM on, taken by itself: the "
        "single-node, multi-GPU platform of the EGM guide. The outputs it is made from are of NVLink-switch trays; the "
        "link counts of the GB200 NVL4 board, which has no switch, are not published. The EGM bit is the model's "
        "assumption.",
        SOURCES,
        host=_host(),
        gpus=_gpus(fabric=[fabric] * 4, platform=[stated(Platform, module_id=module) for module in MODULE_IDS]),
        pairs=nvlink.pairs(BUS_IDS, nvlinks=18, through="switch"),
        switches=(),
        nics=Unread(reason=Reason.NOT_STATED, detail="published outputs differ from site to site"),
        driver=_driver(),
    )


def nvl72_tray() -> Machine:
    """Return ``gb200-nvl72``: one compute tray of a rack whose NVLink domain is up."""
    fabric = stated(
        Fabric,
        state="completed",
        status=0,
        cluster_uuid=MODELLED_CLUSTER_UUID,
        clique_id=MODELLED_CLIQUE_ID,
    )
    platform = [
        stated(Platform, slot=24, tray=14, host_id=1, peer_type="switch", module_id=module) for module in MODULE_IDS
    ]
    return machine(
        "gb200-nvl72",
        "One compute tray of a GB200 NVL72 rack (two Grace CPUs, four of the rack's 72 GPUs), in its NVLink domain, "
        "with an IMEX channel and EGM on: the multi-node platform of the EGM guide. The cluster UUID and the clique id "
        "are made up; the EGM bit is the model's assumption.",
        (
            *SOURCES,
            "rack and tray: NVIDIA Multi-Node NVLink User Guide, "
            "https://docs.nvidia.com/multi-node-nvlink-systems/mnnvl-user-guide/overview.html",
            "NICs of a tray: NVIDIA Multi-Node Tuning Guide, "
            "https://docs.nvidia.com/multi-node-nvlink-systems/multi-node-tuning-guide/system.html",
            "IMEX channel node: NVIDIA IMEX Service User Guide, "
            "https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide",
        ),
        host=_host(),
        gpus=_gpus(fabric=[fabric] * 4, platform=platform, attributes=FABRIC_ATTRIBUTES),
        pairs=nvlink.pairs(BUS_IDS, nvlinks=18, through="switch"),
        switches=(),
        nics=_nics(),
        driver=_driver(
            imex_channels=(
                stated(DeviceNode, path="/dev/nvidia-caps-imex-channels/channel0", exists=True, minor=0, access="ok"),
            )
        ),
    )


def _host() -> Host:
    return grace.host(2, 4, cpu_memory_mib=(489960, 489823), gpu_memory_mib=188416)


def _gpus(
    *,
    fabric: Sequence[Fabric | Unread],
    platform: Sequence[Platform],
    attributes: tuple[tuple[str, int], ...] = (),
) -> tuple[Gpu, ...]:
    part = grace.Part(
        name="NVIDIA GB200",
        compute_capability=(10, 0),
        memory_mib=189471,
        device_id=0x2941,
        c2c_links=C2C_LINKS,
        attributes=attributes,
    )
    return tuple(
        grace.gpu(
            index,
            place,
            part,
            nvlink.links_to_switches(NVLINK_5),
            fabric=fabric[index],
            platform=platform[index],
            sm_clock_max_mhz=2062,
        )
        for index, place in enumerate(PLACES)
    )


def _driver(**values: Any) -> Driver:
    return stated(
        Driver,
        driver_version="580.126.16",
        module_version="580.126.16",
        cuda_driver_version=13000,
        cuda_error=None,
        nvml_error=None,
        **values,
    )


def _nics() -> tuple[Nic, ...]:
    """Return the tray's four ConnectX-7 in natural order of their names. Its BlueField-3 are left out: see the docs."""
    places = (("ibP2p3s0", "0002", 0), ("ibP16p3s0", "0010", 1), ("ibP18p3s0", "0012", 1), ("ibp3s0", "0000", 0))
    return tuple(_nic(name, domain, node) for name, domain, node in places)


def _nic(name: str, domain: str, node: int) -> Nic:
    return stated(
        Nic,
        name=name,
        pci=stated(
            PciFunction,
            bus_id=f"{domain}:03:00.0",
            vendor_id=MELLANOX,
            device_id=0x1021,
            path=(f"pci{domain}:00", f"{domain}:00:00.0", f"{domain}:01:00.0", f"{domain}:02:00.0"),
            numa_node=node,
            local_cpus=grace.cpus(node),
            driver="mlx5_core",
            responds=True,
        ),
        ports=(stated(NicPort, number=1, link_layer="InfiniBand", rate_gbit_s=NOT_STATED),),
    )
