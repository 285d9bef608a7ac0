"""NVML's facts about the GPUs, their links, fabric and pairs, read in a child process.

The number of calls determines the time, so ``nvmlDeviceGetFieldValues`` reads the counters and rates of all links of a
GPU at once.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import addressof, string_at
from typing import TYPE_CHECKING, Any, TypeVar

import pynvml

from egmctl.driver.nvml import Field, Question, about, ask, ask_struct, event_reasons, field_values, read_record
from egmctl.driver.reading import Reasons, Unreadable, normal_bus_id, read_or, uuid_text
from egmctl.model.codec import to_json
from egmctl.model.record import Reason, Unread
from egmctl.units import format_kernel_list, grouped

if TYPE_CHECKING:
    from egmctl.launch import Channel

T = TypeVar("T")
R = TypeVar("R")

_NVLINK_COUNT, _C2C_COUNT = 91, 170
"""The fields NVML_FI_DEV_NVLINK_LINK_COUNT and NVML_FI_DEV_C2C_LINK_COUNT."""
_RECOVERY_ACTION = 230
"""The field NVML_FI_DEV_GET_GPU_RECOVERY_ACTION."""
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
"""The fields NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_0 to _15."""
_C2C_FIELDS = {
    "active": 171,  # NVML_FI_DEV_C2C_LINK_GET_STATUS
    "max_rate_mb_s": 172,  # NVML_FI_DEV_C2C_LINK_GET_MAX_BW
    "errors": 231,  # NVML_FI_DEV_C2C_LINK_ERROR_INTR
    "replays": 232,  # NVML_FI_DEV_C2C_LINK_ERROR_REPLAY
    "replays_back_to_back": 233,  # NVML_FI_DEV_C2C_LINK_ERROR_REPLAY_B2B
    "power_state": 234,  # NVML_FI_DEV_C2C_LINK_POWER_STATE
}
P2P_CAPS = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3, "pci": 4}
"""The values of NVML_P2P_CAPS_INDEX_*, because pynvml's constant for READ is a tuple by mistake."""
_REMOTE_TYPES = {0: "gpu", 1: "npu", 2: "switch"}
_ANCESTORS = {0: "internal", 10: "single", 20: "multiple", 30: "hostbridge", 40: "node", 50: "system"}
_PCIE_GT_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0, 7: 128.0}
_COMPLETED = 3
"""The state NVML_GPU_FABRIC_STATE_COMPLETED."""
_LINK_COUNT = 5
"""The mode NVML_GPU_NVLINK_BW_MODE_LINK_COUNT."""
_CPU_WORDS, _NODE_WORDS = 64, 16
"""The sizes of the affinity masks in 64-bit words: 4096 CPUs, 1024 NUMA nodes."""
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_TEMPERATURE_GPU = 0
_ECC_UNCORRECTED, _ECC_VOLATILE = 1, 0
_AFFINITY_NODE = 0

# A count above these limits is rejected as an error of the driver.
_MOST_NVLINKS, _MOST_C2C_LINKS = 128, 64
"""The largest plausible numbers of links per GPU. NVLink 6 has 36 (nvml.h, NVML_NVLINK_MAX_LINKS)."""
_MOST_GPUS = 256
"""The largest plausible number of GPUs. GPU minors end at 247 (nv-chardev-numbers.h)."""
_MOST_PROCESSES = 4096
"""The largest plausible number of processes per GPU. The name of each one takes a call."""
_MOST_MEMORY = 2 << 30
"""The child's limit of data memory in bytes."""


def _words(text: str) -> Callable[[int], str]:
    """Return a function that maps NVML's values, from 0, to the words of a text and other values to their digits."""
    words = text.split()
    return lambda number: words[number] if 0 <= number < len(words) else str(number)


