"""One cause is told once, with what it explains; two causes stay two, and what nothing explains stays a fault."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.doctor.causes import ON_FINDINGS, explained
from egmctl.doctor.check import EVERYTHING, Scope
from egmctl.doctor.checks.active import KINDS
from egmctl.doctor.effects_on_findings import related
from egmctl.doctor.runner import CHECKS
from egmctl.facts.kernel_log import event
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import NODE, TOLD, Finding, Guard, Status, on_gpus, on_pairs, root_causes
from egmctl.model.gpu import Gpu
from egmctl.model.host import Imex, LibraryFailure, PcieLink
from egmctl.model.kernel_log import DriverMessage, KernelLog
from egmctl.model.machine import Machine
from egmctl.model.probes import Peers, ProbeOutcome
from egmctl.model.record import Reason, Unread
from egmctl.report.exports.json import result_json
from egmctl.report.exports.junit import doctor_junit
from egmctl.report.exports.nagios import doctor_nagios
from tests.answers import diagnose
from tests.doctor.changed import all_denied, blind, container, error, unlisted, without_cuda
from tests.doctor.faults import by_nouveau, excluded, faults, healthy, with_switches, without_umad
from tests.doctor.machines import patched, with_gpu_denied
from tests.doctor.sick import board

INIT_FAILED = "NVRM: GPU 0008:01:00.0: RmInitAdapter failed! (0x62:0x55:1860)"
AER = "nvidia 0008:01:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer"
GPUS = healthy().gpus or ()


def told(machine: Machine, scope: Scope = EVERYTHING) -> Diagnosis:
    return diagnose(machine, scope, CHECKS)


def roots(machine: Machine, *statuses: Status) -> list[Finding]:
    """Return the findings that nothing explains."""
    wanted = statuses or TOLD
    return [finding for finding in told(machine).findings if finding.status in wanted and not finding.explained_by]


def gpu0(path: str, /, **changes: object) -> Machine:
    """The healthy machine with something about its first GPU changed."""
    return patched(healthy(), f"gpus[0]{path}", **changes)


def all_gpus(path: str, /, **changes: object) -> Machine:
    return patched(healthy(), f"gpus[*]{path}", **changes)


def no_gpu_left(machine: Machine) -> Machine:
    """CUDA finds no GPU that it may open."""
    return without_cuda(unlisted(machine, Reason.NOT_PRESENT), 100)


def probes_failing(machine: Machine, call: str, number: int, *checks: str) -> Machine:
    """All that was tried for these checks failed in one call."""
    kinds = {KINDS[check] for check in checks or KINDS}
    failure: dict[str, Any] = {
        "outcome": ProbeOutcome.ERROR,
        "call": call,
        "error_number": number,
        "error_name": "EPERM",
    }
    probes = tuple(
        dataclasses.replace(probe, **failure) if probe.kind in kinds else probe for probe in machine.probes or ()
    )
    return patched(machine, "", probes=probes)


def without_uvm() -> Machine:
    """What a cgroup that denies /dev/nvidia-uvm looks like with --active (measured on H200)."""
    why = {"cuda": Unread(reason=Reason.FAILED, detail="cuInit: 999")}
    machine = patched(patched(healthy(), "driver.nodes[1]", access="EPERM"), "gpus[*]", cuda=None, unread=why)
    return probes_failing(without_cuda(machine, 999), "cuInit", 999)


def without_control(machine: Machine) -> Machine:
    return patched(blind(machine), "driver.nodes[0]", access="EPERM")


def waiting(machine: Machine) -> Machine:
    """CUDA does not start, as the fabric is not ready."""
    why = {"cuda": Unread(reason=Reason.FAILED, detail="cuInit: 802")}
    return without_cuda(patched(machine, "gpus[*]", cuda=None, unread=why), 802)


def unmanaged() -> Machine:
    """DGX H100 whose fabric manager does not run: no GPU is registered."""
    machine = patched(with_switches(), "system", daemons=())
    return patched(machine, "gpus[*].nvml.fabric", state="not-started", status=None)


def with_lines(machine: Machine, *lines: str) -> Machine:
    events = tuple(found for line in lines if (found := event(12.0, line)) is not None)
    assert len(events) == len(lines)
    return patched(machine, "", kernel_log=KernelLog(source="/dev/kmsg", now_s=60.0, first_s=0.0, events=events))


def said(machine: Machine, *messages: DriverMessage) -> Machine:
    return with_lines(machine, *(f"NVRM: something: {message.value}: so it is" for message in messages))


def xid(machine: Machine, *numbers: int) -> Machine:
    return with_lines(machine, *(f"NVRM: Xid (PCI:0008:01:00): {number}, so it is." for number in numbers))


def not_listed(machine: Machine, library: str, reason: Reason) -> Machine:
    """A library that works and has no GPU0."""
    why = {"nvml": Unread(reason=reason, detail=""), "cuda": Unread(reason=reason, detail="")}
    gone = {"nvml": {"nvml": None, "cuda": None}, "cuda": {"cuda": None}}[library]
    return patched(machine, "gpus[0]", unread=why, **gone)


OFF_THE_BUS = not_listed(gpu0(".pci", responds=False), "nvml", Reason.FAILED)
LINK_DOWN = gpu0(".nvml.nvlinks[3]", active=False)
C2C_DOWN = gpu0(".nvml.c2c_links[*]", active=False)
ROWS_LEFT = gpu0(".nvml", remapped_rows_failure=True)
RECOVERING = gpu0(".nvml", recovery_action="recover-imex-domain")
IN_PROGRESS = all_gpus(".nvml.fabric", state="in-progress")
NO_DRIVER = patched(blind(healthy()), "gpus[*].pci", driver="")
NVIDIACTL_ONLY = without_control(healthy())
MISMATCH = error("nvmlInit", 18)
UPDATED = patched(blind(healthy(), MISMATCH), "driver", nvml_error=MISMATCH.name, driver_version=None)
FEW_FILES = patched(healthy(), "confinement", limits={"nofile": 48})
REFUSED = {"read": "NS", "write": "NS", "nvlink": "NS"}
RETRAINED = gpu0(".nvml.nvlinks[3].counters", recoveries=2, successful_recoveries=2)
CUDA_LISTS_NONE = all_gpus("", cuda=None, unread={"cuda": Unread(reason=Reason.FAILED, detail="cuInit: 100")})
IN_MIG_MODE = patched(without_cuda(CUDA_LISTS_NONE, 100), "gpus[1].nvml", mig_mode=True)
"""One GPU in MIG mode without an instance: CUDA finds no device at all."""


def with_fault(check: str) -> Machine:
    return faults()[check].machine()


PAIRS: dict[tuple[str, str], Machine] = {
    ("drv.nouveau", "dev.driver-binding"): by_nouveau(),
    ("drv.nouveau", "dev.count-consistency"): by_nouveau(),
    ("drv.nouveau", "drv.libraries"): patched(blind(by_nouveau()), "gpus[0].pci", driver=""),
    ("gpu.mig", "drv.libraries"): IN_MIG_MODE,
    ("uvm.addressing-mode", "drv.libraries"): patched(
        without_cuda(CUDA_LISTS_NONE, 3), "gpus[*].nvml", addressing_mode="none"
    ),
    ("dev.driver-binding", "drv.libraries"): NO_DRIVER,
    ("dev.driver-binding", "dev.count-consistency"): NO_DRIVER,
    ("dev.cgroup-restricted", "drv.libraries"): no_gpu_left(all_denied()),
    ("dev.nodes-missing", "drv.libraries"): no_gpu_left(all_denied("ENOENT")),
    ("dev.permissions", "drv.libraries"): no_gpu_left(all_denied("EACCES")),
    ("dev.excluded", "drv.libraries"): no_gpu_left(all_gpus(".proc", excluded=True)),
    ("dev.fell-off-bus", "drv.libraries"): no_gpu_left(all_gpus(".pci", responds=False)),
    ("env.limits", "drv.libraries"): without_cuda(FEW_FILES, 999),
    ("env.limits", "egm.alloc-active"): probes_failing(FEW_FILES, "cuMemCreate", 2, "egm.alloc-active"),
    ("drv.versions", "drv.libraries"): UPDATED,
    ("drv.libraries", "dev.count-consistency"): blind(
        healthy(), LibraryFailure(how="crashed", call="nvmlDeviceGetUUID", gpu="0008:01:00.0")
    ),
    ("dev.cgroup-restricted", "dev.control-nodes"): without_cuda(without_control(all_denied()), 100),
    ("dev.nodes-missing", "dev.control-nodes"): container(gpus=False),
    ("dev.cgroup-restricted", "dev.count-consistency"): all_denied(),
    ("dev.cgroup-restricted", "egm.cgroup-route"): with_gpu_denied(healthy(), 2, 3),
    ("dev.nodes-missing", "dev.count-consistency"): all_denied("ENOENT"),
    ("dev.permissions", "dev.count-consistency"): all_denied("EACCES"),
    ("dev.fell-off-bus", "dev.count-consistency"): unlisted(all_gpus(".pci", responds=False)),
    ("dev.excluded", "dev.count-consistency"): excluded(),
    ("dev.control-nodes", "dev.count-consistency"): NVIDIACTL_ONLY,
    ("dev.control-nodes", "drv.libraries"): NVIDIACTL_ONLY,
    ("dev.control-nodes", "egm.alloc-active"): without_uvm(),
    ("drv.libraries", "egm.alloc-active"): probes_failing(without_cuda(healthy(), 999), "cuInit", 999),
    ("fabric.manager", "drv.libraries"): waiting(unmanaged()),
    ("drv.versions", "fabric.manager"): board("590.48.01", runs=False, driver="580.126.09", library="590.48.01"),
    ("fabric.management", "drv.libraries"): waiting(without_umad()),
    ("fabric.state", "drv.libraries"): waiting(IN_PROGRESS),
    ("gpu.cc-mode", "drv.libraries"): waiting(
        patched(healthy(), "driver", confidential_compute="protected-pcie", confidential_ready=False)
    ),
    ("gpu.mig", "dev.count-consistency"): not_listed(gpu0(".nvml", mig_mode=True), "cuda", Reason.NOT_PRESENT),
    ("gpu.compute-mode", "dev.count-consistency"): not_listed(
        gpu0(".nvml", compute_mode="prohibited"), "cuda", Reason.NOT_PRESENT
    ),
    ("kernel.xid", "dev.count-consistency"): xid(not_listed(healthy(), "nvml", Reason.FAILED), 119),
    ("dev.fell-off-bus", "kernel.xid"): xid(OFF_THE_BUS, 79, 154),
    ("dev.fell-off-bus", "kernel.aer"): with_lines(OFF_THE_BUS, AER),
    ("gpu.health", "kernel.xid"): xid(ROWS_LEFT, 48, 64),
    ("nvlink.links", "kernel.xid"): xid(LINK_DOWN, 74),
    ("nvlink.errors", "kernel.xid"): xid(RETRAINED, 149),
    ("c2c.link", "kernel.xid"): xid(C2C_DOWN, 173, 154),
    ("kernel.aer", "kernel.xid"): with_lines(healthy(), AER, "NVRM: Xid (PCI:0008:01:00): 167, a timeout."),
    ("kernel.xid", "gpu.health"): xid(gpu0(".nvml", recovery_action="gpu-reset"), 119),
    ("kernel.xid", "kernel.xid"): xid(healthy(), 119, 154),
    ("dev.permissions", "dev.control-nodes"): patched(all_denied("EACCES"), "driver.nodes[0]", access="EACCES"),
    ("drv.flavour", "egm.preconditions"): patched(
        all_gpus(".nvml", capabilities=0), "driver", module_flavour="proprietary"
    ),
    ("drv.flavour", "kernel.xid"): xid(patched(healthy(), "driver", module_flavour="proprietary"), 169),
    ("drv.flavour", "kernel.driver-messages"): with_lines(
        patched(unlisted(healthy(), Reason.NOT_PRESENT), "driver", module_flavour="proprietary"), INIT_FAILED
    ),
    ("drv.versions", "kernel.driver-messages"): said(UPDATED, DriverMessage.VERSION_MISMATCH),
    ("dev.driver-binding", "kernel.driver-messages"): with_lines(NO_DRIVER, INIT_FAILED),
    ("egm.preconditions", "egm.capability"): patched(
        all_gpus(".nvml", capabilities=0), "system", kernel_configuration={"NUMA": "y", "ACPI_NUMA": "n"}
    ),
    ("numa.cmdline", "uvm.addressing-mode"): patched(
        all_gpus(".nvml", addressing_mode="none"), "host", kernel_command_line={"iommu.passthrough": "1"}
    ),
    ("kernel.driver-messages", "dev.count-consistency"): with_lines(
        not_listed(healthy(), "nvml", Reason.NOT_PRESENT), INIT_FAILED
    ),
    ("kernel.driver-messages", "dev.driver-binding"): with_lines(
        not_listed(gpu0(".pci", driver=""), "nvml", Reason.NOT_PRESENT),
        "NVRM: The NVIDIA GPU 0008:01:00.0 (PCI ID: 10de:2941) has fallen off the bus and is not responding.",
    ),
    ("kernel.xid", "kernel.driver-messages"): with_lines(
        not_listed(healthy(), "nvml", Reason.FAILED), "NVRM: Xid (PCI:0008:01:00): 119, a timeout.", INIT_FAILED
    ),
    ("imex.recovery", "gpu.health"): RECOVERING,
    ("dev.fell-off-bus", "kernel.driver-messages"): said(OFF_THE_BUS, DriverMessage.FELL_OFF_BUS),
    ("c2c.link", "kernel.driver-messages"): said(C2C_DOWN, DriverMessage.C2C_SELF_TEST),
    ("nvlink.links", "kernel.driver-messages"): said(LINK_DOWN, DriverMessage.NVLINK_ALI),
    ("fabric.state", "kernel.driver-messages"): said(IN_PROGRESS, DriverMessage.FABRIC_PROBE),
    ("p2p.status", "kernel.driver-messages"): said(
        patched(healthy(), "pairs[*]", p2p_status=REFUSED), DriverMessage.EGM_NO_FABRIC_ADDRESS
    ),
    ("imex.recovery", "kernel.driver-messages"): said(RECOVERING, DriverMessage.IMEX_SHUTDOWN),
    ("uvm.addressing-mode", "kernel.driver-messages"): said(
        all_gpus(".nvml", addressing_mode="none"), DriverMessage.SMMU_SVA
    ),
    ("numa.auto-online", "kernel.driver-messages"): said(
        with_fault("numa.auto-online"), DriverMessage.MEMORY_NOT_MOVABLE
    ),
    ("numa.mode", "kernel.driver-messages"): said(with_fault("numa.mode"), DriverMessage.MEMORY_ADD),
    ("imex.channel", "fabric.alloc-active"): probes_failing(
        patched(healthy(), "driver", imex_channels=()), "cuMemCreate", 800, "fabric.alloc-active"
    ),
    ("numa.cpuset-mems", "egm.alloc-active"): probes_failing(
        patched(healthy(), "host", allowed_numa_nodes="0"), "cuMemCreate", 1, "egm.alloc-active", "ipc.vmm-active"
    ),
    ("numa.mempolicy-syscalls", "egm.alloc-active"): probes_failing(
        with_fault("numa.mempolicy-syscalls"), "cuMemCreate", 1, "egm.alloc-active"
    ),
    ("numa.memory", "egm.alloc-active"): probes_failing(
        with_fault("numa.memory"), "cuMemCreate", 1, "egm.alloc-active"
    ),
    ("ipc.ptrace", "ipc.pidfd-active"): probes_failing(with_fault("ipc.ptrace"), "pidfd_getfd", 1, "ipc.pidfd-active"),
}
"""A cause, an effect, and a machine that has both."""

SCOPES = {
    "ipc.ptrace": Scope(purposes=(Guard.IPC,)),
    "imex.channel": Scope(purposes=(Guard.FABRIC,)),
    "numa.cpuset-mems": Scope(numa=(1,)),
}
NARROW = PcieLink(width=8, max_width=16, speed_gt_s=32.0, max_speed_gt_s=32.0)

SEPARATE: dict[str, tuple[Machine, set[str]]] = {
    "Xids of two things": (xid(ROWS_LEFT, 48, 79), {"gpu.health", "kernel.xid"}),
    "C2C that is down and an Xid of NVLink": (xid(C2C_DOWN, 74), {"c2c.link", "kernel.xid"}),
    "an IMEX domain to recover and a row to remap": (
        patched(RECOVERING, "gpus[0].nvml", remapped_rows_failure=True),
        {"imex.recovery", "gpu.health"},
    ),
    "an Xid of another GPU": (
        xid(patched(healthy(), "gpus[1].nvml", remapped_rows_failure=True), 48),
        {"gpu.health", "kernel.xid"},
    ),
    "GPUs that are denied and CUDA that fails otherwise": (
        without_cuda(no_gpu_left(all_denied()), 999),
        {"dev.cgroup-restricted", "drv.libraries"},
    ),
    "one GPU that is denied and CUDA that finds no other": (
        without_cuda(patched(with_gpu_denied(healthy(), 3), "gpus[*]", cuda=None), 100),
        {"drv.libraries"},
    ),
    "CUDA that fails otherwise": (without_cuda(waiting(unmanaged()), 999), {"fabric.manager", "drv.libraries"}),
    "links that are down and a message about IMEX": (
        said(LINK_DOWN, DriverMessage.IMEX_SHUTDOWN),
        {"nvlink.links", "kernel.driver-messages"},
    ),
    "memory errors and an exclusive mode": (
        patched(ROWS_LEFT, "gpus[0].nvml", compute_mode="exclusive-process"),
        {"gpu.health", "gpu.compute-mode"},
    ),
    "a denied GPU and its narrow link": (
        with_gpu_denied(patched(healthy(), "gpus[3].pci", link=NARROW), 3),
        {"dev.cgroup-restricted", "pcie.link"},
    ),
    "modules that do not fit and an Xid of the link": (
        xid(patched(healthy(), "driver", module_flavour="proprietary"), 74),
        {"drv.flavour", "kernel.xid"},
    ),
    "a GPU that could not start and another that NVML lacks": (
        with_lines(
            patched(
                not_listed(healthy(), "nvml", Reason.NOT_PRESENT),
                "gpus[1]",
                nvml=None,
                cuda=None,
                unread={"nvml": Unread(reason=Reason.NOT_PRESENT, detail="")},
            ),
            INIT_FAILED,
        ),
        {"kernel.driver-messages", "dev.count-consistency"},
    ),
    "EGM that is off and a kernel that clears pages": (
        patched(all_gpus(".nvml", addressing_mode="none"), "host", kernel_command_line={"init_on_alloc": "1"}),
        {"uvm.addressing-mode", "numa.cmdline"},
    ),
    "a denied control node and a row to remap": (
        patched(without_uvm(), "gpus[2].nvml", remapped_rows_failure=True),
        {"dev.control-nodes", "gpu.health"},
    ),
}
"""Two faults of which neither explains the other."""


@pytest.mark.parametrize("name", SEPARATE)
def test_what_has_another_mechanism_stays_a_cause(name: str) -> None:
    machine, expected = SEPARATE[name]
    assert expected <= {finding.check for finding in roots(machine)}


@pytest.mark.parametrize(("pair", "machine"), PAIRS.items(), ids=map(">".join, PAIRS))
def test_each_pair(pair: tuple[str, str], machine: Machine) -> None:
    cause, effect = pair
    findings = told(machine, SCOPES.get(cause, EVERYTHING)).findings
    explained = [finding for finding in findings if finding.check == effect and finding.explained_by]
    assert explained, [(finding.check, finding.summary) for finding in findings if finding.status in TOLD]
    named = {root for finding in explained for root in finding.explained_by}
    assert all(effect in finding.explains for finding in findings if finding.check in named and finding.explains)
    # A cause that is itself explained passes on to its own.
    assert cause in named or any(finding.check == cause and finding.explained_by for finding in findings)


def test_every_rule_that_looks_at_the_machine_has_its_pair() -> None:
    assert {cause for rule in ON_FINDINGS if rule.holds is not related for cause in rule.causes} == {
        cause for cause, _ in PAIRS
    }


ALIKE = [
    (cause, effect) for rule in ON_FINDINGS if rule.holds is related for cause in rule.causes for effect in rule.effects
]


@pytest.mark.parametrize(("cause", "effect"), ALIKE)
def test_each_pair_that_sees_the_same_fault(cause: str, effect: str) -> None:
    """On the same GPU one explains the other; on another one both stay faults of their own."""
    first, second = GPUS[:2]
    blank = dataclasses.replace(healthy(), probes=())
    for gpu, by in ((first, (cause,)), (second, ())):
        found = explained(blank, (fault(cause, first), fault(effect, gpu)))
        assert found[1].explained_by == by


def test_the_peers_of_a_gpu_whose_links_went_down_are_its_effect() -> None:
    """Xid 145 of others, at the time of an Xid 149; not one of an hour before, nor any other Xid of theirs."""
    down = "NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00"
    peers = "NVRM: Xid (PCI:0009:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13"
    at_once = [finding.title for finding in roots(with_lines(healthy(), down, peers))]
    assert [title.split(",")[0] for title in at_once] == ["GPU0: Xid 149"]
    for lines in ((peers,), (down, peers.replace("145", "147"))):
        assert any("GPU1" in finding.title for finding in roots(with_lines(healthy(), *lines)))
    earlier = tuple(found for time, line in ((12.0, peers), (3612.0, down)) if (found := event(time, line)) is not None)
    log = KernelLog(source="/dev/kmsg", now_s=3700.0, first_s=0.0, events=earlier)
    assert any("GPU1" in finding.title for finding in roots(patched(healthy(), "", kernel_log=log)))


def test_of_two_that_explain_each_other_one_stays_the_cause() -> None:
    """The version that NVML could not tell explains nothing away that its failure is the cause of, and the reverse."""
    pairs = {(cause, effect) for rule in ON_FINDINGS for cause in rule.causes for effect in rule.effects}
    both = [(cause, effect) for cause, effect in pairs if (effect, cause) in pairs]
    assert both
    for cause, effect in both:
        for machine in (healthy(), UPDATED):
            found = explained(machine, (fault(cause, GPUS[0]), fault(effect, GPUS[0])))
            assert any(not finding.explained_by for finding in found), (cause, effect)


def fault(check: str, gpu: Gpu) -> Finding:
    return Finding(status=Status.FAIL, summary="", check=check, place=on_gpus([gpu]))


@pytest.mark.parametrize(
    ("number", "down", "root"), [(119, False, "kernel.xid"), (74, True, "nvlink.links"), (48, False, "kernel.xid")]
)
def test_a_gpu_that_wants_a_reset_after_an_xid_has_one_cause(number: int, down: bool, root: str) -> None:
    """As the driver does it: the Xid, Xid 154, and the recovery action that NVML reports from then on."""
    machine = patched(gpu0(".nvml", recovery_action="gpu-reset"), "gpus[0].nvml.nvlinks[3]", active=not down)
    assert [(finding.check, finding.status) for finding in roots(xid(machine, number, 154))] == [(root, Status.FAIL)]


@pytest.mark.parametrize(
    ("logged", "expected"),
    [
        ("0:119 0:154", "0:119"),
        ("0:109 0:119 0:154", "0:109 0:119"),
        ("0:109 0:154 0:119 0:154", "0:109 0:119"),
        ("0:154 0:119", "0:119 0:154"),
        ("0:31 0:154", "0:31 0:154"),
        ("1:119 0:154", "0:154 1:119"),
    ],
)
def test_xid_154_is_told_with_the_xid_that_it_follows(logged: str, expected: str) -> None:
    """NVML need not report the recovery action any more; an application's Xid asks for none."""
    buses = ("0008:01:00", "0009:01:00")
    pairs = [entry.split(":") for entry in logged.split()]
    lines = [f"NVRM: Xid (PCI:{buses[int(gpu)]}): {number}, so it is." for gpu, number in pairs]
    found = told(with_lines(healthy(), *lines)).findings
    left = [finding for finding in found if finding.status in TOLD and not finding.explained_by]
    assert {tuple(finding.title.split(",")[0].split(": Xid ")) for finding in left} == {
        (f"GPU{gpu}", number) for gpu, number in (entry.split(":") for entry in expected.split())
    }
    explained = [finding for finding in found if finding.explained_by]
    assert all("Xid 154" in finding.summary and finding.explained_by == ("kernel.xid",) for finding in explained)


