"""A GPU as each source reports it, and an ordered pair of GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from egmctl.dataclass import dataclass
from egmctl.model.host import DeviceNode, PcieLink, PciFunction
from egmctl.model.record import BusId, KernelList, Plain, Record, Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProc(Record):
    """The contents of ``/proc/driver/nvidia/gpus/<bus id>``, which exists if the driver is bound to the GPU."""

    model: Plain | None = None
    uuid: Uuid | None = None
    minor: int | None = None
    excluded: bool | None = None
    numa_status: Plain | None = None
    """The ``Status`` of the ``numa_status`` file: online, offline, online_failed, ..."""
    numa_node: int | None = None
    """The ``Node`` of the ``numa_status`` file: the NUMA node of the GPU's own memory."""


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
    """The error counters of an NVLink since the driver was loaded or the GPU reset; from NVLink 5 (Blackwell) on.

    NVML fields 206 to 222 and 235 to 250. Earlier links count replays, recoveries and CRC errors instead.
    """

    malformed_packets: int | None = None
    buffer_overruns: int | None = None
    receive_errors: int | None = None
    remote_errors: int | None = None
    """Packets that the remote end had marked as bad."""
    general_receive_errors: int | None = None
    """Packets with header mismatches."""
    integrity_errors: int | None = None
    discarded_packets: int | None = None
    """Outgoing packets that were discarded."""
    recoveries: int | None = None
    """Link recoveries after a lost signal: successful and failed ones."""
    successful_recoveries: int | None = None
    failed_recoveries: int | None = None
    effective_errors: int | None = None
    """Bit errors that forward error correction did not correct."""
    effective_ber: float | None = None
    """The effective errors per bit; 0 is below NVML's resolution (mantissa 15, exponent 255)."""
    symbol_errors: int | None = None
    symbol_ber: float | None = None
    fec_history: tuple[int, ...] | None = None
    """The number of codewords by corrected symbols: none, one, ..., fifteen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvLink(Record):
    """One NVLink port of a GPU."""

    link: int
    active: bool | None = None
    version: int | None = None
    """The version as NVML's enum, not a generation: 6 is NVLink 4, 7 is NVLink 5."""
    remote_type: Plain | None = None
    """``gpu``, ``switch``, ``npu`` or ``unknown``."""
    remote_bus_id: BusId | None = None
    """The remote device; ``None`` with a reason if the driver masks it (virtual machines)."""
    remote_link: int | None = None
    speed_mb_s: int | None = None
    """The signalling rate of one direction in MB/s (1e6), before encoding overhead: 26562 on NVLink 4."""
    crc_errors: int | None = None
    replay_errors: int | None = None
    recovery_errors: int | None = None
    link_state: Plain | None = None
    """The result of NVML_FI_DEV_NVLINK_GET_STATE: ``inactive``, ``active``, ``sleep`` (saves power, traffic wakes it)
    or ``active-traffic-disabled``."""
    counters: NvLinkCounters | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric(Record):
    """The fabric state from ``nvmlDeviceGetGpuFabricInfoV``."""

    state: Plain | None = None
    """``not-supported``, ``not-started``, ``in-progress`` or ``completed``."""
    status: int | None = None
    """The nvmlReturn_t of the probe, valid if the state is ``completed``."""
    cluster_uuid: Uuid | None = None
    clique_id: int | None = None
    """The first unicast-pointer clique."""
    cliques: Mapping[Plain, tuple[int, ...]] | None = None
    """The ids of all cliques by type, if the driver reports types: ``unicast-pointer``, ``multicast-pointer`` and the
    same for ``logical-endpoint``."""
    health_mask: int | None = None
    health: Mapping[Plain, Plain] | None = None
    """The fields of the mask by name: ``degraded_bandwidth``, ``route_recovery``, ``route_unhealthy``,
    ``access_timeout_recovery``, ``incorrect_configuration``. Values are ``true``, ``false``, ``not-supported`` or the
    name of the cause."""
    health_summary: Plain | None = None

    @property
    def has_cluster(self) -> bool:
        """Whether the cluster UUID is not all zeros. An HGX board may have one too, without a multi-node domain."""
        return self.cluster_uuid is not None and bool(self.cluster_uuid.strip("0-"))

    @property
    def registered(self) -> bool:
        """Whether the fabric has registered the GPU, without an error."""
        return self.state == "completed" and not self.status

    @property
    def identity(self) -> tuple[str | None, int | None]:
        """The cluster UUID and the clique. A clique id alone names nothing: other domains have the same ids."""
        return self.cluster_uuid, self.clique_id

    @property
    def has_clique(self) -> bool:
        """Whether the GPU has a cluster and a clique in it. Clique 0 is no partition (Azure/azhpc-images#506)."""
        return self.has_cluster and self.clique_id != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform(Record):
    """The physical location of a GPU (``nvmlDeviceGetPlatformInfo``), to tell faulty slots from faulty parts."""

    chassis_serial: str | None = None
    slot: int | None = None
    tray: int | None = None
    host_id: int | None = None
    peer_type: Plain | None = None
    """``direct`` or ``switch``."""
    module_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess(Record):
    """A process that has allocated memory on the GPU."""

    pid: int
    name: str | None = None
    used_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNvml(Record):
    """The facts of NVML about a GPU. NVML ignores CUDA_VISIBLE_DEVICES and respects the device cgroup."""

    index: int
    """NVML's index, for display only: it depends on the device cgroup."""
    lost_calls: Mapping[Plain, Plain] | None = None
    """The NVML calls about this GPU that ended with ``NVML_ERROR_GPU_IS_LOST`` or ``NVML_ERROR_RESET_REQUIRED``, and
    that error; empty for a GPU that works."""
    uuid: Uuid | None = None
    name: Plain | None = None
    serial: str | None = None
    board_part_number: Plain | None = None
    vbios: Plain | None = None
    inforom_image: Plain | None = None
    """The version of the InfoROM's image, which holds the configuration of the board
    (``nvmlDeviceGetInforomImageVersion``)."""
    minor: int | None = None
    compute_capability: tuple[int, int] | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_limit_bytes: int | None = None
    """The hard limit of the process' cgroup on this GPU's memory (``nvmlDeviceGetMemoryLimits_v1``), which
    ``memory_total_bytes`` then is too; -1 is unlimited."""
    memory_soft_limit_bytes: int | None = None
    """The soft limit: MPS may end a client that holds more, if another one needs memory; -1 is all."""
    memory_limit_used_bytes: int | None = None
    """What the cgroup holds of this GPU's memory."""
    bar1_total_bytes: int | None = None
    """The size of BAR1, through which other devices reach the GPU's memory (``nvmlDeviceGetBAR1MemoryInfo``)."""
    link: PcieLink | None = None
    """Maximum values are the GPU's own; some GPUs lower the current speed when idle."""
    cpu_affinity: KernelList | None = None
    numa_affinity: KernelList | None = None
    numa_node: int | None = None
    """The NUMA node of the GPU's own memory by ``nvmlDeviceGetNumaNodeId`` ("GPU NUMA ID" of nvidia-smi)."""
    capabilities: int | None = None
    """The capMask of ``nvmlDeviceGetCapabilities``; bit 0 is EGM."""
    c2c_enabled: bool | None = None
    c2c_links: tuple[C2cLink, ...] | None = None
    nvlinks: tuple[NvLink, ...] | None = None
    nvlink_count: int | None = None
    """The number of NVLinks of this part, up or down (NVML_FI_DEV_NVLINK_LINK_COUNT)."""
    nvlink_bandwidth_mode: Plain | None = None
    """The bandwidth mode of this GPU, from Blackwell on: ``full``, ``off``, ``min``, ``half``, ``3quarter`` or
    ``12-links``."""
    nvlink_bandwidth_best: bool | None = None
    """Whether that is the highest mode that the GPU and its fabric support."""
    nvlink_encryption: bool | None = None
    """Whether its NVLinks are encrypted (``isNvleEnabled`` of ``nvmlDeviceGetNvLinkInfo``)."""
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
    sram_threshold_exceeded: bool | None = None
    """Whether the driver asks to have the GPU serviced, as its SRAM had too many uncorrectable errors
    (``bThresholdExceeded`` of ``nvmlDeviceGetSramEccErrorStatus``). Only root may read it on some drivers."""
    channel_repair_pending: bool | None = None
    """Whether a memory channel will be repaired at the next reset (``nvmlDeviceGetRepairStatus``)."""
    tpc_repair_pending: bool | None = None
    """Whether a texture processing cluster, a part with SMs, will be repaired at the next reset (same call)."""
    recovery_action: Plain | None = None
    """The action that the driver requests (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION): ``none``, ``gpu-reset``,
    ``node-reboot``, ``drain-p2p``, ``drain-and-reset``, ``recover-imex-domain``, ``bus-reset``, ``system-reboot``."""
    performance_state: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    throttle_reasons: tuple[Plain, ...] | None = None
    """The bits of ``nvmlDeviceGetCurrentClocksEventReasons`` by name: ``idle``, ``sw-power-cap``,
    ``hw-thermal-slowdown``, ..."""
    power_profiles: tuple[Plain, ...] | None = None
    """The workload power profiles in force, from Blackwell on, as ``NVML_POWER_PROFILE_*`` names them: ``max-p``,
    ``max-q``, ``network``, ...; empty if none is."""
    power_limit_mw: int | None = None
    """The limit that is in force (``nvmlDeviceGetEnforcedPowerLimit``), in milliwatts."""
    power_limit_default_mw: int | None = None
    """The limit after the driver is loaded (``nvmlDeviceGetPowerManagementDefaultLimit``), in milliwatts."""
    temperature_c: int | None = None
    processes: tuple[GpuProcess, ...] | None = None

    @property
    def egm_capable(self) -> bool | None:
        """Whether NVML_DEV_CAP_EGM (bit 0 of the capability mask) is set."""
        return None if self.capabilities is None else bool(self.capabilities & 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCuda(Record):
    """The facts of CUDA about a GPU, read in a child process without CUDA_VISIBLE_DEVICES, in bus id order."""

    ordinal: int
    uuid: Uuid | None = None
    name: Plain | None = None
    memory_total_bytes: int | None = None
    attributes: Mapping[Plain, int | None] = field(default_factory=dict)
    """The values of CUdevice_attribute by name, without ``CU_DEVICE_ATTRIBUTE_``; reasons in ``unread`` are
    ``attributes.NAME``."""
    host_atomics: Mapping[Plain, tuple[Plain, ...]] | None = None
    """The operand types of each atomic operation that the link to host memory supports natively
    (cuDeviceGetHostAtomicCapabilities, CUDA 13.0): ``integer-add`` to ``unsigned``, ``scalar-64``, ...; empty if
    unsupported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu(Record):
    """One GPU, joined over its bus id and UUID from all sources.

    A source that does not list the GPU is ``None`` with a reason. The first missing source in the order PCI, driver,
    device node, NVML, CUDA shows where the GPU was lost.
    """

    bus_id: BusId
    index: int
    """The index of the GPU on the whole node in the order of bus ids, which is nvidia-smi's number with access to all
    GPUs. ``nvml.index`` counts only the GPUs that this process may open."""
    pci: PciFunction | None = None
    proc: GpuProc | None = None
    node: DeviceNode | None = None
    """The device node ``/dev/nvidia<minor>``, read before NVML or CUDA ran."""
    nvml: GpuNvml | None = None
    cuda: GpuCuda | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that list this GPU, in their order of dependence."""
        known = (("pci", self.pci), ("proc", self.proc), ("node", self.node), ("nvml", self.nvml), ("cuda", self.cuda))
        return tuple(name for name, source in known if source is not None)

    @property
    def uuid(self) -> str | None:
        """The ``GPU-...`` UUID from the first source that has it."""
        return next((s.uuid for s in (self.nvml, self.cuda, self.proc) if s is not None and s.uuid), None)

    @property
    def name(self) -> str | None:
        """The product name from the first source that has it."""
        names = (self.nvml and self.nvml.name, self.cuda and self.cuda.name, self.proc and self.proc.model)
        return next((name for name in names if name), None)

    def attribute(self, name: str) -> int | None:
        """Return a device attribute of CUDA by its name without ``CU_DEVICE_ATTRIBUTE_``; ``None`` if unknown."""
        return None if self.cuda is None else self.cuda.attributes.get(name)

    @property
    def host_numa_id(self) -> int | None:
        """The CPU NUMA node closest to this GPU: CUDA's HOST_NUMA_ID, else sysfs ``numa_node``, else ``None``."""
        if (node := self.attribute("HOST_NUMA_ID")) is not None and node >= 0:
            return node
        return None if self.pci is None else self.pci.host_numa_id


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPair(Record):
    """The facts of the driver about an ordered pair of GPUs."""

    source: BusId
    """The GPU that issues the accesses."""
    target: BusId
    """The GPU whose memory is accessed."""
    common_ancestor: Plain | None = None
    """NVML's topology level: ``internal``, ``single``, ``multiple``, ``hostbridge``, ``node`` or ``system``."""
    p2p_status: Mapping[Plain, Plain | None] = field(default_factory=dict)
    """``read``, ``write``, ``nvlink``, ``atomics``, ``pci`` to nvidia-smi's abbreviations: OK, CNS, GNS, TNS, DR, NS
    or U."""
    nvlink_count: int | None = None
    """The active links between the two GPUs: direct, or to a switch that both reach."""
    nvlink_through: Plain | None = None
    """``direct`` or ``switch``; ``None`` without links."""
    can_access_peer: bool | None = None
    cuda_attributes: Mapping[Plain, int | None] = field(default_factory=dict)
    """The values of CUdevice_P2PAttribute by name, without ``CU_DEVICE_P2P_ATTRIBUTE_``: PERFORMANCE_RANK (lower is
    better), ACCESS_SUPPORTED, ..."""
    atomics: Mapping[Plain, tuple[Plain, ...]] | None = None
    """The operand types of each atomic operation that the link from source to target supports natively
    (cuDeviceGetP2PAtomicCapabilities, CUDA 13.0), as in :attr:`GpuCuda.host_atomics`."""


FAKE = "FAKE GPUs, nothing of this is hardware"
"""The notice on a result from the fake driver."""


def are_fake(names: Iterable[str | None]) -> bool:
    """Return whether any of these GPU names belongs to the tests' fake driver."""
    return any((name or "").startswith("FAKE ") for name in names)
