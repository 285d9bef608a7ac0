"""Write machines/*.json.gz: a shipped machine with the facts of one published thread.

A state of states.jsonl names its machine and its source. The function of the same name here changes what that thread
states, and nothing else, so that a reader can compare the two. Run it from the repository's root:

    python tests/incidents/make_machines.py
"""

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Machine = dict[str, Any]

HERE = Path(__file__).parent
SHIPPED = HERE.parents[1] / "profiles" / "machines"

MAKERS: dict[str, Callable[[], Machine]] = {}


def machine(maker: Callable[[], Machine]) -> Callable[[], Machine]:
    """Register the maker under its name with dashes: ``row_remap_pending`` writes ``row-remap-pending.json.gz``."""
    MAKERS[maker.__name__.replace("_", "-")] = maker
    return maker


# Healthy machines, from those that ship.


def shipped(name: str) -> Machine:
    document: Machine = json.loads((SHIPPED / f"{name}.json").read_text())
    return document


def hgx() -> Machine:
    """The recorded node with four H200, as its own operating system sees it: no container, all daemons."""
    node = shipped("hgx-h200x4")
    for gpu in node["gpus"]:
        gpu["pci"]["numa_node"] = 0
    node["process"].update(
        cgroups=[{"version": 2, "controllers": [], "path": "/user.slice"}], container_signs=[], environment={}
    )
    node["system"].update(uptime_s=90000.0, daemons=["nv-fabricmanager", "nvidia-persistenced"])
    kernel_log(node, [])
    return node


def hgx_container(signs: list[str] | None = None) -> Machine:
    """The same node in a container without further restrictions."""
    node = hgx()
    node["process"].update(container_signs=signs or ["/.dockerenv", "overlay root"])
    node["process"]["environment"] = {"NVIDIA_VISIBLE_DEVICES": "all"}
    node["confinement"]["namespaces"].update(ipc=4026533001, mnt=4026533002, pid=4026533003, net=4026533004)
    node["system"]["daemons"] = []
    return node


def few_gpus(node: Machine, count: int) -> Machine:
    """Keep the first GPUs only."""
    node["gpus"] = node["gpus"][:count]
    kept = {gpu["bus_id"] for gpu in node["gpus"]}
    node["pairs"] = [pair for pair in node["pairs"] if pair["source"] in kept and pair["target"] in kept]
    return node


def cards(name: str, device_id: int, capability: list[int], memory: int, count: int) -> Machine:
    """Plain PCIe cards without NVLink in the same server."""
    node = few_gpus(hgx(), count)
    node["system"]["daemons"] = ["nvidia-persistenced"]
    for gpu in node["gpus"]:
        gpu["pci"].update(device_id=device_id, subsystem_device_id=None)
        gpu["proc"]["model"] = name
        nvml = gpu["nvml"]
        nvml.update(name=name, compute_capability=capability, memory_total_bytes=memory, nvlinks=[], nvlink_count=0)
        nvml.update(virtualization="none", vbios=None, board_part_number=None, fabric={"state": "not-supported"})
        attributes = gpu["cuda"]["attributes"]
        attributes.update(COMPUTE_CAPABILITY_MAJOR=capability[0], COMPUTE_CAPABILITY_MINOR=capability[1])
        attributes.update(MULTICAST_SUPPORTED=0, HANDLE_TYPE_FABRIC_SUPPORTED=0)
        gpu["cuda"].update(name=name, memory_total_bytes=memory)
    for pair in node["pairs"]:
        pair.update(nvlink_count=0, nvlink_through=None)
        pair["p2p_status"].update(read="OK", write="OK", nvlink="NS", atomics="NS", pci="OK")
    return node