def test_a_denied_uvm_is_one_fault_with_what_it_explains() -> None:
    found = told(without_uvm())
    (root,) = roots(without_uvm(), Status.FAIL)
    assert root.check == "dev.control-nodes"
    assert set(KINDS) - {"ipc.pidfd-active"} <= set(root.explains)
    assert (found.counts[Status.FAIL], found.counts["explained"] >= len(KINDS)) == (1, True)
    assert len(doctor_nagios(found).splitlines()) == 2
    assert 'failures="2"' in doctor_junit(found), "the answer, and the one cause"
    document = json.loads(result_json(found))["result"]
    assert next(finding["explains"] for finding in document["findings"] if finding["check"] == "dev.control-nodes")


@pytest.mark.parametrize(("gpus", "cause"), [(False, "dev.nodes-missing"), (True, "dev.control-nodes")])
def test_a_container_without_gpus_has_one_cause(gpus: bool, cause: str) -> None:
    found = roots(container(gpus=gpus))
    assert {finding.check for finding in found} == {cause}
    if not gpus:
        assert found[0].summary == (
            "this container was started without GPUs (/dev/nvidia0, /dev/nvidia1, /dev/nvidia2, /dev/nvidia3 not "
            "given): no GPU can be used"
        )


def test_no_fault_of_the_node_explains_that_mpi_did_not_start() -> None:
    machine = patched(healthy(), "system", daemons=(), imex=Imex())
    machine = patched(machine, "", peers=Peers(nodes=(), problem="MPI_Init exited with code 1"))
    found = [finding for finding in told(machine).findings if finding.check.startswith("peers.")]
    assert {(finding.status, finding.explained_by) for finding in found} == {(Status.UNKNOWN, ())}


