"""The driver and its modules, vGPU and confidential computing."""

from tests.incidents.makers.healthy import cards, few_gpus, hgx, shipped
from tests.incidents.makers.parts import (
    Machine,
    cuda_fails,
    driver_not_loaded,
    event,
    gpu_lost,
    kernel_log,
    machine,
    no_peer_access,
    nvml_fails,
    version,
    xid,
)


@machine
def upgraded_not_reloaded() -> Machine:
    node = hgx()
    node["driver"].update(module_version="530.30.02", nvml_version="12.535.54.03", cuda_driver_version=12020)
    nvml_fails(node, 18, "NVML_ERROR_LIB_RM_VERSION_MISMATCH")
    cuda_fails(node, 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")
    return node


@machine
def open_module_on_pascal() -> Machine:
    node = cards("Tesla P4", 0x1BB3, [6, 1], 8053063680, 1)
    node["driver"].update(
        module_version="580.178.04",
        driver_version="580.178.04",
        nvml_version="13.580.178.04",
        cuda_error="CUDA_ERROR_NO_DEVICE",
        cuda_failure={"how": "error", "call": "cuInit", "number": 100, "name": "CUDA_ERROR_NO_DEVICE"},
    )
    gpu = node["gpus"][0]
    gpu_lost(gpu, "not listed", "nvml", "cuda")
    times = (87.4, 988.3, 1490.2)
    kernel_log(node, [event("driver", time_s, gpu["bus_id"], message="RmInitAdapter failed") for time_s in times])
    return node


@machine
def gb10_proprietary() -> Machine:
    node = shipped("gh200")
    node["host"].update(cpu_model="Cortex-X925", cpu_count=20, page_size_bytes=4096, kernel="6.12.0-spark")
    node["host"].update(numa_nodes=[{"id": 0, "kind": "cpu", "cpus": "0-19", "memory_total_bytes": 128849018880}])
    node["host"].update(allowed_cpus="0-19", allowed_numa_nodes="0", memory_total_bytes=128849018880)
    node["driver"].update(
        module_version="580.173.02",
        driver_version="580.173.02",
        module_flavour="proprietary",
        cuda_driver_version=13000,
        cuda_error="CUDA_ERROR_NO_DEVICE",
        cuda_failure={"how": "error", "call": "cuInit", "number": 100, "name": "CUDA_ERROR_NO_DEVICE"},
        modules=["nvidia", "nvidia_uvm"],
    )
    gpu = node["gpus"][0]
    gpu["bus_id"] = "000f:01:00.0"
    gpu["pci"].update(bus_id="000f:01:00.0", device_id=0x2E12, subsystem_device_id=None, local_cpus="0-19")
    gpu["pci"].update(path=["pci000f:00", "000f:00:00.0"])
    gpu["proc"].update(model="NVIDIA GB10", numa_node=None)
    gpu_lost(gpu, "not listed", "nvml", "cuda")
    log = []
    for time_s in (60.0, 120.0, 180.0):
        log.append(xid(time_s, "000f:01:00.0", 169, "fd8cd000 94000000"))
        log.append(event("driver", time_s + 0.2, "000f:01:00.0", message="RmInitAdapter failed"))
    kernel_log(node, log)
    return node


@machine
def module_key_rejected() -> Machine:
    """Secure Boot refuses the module that DKMS built: "Key was rejected by service"."""
    node = cards("NVIDIA GeForce RTX 2060 SUPER", 0x1F06, [7, 5], 8589934592, 1)
    driver_not_loaded(node, "580.159.04")
    node["system"]["daemons"] = []
    return node


@machine
def pascal_on_595() -> Machine:
    """Driver 595 ignores a GTX 1050: "supported through the NVIDIA 580.xx Legacy drivers. No NVIDIA GPU found"."""
    node = cards("NVIDIA GeForce GTX 1050", 0x1C81, [6, 1], 2147483648, 1)
    driver_not_loaded(node, "595.71.05")
    node["system"]["daemons"] = []
    return node


@machine
def confidential_not_ready() -> Machine:
    """A confidential virtual machine with one H100 PCIe, which was not attested since it started."""
    node = cards("NVIDIA H100 PCIe", 0x2331, [9, 0], 85520809984, 1)
    node["driver"].update(module_version="550.90.07", driver_version="550.90.07", nvml_version="12.550.90.07")
    node["driver"].update(confidential_compute="on", cuda_driver_version=12040)
    node["gpus"][0]["nvml"].update(virtualization="passthrough")
    cuda_fails(node, 802, "CUDA_ERROR_SYSTEM_NOT_READY")
    return node


@machine
def confidential_mode_on_each_of_hgx() -> Machine:
    """Confidential mode was set on each GPU of an HGX board, which turns NVLink off; Protected PCIe would keep it."""
    node = hgx()
    node["driver"].update(confidential_compute="on", confidential_ready=True)
    for gpu in node["gpus"]:
        for link in gpu["nvml"]["nvlinks"]:
            link["active"] = False
        gpu["nvml"]["fabric"].update(state="not-started")
        gpu["cuda"]["attributes"].update(MULTICAST_SUPPORTED=0)
    no_peer_access(node, "NS")
    return node


@machine
def vgpu_partition_not_activated() -> Machine:
    """A guest with one whole H200 as vGPU; nobody activated its partition on the host."""
    node = few_gpus(hgx(), 1)
    gpu = node["gpus"][0]
    gpu["nvml"].update(virtualization="vgpu")
    gpu["nvml"]["fabric"].update(state="completed", status=4)
    node["system"]["daemons"] = ["nvidia-persistenced"]
    cuda_fails(node, 802, "CUDA_ERROR_SYSTEM_NOT_READY")
    return node


@machine
def vgpu_without_managed_memory() -> Machine:
    """A fractional vGPU has no unified memory: so NVIDIA documents it."""
    node = cards("NVIDIA A40-8Q", 0x2235, [8, 6], 8589934592, 1)
    gpu = node["gpus"][0]
    gpu["nvml"].update(virtualization="vgpu", ecc_mode=None)
    gpu["nvml"]["unread"]["ecc_mode"] = {"reason": "not-supported", "detail": "nvmlDeviceGetEccMode: 3 (Not Supported)"}
    gpu["cuda"]["attributes"].update(
        MANAGED_MEMORY=0, CONCURRENT_MANAGED_ACCESS=0, PAGEABLE_MEMORY_ACCESS=0, GPU_DIRECT_RDMA_SUPPORTED=0
    )
    return node


@machine
def gb10_kernel_without_sva() -> Machine:
    """nvidia-smi works on the DGX Spark; cuInit ends with 3, and the addressing mode is none."""
    node = shipped("gh200")
    node["host"].update(cpu_model="Cortex-X925", cpu_count=20, page_size_bytes=4096, kernel="6.18.39-talos")
    node["host"].update(numa_nodes=[{"id": 0, "kind": "cpu", "cpus": "0-19", "memory_total_bytes": 128849018880}])
    node["host"].update(allowed_cpus="0-19", allowed_numa_nodes="0", memory_total_bytes=128849018880)
    version(node, "580.159.03", 13000)["driver"].update(module_flavour="open", modules=["nvidia", "nvidia_uvm"])
    node["system"] = {
        "uptime_s": 90000.0,
        "kernel_configuration": {"NUMA": "y", "ACPI_NUMA": "y", "IOMMU_SVA": "n", "ARM_SMMU_V3_SVA": "n"},
        "daemons": [],
    }
    gpu = node["gpus"][0]
    gpu["bus_id"] = "000f:01:00.0"
    gpu["pci"].update(bus_id="000f:01:00.0", device_id=0x2E12, subsystem_device_id=None, local_cpus="0-19")
    gpu["pci"].update(path=["pci000f:00", "000f:00:00.0"])
    gpu["proc"].update(model="NVIDIA GB10", numa_node=None)
    gpu["nvml"].update(
        name="NVIDIA GB10",
        compute_capability=[12, 1],
        addressing_mode="none",
        memory_total_bytes=None,
        numa_node=None,
        c2c_links=[],
        nvlinks=[],
        nvlink_count=0,
        cpu_affinity="0-19",
        numa_affinity="0",
    )
    gpu["nvml"].setdefault("unread", {})["memory_total_bytes"] = {
        "reason": "not-supported",
        "detail": "nvmlDeviceGetMemoryInfo: 3 (Not Supported)",
    }
    cuda_fails(node, 3, "CUDA_ERROR_NOT_INITIALIZED")
    kernel_log(node, [])
    return node


@machine
def geforce_without_p2p() -> Machine:
    node = cards("NVIDIA GeForce RTX 4090", 0x2684, [8, 9], 25757220864, 2)
    for gpu in node["gpus"]:
        gpu["nvml"].update(ecc_mode=False)
        gpu["cuda"]["attributes"].update(GPU_DIRECT_RDMA_SUPPORTED=0, DMA_BUF_SUPPORTED=0, ECC_ENABLED=0)
    for pair in node["pairs"]:
        pair["p2p_status"].update(read="CNS", write="CNS", nvlink="CNS", atomics="CNS", pci="CNS")
        pair.update(can_access_peer=False)
        pair["cuda_attributes"].update(ACCESS_SUPPORTED=0, NATIVE_ATOMIC_SUPPORTED=0)
    return node


@machine
def one_gpu_for_guests() -> Machine:
    """Two A40, one of which is passed to a virtual machine on purpose."""
    node = cards("NVIDIA A40", 0x2235, [8, 6], 48305799168, 2)
    other = node["gpus"][1]
    other["pci"]["driver"] = "vfio-pci"
    gpu_lost(other, "the nvidia driver is not bound to it", "proc", "node", "nvml", "cuda")
    node["pairs"] = []
    return node


@machine
def kepler_on_535() -> Machine:
    """Driver 535 ignores a GT 710, and says so over several lines of the kernel log."""
    node = cards("NVIDIA GeForce GT 710", 0x128B, [3, 5], 2147483648, 1)
    driver_not_loaded(node, "535.129.03")
    node["system"]["daemons"] = []
    line = event("driver", 8.0, node["gpus"][0]["bus_id"], message="Legacy drivers. Please") | {"bus_id": None}
    kernel_log(node, [line])
    return node
