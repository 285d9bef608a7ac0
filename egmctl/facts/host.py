"""The host: NUMA nodes, CPUs, memory and pages, and how busy other processes keep the CPUs while a run measures."""

from __future__ import annotations

import functools
import os
import re
import struct
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from egmctl.driver.reading import Reasons, Unreadable, read_or
from egmctl.facts.egm import EGM_MODULE
from egmctl.facts.gpus import PRIVATE_PARAMETERS
from egmctl.facts.root import Root, kernel_list
from egmctl.model.host import CpuFrequencies, Host, HugePages, NumaKind, NumaNode
from egmctl.model.record import Reason
from egmctl.units import KIB, format_kernel_list, parse_kernel_list

if TYPE_CHECKING:
    from egmctl.model.measurement import HostLoad

NODES = "/sys/devices/system/node"
CPUS = "/sys/devices/system/cpu"
HUGE_PAGES = "/sys/kernel/mm/hugepages"
_THP = "/sys/kernel/mm/transparent_hugepage/enabled"

COMMAND_LINE_KEYS = (
    # GPU memory as a NUMA node, and memory allocation
    *("numa", "numa_balancing", "memhp_default_state", "movable_node", "mem", "efi_fake_mem", "init_on_alloc"),
    *("init_on_free", "transparent_hugepage", "default_hugepagesz", "hugepagesz", "hugepages"),
    # address translation for devices: P2P, GPUDirect RDMA, ATS on Grace
    *("iommu", "iommu.passthrough", "iommu.strict", "intel_iommu", "amd_iommu", "arm-smmu.disable_bypass"),
    *("arm-smmu-v3.disable_bypass", "pci", "pcie_acs_override", "pcie_aspm", "pcie_port_pm", "disable_acs_redir"),
    # CPU isolation and mitigations
    *("isolcpus", "nohz_full", "rcu_nocbs", "irqaffinity", "nosmt", "mitigations"),
    # drivers
    *("modprobe.blacklist", "module_blacklist", "rd.driver.blacklist", "systemd.unified_cgroup_hierarchy"),
)
"""The recorded kernel parameters, which affect GPUs, memory and PCIe. Parameters of the modules in
:data:`COMMAND_LINE_MODULES` are recorded, too. The rest of the command line is not, because it may contain names of
disks, hosts and keys."""

COMMAND_LINE_MODULES = ("nvidia", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", EGM_MODULE, "vfio_pci", "nouveau")

_ARM_CORES = {
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4F): "Neoverse-V2",
    (0x41, 0xD84): "Neoverse-V3",
    (0x4E, 0x010): "Olympus",
}
"""The names that Arm and lscpu use, by CPU implementer and part in ``/proc/cpuinfo`` (MIDR_EL1) (util-linux,
sys-utils/lscpu-arm.c; arch/arm64/include/asm/cputype.h)."""

_GRACE_SOC_ID = "jep106:036b:0241"
"""The SoC id of NVIDIA's T241, which is Grace (drivers/irqchip/irq-gic-v3.c). The core alone does not identify it,
because Graviton4 has Neoverse-V2, too."""

_AT_PAGESZ = 6