def test_a_cause_is_as_grave_as_what_it_explains() -> None:
    """A kernel without ACPI_NUMA is a note: that it leaves EGM off on one GPU of several makes it a fault."""
    machine = patched(healthy(), "system", kernel_configuration={"ACPI_NUMA": "n"})
    assert told(machine).verdicts["egm.preconditions"] is not Status.FAIL
    found = told(patched(machine, "gpus[0].nvml", capabilities=0))
    assert found.verdicts["egm.preconditions"] is Status.FAIL
    assert found.exit_code == 1


@pytest.mark.parametrize("check", sorted(faults()))
def test_no_fault_is_hidden(check: str) -> None:
    fault = faults()[check]
    found = diagnose(fault.machine(), fault.scope, CHECKS)
    gravity = list(Status)
    for finding in found.findings:
        for root in finding.explained_by:
            worst = min((other.status for other in found.findings if other.check == root), key=gravity.index)
            assert gravity.index(worst) <= gravity.index(finding.status)
    assert any(finding.status in TOLD and not finding.explained_by for finding in found.findings)


def test_a_board_without_its_fabric_manager_has_one_cause() -> None:
    """As people meet it: cuInit ends with 802, no GPU can be used, and the manager is what to start."""
    (root,) = roots(waiting(unmanaged()), Status.FAIL)
    assert root.check == "fabric.manager"
    assert {"drv.libraries", "dev.count-consistency", "fabric.state"} <= set(root.explains)


