"""The host of a machine: NUMA nodes, CPUs, the system around the driver, and what confines a process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from egmctl.compat import StrEnum
from egmctl.model.record import BusId, KernelList, Plain, Record, Sentence, Share


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

    @property
    def host_numa_id(self) -> int | None:
        """The CPU NUMA node closest to it; ``None`` where the firmware says nothing."""
        return None if self.numa_node is None or self.numa_node < 0 else self.numa_node

    @property
    def pci_id(self) -> str | None:
        """Vendor and device, ``10de:2335``; ``None`` where they were not read."""
        return None if None in (self.vendor_id, self.device_id) else f"{self.vendor_id:04x}:{self.device_id:04x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode(Record):
    """A device node and whether this process may use it, by access(2): opening would wake the device."""

    path: Plain
    exists: bool
    kind: Plain | None = "character"
    """The kind of file: ``character``, or ``block``, ``directory``, ``file``, ``fifo``, ``socket`` in its place."""
    major: int | None = None
    minor: int | None = None
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    access: Plain | None = None
    """``"ok"``, or the errno's name from access(R_OK|W_OK): EPERM is the device cgroup, EACCES mode or LSM, ENOENT
    not there."""
    nodev: bool | None = None
    """Its file system is mounted ``nodev``: open(2) fails with EACCES then, though access(2) does not."""


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

    @property
    def host_numa_id(self) -> int | None:
        """The CPU NUMA node closest to it; ``None`` where the firmware says nothing."""
        return None if self.pci is None else self.pci.host_numa_id


class NumaKind(StrEnum):
    """The contents of a NUMA node."""

    CPU = "cpu"
    """CPUs and memory."""
    CPU_ONLY = "cpu-only"
    """CPUs, no memory."""
    MEMORY_ONLY = "memory-only"
    """Memory, no CPUs: on Grace, a GPU's own memory onlined as a node."""
    EMPTY = "empty"
    """Neither: on Grace, a placeholder for MIG instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HugePages(Record):
    """One pool of huge pages: of the host (``/sys/kernel/mm/hugepages``), or a NUMA node's part of it."""

    page_size_bytes: int
    total: int | None = None
    free: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode(Record):
    """One node of ``/sys/devices/system/node``."""

    id: int
    kind: NumaKind
    cpus: KernelList = ""
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_reclaimable_bytes: int | None = None
    """Pages of files and reclaimable slabs: the kernel gives them back when memory is asked for."""
    distances: tuple[int, ...] | None = None
    """ACPI SLIT distances to the online nodes, in ascending order of their ids."""
    huge_pages: tuple[HugePages, ...] | None = None
    """Not present where the node has no memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFrequencies(Record):
    """CPUs whose files in ``/sys/devices/system/cpu/cpu*/cpufreq`` say the same."""

    cpus: KernelList
    governor: Plain | None = None
    """``scaling_governor``: ``performance``, ``powersave``, ``schedutil``, ..."""
    limit_khz: int | None = None
    """``scaling_max_freq``: what the governor may go up to."""
    max_khz: int | None = None
    """``cpuinfo_max_freq``: what the hardware can."""

    @property
    def limited(self) -> bool | None:
        """Whether the limit is below what the hardware can; ``None`` where one of them is not known."""
        return None if self.limit_khz is None or self.max_khz is None else self.limit_khz < self.max_khz


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
    memory_policy: Plain | None = None
    """The process' NUMA memory policy, as ``numa_maps`` spells it: ``default``, ``bind:0``, ``interleave:0-1``."""
    huge_pages: tuple[HugePages, ...] | None = None
    transparent_huge_pages: Plain | None = None
    """The word in brackets of ``/sys/kernel/mm/transparent_hugepage/enabled``."""
    numa_balancing: int | None = None
    cpu_frequencies: tuple[CpuFrequencies, ...] | None = None
    """The online CPUs, grouped where they are alike; not present where the kernel does not set frequencies."""
    auto_online_blocks: Plain | None = None
    """``/sys/devices/system/memory/auto_online_blocks``: must be ``online_movable`` for GPU memory to become a node."""
    kernel_command_line: Mapping[Plain, Annotated[str, Share.PARAMETER]] | None = None
    """Only the parameters that matter here (``egmctl.facts.host.COMMAND_LINE_KEYS``); a flag has the value ``""``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryFailure:
    """How NVML or CUDA failed as a whole, so that it says nothing of any GPU."""

    how: Plain
    """``error`` (a call returned one), ``crashed``, ``timed-out``, ``missing`` (the library), ``too-old``
    (for the bindings) or ``not-started`` (no child process could be)."""
    call: Plain | None = None
    """The call that failed, or that was under way at the end."""
    gpu: BusId | None = None
    """The GPU that the call was about, where it was about one."""
    number: int | None = None
    """The number that the call returned."""
    name: Plain | None = None
    """The library's own name for that: ``NVML_ERROR_UNKNOWN``."""
    detail: Sentence = ""

    @property
    def words(self) -> str:
        """The failure in words that follow the library's name."""
        where = f" in {self.call}" if self.call else ""
        gpu = f" of {self.gpu}" if self.gpu else ""
        number = "" if self.number is None else f" ({self.number})"
        call = f"{self.call}{gpu}: " if self.call else ""
        sentences = {
            "error": f"fails ({call}{self.name or self.detail or 'no reason given'}{number})",
            "crashed": f"crashed{where}{gpu}",
            "timed-out": f"did not answer in time{f', it hangs{where}{gpu}' if where else ''}",
            "missing": "is missing: the library cannot be loaded",
            "too-old": f"does not fit {f'({self.detail})' if self.detail else 'the installed bindings'}",
            "not-started": "could not be queried: no child process can be started",
        }
        return sentences.get(self.how, f"failed ({self.how})")


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
    nvml_failure: LibraryFailure | None = None
    """How NVML failed; ``None`` where it answered, was not asked, or the document is of before this field."""
    cuda_failure: LibraryFailure | None = None
    confidential_compute: Plain | None = None
    """``off``, ``on``, or how several GPUs are joined under it: ``protected-pcie``, ``nvlink-encryption``
    (``nvmlSystemGetConfComputeSettings``)."""
    nvlink_bandwidth_mode: Plain | None = None
    """``full``, ``off``, ``min``, ``half`` or ``3quarter`` (``nvmlSystemGetNvlinkBwMode``)."""
    modules: tuple[Plain, ...] | None = None
    """The loaded ones of nvidia, nvidia_uvm, nvidia_peermem, nvgrace_gpu, nvgrace_egm, nouveau, gdrdrv."""
    module_parameters: Mapping[Plain, Annotated[str, Share.PARAMETER]] | None = None
    """``/proc/driver/nvidia/params``."""
    uvm_parameters: Mapping[Plain, Annotated[str, Share.PARAMETER]] | None = None
    majors: Mapping[Plain, int] | None = None
    """Character majors of ``/proc/devices`` whose name begins with ``nvidia``."""
    nodes: tuple[DeviceNode, ...] | None = None
    """nvidiactl, nvidia-uvm, nvidia-uvm-tools, nvidia-caps."""
    imex_channels: tuple[DeviceNode, ...] | None = None
    """Nodes in ``/dev/nvidia-caps-imex-channels``; empty where the folder is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge(Record):
    """A PCIe bridge above a GPU or a NIC: a root port, or a port of a switch."""

    bus_id: BusId
    vendor_id: int | None = None
    device_id: int | None = None
    link: PcieLink | None = None
    """The state of the link below it."""
    acs_control: int | None = None
    """The control register of Access Control Services: bit 0 source validation, 2 request redirect, 3 completion
    redirect, 4 upstream forwarding, 6 direct translated P2P. Only root may read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imex(Record):
    """The IMEX service, which lets nodes of one NVLink domain import each other's memory."""

    configured_nodes: int | None = None
    """Addresses in ``/etc/nvidia-imex/nodes_config.cfg``; the addresses themselves stay there."""
    duplicate_nodes: int | None = None
    """How many of them are there twice."""
    daemon_state: Plain | None = None
    """The word of ``nvidia-imex-ctl -q``: ``READY``, ``WAITING_FOR_PEERS``, ..."""
    domain_status: Plain | None = None
    """``UP``, ``DOWN`` or ``DEGRADED``, from ``nvidia-imex-ctl -N -j``."""
    runs_in: tuple[Plain, ...] | None = None
    """Where each nvidia-imex runs: ``host`` (its systemd service), ``pod`` (of Kubernetes) or ``elsewhere``."""
    kubelet: bool | None = None
    """Whether Kubernetes' agent runs on this node."""
    compute_domains: bool | None = None
    """Whether Kubernetes' DRA driver for ComputeDomains, which manages IMEX, runs here or has left its files."""
    compute_domain_mode: Plain | None = None
    """``driverManaged`` or ``hostManaged``, from the environment of that driver. Only root may read it."""
    session_in_use: bool | None = None
    """Whether the service's log ends with the refusal of a second daemon (``NV_ERR_IN_USE``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbsNode(Record):
    """The device node through which programs use a NIC's RDMA."""

    nic: Plain | None = None
    """``mlx5_0``; of ``rdma_cm``, which belongs to no NIC, not supported."""
    node: DeviceNode


