"""Writes the files of a machine as its kernel would show them, for ``EGMCTL_SYSROOT``.

Device nodes are plain files: they have the mode of the real ones, but neither numbers nor an owner, and the device
cgroup does not apply to them. A value that is null in the machine has no file.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from pathlib import Path

from egmctl.model.gpu import Gpu, GpuProc
from egmctl.model.host import DeviceNode, Driver, Host, Nic, NumaKind, NumaNode, PciFunction, Process
from egmctl.model.machine import Machine
from egmctl.units import KIB
from tests.fake.system_files import write_system

_ARM_CORES = {"Neoverse-N1": 0xD0C, "Neoverse-V1": 0xD40, "Neoverse-N2": 0xD49, "Neoverse-V2": 0xD4F}
"""Part numbers of Arm's cores, as ``/proc/cpuinfo`` has them."""

_CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


def write_sysroot(machine: Machine, directory: Path) -> None:
    """Write the tree of a machine below ``directory``."""
    tree = Tree(directory)
    tree.folder("/dev")
    if machine.host is not None:
        _host(tree, machine.host)
    tree.folder("/sys/bus/pci/devices")
    for gpu in machine.gpus or ():
        _gpu(tree, gpu)
    for switch in machine.switches or ():
        _pci(tree, switch.pci)
    for nic in machine.nics or ():
        _nic(tree, nic)
    if machine.driver is not None:
        _driver(tree, machine.driver)
    if machine.process is not None:
        _process(tree, machine.process)
    if machine.system is not None:
        _bridges(tree, machine)
        write_system(tree, machine.system)


def _bridges(tree: Tree, machine: Machine) -> None:
    """Let the bridges above GPUs and NICs be found by their bus ids."""
    gpus, nics = machine.gpus or (), machine.nics or ()
    functions = [pci for pci in (*(gpu.pci for gpu in gpus), *(nic.pci for nic in nics)) if pci is not None]
    places = {name: path[:i] for f in functions for path in [f.path or ()] for i, name in enumerate(path) if i}
    for name, above in places.items():
        if not tree.path(f"/sys/bus/pci/devices/{name}").exists():
            tree.link(f"/sys/bus/pci/devices/{name}", "/".join(("/sys/devices", *above, name)))


