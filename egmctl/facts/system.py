"""The operating system around the GPUs: how the kernel was built and set up, PCIe bridges, RDMA."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable

from egmctl.facts import host, nics, nodes, pci, services
from egmctl.facts.root import READ_LIMIT, Reasons, Root, Unreadable
from egmctl.model.machine import PciFunction, Reason
from egmctl.model.system import Bridge, System, VerbsNode
from egmctl.units import natural

CONFIGURATION_KEYS = ("NUMA", "ACPI_NUMA", "NUMA_BALANCING", "MEMORY_HOTPLUG", "IOMMU_SVA", "ARM_SMMU_V3_SVA")
"""Options that coherent GPUs need or suffer from, without ``CONFIG_``: the driver looks up EGM's NUMA node only where
ACPI_NUMA is built in (open-gpu-kernel-modules, kernel-open/nvidia/nv.c), and UVM refuses a GPU with ATS where the
SMMU's SVA is missing."""

RDMA_MODULES = ("nvidia_peermem", "nv_peer_mem", "gdrdrv", "ib_core", "ib_umad", "ib_uverbs", "mlx5_core", "mlx5_ib")
"""Kernel modules of GPUDirect RDMA and of what it works with, and ib_umad, by which NVLink 5 switches are managed."""

ACPI_TABLES = "/sys/firmware/acpi/tables"
_EGM_PROPERTY = b"nvidia,egm-base-pa"
"""Device property by which the firmware hands EGM memory to the driver (nv.c, nv_acpi_get_egm_info)."""

LOGIND_FILES = ("/etc/systemd/logind.conf", "/run/systemd/logind.conf", "/usr/lib/systemd/logind.conf")
_VERBS = "/sys/class/infiniband_verbs"

_CONFIG_BYTES = 4096
_FIRST_EXTENDED, _ACS, _ATS = 0x100, 0x0D, 0x0F
"""Offset of the first extended capability, and the ids of Access Control Services and of Address Translation Services
(PCI Express Base Specification)."""


def system(root: Root) -> System:
    """Read all of it."""
    why = Reasons()
    processes = why.read("daemons", lambda: services.processes(root))
    functions = why.read("iommu_domains", lambda: _functions(root))
    data_direct = why.read("data_direct", lambda: pci.data_direct(root))
    if functions is None:
        why.unread["bridges"] = why.unread["ats"] = why.unread["iommu_domains"]
    return System(
        uptime_s=why.read("uptime_s", lambda: _uptime(root)),
        kernel_configuration=why.read("kernel_configuration", lambda: _configuration(root)),
        acpi_egm=why.read("acpi_egm", lambda: _acpi_egm(root)),
        egm_regions=tuple(root.names_if_any("/sys/class/egm")),
        max_map_count=why.read("max_map_count", lambda: root.number("/proc/sys/vm/max_map_count")),
        remove_ipc=why.read("remove_ipc", lambda: _remove_ipc(root)),
        iommu_domains=None if functions is None else _iommu_domains(root, functions),
        bridges=None if functions is None else _bridges(root, (*functions, *(data_direct or ()))),
        data_direct=data_direct,
        ats=None if functions is None else why.read("ats", lambda: _ats(root, functions)),
        daemons=None if processes is None else services.daemons(processes),
        imex=services.imex(root, processes),
        module_versions=why.read("module_versions", lambda: _module_versions(root)),
        peer_memory_clients=why.read(
            "peer_memory_clients", lambda: tuple(root.names_if_any("/sys/kernel/mm/memory_peers"))
        ),
        verbs=why.read("verbs", lambda: _verbs(root)),
        nvlink_management=why.read("nvlink_management", lambda: nics.management(root)),
        unread=why.unread,
    )


def _uptime(root: Root) -> float:
    if match := re.match(r"[0-9]{1,12}(\.[0-9]{1,3})?", root.read("/proc/uptime"), re.ASCII):
        return float(match[0])
    raise Unreadable(Reason.FAILED, "/proc/uptime: no number")


def _configuration(root: Root) -> dict[str, str]:
    text = _configuration_text(root)
    found = dict(re.findall(r"^CONFIG_(\w+)=(\S{1,40})$", text, re.M | re.A))
    if not found:
        raise Unreadable(Reason.FAILED, "the kernel's configuration: no line CONFIG_...=")
    # An option whose conditions are not met is not named at all.
    return {key: found.get(key, "n") for key in CONFIGURATION_KEYS}


def _configuration_text(root: Root) -> str:
    try:
        packed = root.read_bytes("/proc/config.gz")
    except Unreadable:
        return root.read(f"/boot/config-{root.read('/proc/sys/kernel/osrelease')}")
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(packed, READ_LIMIT).decode(errors="replace")
    except zlib.error:
        raise Unreadable(Reason.FAILED, "/proc/config.gz: not compressed data") from None


def _acpi_egm(root: Root) -> bool:
    if (architecture := host.machine_architecture(root)) != "aarch64":
        raise Unreadable(Reason.NOT_SUPPORTED, f"{architecture}: only Grace has EGM")
    tables = [name for name in root.names(ACPI_TABLES) if re.fullmatch("DSDT|SSDT[0-9]{0,3}", name)]
    if not tables:
        raise Unreadable(Reason.NOT_PRESENT, f"{ACPI_TABLES}: neither DSDT nor SSDT")
    return any(_EGM_PROPERTY in root.read_bytes(f"{ACPI_TABLES}/{name}") for name in tables)