@dataclass(frozen=True, slots=True, kw_only=True)
class System(Record):
    """All of it. Everything is read from files, but for IMEX' own state."""

    uptime_s: float | None = None
    kernel_configuration: Mapping[Plain, Plain] | None = None
    """``y``, ``m`` or ``n`` of each of ``egmctl.facts.system.CONFIGURATION_KEYS``."""
    acpi_egm: bool | None = None
    """Whether the firmware's tables name EGM memory (``nvidia,egm-base-pa``). Only root may read them."""
    egm_regions: tuple[Plain, ...] | None = None
    """Devices in ``/sys/class/egm``, by which virtual machines get the EGM memory; empty where there are none."""
    max_map_count: int | None = None
    """``vm.max_map_count``."""
    remove_ipc: bool | None = None
    """logind's ``RemoveIPC``: whether a user's shared memory goes when the last session ends. ``None`` where no file
    sets it: then it is as the distribution built it."""
    iommu_domains: Mapping[Plain, Plain] | None = None
    """Type of the IOMMU group (``DMA``, ``DMA-FQ``, ``identity``) of each GPU and NIC that has one, by bus id."""
    bridges: tuple[Bridge, ...] | None = None
    """Above GPUs, NICs and Data Direct functions, in the order of their bus ids."""
    data_direct: tuple[PciFunction, ...] | None = None
    """Functions by which a ConnectX-8 reaches the GPU beside it (Data Direct); empty where there are none."""
    ats: Mapping[Plain, bool] | None = None
    """Whether each NIC has address translation (ATS), by bus id. Only root may read it."""
    daemons: tuple[Plain, ...] | None = None
    """The running ones of ``egmctl.facts.system.DAEMONS``; in a container, only those of its own PID namespace."""
    imex: Imex | None = None
    module_versions: Mapping[Plain, Plain] | None = None
    """The loaded ones of ``egmctl.facts.system.RDMA_MODULES``; ``""`` where a module has no version of its own."""
    peer_memory_clients: tuple[Plain, ...] | None = None
    """Names in ``/sys/kernel/mm/memory_peers``; empty where the kernel has no such folder."""
    verbs: tuple[VerbsNode, ...] | None = None
    """Nodes in ``/dev/infiniband`` that the kernel has devices for; empty where it has none."""
    nvlink_management: tuple[Nic, ...] | None = None
    """InfiniBand devices that lead to NVLink switches of this node, and are no NICs. Only root can tell them."""


