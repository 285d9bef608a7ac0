"""A GPU's NVLink and NVLink-C2C ports, from NVML. Only a child process imports this.

Calls are what costs: counters and rates of all links come from one ``nvmlDeviceGetFieldValues`` call.
"""

from __future__ import annotations

import contextlib
import itertools
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import addressof, string_at
from typing import TYPE_CHECKING, Any

import pynvml

from egmctl.driver import ids
from egmctl.driver.ids import DRIVER_TOO_OLD, FAILED, MISSING_LIBRARY, NOT_PRESENT, NOT_SUPPORTED, Reading, Unavailable
from egmctl.driver.nvml import Field, about, ask, ask_struct, event_reasons, field_values, take
from egmctl.units import format_kernel_list

if TYPE_CHECKING:
    from egmctl.launch import Channel


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


_NVML_FABRIC_STATES = {0: "not-supported", 1: "not-started", 2: "in-progress", 3: "completed"}
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
        state=_NVML_FABRIC_STATES.get(info.state, str(info.state)),
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


P2P_CAPS = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3, "pci": 4}
"""NVML_P2P_CAPS_INDEX_*; pynvml's constant for READ is a tuple by mistake."""

_P2P_STATUS = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
"""NVML_P2P_STATUS_* in the words of ``nvidia-smi topo -p2p``."""
_ANCESTORS = {0: "internal", 10: "single", 20: "multiple", 30: "hostbridge", 40: "node", 50: "system"}
_COMPUTE_MODES = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}
_VIRTUALIZATION = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host-vgpu", 4: "host-vsga"}
_ADDRESSING = {0: "none", 1: "hmm", 2: "ats"}
_BANDWIDTH_MODES = {0: "full", 1: "off", 2: "min", 3: "half", 4: "3quarter"}
_LINK_COUNT = 5
_RECOVERY_ACTION = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION."""
_RECOVERY_ACTIONS = {
    0: "none",
    1: "gpu-reset",
    2: "node-reboot",
    3: "drain-p2p",
    4: "drain-and-reset",
    5: "recover-imex-domain",
    6: "bus-reset",
    7: "system-reboot",
}
_PCIE_GT_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0, 7: 128.0}
_MOST_GPUS = 256
"""Minors of GPUs end at 247 (nv-chardev-numbers.h)."""
_MOST_PROCESSES = 4096
"""On one GPU. Each is asked for by its name."""
_MOST_MEMORY = 2 << 30
"""Bytes that the child may take."""
_CPU_WORDS, _NODE_WORDS = 64, 16
"""64-bit words of the affinity masks: 4096 CPUs, 1024 NUMA nodes."""
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_TEMPERATURE_GPU = 0
_ECC_UNCORRECTED, _ECC_VOLATILE = 1, 0
_AFFINITY_NODE = 0


def read(_parent: object, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return ``egmctl.facts.gpus.NvmlFacts`` as JSON.

    Parameters
    ----------
    arguments
        ``pairs``: false leaves the pairs out.
    """
    # Counts in NVML's answers become memory before they can be looked at.
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    facts = Reading()
    try:
        ask("nvmlInit")
    except Unavailable as why:
        facts.miss("driver_version nvml_version confidential_compute nvlink_bandwidth_mode", why)
        return {**facts.json(), "absent": why.json(), "error": why.name, "failure": _failure("nvmlInit", why)}
    take(facts, "driver_version", "nvmlSystemGetDriverVersion")
    take(facts, "nvml_version", "nvmlSystemGetNVMLVersion")
    take(facts, "nvlink_bandwidth_mode", "nvmlSystemGetNvlinkBwMode", convert=_word(_BANDWIDTH_MODES))
    try:
        settings = ask_struct("nvmlSystemGetConfComputeSettings", "SystemConfComputeSettings_v1_t")
        facts.values["confidential_compute"] = _confidential_compute(settings)
    except Unavailable as why:
        facts.miss("confidential_compute", why)
    try:
        count = ask("nvmlDeviceGetCount")
        if not 0 <= count <= _MOST_GPUS:
            raise Unavailable(FAILED, f"nvmlDeviceGetCount: {count} GPUs, a node has at most {_MOST_GPUS}")
    except Unavailable as why:
        facts.values |= {"absent": why.json(), "failure": _failure("nvmlDeviceGetCount", why)}
    else:
        _read_gpus(facts, count, pairs=arguments.get("pairs", True))
    with contextlib.suppress(Unavailable):
        ask("nvmlShutdown")
    return facts.json()


def read_when_asked(parent: Channel, arguments: dict[str, Any]) -> dict[str, Any]:
    """Wait for a message, then answer as :func:`read`: the libraries are loaded by then."""
    parent.receive()
    return read(parent, arguments)


