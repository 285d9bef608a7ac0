"""CPUs that are alike are told together, and a kernel without cpufreq is a reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from egmctl.facts.host import host
from egmctl.facts.root import Root
from egmctl.model.finding import Status
from egmctl.model.host import CpuFrequencies, HugePages
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from egmctl.units import GIB
from tests.doctor.faults import Fault, changed, healthy
from tests.doctor.machines import patched, run, run_one

FAST = CpuFrequencies(cpus="0-143", governor="performance", limit_khz=3_402_000, max_khz=3_402_000)
FAULTS: dict[str, Fault] = {
    "cpu.governor": changed("host", cpu_frequencies=(replace(FAST, governor="powersave"),)),
    "numa.huge-pages": changed("host", transparent_huge_pages="never"),
}


def well(machine: Machine) -> Machine:
    return patched(machine, "host", cpu_frequencies=(FAST,), transparent_huge_pages="madvise")


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


POOL = HugePages(page_size_bytes=GIB, total=400, free=300)
IDLE = "a pool of huge pages holds 400 GiB of 957 GiB, 300 GiB of it unused"


def with_pool(*, of_nodes: tuple[HugePages, ...] | None = None, total: int = 957 * GIB) -> Machine:
    machine = patched(healthy(), "host", huge_pages=(POOL,), memory_total_bytes=total)
    return patched(machine, "host.numa_nodes[*]", huge_pages=of_nodes)


def test_huge_pages_that_no_program_gets_are_noted() -> None:
    never = run_one("numa.huge-pages", patched(healthy(), "host", transparent_huge_pages="never"))
    assert (never.status, "(never)" in never.summary) == (Status.NOTE, True)
    for mode in ("always", "madvise"):
        assert run_one("numa.huge-pages", patched(healthy(), "host", transparent_huge_pages=mode)).status is Status.PASS
    unread = patched(healthy(), "host", transparent_huge_pages=None)
    assert run_one("numa.huge-pages", unread).status is Status.UNKNOWN


def test_a_kernel_without_huge_pages_passes_and_pools_that_were_not_read_do_not() -> None:
    def lacking(name: str, reason: Reason) -> Machine:
        machine = patched(healthy(), "host.numa_nodes[*]", huge_pages=None)
        machine = patched(machine, "host", huge_pages=())
        return patched(machine, "host", **{name: None}, unread={name: Unread(reason=reason)})

    for name in ("transparent_huge_pages", "huge_pages"):
        assert run_one("numa.huge-pages", lacking(name, Reason.NOT_PRESENT)).status is Status.PASS
        assert run_one("numa.huge-pages", lacking(name, Reason.FAILED)).status is Status.UNKNOWN


def test_an_idle_pool_of_the_host_is_noted_unless_its_nodes_have_it() -> None:
    finding = run_one("numa.huge-pages", with_pool())
    assert (finding.status, finding.summary) == (Status.NOTE, IDLE)
    for why, statuses in ((Reason.NOT_PRESENT, {Status.NOTE}), (Reason.FAILED, {Status.NOTE, Status.UNKNOWN})):
        unread = {"transparent_huge_pages": Unread(reason=why)}
        machine = patched(with_pool(), "host", transparent_huge_pages=None, unread=unread)
        assert {finding.status for finding in run("numa.huge-pages", machine)} == statuses
    for machine in (with_pool(of_nodes=()), with_pool(total=4000 * GIB)):
        assert run_one("numa.huge-pages", machine).status is Status.PASS
