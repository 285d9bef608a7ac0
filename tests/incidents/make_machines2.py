"""Write the machines of states2.jsonl, as make_machines.py writes those of states.jsonl.

Run it from the repository's root:

    python -m tests.incidents.make_machines2
"""

import copy
import gzip
import json
from collections.abc import Callable
from typing import Any

from tests.incidents.make_machines import (
    HERE,
    Machine,
    add_nics,
    cards,
    cuda_fails,
    event,
    few_gpus,
    gpu_lost,
    hgx,
    hgx_container,
    kernel_log,
    nvl72,
    nvml_fails,
    shipped,
    xid,
)

MAKERS: dict[str, Callable[[], Machine]] = {}


def machine(maker: Callable[[], Machine]) -> Callable[[], Machine]:
    """Register the maker under its name with dashes."""
    MAKERS[maker.__name__.replace("_", "-")] = maker
    return maker


# Parts of a machine.


def version(node: Machine, number: str, cuda: int) -> Machine:
    """Set the driver's version for the kernel module and the libraries alike."""
    node["driver"].update(
        module_version=number,
        driver_version=number,
        nvml_version=f"{cuda // 1000}.{number}",
        cuda_driver_version=cuda,
        libcuda_version=number,
        libcuda_compat=False,
    )
    return node


def library_missing(node: Machine, library: str, file: str) -> None:
    """The container has no file of that name, so the library cannot be loaded: ``cuda`` or ``nvml``."""
    detail = f"{file}: cannot open shared object file: No such file or directory"
    missing = {"how": "missing", "call": "", "number": None, "name": None, "detail": detail}
    reason = {"reason": "missing-library", "detail": detail}
    driver = node["driver"]
    driver.update({f"{library}_error": None, f"{library}_failure": missing})
    unread = driver.setdefault("unread", {})
    unread[f"{library}_error"] = reason
    if library == "cuda":
        keys = ["cuda_driver_version", "libcuda_version", "libcuda_compat"]
    else:
        keys = ["driver_version", "nvml_version"]
    for key in keys:
        driver[key] = None
        unread[key] = reason
    for gpu in node["gpus"]:
        gpu[library] = None
        gpu.setdefault("unread", {})[library] = reason
    if library == "cuda":
        for pair in node["pairs"]:
            pair["can_access_peer"] = None
            pair.setdefault("unread", {})["can_access_peer"] = reason


def node_missing(device: dict[str, Any]) -> None:
    path = device["path"]
    device.clear()
    device.update(path=path, exists=False, kind=None, access="ENOENT")


def driver_not_loaded(node: Machine, packages: str) -> None:
    """The packages are installed; no kernel module of them is loaded."""
    node["driver"].update(
        module_version=None,
        module_flavour=None,
        modules=[],
        majors={},
        module_parameters=None,
        uvm_parameters=None,
        nvml_version=f"13.{packages}",
        libcuda_version=packages,
        libcuda_compat=False,
        confidential_compute=None,
    )
    absent = {"reason": "not-present", "detail": "/proc/driver/nvidia/version: ENOENT"}
    for key in ("module_version", "module_flavour", "module_parameters", "uvm_parameters"):
        node["driver"].setdefault("unread", {})[key] = dict(absent)
    for device in node["driver"]["nodes"]:
        node_missing(device)
    nvml_fails(node, 9, "NVML_ERROR_DRIVER_NOT_LOADED")
    cuda_fails(node, 100, "CUDA_ERROR_NO_DEVICE")
    for gpu in node["gpus"]:
        gpu["pci"]["driver"] = ""
        gpu_lost(gpu, "/proc/driver/nvidia/gpus: ENOENT", "proc", "node")
    node["pairs"] = []


def no_peer_access(node: Machine, status: str) -> None:
    for pair in node["pairs"]:
        pair.update(can_access_peer=False, nvlink_count=0, nvlink_through=None)
        pair["p2p_status"].update(read=status, write=status, nvlink=status, atomics=status)
        pair["cuda_attributes"].update(ACCESS_SUPPORTED=0, NATIVE_ATOMIC_SUPPORTED=0)