_link_state = _words("inactive active sleep active-traffic-disabled")
_fabric_state = _words("not-supported not-started in-progress completed")
_clique_type = _words("unicast-pointer multicast-pointer unicast-logical-endpoint multicast-logical-endpoint")
"""The names of ``NVML_GPU_FABRIC_CLIQUE_TYPE_*``, which are those of CUDA's ``CUcliqueType``."""
_health_summary = _words("not-supported healthy unhealthy limited-capacity")
_bandwidth_mode = _words("full off min half 3quarter")
_compute_mode = _words("default exclusive-thread prohibited exclusive-process")
_virtualization = _words("none passthrough vgpu host-vgpu host-vsga")
_p2p_status = _words("OK CNS GNS TNS DR NS U")
"""The names that ``nvidia-smi topo -p2p`` uses for NVML_P2P_STATUS_*."""
_power_profile = _words(
    "max-p max-q compute memory-bound network balanced llm-inference llm-training rbm dcpcie hmma-sparse hmma-dense "
    "sync-balanced hpc mig max-q-1 network-bound high-throughput-inference medium-throughput-inference "
    "low-latency-inference training inference max-q-2 max-q-3 low-priority-background"
)
"""The names of ``NVML_POWER_PROFILE_*``."""
_recovery_action = _words(
    "none gpu-reset node-reboot drain-p2p drain-and-reset recover-imex-domain bus-reset system-reboot"
)
_yes_no = _words("not-supported true false")
_configuration_fault = _words(
    "not-supported none system-guid chassis-serial no-partition insufficient-nvlinks "
    "incompatible-gpu-firmware invalid-location gpu-state-invalid"
)
_HEALTH: Mapping[str, tuple[int, int, Callable[[int], str]]] = {
    "degraded_bandwidth": (0, 0x3, _yes_no),
    "route_recovery": (2, 0x3, _yes_no),
    "route_unhealthy": (4, 0x3, _yes_no),
    "access_timeout_recovery": (6, 0x3, _yes_no),
    "incorrect_configuration": (8, 0xF, _configuration_fault),
    "partition_assigned": (12, 0x3, _yes_no),
    "fabric_manager": (14, 0x3, _words("not-supported connected disconnected")),
}
"""The shift, mask and value names of each field (``NVML_GPU_FABRIC_HEALTH_MASK_*`` of nvml.h)."""


def read(parent: Channel, arguments: dict[str, Any]) -> None:
    """Answer with ``egmctl.facts.gpus.NvmlFacts`` as JSON data, then release NVML.

    Parameters
    ----------
    arguments
        ``pairs``: whether to read the pairs (default true); ``cgroup``: the directory of the cgroup whose memory limits
        are read.
    """
    parent.answer(to_json(_facts(arguments)))
    # While another process starts CUDA, this waits 0.3 s.
    with contextlib.suppress(Unreadable):
        ask("nvmlShutdown")


def _facts(arguments: dict[str, Any]) -> dict[str, Any]:
    # pynvml allocates memory for the counts in NVML's answers before they can be checked.
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    try:
        ask("nvmlInit")
    except Unreadable as error:
        failure = error.library_failure("nvmlInit")
        unread = {name: error.unread for question in _SYSTEM for name in question.fields.split()}
        return {"absent": error.unread, "error": error.name, "failure": failure, "unread": unread}
    with about() as lost_calls:
        facts = read_record(_SYSTEM)
    try:
        count = _believed(ask("nvmlDeviceGetCount"), _MOST_GPUS, "nvmlDeviceGetCount", "GPUs, a node")
        limits = functools.partial(_memory_limits, arguments.get("cgroup"))
        questions = (*_GPU, Question("memory_limit_bytes memory_soft_limit_bytes memory_limit_used_bytes", limits))
        facts |= _gpus(count, lost_calls, questions, pairs=arguments.get("pairs", True))
    except Unreadable as error:
        facts |= {"absent": error.unread, "failure": error.library_failure("nvmlDeviceGetCount")}
    return facts


def read_when_asked(parent: Channel, arguments: dict[str, Any]) -> None:
    """Wait for a message, then do as :func:`read`, with Python's modules already loaded."""
    parent.receive()
    read(parent, arguments)


