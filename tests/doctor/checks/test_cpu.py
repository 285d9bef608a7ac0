"""CPUs that are alike are told together, and a kernel without cpufreq is a reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from egmctl.facts.host import host
from egmctl.facts.root import Root
from egmctl.model.finding import Status
from egmctl.model.host import CpuFrequencies
from egmctl.model.machine import Machine
from egmctl.model.record import Reason
from tests.doctor.faults import Fault, changed, healthy
from tests.doctor.machines import patched, run_one

FAST = CpuFrequencies(cpus="0-143", governor="performance", limit_khz=3_402_000, max_khz=3_402_000)
FAULTS: dict[str, Fault] = {
    "cpu.governor": changed("host", cpu_frequencies=(replace(FAST, governor="powersave"),)),
}


def well(machine: Machine) -> Machine:
    return patched(machine, "host", cpu_frequencies=(FAST,))


def tree(folder: Path, **governors: str) -> Root:
    """Make four CPUs whose governors are given by name, ``cpu0="performance"``."""
    root = folder / "sys/devices/system/cpu"
    root.mkdir(parents=True)
    (root / "online").write_text("0-3\n")
    for name, governor in governors.items():
        cpufreq = root / name / "cpufreq"
        cpufreq.mkdir(parents=True)
        for file, text in (("governor", governor), ("max_freq", "3400000")):
            (cpufreq / f"scaling_{file}").write_text(f"{text}\n")
        (cpufreq / "cpuinfo_max_freq").write_text("3400000\n")
    return Root(str(folder))


def test_cpus_that_are_alike_are_together(tmp_path: Path) -> None:
    governors = {"cpu0": "performance", "cpu1": "performance", "cpu2": "schedutil", "cpu3": "performance"}
    facts = host(tree(tmp_path, **governors)).cpu_frequencies
    assert facts is not None
    assert [(finding.cpus, finding.governor, finding.limited) for finding in facts] == [
        ("0-1,3", "performance", False),
        ("2", "schedutil", False),
    ]


def test_a_kernel_without_cpufreq_is_a_reason(tmp_path: Path) -> None:
    facts = host(tree(tmp_path))
    assert (facts.cpu_frequencies, facts.unread["cpu_frequencies"].reason) == (None, Reason.NOT_PRESENT)


def judged(*cpus: CpuFrequencies) -> Machine:
    return patched(healthy(), "host", cpu_frequencies=cpus)


def test_a_limit_and_a_governor_are_told_with_their_cpus() -> None:
    assert run_one("cpu.governor", judged(FAST)).status is Status.PASS
    low = patched(FAST, "", cpus="2", limit_khz=1_000_000)
    assert run_one("cpu.governor", judged(low)).summary == (
        "CPUs 2 run below their maximum frequency: a limit below the hardware's maximum"
    )


def test_a_virtual_machine_without_cpufreq_has_nothing_to_say(tmp_path: Path) -> None:
    without = patched(healthy(), "", host=host(tree(tmp_path)))
    assert run_one("cpu.governor", without).status is Status.UNKNOWN
    inside = patched(without, "gpus[*].nvml", virtualization="passthrough")
    assert run_one("cpu.governor", inside).status is Status.SKIP