def busy(gpu: dict[str, Any], sm_clock_mhz: int, throttle_reasons: list[str]) -> None:
    process = {"pid": 4242 + gpu["index"], "name": "python3", "used_memory_bytes": 60_000_000_000}
    gpu["nvml"].update(sm_clock_mhz=sm_clock_mhz, throttle_reasons=throttle_reasons, performance_state=0)
    gpu["nvml"].update(temperature_c=58, processes=[process], memory_used_bytes=60_000_000_000)


def nvlinks(count: int, nvml_version: int, active: list[bool], speed_mb_s: int) -> list[dict[str, Any]]:
    """Links of a bridge: ``nvml_version`` is NVML's enum; an inactive link has no remote end."""
    return [
        {
            "link": link,
            "active": active[link],
            "version": nvml_version,
            "remote_type": "gpu" if active[link] else None,
            "remote_bus_id": None,
            "remote_link": None,
            "speed_mb_s": speed_mb_s if active[link] else None,
            "crc_errors": 0,
            "replay_errors": 0,
            "recovery_errors": 0,
        }
        for link in range(count)
    ]


# Containers.


@machine
def lxc_with_the_old_uvm_major() -> Machine:
    """The container's configuration allows the number that nvidia-uvm had before the host's new kernel."""
    node = hgx_container(["/run/systemd/container"])
    node["process"]["environment"] = {}
    node["driver"]["majors"]["nvidia-uvm"] = 511
    for device in node["driver"]["nodes"]:
        if "uvm" in device["path"]:
            device.update(major=511, access="EPERM")
    cuda_fails(node, 999, "CUDA_ERROR_UNKNOWN")
    return node


@machine
def pod_without_runtime_class() -> Machine:
    """containerd's default runtime is runc and the pod names no other: it got nothing of the driver."""
    node = hgx_container(["KUBERNETES_SERVICE_HOST", "overlay root"])
    node["process"].update(cgroups=[{"version": 2, "controllers": [], "path": "/kubepods/besteffort/pod1/x"}])
    node["process"]["environment"] = {"KUBERNETES_SERVICE_HOST": "set", "NVIDIA_VISIBLE_DEVICES": "all"}
    for device in node["driver"]["nodes"]:
        node_missing(device)
    for gpu in node["gpus"]:
        node_missing(gpu["node"])
    library_missing(node, "nvml", "libnvidia-ml.so.1")
    library_missing(node, "cuda", "libcuda.so.1")
    node["pairs"] = []
    return node


@machine
def driver_capabilities_utility() -> Machine:
    """The image asks for the capability ``utility`` alone: nvidia-smi is there, libcuda is not."""
    node = hgx_container()
    node["process"]["environment"]["NVIDIA_DRIVER_CAPABILITIES"] = "utility"
    library_missing(node, "cuda", "libcuda.so.1")
    return node


@machine
def cdi_of_the_old_driver() -> Machine:
    """The host has a new driver; the specification still names the old one's files, which are gone."""
    node = hgx_container(["/run/.containerenv", "overlay root"])
    node["process"]["environment"] = {}
    library_missing(node, "nvml", "libnvidia-ml.so.1")
    library_missing(node, "cuda", "libcuda.so.1")
    return node


# The driver and its module.


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


# Fabric Manager, IMEX, NVLink.