def nvl72(model: str = "gb200-nvl72") -> Machine:
    """A shipped compute tray with the facts that its public sources leave out, all of them healthy."""
    node = shipped(model)
    for section in ("nics", "kernel_log"):
        node["sections"][section] = {"version": 1, "duration_ms": 1.0}
    kernel_log(node, [])
    node["host"].update(
        kernel="6.8.0-1021-nvidia-64k",
        memory_available_bytes=1_500_000_000_000,
        memory_policy="default",
        transparent_huge_pages="madvise",
        numa_balancing=0,
        auto_online_blocks="online_movable",
        huge_pages=[{"page_size_bytes": 2097152, "total": 0, "free": 0}],
        kernel_command_line={"iommu.passthrough": "0", "init_on_alloc": "0", "numa_balancing": "disable"},
        cpu_frequencies=[{"cpus": "0-143", "governor": "performance", "limit_khz": 3465000, "max_khz": 3465000}],
    )
    for numa_node in node["host"]["numa_nodes"]:
        total = numa_node.get("memory_total_bytes") or 0
        numa_node.update(memory_free_bytes=total * 9 // 10, memory_reclaimable_bytes=0)
    full_link = {"speed_gt_s": 32.0, "width": 16, "max_speed_gt_s": 32.0, "max_width": 16}
    counters = (
        "malformed_packets buffer_overruns receive_errors remote_errors general_receive_errors integrity_errors"
        " discarded_packets recoveries successful_recoveries failed_recoveries effective_errors symbol_errors"
    )
    for gpu in node["gpus"]:
        gpu["pci"]["link"] = dict(full_link)
        gpu["proc"]["numa_status"] = "online"
        gpu["nvml"].update(
            link=dict(full_link),
            mig_mode=False,
            mig_mode_pending=False,
            virtualization="none",
            persistence_mode=True,
            compute_mode="default",
            ecc_mode=True,
            ecc_uncorrected_volatile=0,
            remapped_rows_correctable=0,
            remapped_rows_uncorrectable=0,
            remapped_rows_pending=False,
            remapped_rows_failure=False,
            recovery_action="none",
            performance_state=0,
            throttle_reasons=["idle"],
            temperature_c=35,
            processes=[],
            memory_used_bytes=0,
            bar1_total_bytes=549755813888,
            nvlink_bandwidth_mode="full",
            nvlink_bandwidth_best=True,
        )
        gpu["nvml"]["fabric"].update(health_mask=426, health=dict(HEALTHY_FABRIC), health_summary="healthy")
        for link in gpu["nvml"]["c2c_links"]:
            link.update(errors=0, replays=0, replays_back_to_back=0, power_state=0)
        for link in gpu["nvml"]["nvlinks"]:
            link["link_state"] = "active"
            link["counters"] = dict.fromkeys(counters.split(), 0) | {"effective_ber": 0.0, "symbol_ber": 0.0}
    for nic in node["nics"]:
        nic.update(firmware="28.43.1014")
        nic["pci"]["link"] = dict(full_link)
        for port in nic["ports"]:
            port.update(state="ACTIVE", physical_state="LinkUp", rate_gbit_s=400.0)
    recorded = shipped("hgx-h200x4")
    node["driver"].update(
        module_flavour="open",
        nvml_version="13.580.126.16",
        confidential_compute="off",
        modules=["nvidia", "nvidia_uvm"],
        majors={
            "nvidia": 195,
            "nvidiactl": 195,
            "nvidia-uvm": 510,
            "nvidia-caps": 241,
            "nvidia-caps-imex-channels": 234,
        },
        nodes=copy.deepcopy(recorded["driver"]["nodes"][:3]),
        module_parameters=recorded["driver"]["module_parameters"] | {"CreateImexChannel0": "1"},
    )
    for device in node["driver"]["nodes"][1:]:
        device["major"] = 510
    node["driver"]["imex_channels"][0].update(major=234, mode=438, uid=0, gid=0, nodev=False)
    node["process"].update(effective_uid=0, cgroups=[{"version": 2, "controllers": [], "path": "/user.slice"}])
    node["confinement"].update(
        namespaces=recorded["confinement"]["namespaces"],
        pid_namespace_depth=1,
        capabilities=2199023255551,
        limits={"as": -1, "memlock": -1, "nofile": 1048576, "nproc": -1, "stack": 8388608},
        pids_left=-1,
        mounts=[],
        shm_total_bytes=429496729600,
        shm_free_bytes=429496729600,
        ptrace_scope=0,
    )
    node["system"] = {
        "uptime_s": 90000.0,
        "kernel_configuration": {
            "NUMA": "y",
            "ACPI_NUMA": "y",
            "IOMMU_SVA": "y",
            "ARM_SMMU_V3_SVA": "y",
            "PCI_P2PDMA": "y",
            "MEMORY_HOTPLUG": "y",
            "NUMA_BALANCING": "y",
        },
        "acpi_egm": True,
        "egm_regions": [],
        "max_map_count": 262144,
        "remove_ipc": False,
        "iommu_domains": {},
        "bridges": [],
        "data_direct": [],
        "ats": {},
        "daemons": ["nvidia-imex", "nvidia-persistenced"],
        "imex": {
            "configured_nodes": 18,
            "duplicate_nodes": 0,
            "daemon_state": "READY",
            "domain_status": "UP",
            "runs_in": ["host"],
            "kubelet": False,
            "compute_domains": False,
            "session_in_use": False,
        },
        "module_versions": {"ib_core": "", "ib_umad": "", "mlx5_core": "25.04", "mlx5_ib": "25.04"},
        "peer_memory_clients": [],
        "nvlink_management": [],
        "verbs": [verbs_node(nic["name"], number) for number, nic in enumerate(node["nics"])],
    }
    return node


HEALTHY_FABRIC = {
    "degraded_bandwidth": "false",
    "route_recovery": "false",
    "route_unhealthy": "false",
    "access_timeout_recovery": "false",
    "incorrect_configuration": "none",
}

# The driver's texts, as NVIDIA's guide to memory errors prints them.
CONTAINED = "Contained: CE User Channel (0x9). RST: No, D-RST: No"
DOUBLE_BIT_ERROR = "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 9."


# Parts of a machine.


def kernel_log(node: Machine, events: list[dict[str, Any]]) -> None:
    node["sections"]["kernel_log"] = {"version": 1, "duration_ms": 1.0}
    node["kernel_log"] = {
        "source": "/dev/kmsg",
        "now_s": 90000.0,
        "first_s": 0.0,
        "overwritten": False,
        "events": events,
        "left_out": 0,
    }


def event(kind: str, time_s: float, bus_id: str, **facts: Any) -> dict[str, Any]:
    unset = {
        "number": None,
        "message": None,
        "fatal": None,
        "corrected": False,
        "link": None,
        "pid": None,
        "process": None,
        "caused_by": None,
        "text": "",
    }
    return {"kind": kind, "time_s": time_s, "bus_id": bus_id} | unset | facts


def xid(time_s: float, bus_id: str, number: int, text: str, **facts: Any) -> dict[str, Any]:
    return event("xid", time_s, bus_id, number=number, text=text, **facts)


def gpu_lost(gpu: dict[str, Any], reason: str, *sources: str) -> None:
    """The named sources do not list the GPU."""
    for source in sources:
        gpu[source] = None
        gpu.setdefault("unread", {})[source] = {"reason": "not-present", "detail": reason}


def cuda_fails(node: Machine, number: int, name: str) -> None:
    node["driver"].update(
        cuda_error=name, cuda_failure={"how": "error", "call": "cuInit", "number": number, "name": name}
    )
    for gpu in node["gpus"]:
        gpu["cuda"] = None
        gpu.setdefault("unread", {})["cuda"] = {"reason": "failed", "detail": f"cuInit: {name}"}
    for pair in node["pairs"]:
        pair["can_access_peer"] = None
        pair.setdefault("unread", {})["can_access_peer"] = {"reason": "failed", "detail": f"cuInit: {name}"}


def nvml_fails(node: Machine, number: int, name: str) -> None:
    node["driver"].update(
        nvml_error=name,
        nvml_failure={"how": "error", "call": "nvmlInit_v2", "number": number, "name": name},
        driver_version=None,
    )
    node["driver"].setdefault("unread", {})["driver_version"] = {"reason": "failed", "detail": name}
    for gpu in node["gpus"]:
        gpu["nvml"] = None
        gpu.setdefault("unread", {})["nvml"] = {"reason": "failed", "detail": f"nvmlInit_v2: {name}"}


def verbs_node(nic: str, number: int) -> dict[str, Any]:
    return {
        "nic": nic,
        "node": {
            "path": f"/dev/infiniband/uverbs{number}",
            "exists": True,
            "kind": "character",
            "major": 231,
            "minor": 192 + number,
            "mode": 438,
            "uid": 0,
            "gid": 0,
            "access": "ok",
            "nodev": False,
        },
    }


def add_nics(node: Machine) -> Machine:
    """Two InfiniBand NICs, as DGX H100 has them."""
    node["nics"] = copy.deepcopy(shipped("dgx-h100")["nics"][:2])
    for number, nic in enumerate(node["nics"]):
        nic["pci"].update(path=["pci0000:00", f"0000:00:0{number + 1}.0"], local_cpus="0-63")
        nic["pci"]["link"] = {"speed_gt_s": 32.0, "width": 16, "max_speed_gt_s": 32.0, "max_width": 16}
        nic["firmware"] = "28.43.1014"
        for port in nic["ports"]:
            port.update(state="ACTIVE", physical_state="LinkUp", rate_gbit_s=400.0)
    node["system"]["verbs"] = [verbs_node(nic["name"], number) for number, nic in enumerate(node["nics"])]
    node["system"]["module_versions"] = {"ib_core": "", "ib_uverbs": "", "mlx5_core": "", "mlx5_ib": ""}
    return node


def behind_root_ports(node: Machine, acs_control: int) -> None:
    """Put each GPU under a root port of its own on an AMD host whose IOMMU translates."""
    node["host"].update(cpu_model="AMD EPYC 7443 24-Core Processor")
    node["system"].update(bridges=[], iommu_domains={})
    for gpu in node["gpus"]:
        port = f"0000:40:0{gpu['index'] + 1}.1"
        gpu["pci"]["path"] = ["pci0000:40", port]
        node["system"]["iommu_domains"][gpu["bus_id"]] = "DMA-FQ"
        node["system"]["bridges"].append(
            {
                "bus_id": port,
                "vendor_id": 0x1022,
                "device_id": 0x1483,
                "link": dict(gpu["pci"]["link"]),
                "acs_control": acs_control,
            }
        )


# One machine for each state.


@machine
def libcuda_compat_by_ld_so_conf() -> Machine:
    """The image's ld.so.conf names the compat folder, so no variable gives it away: its libcuda is CUDA 12.9's."""
    node = hgx_container()
    node["driver"]["cuda_driver_version"] = 12090
    cuda_fails(node, 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")
    return node


@machine
def libcuda_compat_on_geforce() -> Machine:
    node = cards("NVIDIA GeForce RTX 3060", 0x2503, [8, 6], 12884901888, 1)
    node["process"].update(container_signs=["/.dockerenv", "overlay root"])
    node["process"]["environment"] = {"NVIDIA_VISIBLE_DEVICES": "all", "LD_LIBRARY_PATH": "/usr/local/cuda/compat"}
    node["driver"].update(module_version="570.211.01", driver_version="570.211.01", nvml_version="12.570.211.01")
    node["driver"]["cuda_driver_version"] = 12090
    node["gpus"][0]["nvml"].update(ecc_mode=None)
    cuda_fails(node, 804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE")
    return node


@machine
def uvm_node_missing_in_podman() -> Machine:
    """The module is loaded on the host; the container was started without its nodes."""
    node = hgx_container(["/run/.containerenv", "overlay root"])
    for device in node["driver"]["nodes"]:
        if "uvm" in device["path"]:
            path = device["path"]
            device.clear()
            device.update(path=path, exists=False, kind=None, access="ENOENT")
    cuda_fails(node, 999, "CUDA_ERROR_UNKNOWN")
    return node


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
def confidential_not_ready() -> Machine:
    """A confidential virtual machine with one H100 PCIe, which was not attested since it started."""
    node = cards("NVIDIA H100 PCIe", 0x2331, [9, 0], 85520809984, 1)
    node["driver"].update(module_version="550.90.07", driver_version="550.90.07", nvml_version="12.550.90.07")
    node["driver"].update(confidential_compute="on", cuda_driver_version=12040)
    node["gpus"][0]["nvml"].update(virtualization="passthrough")
    cuda_fails(node, 802, "CUDA_ERROR_SYSTEM_NOT_READY")
    return node


@machine
def multi_node_on_hgx() -> Machine:
    """Two HGX B200 with the IMEX service between them: they share no NVLink domain."""
    node = shipped("hgx-b200")
    for gpu in node["gpus"]:
        gpu["nvml"]["fabric"].update(cluster_uuid=None)
        gpu["nvml"]["fabric"]["unread"] = {
            "cluster_uuid": {"reason": "not-supported", "detail": "all zero: in no multi-node NVLink domain"}
        }
    node["driver"].update(module_version="570.158.01", driver_version="570.158.01", module_flavour="open")
    node["driver"].update(cuda_driver_version=12080, modules=["nvidia", "nvidia_uvm"])
    channel = "/dev/nvidia-caps-imex-channels/channel0"
    node["driver"]["imex_channels"] = [
        {"path": channel, "exists": True, "kind": "character", "major": 234, "minor": 0, "mode": 438, "access": "ok"}
    ]
    node["system"].update(
        daemons=["nv-fabricmanager", "nvidia-imex", "nvidia-persistenced"],
        imex={
            "configured_nodes": 2,
            "duplicate_nodes": 0,
            "daemon_state": "READY",
            "domain_status": "UP",
            "runs_in": ["host"],
            "kubelet": False,
            "compute_domains": False,
            "session_in_use": False,
        },
    )
    return node


@machine
def health_mask_aa_is_healthy() -> Machine:
    """Each of the four two-bit fields of 0xaa says no: nothing is degraded."""
    node = nvl72()
    for gpu in node["gpus"]:
        fabric = gpu["nvml"]["fabric"]
        fabric.update(health_mask=0xAA, health_summary=None)
        fabric["health"] = dict.fromkeys(list(HEALTHY_FABRIC)[:4], "false")
        fabric["health"]["incorrect_configuration"] = "not-supported"
    return node


@machine
def imex_idle_between_compute_domains() -> Machine:
    node = nvl72("gb300-nvl72")
    node["driver"]["imex_channels"] = []
    node["driver"]["module_parameters"]["CreateImexChannel0"] = "0"
    node["system"].update(daemons=["nvidia-persistenced"])
    node["system"]["imex"].update(
        configured_nodes=None,
        duplicate_nodes=None,
        daemon_state=None,
        domain_status=None,
        runs_in=[],
        kubelet=True,
        compute_domains=True,
        compute_domain_mode="driverManaged",
        unread={
            field: {"reason": "not-present", "detail": "no nvidia-imex runs"}
            for field in ("configured_nodes", "duplicate_nodes", "daemon_state", "domain_status")
        },
    )
    return node


@machine
def imex_node_listed_twice() -> Machine:
    node = nvl72()
    node["system"]["imex"].update(configured_nodes=18, duplicate_nodes=1, domain_status="DOWN")
    return node


@machine
def row_remap_pending() -> Machine:
    node = hgx()
    node["gpus"][2]["nvml"].update(remapped_rows_uncorrectable=4, remapped_rows_pending=True)
    return node


@machine
def memory_degrading() -> Machine:
    """Uncorrectable errors in one region again and again: each reset activates a remap, and a new row fails."""
    node = hgx()
    gpu = node["gpus"][2]
    bus_id = gpu["bus_id"]
    gpu["nvml"].update(remapped_rows_uncorrectable=12, remapped_rows_pending=True, recovery_action="drain-and-reset")
    gpu["nvml"].update(ecc_uncorrected_volatile=2)
    log = []
    for time_s in (13860.0, 20220.0, 55020.0, 56220.0):
        log.append(xid(time_s, bus_id, 48, DOUBLE_BIT_ERROR))
        log.append(xid(time_s + 0.1, bus_id, 63, "Row Remapper: New row marked for remapping, reset gpu to activate."))
        contained = {"pid": 4242, "process": "python3"}
        log.append(xid(time_s + 0.2, bus_id, 94, CONTAINED, **contained))
        asked_for = "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"
        log.append(xid(time_s + 0.3, bus_id, 154, asked_for))
    kernel_log(node, log)
    return node


@machine
def contained_memory_error() -> Machine:
    """One contained error; the GPU goes on with other programs, and a row waits for the next reset."""
    node = hgx()
    gpu = node["gpus"][1]
    gpu["nvml"].update(remapped_rows_uncorrectable=1, remapped_rows_pending=True)
    kernel_log(node, [xid(40000.0, gpu["bus_id"], 94, CONTAINED, pid=4242, process="python3")])
    return node


@machine
def reset_required_counters_zero() -> Machine:
    """The Xid came before the log that is left; the counters say nothing, but the driver still asks for a reset."""
    node = hgx()
    node["gpus"][3]["nvml"]["recovery_action"] = "gpu-reset"
    node["kernel_log"]["first_s"] = 70000.0
    return node


@machine
def nvlink_xid_149() -> Machine:
    """All links of one GPU went down; the channels of the others were torn down after it."""
    node = shipped("hgx-b200")
    gpu = node["gpus"][5]
    for link in gpu["nvml"]["nvlinks"]:
        link["active"] = False
    for pair in node["pairs"]:
        if gpu["bus_id"] in (pair["source"], pair["target"]):
            pair.update(nvlink_count=0, nvlink_through=None)
            pair["p2p_status"].update(read="NS", write="NS", nvlink="NS", atomics="NS")
            pair["can_access_peer"] = False
    registers = "(0x025001c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
    fatal = xid(50000.0, gpu["bus_id"], 149, f"NETIR_LINK_EVT Fatal XC0 i0 Link 00 {registers}", fatal=True, link=0)
    log = [fatal]
    for other in node["gpus"][:5]:
        text = "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)"
        log.append(xid(50000.2, other["bus_id"], 145, text, fatal=False, link=13))
        torn_down = {"pid": 1818990, "process": "python3", "caused_by": 145}
        log.append(xid(50000.4, other["bus_id"], 45, "Ch 00000001", **torn_down))
    torn_down = {"pid": 1818992, "process": "python3", "caused_by": 149}
    log.append(xid(50000.4, gpu["bus_id"], 45, "Ch 00000001", **torn_down))
    kernel_log(node, log)
    node["driver"].update(module_version="590.48.01", driver_version="590.48.01", module_flavour="open")
    node["driver"].update(cuda_driver_version=13010, modules=["nvidia", "nvidia_uvm"])
    node["system"].update(daemons=["nv-fabricmanager", "nvidia-persistenced"], uptime_s=90000.0)
    return node


@machine
def mig_disable_pending() -> Machine:
    """MIG mode was turned off while a monitor held the GPU: it stays on until a reset."""
    node = hgx()
    node["gpus"][1]["nvml"].update(mig_mode=True, mig_mode_pending=False)
    return node


@machine
def exclusive_process() -> Machine:
    node = hgx()
    gpu = node["gpus"][0]
    gpu["nvml"].update(
        compute_mode="exclusive-process",
        memory_used_bytes=9437184000,
        processes=[{"pid": 4242, "name": "python3", "used_memory_bytes": 9437184000}],
    )
    gpu["cuda"]["attributes"]["COMPUTE_MODE"] = 3
    return node


@machine
def one_gpu_power_capped() -> Machine:
    """Under the same load three GPUs run at full clock; one is held down by its power cap."""
    node = hgx()
    for gpu in node["gpus"]:
        busy = {"pid": 4242 + gpu["index"], "name": "burn", "used_memory_bytes": 120000000000}
        gpu["nvml"].update(sm_clock_mhz=1965, performance_state=0, temperature_c=52, processes=[busy])
        gpu["nvml"].update(throttle_reasons=[], memory_used_bytes=120000000000)
    node["gpus"][2]["nvml"].update(sm_clock_mhz=705, throttle_reasons=["sw-power-cap"], temperature_c=41)
    return node


@machine
def power_brake() -> Machine:
    """The power supply holds all GPUs down; none is hot."""
    node = hgx()
    for gpu in node["gpus"]:
        gpu["nvml"].update(throttle_reasons=["hw-slowdown", "hw-power-brake-slowdown"], sm_clock_mhz=345)
        gpu["nvml"].update(temperature_c=38, performance_state=0)
    return node


@machine
def idle_link_at_gen1() -> Machine:
    """Cards that lower their link while idle: nothing is wrong."""
    node = cards("NVIDIA RTX A6000", 0x2230, [8, 6], 51527024640, 2)
    slow = {"speed_gt_s": 2.5, "width": 16, "max_speed_gt_s": 16.0, "max_width": 16}
    for gpu in node["gpus"]:
        gpu["pci"]["link"] = dict(slow)
        gpu["nvml"].update(link=dict(slow), performance_state=8, sm_clock_mhz=210, throttle_reasons=["idle"])
    return node


@machine
def memlock_64k() -> Machine:
    """slurmd was started by systemd, which does not read limits.conf."""
    node = add_nics(hgx())
    node["process"].update(effective_uid=1000)
    node["process"]["cgroups"][0]["path"] = "/system.slice/slurmstepd.scope/job_81/step_batch/user/task_0"
    node["process"]["environment"] = {"SLURM_JOB_ID": "81"}
    node["confinement"].update(capabilities=0)
    node["confinement"]["limits"]["memlock"] = 65536
    return node


@machine
def verbs_not_in_container() -> Machine:
    """sysfs shows the NICs in every container; their nodes were not passed."""
    node = add_nics(hgx_container())
    for verbs in node["system"]["verbs"]:
        path = verbs["node"]["path"]
        verbs["node"] = {"path": path, "exists": False, "kind": None, "access": "ENOENT"}
    return node


@machine
def shared_memory_64m() -> Machine:
    node = hgx_container()
    node["confinement"].update(shm_total_bytes=67108864, shm_free_bytes=67104768)
    return node


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
def memory_policy_by_seccomp() -> Machine:
    """The runtime's default seccomp profile denies the calls of NUMA policy without CAP_SYS_NICE."""
    node = nvl72()
    node["process"].update(container_signs=["/run/.containerenv", "KUBERNETES_SERVICE_HOST", "overlay root"])
    node["process"]["environment"] = {"NVIDIA_VISIBLE_DEVICES": "all"}
    node["confinement"].update(seccomp="filter", no_new_privileges=True, capabilities=2818844155)
    node["confinement"]["namespaces"] = dict(node["confinement"]["namespaces"], mnt=4026533002, pid=4026533003)
    for call in ("get_mempolicy", "mbind", "set_mempolicy"):
        node["confinement"]["system_calls"][call] = "EPERM"
    return node


@machine
def visible_devices_of_the_host() -> Machine:
    """The container got one GPU, which is number 0 in it, and the host's CUDA_VISIBLE_DEVICES=1."""
    node = few_gpus(hgx_container(), 1)
    node["process"]["environment"] = {"NVIDIA_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}
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
def persistence_off() -> Machine:
    node = hgx()
    for gpu in node["gpus"]:
        gpu["nvml"]["persistence_mode"] = False
    node["system"]["daemons"] = ["nv-fabricmanager"]
    return node


@machine
def p2p_disabled_by_a_variable() -> Machine:
    """A workaround for other cards, left in the environment of a node with NVLink."""
    node = hgx()
    node["process"]["environment"] = {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"}
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
def fell_off_at_probe() -> Machine:
    """The driver's probe met a GPU that did not answer; it logged no Xid."""
    node = shipped("hgx-b200")
    gpu = node["gpus"][5]
    bus_id = gpu["bus_id"]
    gpu["pci"].update(driver="", responds=False)
    gpu_lost(gpu, "the probe failed", "proc", "node", "nvml", "cuda")
    node["pairs"] = [pair for pair in node["pairs"] if bus_id not in (pair["source"], pair["target"])]
    kernel_log(node, [event("driver", 21.3, bus_id, message="fallen off the bus")])
    node["driver"].update(module_version="580.95.05", driver_version="580.95.05", module_flavour="open")
    node["driver"].update(cuda_driver_version=13000, modules=["nvidia", "nvidia_uvm"])
    node["system"].update(daemons=["nv-fabricmanager", "nvidia-persistenced"], uptime_s=90000.0)
    return node


def write() -> None:
    """Write every machine. The files depend on their contents alone, not on the time."""
    folder = HERE / "machines"
    folder.mkdir(exist_ok=True)
    for name, maker in MAKERS.items():
        text = json.dumps(maker(), separators=(",", ":")).encode()
        (folder / f"{name}.json.gz").write_bytes(gzip.compress(text, mtime=0))


if __name__ == "__main__":
    write()
