"""The system around the GPUs: services, NICs, device nodes, kernel modules, PCIe bridges and IOMMU."""

from __future__ import annotations

import functools
import os
import re
import stat
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field

from egmctl.dataclass import dataclass
from egmctl.driver.reading import Reasons, Unreadable, read_or
from egmctl.facts import egm, host, services
from egmctl.facts import gpus as pci
from egmctl.facts.root import READ_LIMIT, OtherRoot, Root, program_output
from egmctl.model.host import Bridge, DeviceNode, Imex, Nic, NicPort, PciFunction, System, VerbsNode
from egmctl.model.record import Reason, Unread
from egmctl.units import natural

CAPS = "/dev/nvidia-caps"
IMEX_CHANNELS = "/dev/nvidia-caps-imex-channels"

_KINDS = {"c": "character", "b": "block", "d": "directory", "-": "file", "p": "fifo", "s": "socket"}
"""The kinds of files by the first letter that ls(1) prints."""


AnyRoot = Root | OtherRoot
"""A root directory with device nodes: of this node, of a copied tree, or of another process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNodes:
    """The driver's device nodes at one time."""

    gpus: Mapping[int, DeviceNode]
    """The GPUs' nodes by minor. A missing node has ``exists`` False."""
    control: tuple[DeviceNode, ...]
    """The nodes nvidiactl, nvidia-uvm, nvidia-uvm-tools and those in nvidia-caps."""
    imex_channels: tuple[DeviceNode, ...] | None
    """The IMEX channels; empty if their folder is missing, ``None`` if it cannot be listed."""
    unread: Mapping[str, Unread] = field(default_factory=dict)
    """The reasons why folders cannot be listed, by the driver's field that they fill: ``nodes.nvidia-caps``,
    ``imex_channels``."""