@machine
def fabric_status_of_two_gpus() -> Machine:
    """The probe completed on all; it succeeded on two GPUs and ended in an unknown error on the others."""
    node = hgx()
    for gpu in node["gpus"][2:]:
        gpu["nvml"]["fabric"].update(state="completed", status=999)
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
def fabric_insufficient_resources() -> Machine:
    """Each GPU: state Completed, status Insufficient Resources, clique 0, cluster UUID all zero."""
    node = nvl72()
    for gpu in node["gpus"]:
        gpu["nvml"]["fabric"].update(state="completed", status=23, clique_id=0, cluster_uuid=None)
        gpu["nvml"]["fabric"].setdefault("unread", {})["cluster_uuid"] = {
            "reason": "not-supported",
            "detail": "all zero: in no multi-node NVLink domain",
        }
    return node


@machine
def imex_waits_for_peers() -> Machine:
    """After an unclean end the service waits for the nodes that had imported memory."""
    node = nvl72()
    node["system"]["imex"].update(daemon_state="WAITING_FOR_PEERS", domain_status="DOWN")
    return node


@machine
def nvlink_bridge_half_seated() -> Machine:
    """Two RTX 2080 Ti; the cooler keeps the bridge from going in fully, so one of two links is up."""
    node = cards("NVIDIA GeForce RTX 2080 Ti", 0x1E04, [7, 5], 11811160064, 2)
    for gpu in node["gpus"]:
        gpu["nvml"].update(ecc_mode=None, nvlink_count=2, nvlinks=nvlinks(2, 3, [True, False], 25781))
    for pair in node["pairs"]:
        pair.update(nvlink_count=1, nvlink_through="direct")
        pair["p2p_status"].update(read="OK", write="OK", nvlink="OK", atomics="OK")
    return node


@machine
def nvlink_recovers_again_and_again() -> Machine:
    """Of 320 GPUs with 18 links each one link counts anything: 505 recoveries. It failed five days later."""
    node = nvl72()
    node["gpus"][0]["nvml"]["nvlinks"][14]["counters"].update(recoveries=505, successful_recoveries=505)
    return node


@machine
def a100_pcie_without_a_bridge() -> Machine:
    """A single A100 PCIe has twelve links that lead nowhere."""
    node = version(cards("NVIDIA A100 80GB PCIe", 0x20B5, [8, 0], 85899345920, 1), "570.133.20", 12080)
    node["gpus"][0]["nvml"].update(nvlink_count=12, nvlinks=nvlinks(12, 4, [False] * 12, 25000))
    return node


# MIG.


@machine
def mig_without_instances() -> Machine:
    """After a repair GPU 0 has MIG off and the others have it on, without an instance."""
    node = hgx()
    for gpu in node["gpus"][1:]:
        gpu["nvml"].update(mig_mode=True, mig_mode_pending=True)
    cuda_fails(node, 100, "CUDA_ERROR_NO_DEVICE")
    return node


@machine
def mig_on_all() -> Machine:
    """Partitioned GPUs: no peer access, and a program sees one instance."""
    node = hgx()
    for gpu in node["gpus"]:
        gpu["nvml"].update(mig_mode=True, mig_mode_pending=True)
    no_peer_access(node, "NS")
    node["gpus"][0]["cuda"].update(name="NVIDIA H200 MIG 1g.18gb", memory_total_bytes=17448304640)
    for gpu in node["gpus"][1:]:
        gpu_lost(gpu, "CUDA lists one instance", "cuda")
    return node


# Xids, memory, PCIe.


@machine
def gsp_timeout() -> Machine:
    """GSP RPC timeouts came with the first 525 driver and were fixed in 525.105.17."""
    node = version(cards("NVIDIA A10", 0x2236, [8, 6], 24159191040, 4), "525.60.13", 12000)
    node["driver"]["module_flavour"] = "proprietary"
    text = "Timeout waiting for RPC from GSP! Expected function 76 (GSP_RM_CONTROL) (0x2080a0a7 0x1c)."
    bus_id = node["gpus"][1]["bus_id"]
    kernel_log(node, [xid(time_s, bus_id, 119, text, pid=4242, process="python3") for time_s in (50000.0, 50060.0)])
    return node


