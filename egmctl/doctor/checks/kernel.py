"""Checks of kernel parameters and CPU frequencies that make paths slow or affect EGM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from egmctl.doctor.check import Scope, Verdicts, check, known, skip
from egmctl.doctor.checks.numa import idle_pools
from egmctl.doctor.findings import fact, failed, noted, passed, unknown, warned
from egmctl.doctor.situation import NO_NVIDIA_GPU, coherent, coherent_gpus, kernel, need_c2c, usable, virtual
from egmctl.model.finding import NODE, Confidence, Evidence, Finding, Guard
from egmctl.model.host import CpuFrequencies, Host
from egmctl.model.machine import Machine
from egmctl.model.record import Reason
from egmctl.model.remedy import Need, as_root
from egmctl.topology.platform import MemoryMode, memory_mode, own_node

GRACE_ONLY = "matters on Grace only"
PASSTHROUGH = "iommu.passthrough"
_IDENTITY_WITH_PASID = (6, 11)
"""The first kernel whose SMMU driver attaches a PASID to a device in passthrough (STRTAB_STE_1_S1DSS_BYPASS); some of
NVIDIA's 6.8 kernels have it too (https://github.com/NVIDIA/nodewright-packages/pull/122)."""
_CHOOSE_THEMSELVES = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
"""The values of ``scaling_driver`` in the active mode, where the processor chooses the frequency; in the passive mode
they are ``intel_cpufreq`` and ``amd-pstate``."""


_SET_GOVERNOR = as_root("Set the governor, at each boot.", run="cpupower frequency-set --governor performance")
_RAISE_LIMIT = as_root(
    "Raise the limit (scaling_max_freq), at each boot; firmware and power caps may set one too. A governor cannot.",
    look="cpupower frequency-info",
)


@check("cpu.governor", Guard.PERF, sections=("host", "gpus"))
def _governor(machine: Machine, _scope: Scope) -> Verdicts:
    host = machine.host or Host()
    unread = host.unread.get("cpu_frequencies")
    if host.cpu_frequencies is None and unread and unread.reason is Reason.NOT_PRESENT and virtual(machine):
        skip("a virtual machine without cpufreq: its host sets the frequency")
    frequencies = known(host.cpu_frequencies, "the CPU frequency governor was not read", unread)
    yield from map(_evidence, frequencies)
    governed = [cpus for cpus in frequencies if _is_slowing(cpus)]
    limited = [cpus for cpus in frequencies if cpus.limited]
    if governed:
        governors = sorted({f"governor {cpus.governor}" for cpus in governed})
        yield warned(_slow(governed, "; ".join(governors)), _SET_GOVERNOR)
    if limited:
        yield warned(_slow(limited, "a limit below the hardware's maximum"), _RAISE_LIMIT)
    if governed or limited:
        return
    if any(None in (cpus.governor, cpus.limited) for cpus in frequencies):
        yield unknown("the governor or frequency limit of some CPUs was not read")
    else:
        yield passed("all CPUs may run at their maximum frequency")


def _slow(frequencies: Sequence[CpuFrequencies], reason: str) -> str:
    names = ", ".join(cpus.cpus for cpus in frequencies)
    return f"CPUs {names} run below their maximum frequency: {reason}"


def _is_slowing(cpus: CpuFrequencies) -> bool:
    """Return whether the governor keeps CPUs below the frequency that their load asks for.

    In the active mode of intel_pstate and amd-pstate the hardware chooses the frequency: ``powersave`` there is the
    default, and reaches the limit under load (Documentation/admin-guide/pm/intel_pstate.rst, "Active Mode", and
    amd-pstate.rst).
    """
    if cpus.governor == "powersave" and cpus.driver in _CHOOSE_THEMSELVES:
        return False
    return cpus.governor not in (None, "performance")


def _evidence(cpus: CpuFrequencies) -> Evidence:
    limit, maximum = (f"{khz} kHz" if khz is not None else "not read" for khz in (cpus.limit_khz, cpus.max_khz))
    driver = f" ({cpus.driver})" if cpus.driver else ""
    value = f"{cpus.governor or 'not read'}{driver}, scaling_max_freq {limit}, cpuinfo_max_freq {maximum}"
    return fact(f"/sys/devices/system/cpu/cpu*/cpufreq of CPUs {cpus.cpus}", value)