def host(root: Root, pid: int = 0) -> Host:
    """Read the host.

    Parameters
    ----------
    pid
        The process whose allowed CPUs, allowed NUMA nodes and memory policy are read; 0 is this one.
    """
    status = f"/proc/{pid or 'self'}/status"
    return Reasons().record(
        Host,
        hostname=lambda: root.read("/proc/sys/kernel/hostname"),
        kernel=lambda: root.read("/proc/sys/kernel/osrelease"),
        architecture=lambda: machine_architecture(root),
        cpu_model=lambda: _cpu_model(root),
        cpu_count=lambda: len(_numbers(root, "/sys/devices/system/cpu/online")),
        smt=lambda: root.read(f"{CPUS}/smt/control"),
        page_size_bytes=lambda: _page_size(root),
        memory_total_bytes=lambda: _kib(root, "/proc/meminfo", "MemTotal"),
        memory_available_bytes=lambda: _kib(root, "/proc/meminfo", "MemAvailable"),
        numa_nodes=lambda: _numa_nodes(root),
        allowed_cpus=lambda: kernel_list(root.line(status, "Cpus_allowed_list"), status),
        allowed_numa_nodes=lambda: kernel_list(root.line(status, "Mems_allowed_list"), status),
        memory_policy=lambda: _memory_policy(root, f"/proc/{pid or 'self'}/numa_maps"),
        huge_pages=lambda: huge_pages(root, HUGE_PAGES),
        transparent_huge_pages=lambda: root.search(_THP, r"\[(\w+)\]", "no word in brackets")[1],
        numa_balancing=lambda: root.number("/proc/sys/kernel/numa_balancing"),
        cpu_frequencies=lambda: _cpu_frequencies(root),
        auto_online_blocks=lambda: root.read("/sys/devices/system/memory/auto_online_blocks"),
        kernel_command_line=lambda: _command_line(root.read("/proc/cmdline")),
    )


def node_memory_free(root: Root, node: int) -> int:
    """Return the current MemFree of a NUMA node, in bytes.

    Raises
    ------
    Unreadable
        The node's ``meminfo`` cannot be read.
    """
    return _kib(root, f"{NODES}/node{node}/meminfo", f"Node {node} MemFree")


def machine_architecture(root: Root) -> str:
    """Return the architecture as uname(2) names it, e.g. ``x86_64`` or ``aarch64``."""
    try:
        return root.read("/proc/sys/kernel/arch")
    except Unreadable:
        # The file exists since Linux 6.1. uname(2) describes this machine, but a copied tree may be of another one.
        if not root.is_live:
            raise
        return os.uname().machine


def _cpu_model(root: Root) -> str:
    # The first processor is enough: with hundreds of CPUs the file is long and slow to read.
    text = root.read_bytes("/proc/cpuinfo", 4 * KIB).decode(errors="replace")
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.split("\n"))}
    if model := fields.get("model name"):
        return model
    # arm64 gives MIDR_EL1 instead of a name.
    try:
        core = int(fields["CPU implementer"], 16), int(fields["CPU part"], 16)
    except (KeyError, ValueError):
        raise Unreadable(Reason.FAILED, "/proc/cpuinfo: neither a model name nor an implementer and part") from None
    name = _ARM_CORES.get(core, f"implementer {core[0]:#04x} part {core[1]:#05x}")
    is_grace = read_or("", lambda: root.read("/sys/devices/soc0/soc_id")) == _GRACE_SOC_ID
    return f"NVIDIA Grace ({name})" if is_grace else name