@machine
def one_mmu_fault() -> Machine:
    """One Xid 31 of one program, nothing else."""
    node = hgx()
    text = (
        "Ch 00000023, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_3 faulted @ 0x7f2b_c0000000."
        " Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
    )
    kernel_log(node, [xid(40000.0, node["gpus"][1]["bus_id"], 31, text, pid=4242, process="python3")])
    return node


@machine
def rows_remapped_long_ago() -> Machine:
    """The driver has remapped two rows; no remapping waits and none failed."""
    node = hgx()
    node["gpus"][1]["nvml"].update(remapped_rows_uncorrectable=2)
    return node


@machine
def uncorrectable_errors_on_l40s() -> Machine:
    """Each job on that node ends in cuCtxCreate 214, and Slurm still hands it out."""
    node = cards("NVIDIA L40S", 0x26B9, [8, 9], 48305799168, 2)
    gpu = node["gpus"][0]
    gpu["nvml"].update(ecc_uncorrected_volatile=105, recovery_action=None)
    gpu["nvml"]["unread"]["recovery_action"] = {"reason": "not-supported", "detail": "field 230: 3 (Not Supported)"}
    return node


@machine
def surprise_down() -> Machine:
    """A hot card: the link replays, goes down, and the GPU is off the bus."""
    node = cards("Tesla P100-PCIE-16GB", 0x15F8, [6, 0], 17179869184, 2)
    version(node, "580.159.04", 13000)["driver"]["module_flavour"] = "proprietary"
    gpu = node["gpus"][0]
    port = "0000:00:02.0"
    gpu["pci"].update(path=["pci0000:00", port], responds=False)
    gpu_lost(gpu, "GPU is lost", "nvml", "cuda")
    node["pairs"] = []
    kernel_log(
        node,
        [
            event("aer", 74785.66, port, corrected=True, fatal=False, text="Replay Timer Timeout"),
            event("aer", 74889.54, port, fatal=True, text="Surprise Down Error"),
            xid(74889.64, gpu["bus_id"], 79, "GPU has fallen off the bus.", fatal=None),
        ],
    )
    return node


@machine
def gen2_under_load() -> Machine:
    """One of four training GPUs has stayed at 5 GT/s since a rule forbade its link to change speed."""
    name = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    node = cards(name, 0x2BB5, [12, 0], 102641958912, 4)
    for gpu in node["gpus"]:
        busy(gpu, 2400, [])
        gpu["nvml"].update(sm_clock_max_mhz=2430)
    slow = {"speed_gt_s": 5.0, "width": 16, "max_speed_gt_s": 32.0, "max_width": 16}
    node["gpus"][2]["pci"]["link"] = dict(slow)
    node["gpus"][2]["nvml"]["link"] = dict(slow)
    return node


# Power and clocks.


@machine
def power_limit_by_the_controller() -> Machine:
    """nvidia-smi -q: current limit 500 W, requested and default limit 700 W."""
    node = hgx()
    for gpu in node["gpus"]:
        gpu["nvml"].update(power_limit_mw=500_000, power_limit_default_mw=700_000)
    return node


@machine
def power_cap_at_full_load() -> Machine:
    """All GPUs work hard and reach their default limit: that is what the limit is for."""
    node = hgx()
    for gpu in node["gpus"]:
        busy(gpu, 1755, ["sw-power-cap"])
        gpu["nvml"].update(power_limit_mw=700_000, power_limit_default_mw=700_000)
    return node


@machine
def one_gpu_with_a_locked_clock() -> Machine:
    """A program locked the clock of one GPU and left it so: no throttle reason, 1200 MHz under load."""
    node = hgx()
    for gpu in node["gpus"]:
        busy(gpu, 1965, [])
        gpu["nvml"].update(power_limit_mw=700_000, power_limit_default_mw=700_000)
    node["gpus"][2]["nvml"].update(sm_clock_mhz=1200)
    return node


# Memory of the host.


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