def _confidential_compute() -> str:
    settings = ask_struct("nvmlSystemGetConfComputeSettings", "SystemConfComputeSettings_v1_t")
    if not settings.ccFeature:
        return "off"
    return {1: "protected-pcie", 2: "nvlink-encryption"}.get(settings.multiGpuMode, "on")


_SYSTEM = (
    Question("driver_version", "nvmlSystemGetDriverVersion"),
    Question("nvml_version", "nvmlSystemGetNVMLVersion"),
    Question("nvlink_bandwidth_mode", "nvmlSystemGetNvlinkBwMode", _bandwidth_mode),
    Question("confidential_compute", _confidential_compute),
    Question("confidential_ready", "nvmlSystemGetConfComputeGpusReadyState", bool),
)


def _believed(count: int, most: int, source: str, what: str) -> int:
    if not 0 <= count <= most:
        raise Unreadable(Reason.FAILED, f"{source}: {count} {what} has at most {most}")
    return count


def _gpus(count: int, lost_calls: Mapping[str, str], questions: tuple[Question, ...], *, pairs: bool) -> dict[str, Any]:
    """Return the fields of ``egmctl.facts.gpus.NvmlFacts`` about GPUs.

    Parameters
    ----------
    lost_calls
        The earlier calls, about no GPU in particular, that NVML ended because of a lost one.
    questions
        What is asked of each GPU.
    """
    handles = {}
    lost = []
    for index in range(count):
        try:
            handle = ask("nvmlDeviceGetHandleByIndex", index)
            handles[index] = normal_bus_id(ask("nvmlDeviceGetPciInfo", handle).busId), handle
        except ValueError as error:
            # Not a bus id, or not text.
            lost.append(Unread(reason=Reason.FAILED, detail=f"GPU {index}: nvmlDeviceGetPciInfo: {error}"))
        except Unreadable as error:
            # A GPU that fell off the bus keeps its index, but its bus id can no longer be read.
            lost.append(Unread(reason=error.unread.reason, detail=f"GPU {index}: {error}"))
    gpus = {}
    for index, (bus_id, handle) in handles.items():
        with about(bus_id) as own_lost_calls:
            gpus[bus_id] = read_record(questions, handle, index=index)
        gpus[bus_id]["lost_calls"] = own_lost_calls
    read_pairs, lost_pairs = [], {}
    for source, target in itertools.permutations(handles.values(), 2) if pairs else ():
        with about() as pair_lost_calls:
            read_pairs.append(_pair(source, target))
        if pair_lost_calls:
            lost_pairs[source[0], target[0]] = pair_lost_calls
    for ends, pair_lost_calls in lost_pairs.items():
        # A lost GPU loses all its pairs, the other end of each only those with a lost GPU.
        of_all_pairs = [gpu for gpu in ends if sum(gpu in pair for pair in lost_pairs) == 2 * (len(handles) - 1)]
        _blame(gpus, of_all_pairs or ends, pair_lost_calls)
    _blame(gpus, gpus, lost_calls)
    return {"gpus": gpus, "lost": lost, "pairs": read_pairs}


_UNLIMITED = (1 << 64) - 1


def _memory_limits(cgroup: str | None, handle: Any) -> tuple[int, int, int]:
    """Return the hard and the soft limit of a cgroup and what it holds, in bytes; -1 is unlimited.

    The structure has no version (nvidia-ml-py 13.615.71). No driver that answers this call was seen.
    """
    function = "nvmlDeviceGetMemoryLimits_v1"
    if cgroup is None:
        raise Unreadable(Reason.NOT_PRESENT, f"{function}: no cgroup of version 2 is mounted here")
    kind = getattr(pynvml, "c_nvmlGetMemoryLimits_v1_t", None)
    if kind is None:
        raise Unreadable(Reason.DRIVER_TOO_OLD, f"{function}: the installed nvidia-ml-py lacks its structure")
    limits = kind(nameSpace=os.fsencode(cgroup))
    ask(function, handle, limits)
    hard, soft = (-1 if value == _UNLIMITED else value for value in (limits.hardLimit, limits.softLimit))
    return hard, soft, limits.currentUsed


