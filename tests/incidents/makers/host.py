"""The host: memory, IOMMU, the kernel's settings, NICs and RDMA."""

import copy

from tests.incidents.makers.healthy import add_nics, behind_root_ports, cards, hgx, nvl72
from tests.incidents.makers.parts import Machine, machine


@machine
def bar1_256m() -> Machine:
    node = add_nics(cards("NVIDIA RTX A6000", 0x2230, [8, 6], 51527024640, 2))
    for gpu in node["gpus"]:
        gpu["nvml"]["bar1_total_bytes"] = 268435456
    return node


@machine
def dma_buf_without_peermem() -> Machine:
    """Open modules, a kernel with DMA-BUF, and no nvidia_peermem: it is not needed."""
    return add_nics(hgx())


@machine
def no_dma_buf_no_peermem() -> Machine:
    node = add_nics(hgx())
    node["driver"]["module_flavour"] = "proprietary"
    for gpu in node["gpus"]:
        gpu["cuda"]["attributes"]["DMA_BUF_SUPPORTED"] = 0
    return node


@machine
def four_kib_pages_on_grace() -> Machine:
    node = nvl72()
    node["host"].update(page_size_bytes=4096, kernel="6.8.0-1021-nvidia")
    return node


@machine
def numa_balancing_on() -> Machine:
    node = nvl72()
    node["host"]["numa_balancing"] = 1
    node["host"]["kernel_command_line"].pop("numa_balancing")
    return node


@machine
def acs_on_amd_root_ports() -> Machine:
    """Two cards under root ports that send peer requests up to the IOMMU: ACSCtl 0x001d."""
    node = cards("NVIDIA RTX 5880 Ada Generation", 0x26B3, [8, 9], 51527024640, 2)
    behind_root_ports(node, acs_control=0x1D)
    return node


@machine
def iommu_translates_peer_access() -> Machine:
    """Each of four cards has a translated IOMMU group, the kernel's default."""
    node = cards("NVIDIA RTX A6000", 0x2230, [8, 6], 51527024640, 4)
    behind_root_ports(node, acs_control=0)
    return node


@machine
def pool_of_huge_pages() -> Machine:
    """A node with 3 TB keeps 2.34 TB in a pool, half of it unused; 75 GB are left for all else."""
    node = hgx()
    pool = {"page_size_bytes": 2097152, "total": 1115799, "free": 567436}
    node["host"].update(memory_total_bytes=3_000_000_000_000, memory_available_bytes=74_610_000_000)
    node["host"]["huge_pages"] = [pool, {"page_size_bytes": 1073741824, "total": 0, "free": 0}]
    small, large = node["host"]["numa_nodes"][0], node["host"]["numa_nodes"][-1]
    if small is not large:
        small.update(memory_total_bytes=6_404_161_536, memory_free_bytes=4_551_446_528)
    large.update(memory_total_bytes=2_993_000_000_000, memory_free_bytes=70_000_000_000)
    large["huge_pages"] = [dict(pool)]
    return node


def passthrough(node: Machine, kernel: str) -> Machine:
    """The kernel was started with iommu.passthrough=1."""
    node["host"]["kernel"] = kernel
    node["host"]["kernel_command_line"]["iommu.passthrough"] = "1"
    node["system"]["iommu_domains"] = {gpu["bus_id"]: "identity" for gpu in node["gpus"]}
    return node


@machine
def passthrough_on_grace_before_6_11() -> Machine:
    """No CUDA context can be made: before 6.11 an identity domain takes no PASID."""
    return passthrough(nvl72(), "6.8.0-1010-nvidia-64k")


@machine
def passthrough_on_grace_after_6_11() -> Machine:
    """NVIDIA's own kernel since then is built with it."""
    return passthrough(nvl72(), "6.14.0-1013-nvidia-64k")


@machine
def cdmm_under_kubernetes() -> Machine:
    """The driver keeps the GPUs' memory to itself, so that kubelet does not take it for the host's."""
    node = nvl72("gb200-nvl72-cdmm")
    for gpu in node["gpus"]:
        gpu["proc"]["numa_status"] = None
    node["driver"]["module_parameters"]["CoherentGPUMemoryMode"] = "driver"
    node["driver"]["modules"] = ["nvidia", "nvidia_uvm", "gdrdrv"]
    return node


@machine
def port_in_polling() -> Machine:
    """One InfiniBand port: state Down, physical state Polling, rate 10."""
    node = add_nics(hgx())
    node["nics"][1]["ports"][0].update(state="DOWN", physical_state="Polling", rate_gbit_s=10.0)
    return node


@machine
def second_port_of_the_front_end() -> Machine:
    """The provider uses one port of a dual-port Ethernet card and disabled the other on purpose."""
    node = add_nics(hgx())
    for number, port in ((2, "ACTIVE"), (3, "DOWN")):
        nic = copy.deepcopy(node["nics"][0])
        nic.update(name=f"mlx5_{number + 8}", interfaces=[f"eth{number - 2}"])
        nic["pci"].update(bus_id=f"0000:1f:00.{number - 2}", path=["pci0000:1e", "0000:1e:01.0"], class_code=131072)
        nic["ports"][0].update(state=port, link_layer="Ethernet", rate_gbit_s=100.0)
        nic["ports"][0]["physical_state"] = "LinkUp" if port == "ACTIVE" else "Disabled"
        node["nics"].append(nic)
        verbs = copy.deepcopy(node["system"]["verbs"][0])
        verbs["nic"] = nic["name"]
        verbs["node"].update(path=f"/dev/infiniband/uverbs{number}", minor=192 + number)
        node["system"]["verbs"].append(verbs)
    return node


@machine
def peermem_of_the_driver() -> Machine:
    """nvidia_peermem is loaded and linked; only NCCL before 2.23 looks for nv_peer_mem's folder instead."""
    node = add_nics(hgx())
    node["driver"]["modules"].append("nvidia_peermem")
    node["system"]["module_versions"]["nvidia_peermem"] = node["driver"]["module_version"]
    node["system"].update(peer_memory_clients=[], peermem_linked=True)
    return node
