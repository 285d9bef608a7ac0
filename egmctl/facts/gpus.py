"""GPUs and NVSwitches, merged by bus id from PCI, the driver's files, NVML and CUDA."""

from __future__ import annotations

import re
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace
from functools import partial
from itertools import permutations
from typing import Any, ClassVar, TypeVar

from egmctl.dataclass import dataclass
from egmctl.driver.reading import FAILURE_WORDS, Reasons, Unreadable, bus_order, read_or
from egmctl.errors import ChildFailed, ChildNotStarted, DriverLibraryMissing, DriverTooOld
from egmctl.facts.egm import EGM_MODULE, GPU_MODULES
from egmctl.facts.root import Root
from egmctl.model.codec import DecodeError, JsonValue, from_json
from egmctl.model.gpu import Gpu, GpuCuda, GpuNvml, GpuPair, GpuProc, NvLink
from egmctl.model.host import DeviceNode, Driver, LibraryFailure, PcieLink, PciFunction
from egmctl.model.machine import Machine
from egmctl.model.record import BusId, Plain, Reason, Record, Unread
from egmctl.units import several

DEVICES = "/sys/bus/pci/devices"
NVIDIA = 0x10DE

_GPU_CLASSES = (0x030000, 0x030200)
"""The PCI classes of VGA and 3D controllers."""
_NVSWITCH_CLASS = 0x068000
"""The PCI class of other bridge devices."""

_MELLANOX, _DATA_DIRECT = 0x15B3, 0x2100
"""The vendor and device id of a ConnectX-8's DMA controller (rdma-core, kernel-boot/rdma_topo)."""

BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
"""The pattern of a bus id. Behind Intel's VMD the domain has more than four digits."""


def nvidia_functions(root: Root) -> tuple[PciFunction, ...]:
    """Return NVIDIA's GPUs and NVSwitches in the order of their bus ids.

    For functions of other vendors only the vendor is read, because a big node has over a thousand functions.

    Raises
    ------
    Unreadable
        The list of PCI devices is missing.
    """
    return _functions(root, NVIDIA, "class", (*_GPU_CLASSES, _NVSWITCH_CLASS))


def data_direct(root: Root) -> tuple[PciFunction, ...]:
    """Return the Data Direct functions of NICs, in the order of their bus ids.

    Raises
    ------
    Unreadable
        The list of PCI devices is missing.
    """
    return _functions(root, _MELLANOX, "device", (_DATA_DIRECT,))


def _functions(root: Root, vendor: int, file: str, numbers: Collection[int]) -> tuple[PciFunction, ...]:
    """Return a vendor's PCI functions whose sysfs file ``file`` contains one of these numbers."""

    def is_one(folder: str) -> bool:
        return root.number(f"{folder}/vendor", 16) == vendor and root.number(f"{folder}/{file}", 16) in numbers

    folders = [f"{DEVICES}/{name}" for name in root.names(DEVICES) if BUS_ID.fullmatch(name)]
    return tuple(function(root, folder) for folder in folders if read_or(False, partial(is_one, folder)))


def is_gpu(function: PciFunction) -> bool:
    """Return whether a function from :func:`nvidia_functions` is a GPU rather than an NVSwitch."""
    return function.class_code in _GPU_CLASSES


def function(root: Root, place: str) -> PciFunction:
    """Read a PCI function.

    Parameters
    ----------
    place
        A sysfs link to it, e.g. ``/sys/bus/pci/devices/0000:1b:00.0`` or ``/sys/class/infiniband/mlx5_0/device``.

    Raises
    ------
    Unreadable
        The link is broken or its target is not a PCI function.
    """
    components = root.resolve(place).split("/")
    bus_id = components[-1]
    if not BUS_ID.fullmatch(bus_id):
        raise Unreadable(Reason.NOT_PRESENT, f"{place}: not a PCI function")
    folder = f"{DEVICES}/{bus_id}"
    return Reasons().record(
        PciFunction,
        bus_id=bus_id,
        vendor_id=lambda: root.number(f"{folder}/vendor", 16),
        device_id=lambda: root.number(f"{folder}/device", 16),
        subsystem_vendor_id=lambda: root.number(f"{folder}/subsystem_vendor", 16),
        subsystem_device_id=lambda: root.number(f"{folder}/subsystem_device", 16),
        class_code=lambda: root.number(f"{folder}/class", 16),
        path=lambda: _path(components),
        numa_node=lambda: root.number(f"{folder}/numa_node"),
        local_cpus=lambda: root.kernel_list(f"{folder}/local_cpulist"),
        link=link(root, folder),
        driver=lambda: _driver(root, folder),
        responds=lambda: _responds(root, folder),
    )


