"""The host of a machine: NUMA nodes, CPUs, the system around the driver, and the restrictions of a process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.record import BusId, KernelList, Plain, Record, Sentence, Share


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieLink(Record):
    """The state of a PCIe link."""

    speed_gt_s: float | None = None
    width: int | None = None
    max_speed_gt_s: float | None = None
    max_width: int | None = None

    @property
    def sheds_lanes(self) -> bool:
        """Whether fewer lanes may only mean an idle link: L0p, which PCI Express 6.0 added with 64 GT/s.

        An idle Vera Rubin tray shows x2 of x16 at generation 6 (NVIDIA/k8s-test-infra, qx-vrnvl72.xml).
        """
        return (self.speed_gt_s or 0) >= 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PciFunction(Record):
    """One PCI function from sysfs, which is not namespaced: a container sees all functions of the machine."""

    bus_id: BusId
    vendor_id: int | None = None
    device_id: int | None = None
    subsystem_vendor_id: int | None = None
    subsystem_device_id: int | None = None
    class_code: int | None = None
    """The 24-bit class code: 0x030200 is a 3D controller, 0x068000 an "other" bridge (NVSwitch)."""
    path: tuple[Plain, ...] | None = None
    """The path from the root complex to this function, which is not included: ``("pci0000:16", "0000:16:01.0",
    ...)``."""
    numa_node: int | None = None
    """The value of sysfs ``numa_node``; -1 if the firmware does not state it."""
    local_cpus: KernelList | None = None
    link: PcieLink | None = None
    driver: Plain | None = None
    """The bound kernel driver; ``""`` if there is none."""
    responds: bool | None = None
    """False if configuration space reads as all ones: the device fell off the bus."""

    @property
    def host_numa_id(self) -> int | None:
        """The closest CPU NUMA node; ``None`` if the firmware does not state it."""
        return None if self.numa_node is None or self.numa_node < 0 else self.numa_node

    @property
    def pci_id(self) -> str | None:
        """The vendor and device id, ``10de:2335``; ``None`` if they were not read."""
        return None if None in (self.vendor_id, self.device_id) else f"{self.vendor_id:04x}:{self.device_id:04x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode(Record):
    """A device node, and whether this process may access it by access(2): opening it would wake the device."""

    path: Plain
    exists: bool
    kind: Plain | None = "character"
    """The file type: ``character``, or ``block``, ``directory``, ``file``, ``fifo``, ``socket``."""
    major: int | None = None
    minor: int | None = None
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    access: Plain | None = None
    """``"ok"``, or the name of the errno from access(R_OK|W_OK): EPERM is the device cgroup, EACCES the mode or an LSM,
    ENOENT a missing node."""
    nodev: bool | None = None
    """Whether the file system is mounted ``nodev``. Then open(2) fails with EACCES, although access(2) succeeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvSwitch(Record):
    """An NVSwitch that is a PCI function of the node (HGX; on NVL72 the switches are outside of the node)."""

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
    max_read_request_bytes: int | None = None
    """The maximum size of a PCIe read request. Only root may read it."""
    interfaces: tuple[str, ...] = ()
    """The network interfaces of the same PCI function."""

    @property
    def host_numa_id(self) -> int | None:
        """The closest CPU NUMA node; ``None`` if the firmware does not state it."""
        return None if self.pci is None else self.pci.host_numa_id


class NumaKind(StrEnum):
    """The contents of a NUMA node."""

    CPU = "cpu"
    """The node has CPUs and memory."""
    CPU_ONLY = "cpu-only"
    """The node has only CPUs."""
    MEMORY_ONLY = "memory-only"
    """The node has only memory: on Grace, a GPU's own memory onlined as a node."""
    EMPTY = "empty"
    """The node has neither: on Grace, a placeholder for MIG instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HugePages(Record):
    """One pool of huge pages, of the host (``/sys/kernel/mm/hugepages``) or of one NUMA node."""

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
    """File pages and reclaimable slabs, which the kernel frees under memory pressure."""
    distances: tuple[int, ...] | None = None
    """ACPI SLIT distances to the online nodes, in ascending order of their ids."""
    huge_pages: tuple[HugePages, ...] | None = None
    """The pools of the node; ``not-present`` if it has no memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFrequencies(Record):
    """CPUs with equal files in ``/sys/devices/system/cpu/cpu*/cpufreq``."""

    cpus: KernelList
    governor: Plain | None = None
    """``scaling_governor``: ``performance``, ``powersave``, ``schedutil``, ..."""
    driver: Plain | None = None
    """``scaling_driver``: ``intel_pstate``, ``acpi-cpufreq``, ``cppc_cpufreq``, ..."""
    limit_khz: int | None = None
    """``scaling_max_freq``: the upper limit for the governor."""
    max_khz: int | None = None
    """``cpuinfo_max_freq``: the maximum of the hardware."""

    @property
    def limited(self) -> bool | None:
        """Whether the limit is below the hardware's maximum; ``None`` if either is unknown."""
        return None if self.limit_khz is None or self.max_khz is None else self.limit_khz < self.max_khz


