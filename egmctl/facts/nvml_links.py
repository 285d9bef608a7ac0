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
    "link_state": 165,  # NVML_FI_DEV_NVLINK_GET_STATE
}
_COUNTER_FIELDS = {
    # NVML_FI_DEV_NVLINK_COUNT_...
    "malformed_packets": 206,  # MALFORMED_PACKET_ERRORS
    "buffer_overruns": 207,  # BUFFER_OVERRUN_ERRORS
    "receive_errors": 208,  # RCV_ERRORS
    "remote_errors": 209,  # RCV_REMOTE_ERRORS
    "general_receive_errors": 210,  # RCV_GENERAL_ERRORS
    "integrity_errors": 211,  # LOCAL_LINK_INTEGRITY_ERRORS
    "discarded_packets": 212,  # XMIT_DISCARDS
    "successful_recoveries": 213,  # LINK_RECOVERY_SUCCESSFUL_EVENTS
    "failed_recoveries": 214,  # LINK_RECOVERY_FAILED_EVENTS
    "recoveries": 215,  # LINK_RECOVERY_EVENTS
    "effective_errors": 219,  # EFFECTIVE_ERRORS
    "effective_ber": 220,  # EFFECTIVE_BER
    "symbol_errors": 221,  # SYMBOL_ERRORS
    "symbol_ber": 222,  # SYMBOL_BER
}
_HAS_COUNTERS: Field = (_COUNTER_FIELDS["effective_errors"], 0)
_FEC_FIELDS = range(235, 251)
"""NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_0 to _15."""
_STATES = {0: "inactive", 1: "active", 2: "sleep", 3: "active-traffic-disabled"}
"""NVML_NVLINK_STATE_* of nvml.h."""
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
    wanted = [(field, link) for link in range(count) for field in _NVLINK_FIELDS.values()]
    values = field_values(handle, [*wanted, _HAS_COUNTERS])
    links = [_nvlink(handle, link, values) for link in range(count)]
    _read_counters(links, handle, values[_HAS_COUNTERS])
    gpu.values["nvlink_count"] = count
    gpu.values["nvlinks"] = [link.json() for link in links]


def ber(packed: int) -> float:
    """Return a bit error rate that NVML packs into bits 11:8, the mantissa, and 7:0, the exponent of a tenth.

    A link without errors has the least that this can say, 15 and 255 (nvml.h, NVML_NVLINK_BER_*; DCGM reads it so).
    """
    mantissa, exponent = packed >> 8 & 0xF, packed & 0xFF
    return 0.0 if (mantissa, exponent) == (15, 255) else float(f"{mantissa}e-{exponent}")


def _read_counters(links: list[Reading], handle: Any, first: int | Unavailable) -> None:
    """Fill ``counters`` of all links, unless the first counter of the first link tells that the GPU has none."""
    if isinstance(first, Unavailable):
        for link in links:
            link.miss("counters", first)
        return
    fields = (*_COUNTER_FIELDS.values(), *_FEC_FIELDS)
    values = field_values(handle, [(field, number) for number in range(len(links)) for field in fields])
    for number, link in enumerate(links):
        counters = _link(number, _COUNTER_FIELDS, values)
        del counters.values["link"]
        for name in ("effective_ber", "symbol_ber"):
            if (packed := counters.values.get(name)) is not None:
                counters.values[name] = ber(packed)
        history = [values[field, number] for field in _FEC_FIELDS]
        untold = next((value for value in history if isinstance(value, Unavailable)), None)
        if untold is not None:
            counters.miss("fec_history", untold)
        else:
            counters.values["fec_history"] = history
        link.values["counters"] = counters.json()


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


def _nvlink(handle: Any, number: int, values: dict[Field, int | Unavailable]) -> Reading:
    link = _link(number, _NVLINK_FIELDS, values)
    if (state := link.values.get("link_state")) is not None:
        link.values["link_state"] = _STATES.get(state, str(state))
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
    return link


def _remote_bus_id(handle: Any, number: int) -> str:
    text: str = ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, number).busId
    if text.upper().startswith("FFFFFFFF:"):
        raise Unavailable(NOT_SUPPORTED, "nvmlDeviceGetNvLinkRemotePciInfo: masked by the virtual machine")
    try:
        return ids.bus_id(text)
    except ValueError:
        raise Unavailable(NOT_SUPPORTED, "nvmlDeviceGetNvLinkRemotePciInfo: no bus id in the answer") from None