def test_gpus_that_are_denied_in_several_ways_leave_cuda_none_and_are_its_causes() -> None:
    found = roots(no_gpu_left(patched(no_gpu_left(all_denied()), "gpus[0].node", access="EACCES")), Status.FAIL)
    assert {finding.check for finding in found} == {"dev.cgroup-restricted", "dev.permissions"}
    assert all("drv.libraries" in finding.explains for finding in found)


def causes_of(*findings: Finding) -> list[tuple[str, list[str]]]:
    """Return the checks that are causes, each with the checks and places that it explains."""
    found = root_causes(explained(dataclasses.replace(healthy(), probes=()), findings))
    return [
        (cause.finding.check, [f"{effect.check} {effect.place.label}" for effect in cause.explains]) for cause in found
    ]


def test_only_an_xid_explains_another_finding_of_its_check() -> None:
    assert {check for rule in ON_FINDINGS for check in (*rule.causes, *rule.effects)} <= {check.id for check in CHECKS}
    assert {rule.causes for rule in ON_FINDINGS if set(rule.causes) & set(rule.effects)} == {("kernel.xid",)}


def test_what_a_gpus_problem_explains_is_told_there() -> None:
    """Also where the same check found the same of another GPU first."""
    links, retrained = [fault("nvlink.links", gpu) for gpu in GPUS[:2]], fault("nvlink.errors", GPUS[1])
    assert causes_of(*links, retrained) == [("nvlink.links", []), ("nvlink.links", ["nvlink.errors GPU1"])]