@dataclass(frozen=True, slots=True, kw_only=True)
class Host(Record):
    """The machine around the GPUs, and the parts that this process may use."""

    hostname: str | None = None
    kernel: Annotated[str, Share.KERNEL_RELEASE] | None = None
    architecture: Plain | None = None
    cpu_model: Plain | None = None
    cpu_count: int | None = None
    smt: Plain | None = None
    """``/sys/devices/system/cpu/smt/control``: ``on``, ``off``, ``forceoff``, ``notsupported``, ``notimplemented``."""
    page_size_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    numa_nodes: tuple[NumaNode, ...] | None = None
    allowed_cpus: KernelList | None = None
    """``Cpus_allowed_list`` of this process."""
    allowed_numa_nodes: KernelList | None = None
    """``Mems_allowed_list`` of this process: HOST_NUMA memory can be allocated on these nodes only."""
    memory_policy: Plain | None = None
    """The NUMA memory policy of the process in the format of ``numa_maps``: ``default``, ``bind:0``,
    ``interleave:0-1``."""
    huge_pages: tuple[HugePages, ...] | None = None
    transparent_huge_pages: Plain | None = None
    """The selected value (in brackets) of ``/sys/kernel/mm/transparent_hugepage/enabled``."""
    numa_balancing: int | None = None
    cpu_frequencies: tuple[CpuFrequencies, ...] | None = None
    """The online CPUs, grouped by equal values; ``not-present`` if the kernel does not set frequencies."""
    auto_online_blocks: Plain | None = None
    """``/sys/devices/system/memory/auto_online_blocks``: GPU memory becomes a node only with ``online_movable``."""
    kernel_command_line: Mapping[Plain, Annotated[str, Share.PARAMETER]] | None = None
    """The relevant parameters only (``egmctl.facts.host.COMMAND_LINE_KEYS``); a flag has the value ``""``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryFailure:
    """A failure of NVML or CUDA as a whole, so that it reports no GPU."""

    how: Plain
    """``error`` (a call returned one), ``crashed``, ``timed-out``, ``missing`` (the library), ``too-old`` (for the
    bindings) or ``not-started`` (the child process could not be started)."""
    call: Plain | None = None
    """The call that failed, or that was in progress at the end."""
    gpu: BusId | None = None
    """The GPU that was passed to the call, if any."""
    number: int | None = None
    """The error number that the call returned."""
    name: Plain | None = None
    """The library's name for the error number: ``NVML_ERROR_UNKNOWN``."""
    detail: Sentence = ""

    @property
    def words(self) -> str:
        """The failure as a phrase that follows the library's name."""
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
    """The driver's components, their versions and their device nodes."""

    module_version: Plain | None = None
    module_flavour: Plain | None = None
    """``open`` or ``proprietary``."""
    driver_version: Plain | None = None
    """The driver version from ``nvmlSystemGetDriverVersion``."""
    nvml_version: Plain | None = None
    modprobe_setuid: bool | None = None
    """Whether nvidia-modprobe is there and runs as root for every user: with it CUDA loads ``nvidia_uvm`` and makes
    device nodes when it first needs them."""
    cuda_driver_version: int | None = None
    """The result of ``cuDriverGetVersion``: 13000 is 13.0."""
    libcuda_version: Plain | None = None
    """The version in the name of the libcuda that is loaded here: ``580.65.06``."""
    libcuda_compat: bool | None = None
    """Whether that libcuda is of a folder ``compat``, CUDA's package for older kernel modules."""
    cuda_error: Plain | None = None
    """The name of cuInit's error; ``None`` if it succeeded or was not called (reason in ``unread``)."""
    nvml_error: Plain | None = None
    nvml_failure: LibraryFailure | None = None
    """The failure of NVML; ``None`` if it succeeded or was not queried."""
    cuda_failure: LibraryFailure | None = None
    confidential_compute: Plain | None = None
    """``off``, ``on``, or the multi-GPU mode: ``protected-pcie``, ``nvlink-encryption``
    (``nvmlSystemGetConfComputeSettings``)."""
    confidential_ready: bool | None = None
    """Whether the GPUs accept work under confidential computing (``nvmlSystemGetConfComputeGpusReadyState``); before
    that, CUDA ends with CUDA_ERROR_SYSTEM_NOT_READY (802)."""
    nvlink_bandwidth_mode: Plain | None = None
    """The result of ``nvmlSystemGetNvlinkBwMode``: ``full``, ``off``, ``min``, ``half`` or ``3quarter``."""
    modules: tuple[Plain, ...] | None = None
    """The loaded modules among ``egmctl.facts.gpus.MODULES``."""
    module_parameters: Mapping[Plain, Annotated[str, Share.PARAMETER]] | None = None
    """``/proc/driver/nvidia/params``."""
    uvm_parameters: Mapping[Plain, Annotated[str, Share.PARAMETER]] | None = None
    majors: Mapping[Plain, int] | None = None
    """The character device majors in ``/proc/devices`` whose name begins with ``nvidia``."""
    nodes: tuple[DeviceNode, ...] | None = None
    """The nodes nvidiactl, nvidia-uvm, nvidia-uvm-tools and nvidia-caps."""
    imex_channels: tuple[DeviceNode, ...] | None = None
    """The nodes in ``/dev/nvidia-caps-imex-channels``; empty if the folder does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge(Record):
    """A PCIe bridge above a GPU or NIC: a root port or a port of a switch."""

    bus_id: BusId
    vendor_id: int | None = None
    device_id: int | None = None
    link: PcieLink | None = None
    """The state of the link below the bridge."""
    acs_control: int | None = None
    """The control register of Access Control Services: bit 0 is source validation, 2 request redirect, 3 completion
    redirect, 4 upstream forwarding, 6 direct translated P2P. Only root may read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imex(Record):
    """The IMEX service, which lets nodes of one NVLink domain import each other's memory."""

    configured_nodes: int | None = None
    """The number of addresses in ``/etc/nvidia-imex/nodes_config.cfg``. The addresses are not recorded."""
    duplicate_nodes: int | None = None
    """The number of duplicate addresses."""
    daemon_state: Plain | None = None
    """The state that ``nvidia-imex-ctl -q`` prints: ``READY``, ``WAITING_FOR_PEERS``, ..."""
    domain_status: Plain | None = None
    """The status from ``nvidia-imex-ctl -N -j``: ``UP``, ``DOWN`` or ``DEGRADED``."""
    runs_in: tuple[Plain, ...] | None = None
    """The location of each nvidia-imex process: ``host`` (its systemd service), ``pod`` (of Kubernetes) or
    ``elsewhere``."""
    kubelet: bool | None = None
    """Whether the Kubernetes kubelet runs on this node."""
    compute_domains: bool | None = None
    """Whether Kubernetes' DRA driver for ComputeDomains, which manages IMEX, runs on this node or has left its
    files."""
    compute_domain_mode: Plain | None = None
    """``driverManaged`` or ``hostManaged``, from the environment of that driver. Only root may read it."""
    session_in_use: bool | None = None
    """Whether the service log has a rejected second daemon (``NV_ERR_IN_USE``) after its last ``READY``."""
    version: Plain | None = None
    """The version that the service log states at the last start."""
    unanswered_unimport: bool | None = None
    """Whether, by the service log since the last start, another node did not answer when memory was released."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricManager(Record):
    """The fabric manager's version, which must be the driver's."""

    version: Plain | None = None
    """The version of the installed package (Debian)."""
    refused_by: Plain | None = None
    """The version of the program that refused a driver last; ``not-present`` if no log says so."""
    refused_driver: Plain | None = None
    """The driver version that it refused."""
    runs_in: tuple[Plain, ...] | None = None
    """The location of each process of it: as :attr:`Imex.runs_in`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiSpecification(Record):
    """A file of the Container Device Interface that gives containers this node's GPUs."""

    path: Plain
    """``/etc/cdi/nvidia.yaml``; only the folder if the name is none of ``egmctl.facts.services.KNOWN_NAMES``."""
    driver_versions: tuple[Plain, ...] | None = None
    """The driver versions in the names of the libraries that it mounts (``libcuda.so.580.65.06``), sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEngine(Record):
    """A container engine that runs on this node, and whether it can give GPUs to containers."""

    name: Plain
    """``docker``, ``containerd`` or ``crio``."""
    nvidia_runtime: bool | None = None
    """Whether its configuration names NVIDIA's runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Containers(Record):
    """What gives containers this host's GPUs: the NVIDIA Container Toolkit, CDI specifications, and engines."""

    toolkit: bool | None = None
    """Whether the toolkit is installed (``nvidia-ctk``)."""
    specifications: tuple[CdiSpecification, ...] | None = None
    """The CDI specifications in ``/etc/cdi`` and ``/var/run/cdi`` that name a libcuda or cannot be read; empty if there
    are none."""
    cdi_refresh: bool | None = None
    """Whether systemd has the unit ``nvidia-cdi-refresh``, which writes ``/var/run/cdi/nvidia.yaml``."""
    engines: tuple[ContainerEngine, ...] | None = None
    """The engines that run here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbsNode(Record):
    """The device node for RDMA through a NIC."""

    nic: Plain | None = None
    """The NIC: ``mlx5_0``; ``not-supported`` for ``rdma_cm``, which belongs to no NIC."""
    node: DeviceNode


@dataclass(frozen=True, slots=True, kw_only=True)
class FirmwareEgm(Record):
    """An area of EGM memory that the firmware declares in the ACPI tables."""

    proximity_domain: int | None = None
    """``nvidia,egm-pxm``. NVIDIA's firmware states the number of the socket, or 4 more if it keeps the area for a
    hypervisor (edk2-nvidia, GPUMemoryInfo.c); in a virtual machine it is one of the machine's own domains."""
    size_bytes: int | None = None
    """``nvidia,egm-size``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System(Record):
    """The system around the driver: kernel settings, PCIe, IOMMU, daemons, IMEX and RDMA.

    Everything except the state of IMEX is read from files.
    """

    uptime_s: float | None = None
    kernel_configuration: Mapping[Plain, Plain] | None = None
    """``y``, ``m`` or ``n`` for each of ``egmctl.facts.system.CONFIGURATION_KEYS``."""
    acpi_egm: bool | None = None
    """Whether the ACPI tables declare EGM memory (``nvidia,egm-base-pa``). Only root may read them."""
    firmware_egm: tuple[FirmwareEgm, ...] | None = None
    """The EGM areas in the ACPI tables, one per proximity domain; empty if there are none. Only root may read them."""
    egm_regions: tuple[Plain, ...] | None = None
    """The devices in ``/sys/class/egm``, which pass EGM memory to virtual machines; empty if there are none."""
    egm_region_bytes: Mapping[Plain, int] | None = None
    """The size of each of them that states one (``egm_size``)."""
    max_map_count: int | None = None
    """``vm.max_map_count``."""
    remove_ipc: bool | None = None
    """logind's ``RemoveIPC``: whether a user's shared memory is removed with the last session. ``None`` if no file
    sets it; then the distribution's default applies."""
    iommu_domains: Mapping[Plain, Plain] | None = None
    """The IOMMU group type (``DMA``, ``DMA-FQ``, ``identity``) of each GPU and NIC in a group, by bus id."""
    bridges: tuple[Bridge, ...] | None = None
    """The bridges above GPUs, NICs and Data Direct functions, in the order of bus ids."""
    data_direct: tuple[PciFunction, ...] | None = None
    """The Data Direct functions, through which a ConnectX-8 accesses the GPU beside it; empty if there are none."""
    ats: Mapping[Plain, bool] | None = None
    """Whether each NIC has address translation services (ATS), by bus id. Only root may read it."""
    daemons: tuple[Plain, ...] | None = None
    """The running daemons among ``egmctl.facts.system.DAEMONS``; in a container, only those of its own PID
    namespace."""
    imex: Imex | None = None
    fabric_manager: FabricManager | None = None
    containers: Containers | None = None
    module_versions: Mapping[Plain, Plain] | None = None
    """The versions of the loaded modules among ``egmctl.facts.system.RDMA_MODULES``; ``""`` if a module states no
    version."""
    peer_memory_clients: tuple[Plain, ...] | None = None
    """The names in ``/sys/kernel/mm/memory_peers``: the modules that registered with the RDMA stack. Empty if it has no
    such folder: the stack makes it with the first that registers, but not every one does."""
    peermem_linked: bool | None = None
    """Whether ``nvidia_peermem`` uses ``ib_core`` or ``ib_uverbs``: it was built with their functions for peer memory,
    and could register."""
    verbs: tuple[VerbsNode, ...] | None = None
    """The nodes in ``/dev/infiniband`` with a kernel device; empty if there are none."""
    nvlink_management: tuple[Nic, ...] | None = None
    """The InfiniBand devices that manage the NVLink switches of this node and are no NICs. Only root can identify
    them."""

    @property
    def ofed_version(self) -> str | None:
        """The version of DOCA-OFED or MLNX_OFED, which its mlx5_core states; empty if that is the kernel's own, which
        states none; ``None`` if it is not loaded or was not read."""
        return (self.module_versions or {}).get("mlx5_core")


