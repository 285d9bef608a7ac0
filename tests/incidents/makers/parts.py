"""Parts of a recorded machine: the kernel log, what a library answers, and the registry of the makers."""

from collections.abc import Callable
from typing import Any

Machine = dict[str, Any]

MAKERS: dict[str, Callable[[], Machine]] = {}


def machine(maker: Callable[[], Machine]) -> Callable[[], Machine]:
    """Register the maker under its name with dashes: ``row_remap_pending`` writes ``row-remap-pending.json.gz``."""
    MAKERS[maker.__name__.replace("_", "-")] = maker
    return maker


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


CONTAINED = "Contained: CE User Channel (0x9). RST: No, D-RST: No"


DOUBLE_BIT_ERROR = "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 9."


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