def _failure(call: str, why: Unavailable) -> dict[str, Any]:
    """Return the ``LibraryFailure`` record of a call without which nothing is known."""
    how = {MISSING_LIBRARY: "missing", DRIVER_TOO_OLD: "too-old"}.get(why.reason, "error")
    return {"how": how, "call": call, "number": why.number, "name": why.name, "detail": why.detail}


def _read_gpus(facts: Reading, count: int, *, pairs: bool) -> None:
    handles = {}
    lost = []
    for index in range(count):
        try:
            handle = ask("nvmlDeviceGetHandleByIndex", index)
            handles[index] = ids.bus_id(ask("nvmlDeviceGetPciInfo", handle).busId), handle
        except ValueError as error:
            # No bus id, or no text.
            lost.append(Unavailable(FAILED, f"GPU {index}: nvmlDeviceGetPciInfo: {error}").json())
        except Unavailable as why:
            # A GPU that fell off the bus keeps its index, but its bus id cannot be asked for any more.
            lost.append(Unavailable(why.reason, f"GPU {index}: {why.detail}").json())
    facts.values["gpus"] = {}
    for index, (bus_id, handle) in handles.items():
        with about(bus_id):
            facts.values["gpus"][bus_id] = _gpu(index, handle)
    facts.values["lost"] = lost
    if pairs:
        facts.values["pairs"] = [_pair(*pair) for pair in itertools.permutations(handles.values(), 2)]


def _gpu(index: int, handle: Any) -> dict[str, Any]:
    gpu = Reading(index=index)
    for names, function, arguments, convert in _QUESTIONS:
        take(gpu, names, function, handle, *arguments, convert=convert)
    try:
        capabilities = ask_struct("nvmlDeviceGetCapabilities", "DeviceCapabilities_v1_t", handle)
        gpu.values["capabilities"] = capabilities.capMask
    except Unavailable as why:
        gpu.miss("capabilities", why)
    try:
        mode = ask_struct("nvmlDeviceGetNvlinkBwMode", "NvlinkGetBwMode_v1_t", handle)
        gpu.values["nvlink_bandwidth_mode"] = _gpu_bandwidth_mode(mode.bwMode)
        gpu.values["nvlink_bandwidth_best"] = bool(mode.bIsBest)
    except Unavailable as why:
        gpu.miss("nvlink_bandwidth_mode nvlink_bandwidth_best", why)
    gpu.values["link"] = _pcie_link(handle)
    read_fabric(gpu, handle)
    read_platform(gpu, handle)
    counts = field_values(handle, (NVLINK_COUNT, C2C_COUNT, _RECOVERY_ACTION))
    action = counts[_RECOVERY_ACTION]
    if isinstance(action, Unavailable):
        gpu.miss("recovery_action", action)
    else:
        gpu.values["recovery_action"] = _RECOVERY_ACTIONS.get(action, str(action))
    read_nvlinks(gpu, handle, counts[NVLINK_COUNT])
    read_c2c_links(gpu, handle, counts[C2C_COUNT])
    take(gpu, "processes", "nvmlDeviceGetComputeRunningProcesses", handle, convert=_processes)
    return gpu.json()


def _gpu_bandwidth_mode(packed: int) -> str:
    """Return the word for a GPU's own mode: bits 2:0, and above them how many links are used where that is the mode.

    As the driver packs it (open-gpu-kernel-modules, ctrl2080nvlink.h; nvml.h, NVML_GPU_NVLINK_BW_MODE_*).
    """
    mode, links = packed & 0x7, packed >> 3
    return f"{links}-links" if mode == _LINK_COUNT else _BANDWIDTH_MODES.get(mode, str(packed))


def _pcie_link(handle: Any) -> dict[str, Any]:
    link = Reading()
    for field, function, convert in (
        ("speed_gt_s", "nvmlDeviceGetCurrPcieLinkGeneration", _gt_s),
        ("width", "nvmlDeviceGetCurrPcieLinkWidth", int),
        ("max_speed_gt_s", "nvmlDeviceGetGpuMaxPcieLinkGeneration", _gt_s),
        ("max_width", "nvmlDeviceGetMaxPcieLinkWidth", int),
    ):
        take(link, field, function, handle, convert=convert)
    return link.json()


def _processes(found: Sequence[Any]) -> list[dict[str, Any]]:
    if len(found) > _MOST_PROCESSES:
        raise Unavailable(FAILED, f"nvmlDeviceGetComputeRunningProcesses: {len(found)} processes on one GPU")
    processes = []
    for item in found:
        process = Reading(pid=item.pid, used_memory_bytes=item.usedGpuMemory)
        if item.usedGpuMemory is None:
            process.miss("used_memory_bytes", Unavailable(NOT_SUPPORTED, "nvmlDeviceGetComputeRunningProcesses"))
        take(process, "name", "nvmlSystemGetProcessName", item.pid)
        processes.append(process.json())
    return processes


