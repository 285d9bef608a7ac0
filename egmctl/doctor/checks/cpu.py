"""CPUs: do they run as fast as they can?"""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.check import Check, passed, skipped, unknown, warned
from egmctl.doctor.scope import Scope
from egmctl.doctor.situation import virtual
from egmctl.model.finding import Evidence, Finding, Guard, Remedy
from egmctl.model.host import CpuFrequencies, Host
from egmctl.model.machine import Machine, Reason

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


CHECKS = (
    Check(
        id="cpu.governor",
        title="CPU frequency is not limited",
        guards=(Guard.PERF,),
        sections=("host", "gpus"),
        judge=_governor,
        why="Latencies of launches and of host memory, and copies by CPU threads, follow the CPUs' frequency. A "
        "governor other than performance lowers it without load, and powersave may keep it there; a limit below the "
        "maximum holds under load, too (Linux kernel, admin-guide/pm/cpufreq).",
        read="scaling_governor, scaling_max_freq and cpuinfo_max_freq of each CPU in /sys/devices/system/cpu. Virtual "
        "machines have none: their host sets the frequency.",
        fix="cpupower frequency-set --governor performance, at each boot by tuned or a systemd unit.",
    ),
)