def test_one_gpus_problem_does_not_explain_pairs_of_others() -> None:
    links = fault("nvlink.links", GPUS[0])
    pairs = on_pairs([(GPUS[0], GPUS[1]), (GPUS[2], GPUS[3])])
    refused = dataclasses.replace(fault("p2p.status", GPUS[0]), place=pairs)
    assert causes_of(links, refused) == [("nvlink.links", []), ("p2p.status", [])]
    both = dataclasses.replace(links, place=on_gpus([GPUS[0], GPUS[3]]))
    assert causes_of(both, refused) == [("nvlink.links", [f"p2p.status {pairs.label}"])]


FINDINGS = st.lists(
    st.builds(
        Finding,
        status=st.sampled_from(Status),
        summary=st.just(""),
        check=st.sampled_from([check.id for check in CHECKS]),
        place=st.just(NODE) | st.lists(st.sampled_from(GPUS), min_size=1, unique_by=id).map(on_gpus),
    ),
    max_size=12,
)


@pytest.mark.long
@given(FINDINGS)
def test_every_problem_is_in_exactly_one_cause_and_the_gravest_come_first(findings: list[Finding]) -> None:
    judged = explained(healthy(), findings)
    found = root_causes(judged)
    listed = [finding for cause in found for finding in (cause.finding, *cause.explains)]
    problems = [finding for finding in judged if finding.status in TOLD]
    assert sorted(id(entry) for entry in listed if entry.status is not Status.UNKNOWN) == sorted(map(id, problems))
    gravity = [list(Status).index(cause.status) for cause in found]
    assert gravity == sorted(gravity)