class Tree:
    """Files below a directory, named by the paths they have on the machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, path: str) -> Path:
        return self._directory / path.lstrip("/")

    def write(self, path: str, content: str | bytes | float | None) -> None:
        """Write a file with a line of text, or bytes as they are; nothing where the content is ``None``."""
        if content is None:
            return
        place = self.path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())

    def folder(self, path: str) -> None:
        self.path(path).mkdir(parents=True, exist_ok=True)

    def link(self, path: str, target: str) -> None:
        """Make a relative link, as sysfs does."""
        place = self.path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        # The folder may be reached over a link itself: what counts is where it really is.
        place = place.parent.resolve() / place.name
        upwards = "../" * (len(place.relative_to(self._directory.resolve()).parts) - 1)
        place.symlink_to(upwards + target.lstrip("/"))


def _host(tree: Tree, host: Host) -> None:
    for path, content in (
        ("/proc/sys/kernel/hostname", host.hostname),
        ("/proc/sys/kernel/osrelease", host.kernel),
        ("/proc/sys/kernel/arch", host.architecture),
        ("/proc/sys/kernel/numa_balancing", host.numa_balancing),
        ("/sys/devices/system/cpu/smt/control", host.smt),
        ("/sys/devices/system/cpu/online", None if host.cpu_count is None else f"0-{host.cpu_count - 1}"),
        ("/sys/devices/system/memory/auto_online_blocks", host.auto_online_blocks),
    ):
        tree.write(path, content)
    if host.cpu_model is not None:
        _cpu_model(tree, host.cpu_model)
    if host.page_size_bytes is not None:
        tree.write("/proc/self/auxv", struct.pack("LLLL", 6, host.page_size_bytes, 0, 0))
    memory = {"MemTotal": host.memory_total_bytes, "MemAvailable": host.memory_available_bytes}
    tree.write("/proc/meminfo", _lines(f"{key}: {size // KIB} kB" for key, size in memory.items() if size is not None))
    allowed = {"Cpus_allowed_list": host.allowed_cpus, "Mems_allowed_list": host.allowed_numa_nodes}
    tree.write("/proc/self/status", _lines(f"{key}:\t{text}" for key, text in allowed.items() if text is not None))
    if host.transparent_huge_pages is not None:
        tree.write("/sys/kernel/mm/transparent_hugepage/enabled", f"other [{host.transparent_huge_pages}]")
    if host.kernel_command_line is not None:
        words = [f"{key}={value}" if value else key for key, value in host.kernel_command_line.items()]
        tree.write("/proc/cmdline", " ".join(words))
    if host.huge_pages is not None:
        tree.folder("/sys/kernel/mm/hugepages")
    for pool in host.huge_pages or ():
        folder = f"/sys/kernel/mm/hugepages/hugepages-{pool.page_size_bytes // KIB}kB"
        tree.folder(folder)
        tree.write(f"{folder}/nr_hugepages", pool.total)
        tree.write(f"{folder}/free_hugepages", pool.free)
    if host.numa_nodes is not None:
        tree.write("/sys/devices/system/node/online", ",".join(str(node.id) for node in host.numa_nodes))
        with_memory = (node for node in host.numa_nodes if node.kind in (NumaKind.CPU, NumaKind.MEMORY_ONLY))
        tree.write("/sys/devices/system/node/has_memory", ",".join(str(node.id) for node in with_memory))
    for node in host.numa_nodes or ():
        _numa_node(tree, node)


def _cpu_model(tree: Tree, model: str) -> None:
    # Arm's CPUs have no name in /proc/cpuinfo but numbers, and Grace is known by its SoC.
    core = next((part for name, part in _ARM_CORES.items() if name in model), None)
    if core is None:
        tree.write("/proc/cpuinfo", f"processor\t: 0\nmodel name\t: {model}")
        return
    tree.write("/proc/cpuinfo", f"processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: {core:#05x}")
    if "Grace" in model:
        tree.write("/sys/devices/soc0/soc_id", "jep106:036b:0241")


def _numa_node(tree: Tree, node: NumaNode) -> None:
    folder = f"/sys/devices/system/node/node{node.id}"
    tree.write(f"{folder}/cpulist", node.cpus)
    sizes = {"MemTotal": node.memory_total_bytes, "MemFree": node.memory_free_bytes}
    if node.memory_reclaimable_bytes is not None:
        sizes |= {"Active(file)": node.memory_reclaimable_bytes, "Inactive(file)": 0, "SReclaimable": 0}
    lines = (f"Node {node.id} {key}: {size // KIB} kB" for key, size in sizes.items() if size is not None)
    tree.write(f"{folder}/meminfo", _lines(lines))
    if node.distances is not None:
        tree.write(f"{folder}/distance", " ".join(map(str, node.distances)))


def _pci(tree: Tree, function: PciFunction) -> str:
    """Write a PCI function and return its folder."""
    folder = "/".join(("/sys/devices", *(function.path or ()), function.bus_id))
    tree.folder(folder)
    tree.link(f"/sys/bus/pci/devices/{function.bus_id}", folder)
    for name, number, digits in (
        ("vendor", function.vendor_id, 6),
        ("device", function.device_id, 6),
        ("subsystem_vendor", function.subsystem_vendor_id, 6),
        ("subsystem_device", function.subsystem_device_id, 6),
        ("class", function.class_code, 8),
    ):
        tree.write(f"{folder}/{name}", None if number is None else f"{number:#0{digits}x}")
    tree.write(f"{folder}/numa_node", function.numa_node)
    tree.write(f"{folder}/local_cpulist", function.local_cpus)
    if function.link is not None:
        for name, speed in (("current", function.link.speed_gt_s), ("max", function.link.max_speed_gt_s)):
            tree.write(f"{folder}/{name}_link_speed", None if speed is None else f"{speed:.1f} GT/s PCIe")
        tree.write(f"{folder}/current_link_width", function.link.width)
        tree.write(f"{folder}/max_link_width", function.link.max_width)
    if function.driver:
        tree.folder(f"/sys/bus/pci/drivers/{function.driver}")
        tree.link(f"{folder}/driver", f"/sys/bus/pci/drivers/{function.driver}")
    if function.responds is not None:
        identity = struct.pack("<HH", function.vendor_id or 0, function.device_id or 0)
        tree.write(f"{folder}/config", identity.ljust(64, b"\0") if function.responds else b"\xff" * 64)
    return folder


def _gpu(tree: Tree, gpu: Gpu) -> None:
    if gpu.pci is not None:
        _pci(tree, gpu.pci)
    if gpu.proc is not None:
        _proc(tree, gpu.bus_id, gpu.proc)
    if gpu.node is not None:
        _device_node(tree, gpu.node)


def _proc(tree: Tree, bus_id: str, proc: GpuProc) -> None:
    folder = f"/proc/driver/nvidia/gpus/{bus_id}"
    # The driver prints question marks until something has opened the GPU.
    excluded = "Yes" if proc.excluded else "No"
    lines = {
        "Model": proc.model,
        "GPU UUID": proc.uuid or "GPU-????????-????-????-????-????????????",
        "Device Minor": proc.minor,
        "GPU Excluded": None if proc.excluded is None else excluded,
    }
    tree.write(f"{folder}/information", _lines(f"{key}: \t {text}" for key, text in lines.items() if text is not None))
    status = {"Node": proc.numa_node, "Status": proc.numa_status}
    if any(text is not None for text in status.values()):
        lines_of_status = (f"{key}:\t\t{text}" for key, text in status.items() if text is not None)
        tree.write(f"{folder}/numa_status", _lines(lines_of_status))


def _device_node(tree: Tree, node: DeviceNode) -> None:
    if node.exists:
        tree.write(node.path, b"")
        if node.mode is not None:
            tree.path(node.path).chmod(node.mode)


def _nic(tree: Tree, nic: Nic) -> None:
    folder = f"/sys/class/infiniband/{nic.name}"
    if nic.pci is not None:
        function = _pci(tree, nic.pci)
        tree.folder(f"{function}/infiniband/{nic.name}")
        tree.link(folder, f"{function}/infiniband/{nic.name}")
        tree.link(f"{function}/infiniband/{nic.name}/device", function)
        for interface in nic.interfaces:
            tree.folder(f"{function}/net/{interface}")
    for name, text in (("fw_ver", nic.firmware), ("node_guid", nic.node_guid), ("board_id", nic.board_id)):
        tree.write(f"{folder}/{name}", text)
    for port in nic.ports:
        place = f"{folder}/ports/{port.number}"
        tree.folder(place)
        tree.write(f"{place}/state", port.state and f"4: {port.state}")
        tree.write(f"{place}/phys_state", port.physical_state and f"5: {port.physical_state}")
        tree.write(f"{place}/link_layer", port.link_layer)
        tree.write(f"{place}/rate", port.rate_gbit_s and f"{port.rate_gbit_s:g} Gb/sec (4X)")


def _driver(tree: Tree, driver: Driver) -> None:
    if driver.module_version is not None or driver.module_flavour is not None:
        version = driver.module_version or driver.driver_version or "580.00"
        kind = "Kernel Module" if driver.module_flavour == "proprietary" else "Open Kernel Module"
        line = f"NVRM version: NVIDIA UNIX {kind} for fake  {version}  Release Build"
        tree.write("/proc/driver/nvidia/version", line)
    if driver.module_parameters is not None:
        tree.write(
            "/proc/driver/nvidia/params", _lines(f"{key}: {text}" for key, text in driver.module_parameters.items())
        )
    if driver.modules is not None:
        tree.folder("/sys/module")
    for module in driver.modules or ():
        tree.folder(f"/sys/module/{module}")
    for key, text in (driver.uvm_parameters or {}).items():
        tree.write(f"/sys/module/nvidia_uvm/parameters/{key}", text)
    if driver.majors is not None:
        numbers = (f"{number:3} {name}" for name, number in driver.majors.items())
        tree.write("/proc/devices", _lines(("Character devices:", *numbers, "", "Block devices:")))
    nodes = driver.nodes
    if nodes is None:
        # Not stated. A driver that works has these.
        nodes = tuple(DeviceNode(path=f"/dev/{name}", exists=True) for name in _CONTROL_NODES)
    for node in (*nodes, *(driver.imex_channels or ())):
        _device_node(tree, node)


def _process(tree: Tree, process: Process) -> None:
    if process.cgroups is not None:
        lines = (
            f"{0 if cgroup.version == 2 else number}:{','.join(cgroup.controllers)}:{cgroup.path}"
            for number, cgroup in enumerate(process.cgroups, start=1)
        )
        tree.write("/proc/self/cgroup", _lines(lines))
    signs = process.container_signs or ()
    for sign in signs:
        if sign.startswith("/"):
            tree.folder(sign) if re.fullmatch(r".*\.d", sign) else tree.write(sign, b"")
    mounts = {
        "/": "overlay" if "overlay root" in signs else "ext4",
        "/proc/driver/nvidia": "tmpfs" if "tmpfs /proc/driver/nvidia" in signs else "proc",
    }
    lines = (f"{i} 1 0:{i} / {place} rw - {kind} none rw" for i, (place, kind) in enumerate(mounts.items()))
    tree.write("/proc/self/mountinfo", _lines(lines))
    tree.write("/proc/self/uid_map", "0 100000 65536" if "user namespace" in signs else "0 0 4294967295")


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)