@check("numa.auto-online", Guard.EGM, sections=("host", "gpus", "driver"))
def _auto_online(machine: Machine, scope: Scope) -> Verdicts:
    need_c2c(machine, "only GPUs with NVLink-C2C add memory to the kernel")
    mode = memory_mode(machine)
    if mode is MemoryMode.CDMM:
        skip("the driver manages the GPUs' memory itself (CDMM) and brings none online")
    host = machine.host or Host()
    policy = known(host.auto_online_blocks, "auto_online_blocks was not read", host.unread.get("auto_online_blocks"))
    yield fact("/sys/devices/system/memory/auto_online_blocks", policy)
    gpus = coherent_gpus(machine, usable(machine, scope.gpus_of(machine)))
    offline = [gpu for gpu in gpus if own_node(gpu) is None]
    if policy == "online_movable":
        yield passed("new memory goes online as movable")
    elif not offline:
        note = f"the policy for new memory is {policy}: after a driver reload it may stay offline"
        yield passed("the GPUs' memory is online", note=note)
    elif mode is MemoryMode.UNKNOWN:
        yield unknown("whether the driver brings GPU memory online: its module parameters were not read", offline)
    else:
        yield failed(
            f"the policy for new memory is {policy}, but the driver brings GPU memory online as movable only",
            as_root("Boot with memhp_default_state=online_movable.", Need.REBOOT),
            offline,
        )


@check("numa.balancing", Guard.PERF, sections=("host", "gpus"))
def _balancing(machine: Machine, _scope: Scope) -> Verdicts:
    is_grace = coherent(machine)
    if is_grace is None or (not is_grace and len(machine.cpu_nodes) < 2):
        skip("one NUMA node has nothing to balance" if is_grace is False else GRACE_ONLY)
    host = machine.host or Host()
    balancing = known(host.numa_balancing, "numa_balancing was not read", host.unread.get("numa_balancing"))
    yield fact("/proc/sys/kernel/numa_balancing", balancing)
    if balancing and not is_grace:
        remedy = as_root("Where transfers stall, turn it off.", run="sysctl -w kernel.numa_balancing=0")
        cause = "it unmaps pages of programs to see who uses them (https://github.com/deepseek-ai/DeepEP/pull/644)"
        yield noted("automatic NUMA balancing is on", remedy=remedy, cause=cause)
    elif balancing:
        remedy = as_root("Turn it off, at boot by numa_balancing=disable.", run="sysctl -w kernel.numa_balancing=0")
        cause = "NVIDIA's Grace Performance Tuning Guide asks to disable it"
        yield warned("automatic NUMA balancing is on: it unmaps pages that GPUs use", remedy, cause=cause)
    else:
        yield passed("automatic NUMA balancing is off")


@check("numa.huge-pages", Guard.PERF, sections=("host", "gpus"))
def _huge_pages(machine: Machine, _scope: Scope) -> Verdicts:
    host = machine.host or Host()
    if not machine.gpus:
        skip(NO_NVIDIA_GPU)
    mode = host.transparent_huge_pages
    yield fact("/sys/kernel/mm/transparent_hugepage/enabled", mode)
    findings = list(_pools_of_host(host))
    if mode == "never":
        text = "transparent huge pages are off (never): no program gets them, even by request"
        cause = "host buffers then have small pages only, which cost lookups in the CPU, IOMMU and SMMU"
        findings.append(noted(text, remedy=_MADVISE, cause=cause))
    elif mode is None and host.reason_of("transparent_huge_pages") is not Reason.NOT_PRESENT:
        findings.append(unknown("the mode of transparent huge pages was not read"))
    yield from findings or [passed(f"transparent huge pages: {mode or 'none, the kernel is built without them'}")]


def _pools_of_host(host: Host) -> Iterator[Finding]:
    """Yield what is to be said of the pools of huge pages, unless those of NUMA nodes were read: numa.memory has them.

    A kernel without huge pages, or an older recording, has no pools.
    """
    if any(node.huge_pages is not None for node in host.numa_nodes or ()):
        return
    if host.huge_pages is None and host.reason_of("huge_pages") not in (Reason.NOT_PRESENT, Reason.NOT_STATED):
        yield unknown("the pools of huge pages were not read")
    elif host.huge_pages and host.memory_total_bytes is None:
        yield unknown("how much of the memory pools of huge pages hold was not read")
    elif host.memory_total_bytes:
        yield from idle_pools(host.huge_pages or (), host.memory_total_bytes, NODE)


