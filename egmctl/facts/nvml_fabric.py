"""A GPU's place in its NVLink fabric and in its chassis, from NVML. Only a child process imports this."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import addressof, string_at
from typing import Any

from egmctl.driver import ids
from egmctl.driver.nvml import ask_struct, take
from egmctl.driver.reading import DRIVER_TOO_OLD, NOT_PRESENT, NOT_SUPPORTED, Reading, Unavailable

_STATES = {0: "not-supported", 1: "not-started", 2: "in-progress", 3: "completed"}
_COMPLETED = 3
_SUMMARIES = {0: "not-supported", 1: "healthy", 2: "unhealthy", 3: "limited-capacity"}
_YES_NO = {0: "not-supported", 1: "true", 2: "false"}
_HEALTH: Mapping[str, tuple[int, int, Mapping[int, str]]] = {
    "degraded_bandwidth": (0, 0x3, _YES_NO),
    "route_recovery": (2, 0x3, _YES_NO),
    "route_unhealthy": (4, 0x3, _YES_NO),
    "access_timeout_recovery": (6, 0x3, _YES_NO),
    "incorrect_configuration": (
        8,
        0xF,
        {
            0: "not-supported",
            1: "none",
            2: "system-guid",
            3: "chassis-serial",
            4: "no-partition",
            5: "insufficient-nvlinks",
            6: "incompatible-gpu-firmware",
            7: "invalid-location",
            8: "gpu-state-invalid",
        },
    ),
    "partition_assigned": (12, 0x3, _YES_NO),
    "fabric_manager": (14, 0x3, {0: "not-supported", 1: "connected", 2: "disconnected"}),
}
"""Shift, mask and words of each field (``NVML_GPU_FABRIC_HEALTH_MASK_*`` of nvml.h)."""

_PLACE = "chassis_serial slot tray host_id peer_type"
_PEER_TYPES = {0: "direct", 1: "switch"}
"""nvml.h says no more than "switch present or not"."""


def read_fabric(gpu: Reading, handle: Any) -> None:
    """Fill ``fabric`` from ``nvmlDeviceGetGpuFabricInfoV``."""
    try:
        gpu.values["fabric"] = _fabric(handle)
    except Unavailable as why:
        gpu.miss("fabric", why)


def read_platform(gpu: Reading, handle: Any) -> None:
    """Fill ``platform`` from ``nvmlDeviceGetModuleId`` and, from Blackwell on, ``nvmlDeviceGetPlatformInfo``."""
    platform = Reading()
    take(platform, "module_id", "nvmlDeviceGetModuleId", handle)
    try:
        info = ask_struct("nvmlDeviceGetPlatformInfo", "PlatformInfo_v2_t", handle)
    except Unavailable as why:
        platform.miss(_PLACE, why)
    else:
        _read_place(platform, info)
    gpu.values["platform"] = platform.json()


def decode_health(mask: int) -> dict[str, str]:
    """Return the fabric health mask's fields by name; a number that nvml.h does not name stays a number."""
    return {
        name: words.get(value := mask >> shift & width, str(value)) for name, (shift, width, words) in _HEALTH.items()
    }


def _fabric(handle: Any) -> dict[str, Any]:
    try:
        info = ask_struct("nvmlDeviceGetGpuFabricInfoV", "GpuFabricInfo_v3_t", handle)
    except Unavailable as why:
        if why.reason != DRIVER_TOO_OLD:
            raise
        info = ask_struct("nvmlDeviceGetGpuFabricInfoV", "GpuFabricInfo_v2_t", handle)
    fabric = Reading(
        state=_STATES.get(info.state, str(info.state)),
        clique_id=info.cliqueId,
        health_mask=info.healthMask,
        health=decode_health(info.healthMask),
    )
    if info.state == _COMPLETED:
        fabric.values["status"] = info.status
    else:
        fabric.miss("status", Unavailable(NOT_PRESENT, "valid once the state is completed"))
    cluster = bytes(info.clusterUuid)
    if any(cluster):
        fabric.values["cluster_uuid"] = ids.uuid_text(cluster)
    else:
        fabric.miss("cluster_uuid", Unavailable(NOT_SUPPORTED, "all zero: in no multi-node NVLink domain"))
    if hasattr(info, "healthSummary"):
        fabric.values["health_summary"] = _SUMMARIES.get(info.healthSummary, str(info.healthSummary))
    else:
        fabric.miss("health_summary", Unavailable(DRIVER_TOO_OLD, "nvmlDeviceGetGpuFabricInfoV: only version 2"))
    return fabric.json()


def _read_place(platform: Reading, info: Any) -> None:
    def raw(member: str) -> bytes:
        # pynvml declares these bytes as characters and decodes them, which fails from 0x80 on: read the memory.
        field = getattr(type(info), member)
        return string_at(addressof(info) + field.offset, field.size)

    serial = raw("chassisSerialNumber").split(b"\0", 1)[0]
    if not serial:
        # Seen in an HGX H200 virtual machine: slot 0, tray 0, host 1, "direct". nvidia-smi -q prints N/A for them all.
        why = Unavailable(NOT_SUPPORTED, "nvmlDeviceGetPlatformInfo: a place without a chassis")
        platform.miss(_PLACE, why)
        return
    values = {
        "chassis_serial": serial.decode() if serial.isascii() else None,
        "slot": _number(raw("slotNumber")),
        "tray": _number(raw("trayIndex")),
        "host_id": _number(raw("hostId")),
        "peer_type": _PEER_TYPES.get(raw("peerType")[0]),
    }
    for name, value in values.items():
        if value is None:
            platform.miss(name, Unavailable(NOT_SUPPORTED, "nvmlDeviceGetPlatformInfo: the platform does not say"))
        else:
            platform.values[name] = value


def _number(raw: bytes) -> int | None:
    return None if raw == b"\xff" else raw[0]
