"""Do the kernel's parameters and the CPUs' frequencies slow paths down?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from egmctl.doctor.check import Check, Scope, failed, needing, passed, skipped, unknown, warned
from egmctl.doctor.situation import coherent, coherent_gpus, needs_coherence, needs_grace, usable, virtual
from egmctl.model.finding import Evidence, Finding, Guard, Remedy, on_gpus
from egmctl.model.host import CpuFrequencies, Host
from egmctl.model.machine import Machine, Reason, Unread
from egmctl.topology.platform import MemoryMode, memory_mode, own_node

_FOLDER = "/sys/devices/system/cpu/cpu*/cpufreq"


def _governor(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    host = machine.host or Host()
    if host.cpu_frequencies is None:
        why = host.unread.get("cpu_frequencies")
        if why is not None and why.reason is Reason.NOT_PRESENT and virtual(machine):
            yield skipped("a virtual machine without cpufreq: its host sets the frequency")
        else:
            yield unknown(f"the CPU frequency governor is unknown ({why.reason if why else 'not read'})")
        return
    slow = [cpus for cpus in host.cpu_frequencies if cpus.governor not in (None, "performance") or cpus.limited]
    evidence = tuple(_seen(cpus) for cpus in host.cpu_frequencies)
    if slow:
        yield warned(
            f"CPUs {', '.join(cpus.cpus for cpus in slow)} run below their maximum frequency: {_how(slow)}",
            Remedy(
                text="Set the governor to performance, and the limit to the maximum; at each boot, by tuned or a unit.",
                command="cpupower frequency-set --governor performance",
                needs_root=True,
            ),
            evidence=evidence,
        )
    elif any(cpus.governor is None or cpus.limited is None for cpus in host.cpu_frequencies):
        yield unknown("the governor or frequency limit of some CPUs was not read", evidence=evidence)
    else:
        yield passed("all CPUs may run at their maximum frequency", evidence=evidence)


def _how(slow: list[CpuFrequencies]) -> str:
    governors = sorted({cpus.governor for cpus in slow if cpus.governor not in (None, "performance")})
    found = [f"governor {', '.join(governors)}"] if governors else []
    return "; ".join([*found, *(["a limit below the hardware's maximum"] if any(c.limited for c in slow) else [])])


def _seen(cpus: CpuFrequencies) -> Evidence:
    limit, maximum = (f"{khz} kHz" if khz is not None else "not read" for khz in (cpus.limit_khz, cpus.max_khz))
    value = f"{cpus.governor or 'not read'}, scaling_max_freq {limit}, cpuinfo_max_freq {maximum}"
    return Evidence(source=f"{_FOLDER} of CPUs {cpus.cpus}", value=value)


@needing(needs_coherence("only GPUs with NVLink-C2C add memory to the kernel"))
def _auto_online(machine: Machine, scope: Scope) -> Iterator[Finding]:
    host = machine.host or Host()
    mode = memory_mode(machine)
    if mode is MemoryMode.CDMM:
        yield skipped("the driver manages the GPUs' memory itself (CDMM) and brings none online")
        return
    policy = host.auto_online_blocks
    if policy is None:
        yield _unread("auto_online_blocks", host.unread)
        return
    evidence = (Evidence(source="/sys/devices/system/memory/auto_online_blocks", value=policy),)
    gpus = coherent_gpus(machine, usable(machine, scope.gpus_of(machine)))
    offline = [gpu for gpu in gpus if own_node(gpu) is None]
    remedy = Remedy(
        text="Boot with memhp_default_state=online_movable, or set it before the driver is loaded.",
        command="echo online_movable > /sys/devices/system/memory/auto_online_blocks",
        needs_root=True,
        needs_reboot=True,
    )
    if policy == "online_movable":
        yield passed("new memory goes online as movable", evidence=evidence)
    elif offline and mode is MemoryMode.UNKNOWN:
        yield unknown(
            "whether the driver brings GPU memory online is unknown: its module parameters were not read",
            place=on_gpus(offline),
            evidence=evidence,
        )
    elif offline:
        yield failed(
            f"the policy for new memory is {policy}, but the driver brings GPU memory online as movable only",
            remedy,
            place=on_gpus(offline),
            evidence=evidence,
            cause="open-gpu-kernel-modules, os-interface.c: 'the onlining zone is not movable'",
        )
    else:
        yield passed(
            "the GPUs' memory is online",
            evidence=evidence,
            note=f"the policy for new memory is {policy}: after a driver reload it may stay offline",
        )


@needing(needs_grace)
def _balancing(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    host = machine.host or Host()
    if host.numa_balancing is None:
        yield _unread("numa_balancing", host.unread)
    elif host.numa_balancing:
        yield warned(
            "automatic NUMA balancing is on: it unmaps pages that GPUs use",
            Remedy(
                text="Turn it off; numa_balancing=disable on the kernel's command line keeps it off.",
                command="sysctl -w kernel.numa_balancing=0",
                needs_root=True,
            ),
            evidence=(Evidence(source="/proc/sys/kernel/numa_balancing", value=str(host.numa_balancing)),),
            cause="NVIDIA's Grace Performance Tuning Guide asks to disable it",
        )
    else:
        yield passed(
            "automatic NUMA balancing is off",
            evidence=(Evidence(source="/proc/sys/kernel/numa_balancing", value="0"),),
        )


@needing(needs_grace)
def _page_size(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    host = machine.host or Host()
    if host.page_size_bytes is None:
        yield _unread("page_size_bytes", host.unread)
    else:
        kib = host.page_size_bytes // 1024
        small = "Grace's tuning guide recommends 64 KiB pages for fewer TLB misses" if kib == 4 else ""
        yield passed(
            f"kernel pages are {kib} KiB",
            evidence=(Evidence(source="AT_PAGESZ", value=str(host.page_size_bytes)),),
            note=small,
        )


def _command_line(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    host = machine.host or Host()
    words = host.kernel_command_line
    if words is None:
        yield _unread("kernel_command_line", host.unread)
        return
    grace = bool(coherent(machine))
    with_c2c = coherent_gpus(machine, machine.gpus or ())
    ats = {gpu.nvml.addressing_mode for gpu in with_c2c if gpu.nvml} == {"ats"}
    found = False
    if words.get("numa") == "off":
        found = True
        tell = failed if grace else warned
        yield tell(
            "the kernel was started with numa=off: there is one node, so memory cannot be placed",
            _boot_without("numa=off"),
            evidence=(_word(words, "numa"),),
        )
    if grace and words.get("iommu.passthrough", "").lower() in ("1", "y", "on") and not ats:
        found = True
        yield warned(
            "the kernel was started with iommu.passthrough, and the GPUs do not use ATS",
            _boot_without("iommu.passthrough"),
            evidence=(_word(words, "iommu.passthrough"),),
            cause="without the SMMU's translation a coherent GPU cannot share page tables with the CPU "
            "(https://github.com/NVIDIA/NV-Kernels/issues/22)",
        )
    if grace and words.get("init_on_alloc", "").lower() in ("1", "y", "on"):
        found = True
        yield warned(
            "the kernel clears every page that it allocates (init_on_alloc), GPU memory too",
            Remedy(
                text="Boot with init_on_alloc=0, as NVIDIA's Grace Performance Tuning Guide asks.",
                needs_root=True,
                needs_reboot=True,
            ),
            evidence=(_word(words, "init_on_alloc"),),
        )
    if not found:
        shown = " ".join(f"{key}={value}" if value else key for key, value in words.items())
        yield passed(
            "no known-harmful kernel parameters",
            evidence=(Evidence(source="/proc/cmdline (what matters here)", value=shown or "nothing"),),
        )


def _boot_without(word: str) -> Remedy:
    return Remedy(text=f"Boot without {word}.", needs_root=True, needs_reboot=True)


def _word(words: Mapping[str, str], key: str) -> Evidence:
    return Evidence(source="/proc/cmdline", value=f"{key}={words[key]}")


def _unread(name: str, reasons: Mapping[str, Unread]) -> Finding:
    why = reasons.get(name)
    return unknown(f"{name} was not read ({why.detail or why.reason.value})" if why else f"{name} was not read")


CHECKS = (
    Check("cpu.governor", _governor, guards=(Guard.PERF,), sections=("host", "gpus")),
    Check("numa.auto-online", _auto_online, guards=(Guard.EGM,), sections=("host", "gpus", "driver")),
    Check("numa.balancing", _balancing, guards=(Guard.PERF,), sections=("host", "gpus")),
    Check("numa.page-size", _page_size, guards=(Guard.PERF,), sections=("host", "gpus")),
    Check("numa.cmdline", _command_line, guards=(Guard.EGM, Guard.PERF), sections=("host", "gpus")),
)
