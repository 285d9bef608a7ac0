"""Turns a machine into the answers file of the fake driver: ``key = value`` lines, read by ``driver/answers.c``.

Where the machine has a value, the fake answers it. Where the value is null, the fake answers the error that leads to
the same reason. A modelled machine says ``not-stated`` where no public source tells; a driver always answers, so there
the fake uses the stand-ins of this file: invented, and the reason why nothing that runs on the fake can be a result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cuda.bindings import driver as cuda

from egmctl.facts.cuda import ATOMIC_CAPABILITIES
from egmctl.model.gpu import C2cLink, Fabric, Gpu, GpuNvml, GpuPair, NvLink, Platform
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Record
from tests.fake.rates import link_rates

NAME_PREFIX = "FAKE "
"""No GPU of the fake driver has a name that could pass for a real one's."""

_CUDA_STAND_INS = {
    "CAN_USE_64_BIT_STREAM_MEM_OPS": 1,
    "HANDLE_TYPE_FABRIC_SUPPORTED": 1,
    "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": 1,
    "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 1,
    # Small: the chains of latencies are some times as long, and are written and walked by this CPU.
    "L2_CACHE_SIZE": 1 << 24,
    "MAX_THREADS_PER_BLOCK": 1024,
    "MULTIPROCESSOR_COUNT": 132,
    "UNIFIED_ADDRESSING": 1,
    "WARP_SIZE": 32,
}
_MEMORY_STAND_IN = 80 << 30

_P2P_STATUS = {"OK": 0, "CNS": 1, "GNS": 2, "TNS": 3, "DR": 4, "NS": 5, "U": 6}
_ANCESTORS = {"internal": 0, "single": 10, "multiple": 20, "hostbridge": 30, "node": 40, "system": 50}
_COMPUTE_MODES = {"default": 0, "exclusive-thread": 1, "prohibited": 2, "exclusive-process": 3}
_VIRTUALIZATION = {"none": 0, "passthrough": 1, "vgpu": 2, "host-vgpu": 3, "host-vsga": 4}
_POWER_PROFILES = {"max-p": 0, "max-q": 1, "network": 4}
_ADDRESSING = {"none": 0, "hmm": 1, "ats": 2}
_FABRIC_STATES = {"not-supported": 0, "not-started": 1, "in-progress": 2, "completed": 3}
_CLIQUE_TYPES = ("unicast-pointer", "multicast-pointer", "unicast-logical-endpoint", "multicast-logical-endpoint")
_FABRIC_SUMMARIES = {"not-supported": 0, "healthy": 1, "unhealthy": 2, "limited-capacity": 3}
_BANDWIDTH_MODES = {"full": 0, "off": 1, "min": 2, "half": 3, "3quarter": 4}
_LINK_STATES = {"inactive": 0, "active": 1, "sleep": 2, "active-traffic-disabled": 3}
_NVLINK_COUNTERS = {
    "malformed_packets": 206,
    "buffer_overruns": 207,
    "receive_errors": 208,
    "remote_errors": 209,
    "general_receive_errors": 210,
    "integrity_errors": 211,
    "discarded_packets": 212,
    "successful_recoveries": 213,
    "failed_recoveries": 214,
    "recoveries": 215,
    "effective_errors": 219,
    "effective_ber": 220,
    "symbol_errors": 221,
    "symbol_ber": 222,
}
_CONFIDENTIAL_COMPUTE = {"off": 0, "on": 1, "protected-pcie": 2, "nvlink-encryption": 3}
_RECOVERY_ACTIONS = {
    "none": 0,
    "gpu-reset": 1,
    "node-reboot": 2,
    "drain-p2p": 3,
    "drain-and-reset": 4,
    "recover-imex-domain": 5,
    "bus-reset": 6,
    "system-reboot": 7,
}
_PEER_TYPES = {"direct": 0, "switch": 1}
_REMOTE_TYPES = {"gpu": 0, "npu": 1, "switch": 2, "unknown": 255}
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}
_EVENT_REASONS = (
    "idle",
    "applications-clocks-setting",
    "sw-power-cap",
    "hw-slowdown",
    "sync-boost",
    "sw-thermal-slowdown",
    "hw-thermal-slowdown",
    "hw-power-brake-slowdown",
    "display-clock-setting",
)
"""The numbers of nvml.h for the words of the model."""

_CUDA_CODES = {Reason.NOT_SUPPORTED: 801, Reason.NO_PERMISSION: 800, Reason.FAILED: 999}
"""CUresult that is read as a reason; an attribute that is null for any other is one that the driver does not know."""