def _blame(gpus: Mapping[str, dict[str, Any]], suspects: Iterable[str], lost_calls: Mapping[str, str]) -> None:
    """Add the calls about several GPUs, or the node, that ended because one is lost, to the records of these GPUs.

    If calls about one of them ended so too, it is the lost one, and the others get nothing.
    """
    suspects = tuple(suspects)
    if not any(gpus[bus_id]["lost_calls"] for bus_id in suspects):
        for bus_id in suspects:
            gpus[bus_id]["lost_calls"] = dict(lost_calls)


def _gt_s(generation: int) -> float:
    if generation not in _PCIE_GT_S:
        raise Unreadable(Reason.NOT_SUPPORTED, f"PCIe generation {generation}")
    return _PCIE_GT_S[generation]


_PCIE_LINK = (
    Question("speed_gt_s", "nvmlDeviceGetCurrPcieLinkGeneration", _gt_s),
    Question("width", "nvmlDeviceGetCurrPcieLinkWidth"),
    Question("max_speed_gt_s", "nvmlDeviceGetGpuMaxPcieLinkGeneration", _gt_s),
    Question("max_width", "nvmlDeviceGetMaxPcieLinkWidth"),
)


def _gpu_bandwidth_mode(handle: Any) -> tuple[str, bool]:
    """Return the name of a GPU's NVLink bandwidth mode, and whether it is the best mode.

    Bits 2:0 are the mode. In the mode "link count", the bits above are the number of links (open-gpu-kernel-modules,
    ctrl2080nvlink.h; nvml.h, NVML_GPU_NVLINK_BW_MODE_*).
    """
    info = ask_struct("nvmlDeviceGetNvlinkBwMode", "NvlinkGetBwMode_v1_t", handle)
    mode, links = info.bwMode & 0x7, info.bwMode >> 3
    word = f"{links}-links" if mode == _LINK_COUNT else _bandwidth_mode(mode)
    return word, bool(info.bIsBest)