@machine
def yama_forbids_pidfd() -> Machine:
    """kernel.yama.ptrace_scope=1 in a container without CAP_SYS_PTRACE: "pidfd_getfd: Operation not permitted"."""
    node = nvl72()
    node["process"].update(effective_uid=1000, container_signs=["/.dockerenv", "overlay root"])
    node["process"]["environment"] = {"NVIDIA_VISIBLE_DEVICES": "all"}
    node["confinement"].update(ptrace_scope=1, capabilities=0)
    node["confinement"]["namespaces"] = dict(node["confinement"]["namespaces"], mnt=4026533002, pid=4026533003)
    return node


@machine
def open_files_1024() -> Machine:
    """The shells of a cluster have a soft limit of 1024 open files, which srun hands on to the ranks."""
    node = shipped("hgx-b200")
    node["driver"].update(cuda_driver_version=13000, modules=["nvidia", "nvidia_uvm"], module_flavour="open")
    version(node, "580.126.16", 13000)
    node["system"].update(daemons=["nv-fabricmanager", "nvidia-persistenced"], uptime_s=90000.0)
    node["process"].update(
        effective_uid=1000,
        cgroups=[
            {"version": 2, "controllers": [], "path": "/system.slice/slurmstepd.scope/job_171642/step_0/user/task_0"}
        ],
        environment={"SLURM_JOB_ID": "171642"},
    )
    node["confinement"]["limits"] = {"memlock": -1, "nofile": 1024, "stack": 8388608}
    kernel_log(node, [])
    return node


# vGPU and confidential computing.


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


# Grace and other coherent platforms.


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


# NICs and RDMA.


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


# Slurm, and the daemon of persistence.


@machine
def slurm_numbers_of_the_host() -> Machine:
    """The container got the job's two GPUs as 0 and 1; Slurm, without ConstrainDevices, says 2 and 3."""
    node = few_gpus(hgx_container(["overlay root"]), 2)
    node["process"]["cgroups"][0]["path"] = "/system.slice/slurmstepd.scope/job_12/step_0/user/task_0"
    node["process"]["environment"] = {
        "SLURM_JOB_ID": "12",
        "SLURM_GPUS_ON_NODE": "2",
        "CUDA_VISIBLE_DEVICES": "2,3",
        "NVIDIA_VISIBLE_DEVICES": "2,3",
    }
    cuda_fails(node, 100, "CUDA_ERROR_NO_DEVICE")
    return node


@machine
def slurm_job_with_one_gpu() -> Machine:
    """A job asked for one of four GPUs and got GPU 2, which is number 0 in its cgroup."""
    node = hgx()
    node["process"].update(effective_uid=1000)
    node["process"]["cgroups"][0]["path"] = "/system.slice/slurmstepd.scope/job_12/step_0/user/task_0"
    node["process"]["environment"] = {"SLURM_JOB_ID": "12", "SLURM_GPUS_ON_NODE": "1", "CUDA_VISIBLE_DEVICES": "0"}
    node["confinement"]["capabilities"] = 0
    for gpu in node["gpus"]:
        if gpu["index"] == 2:
            gpu["nvml"]["index"] = 0
            gpu["cuda"]["ordinal"] = 0
        else:
            gpu["node"]["access"] = "EPERM"
            gpu_lost(gpu, "not listed", "nvml", "cuda")
    node["pairs"] = []
    return node


@machine
def persistence_without_the_daemon() -> Machine:
    """nvidia-smi -pm 1 on the host: the mode is on, and nvidia-persistenced does not run."""
    node = hgx()
    node["system"]["daemons"] = ["nv-fabricmanager"]
    return node


def write() -> None:
    """Write every machine. The files depend on their contents alone, not on the time."""
    folder = HERE / "machines"
    for name, maker in MAKERS.items():
        text = json.dumps(maker(), separators=(",", ":")).encode()
        (folder / f"{name}.json.gz").write_bytes(gzip.compress(text, mtime=0))


if __name__ == "__main__":
    write()
