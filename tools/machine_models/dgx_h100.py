"""DGX H100: eight GPUs on NVSwitches, twelve ConnectX-7 ports, two Xeon sockets, and above all the PCI tree."""

from __future__ import annotations

from egmctl.facts.cuda import ATTRIBUTES
from egmctl.model.gpu import Fabric, Gpu, GpuCuda, GpuNvml, GpuProc
from egmctl.model.host import Driver, Host, Nic, NicPort, NumaKind, PcieLink, PciFunction
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from machine_models import nvlink
from machine_models.stating import (
    CLASS_3D,
    MELLANOX,
    MIB,
    NVIDIA,
    NVLINK_4,
    among,
    gpu_device_node,
    machine,
    numa_node,
    stated,
)

CPUS = ("0-55,112-167", "56-111,168-223")
"""CPU affinity of the GPUs on each NUMA node."""

ROOT_BUSES = (0x15, 0x3D, 0x4C, 0x5B, 0x97, 0xBD, 0xCB, 0xD9)
"""Bus of the root port above each GPU and the NIC beside it, in the order of the GPUs."""
STORAGE_BUSES = (0x24, 0xA5)
"""The same for the two dual-port cards; the second from the pattern of the first, whose NICs are on bus 0x29."""

HGX = "https://github.com/thamada/nvidia-smi/blob/03fbe6e68c0bb4c28b72d5da786a9712a33cf408/nvsim"

NO_CLUSTER = "00000000-0000-0000-0000-000000000000"
"""Cluster UUID of a fabric within one node."""

NO_C2C = Unread(reason=Reason.NOT_SUPPORTED, detail="an H100 SXM has no NVLink-C2C")


def model() -> Machine:
    """Return ``dgx-h100``."""
    return machine(
        "dgx-h100",
        "DGX H100: eight H100 on four NVSwitches, eight ConnectX-7 beside the GPUs and two dual-port ConnectX-7, two "
        "Xeon 8480C. No EGM. Its PCI tree reproduces the published nvidia-smi topo -m cell by cell.",
        (
            "nvidia-smi topo -m, kernel, driver: https://github.com/vllm-project/vllm/issues/6746",
            "the same matrix of another DGX H100: https://github.com/vllm-project/vllm/issues/13855",
            "NIC bus ids and names, CPUs, NVSwitches: DGX H100/H200 User Guide, "
            "https://docs.nvidia.com/dgx/dgxh100-user-guide/introduction-to-dgxh100.html",
            "GPU bus ids and memory, PCI paths and NUMA nodes of the NICs (simulated DGX H100): NVIDIA Infra "
            "Controller, https://github.com/NVIDIA/infra-controller/blob/a02fa34b71dcd413a81329dd77ac24e57c164295/"
            "crates/bmc-mock/src/hw/nvidia_dgx_h100.rs",
            "PCIe link, modes, clocks, EGM disabled, fabric (nvidia-smi -q of the same GPUs in an HGX H100): "
            f"{HGX}/H100SXMx8_smi.py",
            f"SMs, L2, copy engines (deviceQuery of the same): {HGX}/H100SXMx8_deviceQuery.py",
            "NVLinks of a GPU and their speed: NVIDIA Health Validation, "
            "https://docs.nvidia.com/health-validation/reference/checks/nvlink",
        ),
        host=_host(),
        gpus=tuple(_gpu(index, bus) for index, bus in enumerate(ROOT_BUSES)),
        pairs=nvlink.pairs([f"0000:{bus + 6:02x}:00.0" for bus in ROOT_BUSES], nvlinks=18, through="switch"),
        switches=Unread(reason=Reason.NOT_STATED, detail="four NVSwitches, whose bus ids no public source states"),
        nics=_nics(),
        driver=stated(
            Driver,
            driver_version="550.90.07",
            module_version="550.90.07",
            cuda_driver_version=12040,
            cuda_error=None,
            nvml_error=None,
        ),
    )


def _host() -> Host:
    return stated(
        Host,
        kernel="5.15.0-1053-nvidia",
        architecture="x86_64",
        cpu_model="Intel(R) Xeon(R) Platinum 8480C",
        cpu_count=224,
        page_size_bytes=4096,
        numa_nodes=tuple(numa_node(node, NumaKind.CPU, cpus=cpus) for node, cpus in enumerate(CPUS)),
        allowed_cpus="0-223",
        allowed_numa_nodes="0-1",
    )


