"""Fabric Manager, IMEX and NVLink."""

from tests.incidents.makers.healthy import HEALTHY_FABRIC, cards, hgx, nvl72, shipped
from tests.incidents.makers.parts import Machine, cuda_fails, kernel_log, machine, nvlinks, version, xid


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
def fabric_status_of_two_gpus() -> Machine:
    """The probe completed on all; it succeeded on two GPUs and ended in an unknown error on the others."""
    node = hgx()
    for gpu in node["gpus"][2:]:
        gpu["nvml"]["fabric"].update(state="completed", status=999)
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


@machine
def fabric_manager_of_the_next_branch() -> Machine:
    """The driver's container installed driver 580.126.09 and fabric manager 590.48.01, which refuses it."""
    node = version(hgx(), "580.126.09", 13000)
    node["system"].update(daemons=["nvidia-persistenced"])
    node["system"]["fabric_manager"] = {"version": "590.48.01", "refused_driver": "580.126.09"}
    node["switches"] = [{"pci": {"bus_id": "0000:07:00.0", "vendor_id": 0x10DE, "device_id": 0x22A3}}]
    for gpu in node["gpus"]:
        gpu["nvml"]["virtualization"] = "none"
        gpu["nvml"]["fabric"].update(state="in-progress", status=None)
    cuda_fails(node, 802, "CUDA_ERROR_SYSTEM_NOT_READY")
    return node