def _power_profiles(handle: Any) -> list[str]:
    """Return the power profiles in force: those that were requested, without those that conflict with a stronger one.

    Several may be in force (nvml.h, ``nvmlWorkloadPowerProfileCurrentProfiles_t.enforcedProfilesMask``).
    """
    function = "nvmlDeviceWorkloadPowerProfileGetCurrentProfiles"
    mask = ask_struct(function, "WorkloadPowerProfileCurrentProfiles_v1_t", handle).enforcedProfilesMask.mask
    return [_power_profile(bit) for bit in range(32 * len(mask)) if mask[bit // 32] >> bit % 32 & 1]


def fabric_information(handle: Any) -> dict[str, Any]:
    """Return a GPU's ``Fabric`` record from ``nvmlDeviceGetGpuFabricInfoV``, version 3 or, on older drivers, 2.

    The identifiers are valid once the state is ``completed``: before that, ``nvidia-smi`` prints N/A for them.

    Raises
    ------
    Unreadable
        NVML does not report it.
    """
    try:
        info = ask_struct("nvmlDeviceGetGpuFabricInfoV", "GpuFabricInfo_v3_t", handle)
    except Unreadable as error:
        if error.unread.reason is not Reason.DRIVER_TOO_OLD:
            raise
        info = ask_struct("nvmlDeviceGetGpuFabricInfoV", "GpuFabricInfo_v2_t", handle)
    not_completed = Unreadable(Reason.NOT_PRESENT, "valid once the state is completed")
    no_cluster = Unreadable(Reason.NOT_SUPPORTED, "all zero: in no multi-node NVLink domain")
    no_summary = Unreadable(Reason.DRIVER_TOO_OLD, "nvmlDeviceGetGpuFabricInfoV: only version 2")
    cluster, completed = bytes(info.clusterUuid), info.state == _COMPLETED
    without_cluster = no_cluster if completed else not_completed
    return Reasons().record(
        dict,
        state=_fabric_state(info.state),
        clique_id=info.cliqueId if completed else not_completed,
        cliques=functools.partial(_cliques, handle) if completed else not_completed,
        health_mask=info.healthMask,
        health=decode_health(info.healthMask),
        status=info.status if completed else not_completed,
        cluster_uuid=uuid_text(cluster) if any(cluster) else without_cluster,
        health_summary=_health_summary(info.healthSummary) if hasattr(info, "healthSummary") else no_summary,
    )


def _cliques(handle: Any) -> dict[str, tuple[int, ...]]:
    """Return the ids of a GPU's cliques by type, from version 4 of the fabric information (NVML 13.4 and newer)."""
    info = ask_struct("nvmlDeviceGetGpuFabricInfo_v4", "GpuFabricInfo_v4_t", handle)
    count = _believed(info.numCliques, len(info.cliques), "nvmlDeviceGetGpuFabricInfo_v4", "cliques, a GPU")
    by_type = grouped((_clique_type(clique.type), clique.id) for clique in info.cliques[:count])
    return {name: tuple(ids) for name, ids in by_type.items()}


def decode_health(mask: int) -> dict[str, str]:
    """Return the value of each field of a fabric health mask, as its name in nvml.h or else as digits."""
    return {name: words(mask >> shift & width) for name, (shift, width, words) in _HEALTH.items()}


def _place(handle: Any) -> tuple[str | int | Unreadable, ...]:
    """Return a GPU's chassis serial number, slot, tray, host id and peer type; an Unreadable for unknown values."""
    info = ask_struct("nvmlDeviceGetPlatformInfo", "PlatformInfo_v2_t", handle)

    def raw(member: str) -> bytes:
        # pynvml declares these bytes as characters and decodes them, which fails from 0x80 on, so read the raw memory.
        field = getattr(type(info), member)
        return string_at(addressof(info) + field.offset, field.size)

    def number(member: str) -> int | Unreadable:
        return unknown if raw(member) == b"\xff" else raw(member)[0]

    unknown = Unreadable(Reason.NOT_SUPPORTED, "nvmlDeviceGetPlatformInfo: the platform does not say")
    serial = raw("chassisSerialNumber").split(b"\0", 1)[0]
    if not serial:
        # An HGX H200 virtual machine reports slot 0, tray 0, host 1, "direct"; nvidia-smi -q prints N/A for all.
        raise Unreadable(Reason.NOT_SUPPORTED, "nvmlDeviceGetPlatformInfo: a place without a chassis")
    return (
        serial.decode() if serial.isascii() else unknown,
        number("slotNumber"),
        number("trayIndex"),
        number("hostId"),
        # The only documentation in nvml.h is "switch present or not".
        {0: "direct", 1: "switch"}.get(raw("peerType")[0], unknown),
    )


PLATFORM = (
    Question("module_id", "nvmlDeviceGetModuleId"),
    Question("chassis_serial slot tray host_id peer_type", _place),
)
"""The questions for the ``Platform`` record: the GPU's module id and, from Blackwell on, its location."""


def _mask(words: Iterable[int]) -> str:
    numbers: list[int] = []
    for place, word in enumerate(words):
        numbers += [64 * place + bit for bit in range(64) if word >> bit & 1]
    return format_kernel_list(numbers)


def _processes(running: Sequence[Any]) -> list[dict[str, Any]]:
    if len(running) > _MOST_PROCESSES:
        raise Unreadable(Reason.FAILED, f"nvmlDeviceGetComputeRunningProcesses: {len(running)} processes on one GPU")
    no_memory = Unreadable(Reason.NOT_SUPPORTED, "nvmlDeviceGetComputeRunningProcesses")
    name = Question("name", "nvmlSystemGetProcessName")
    return [
        read_record(
            (name,),
            process.pid,
            pid=process.pid,
            used_memory_bytes=no_memory if process.usedGpuMemory is None else process.usedGpuMemory,
        )
        for process in running
    ]


def links(handle: Any) -> tuple[object, ...]:
    """Return a GPU's recovery action, number of NVLinks, ``NvLink`` records and ``C2cLink`` records.

    Values that cannot be read are replaced by their errors.
    """
    values = field_values(handle, (_NVLINK_COUNT, _C2C_COUNT, _RECOVERY_ACTION))
    action, nvlinks, c2c_links = (values[field] for field in (_RECOVERY_ACTION, _NVLINK_COUNT, _C2C_COUNT))
    nvlinks = _if_known(nvlinks, _believed, _MOST_NVLINKS, f"field {_NVLINK_COUNT}", "NVLinks, a GPU")
    c2c_links = _if_known(c2c_links, _believed, _MOST_C2C_LINKS, f"field {_C2C_COUNT}", "C2C links, a GPU")
    return (
        _if_known(action, _recovery_action),
        nvlinks,
        _if_known(nvlinks, functools.partial(_all_nvlinks, handle)),
        _if_known(c2c_links, functools.partial(_c2c_links, handle)),
    )


def _if_known(answer: T | Unreadable, convert: Callable[..., R], *arguments: Any) -> R | Unreadable:
    """Return the converted answer; if the answer or its conversion is an error, return the error."""
    try:
        return answer if isinstance(answer, Unreadable) else convert(answer, *arguments)
    except Unreadable as error:
        return error


def _all_nvlinks(handle: Any, count: int) -> list[dict[str, Any]]:
    """Return the ``NvLink`` records of ``count`` links, and of those behind if the driver counts active ones only."""
    links = _nvlinks(handle, count)
    last = _last_nvlink(handle, count, sum(link["active"] is False for link in links))
    return links if last == count else _nvlinks(handle, last)


def _last_nvlink(handle: Any, count: int, inactive: int) -> int:
    """Return the number of links to read: ``count``, or more if the driver counts active links only.

    Then there is an active link behind the count for each inactive one below it. A GPU whose links are all active costs
    no call.
    """
    last, missing = count, inactive
    for link in range(count, pynvml.NVML_NVLINK_MAX_LINKS):
        if not missing:
            break
        state = read_or(None, functools.partial(ask, "nvmlDeviceGetNvLinkState", handle, link))
        if state is None:
            # An invalid argument: the GPU has no such link.
            break
        if state == pynvml.NVML_FEATURE_ENABLED:
            last, missing = link + 1, missing - 1
    return last


def _nvlinks(handle: Any, count: int) -> list[dict[str, Any]]:
    fields = [(field, number) for number in range(count) for field in _NVLINK_FIELDS.values()]
    values = field_values(handle, [*fields, _HAS_COUNTERS])
    links = [_nvlink(handle, number, values) for number in range(count)]
    if isinstance(no_counters := values[_HAS_COUNTERS], Unreadable):
        for link in links:
            link["counters"] = None
            link["unread"]["counters"] = no_counters.unread
        return links
    fields = [(field, number) for number in range(count) for field in (*_COUNTER_FIELDS.values(), *_FEC_FIELDS)]
    values = field_values(handle, fields)
    return [{**link, "counters": _counters(number, values)} for number, link in enumerate(links)]


def _nvlink(handle: Any, number: int, values: Mapping[Field, int | Unreadable]) -> dict[str, Any]:
    return read_record(_NVLINK, handle, number, link=number, **_link_fields(_NVLINK_FIELDS, number, values))


def _counters(number: int, values: Mapping[Field, int | Unreadable]) -> dict[str, Any]:
    history = [values[field, number] for field in _FEC_FIELDS]
    missing = next((value for value in history if isinstance(value, Unreadable)), None)
    counters = _link_fields(_COUNTER_FIELDS, number, values)
    return Reasons().record(dict, **counters, fec_history=missing or history)


def _link_fields(fields: Mapping[str, int], number: int, values: Mapping[Field, int | Unreadable]) -> dict[str, Any]:
    return {
        name: _if_known(values[field, number], _CONVERSIONS.get(name, lambda value: value))
        for name, field in fields.items()
    }


def ber(packed: int) -> float:
    """Return a bit error rate from NVML's packed format: bits 11:8 are the mantissa, bits 7:0 the negative exponent.

    A link without errors has mantissa 15 and exponent 255, which give 0 (nvml.h, NVML_NVLINK_BER_*; as in DCGM).
    """
    mantissa, exponent = packed >> 8 & 0xF, packed & 0xFF
    return 0.0 if (mantissa, exponent) == (15, 255) else float(f"{mantissa}e-{exponent}")


_CONVERSIONS: Mapping[str, Callable[[int], object]] = {
    "link_state": _link_state,
    "effective_ber": ber,
    "symbol_ber": ber,
    "active": lambda status: status == 1,
}
"""The conversion of NVML's number, by the name of the record's field. Other numbers stay as they are."""


def _remote_bus_id(handle: Any, number: int) -> str:
    text: str = ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, number).busId
    if text.upper().startswith("FFFFFFFF:"):
        raise Unreadable(Reason.NOT_SUPPORTED, "nvmlDeviceGetNvLinkRemotePciInfo: masked by the virtual machine")
    try:
        return normal_bus_id(text)
    except ValueError:
        raise Unreadable(Reason.NOT_SUPPORTED, "nvmlDeviceGetNvLinkRemotePciInfo: no bus id in the answer") from None


_NVLINK = (
    Question("active", "nvmlDeviceGetNvLinkState", bool),
    Question("version", "nvmlDeviceGetNvLinkVersion"),
    Question("remote_type", "nvmlDeviceGetNvLinkRemoteDeviceType", lambda kind: _REMOTE_TYPES.get(kind, "unknown")),
    Question("remote_bus_id", _remote_bus_id),
)


def _c2c_links(handle: Any, count: int) -> list[dict[str, Any]]:
    values = field_values(handle, [(field, link) for link in range(count) for field in _C2C_FIELDS.values()])
    return [Reasons().record(dict, link=number, **_link_fields(_C2C_FIELDS, number, values)) for number in range(count)]


_GPU = (
    Question("uuid", "nvmlDeviceGetUUID"),
    Question("name", "nvmlDeviceGetName"),
    Question("serial", "nvmlDeviceGetSerial"),
    Question("board_part_number", "nvmlDeviceGetBoardPartNumber"),
    Question("vbios", "nvmlDeviceGetVbiosVersion"),
    Question("inforom_image", "nvmlDeviceGetInforomImageVersion"),
    Question("minor", "nvmlDeviceGetMinorNumber"),
    Question("compute_capability", "nvmlDeviceGetCudaComputeCapability"),
    Question(
        "memory_total_bytes memory_used_bytes",
        "nvmlDeviceGetMemoryInfo",
        lambda info: (info.total, info.used),
        (pynvml.nvmlMemory_v2,),
    ),
    Question("bar1_total_bytes", "nvmlDeviceGetBAR1MemoryInfo", lambda info: info.bar1Total),
    Question("cpu_affinity", "nvmlDeviceGetCpuAffinity", _mask, (_CPU_WORDS,)),
    Question("numa_affinity", "nvmlDeviceGetMemoryAffinity", _mask, (_NODE_WORDS, _AFFINITY_NODE)),
    Question("numa_node", "nvmlDeviceGetNumaNodeId"),
    Question("c2c_enabled", "nvmlDeviceGetC2cModeInfoV", lambda info: bool(info.isC2cEnabled)),
    Question("addressing_mode", "nvmlDeviceGetAddressingMode", _words("none hmm ats")),
    Question("mig_mode mig_mode_pending", "nvmlDeviceGetMigMode", lambda modes: map(bool, modes)),
    Question("virtualization", "nvmlDeviceGetVirtualizationMode", _virtualization),
    Question("persistence_mode", "nvmlDeviceGetPersistenceMode", bool),
    Question("compute_mode", "nvmlDeviceGetComputeMode", _compute_mode),
    Question("ecc_mode", "nvmlDeviceGetEccMode", lambda modes: bool(modes[0])),
    Question("ecc_uncorrected_volatile", "nvmlDeviceGetTotalEccErrors", arguments=(_ECC_UNCORRECTED, _ECC_VOLATILE)),
    Question(
        "remapped_rows_correctable remapped_rows_uncorrectable remapped_rows_pending remapped_rows_failure",
        "nvmlDeviceGetRemappedRows",
        lambda rows: (rows[0], rows[1], bool(rows[2]), bool(rows[3])),
    ),
    Question(
        "sram_threshold_exceeded",
        lambda handle: bool(
            ask_struct("nvmlDeviceGetSramEccErrorStatus", "EccSramErrorStatus_v1_t", handle).bThresholdExceeded
        ),
    ),
    Question("channel_repair_pending tpc_repair_pending", "nvmlDeviceGetRepairStatus", lambda flags: map(bool, flags)),
    Question("performance_state", "nvmlDeviceGetPerformanceState"),
    Question("sm_clock_mhz", "nvmlDeviceGetClockInfo", arguments=(_CLOCK_SM,)),
    Question("sm_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", arguments=(_CLOCK_SM,)),
    Question("memory_clock_mhz", "nvmlDeviceGetClockInfo", arguments=(_CLOCK_MEMORY,)),
    Question("memory_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", arguments=(_CLOCK_MEMORY,)),
    Question("throttle_reasons", "nvmlDeviceGetCurrentClocksEventReasons", event_reasons),
    Question("power_limit_mw", "nvmlDeviceGetEnforcedPowerLimit"),
    Question("power_limit_default_mw", "nvmlDeviceGetPowerManagementDefaultLimit"),
    Question("temperature_c", "nvmlDeviceGetTemperature", arguments=(_TEMPERATURE_GPU,)),
    Question(
        "capabilities",
        lambda handle: ask_struct("nvmlDeviceGetCapabilities", "DeviceCapabilities_v1_t", handle).capMask,
    ),
    Question("nvlink_bandwidth_mode nvlink_bandwidth_best", _gpu_bandwidth_mode),
    Question(
        "nvlink_encryption",
        lambda handle: bool(ask_struct("nvmlDeviceGetNvLinkInfo", "NvLinkInfo_v1_t", handle).isNvleEnabled),
    ),
    Question("power_profiles", _power_profiles),
    Question("link", lambda handle: read_record(_PCIE_LINK, handle)),
    Question("fabric", fabric_information),
    Question("platform", lambda handle: read_record(PLATFORM, handle)),
    Question("recovery_action nvlink_count nvlinks c2c_links", links),
    Question("processes", "nvmlDeviceGetComputeRunningProcesses", _processes),
)
"""The questions for the fields of :class:`egmctl.model.gpu.GpuNvml`."""


_PAIR = (
    Question("common_ancestor", "nvmlDeviceGetTopologyCommonAncestor", lambda level: _ANCESTORS.get(level, str(level))),
    *(
        Question(f"p2p_status.{name}", "nvmlDeviceGetP2PStatus", _p2p_status, (index,))
        for name, index in P2P_CAPS.items()
    ),
)


def _pair(source: tuple[str, Any], target: tuple[str, Any]) -> dict[str, Any]:
    pair = read_record(_PAIR, source[1], target[1], source=source[0], target=target[0])
    pair["p2p_status"] = {name: pair.pop(f"p2p_status.{name}") for name in P2P_CAPS}
    return pair