def _gpu(index: int, root_bus: int) -> Gpu:
    bus_id, node = f"0000:{root_bus + 6:02x}:00.0", index // 4
    name = "NVIDIA H100 80GB HBM3"
    return stated(
        Gpu,
        bus_id=bus_id,
        index=index,
        pci=stated(
            PciFunction,
            bus_id=bus_id,
            vendor_id=NVIDIA,
            device_id=0x2330,
            class_code=CLASS_3D,
            path=_gpu_path(root_bus),
            numa_node=node,
            local_cpus=CPUS[node],
            driver="nvidia",
            responds=True,
        ),
        proc=stated(GpuProc, model=name, minor=index, excluded=False),
        node=gpu_device_node(index),
        nvml=stated(
            GpuNvml,
            index=index,
            name=name,
            minor=index,
            compute_capability=(9, 0),
            memory_total_bytes=81559 * MIB,
            link=stated(PcieLink, speed_gt_s=32.0, width=16, max_speed_gt_s=32.0, max_width=16),
            cpu_affinity=CPUS[node],
            numa_affinity=str(node),
            numa_node=Unread(reason=Reason.NOT_SUPPORTED, detail="nvidia-smi topo -m: GPU NUMA ID N/A"),
            capabilities=0,
            c2c_enabled=False,
            c2c_links=NO_C2C,
            nvlinks=nvlink.links_to_switches(NVLINK_4),
            nvlink_count=18,
            addressing_mode="none",
            fabric=stated(Fabric, state="completed", status=0, cluster_uuid=NO_CLUSTER, clique_id=0),
            mig_mode=False,
            mig_mode_pending=False,
            virtualization="none",
            compute_mode="default",
            ecc_mode=True,
            sm_clock_max_mhz=1980,
            memory_clock_max_mhz=2619,
        ),
        cuda=stated(
            GpuCuda,
            ordinal=index,
            name=name,
            attributes=among(
                ATTRIBUTES,
                {
                    "COMPUTE_CAPABILITY_MAJOR": 9,
                    "COMPUTE_CAPABILITY_MINOR": 0,
                    "MULTIPROCESSOR_COUNT": 132,
                    "L2_CACHE_SIZE": 52428800,
                    "ASYNC_ENGINE_COUNT": 3,
                    "INTEGRATED": 0,
                    "ECC_ENABLED": 1,
                    "COMPUTE_MODE": 0,
                    "UNIFIED_ADDRESSING": 1,
                    "MANAGED_MEMORY": 1,
                    "CAN_MAP_HOST_MEMORY": 1,
                    "HOST_NUMA_ID": node,
                    "NUMA_CONFIG": 0,
                    "NUMA_ID": -1,
                },
            ),
        ),
    )


def _nics() -> tuple[Nic, ...]:
    """Return the ports in the order of their bus ids, which is that of mlx5_0 to mlx5_11."""
    functions = [
        (f"0000:{bus + 3:02x}:00.0", _switch_path(bus), int(index >= 4), "InfiniBand", f"ibp{bus + 3}s0")
        for index, bus in enumerate(ROOT_BUSES)
    ]
    for node, root_bus in enumerate(STORAGE_BUSES):
        bus, path = root_bus + 5, _storage_path(root_bus)
        # The default interface names show one port of each kind on a card.
        functions.append((f"0000:{bus:02x}:00.0", path, node, "InfiniBand", f"ibp{bus}s0f0"))
        functions.append((f"0000:{bus:02x}:00.1", path, node, "Ethernet", f"enp{bus}s0f1np1"))
    return tuple(_nic(f"mlx5_{number}", *function) for number, function in enumerate(sorted(functions)))


def _nic(name: str, bus_id: str, path: tuple[str, ...], node: int, link_layer: str, interface: str) -> Nic:
    return stated(
        Nic,
        name=name,
        pci=stated(
            PciFunction,
            bus_id=bus_id,
            vendor_id=MELLANOX,
            device_id=0x1021,
            class_code=0x020700 if link_layer == "InfiniBand" else 0x020000,
            path=path,
            numa_node=node,
            local_cpus=CPUS[node],
            driver="mlx5_core",
            responds=True,
        ),
        ports=(stated(NicPort, number=1, link_layer=link_layer),),
        interfaces=(interface,),
    )


def _switch_path(root_bus: int) -> tuple[str, ...]:
    """Return the bridges above the NIC beside a GPU: root port, then the switch's upstream and a downstream port."""
    return (
        f"pci0000:{root_bus:02x}",
        f"0000:{root_bus:02x}:01.0",
        f"0000:{root_bus + 1:02x}:00.0",
        f"0000:{root_bus + 2:02x}:00.0",
    )


def _gpu_path(root_bus: int) -> tuple[str, ...]:
    """Return the bridges above a GPU, from its bus number and from what is printed: PXB to the NIC beside it.

    The NIC's switch has bus numbers root + 2 (inside) and root + 3 (the NIC); the GPU is on root + 6. The two buses
    between are a further switch: bridges on another downstream port of the first, which is why the pair is PXB and
    not PIX. The number of that port is not published.
    """
    *switch, _ = _switch_path(root_bus)
    return (
        *switch,
        f"0000:{root_bus + 2:02x}:01.0",
        f"0000:{root_bus + 4:02x}:00.0",
        f"0000:{root_bus + 5:02x}:00.0",
    )


def _storage_path(root_bus: int) -> tuple[str, ...]:
    return (
        f"pci0000:{root_bus:02x}",
        f"0000:{root_bus:02x}:01.0",
        *(f"0000:{root_bus + step:02x}:00.0" for step in range(1, 5)),
    )
