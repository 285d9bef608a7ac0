"""Healthy machines, from those that ship."""

import copy
import json
from pathlib import Path
from typing import Any

from tests.incidents.makers.parts import Machine, kernel_log

SHIPPED = Path(__file__).parents[3] / "profiles" / "machines"


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
