"""To whom the firmware gives EGM memory: nobody, this system or virtual machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from egmctl.doctor.check import EVERYTHING, Expectation, Scope
from egmctl.doctor.runner import CHECKS
from egmctl.facts.egm import firmware_egm, region_sizes
from egmctl.facts.root import Root
from egmctl.facts.system import system
from egmctl.model.finding import TOLD, Guard, Status
from egmctl.model.host import FirmwareEgm
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from egmctl.topology.egm_mode import EgmMode, egm_mode
from egmctl.topology.platform import PlatformKind, platform
from egmctl.topology.topology import topology
from egmctl.units import GIB
from tests.answers import diagnose
from tests.doctor.changed import CARVE_OUT, declaring, virtualization_host, with_carve_out
from tests.doctor.faults import Fault, healthy
from tests.doctor.machines import patched, run, run_one
from tests.fake.sysroot import Tree
from tests.fake.system_files import aml

EGM = Scope(purposes=(Guard.EGM,))


FAULTS: dict[str, Fault] = {"egm.mode": Fault(with_carve_out)}


def test_a_carve_out_blocks_egm() -> None:
    machine = with_carve_out()
    answer = diagnose(machine, EGM, CHECKS).answer
    (cause,) = [cause for cause in answer.causes if cause.finding.status is Status.FAIL]
    assert (cause.finding.check, answer.word) == ("egm.mode", "BLOCKED for egm")
    assert "828 GiB" in cause.finding.summary
    assert "128 GiB" in cause.finding.summary
    assert cause.finding.remedy is not None
    assert "EGMHypervisorReservedMemory" in cause.finding.remedy.text
    assert platform(machine).kind is PlatformKind.NO_EGM
    assert not any(route.egm for route in topology(machine).routes)


def test_nobody_is_told_to_turn_on_what_is_on() -> None:
    for machine in (with_carve_out(), patched(healthy(), "gpus[*].nvml", capabilities=0)):
        for scope in (EVERYTHING, EGM, Scope(expectation=Expectation(egm=True))):
            remedies = [finding.remedy.text for finding in diagnose(machine, scope, CHECKS).findings if finding.remedy]
            assert not any("Turn EGM on" in text for text in remedies)


def test_who_may_not_read_the_tables_is_told_to_read_them_before_the_firmware_is_changed() -> None:
    unread = {"acpi_egm": Unread(reason=Reason.NO_PERMISSION, detail="DSDT: EACCES")}
    machine = patched(healthy(), "system", acpi_egm=None, firmware_egm=None, unread=unread)
    finding = run_one("egm.capability", patched(machine, "gpus[*].nvml", capabilities=0), EGM)
    assert finding.remedy is not None
    assert finding.remedy.text.startswith("Run egmctl as root on the host first")
    assert finding.cause == "whether the firmware has EGM on was not read"


def test_a_virtualization_host_is_told_to_test_inside_a_machine() -> None:
    diagnosis = diagnose(virtualization_host(), EVERYTHING, CHECKS)
    sentence = "this node gives its GPUs to virtual machines"
    assert (diagnosis.answer.word, diagnosis.answer.sentence.partition(";")[0]) == ("NOT DETERMINED", sentence)
    assert diagnosis.answer.next_step is not None
    assert "inside a virtual machine" in diagnosis.answer.next_step.text
    assert all(finding.status is not Status.FAIL for finding in diagnosis.findings)
    blocked = diagnose(virtualization_host(), EGM, CHECKS)
    (root,) = [finding for finding in blocked.findings if finding.status is Status.FAIL and not finding.explained_by]
    assert root.check == "dev.driver-binding"
    for finding in (*diagnosis.findings, *blocked.findings):
        if finding.status not in TOLD:
            continue
        words = "" if finding.remedy is None else f"{finding.remedy.text} {finding.remedy.run}"
        assert not any(harm in words for harm in ("blacklist", "modprobe", "unbind")), finding
    gap = topology(virtualization_host()).missing
    assert gap is not None
    assert gap.sentence.endswith("this node gives them to virtual machines.")


def test_gpus_that_are_required_are_missed_on_a_virtualization_host_too() -> None:
    finding = run_one("dev.driver-binding", virtualization_host(), Scope(expectation=Expectation(gpus=4)))
    assert finding.status is Status.FAIL


def guest(*domains: int, size: int | None, memory: int) -> Machine:
    """A virtual machine that has the GPUs and, of its hypervisor, EGM memory."""
    machine = declaring(patched(healthy(), "gpus[*].nvml", virtualization="passthrough"), *domains, size=size)
    return patched(patched(machine, "host.numa_nodes[0]", memory_total_bytes=memory), "host.numa_nodes[1]", cpus="")


@pytest.mark.parametrize(
    ("machine", "status", "words"),
    [
        (declaring(healthy(), 0, 1), Status.PASS, "this system's"),
        (declaring(healthy(), 0, 1, size=None), Status.PASS, "this system's"),
        (declaring(healthy()), Status.SKIP, "EGM off"),
        (declaring(healthy(), 0, 5), Status.UNKNOWN, "some CPUs only"),
        (declaring(healthy(), 0, 1, size=1200 * GIB), Status.UNKNOWN, "as this system's, which has"),
        (patched(healthy(), "system", egm_regions=("egm0",)), Status.UNKNOWN, "a driver offers EGM"),
        (patched(healthy(), "system", firmware_egm=None), Status.UNKNOWN, "nvidia,egm-pxm"),
        (patched(healthy(), "system", firmware_egm=None, acpi_egm=None), Status.UNKNOWN, "were not read"),
        (guest(4, size=400 * GIB, memory=396 * GIB), Status.PASS, "this virtual machine"),
        (guest(0, size=400 * GIB, memory=8 * GIB), Status.UNKNOWN, "as this system's, which has 8 GiB"),
        (guest(0, size=None, memory=8 * GIB), Status.UNKNOWN, "only the sizes"),
        (
            patched(guest(4, size=400 * GIB, memory=396 * GIB), "gpus[*].nvml", virtualization="vgpu"),
            Status.PASS,
            "given",
        ),
        (with_carve_out(capabilities=1), Status.UNKNOWN, "the driver says that GPU0-3 can use EGM"),
        (patched(declaring(healthy(), 4, 5), "gpus[*].nvml", capabilities=0), Status.UNKNOWN, "may be its 828 GiB"),
    ],
)
def test_the_mode_is_known_by_domains_and_sizes(machine: Machine, status: Status, words: str) -> None:
    (finding,) = run("egm.mode", machine)
    assert finding.status is status
    assert words in finding.summary


def test_without_nvml_nobody_knows_whether_the_domains_are_those_of_a_host() -> None:
    why = {"nvml": Unread(reason=Reason.FAILED, detail="nvmlInit")}
    assert egm_mode(patched(with_carve_out(), "gpus[*]", nvml=None, unread=why)).mode is None
    assert egm_mode(virtualization_host()).mode is EgmMode.CARVED_OUT


def test_areas_and_regions_are_read(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    areas = [FirmwareEgm(proximity_domain=domain, size_bytes=size) for domain, size in ((4, CARVE_OUT), (5, 1 << 16))]
    # The two GPUs of a CPU declare the same area.
    tree.write("/sys/firmware/acpi/tables/DSDT", b"DSDT")
    tree.write("/sys/firmware/acpi/tables/SSDT1", b"SSDT" + aml(areas[0]) * 2 + aml(areas[1]))
    # A value that is computed at run time, and a table that ends early.
    tree.write("/sys/firmware/acpi/tables/SSDT2", b"nvidia,egm-size\0\x5bX nvidia,egm-pxm\0\x0e\x01")
    tree.write("/sys/class/egm/egm4/egm_size", f"0x{CARVE_OUT:x}\n")
    tree.folder("/sys/class/egm/egm5")
    root = Root(str(tmp_path))
    *whole, broken = firmware_egm(root, "aarch64")
    assert whole == areas
    assert (broken.proximity_domain, broken.size_bytes) == (None, None)
    assert region_sizes(root) == {"egm4": CARVE_OUT}
    assert system(root).egm_regions == ("egm4", "egm5")
