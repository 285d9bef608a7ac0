"""One GPU as each source knows it, and one ordered pair of GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from egmctl.model.host import DeviceNode, PcieLink, PciFunction
from egmctl.model.record import BusId, KernelList, Plain, Record, Uuid


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
class NvLinkCounters(Record):
    """The counters of an NVLink from NVLink 5 (Blackwell) on, since the driver was loaded or the GPU reset.

    NVML fields 206 to 222 and 235 to 250; earlier links have replays, recoveries and CRC errors instead.
    """

    malformed_packets: int | None = None
    buffer_overruns: int | None = None
    receive_errors: int | None = None
    remote_errors: int | None = None
    """Packets that the other side had marked as bad."""
    general_receive_errors: int | None = None
    """Headers that did not match."""
    integrity_errors: int | None = None
    discarded_packets: int | None = None
    """Packets that were to be sent."""
    recoveries: int | None = None
    """Times that the link lost its signal and was trained again; those that succeeded, and those that failed."""
    successful_recoveries: int | None = None
    failed_recoveries: int | None = None
    effective_errors: int | None = None
    """Bit errors that forward error correction left over."""
    effective_ber: float | None = None
    """Their rate per bit; 0 is below what NVML can tell (mantissa 15, exponent 255)."""
    symbol_errors: int | None = None
    symbol_ber: float | None = None
    fec_history: tuple[int, ...] | None = None
    """Codewords by how many of their symbols were corrected: none, one, ..., fifteen."""


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
    """MB/s (1e6) of one direction on the link, before encoding overhead: 26562 on NVLink 4."""
    crc_errors: int | None = None
    replay_errors: int | None = None
    recovery_errors: int | None = None
    link_state: Plain | None = None
    """NVML_FI_DEV_NVLINK_GET_STATE: ``inactive``, ``active``, ``sleep`` (saves power, wakes by traffic) or
    ``active-traffic-disabled``."""
    counters: NvLinkCounters | None = None


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

    @property
    def has_cluster(self) -> bool:
        """Whether the cluster's UUID is not all zeros. An HGX board may have one too: it makes no multi-node domain."""
        return self.cluster_uuid is not None and bool(self.cluster_uuid.strip("0-"))


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
    """NVML's facts about a GPU. NVML ignores CUDA_VISIBLE_DEVICES and honours the device cgroup."""

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
    nvlink_bandwidth_mode: Plain | None = None
    """This GPU's own mode, from Blackwell on: ``full``, ``off``, ``min``, ``half``, ``3quarter``, or ``12-links``."""
    nvlink_bandwidth_best: bool | None = None
    """Whether that is the most that the GPU and its fabric can do."""
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
    recovery_action: Plain | None = None
    """The driver's request (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION): ``none``, ``gpu-reset``, ``node-reboot``,
    ``drain-p2p``, ``drain-and-reset``, ``recover-imex-domain``, ``bus-reset``, ``system-reboot``."""
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
    """CUDA's facts about a GPU, read in a child without CUDA_VISIBLE_DEVICES and ordered by bus id."""

    ordinal: int
    uuid: Uuid | None = None
    name: Plain | None = None
    memory_total_bytes: int | None = None
    attributes: Mapping[Plain, int | None] = field(default_factory=dict)
    """CUdevice_attribute by name, without ``CU_DEVICE_ATTRIBUTE_``; reasons in ``unread`` as ``attributes.NAME``."""
    host_atomics: Mapping[Plain, tuple[Plain, ...]] | None = None
    """Native support of the link to host memory for each atomic operation (cuDeviceGetHostAtomicCapabilities, CUDA
    13.0): ``integer-add`` to ``unsigned``, ``scalar-64``, ...; none of an operation that it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu(Record):
    """One GPU, joined over its bus id and UUID from every source that knows it.

    A source that does not know the GPU is ``None`` with a reason: the funnel PCI > driver > device node > NVML >
    CUDA shows where a GPU was lost.
    """

    bus_id: BusId
    index: int
    """Its place among the node's GPUs in the order of bus ids: nvidia-smi's number on the whole node, whoever may use
    it. ``nvml.index`` is NVML's own, which counts only what this process may open."""
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
        names = (self.nvml and self.nvml.name, self.cuda and self.cuda.name, self.proc and self.proc.model)
        return next((name for name in names if name), None)

    @property
    def host_numa_id(self) -> int | None:
        """The CPU NUMA node closest to this GPU: CUDA's HOST_NUMA_ID, else sysfs ``numa_node``, else ``None``."""
        if self.cuda is not None and (node := self.cuda.attributes.get("HOST_NUMA_ID")) is not None and node >= 0:
            return node
        return None if self.pci is None else self.pci.host_numa_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair(Record):
    """The driver's facts about one ordered pair of GPUs."""

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
    atomics: Mapping[Plain, tuple[Plain, ...]] | None = None
    """Native support of the link from source to target for each atomic operation
    (cuDeviceGetP2PAtomicCapabilities, CUDA 13.0), in the words of :attr:`GpuCuda.host_atomics`."""


FAKE = "FAKE GPUs, nothing of this is hardware"
"""The notice on a result with such GPUs."""


def are_fake(names: Iterable[str | None]) -> bool:
    """Return whether any of these names of GPUs is one of the fake driver of the tests: such GPUs are no hardware."""
    return any((name or "").startswith("FAKE ") for name in names)