_NVML_CODES = {
    Reason.NOT_SUPPORTED: 3,
    Reason.NO_PERMISSION: 4,
    Reason.TIMED_OUT: 10,
    Reason.MISSING_LIBRARY: 12,
    Reason.DRIVER_TOO_OLD: 13,
    Reason.FAILED: 999,
}
"""nvmlReturn_t that is read as a reason; every other reason comes back as not-supported."""

Answers = dict[str, str]


def answers(machine: Machine) -> str:
    """Return the answers file for a machine."""
    found = _node(machine)
    for number, gpu in enumerate(machine.gpus or ()):
        found.update(_gpu(gpu, f"gpu.{number}"))
    numbers = {gpu.bus_id: number for number, gpu in enumerate(machine.gpus or ())}
    for pair in machine.pairs or ():
        found.update(_pair(pair, f"pair.{numbers[pair.source]}.{numbers[pair.target]}"))
    found.update((key, str(int(rate))) for key, rate in link_rates(machine).items())
    return "".join(f"{key} = {value}\n" for key, value in sorted(found.items()))


def stand_in_uuid(bus_id: str) -> str:
    """Return the UUID that the fake gives a GPU whose machine file has none."""
    digits = hashlib.sha256(bus_id.encode()).hexdigest()
    return f"GPU-fa4e{digits[:4]}-{digits[4:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:28]}"


def _node(machine: Machine) -> Answers:
    driver = machine.driver
    nodes = {} if driver is None else {node.path: node for node in driver.nodes or ()}
    control = nodes.get("/dev/nvidiactl")
    imex = [] if driver is None else [node for node in driver.imex_channels or () if node.access == "ok"]
    found = {
        "cuda.version": str((driver and driver.cuda_driver_version) or 13000),
        "driver.version": (driver and driver.driver_version) or "580.00",
        "nvml.version": (driver and driver.nvml_version) or "13.580.00",
        "gpu.count": str(len(machine.gpus or ())),
        "node.imex": str(int(bool(imex))),
    }
    # Measured on H200s: without nvidiactl neither library finds a driver.
    if control is not None and control.access != "ok":
        found |= {"cuda.error": "100", "nvml.error": "999"}
    if driver is not None and driver.cuda_error:
        found["cuda.error"] = str(int(getattr(cuda.CUresult, driver.cuda_error)))
    if driver is not None and driver.nvml_error:
        import pynvml

        found["nvml.error"] = str(getattr(pynvml, driver.nvml_error))
    if driver is not None:
        mode = _number(_BANDWIDTH_MODES, driver.nvlink_bandwidth_mode)
        confidential = _number(_CONFIDENTIAL_COMPUTE, driver.confidential_compute)
        found["driver.nvlink_bandwidth_mode"] = _text(mode, driver, "nvlink_bandwidth_mode")
        found["driver.confidential_compute"] = _text(
            None if confidential is None else confidential > 0, driver, "confidential_compute"
        )
        found["driver.confidential_ready"] = _text(driver.confidential_ready, driver, "confidential_ready")
        found["driver.confidential_compute_mode"] = str((confidential or 1) - 1)
    for node in (machine.host and machine.host.numa_nodes) or ():
        # Not measured: whether a node without CPUs (a GPU's own memory) can be a HOST_NUMA location. Here it cannot.
        found[f"numa.{node.id}.host"] = str(int(node.kind == "cpu"))
        found[f"numa.{node.id}.bytes"] = str(node.memory_total_bytes or 0)
    return found


def _gpu(gpu: Gpu, key: str) -> Answers:
    found = {
        f"{key}.bus_id": gpu.bus_id,
        f"{key}.accessible": str(int(gpu.node is None or gpu.node.access == "ok")),
        f"{key}.uuid": gpu.uuid or stand_in_uuid(gpu.bus_id),
        f"{key}.name": _marked(gpu.name or "GPU"),
        f"{key}.cuda": str(int(gpu.cuda is not None)),
        f"{key}.nvml": str(int(gpu.nvml is not None)),
    }
    if gpu.pci is not None and gpu.pci.device_id is not None:
        found[f"{key}.pci_device"] = str(gpu.pci.device_id << 16 | (gpu.pci.vendor_id or 0))
    if gpu.pci is not None and gpu.pci.subsystem_device_id is not None:
        found[f"{key}.pci_subsystem"] = str(gpu.pci.subsystem_device_id << 16 | (gpu.pci.subsystem_vendor_id or 0))
    if gpu.cuda is not None:
        memory = gpu.cuda.memory_total_bytes or (gpu.nvml and gpu.nvml.memory_total_bytes) or _MEMORY_STAND_IN
        found[f"{key}.cuda.memory"] = str(memory)
        found.update(_cuda_attributes(gpu, key))
    if gpu.nvml is not None:
        found.update(_nvml(gpu, gpu.nvml, key))
    return found


