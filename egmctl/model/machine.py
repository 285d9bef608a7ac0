"""A node as it was seen: the facts that every judgement is a pure function of.

A :class:`Machine` is made of independently versioned sections; a command collects those it needs. It is written
to and read from JSON by :mod:`egmctl.model.codec`, so that a live node and a recorded one are the same thing to
everything that reads it.

Two rules hold for every record here:

* a value that could not be read is ``None`` and its name is in the record's ``unread`` with the reason;
* the type of a string says whether it may leave the site: :data:`Plain` may, everything else is pseudonymised by
  ``egmctl.facts.redact`` unless the user asks for all. A new ``str`` field is therefore private until someone
  decides otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from egmctl.units import parse_kernel_list

MACHINE_SCHEMA = "egmctl.machine/1"


class Share(StrEnum):
    """How a string may be shared, as a mark on its type."""

    PLAIN = "plain"
    UUID = "uuid"
    """High-entropy identifier: replaced by one derived from its hash, so that two recordings still join."""
    KERNEL_RELEASE = "kernel-release"
    """Kept up to the upstream version and well-known distribution words."""
    CGROUP_PATH = "cgroup-path"
    """Kept where a component is a well-known word or number of a manager (``job_42``), pseudonymised elsewhere."""
    ENVIRONMENT = "environment"
    """Kept where it is numbers, ranges and well-known words, pseudonymised elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """How a string is spelled, as a mark on its type: :mod:`egmctl.model.codec` refuses others in a document."""

    example: str
    pattern: str
    """Regular expression of the whole string; it is in the JSON Schema too."""
    read: Callable[[str], object] = str
    """Raises ValueError for what the pattern lets through."""