INITIAL_NAMESPACES = {"ipc": 0xEFFFFFFF, "user": 0xEFFFFFFD, "pid": 0xEFFFFFFC, "cgroup": 0xEFFFFFFB}
"""Inode numbers of the kernel's initial namespaces (include/linux/proc_ns.h); those of ``mnt`` and ``net`` are not
fixed."""

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
"""The relevant bits of :attr:`Confinement.capabilities` (include/uapi/linux/capability.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup(Record):
    """One line of ``/proc/self/cgroup``."""

    version: int
    controllers: tuple[Plain, ...] = ()
    path: Annotated[str, Share.CGROUP_PATH]


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaProcesses(Record):
    """Processes of one user and IPC namespace that use GPUs and have loaded the same libraries."""

    user: int
    """The number of the user and IPC namespace among those here, in the order in which they were seen."""
    processes: int
    """The number of the processes."""
    asked: bool = False
    """Whether the process of ``--pid`` is among them."""
    libcuda_version: Plain | None = None
    """The version in the name of their libcuda: ``580.65.06``."""
    libcuda_compat: bool | None = None
    """Whether it is of CUDA's compat package."""
    runtime_version: Plain | None = None
    """The version in the name of their libcudart; ``not-present`` if a program has it inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemoryLimit(Record):
    """What one cgroup states about the memory of one GPU (the ``dmem`` controller, Linux 6.14)."""

    cgroup: Annotated[str, Share.CGROUP_PATH]
    """The path of the cgroup: that of the process or an ancestor."""
    bus_id: BusId
    max_bytes: int | None = None
    """``dmem.max``: allocations beyond it fail; -1 is unlimited."""
    min_bytes: int | None = None
    """``dmem.min``: what is guaranteed, MPS's soft limit; -1 is all."""
    low_bytes: int | None = None
    """``dmem.low``: what is spared as long as others can give memory back; -1 is all."""
    current_bytes: int | None = None
    """``dmem.current``: what the cgroup and those below it hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process(Record):
    """The process: its cgroups, signs of a container, and the environment variables that affect drivers."""

    pid: int = 0
    """The process id that ``--pid`` specifies; 0 for the tool itself."""
    effective_uid: int | None = None
    cgroups: tuple[Cgroup, ...] | None = None
    device_memory: tuple[DeviceMemoryLimit, ...] | None = None
    """What the cgroups from the visible root to that of the process state about the memory of each GPU; empty if none
    of them has the controller ``dmem``. A container does not see those above its own."""
    device_memory_capacity: Mapping[BusId, int] | None = None
    """``dmem.capacity``: the memory of each GPU, whatever the limits. Only the root cgroup has it."""
    container_signs: tuple[Plain, ...] | None = None
    """Signs such as ``/.dockerenv``, ``/run/.containerenv``, ``KUBERNETES_SERVICE_HOST``, ``overlay root``; empty if
    none."""
    environment: Mapping[Plain, Annotated[str, Share.ENVIRONMENT]] | None = None
    """The variables that are set among ``egmctl.facts.process.ENVIRONMENT_KEYS``."""
    cuda_processes: tuple[CudaProcesses, ...] | None = None
    """The processes that use GPUs here and whose maps this process may read, as NVML lists them, and that of
    ``--pid``; only in the host's PID namespace, whose ids NVML states."""
    cuda_processes_unread: int | None = None
    """The number of those whose maps were not read: too many or too long, or the kernel did not answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount(Record):
    """One mount in ``/proc/self/mountinfo`` that affects device nodes or shared memory."""

    path: Plain
    """``/``, ``/dev``, ``/dev/shm``, or a path of NVIDIA or InfiniBand below ``/dev`` or ``/proc/driver``."""
    kind: Plain
    """The file system type: ``devtmpfs``, ``tmpfs``, ``overlay``, ``proc``."""
    options: tuple[Plain, ...] = ()
    """The options of the mount, not of the file system: ``ro``, ``nosuid``, ``nodev``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProgram(Record):
    """A BPF program that controls the device access of a version 2 cgroup."""

    id: int
    name: Annotated[str, Share.CGROUP_PATH] | None = None
    """The name of the program, which may identify its manager: ``Slurm_Cgroup_v2``, ``sd_devices``; often empty."""
    cgroup: Annotated[str, Share.CGROUP_PATH] | None = None
    """The cgroup to which it is attached: that of the process or an ancestor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceList:
    """The ``devices.list`` of a version 1 cgroup: that of the process or an ancestor."""

    cgroup: Annotated[str, Share.CGROUP_PATH]
    rules: tuple[Plain, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUnit:
    """The device settings in one systemd file of a unit that contains the process' cgroup."""

    unit: Annotated[str, Share.CGROUP_PATH]
    file: Annotated[str, Share.CGROUP_PATH]
    settings: tuple[Plain, ...]
    """``DevicePolicy=closed``, ``DeviceAllow=/dev/nvidia0 rw``, in the order of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement(Record):
    """The restrictions of a process: namespaces, capabilities, seccomp, resource limits, mounts, device cgroup."""

    namespaces: Mapping[Plain, int | None] | None = None
    """The inode numbers by name in ``/proc/self/ns``; compare with :data:`INITIAL_NAMESPACES`."""
    pid_namespace_depth: int | None = None
    """The number of ids in ``NSpid``; 1 also inside a container with its own ``/proc``."""
    uid_map: tuple[tuple[int, int, int], ...] | None = None
    """The ranges in ``/proc/self/uid_map``: first id inside, first outside, length. ``(0, 0, 4294967295)`` is the
    initial namespace."""
    capabilities: int | None = None
    """``CapEff``: the bits of :data:`CAPABILITIES` and others."""
    seccomp: Plain | None = None
    """``none``, ``strict`` or ``filter``."""
    no_new_privileges: bool | None = None
    limits: Mapping[Plain, int | None] | None = None
    """The soft limits ``as`` (address space), ``memlock``, ``stack`` (bytes), ``nofile`` and ``nproc``; -1 is
    unlimited."""
    pids_left: int | None = None
    """The number of further processes and threads that the cgroups allow (``pids.max``); -1 is unlimited."""
    memory_limit_bytes: int | None = None
    """The memory that the cgroups allow (``memory.max``), page cache and /dev/shm included; -1 is unlimited."""
    mounts: tuple[Mount, ...] | None = None
    shm_total_bytes: int | None = None
    """The size of ``/dev/shm``."""
    shm_free_bytes: int | None = None
    ptrace_scope: int | None = None
    """Yama's ``kernel.yama.ptrace_scope``; ``not-present`` without Yama, which is equivalent to 0."""
    device_rules: tuple[Plain, ...] | None = None
    """The version 1 cgroup's ``devices.list``: ``c 195:0 rw``. Only a hint, because a list of denials also prints
    ``a *:* rwm``; access(2) of each node counts."""
    device_lists: tuple[DeviceList, ...] = ()
    """The same list for each cgroup from the root to that of the process; empty if there is none or it was not read."""
    device_units: tuple[DeviceUnit, ...] = ()
    """The units in the cgroup's path with a device policy in their files; empty if there is none or no file can be
    read."""
    device_programs: tuple[DeviceProgram, ...] | None = None
    """The BPF programs in effect on the version 2 cgroup. Only root may query them."""
    system_calls: Mapping[Plain, Plain | None] | None = None
    """The results of harmless calls of ``get_mempolicy``, ``mbind``, ``set_mempolicy`` and ``pidfd_open``: ``ok``, the
    name of the error number, or ``killed``."""

    def capable(self, name: str) -> bool | None:
        """Return whether the process has a capability of :data:`CAPABILITIES`; ``None`` if that was not read."""
        return None if self.capabilities is None else bool(self.capabilities >> CAPABILITIES[name] & 1)
