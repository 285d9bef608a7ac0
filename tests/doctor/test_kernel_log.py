"""The kernel's log: blame, age and remedy of each fault; an application's fault is no GPU's."""

from __future__ import annotations

import dataclasses

import pytest

from egmctl.doctor.check import EVERYTHING, Scope
from egmctl.doctor.kernel_faults import Action, catalogue
from egmctl.doctor.runner import CHECKS
from egmctl.facts.kernel_log import event
from egmctl.model.finding import Finding, Status
from egmctl.model.host import Bridge
from egmctl.model.kernel_log import DriverMessage, KernelLog
from egmctl.model.machine import Machine, OriginKind, SectionStatus
from egmctl.model.record import Reason, Unread
from egmctl.model.remedy import Need
from tests.answers import diagnose
from tests.conftest import RunEgmctl
from tests.doctor.machines import patched, run, run_one, shipped

GPU2, NOW = "0000:08:00.0", 5000.0


def node(*lines: str, at: float = 4300.0) -> Machine:
    """The recorded H200 node, whose kernel logged this."""
    events = tuple(found for line in lines if (found := event(at, line)) is not None)
    assert len(events) == len(lines)
    log = KernelLog(source="/dev/kmsg", now_s=NOW, first_s=0.0, events=events)
    return dataclasses.replace(shipped("hgx-h200x4"), kernel_log=log)


def xid(number: int, rest: str, bus: str = "0000:00:08") -> str:
    return f"NVRM: Xid (PCI:{bus}): {number}, {rest}"


def findings(*lines: str, check: str = "kernel.xid", scope: Scope = EVERYTHING) -> list[tuple[Status, str, str]]:
    return [(f.status, f.place.label, f.summary) for f in run(check, node(*lines), scope)]


def test_an_application_fault_is_noted_and_is_no_fault_of_the_gpu() -> None:
    noted, passed = run(
        "kernel.xid", node(xid(31, "pid=2228, name=python3, MMU Fault"), xid(43, "pid=2228, name=python3, Ch 1"))
    )
    assert (noted.status, noted.summary) == (Status.NOTE, "Xid 31, GPU memory page fault, 11 min ago")
    assert noted.cause.startswith("blamed on: application")
    assert (passed.status, passed.summary) == (Status.PASS, "no Xid that needs an operator")
    assert passed.note == "1 x Xid 43, channel reset after an application's fault on GPU2 (application)"


def test_an_application_fault_explains_no_gpu_that_could_not_start() -> None:
    init_failed = "NVRM: GPU 0000:00:08.0: RmInitAdapter failed! (0x62:0x55:1860)"
    found = diagnose(node(xid(31, "pid=2228, name=python3, MMU Fault"), init_failed), EVERYTHING, CHECKS).findings
    (message,) = [finding for finding in found if finding.check == "kernel.driver-messages"]
    assert (message.status, message.explained_by) == (Status.FAIL, ())


def test_a_gpu_off_the_bus_is_named_with_its_age_and_what_to_do() -> None:
    one: Finding = run_one("kernel.xid", node(xid(79, "GPU has fallen off the bus."), xid(79, "again")))
    assert one.status is Status.FAIL
    assert (one.place.label, one.summary) == ("GPU2", "Xid 79, GPU fell off the bus, 2 times, last 11 min ago")
    assert one.title.startswith("GPU2: Xid 79")
    assert one.cause == "blamed on: hardware"
    assert one.remedy is not None
    assert Need.REBOOT in one.remedy.needs


@pytest.mark.parametrize(
    ("number", "status", "blame"),
    [(167, Status.FAIL, "PCIe: the card"), (173, Status.FAIL, "hardware"), (176, Status.WARN, "PCIe: the card")],
)
def test_links_to_the_host_are_blamed_by_their_kind(number: int, status: Status, blame: str) -> None:
    one = run_one("kernel.xid", node(xid(number, "as nverror.h names it")))
    assert (one.status, one.cause.startswith(f"blamed on: {blame}")) == (status, True)


@pytest.mark.parametrize(("word", "status"), [("Fatal", Status.FAIL), ("Nonfatal", Status.WARN)])
def test_nvlink_5_says_itself_how_grave_it_is(word: str, status: Status) -> None:
    finding = run_one("kernel.xid", node(xid(149, f"NETIR_LINK_DOWN {word} XC0 i0 Link 4 (0x0 0x0)")))
    assert finding.status is status
    assert finding.remedy is not None
    assert (Need.GPU_RESET in finding.remedy.needs) is (word == "Fatal")