def _pair(source: tuple[str, Any], target: tuple[str, Any]) -> dict[str, Any]:
    pair = Reading(source=source[0], target=target[0])
    take(
        pair,
        "common_ancestor",
        "nvmlDeviceGetTopologyCommonAncestor",
        source[1],
        target[1],
        convert=_word(_ANCESTORS),
    )
    status = Reading()
    for name, index in P2P_CAPS.items():
        take(status, name, "nvmlDeviceGetP2PStatus", source[1], target[1], index, convert=_word(_P2P_STATUS))
    pair.values["p2p_status"] = status.values
    pair.unread.update({f"p2p_status.{name}": why for name, why in status.unread.items()})
    return pair.json()


def _confidential_compute(settings: Any) -> str:
    if not settings.ccFeature:
        return "off"
    return {1: "protected-pcie", 2: "nvlink-encryption"}.get(settings.multiGpuMode, "on")


def _word(words: dict[int, str]) -> Callable[[int], str]:
    return lambda number: words.get(number, str(number))


def _gt_s(generation: int) -> float:
    if generation not in _PCIE_GT_S:
        raise Unavailable(NOT_SUPPORTED, f"PCIe generation {generation}")
    return _PCIE_GT_S[generation]


def _mask(words: Iterable[int]) -> str:
    return format_kernel_list(
        [64 * i + bit for i, word in enumerate(words) if word for bit in range(64) if word >> bit & 1]
    )


def _same(value: Any) -> Any:
    return value


_QUESTIONS: tuple[tuple[str, str, tuple[int, ...], Callable[[Any], Any]], ...] = (
    ("uuid", "nvmlDeviceGetUUID", (), _same),
    ("name", "nvmlDeviceGetName", (), _same),
    ("serial", "nvmlDeviceGetSerial", (), _same),
    ("board_part_number", "nvmlDeviceGetBoardPartNumber", (), _same),
    ("vbios", "nvmlDeviceGetVbiosVersion", (), _same),
    ("minor", "nvmlDeviceGetMinorNumber", (), _same),
    ("compute_capability", "nvmlDeviceGetCudaComputeCapability", (), list),
    (
        "memory_total_bytes memory_used_bytes",
        "nvmlDeviceGetMemoryInfo",
        (pynvml.nvmlMemory_v2,),
        lambda info: (info.total, info.used),
    ),
    ("cpu_affinity", "nvmlDeviceGetCpuAffinity", (_CPU_WORDS,), _mask),
    ("numa_affinity", "nvmlDeviceGetMemoryAffinity", (_NODE_WORDS, _AFFINITY_NODE), _mask),
    ("numa_node", "nvmlDeviceGetNumaNodeId", (), _same),
    ("c2c_enabled", "nvmlDeviceGetC2cModeInfoV", (), lambda info: bool(info.isC2cEnabled)),
    ("addressing_mode", "nvmlDeviceGetAddressingMode", (), _word(_ADDRESSING)),
    ("mig_mode mig_mode_pending", "nvmlDeviceGetMigMode", (), lambda modes: map(bool, modes)),
    ("virtualization", "nvmlDeviceGetVirtualizationMode", (), _word(_VIRTUALIZATION)),
    ("persistence_mode", "nvmlDeviceGetPersistenceMode", (), bool),
    ("compute_mode", "nvmlDeviceGetComputeMode", (), _word(_COMPUTE_MODES)),
    ("ecc_mode", "nvmlDeviceGetEccMode", (), lambda modes: bool(modes[0])),
    ("ecc_uncorrected_volatile", "nvmlDeviceGetTotalEccErrors", (_ECC_UNCORRECTED, _ECC_VOLATILE), _same),
    (
        "remapped_rows_correctable remapped_rows_uncorrectable remapped_rows_pending remapped_rows_failure",
        "nvmlDeviceGetRemappedRows",
        (),
        lambda rows: (rows[0], rows[1], bool(rows[2]), bool(rows[3])),
    ),
    ("performance_state", "nvmlDeviceGetPerformanceState", (), _same),
    ("sm_clock_mhz", "nvmlDeviceGetClockInfo", (_CLOCK_SM,), _same),
    ("sm_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", (_CLOCK_SM,), _same),
    ("memory_clock_mhz", "nvmlDeviceGetClockInfo", (_CLOCK_MEMORY,), _same),
    ("memory_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", (_CLOCK_MEMORY,), _same),
    ("throttle_reasons", "nvmlDeviceGetCurrentClocksEventReasons", (), event_reasons),
    ("temperature_c", "nvmlDeviceGetTemperature", (_TEMPERATURE_GPU,), _same),
)
"""Fields of :class:`egmctl.model.machine.GpuNvml`, the call that tells, what it wants besides the GPU, and the value's
way from the call's answer."""