def _page_size(root: Root) -> int:
    # The kernel passes the page size to every process in its auxiliary vector, which has pairs of native words.
    auxiliary = root.read_bytes("/proc/self/auxv")
    for key, value in struct.iter_unpack("LL", auxiliary[: len(auxiliary) // 16 * 16]):
        if key == _AT_PAGESZ:
            return int(value)
    raise Unreadable(Reason.NOT_PRESENT, "/proc/self/auxv: no AT_PAGESZ")


def _kib(root: Root, path: str, key: str) -> int:
    """Return the value in bytes of a line such as ``MemTotal:  263755160 kB``."""
    if match := re.fullmatch(r"([0-9]{1,15}) kB", root.line(path, key), re.ASCII):
        return int(match[1]) * KIB
    raise Unreadable(Reason.FAILED, f"{path}: {key!r} is not a number of kB")


def _numbers(root: Root, path: str) -> tuple[int, ...]:
    return parse_kernel_list(root.kernel_list(path))


def _numa_nodes(root: Root) -> tuple[NumaNode, ...]:
    online = _numbers(root, f"{NODES}/online")
    with_memory = read_or(None, lambda: _numbers(root, f"{NODES}/has_memory"))
    return tuple(_numa_node(root, number, len(online), with_memory) for number in online)


def _numa_node(root: Root, number: int, online: int, with_memory: tuple[int, ...] | None) -> NumaNode:
    folder, meminfo = f"{NODES}/node{number}", f"{NODES}/node{number}/meminfo"
    reasons = Reasons()
    cpus = reasons.read("cpus", lambda: root.kernel_list(f"{folder}/cpulist")) or ""
    # Lines in this file start with "Node 0 ".
    total = reasons.read("memory_total_bytes", lambda: _kib(root, meminfo, f"Node {number} MemTotal"))
    has_memory = bool(total) if with_memory is None else number in with_memory
    kinds = (NumaKind.CPU, NumaKind.CPU_ONLY) if cpus else (NumaKind.MEMORY_ONLY, NumaKind.EMPTY)
    return reasons.record(
        NumaNode,
        id=number,
        kind=kinds[0] if has_memory else kinds[1],
        cpus=cpus,
        memory_total_bytes=total,
        memory_free_bytes=lambda: node_memory_free(root, number),
        memory_reclaimable_bytes=lambda: sum(_kib(root, meminfo, f"Node {number} {key}") for key in _RECLAIMABLE),
        distances=lambda: _distances(root, f"{folder}/distance", online),
        huge_pages=lambda: huge_pages(root, f"{folder}/hugepages"),
    )


_RECLAIMABLE = ("Active(file)", "Inactive(file)", "SReclaimable")


def _memory_policy(root: Root, path: str) -> str:
    # One line is enough: for every mapping that is read, the kernel walks its pages.
    if match := re.match(rb"[0-9a-f]{1,16} ([a-z]+[a-z=:0-9,-]{0,200})", root.read_bytes(path, 4096)):
        return match[1].decode()
    raise Unreadable(Reason.FAILED, f"{path}: no policy")


def _distances(root: Root, path: str, online: int) -> tuple[int, ...]:
    words = root.read(path).split()
    if len(words) != online or not all(re.fullmatch(r"[0-9]{1,3}", word, re.ASCII) for word in words):
        raise Unreadable(Reason.FAILED, f"{path}: not one distance for each online node")
    return tuple(int(word) for word in words)


def _cpu_frequencies(root: Root) -> tuple[CpuFrequencies, ...]:
    cpus = _numbers(root, f"{CPUS}/online")
    if not cpus:
        raise Unreadable(Reason.FAILED, f"{CPUS}/online: no CPU")
    root.names(f"{CPUS}/cpu{cpus[0]}/cpufreq")
    alike: dict[object, tuple[CpuFrequencies, list[int]]] = {}
    for number in cpus:
        folder = f"{CPUS}/cpu{number}/cpufreq"
        frequencies = Reasons().record(
            CpuFrequencies,
            cpus="",
            governor=functools.partial(root.read, f"{folder}/scaling_governor"),
            driver=functools.partial(root.read, f"{folder}/scaling_driver"),
            limit_khz=functools.partial(root.number, f"{folder}/scaling_max_freq"),
            max_khz=functools.partial(root.number, f"{folder}/cpuinfo_max_freq"),
        )
        key = frequencies.governor, frequencies.driver, frequencies.limit_khz, frequencies.max_khz
        alike.setdefault(key, (frequencies, []))[1].append(number)
    return tuple(replace(frequencies, cpus=format_kernel_list(numbers)) for frequencies, numbers in alike.values())


_POOL = re.compile(r"hugepages-([0-9]{1,12})kB", re.ASCII)


def huge_pages(root: Root, folder: str) -> tuple[HugePages, ...]:
    """Return the pools of huge pages of a folder of sysfs, that of the whole host or of one NUMA node, by page size."""
    sizes = (_POOL.fullmatch(name) for name in root.names(folder))
    return tuple(_huge_page_pool(root, folder, kib) for kib in sorted(int(size[1]) for size in sizes if size))


def _huge_page_pool(root: Root, pools: str, kib: int) -> HugePages:
    folder = f"{pools}/hugepages-{kib}kB"
    return Reasons().record(
        HugePages,
        page_size_bytes=kib * KIB,
        total=lambda: root.number(f"{folder}/nr_hugepages"),
        free=lambda: root.number(f"{folder}/free_hugepages"),
    )


def _command_line(text: str) -> dict[str, str]:
    parameters = {}
    for word in text.split():
        key, _, value = word.partition("=")
        module, dot, parameter = key.partition(".")
        if parameter.removeprefix("NVreg_") in PRIVATE_PARAMETERS:
            continue
        if key in COMMAND_LINE_KEYS or (dot and module.replace("-", "_") in COMMAND_LINE_MODULES):
            parameters[key] = value
    return parameters


THREADS_LIMIT = 32
"""The largest number of CPUs to use per NUMA node. On a virtual machine with 64 CPUs, 32 threads read 143 to 160 GB/s
and 64 threads 109 GB/s."""


class NoCpus(Exception):
    """There is no CPU of a NUMA node on which this process may run, or the list of CPUs cannot be read."""


def cpus_of(node: int, *, whole: bool = False) -> tuple[int, ...]:
    """Return the CPUs of a NUMA node to use: at most :data:`THREADS_LIMIT`, spread evenly over the allowed ones.

    Parameters
    ----------
    whole
        Whether they are to fill the node's memory: all allowed ones. Of a Grace's 72, 32 fill it (348 GB/s with 32
        threads and 330 with 72, https://dnhkng.github.io/posts/gh200-benchmarking/).

    Raises
    ------
    NoCpus
        No CPU is allowed, or too few to fill the memory, or the list of CPUs cannot be read.
    """
    try:
        cpus = set(parse_kernel_list(Root.from_environment().kernel_list(f"{NODES}/node{node}/cpulist")))
    except Unreadable as error:
        raise NoCpus(str(error)) from None
    allowed = sorted(cpus & os.sched_getaffinity(0))
    if not allowed:
        raise NoCpus(f"this process may run on none of the CPUs of NUMA node {node}")
    if whole and len(allowed) < min(len(cpus), THREADS_LIMIT):
        text = f"this process may run on {len(allowed)} of the {len(cpus)} CPUs of NUMA node {node}"
        raise NoCpus(f"{text}: too few to fill its memory")
    return tuple(allowed[:: 1 if whole else -(-len(allowed) // THREADS_LIMIT)])


_BUSY = (1, 2, 3, 6, 7, 8)
"""The columns of the line ``cpu`` of /proc/stat that count as busy: user, nice, system, irq, softirq, steal
(proc_stat(5)). The first two include guests' time. Idle and iowait do not count."""


class HostLoadWatch:
    """The CPU time of the whole host since this object was created, except that of this process and its children."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._began_s = time.monotonic()
        self._before = self._others_s()

    def load(self) -> HostLoad | None:
        """Return the load by other processes until now; ``None`` if /proc/stat or /proc/loadavg cannot be read.

        A child's CPU time counts as this process' own only after the child has ended.
        """
        # Imported late: who reads a machine measures nothing.
        from egmctl.model.measurement import HostLoad

        now = self._others_s()
        with suppress(Unreadable, ValueError, IndexError):
            if now is not None and self._before is not None:
                return HostLoad(
                    cpus=len(re.findall(r"^cpu\d+ ", self._root.read("/proc/stat"), re.MULTILINE | re.ASCII)),
                    load_average=float(self._root.read("/proc/loadavg").split()[0]),
                    wall_s=round(time.monotonic() - self._began_s, 3),
                    others_cpu_s=round(max(0.0, now - self._before), 2),
                )
        return None

    def _others_s(self) -> float | None:
        with suppress(Unreadable, ValueError, IndexError):
            columns = self._root.read("/proc/stat").partition("\n")[0].split()
            own = os.times()
            busy_s = sum(int(columns[column]) for column in _BUSY) / os.sysconf("SC_CLK_TCK")
            return busy_s - own.user - own.system - own.children_user - own.children_system
        return None