def read_device_nodes(root: AnyRoot, minors: Iterable[int]) -> DeviceNodes:
    """Read the driver's device nodes.

    Parameters
    ----------
    minors
        The minors of the GPUs that the driver lists. Further nodes are found by their names in ``/dev``.
    """
    reasons = Reasons()
    present = {
        int(match[1]) for name in root.names_if_any("/dev") if (match := re.fullmatch(r"nvidia([0-9]{1,3})", name))
    }
    caps = reasons.read("nodes.nvidia-caps", lambda: _listed(root, CAPS, r"nvidia-cap[0-9]+"))
    return DeviceNodes(
        gpus={minor: read_device_node(root, f"/dev/nvidia{minor}") for minor in sorted(present | set(minors))},
        control=(
            *(read_device_node(root, f"/dev/{name}") for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")),
            *(caps or ()),
        ),
        imex_channels=reasons.read("imex_channels", lambda: _listed(root, IMEX_CHANNELS, r"channel[0-9]+")),
        unread=reasons.unread,
    )


def read_device_node(root: AnyRoot, path: str) -> DeviceNode:
    """Read the status of a device node and this process' access to it."""
    reasons = Reasons()
    access = reasons.read("access", lambda: root.access(path))
    try:
        status = root.status(path)
    except Unreadable as error:
        exists = error.unread.reason is not Reason.NOT_PRESENT
        unknown = dict.fromkeys(("kind", "major", "minor", "mode", "uid", "gid", "nodev"), error)
        return reasons.record(DeviceNode, path=path, exists=exists, access=access, **unknown)
    kind = _KINDS.get(stat.filemode(status.st_mode)[0], "unknown")
    if kind == "file" and not root.is_live:
        # In a copied tree a regular file represents the node. It has the mode but no device numbers.
        kind = "character"
    device = stat.S_ISCHR(status.st_mode)
    no_device = Unreadable(Reason.NOT_PRESENT, f"{path}: not a character device")
    return reasons.record(
        DeviceNode,
        path=path,
        exists=True,
        kind=kind,
        major=os.major(status.st_rdev) if device else no_device,
        minor=os.minor(status.st_rdev) if device else no_device,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        access=access,
        nodev=lambda: bool(root.file_system(path).f_flag & os.ST_NODEV),
    )


def _listed(root: AnyRoot, folder: str, pattern: str) -> tuple[DeviceNode, ...]:
    """Read the nodes in a folder whose names match a pattern, in the order of their numbers."""
    names = [name for name in root.names_if_any(folder) if re.fullmatch(pattern, name)]
    return tuple(read_device_node(root, f"{folder}/{name}") for name in sorted(names, key=natural))


CLASS = "/sys/class/infiniband"
_MANAGER = 0x15B3, 0x1021
"""The vendor and device id of a ConnectX-7, the only device known to manage NVLink switches."""
_MANAGES = b"SW_MNG"
_VPD_BYTES = 4096
"""The number of bytes to read of the Vital Product Data, more than such a device has."""


def nics(root: Root) -> tuple[Nic, ...]:
    """Return the NICs except those that manage NVLink switches, in natural order; none without an InfiniBand class.

    Raises
    ------
    Unreadable
        The devices cannot be listed.
    """
    return tuple(device for device in _devices(root) if not read_or(False, functools.partial(_manages, root, device)))


def management(root: Root) -> tuple[Nic, ...]:
    """Return the devices by which this node manages its NVLink switches.

    Raises
    ------
    Unreadable
        The devices cannot be listed, or the Vital Product Data of a possible device cannot be read.
    """
    return tuple(device for device in _devices(root) if _manages(root, device))


def _manages(root: Root, device: Nic) -> bool:
    function = device.pci
    if function is None or (function.vendor_id, function.device_id) != _MANAGER:
        return False
    return _MANAGES in root.read_bytes(f"{CLASS}/{device.name}/device/vpd", _VPD_BYTES)


def _devices(root: Root) -> tuple[Nic, ...]:
    return tuple(_nic(root, name) for name in sorted(root.names_if_any(CLASS), key=natural))


def _nic(root: Root, name: str) -> Nic:
    folder = f"{CLASS}/{name}"
    reasons = Reasons()
    return reasons.record(
        Nic,
        name=name,
        pci=lambda: pci.function(root, f"{folder}/device"),
        ports=reasons.read("ports", lambda: _ports(root, f"{folder}/ports")) or (),
        firmware=lambda: root.read(f"{folder}/fw_ver"),
        node_guid=lambda: root.read(f"{folder}/node_guid"),
        board_id=lambda: root.read(f"{folder}/board_id"),
        max_read_request_bytes=lambda: _max_read_request(root, f"{folder}/device"),
        interfaces=tuple(reasons.read("interfaces", lambda: root.names(f"{folder}/device/net")) or ()),
    )


def _ports(root: Root, folder: str) -> tuple[NicPort, ...]:
    numbers = sorted(int(name) for name in root.names(folder) if re.fullmatch(r"[0-9]{1,3}", name))
    return tuple(_port(root, f"{folder}/{number}", number) for number in numbers)


def _port(root: Root, folder: str, number: int) -> NicPort:
    return Reasons().record(
        NicPort,
        number=number,
        state=lambda: _word(root, f"{folder}/state"),
        physical_state=lambda: _word(root, f"{folder}/phys_state"),
        link_layer=lambda: root.read(f"{folder}/link_layer"),
        # "400 Gb/sec (4X NDR)", "2.5 Gb/sec (1X SDR)".
        rate_gbit_s=lambda: float(
            root.search(f"{folder}/rate", r"\A([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec", "no rate")[1]
        ),
    )


def _word(root: Root, path: str) -> str:
    """Return the word in a file such as ``4: ACTIVE``."""
    return root.read(path).rpartition(":")[2].strip()


DAEMONS = {
    "nvidia-imex": "nvidia-imex",
    # The kernel keeps 15 characters of a process' name (TASK_COMM_LEN).
    "nv-fabricmanage": "nv-fabricmanager",
    "nvidia-persiste": "nvidia-persistenced",
    "nvidia-cuda-mps": "nvidia-cuda-mps-control",
    "nvlsm": "nvlsm",
}
"""The full names of daemons, by their names in ``/proc/<pid>/comm``."""

IMEX_NODES = "/etc/nvidia-imex/nodes_config.cfg"
IMEX_CONTROL = ("/usr/bin/nvidia-imex-ctl", "/opt/nvidia/imex/bin/nvidia-imex-ctl")
IMEX_TIMEOUT_S = 1.5
"""The timeout of nvidia-imex-ctl, which answers at once or hangs (kubernetes-sigs/dra-driver-nvidia-gpu issue 1417)."""

COMPUTE_DOMAIN_PLUGIN = "/var/lib/kubelet/plugins/compute-domain.nvidia.com"
_COMPUTE_DOMAIN_CDI = "k8s.compute-domain.nvidia.com"
_COMPUTE_DOMAIN_COMM = "compute-domain-"
"""The plugin folder, the prefix of CDI files, and the program names, cut to 15 characters, of Kubernetes' DRA driver
(https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu, 0.5)."""
_KUBELETS = frozenset({"kubelet", "kubelite", "k3s-server", "k3s-agent"})
"""The names of processes that are or contain Kubernetes' agent."""

_MOST_PROCESSES = 1 << 16
_MOST_OUTPUT = 1 << 20

_DAEMON_STATES = (
    "INITIALIZING|STARTING_AUTH_SERVER|WAITING_FOR_PEERS|WAITING_FOR_RECOVERY|INIT_GPU|READY|SHUTTING_DOWN|UNAVAILABLE"
)
"""The states that ``nvidia-imex-ctl -q`` prints (DCGM, DcgmImexManager)."""


ProcessIds = Mapping[str, Sequence[str]]
"""The ids of processes by name, as in ``/proc/<pid>/comm``."""


def processes(root: Root) -> ProcessIds:
    """Return the ids of the running processes by name.

    Raises
    ------
    Unreadable
        ``/proc`` cannot be listed.
    """
    by_name: dict[str, list[str]] = {}
    for process in [name for name in root.names("/proc") if re.fullmatch(r"[0-9]{1,8}", name)][:_MOST_PROCESSES]:
        with suppress(Unreadable):
            by_name.setdefault(root.read(f"/proc/{process}/comm"), []).append(process)
    return by_name


def daemons(running: ProcessIds) -> tuple[str, ...]:
    """Return the full names of the running daemons of :data:`DAEMONS`, in that order."""
    return tuple(dict.fromkeys(full for comm, full in DAEMONS.items() if comm in running))


def imex(root: Root, running: Callable[[], ProcessIds]) -> Imex:
    """Read the IMEX service: its configured nodes, its manager, and its state from its control program if installed."""
    reasons = Reasons()
    state = reasons.read("daemon_state", lambda: _services_word(root, ("-q",), rf"\b({_DAEMON_STATES})\b"))
    # With -N, the program prints the document again for every change, so the last one counts. If -q fails, -N is not
    # tried, because a program that hangs would hang again.
    domain = functools.partial(_services_word, root, ("-N", "-j"), r'"status"\s*:\s*"(UP|DOWN|DEGRADED)"')
    return reasons.record(
        Imex,
        **reasons.fields("configured_nodes duplicate_nodes", lambda: _addresses(root)),
        daemon_state=state,
        domain_status=domain if state is not None else reasons.unread["daemon_state"],
        runs_in=lambda: _places(root, running(), "nvidia-imex"),
        kubelet=lambda: not _KUBELETS.isdisjoint(running()),
        compute_domains=lambda: _compute_domains(root, running()),
        compute_domain_mode=lambda: _mode(root, running()),
        session_in_use=lambda: services.imex_session_in_use(root),
        version=lambda: services.imex_version(root),
        unanswered_unimport=lambda: services.imex_unanswered(root),
    )


_UNITS = {"nvidia-imex": "/nvidia-imex.service", "nv-fabricmanager": "/nvidia-fabricmanager.service"}
"""By full name of a daemon, the end of the cgroup of its systemd service."""


def _places(root: Root, running: ProcessIds, daemon: str) -> tuple[str, ...]:
    places = set()
    for process in (process for comm, full in DAEMONS.items() if full == daemon for process in running.get(comm, ())):
        cgroup = root.read(f"/proc/{process}/cgroup")
        if "kubepods" in cgroup:
            places.add("pod")
        else:
            places.add("host" if _UNITS[daemon] in cgroup else "elsewhere")
    return tuple(sorted(places))


def _compute_domains(root: Root, running: ProcessIds) -> bool:
    if _COMPUTE_DOMAIN_COMM in running:
        return True
    with suppress(Unreadable):
        root.status(COMPUTE_DOMAIN_PLUGIN)
        return True
    return any(name.startswith(_COMPUTE_DOMAIN_CDI) for name in root.names_if_any("/var/run/cdi"))


def _mode(root: Root, running: ProcessIds) -> str:
    unread = Unreadable(Reason.NOT_PRESENT, "compute-domain-kubelet-plugin: no such process")
    for process in running.get(_COMPUTE_DOMAIN_COMM, ()):
        program = root.read(f"/proc/{process}/cmdline").partition("\0")[0].rpartition("/")[2]
        if program == "compute-domain-daemon":
            return "driverManaged"
        if program != "compute-domain-kubelet-plugin":
            continue
        try:
            environment = root.read(f"/proc/{process}/environ")
        except Unreadable as error:
            unread = error
            continue
        # The variable was added with the second mode (dra-driver-nvidia-gpu 0.5). Without it the mode is the first.
        mode = re.search(r"(?:^|\0)IMEX_MODE=(driverManaged|hostManaged)(?:\0|$)", environment)
        return mode[1] if mode else "driverManaged"
    raise unread


def _addresses(root: Root) -> tuple[int, int]:
    """Return the number of configured nodes and the number of duplicates among them."""
    lines = [line.partition("#")[0].strip() for line in root.lines(IMEX_NODES)]
    addresses = [line for line in lines if line]
    return len(addresses), len(addresses) - len(set(addresses))


def _services_word(root: Root, arguments: tuple[str, ...], pattern: str) -> str:
    """Run the IMEX control program and return the last match of a pattern in its output."""
    path = next((path for path in IMEX_CONTROL if root.exists(path)), None)
    if path is None:
        raise Unreadable(Reason.NOT_PRESENT, f"{IMEX_CONTROL[0]}: ENOENT")
    shown = " ".join((path, *arguments))
    if not root.is_live:
        raise Unreadable(Reason.NOT_ASKED, f"{shown}: programs of a copied tree are not run")
    output = program_output([root.path(path), *arguments], shown, IMEX_TIMEOUT_S, _MOST_OUTPUT)
    words = re.findall(pattern, output.decode(errors="replace"), re.ASCII)
    if not words:
        raise Unreadable(Reason.FAILED, f"{shown}: no such word in its output")
    return str(words[-1])


CONFIGURATION_KEYS = ("NUMA", "ACPI_NUMA", "NUMA_BALANCING", "MEMORY_HOTPLUG", "IOMMU_SVA", "ARM_SMMU_V3_SVA")
"""The kernel options that coherent GPUs need or that harm them, without ``CONFIG_``. The driver looks up EGM's NUMA
node only with ACPI_NUMA (open-gpu-kernel-modules, kernel-open/nvidia/nv.c), and UVM rejects a GPU with ATS if the
SMMU's SVA is missing."""

RDMA_MODULES = ("nvidia_peermem", "nv_peer_mem", "gdrdrv", "ib_core", "ib_umad", "ib_uverbs", "mlx5_core", "mlx5_ib")
"""The kernel modules of GPUDirect RDMA and its dependencies, and ib_umad, which the management of NVLink 5 switches
needs."""

LOGIND_FILES = ("/etc/systemd/logind.conf", "/run/systemd/logind.conf", "/usr/lib/systemd/logind.conf")
_VERBS = "/sys/class/infiniband_verbs"

_CONFIG_BYTES = 4096
_CAPABILITIES, _EXPRESS = 0x34, 0x10
"""The register with the offset of the first capability, and the id of PCI Express (``PCI_CAPABILITY_LIST``,
``PCI_CAP_ID_EXP`` of linux/pci_regs.h)."""
_FIRST_EXTENDED, _ACS, _ATS = 0x100, 0x0D, 0x0F
"""The offset of the first extended capability, and the ids of Access Control Services and of Address Translation
Services (PCI Express Base Specification)."""


def system(root: Root) -> System:
    """Read the section ``system``: kernel settings, PCIe, IOMMU, daemons, IMEX and RDMA."""
    running = functools.cache(lambda: processes(root))
    functions = functools.cache(lambda: _functions(root))
    data_direct = functools.cache(lambda: pci.data_direct(root))
    firmware_egm = functools.cache(lambda: egm.firmware_egm(root, host.machine_architecture(root)))
    return Reasons().record(
        System,
        uptime_s=lambda: float(root.search("/proc/uptime", r"\A[0-9]{1,12}(\.[0-9]{1,3})?", "no number")[0]),
        kernel_configuration=lambda: _configuration(root),
        acpi_egm=lambda: bool(firmware_egm()),
        firmware_egm=firmware_egm,
        egm_regions=tuple(root.names_if_any(egm.EGM_CLASS)),
        egm_region_bytes=lambda: egm.region_sizes(root),
        max_map_count=lambda: root.number("/proc/sys/vm/max_map_count"),
        remove_ipc=lambda: _remove_ipc(root),
        iommu_domains=lambda: _iommu_domains(root, functions()),
        bridges=lambda: _bridges(root, (*functions(), *read_or((), data_direct))),
        data_direct=data_direct,
        ats=lambda: _ats(root, functions()),
        daemons=lambda: daemons(running()),
        imex=imex(root, running),
        fabric_manager=services.fabric_manager(root, lambda: _places(root, running(), "nv-fabricmanager")),
        containers=services.containers(root, running),
        module_versions=lambda: _module_versions(root),
        peer_memory_clients=lambda: tuple(root.names_if_any("/sys/kernel/mm/memory_peers")),
        peermem_linked=lambda: _peermem_linked(root),
        verbs=lambda: _verbs(root),
        nvlink_management=lambda: management(root),
    )


def _peermem_linked(root: Root) -> bool:
    if not root.exists("/sys/module/nvidia_peermem"):
        raise Unreadable(Reason.NOT_PRESENT, "/sys/module/nvidia_peermem: ENOENT")
    holders = (f"/sys/module/{name}/holders/nvidia_peermem" for name in ("ib_core", "ib_uverbs"))
    return any(root.exists(path) for path in holders)


def _configuration(root: Root) -> dict[str, str]:
    text = _configuration_text(root)
    options = dict(re.findall(r"^CONFIG_(\w+)=(\S{1,40})$", text, re.M | re.A))
    if not options:
        raise Unreadable(Reason.FAILED, "the kernel's configuration: no line CONFIG_...=")
    # The configuration does not list options whose dependencies are not met.
    # PCI_P2PDMA lets devices below one switch map each other. NVIDIA does not ask for it: a fact, and no fault.
    return {key: options.get(key, "n") for key in (*CONFIGURATION_KEYS, "PCI_P2PDMA")}


def _configuration_text(root: Root) -> str:
    try:
        packed = root.read_bytes("/proc/config.gz")
    except Unreadable:
        return root.read(f"/boot/config-{root.read('/proc/sys/kernel/osrelease')}")
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(packed, READ_LIMIT).decode(errors="replace")
    except zlib.error:
        raise Unreadable(Reason.FAILED, "/proc/config.gz: not compressed data") from None


def _remove_ipc(root: Root) -> bool:
    # Drop-ins take precedence over the file, and the last line wins (logind.conf(5)).
    drop_ins = [f"{path}.d/{name}" for path in reversed(LOGIND_FILES) for name in root.names_if_any(f"{path}.d")]
    main = next((path for path in LOGIND_FILES if root.exists(path)), None)
    values = []
    for path in ([main] if main else []) + [path for path in drop_ins if path.endswith(".conf")]:
        values += re.findall(r"^\s*RemoveIPC\s*=\s*(\w+)\s*$", root.read(path), re.M | re.A)
    if not values:
        raise Unreadable(Reason.NOT_PRESENT, "logind.conf: no line RemoveIPC=")
    return values[-1].lower() in ("1", "yes", "true", "on", "y", "t")


def _functions(root: Root) -> tuple[PciFunction, ...]:
    """Return the PCI functions of the GPUs and the NICs."""
    gpus = (function for function in pci.nvidia_functions(root) if pci.is_gpu(function))
    return (*gpus, *(nic.pci for nic in nics(root) if nic.pci is not None))


def _iommu_domains(root: Root, functions: Iterable[PciFunction]) -> dict[str, str]:
    domains = {}
    for function in functions:
        with suppress(Unreadable):
            domains[function.bus_id] = root.read(f"{pci.DEVICES}/{function.bus_id}/iommu_group/type")
    return domains


def _bridges(root: Root, functions: Iterable[PciFunction]) -> tuple[Bridge, ...]:
    above = {name for function in functions for name in function.path or () if pci.BUS_ID.fullmatch(name)}
    return tuple(_bridge(root, bus_id) for bus_id in sorted(above))


def _bridge(root: Root, bus_id: str) -> Bridge:
    folder = f"{pci.DEVICES}/{bus_id}"
    return Reasons().record(
        Bridge,
        bus_id=bus_id,
        vendor_id=lambda: root.number(f"{folder}/vendor", 16),
        device_id=lambda: root.number(f"{folder}/device", 16),
        link=pci.link(root, folder),
        acs_control=lambda: _acs_control(root, f"{folder}/config"),
    )


def _acs_control(root: Root, path: str) -> int:
    acs = _extended(root, path, _ACS)
    if acs is None:
        raise Unreadable(Reason.NOT_SUPPORTED, f"{path}: no Access Control Services")
    (control,) = struct.unpack_from("<H", acs, 6)
    return int(control)


def _ats(root: Root, functions: Iterable[PciFunction]) -> dict[str, bool]:
    """Return, by bus id, whether each NIC has Address Translation Services."""
    nic_ids = [function.bus_id for function in functions if not pci.is_gpu(function)]
    return {bus_id: _extended(root, f"{pci.DEVICES}/{bus_id}/config", _ATS) is not None for bus_id in nic_ids}


def _extended(root: Root, path: str, wanted: int) -> bytes | None:
    """Return configuration space from an extended capability on; ``None`` if the function lacks the capability."""
    config = _configuration_space(root, path)
    offset = _FIRST_EXTENDED
    # Each item of the list has at least 8 bytes, which limits the number of steps.
    for _ in range((_CONFIG_BYTES - _FIRST_EXTENDED) // 8):
        if not _FIRST_EXTENDED <= offset <= len(config) - 8:
            break
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == wanted:
            return config[offset:]
        offset = header >> 20
    return None


def _configuration_space(root: Root, path: str) -> bytes:
    config = root.read_bytes(path, _CONFIG_BYTES)
    if len(config) <= 64:
        # Without root the kernel returns only the standard header.
        raise Unreadable(Reason.NO_PERMISSION, f"{path}: {len(config)} bytes")
    return config


def _max_read_request(root: Root, function: str) -> int:
    """Return the maximum size of a read request in bytes (``PCI_EXP_DEVCTL_READRQ`` of linux/pci_regs.h)."""
    path = f"{function}/config"
    if root.exists(f"{function}/physfn"):
        # The field of a virtual function is reserved: its physical function's value applies (PCI Express, SR-IOV).
        raise Unreadable(Reason.NOT_SUPPORTED, f"{path}: a virtual function")
    config = _configuration_space(root, path)
    offset = config[_CAPABILITIES]
    # Each item of the list has at least 4 bytes, which limits the number of steps.
    for _ in range(_FIRST_EXTENDED // 4):
        if not 0 < offset < len(config) - 9:
            break
        if config[offset] == _EXPRESS and (size := config[offset + 9] >> 4 & 7) <= 5:
            return 128 << size
        offset = config[offset + 1]
    raise Unreadable(Reason.NOT_SUPPORTED, f"{path}: no PCI Express capability")


def _module_versions(root: Root) -> dict[str, str]:
    return {
        name: read_or("", functools.partial(root.read, f"/sys/module/{name}/version"))
        for name in pci.loaded(root, RDMA_MODULES)
    }


def _verbs(root: Root) -> tuple[VerbsNode, ...]:
    names = [name for name in root.names_if_any(_VERBS) if re.fullmatch("uverbs[0-9]{1,4}", name)]
    nics: dict[str, object] = {
        name: functools.partial(root.read, f"{_VERBS}/{name}/ibdev") for name in sorted(names, key=natural)
    }
    if nics:
        nics["rdma_cm"] = Unreadable(Reason.NOT_SUPPORTED, "rdma_cm belongs to no NIC")
    return tuple(
        Reasons().record(VerbsNode, nic=nic, node=read_device_node(root, f"/dev/infiniband/{name}"))
        for name, nic in nics.items()
    )