def _path(place: list[str]) -> tuple[str, ...]:
    """Return the components of a sysfs path from the root complex (``pci0000:16``) to the last but one."""
    for i, component in enumerate(place):
        if re.fullmatch(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", component):
            return tuple(place[i:-1])
    raise Unreadable(Reason.NOT_PRESENT, f"{DEVICES}/{place[-1]}: not below a root complex")


def link(root: Root, folder: str) -> PcieLink:
    """Read the state of the PCIe link from a function's folder. For a bridge it is the link below the bridge."""
    return Reasons().record(
        PcieLink,
        speed_gt_s=lambda: _speed(root, f"{folder}/current_link_speed"),
        width=lambda: _width(root, f"{folder}/current_link_width"),
        max_speed_gt_s=lambda: _speed(root, f"{folder}/max_link_speed"),
        max_width=lambda: _width(root, f"{folder}/max_link_width"),
    )


def _speed(root: Root, path: str) -> float:
    text = root.read(path)
    # "32.0 GT/s PCIe"; "8 GT/s" before Linux 5.7; "Unknown" if the link is down or the device is gone.
    if match := re.match(r"([0-9]{1,4}(?:\.[0-9]{1,3})?) GT/s", text, re.ASCII):
        return float(match[1])
    raise Unreadable(Reason.NOT_SUPPORTED if text.startswith("Unknown") else Reason.FAILED, f"{path}: no speed")


def _width(root: Root, path: str) -> int:
    width = root.number(path)
    # If the link is down, PCI_EXP_LNKSTA_NLW is 0; PCIE_LNK_WIDTH_UNKNOWN is 255 (include/linux/pci.h).
    if width in (0, 255):
        raise Unreadable(Reason.NOT_SUPPORTED, f"{path}: {width}, no width")
    return width


def _driver(root: Root, folder: str) -> str:
    try:
        return root.resolve(f"{folder}/driver").rpartition("/")[2]
    except Unreadable as error:
        if error.unread.reason is Reason.NOT_PRESENT:
            return ""
        raise


def _responds(root: Root, folder: str) -> bool:
    # Reads from a missing device return all ones. The other sysfs files are read from the kernel's memory.
    vendor_and_device = root.read_bytes(f"{folder}/config", 4)
    if len(vendor_and_device) < 4:
        raise Unreadable(Reason.FAILED, f"{folder}/config: shorter than 4 bytes")
    return vendor_and_device != b"\xff\xff\xff\xff"


PROC = "/proc/driver/nvidia"
_UVM = "/sys/module/nvidia_uvm/parameters"

MODULES = (
    *("nvidia", "nvidia_uvm", "nvidia_peermem"),
    *(*GPU_MODULES, EGM_MODULE),
    *("nouveau", "gdrdrv"),
)
"""The kernel modules that determine what the GPUs can do, in the order of the report."""

PRIVATE_PARAMETERS = ("TemporaryFilePath", "RmMsg")
"""The module parameters that are not recorded, because they have no use here and may contain anything."""


def driver(root: Root) -> Driver:
    """Read the driver's version, modules, parameters and device majors from files."""
    return Reasons().record(
        Driver,
        module_version=lambda: _version(root)[2],
        module_flavour=lambda: "open" if _version(root)[1] else "proprietary",
        modules=lambda: loaded(root, MODULES),
        module_parameters=lambda: _parameters(root),
        uvm_parameters=lambda: {name: root.read(f"{_UVM}/{name}") for name in root.names(_UVM)},
        majors=lambda: _majors(root),
        modprobe_setuid=lambda: _modprobe_setuid(root),
    )


def _modprobe_setuid(root: Root) -> bool:
    try:
        mode = root.status("/usr/bin/nvidia-modprobe").st_mode
    except Unreadable as error:
        if error.unread.reason is Reason.NOT_PRESENT:
            return False
        raise
    return bool(mode & stat.S_ISUID)


def gpus(root: Root) -> dict[str, GpuProc]:
    """Read the driver's folder of each GPU, by bus id.

    Raises
    ------
    Unreadable
        The driver is not loaded (or, in a container, its folder is not mounted).
    """
    return {name: _gpu(root, name) for name in root.names(f"{PROC}/gpus") if BUS_ID.fullmatch(name)}


def _gpu(root: Root, bus_id: str) -> GpuProc:
    information, numa_status = f"{PROC}/gpus/{bus_id}/information", f"{PROC}/gpus/{bus_id}/numa_status"
    return Reasons().record(
        GpuProc,
        model=lambda: root.line(information, "Model"),
        uuid=lambda: _uuid(root, information),
        minor=lambda: root.numbers(information, "Device Minor")[0],
        excluded=lambda: root.line(information, "GPU Excluded") == "Yes",
        numa_status=lambda: root.line(numa_status, "Status"),
        numa_node=lambda: root.numbers(numa_status, "Node")[0],
    )


def _uuid(root: Root, path: str) -> str:
    uuid = root.line(path, "GPU UUID")
    # The driver prints GPU-????????-... until the GPU is opened for the first time after the driver was loaded.
    if "?" in uuid:
        raise Unreadable(Reason.NOT_PRESENT, f"{path}: the UUID is not known until the GPU is opened")
    return uuid


def _version(root: Root) -> re.Match[str]:
    # NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (...)
    # NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023
    pattern = r"^NVRM version:.*?(Open )?Kernel Module.*?\s([0-9]{1,4}(?:\.[0-9]{1,4}){1,3})(?:\s|\Z)"
    return root.search(f"{PROC}/version", pattern, "no version")


def loaded(root: Root, modules: Iterable[str]) -> tuple[str, ...]:
    """Return the kernel modules in ``modules`` that are loaded.

    Raises
    ------
    Unreadable
        The list of modules is missing.
    """
    if not root.exists("/sys/module"):
        # In a copy of a node's files, which often lacks most of sysfs. The file does not list built-in modules.
        listed = {line.partition(" ")[0] for line in root.lines("/proc/modules")}
        return tuple(name for name in modules if name in listed)
    return tuple(name for name in modules if root.exists(f"/sys/module/{name}"))


def _parameters(root: Root) -> dict[str, str]:
    lines = (line.partition(":") for line in root.lines(f"{PROC}/params"))
    return {
        name.strip(): value.strip().strip('"')
        for name, colon, value in lines
        if colon and name not in PRIVATE_PARAMETERS
    }


def _majors(root: Root) -> dict[str, int]:
    # The file has two lists, "Character devices:" and "Block devices:", of lines "195 nvidia".
    characters = root.read("/proc/devices").partition("Block devices:")[0]
    return {name: int(number) for number, name in re.findall(r"^ *([0-9]{1,6}) (nvidia\S*)$", characters, re.M | re.A)}


def join(
    *,
    pci: Mapping[BusId, PciFunction] | Unread,
    proc: Mapping[BusId, GpuProc] | Unread,
    nodes: Mapping[int, DeviceNode] | Unread,
    nvml: NvmlFacts,
    cuda: CudaFacts,
) -> tuple[Gpu, ...]:
    """Return every GPU that any source lists, ordered by index.

    A GPU's index is its position among the node's GPUs ordered by bus id, as in nvidia-smi on the whole node. Unlike
    NVML's index it does not change if another GPU is lost or denied. GPUs bound to another kernel driver, which
    nvidia-smi never counts, come last. If NVML's order is not that of bus ids, NVML's indices are used instead.

    Parameters
    ----------
    pci, proc
        The GPUs in sysfs and in ``/proc/driver/nvidia/gpus``, or the reason why there is no list.
    nodes
        The device nodes ``/dev/nvidia<minor>`` by minor, read before NVML and CUDA ran, or the reason why they could
        not be read.
    """
    names = _known_bus_ids(cuda, nvml)
    sources: dict[str, Mapping[str, Any] | Unread] = {
        "pci": pci,
        "proc": proc,
        "nvml": nvml.absent or nvml.gpus,
        "cuda": cuda.absent or {names[bus_id]: gpu for bus_id, gpu in cuda.gpus.items()},
    }
    missing = {
        "pci": Unread(reason=Reason.NOT_PRESENT, detail="/sys/bus/pci/devices: not there"),
        "proc": Unread(reason=Reason.NOT_PRESENT, detail="/proc/driver/nvidia/gpus: not there"),
        "nvml": _lost(nvml),
        "cuda": Unread(reason=Reason.NOT_PRESENT, detail=f"CUDA lists {several(len(cuda.gpus), 'GPU')}, not this one"),
    }
    known = {bus_id for source in sources.values() if not isinstance(source, Unread) for bus_id in source}
    gpus = []
    for bus_id, index in _numbers(known, {} if isinstance(pci, Unread) else pci, nvml).items():
        parts = {
            name: source if isinstance(source, Unread) else source.get(bus_id, missing[name])
            for name, source in sources.items()
        }
        gpus.append(Reasons().record(Gpu, bus_id=bus_id, index=index, node=_node(parts, nodes), **parts))
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def _numbers(known: Iterable[str], pci: Mapping[BusId, PciFunction], nvml: NvmlFacts) -> dict[str, int]:
    """Return each GPU's index by bus id; see :func:`join`."""
    in_order = sorted(known, key=bus_order)
    listed = sorted(nvml.gpus, key=lambda bus_id: nvml.gpus[bus_id].index)
    if listed == sorted(listed, key=bus_order):
        foreign = {
            bus_id
            for bus_id, function in pci.items()
            if function.driver not in (None, "", "nvidia") and bus_id not in nvml.gpus
        }
        return {bus_id: index for index, bus_id in enumerate(sorted(in_order, key=foreign.__contains__))}
    first_free = max(gpu.index for gpu in nvml.gpus.values()) + 1
    rest = (bus_id for bus_id in in_order if bus_id not in nvml.gpus)
    numbers = {bus_id: gpu.index for bus_id, gpu in nvml.gpus.items()}
    return numbers | {bus_id: first_free + place for place, bus_id in enumerate(rest)}


def join_pairs(gpus: tuple[Gpu, ...], nvml: NvmlFacts, cuda: CudaFacts) -> tuple[GpuPair, ...]:
    """Return every ordered pair of the GPUs that NVML or CUDA lists, ordered by the indices of source and target.

    Parameters
    ----------
    gpus
        The result of :func:`join` for the same facts.
    """
    usable = [gpu for gpu in gpus if gpu.nvml is not None or gpu.cuda is not None]
    names = _known_bus_ids(cuda, nvml)
    libraries = (
        (nvml, {(pair.source, pair.target): pair for pair in nvml.pairs}, _NVML_PAIR),
        (cuda, {(names[pair.source], names[pair.target]): pair for pair in cuda.pairs}, _CUDA_PAIR),
    )
    return tuple(_pair(source, target, libraries) for source, target in permutations(usable, 2))


_NVML_PAIR = ("common_ancestor", "p2p_status")
_CUDA_PAIR = ("can_access_peer", "cuda_attributes", "atomics")
"""The fields of a pair that each library fills."""


def _pair(source: Gpu, target: Gpu, libraries: Iterable[tuple[LibraryFacts, GpuPairs, tuple[str, ...]]]) -> GpuPair:
    reasons = Reasons()
    values: dict[str, Any] = {}
    for library, pairs, names in libraries:
        if (pair := pairs.get((source.bus_id, target.bus_id))) is not None:
            values |= {name: getattr(pair, name) for name in names}
            reasons.unread |= {name: reason for name, reason in pair.unread.items() if name.partition(".")[0] in names}
        else:
            detail = f"{library.LIBRARY} does not list both GPUs"
            reason = library.absent or Unread(reason=Reason.NOT_PRESENT, detail=detail)
            reasons.unread |= dict.fromkeys(names, reason)
    values |= reasons.fields(_NVLINKS, lambda: _nvlinks(source, target))
    return reasons.record(GpuPair, source=source.bus_id, target=target.bus_id, **values)


def reread(
    machine: Machine,
    pci: Mapping[BusId, PciFunction],
    nvml: NvmlFacts,
    nodes: Mapping[int, DeviceNode],
) -> Machine:
    """Return a machine whose GPUs and pairs are updated from sysfs, device nodes (by minor number) and NVML.

    Processes and used memory keep their earlier values. If NVML has lost a GPU, its CUDA values become ``not-asked``.
    """
    gpus = tuple(_reread(gpu, pci.get(gpu.bus_id), nvml, nodes) for gpu in machine.gpus or ())
    by_bus_id = {gpu.bus_id: gpu for gpu in gpus}
    return replace(
        machine,
        gpus=gpus,
        pairs=machine.pairs and tuple(_reread_pair(pair, by_bus_id) for pair in machine.pairs),
        driver=with_nvml(machine.driver or Driver(), nvml),
    )


_USED = ("processes", "memory_used_bytes")
_NOT_ASKED_AGAIN = Unread(reason=Reason.NOT_ASKED, detail="CUDA was not queried again")


def _reread(gpu: Gpu, pci: PciFunction | None, nvml: NvmlFacts, nodes: Mapping[int, DeviceNode]) -> Gpu:
    minor = None if gpu.node is None else gpu.node.minor
    gpu = replace(gpu, pci=pci or gpu.pci, node=gpu.node if minor is None else nodes.get(minor, gpu.node))
    if gpu.nvml is None:
        return gpu
    now = nvml.gpus.get(gpu.bus_id)
    if now is None:
        unread = {**gpu.unread, "nvml": nvml.absent or _lost(nvml), "cuda": _NOT_ASKED_AGAIN}
        return replace(gpu, nvml=None, cuda=None, unread=unread)
    return replace(gpu, nvml=_with_values(now, {name: getattr(gpu.nvml, name) for name in _USED}, gpu.nvml.unread))


def _reread_pair(pair: GpuPair, gpus: Mapping[BusId, Gpu]) -> GpuPair:
    if not {pair.source, pair.target} <= gpus.keys():
        return pair
    reasons = Reasons()
    links = reasons.fields(_NVLINKS, lambda: _nvlinks(gpus[pair.source], gpus[pair.target]))
    return _with_values(pair, links, reasons.unread)


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryFacts(Record):
    """The answer of the child that reads NVML or CUDA. If ``absent`` gives a reason, there are no GPUs."""

    LIBRARY: ClassVar[str]
    absent: Unread | None = None
    error: Plain | None = None
    """The name of the error of nvmlInit or cuInit."""
    failure: LibraryFailure | None = None
    pairs: tuple[GpuPair, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlFacts(LibraryFacts):
    """The answer of the child ``egmctl.facts.nvml:read``."""

    LIBRARY: ClassVar[str] = "NVML"
    driver_version: Plain | None = None
    nvml_version: Plain | None = None
    confidential_compute: Plain | None = None
    confidential_ready: bool | None = None
    nvlink_bandwidth_mode: Plain | None = None
    gpus: Mapping[BusId, GpuNvml] = field(default_factory=dict)
    lost: tuple[Unread, ...] = ()
    """The reasons why NVML cannot read the bus ids of GPUs that it counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaFacts(LibraryFacts):
    """The answer of the child ``egmctl.facts.cuda:read``."""

    LIBRARY: ClassVar[str] = "CUDA"
    driver_version: int | None = None
    libcuda_version: Plain | None = None
    libcuda_compat: bool | None = None
    gpus: Mapping[BusId, GpuCuda] = field(default_factory=dict)


F = TypeVar("F", NvmlFacts, CudaFacts)
R = TypeVar("R", Driver, GpuNvml, GpuPair)
GpuPairs = Mapping[tuple[str, str], GpuPair]


def library_facts(kind: type[F], outcome: JsonValue | ChildFailed) -> F:
    """Return the facts from the result of the child that reads NVML or CUDA, or from the error with which it ended.

    Parameters
    ----------
    kind
        The class, :class:`NvmlFacts` or :class:`CudaFacts`.
    """
    child = f"the child that reads {kind.LIBRARY}"
    try:
        if not isinstance(outcome, ChildFailed):
            return from_json(kind, outcome)
        reason, failure = _failed(child, outcome)
    except DecodeError as error:
        reason, failure = Reason.FAILED, LibraryFailure(how="error", detail=f"the answer of {child}: {error}")
    return kind(absent=Unread(reason=reason, detail=failure.detail), failure=failure)


def _failed(child: str, error: ChildFailed) -> tuple[Reason, LibraryFailure]:
    """Return the reason why a library gives no values, and the record of its failure."""
    if isinstance(error, ChildNotStarted):
        return Reason.FAILED, LibraryFailure(how="not-started", detail=str(error))
    if error.how != "raised":
        where = f" in {error.last_call}" if error.last_call else ""
        detail = f"{child} {error.how.replace('-', ' ')}{where}"
        failure = LibraryFailure(how=error.how, call=error.last_call, gpu=error.last_subject, detail=detail)
        return Reason.TIMED_OUT if error.how == "timed-out" else Reason.CRASHED, failure
    reasons = {DriverLibraryMissing.__name__: Reason.MISSING_LIBRARY, DriverTooOld.__name__: Reason.DRIVER_TOO_OLD}
    reason = reasons.get(error.kind or "", Reason.FAILED)
    call = error.details.get("call")
    detail = f"{call}: {error.details['name']}" if call else f"{child} raised {error.kind}"
    return reason, LibraryFailure(how=FAILURE_WORDS.get(reason, "error"), call=call, detail=detail)


def with_nvml(driver: Driver, nvml: NvmlFacts) -> Driver:
    """Return the driver record with NVML's values."""
    names = ("driver_version", "nvml_version", "confidential_compute", "confidential_ready", "nvlink_bandwidth_mode")
    values = {name: getattr(nvml, name) for name in names}
    values |= {"nvml_error": nvml.error, "nvml_failure": nvml.failure}
    return _with_values(driver, values, {name: nvml.unread.get(name, nvml.absent) for name in (*names, "nvml_error")})


def with_cuda(driver: Driver, cuda: CudaFacts) -> Driver:
    """Return the driver record with CUDA's values."""
    values = {"cuda_driver_version": cuda.driver_version, "cuda_error": cuda.error, "cuda_failure": cuda.failure}
    libcuda = ("libcuda_version", "libcuda_compat")
    values |= {name: getattr(cuda, name) for name in libcuda}
    reasons = {name: cuda.unread.get(name, cuda.absent) for name in libcuda}
    reasons |= {"cuda_driver_version": cuda.unread.get("driver_version", cuda.absent), "cuda_error": cuda.absent}
    return _with_values(driver, values, reasons)


def _with_values(record: R, values: Mapping[str, Any], reasons: Mapping[str, Unread | None]) -> R:
    """Return a record with new values and the reasons for those that are null."""
    kept = {name: reason for name, reason in record.unread.items() if name not in values}
    missing = {name: reason for name in values if values[name] is None and (reason := reasons.get(name)) is not None}
    return replace(record, **values, unread={**kept, **missing})


def _known_bus_ids(cuda: CudaFacts, nvml: NvmlFacts) -> dict[str, str]:
    """Return the full bus id of each of CUDA's GPUs, by CUDA's bus id.

    CUDA's bus ids have a domain of only four digits. A GPU with a longer domain is identified by its UUID.
    """
    by_uuid = {gpu.uuid: bus_id for bus_id, gpu in nvml.gpus.items() if gpu.uuid is not None}
    return {
        bus_id: bus_id if bus_id in nvml.gpus or gpu.uuid is None else by_uuid.get(gpu.uuid, bus_id)
        for bus_id, gpu in cuda.gpus.items()
    }


def _lost(nvml: NvmlFacts) -> Unread:
    if nvml.lost:
        return replace(nvml.lost[0], detail="; ".join(reason.detail for reason in nvml.lost))
    return Unread(reason=Reason.NOT_PRESENT, detail=f"NVML lists {several(len(nvml.gpus), 'GPU')}, not this one")


def _node(parts: Mapping[str, Any], nodes: Mapping[int, DeviceNode] | Unread) -> DeviceNode | Unread:
    if isinstance(nodes, Unread):
        return nodes
    minors = [source.minor for source in (parts["proc"], parts["nvml"]) if not isinstance(source, Unread)]
    minor = next((minor for minor in minors if minor is not None), None)
    if minor is None:
        return Unread(reason=Reason.NOT_PRESENT, detail="the minor of the device node is not known")
    return nodes.get(minor) or Unread(reason=Reason.NOT_PRESENT, detail=f"/dev/nvidia{minor}: not there")


_NVLINKS = "nvlink_count nvlink_through"


def _nvlinks(source: Gpu, target: Gpu) -> tuple[int, str | None]:
    """Return the number of active NVLinks between two GPUs and their kind: ``direct``, ``switch`` or ``None``.

    Raises
    ------
    Unreadable
        NVML does not report the links of one of the GPUs.
    """
    ours, theirs = _active_links(source), _active_links(target)
    direct = sum(link.remote_bus_id == target.bus_id for link in ours)
    if direct:
        return direct, "direct"
    for link in ours:
        if link.remote_type == "gpu" and link.remote_bus_id is None:
            raise Unreadable.because(link.unread["remote_bus_id"])
    switched = min(sum(link.remote_type == "switch" for link in links) for links in (ours, theirs))
    return switched, "switch" if switched else None


def _active_links(gpu: Gpu) -> list[NvLink]:
    if gpu.nvml is None or gpu.nvml.nvlinks is None:
        reasons = gpu.unread.get("nvml") or (gpu.nvml and gpu.nvml.unread.get("nvlinks"))
        raise Unreadable.because(reasons or Unread(reason=Reason.FAILED))
    for link in gpu.nvml.nvlinks:
        if link.active is None:
            raise Unreadable.because(link.unread["active"])
    return [link for link in gpu.nvml.nvlinks if link.active]