_MADVISE = as_root(
    "Where programs have large host buffers, let them ask for huge pages. The command is for now; for every boot, boot "
    "with transparent_hugepage=madvise.",
    run="printf madvise > /sys/kernel/mm/transparent_hugepage/enabled",
)


@check("numa.page-size", Guard.PERF, sections=("host", "gpus"))
def _page_size(machine: Machine, _scope: Scope) -> Verdicts:
    need_c2c(machine, GRACE_ONLY)
    host = machine.host or Host()
    size = known(host.page_size_bytes, "page_size_bytes was not read", host.unread.get("page_size_bytes"))
    yield fact("AT_PAGESZ", size)
    if size == 4096:
        larger = as_root("Boot a kernel with 64 KiB pages, where no program needs 4 KiB ones.", Need.REBOOT)
        recommended = "Grace's tuning guide recommends 64 KiB pages, for fewer TLB misses"
        yield noted(f"kernel pages are {size // 1024} KiB: {recommended}", remedy=larger)
    else:
        yield passed(f"kernel pages are {size // 1024} KiB")


@check("numa.cmdline", Guard.EGM, Guard.PERF, sections=("host", "gpus"))
def _command_line(machine: Machine, _scope: Scope) -> Verdicts:
    host = machine.host or Host()
    params = known(host.kernel_command_line, "kernel_command_line was not read", host.unread.get("kernel_command_line"))
    shown = " ".join(f"{key}={value}" if value else key for key, value in params.items())
    yield fact("/proc/cmdline (what matters here)", shown or "nothing")
    grace = bool(coherent(machine))
    modes = {gpu.nvml.addressing_mode for gpu in coherent_gpus(machine, machine.gpus or ()) if gpu.nvml}
    enabled = [name for name in params if params[name].lower() in ("1", "y", "on")] if grace else []
    faults: list[Finding] = []
    if params.get("numa") == "off":
        remedy = as_root("Boot without numa=off.", Need.REBOOT)
        one_node = "the kernel was started with numa=off: there is one node, so memory cannot be placed"
        faults.append((failed if grace else warned)(one_node, remedy))
    release = kernel(machine)
    if PASSTHROUGH in enabled and release is not None and release < _IDENTITY_WITH_PASID:
        remedy = as_root("Boot with iommu.passthrough=0, or a newer kernel.", Need.REBOOT)
        cause = "the SMMU driver then attaches no PASID, which ATS needs (https://github.com/NVIDIA/NV-Kernels/pull/22)"
        no_context = "the kernel was started with iommu.passthrough: before Linux 6.11 CUDA makes no context on Grace"
        read = (fact(PASSTHROUGH, params[PASSTHROUGH]), fact("kernel", host.kernel))
        faults.append(warned(no_context, remedy, cause=cause, evidence=read, confidence=Confidence.MEDIUM))
    elif PASSTHROUGH in enabled and modes != {"ats"}:
        remedy = as_root("Boot without iommu.passthrough.", Need.REBOOT)
        cause = "a coherent GPU shares page tables through the SMMU (https://github.com/NVIDIA/NV-Kernels/issues/22)"
        no_ats = "the kernel was started with iommu.passthrough, and the GPUs do not use ATS"
        evidence = (fact(PASSTHROUGH, params[PASSTHROUGH]),)
        faults.append(warned(no_ats, remedy, cause=cause, evidence=evidence))
    elif PASSTHROUGH in enabled and release is None:
        faults.append(unknown("the kernel was started with iommu.passthrough, and its version was not read"))
    if "init_on_alloc" in enabled:
        remedy = as_root("Boot with init_on_alloc=0, as NVIDIA's Grace Performance Tuning Guide asks.", Need.REBOOT)
        clears = "the kernel clears every page that it allocates (init_on_alloc), GPU memory too"
        faults.append(warned(clears, remedy))
    yield from faults or [passed("no known-harmful kernel parameters")]
