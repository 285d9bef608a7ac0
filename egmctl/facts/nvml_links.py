"""A GPU's NVLink and NVLink-C2C ports, from NVML. Only a child process imports this.

Calls are what costs: counters and rates of all links come from one ``nvmlDeviceGetFieldValues`` call.
"""

from __future__ import annotations

from typing import Any

from egmctl.driver import ids
from egmctl.driver.nvml import Field, ask, field_values, take
from egmctl.driver.reading import FAILED, NOT_SUPPORTED, Reading, Unavailable

NVLINK_COUNT, C2C_COUNT = 91, 170
"""NVML_FI_DEV_NVLINK_LINK_COUNT and NVML_FI_DEV_C2C_LINK_COUNT."""

_NVLINK_FIELDS = {
    "remote_link": 146,  # NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID
    "replay_errors": 161,  # NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY
    "recovery_errors": 162,  # NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY
    "crc_errors": 163,  # NVML_FI_DEV_NVLINK_ERROR_DL_CRC
    "speed_mb_s": 164,  # NVML_FI_DEV_NVLINK_GET_SPEED
}
_C2C_FIELDS = {
    "active": 171,  # NVML_FI_DEV_C2C_LINK_GET_STATUS
    "max_rate_mb_s": 172,  # NVML_FI_DEV_C2C_LINK_GET_MAX_BW
    "errors": 231,  # NVML_FI_DEV_C2C_LINK_ERROR_INTR
    "replays": 232,  # NVML_FI_DEV_C2C_LINK_ERROR_REPLAY
    "replays_back_to_back": 233,  # NVML_FI_DEV_C2C_LINK_ERROR_REPLAY_B2B
    "power_state": 234,  # NVML_FI_DEV_C2C_LINK_POWER_STATE
}
_MOST_NVLINKS, _MOST_C2C_LINKS = 128, 64
"""Beyond these a count is an error of the driver and not believed: NVLink 6 has 36 (nvml.h, NVML_NVLINK_MAX_LINKS)."""
_REMOTE_TYPES = {0: "gpu", 1: "npu", 2: "switch"}


def read_nvlinks(gpu: Reading, handle: Any, count: int | Unavailable) -> None:
    """Fill ``nvlink_count`` and ``nvlinks`` from the value of the field NVLINK_COUNT."""
    if isinstance(count, Unavailable):
        gpu.miss("nvlink_count nvlinks", count)
        return
    if not 0 <= count <= _MOST_NVLINKS:
        why = Unavailable(FAILED, f"field {NVLINK_COUNT}: {count} NVLinks, a GPU has at most {_MOST_NVLINKS}")
        gpu.miss("nvlink_count nvlinks", why)
        return
    values = field_values(handle, [(field, link) for link in range(count) for field in _NVLINK_FIELDS.values()])
    gpu.values["nvlink_count"] = count
    gpu.values["nvlinks"] = [_nvlink(handle, link, values) for link in range(count)]


def read_c2c_links(gpu: Reading, handle: Any, count: int | Unavailable) -> None:
    """Fill ``c2c_links`` from the value of the field C2C_COUNT."""
    if isinstance(count, Unavailable):
        gpu.miss("c2c_links", count)
        return
    if not 0 <= count <= _MOST_C2C_LINKS:
        why = Unavailable(FAILED, f"field {C2C_COUNT}: {count} C2C links, a GPU has at most {_MOST_C2C_LINKS}")
        gpu.miss("c2c_links", why)
        return
    values = field_values(handle, [(field, link) for link in range(count) for field in _C2C_FIELDS.values()])
    links = [_link(number, _C2C_FIELDS, values) for number in range(count)]
    for link in links:
        if link.values["active"] is not None:
            link.values["active"] = link.values["active"] == 1
    gpu.values["c2c_links"] = [link.json() for link in links]


def _link(number: int, fields: dict[str, int], values: dict[Field, int | Unavailable]) -> Reading:
    link = Reading(link=number)
    for name, field in fields.items():
        value = values[field, number]
        if isinstance(value, Unavailable):
            link.miss(name, value)
        else:
            link.values[name] = value
    return link


def _nvlink(handle: Any, number: int, values: dict[Field, int | Unavailable]) -> dict[str, Any]:
    link = _link(number, _NVLINK_FIELDS, values)
    take(link, "active", "nvmlDeviceGetNvLinkState", handle, number, convert=bool)
    take(link, "version", "nvmlDeviceGetNvLinkVersion", handle, number)
    take(
        link,
        "remote_type",
        "nvmlDeviceGetNvLinkRemoteDeviceType",
        handle,
        number,
        convert=lambda kind: _REMOTE_TYPES.get(kind, "unknown"),
    )
    try:
        link.values["remote_bus_id"] = _remote_bus_id(handle, number)
    except Unavailable as why:
        link.miss("remote_bus_id", why)
    return link.json()


def _remote_bus_id(handle: Any, number: int) -> str:
    text: str = ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, number).busId
    if text.upper().startswith("FFFFFFFF:"):
        raise Unavailable(NOT_SUPPORTED, "nvmlDeviceGetNvLinkRemotePciInfo: masked by the virtual machine")
    try:
        return ids.bus_id(text)
    except ValueError:
        raise Unavailable(NOT_SUPPORTED, "nvmlDeviceGetNvLinkRemotePciInfo: no bus id in the answer") from None