def _cuda_attributes(gpu: Gpu, key: str) -> Iterator[tuple[str, str]]:
    assert gpu.cuda is not None
    unstated = {
        name: value
        for name, value in _CUDA_STAND_INS.items()
        if name not in gpu.cuda.attributes or _unstated(gpu.cuda, f"attributes.{name}")
    }
    capability = (gpu.nvml and gpu.nvml.compute_capability) or (9, 0)
    identity = {"COMPUTE_CAPABILITY_MAJOR": capability[0], "COMPUTE_CAPABILITY_MINOR": capability[1]}
    stated = {name: value for name, value in gpu.cuda.attributes.items() if name not in unstated | identity or value}
    values = identity | unstated | stated
    yield from _atomics(gpu.cuda.host_atomics, key)
    yield from _attributes(gpu.cuda, "attributes", values, cuda.CUdevice_attribute, "CU_DEVICE_ATTRIBUTE_", key)


def _nvml(gpu: Gpu, nvml: GpuNvml, key: str) -> Iterator[tuple[str, str]]:
    def one(name: str, field: str, value: Any, record: Record = nvml) -> tuple[str, str]:
        return f"{key}.nvml.{name}", _text(value, record, field)

    yield one("index", "index", nvml.index)
    yield one("name", "name", None if nvml.name is None else _marked(nvml.name))
    unknown = nvml.uuid is None and not _unstated(nvml, "uuid")
    yield one("uuid", "uuid", None if unknown else gpu.uuid or stand_in_uuid(gpu.bus_id))
    for field in (
        "serial",
        "board_part_number",
        "vbios",
        "inforom_image",
        "minor",
        "cpu_affinity",
        "numa_affinity",
        "numa_node",
    ):
        yield one(field, field, getattr(nvml, field))
    for field in ("capabilities", "c2c_enabled", "mig_mode", "mig_mode_pending", "persistence_mode", "ecc_mode"):
        yield one(field, field, getattr(nvml, field))
    for field in ("ecc_uncorrected_volatile", "sram_threshold_exceeded", "performance_state"):
        yield one(field, field, getattr(nvml, field))
    for field in ("power_limit", "power_limit_default"):
        yield one(field, f"{field}_mw", getattr(nvml, f"{field}_mw"))
    for field in ("correctable", "uncorrectable", "pending", "failure"):
        yield one(f"remapped_rows_{field}", f"remapped_rows_{field}", getattr(nvml, f"remapped_rows_{field}"))
    for clock in ("sm_clock", "sm_clock_max", "memory_clock", "memory_clock_max"):
        yield one(clock, f"{clock}_mhz", getattr(nvml, f"{clock}_mhz"))
    yield one("compute_capability_major", "compute_capability", nvml.compute_capability and nvml.compute_capability[0])
    yield one("compute_capability_minor", "compute_capability", nvml.compute_capability and nvml.compute_capability[1])
    yield one("memory_total", "memory_total_bytes", nvml.memory_total_bytes)
    yield one("bar1_total", "bar1_total_bytes", nvml.bar1_total_bytes)
    used = 0 if _unstated(nvml, "memory_used_bytes") else nvml.memory_used_bytes
    yield one("memory_used", "memory_used_bytes", used)
    yield one("temperature", "temperature_c", nvml.temperature_c)
    yield one("compute_mode", "compute_mode", _number(_COMPUTE_MODES, nvml.compute_mode))
    yield one("virtualization", "virtualization", _number(_VIRTUALIZATION, nvml.virtualization))
    yield one("addressing_mode", "addressing_mode", _number(_ADDRESSING, nvml.addressing_mode))
    yield one("bw_mode", "nvlink_bandwidth_mode", _bandwidth_mode(nvml.nvlink_bandwidth_mode))
    yield one("bw_mode_best", "nvlink_bandwidth_best", nvml.nvlink_bandwidth_best)
    yield one("nvlink_encryption", "nvlink_encryption", nvml.nvlink_encryption)
    profiles = None if nvml.power_profiles is None else sum(1 << _POWER_PROFILES[name] for name in nvml.power_profiles)
    yield one("power_profiles", "power_profiles", profiles)
    yield one("event_reasons", "throttle_reasons", _event_reasons(nvml.throttle_reasons))
    if nvml.link is not None:
        yield one("pcie_generation", "speed_gt_s", _number(_GENERATIONS, nvml.link.speed_gt_s), nvml.link)
        yield one("pcie_width", "width", nvml.link.width, nvml.link)
        yield one("pcie_generation_max", "max_speed_gt_s", _number(_GENERATIONS, nvml.link.max_speed_gt_s), nvml.link)
        yield one("pcie_width_max", "max_width", nvml.link.max_width, nvml.link)
    yield from _processes(nvml, key)
    yield from _fabric(nvml, nvml.fabric, f"{key}.nvml.fabric")
    yield from _platform(nvml.platform, f"{key}.nvml")
    yield f"{key}.field.230.0", _text(_number(_RECOVERY_ACTIONS, nvml.recovery_action), nvml, "recovery_action")
    yield f"{key}.field.91.0", _text(nvml.nvlink_count, nvml, "nvlink_count")
    for nvlink in nvml.nvlinks or ():
        yield from _nvlink(nvlink, key)
    yield f"{key}.field.170.0", _text(None if nvml.c2c_links is None else len(nvml.c2c_links), nvml, "c2c_links")
    for c2c in nvml.c2c_links or ():
        yield from _c2c_link(c2c, key)