INITIAL_NAMESPACES = {"ipc": 0xEFFFFFFF, "user": 0xEFFFFFFD, "pid": 0xEFFFFFFC, "cgroup": 0xEFFFFFFB}
"""Inode numbers of the namespaces that the kernel starts with (include/linux/proc_ns.h); ``mnt`` and ``net`` have no
fixed ones."""

CAPABILITIES = {
    "NET_ADMIN": 12,
    "IPC_LOCK": 14,
    "SYS_PTRACE": 19,
    "SYS_ADMIN": 21,
    "SYS_NICE": 23,
    "SYS_RESOURCE": 24,
    "MKNOD": 27,
    "BPF": 39,
}
"""Bits of :attr:`Confinement.capabilities` that matter here (include/uapi/linux/capability.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup(Record):
    """One line of ``/proc/self/cgroup``."""

    version: int
    controllers: tuple[Plain, ...] = ()
    path: Annotated[str, Share.CGROUP_PATH]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process(Record):
    """The process: its cgroups, signs of a container, and the environment that steers drivers."""

    pid: int = 0
    """0 is the tool itself; else the process that ``--pid`` names."""
    effective_uid: int | None = None
    cgroups: tuple[Cgroup, ...] | None = None
    container_signs: tuple[Plain, ...] | None = None
    """Words such as ``/.dockerenv``, ``/run/.containerenv``, ``KUBERNETES_SERVICE_HOST``, ``overlay root``; empty:
    none seen."""
    environment: Mapping[Plain, Annotated[str, Share.ENVIRONMENT]] | None = None
    """Only the variables on a known list that are set (``egmctl.facts.process.ENVIRONMENT_KEYS``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount(Record):
    """One mount of ``/proc/self/mountinfo`` that decides which device nodes there are and what they are good for."""

    path: Plain
    """``/``, ``/dev``, ``/dev/shm``, or something of NVIDIA's or InfiniBand's below ``/dev`` or ``/proc/driver``."""
    kind: Plain
    """The type of file system: ``devtmpfs``, ``tmpfs``, ``overlay``, ``proc``."""
    options: tuple[Plain, ...] = ()
    """Options of the mount, not of the file system: ``ro``, ``nosuid``, ``nodev``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProgram(Record):
    """A BPF program that decides which devices a cgroup of version 2 may use."""

    id: int
    name: Annotated[str, Share.CGROUP_PATH] | None = None
    """Names the manager where that gives one: ``Slurm_Cgroup_v2``, ``sd_devices``; often empty."""
    cgroup: Annotated[str, Share.CGROUP_PATH] | None = None
    """The cgroup it is attached to: the process' own or one above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceList:
    """``devices.list`` of a cgroup of version 1, the process' own or one above it."""

    cgroup: Annotated[str, Share.CGROUP_PATH]
    rules: tuple[Plain, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUnit:
    """The device settings in systemd's files of a unit that the process' cgroup lies in."""

    unit: Annotated[str, Share.CGROUP_PATH]
    file: Annotated[str, Share.CGROUP_PATH]
    settings: tuple[Plain, ...]
    """``DevicePolicy=closed``, ``DeviceAllow=/dev/nvidia0 rw``, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement(Record):
    """The limits of a process: namespaces, capabilities, filters, limits, mounts and the device cgroup."""

    namespaces: Mapping[Plain, int | None] | None = None
    """Inode numbers under the names of ``/proc/self/ns``; compare with :data:`INITIAL_NAMESPACES`."""
    pid_namespace_depth: int | None = None
    """How many numbers ``NSpid`` has: 1 also inside of a container that has its own ``/proc``."""
    uid_map: tuple[tuple[int, int, int], ...] | None = None
    """Ranges of ``/proc/self/uid_map``: first inside, first outside, length. ``(0, 0, 4294967295)`` is no namespace."""
    capabilities: int | None = None
    """``CapEff``: bits of :data:`CAPABILITIES` and others."""
    seccomp: Plain | None = None
    """``none``, ``strict`` or ``filter``."""
    no_new_privileges: bool | None = None
    limits: Mapping[Plain, int | None] | None = None
    """Soft limits ``as`` (address space), ``memlock``, ``stack`` (bytes), ``nofile`` and ``nproc``; -1 is unlimited."""
    pids_left: int | None = None
    """How many more processes and threads the process' cgroups allow (``pids.max``); -1: none limits them."""
    mounts: tuple[Mount, ...] | None = None
    shm_total_bytes: int | None = None
    """The size of ``/dev/shm``."""
    shm_free_bytes: int | None = None
    ptrace_scope: int | None = None
    """Yama's ``kernel.yama.ptrace_scope``; not present where the kernel has no Yama, which is as good as 0."""
    device_rules: tuple[Plain, ...] | None = None
    """``devices.list`` of the cgroup of version 1: ``c 195:0 rw``. Only a hint: a list of denials prints ``a *:* rwm``
    too, so access(2) of each node is what counts."""
    device_lists: tuple[DeviceList, ...] = ()
    """The same of each cgroup from the top down to the process' own; empty where there is none, or it is not read."""
    device_units: tuple[DeviceUnit, ...] = ()
    """Units in the cgroup's path whose files set a device policy; empty where none does, or no file can be read."""
    device_programs: tuple[DeviceProgram, ...] | None = None
    """BPF programs in force on the cgroup of version 2. Only root may ask."""
    system_calls: Mapping[Plain, Plain | None] | None = None
    """``get_mempolicy``, ``mbind``, ``set_mempolicy`` (without effect) and ``pidfd_open``: ``ok``, the name of the
    error number, or ``killed``."""

    def capable(self, name: str) -> bool | None:
        """Return whether the process has one of :data:`CAPABILITIES`; ``None`` where that was not read."""
        return None if self.capabilities is None else bool(self.capabilities >> CAPABILITIES[name] & 1)