def _remove_ipc(root: Root) -> bool:
    # Drop-ins outrank the file, and the last line wins (logind.conf(5)).
    drop_ins = [f"{path}.d/{name}" for path in reversed(LOGIND_FILES) for name in root.names_if_any(f"{path}.d")]
    main = next((path for path in LOGIND_FILES if root.exists(path)), None)
    found = None
    for path in ([main] if main else []) + [path for path in drop_ins if path.endswith(".conf")]:
        for value in re.findall(r"^\s*RemoveIPC\s*=\s*(\w+)\s*$", root.read(path), re.M | re.A):
            found = value.lower() in ("1", "yes", "true", "on", "y", "t")
    if found is None:
        raise Unreadable(Reason.NOT_PRESENT, "logind.conf: no line RemoveIPC=")
    return found


def _functions(root: Root) -> tuple[PciFunction, ...]:
    """Return the GPUs and the NICs."""
    gpus = (found for found in pci.nvidia_functions(root) if pci.is_gpu(found))
    return (*gpus, *(nic.pci for nic in nics.nics(root) if nic.pci is not None))


def _iommu_domains(root: Root, functions: Iterable[PciFunction]) -> dict[str, str]:
    found = {}
    for function in functions:
        try:
            found[function.bus_id] = root.read(f"{pci.DEVICES}/{function.bus_id}/iommu_group/type")
        except Unreadable:
            continue
    return found


def _bridges(root: Root, functions: Iterable[PciFunction]) -> tuple[Bridge, ...]:
    above = {name for function in functions for name in function.path or () if pci.BUS_ID.fullmatch(name)}
    return tuple(_bridge(root, bus_id) for bus_id in sorted(above))


def _bridge(root: Root, bus_id: str) -> Bridge:
    folder = f"{pci.DEVICES}/{bus_id}"
    why = Reasons()
    return Bridge(
        bus_id=bus_id,
        vendor_id=why.read("vendor_id", lambda: root.number(f"{folder}/vendor", 16)),
        device_id=why.read("device_id", lambda: root.number(f"{folder}/device", 16)),
        link=pci.link(root, folder),
        acs_control=why.read("acs_control", lambda: _acs_control(root, f"{folder}/config")),
        unread=why.unread,
    )


def _acs_control(root: Root, path: str) -> int:
    acs = _extended(root, path, _ACS)
    if acs is None:
        raise Unreadable(Reason.NOT_SUPPORTED, f"{path}: no Access Control Services")
    (control,) = struct.unpack_from("<H", acs, 6)
    return int(control)


def _ats(root: Root, functions: Iterable[PciFunction]) -> dict[str, bool]:
    """Return which NICs have it."""
    nics = [function.bus_id for function in functions if not pci.is_gpu(function)]
    return {bus_id: _extended(root, f"{pci.DEVICES}/{bus_id}/config", _ATS) is not None for bus_id in nics}


def _extended(root: Root, path: str, wanted: int) -> bytes | None:
    """Return configuration space from an extended capability on, ``None`` where the function does not have it."""
    config = root.read_bytes(path, _CONFIG_BYTES)
    if len(config) <= 64:
        # The kernel shows others than root the standard header only.
        raise Unreadable(Reason.NO_PERMISSION, f"{path}: {len(config)} bytes")
    offset = _FIRST_EXTENDED
    # A list whose every item is at least 8 bytes: so many steps at most.
    for _ in range((_CONFIG_BYTES - _FIRST_EXTENDED) // 8):
        if not _FIRST_EXTENDED <= offset <= len(config) - 8:
            break
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == wanted:
            return config[offset:]
        offset = header >> 20
    return None


def _module_versions(root: Root) -> dict[str, str]:
    if not root.exists("/sys/module"):
        raise Unreadable(Reason.NOT_PRESENT, "/sys/module: ENOENT")
    return {name: _module_version(root, name) for name in RDMA_MODULES if root.exists(f"/sys/module/{name}")}


def _module_version(root: Root, name: str) -> str:
    try:
        return root.read(f"/sys/module/{name}/version")
    except Unreadable:
        return ""


def _verbs(root: Root) -> tuple[VerbsNode, ...]:
    found = []
    for name in sorted(root.names_if_any(_VERBS), key=natural):
        if re.fullmatch("uverbs[0-9]{1,4}", name):
            why = Reasons()
            nic = why.read("nic", lambda name=name: root.read(f"{_VERBS}/{name}/ibdev"))  # type: ignore[misc]
            found.append(VerbsNode(nic=nic, node=nodes.read(root, f"/dev/infiniband/{name}"), unread=why.unread))
    if found:
        why = Reasons()
        why.null("nic", Reason.NOT_SUPPORTED, "rdma_cm belongs to no NIC")
        found.append(VerbsNode(node=nodes.read(root, "/dev/infiniband/rdma_cm"), unread=why.unread))
    return tuple(found)