def _bandwidth_mode(word: str | None) -> int | None:
    if word is not None and word.endswith("-links"):
        return int(word.removesuffix("-links")) << 3 | 5
    return _number(_BANDWIDTH_MODES, word)


def _processes(nvml: GpuNvml, key: str) -> Iterator[tuple[str, str]]:
    count = None if nvml.processes is None else len(nvml.processes)
    yield f"{key}.nvml.processes", _text(count, nvml, "processes")
    for number, process in enumerate(nvml.processes or ()):
        yield f"{key}.nvml.process.{number}.pid", str(process.pid)
        if process.used_memory_bytes is not None:
            yield f"{key}.nvml.process.{number}.memory", str(process.used_memory_bytes)
        if process.name is not None:
            yield f"process.{process.pid}.name", process.name


def _fabric(nvml: GpuNvml, fabric: Fabric | None, key: str) -> Iterator[tuple[str, str]]:
    if fabric is None:
        yield f"{key}.state", _text(None, nvml, "fabric")
        return
    yield f"{key}.state", _text(_number(_FABRIC_STATES, fabric.state), fabric, "state")
    for name in ("status", "clique_id", "health_mask"):
        yield f"{key}.{name}", str(getattr(fabric, name) or 0)
    yield f"{key}.cluster_uuid", fabric.cluster_uuid or ""
    if fabric.cliques is not None:
        cliques = [f"{_CLIQUE_TYPES.index(name)}:{number}" for name, ids in fabric.cliques.items() for number in ids]
        yield f"{key}.cliques", ",".join(cliques)
    summary = 0 if _unstated(fabric, "health_summary") else _number(_FABRIC_SUMMARIES, fabric.health_summary)
    yield f"{key}.health_summary", _text(summary, fabric, "health_summary")


def _platform(platform: Platform | None, key: str) -> Iterator[tuple[str, str]]:
    if platform is None:
        return
    yield f"{key}.module_id", _text(platform.module_id, platform, "module_id")
    values = {
        "chassis_serial": platform.chassis_serial,
        "slot": platform.slot,
        "tray": platform.tray,
        "host_id": platform.host_id,
        "peer_type": _number(_PEER_TYPES, platform.peer_type),
    }
    if any(value is not None for value in values.values()):
        yield f"{key}.platform", "1"
        # A place is one of a chassis; its number belongs to a real part and is in no modelled machine.
        values["chassis_serial"] = platform.chassis_serial or "FAKE"
    for name, value in values.items():
        if value is not None:
            yield f"{key}.platform.{name}", str(value)