@pytest.mark.parametrize("word", ["Fatal", "Nonfatal"])
def test_a_request_of_the_driver_is_not_hidden_behind_an_event_that_needs_less(word: str) -> None:
    link = xid(149, f"NETIR_LINK_DOWN {word} XC0 i0 Link 4 (0x0 0x0)", "0000:00:06")
    request = xid(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "0000:00:06")
    machine = patched(node(link, request), "gpus[0].nvml", recovery_action="gpu-reset")
    findings_of_node = diagnose(machine, EVERYTHING, CHECKS).findings
    roots = {each.check for each in findings_of_node if each.status is Status.FAIL and not each.explained_by}
    assert ("gpu.health" in roots) is (word == "Nonfatal")


def test_two_kinds_are_two_findings() -> None:
    assert [s for s, _, _ in findings(xid(48, "DBE"), xid(74, "NVLink"))] == [Status.FAIL, Status.FAIL]


def test_what_is_older_than_since_does_not_count() -> None:
    machine = node(xid(79, "GPU has fallen off the bus."))
    assert run_one("kernel.xid", machine, Scope(since_s=600.0)).status is Status.PASS
    assert run_one("kernel.xid", machine, Scope(since_s=800.0)).status is Status.FAIL


def test_a_gpu_that_was_not_asked_about_stays_out() -> None:
    lines = xid(79, "x"), xid(48, "of a GPU that is gone", "0000:77:00")
    other = shipped("hgx-h200x4").gpus
    assert other is not None
    found = findings(*lines, scope=Scope(gpus=(other[0].bus_id,)))
    assert [summary for _, _, summary in found] == ["0000:77:00.0: Xid 48, uncorrectable ECC error, 11 min ago"]


def test_corrected_pcie_errors_count_where_they_are_many() -> None:
    line = "nvidia 0000:00:08.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
    assert run_one("kernel.aer", node(line)).status is Status.PASS
    assert run_one("kernel.aer", node(*[line] * 100)).status is Status.WARN


def test_a_restricted_log_is_unknown_with_what_to_do() -> None:
    machine = shipped("hgx-h200x4")
    status = SectionStatus(version=1, unread=Unread(reason=Reason.NO_PERMISSION, detail="/dev/kmsg: EPERM"))
    machine = dataclasses.replace(machine, sections={**machine.sections, "kernel_log": status}, kernel_log=None)
    one = run_one("kernel.xid", machine)
    assert (one.status, one.summary) == (Status.UNKNOWN, "the kernel log was not read (/dev/kmsg: EPERM)")
    assert one.remedy is not None


def test_a_model_has_none() -> None:
    machine = shipped("gb200-nvl72")
    assert machine.origin.kind is OriginKind.MODELLED
    assert run_one("kernel.xid", machine).status is Status.SKIP


def test_every_message_and_every_action_has_its_remedy_and_no_remedy_is_left_over() -> None:
    used = [catalogue().remedies[action] for action in Action]
    used += [catalogue().messages[message].remedy for message in DriverMessage]
    assert all(remedy.text.endswith(".") for remedy in used)
    assert all(remedy in used for remedy in catalogue().remedies.values())


@pytest.mark.parametrize("number", [13, 31, 43, 45])
def test_xids_of_applications_call_for_nobody(number: int) -> None:
    assert catalogue().xids[number].status is Status.PASS


@pytest.mark.parametrize("text", ["yesterday", "2", "-1h", "2h ago", "9999999s"])
def test_since_names_what_is_wrong(egmctl: RunEgmctl, text: str) -> None:
    done = egmctl("doctor", "--machine", "gh200", "--since", text)
    assert done.code == 2
    assert f"--since {text!r}: give boot, or a number with s, m, h or d: 30m, 2h, 1d" in done.err


def test_an_application_that_a_contained_memory_error_ended_did_nothing_wrong() -> None:
    """Xid 94 is the GPU's memory: no out-of-bounds access is to be looked for."""
    advice = catalogue().remedies[catalogue().xids[94].action]
    assert "whose fault it is not" in advice.text
    assert "compute-sanitizer" not in advice.text


def test_errors_of_a_bridge_are_of_the_gpus_below_it() -> None:
    machine = shipped("dgx-h100")
    gpu = (machine.gpus or ())[2]
    assert gpu.pci is not None
    assert gpu.pci.path
    bridge = gpu.pci.path[-1]
    line = f"pcieport {bridge}: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer"
    found = event(10.0, line)
    assert found is not None
    log = KernelLog(source="/dev/kmsg", now_s=60.0, first_s=0.0, events=(found,))
    machine = patched(machine, "system", bridges=(Bridge(bus_id=bridge),))
    finding = run_one("kernel.aer", patched(machine, "", kernel_log=log))
    assert gpu.bus_id in finding.place.ids
    assert len(finding.place.ids) < len(machine.gpus or ())
    assert finding.summary.startswith(f"PCIe bridge {bridge}: 1 fatal PCIe error")