Plain = Annotated[str, Share.PLAIN]
Uuid = Annotated[str, Share.UUID]
BusId = Annotated[
    str,
    Share.PLAIN,
    Spelling(example="0000:1b:00.0", pattern=r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"),
]
"""PCI bus id, lower case, 4-digit domain: ``0000:1b:00.0``. The identity of a device."""
KernelList = Annotated[
    str,
    Share.PLAIN,
    Spelling(
        example="0-3,8", pattern=r"([0-9]{1,7}(-[0-9]{1,7})?(,[0-9]{1,7}(-[0-9]{1,7})?)*)?", read=parse_kernel_list
    ),
]
"""A set of numbers in the kernel's spelling, ``0-3,8`` (:func:`egmctl.units.parse_kernel_list`)."""


class Reason(StrEnum):
    """Why a value is null."""

    NOT_SUPPORTED = "not-supported"
    """The driver, the device or the kernel says it has no such thing."""
    NO_PERMISSION = "no-permission"
    DRIVER_TOO_OLD = "driver-too-old"
    """The library has no such function, or does not know the attribute."""
    MISSING_LIBRARY = "missing-library"
    TIMED_OUT = "timed-out"
    CRASHED = "crashed"
    NOT_PRESENT = "not-present"
    """The file or the device is not there."""
    NOT_ASKED = "not-asked"
    """The section or the source was not collected."""
    FAILED = "failed"
    """The call failed in a way that none of the other words describes."""
    NOT_STATED = "not-stated"
    """A modelled machine: its public sources do not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """Why one value could not be read, and what was tried."""

    reason: Reason
    detail: Plain = ""
    """The call or path and what it answered, e.g. ``nvmlDeviceGetC2cModeInfoV: 3 (Not Supported)``. Written by us:
    holds no names from the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Base of every record that is read from a machine."""

    unread: Mapping[Plain, Unread] = field(default_factory=dict)
    """Name of each field (or ``field.key`` in a mapping) that is ``None`` because it could not be read."""


# --- host ------------------------------------------------------------------------------------------------------------


class NumaKind(StrEnum):
    """What a NUMA node has."""

    CPU = "cpu"
    """CPUs and memory."""
    CPU_ONLY = "cpu-only"
    """CPUs, no memory."""
    MEMORY_ONLY = "memory-only"
    """Memory, no CPUs: on Grace, a GPU's own memory onlined as a node."""
    EMPTY = "empty"
    """Neither: on Grace, a placeholder for MIG instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode(Record):
    """One node of ``/sys/devices/system/node``."""

    id: int
    kind: NumaKind
    cpus: KernelList = ""
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    distances: tuple[int, ...] | None = None
    """ACPI SLIT distances to the online nodes, in ascending order of their ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HugePages(Record):
    """One pool of ``/sys/kernel/mm/hugepages``."""

    page_size_bytes: int
    total: int | None = None
    free: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host(Record):
    """The machine around the GPUs, and what of it this process may use."""

    hostname: str | None = None
    kernel: Annotated[str, Share.KERNEL_RELEASE] | None = None
    architecture: Plain | None = None
    cpu_model: Plain | None = None
    cpu_count: int | None = None
    page_size_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    numa_nodes: tuple[NumaNode, ...] | None = None
    allowed_cpus: KernelList | None = None
    """``Cpus_allowed_list`` of this process."""
    allowed_numa_nodes: KernelList | None = None
    """``Mems_allowed_list`` of this process: HOST_NUMA memory can come from these only."""
    huge_pages: tuple[HugePages, ...] | None = None
    transparent_huge_pages: Plain | None = None
    """The word in brackets of ``/sys/kernel/mm/transparent_hugepage/enabled``."""
    numa_balancing: int | None = None
    auto_online_blocks: Plain | None = None
    """``/sys/devices/system/memory/auto_online_blocks``: must be ``online_movable`` for GPU memory to become a node."""
    kernel_command_line: Mapping[Plain, Plain] | None = None
    """Only the parameters that matter here (``egmctl.facts.host.COMMAND_LINE_KEYS``); a flag has the value ``""``."""


# --- PCI and device nodes --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieLink(Record):
    """A PCIe link's state."""

    speed_gt_s: float | None = None
    width: int | None = None
    max_speed_gt_s: float | None = None
    max_width: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PciFunction(Record):
    """One PCI function as sysfs shows it. Not namespaced: containers see all of the machine's."""

    bus_id: BusId
    vendor_id: int | None = None
    device_id: int | None = None
    subsystem_vendor_id: int | None = None
    subsystem_device_id: int | None = None
    class_code: int | None = None
    """24 bits: 0x030200 is a 3D controller, 0x068000 a bridge of another kind (NVSwitch)."""
    path: tuple[Plain, ...] | None = None
    """From the root complex down to, and without, this function: ``("pci0000:16", "0000:16:01.0", ...)``."""
    numa_node: int | None = None
    """sysfs ``numa_node``; -1 where the firmware says nothing."""
    local_cpus: KernelList | None = None
    link: PcieLink | None = None
    driver: Plain | None = None
    """The bound kernel driver; ``""`` where none is bound."""
    responds: bool | None = None
    """False where configuration space reads all ones: the device fell off the bus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode(Record):
    """A device node and whether this process may use it, by access(2): opening would wake the device."""

    path: Plain
    exists: bool
    major: int | None = None
    minor: int | None = None
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    access: Plain | None = None
    """``"ok"``, or the errno's name from access(R_OK|W_OK): EPERM is the device cgroup, EACCES mode or LSM, ENOENT
    not there."""


# --- GPUs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProc(Record):
    """``/proc/driver/nvidia/gpus/<bus id>``: bound to the driver, nothing opened."""

    model: Plain | None = None
    uuid: Uuid | None = None
    minor: int | None = None
    excluded: bool | None = None
    numa_status: Plain | None = None
    """``Status`` of the ``numa_status`` file: online, offline, online_failed, ..."""
    numa_node: int | None = None
    """``Node`` of the ``numa_status`` file: the node of the GPU's own memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class C2cLink(Record):
    """One NVLink-C2C link between a GPU and its CPU (NVML fields 170-172, 231-234)."""

    link: int
    active: bool | None = None
    max_rate_mb_s: int | None = None
    """MB/s (1e6), as NVML reports it."""
    errors: int | None = None
    replays: int | None = None
    replays_back_to_back: int | None = None
    power_state: int | None = None
    """0 is full power."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvLink(Record):
    """One NVLink port of a GPU."""

    link: int
    active: bool | None = None
    version: int | None = None
    """NVML's enum, not a generation: 6 is NVLink 4, 7 is NVLink 5."""
    remote_type: Plain | None = None
    """``gpu``, ``switch``, ``npu`` or ``unknown``."""
    remote_bus_id: BusId | None = None
    """``None`` with a reason where the driver masks it (virtual machines)."""
    remote_link: int | None = None
    speed_mb_s: int | None = None
    """MB/s (1e6) of one direction on the wire, before encoding overhead: 26562 on NVLink 4."""
    crc_errors: int | None = None
    replay_errors: int | None = None
    recovery_errors: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric(Record):
    """``nvmlDeviceGetGpuFabricInfoV``."""

    state: Plain | None = None
    """``not-supported``, ``not-started``, ``in-progress`` or ``completed``."""
    status: int | None = None
    """nvmlReturn_t of the probe, valid when completed."""
    cluster_uuid: Uuid | None = None
    clique_id: int | None = None
    health_mask: int | None = None
    health: Mapping[Plain, Plain] | None = None
    """The mask's fields by name: ``degraded_bandwidth``, ``route_recovery``, ``route_unhealthy``,
    ``access_timeout_recovery``, ``incorrect_configuration`` to ``true``, ``false``, ``not-supported`` or the cause's
    word."""
    health_summary: Plain | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform(Record):
    """Where the GPU sits (``nvmlDeviceGetPlatformInfo``): people swap parts, and a fault may belong to the place."""

    chassis_serial: str | None = None
    slot: int | None = None
    tray: int | None = None
    host_id: int | None = None
    peer_type: Plain | None = None
    """``direct`` or ``switch``."""
    module_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess(Record):
    """A process that holds memory on the GPU."""

    pid: int
    name: str | None = None
    used_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNvml(Record):
    """What NVML says of a GPU. NVML ignores CUDA_VISIBLE_DEVICES and honours the device cgroup."""

    index: int
    """NVML's index: for people only, it shifts under a cgroup."""
    uuid: Uuid | None = None
    name: Plain | None = None
    serial: str | None = None
    board_part_number: Plain | None = None
    vbios: Plain | None = None
    minor: int | None = None
    compute_capability: tuple[int, int] | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    link: PcieLink | None = None
    """Max values are the GPU's own, current ones are throttled while idle on some parts."""
    cpu_affinity: KernelList | None = None
    numa_affinity: KernelList | None = None
    numa_node: int | None = None
    """``nvmlDeviceGetNumaNodeId``: the node of the GPU's own memory ("GPU NUMA ID" of nvidia-smi)."""
    capabilities: int | None = None
    """capMask of ``nvmlDeviceGetCapabilities``; bit 0 is EGM."""
    c2c_enabled: bool | None = None
    c2c_links: tuple[C2cLink, ...] | None = None
    nvlinks: tuple[NvLink, ...] | None = None
    nvlink_count: int | None = None
    """NVML_FI_DEV_NVLINK_LINK_COUNT: how many this part has, up or down."""
    addressing_mode: Plain | None = None
    """``none``, ``hmm`` or ``ats``."""
    fabric: Fabric | None = None
    platform: Platform | None = None
    mig_mode: bool | None = None
    mig_mode_pending: bool | None = None
    virtualization: Plain | None = None
    """``none``, ``passthrough``, ``vgpu``, ``host-vgpu``, ``host-vsga``."""
    persistence_mode: bool | None = None
    compute_mode: Plain | None = None
    """``default``, ``exclusive-thread``, ``prohibited`` or ``exclusive-process``."""
    ecc_mode: bool | None = None
    ecc_uncorrected_volatile: int | None = None
    remapped_rows_correctable: int | None = None
    remapped_rows_uncorrectable: int | None = None
    remapped_rows_pending: bool | None = None
    remapped_rows_failure: bool | None = None
    performance_state: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    throttle_reasons: tuple[Plain, ...] | None = None
    """Words of ``nvmlDeviceGetCurrentClocksEventReasons``: ``idle``, ``sw-power-cap``, ``hw-thermal-slowdown``, ..."""
    temperature_c: int | None = None
    processes: tuple[GpuProcess, ...] | None = None

    @property
    def egm_capable(self) -> bool | None:
        """NVML_DEV_CAP_EGM (bit 0 of the capability mask)."""
        return None if self.capabilities is None else bool(self.capabilities & 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCuda(Record):
    """What CUDA says of a GPU, in a child without CUDA_VISIBLE_DEVICES and ordered by bus id."""

    ordinal: int
    uuid: Uuid | None = None
    name: Plain | None = None
    memory_total_bytes: int | None = None
    attributes: Mapping[Plain, int | None] = field(default_factory=dict)
    """CUdevice_attribute by name, without ``CU_DEVICE_ATTRIBUTE_``; reasons in ``unread`` as ``attributes.NAME``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu(Record):
    """One GPU, joined over its bus id and UUID from every source that knows it.

    A source that does not know the GPU is ``None`` with a reason: the funnel PCI > driver > device node > NVML >
    CUDA shows where a GPU was lost.
    """

    bus_id: BusId
    index: int
    """NVML's index; where NVML does not know the GPU, the numbers after NVML's last, in the order of bus ids."""
    pci: PciFunction | None = None
    proc: GpuProc | None = None
    node: DeviceNode | None = None
    """``/dev/nvidia<minor>``, looked at before NVML or CUDA ran."""
    nvml: GpuNvml | None = None
    cuda: GpuCuda | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that know this GPU, in the order of the funnel."""
        known = (("pci", self.pci), ("proc", self.proc), ("node", self.node), ("nvml", self.nvml), ("cuda", self.cuda))
        return tuple(name for name, source in known if source is not None)

    @property
    def uuid(self) -> str | None:
        """``GPU-...`` from the first source that has it."""
        return next((s.uuid for s in (self.nvml, self.cuda, self.proc) if s is not None and s.uuid), None)

    @property
    def name(self) -> str | None:
        """Product name from the first source that has it."""
        return next(
            (
                name
                for name in (
                    self.nvml and self.nvml.name,
                    self.cuda and self.cuda.name,
                    self.proc and self.proc.model,
                )
                if name
            ),
            None,
        )

    @property
    def host_numa_id(self) -> int | None:
        """The CPU NUMA node closest to this GPU: CUDA's HOST_NUMA_ID, else sysfs ``numa_node``, else ``None``."""
        if self.cuda is not None and (node := self.cuda.attributes.get("HOST_NUMA_ID")) is not None and node >= 0:
            return node
        if self.pci is not None and self.pci.numa_node is not None and self.pci.numa_node >= 0:
            return self.pci.numa_node
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair(Record):
    """What the driver says of one ordered pair of GPUs."""

    source: BusId
    """The GPU that accesses."""
    target: BusId
    """The GPU whose memory is accessed."""
    common_ancestor: Plain | None = None
    """NVML's topology level: ``internal``, ``single``, ``multiple``, ``hostbridge``, ``node`` or ``system``."""
    p2p_status: Mapping[Plain, Plain | None] = field(default_factory=dict)
    """``read``, ``write``, ``nvlink``, ``atomics``, ``pci`` to nvidia-smi's words: OK, CNS, GNS, TNS, DR, NS or U."""
    nvlink_count: int | None = None
    """Active links that join the two: to each other, or to a switch that both reach."""
    nvlink_through: Plain | None = None
    """``direct`` or ``switch``; ``None`` without links."""
    can_access_peer: bool | None = None
    cuda_attributes: Mapping[Plain, int | None] = field(default_factory=dict)
    """CUdevice_P2PAttribute by name, without ``CU_DEVICE_P2P_ATTRIBUTE_``: PERFORMANCE_RANK (lower is better),
    ACCESS_SUPPORTED, ..."""


# --- switches and NICs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NvSwitch(Record):
    """An NVSwitch that the node itself sees as a PCI function (HGX; on NVL72 the switches are elsewhere)."""

    pci: PciFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class NicPort(Record):
    """One port of ``/sys/class/infiniband/<name>/ports``."""

    number: int
    state: Plain | None = None
    """``ACTIVE``, ``DOWN``, ``INIT``, ``ARMED``."""
    physical_state: Plain | None = None
    """``LinkUp``, ``Disabled``, ``Polling``, ..."""
    link_layer: Plain | None = None
    """``InfiniBand`` or ``Ethernet``."""
    rate_gbit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic(Record):
    """An InfiniBand or RoCE device."""

    name: Plain
    """``mlx5_0``."""
    pci: PciFunction | None = None
    ports: tuple[NicPort, ...] = ()
    firmware: Plain | None = None
    node_guid: str | None = None
    board_id: Plain | None = None
    interfaces: tuple[str, ...] = ()
    """Network interfaces of the same PCI function."""


# --- driver and process ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver(Record):
    """The driver's parts, their versions and the nodes they are reached through."""

    module_version: Plain | None = None
    module_flavour: Plain | None = None
    """``open`` or ``proprietary``."""
    driver_version: Plain | None = None
    """NVML's ``nvmlSystemGetDriverVersion``."""
    nvml_version: Plain | None = None
    cuda_driver_version: int | None = None
    """``cuDriverGetVersion``: 13000 is 13.0."""
    cuda_error: Plain | None = None
    """The name of cuInit's error; ``None`` if it succeeded or was not asked (then in ``unread``)."""
    nvml_error: Plain | None = None
    modules: tuple[Plain, ...] | None = None
    """Of nvidia, nvidia_uvm, nvidia_peermem, nvgrace_gpu, nvgrace_egm, nouveau, gdrdrv: those loaded."""
    module_parameters: Mapping[Plain, Plain] | None = None
    """``/proc/driver/nvidia/params``."""
    uvm_parameters: Mapping[Plain, Plain] | None = None
    majors: Mapping[Plain, int] | None = None
    """Character majors of ``/proc/devices`` whose name begins with ``nvidia``."""
    nodes: tuple[DeviceNode, ...] | None = None
    """nvidiactl, nvidia-uvm, nvidia-uvm-tools, nvidia-caps."""
    imex_channels: tuple[DeviceNode, ...] | None = None
    """Nodes in ``/dev/nvidia-caps-imex-channels``; empty where the folder is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup(Record):
    """One line of ``/proc/self/cgroup``."""

    version: int
    controllers: tuple[Plain, ...] = ()
    path: Annotated[str, Share.CGROUP_PATH]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process(Record):
    """What confines this process: cgroups, container, environment."""

    effective_uid: int | None = None
    cgroups: tuple[Cgroup, ...] | None = None
    container_signs: tuple[Plain, ...] | None = None
    """Words such as ``/.dockerenv``, ``/run/.containerenv``, ``KUBERNETES_SERVICE_HOST``, ``overlay root``; empty:
    none seen."""
    environment: Mapping[Plain, Annotated[str, Share.ENVIRONMENT]] | None = None
    """Only the variables on a known list that are set (``egmctl.facts.process.ENVIRONMENT_KEYS``)."""


# --- the whole -------------------------------------------------------------------------------------------------------


class OriginKind(StrEnum):
    """Where a machine came from. Every output made from one that is not live says so."""

    LIVE = "live"
    RECORDED = "recorded"
    """Written by ``egmctl snapshot`` on real hardware."""
    MODELLED = "modelled"
    """Put together from public documents: no such node was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a machine's facts came from."""

    kind: OriginKind
    name: Plain = ""
    """File stem or shipped name; empty when live."""
    tool: Plain = ""
    """``egmctl 0.1.0``: what wrote the document."""
    recorded_at: Plain = ""
    """UTC, ISO 8601, to the second."""
    redacted: bool = False
    description: Plain = ""
    sources: tuple[Plain, ...] = ()
    """Modelled machines: the public documents each value came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionStatus:
    """How reading one section went."""

    version: int
    duration_ms: float | None = None
    unread: Unread | None = None
    """Why the whole section is missing."""


SECTION_VERSIONS: Mapping[str, int] = {
    "host": 1,
    "gpus": 1,
    "pairs": 1,
    "switches": 1,
    "nics": 1,
    "driver": 1,
    "process": 1,
}
"""The sections in their order in the document. A version rises when a reader of the older one would be misled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One node's facts. A section that was not collected is ``None``, its status says why."""

    origin: Origin
    sections: Mapping[Plain, SectionStatus] = field(default_factory=dict)
    host: Host | None = None
    gpus: tuple[Gpu, ...] | None = None
    """In the order of ``index``."""
    pairs: tuple[Pair, ...] | None = None
    """Ordered pairs, by the indices of source and target."""
    switches: tuple[NvSwitch, ...] | None = None
    nics: tuple[Nic, ...] | None = None
    """In natural order of their names: mlx5_2 before mlx5_10."""
    driver: Driver | None = None
    process: Process | None = None

    def gpu(self, bus_id: str) -> Gpu:
        """Return the GPU with this bus id.

        Raises
        ------
        KeyError
            If there is none.
        """
        for gpu in self.gpus or ():
            if gpu.bus_id == bus_id:
                return gpu
        raise KeyError(bus_id)

    def pair(self, source: str, target: str) -> Pair | None:
        """Return the ordered pair of two bus ids, ``None`` where it was not read."""
        return next((p for p in self.pairs or () if (p.source, p.target) == (source, target)), None)