def _nvlink(link: NvLink, key: str) -> Iterator[tuple[str, str]]:
    port = f"{key}.nvlink.{link.link}"
    yield f"{port}.active", _text(link.active, link, "active")
    yield f"{port}.version", _text(link.version, link, "version")
    yield f"{port}.remote_type", _text(_number(_REMOTE_TYPES, link.remote_type), link, "remote_type")
    masked = link.remote_bus_id is None and "masked" in link.unread["remote_bus_id"].detail
    yield f"{port}.remote_bus_id", "masked" if masked else _text(link.remote_bus_id, link, "remote_bus_id")
    fields = {146: "remote_link", 161: "replay_errors", 162: "recovery_errors", 163: "crc_errors", 164: "speed_mb_s"}
    for number, field in fields.items():
        yield f"{key}.field.{number}.{link.link}", _text(getattr(link, field), link, field)
    yield f"{key}.field.165.{link.link}", _text(_number(_LINK_STATES, link.link_state), link, "link_state")
    if link.counters is None:
        yield f"{key}.field.{_NVLINK_COUNTERS['effective_errors']}.{link.link}", _text(None, link, "counters")
        return
    counters = link.counters
    for field, number in _NVLINK_COUNTERS.items():
        value = getattr(counters, field)
        packed = _packed(value) if field.endswith("_ber") and value is not None else value
        yield f"{key}.field.{number}.{link.link}", _text(packed, counters, field)
    for corrected, codewords in enumerate(counters.fec_history or ()):
        yield f"{key}.field.{235 + corrected}.{link.link}", str(codewords)


def _packed(rate: float) -> int:
    """Return a bit error rate as NVML packs it; one that has no exact spelling there is no rate of a test."""
    if rate == 0:
        return 15 << 8 | 255
    exponent = next(number for number in range(255) if round(rate * 10**number, 6) >= 1)
    mantissa: int = round(rate * 10**exponent)
    return mantissa << 8 | exponent


def _c2c_link(link: C2cLink, key: str) -> Iterator[tuple[str, str]]:
    fields = {
        171: "active",
        172: "max_rate_mb_s",
        231: "errors",
        232: "replays",
        233: "replays_back_to_back",
        234: "power_state",
    }
    for number, field in fields.items():
        yield f"{key}.field.{number}.{link.link}", _text(getattr(link, field), link, field)


def _pair(pair: GpuPair, key: str) -> Iterator[tuple[str, str]]:
    yield f"{key}.common_ancestor", _text(_number(_ANCESTORS, pair.common_ancestor), pair, "common_ancestor")
    for name, word in pair.p2p_status.items():
        yield f"{key}.p2p.{name}", _text(_number(_P2P_STATUS, word), pair, f"p2p_status.{name}")
    yield f"{key}.can_access_peer", str(int(bool(pair.can_access_peer)))
    yield from _atomics(pair.atomics, key)
    enum, prefix = cuda.CUdevice_P2PAttribute, "CU_DEVICE_P2P_ATTRIBUTE_"
    yield from _attributes(pair, "cuda_attributes", pair.cuda_attributes, enum, prefix, key)


def _atomics(atomics: Mapping[str, tuple[str, ...]] | None, key: str) -> Iterator[tuple[str, str]]:
    """Yield what a link does of each operation, as the driver's bits."""
    bits = {word: 1 << place for place, word in enumerate(ATOMIC_CAPABILITIES)}
    for operation, words in (atomics or {}).items():
        name = operation.upper().replace("-", "_")
        number = int(getattr(cuda.CUatomicOperation, f"CU_ATOMIC_OPERATION_{name}"))
        yield f"{key}.atomic.{number}", str(sum(bits[word] for word in words))


def _attributes(
    record: Record, field: str, values: Mapping[str, int | None], enum: Any, prefix: str, key: str
) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        number = getattr(enum, f"{prefix}{name}", None)
        unread = record.unread.get(f"{field}.{name}")
        if number is None:
            continue
        if value is not None:
            yield f"{key}.attribute.{int(number)}", str(value)
        elif unread is not None and unread.reason in _CUDA_CODES:
            yield f"{key}.attribute.{int(number)}", f"!{_CUDA_CODES[unread.reason]}"


def _marked(name: str) -> str:
    """Return a name that says it is fake; what was recorded on a fake node says so already."""
    return NAME_PREFIX + name.removeprefix(NAME_PREFIX)


def _text(value: Any, record: Record, field: str) -> str:
    """Return a value, or for null the error code that is read as its reason."""
    if value is not None:
        return str(int(value)) if isinstance(value, bool) else str(value)
    unread = record.unread.get(field)
    return f"!{_NVML_CODES.get(unread.reason, 3) if unread else 3}"


def _unstated(record: Record, field: str) -> bool:
    unread = record.unread.get(field)
    return unread is not None and unread.reason is Reason.NOT_STATED


def _number(numbers: Mapping[Any, int], word: Any) -> int | None:
    """Return the number of a word; a word that is a number stands for itself."""
    if word is None:
        return None
    return numbers[word] if word in numbers else int(word)


def _event_reasons(words: Iterable[str] | None) -> int | None:
    if words is None:
        return None
    return sum(1 << (_EVENT_REASONS.index(word) if word in _EVENT_REASONS else 16) for word in words)
