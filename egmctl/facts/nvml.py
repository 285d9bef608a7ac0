"""What NVML says of the GPUs and their pairs: the target of a child process.

NVML ignores CUDA_VISIBLE_DEVICES and honours the device cgroup: it lists the GPUs that this process may use.
"""

from __future__ import annotations

import contextlib
import itertools
import resource
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pynvml

from egmctl.driver import ids
from egmctl.driver.nvml import about, ask, ask_struct, event_reasons, field_values, take
from egmctl.driver.reading import DRIVER_TOO_OLD, FAILED, MISSING_LIBRARY, NOT_SUPPORTED, Reading, Unavailable
from egmctl.facts.nvml_fabric import read_fabric, read_platform
from egmctl.facts.nvml_links import C2C_COUNT, NVLINK_COUNT, read_c2c_links, read_nvlinks
from egmctl.units import format_kernel_list

if TYPE_CHECKING:
    from egmctl.launch import Channel

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
