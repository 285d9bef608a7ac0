"""One cause is told once, with what it explains; two causes stay two, and what nothing explains stays a fault."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.doctor.causes import ON_FINDINGS, explained
from egmctl.doctor.check import EVERYTHING, Scope
from egmctl.doctor.checks.active import KINDS
from egmctl.doctor.effects_on_findings import alike
from egmctl.doctor.runner import CHECKS, diagnose
from egmctl.facts.kernel_log import event
from egmctl.model.finding import NODE, TOLD, Diagnosis, Finding, Guard, Status, causes, on_gpus, on_pairs
from egmctl.model.gpu import Gpu
from egmctl.model.host import DriverMessage as M
from egmctl.model.host import Imex, KernelLog, LibraryFailure, PcieLink
from egmctl.model.machine import Machine
from egmctl.model.probes import Outcome, Peers, Probe
from egmctl.model.record import Reason, Unread
from egmctl.report.exports.json import result_json
from egmctl.report.exports.junit import doctor_junit
from egmctl.report.exports.nagios import doctor_nagios
from egmctl.report.render.text import text
from egmctl.report.views.causes import title
from egmctl.report.views.doctor import doctor_document
from tests.doctor.faults import by_nouveau, excluded, faults, healthy, with_switches, without_umad
from tests.doctor.machines import patched, with_gpu_denied

UNKNOWN_999 = LibraryFailure(how="error", call="nvmlInit", number=999, name="NVML_ERROR_UNKNOWN")
NO_DEVICE = LibraryFailure(how="error", call="cuInit", number=100, name="CUDA_ERROR_NO_DEVICE")
CUDA_999 = LibraryFailure(how="error", call="cuInit", number=999, name="CUDA_ERROR_UNKNOWN")
MISMATCH = LibraryFailure(how="error", call="nvmlInit", number=18, name="NVML_ERROR_LIB_RM_VERSION_MISMATCH")
NOT_READY = LibraryFailure(how="error", call="cuInit", number=802, name="CUDA_ERROR_SYSTEM_NOT_READY")
CRASH = LibraryFailure(how="crashed", call="nvmlDeviceGetUUID", gpu="0008:01:00.0")


AER = "nvidia 0008:01:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer"


def narrow(machine: Machine) -> Machine:
    link = PcieLink(width=8, max_width=16, speed_gt_s=32.0, max_speed_gt_s=32.0)
    return patched(machine, "gpus[3].pci", link=link)


def told(machine: Machine, scope: Scope = EVERYTHING) -> Diagnosis:
    return diagnose(machine, scope, CHECKS)


def blind(machine: Machine, nvml: LibraryFailure | None = UNKNOWN_999) -> Machine:
    """NVML and CUDA say nothing of any GPU."""
    why = {name: Unread(reason=Reason.FAILED, detail="") for name in ("nvml", "cuda")}
    return patched(patched(machine, "gpus[*]", nvml=None, cuda=None, unread=why), "driver", nvml_failure=nvml)


def failing(probe: Probe, call: str, number: int) -> Probe:
    return dataclasses.replace(probe, outcome=Outcome.ERROR, call=call, error_number=number, error_name="CUDA_ERROR_X")


def probes_failing(machine: Machine, call: str, number: int, *checks: str) -> Machine:
    """All that was tried for these checks failed in one call."""
    kinds = {KINDS[check] for check in checks or KINDS}
    probes = tuple(failing(one, call, number) if one.kind in kinds else one for one in machine.probes or ())
    return patched(machine, "", probes=probes)


def without_uvm() -> Machine:
    """What a cgroup that denies /dev/nvidia-uvm looks like with --active (measured on H200)."""
    machine = patched(healthy(), "driver.nodes[1]", access="EPERM")
    why = {"cuda": Unread(reason=Reason.FAILED, detail="cuInit: 999")}
    machine = patched(patched(machine, "gpus[*]", cuda=None, unread=why), "driver", cuda_failure=CUDA_999)
    return probes_failing(machine, "cuInit", 999)


def without_control() -> Machine:
    machine = patched(blind(with_gpu_denied(healthy(), 0, 1, 2, 3)), "driver.nodes[0]", access="EPERM")
    return patched(machine, "driver", cuda_failure=NO_DEVICE)


def container(*, gpus: bool) -> Machine:
    """A container that was started with all GPUs, or with none, and whose runtime left out the nodes of all GPUs."""
    machine = blind(healthy() if gpus else with_gpu_denied(healthy(), 0, 1, 2, 3, access="ENOENT"))
    machine = patched(
        patched(machine, "driver.nodes[*]", exists=False, access="ENOENT"), "driver", cuda_failure=NO_DEVICE
    )
    return patched(machine, "process", container_signs=("/run/.containerenv",), environment={})


def no_gpu_left(machine: Machine) -> Machine:
    """CUDA finds no GPU that it may open."""
    why = {"nvml": Unread(reason=Reason.NOT_PRESENT, detail=""), "cuda": Unread(reason=Reason.FAILED, detail="")}
    return patched(patched(machine, "gpus[*]", nvml=None, cuda=None, unread=why), "driver", cuda_failure=NO_DEVICE)


def all_denied(access: str = "EPERM") -> Machine:
    return no_gpu_left(with_gpu_denied(healthy(), 0, 1, 2, 3, access=access))


def nvidiactl_only() -> Machine:
    return patched(blind(healthy()), "driver.nodes[0]", access="EPERM")


def updated() -> Machine:
    return patched(blind(healthy(), MISMATCH), "driver", nvml_error=MISMATCH.name, driver_version=None)


def cpuset() -> Machine:
    machine = patched(healthy(), "host", allowed_numa_nodes="0")
    return probes_failing(machine, "cuMemCreate", 1, "egm.alloc-active", "ipc.vmm-active")


def seccomp() -> Machine:
    answers = {"get_mempolicy": "EPERM", "mbind": "EPERM", "set_mempolicy": "ok"}
    machine = patched(healthy(), "confinement", seccomp="filter", system_calls=answers)
    return probes_failing(machine, "cuMemCreate", 1, "egm.alloc-active")


def no_channel() -> Machine:
    return probes_failing(patched(healthy(), "driver", imex_channels=()), "cuMemCreate", 800, "fabric.alloc-active")


def ptrace() -> Machine:
    machine = patched(healthy(), "confinement", ptrace_scope=3, capabilities=0)
    kind = KINDS["ipc.pidfd-active"]
    probes = tuple(
        dataclasses.replace(one, outcome=Outcome.ERROR, call="pidfd_getfd", error_number=1, error_name="EPERM")
        if one.kind is kind
        else one
        for one in machine.probes or ()
    )
    return patched(machine, "", probes=probes)


def waiting(machine: Machine) -> Machine:
    """CUDA does not start, as the fabric is not ready."""
    why = {"cuda": Unread(reason=Reason.FAILED, detail="cuInit: 802")}
    return patched(patched(machine, "gpus[*]", cuda=None, unread=why), "driver", cuda_failure=NOT_READY)


def unmanaged() -> Machine:
    """DGX H100 whose fabric manager does not run: no GPU is registered."""
    machine = patched(with_switches(), "system", daemons=())
    return patched(machine, "gpus[*].nvml.fabric", state="not-started", status=None)


def with_lines(machine: Machine, *lines: str) -> Machine:
    events = tuple(found for line in lines if (found := event(12.0, line)) is not None)
    assert len(events) == len(lines)
    return patched(machine, "", kernel_log=KernelLog(source="/dev/kmsg", now_s=60.0, first_s=0.0, events=events))


def said(machine: Machine, *messages: M) -> Machine:
    return with_lines(machine, *(f"NVRM: something: {message.value}: so it is" for message in messages))


def xid(machine: Machine, *numbers: int) -> Machine:
    return with_lines(machine, *(f"NVRM: Xid (PCI:0008:01:00): {number}, so it is." for number in numbers))


def not_listed(machine: Machine, library: str, reason: Reason) -> Machine:
    """A library that works and has no GPU0."""
    why = {"nvml": Unread(reason=reason, detail=""), "cuda": Unread(reason=reason, detail="")}
    gone = {"nvml": {"nvml": None, "cuda": None}, "cuda": {"cuda": None}}[library]
    return patched(machine, "gpus[0]", unread=why, **gone)


def silent() -> Machine:
    return not_listed(patched(healthy(), "gpus[0].pci", responds=False), "nvml", Reason.FAILED)


PAIRS: dict[tuple[str, str], Callable[[], Machine]] = {
    ("drv.nouveau", "dev.driver-binding"): by_nouveau,
    ("drv.nouveau", "dev.count-consistency"): by_nouveau,
    ("drv.nouveau", "drv.libraries"): lambda: patched(blind(by_nouveau()), "gpus[0].pci", driver=""),
    ("dev.driver-binding", "drv.libraries"): lambda: patched(blind(healthy()), "gpus[*].pci", driver=""),
    ("dev.driver-binding", "dev.count-consistency"): lambda: patched(blind(healthy()), "gpus[*].pci", driver=""),
    ("dev.cgroup-restricted", "drv.libraries"): all_denied,
    ("dev.nodes-missing", "drv.libraries"): lambda: all_denied("ENOENT"),
    ("dev.permissions", "drv.libraries"): lambda: all_denied("EACCES"),
    ("dev.excluded", "drv.libraries"): lambda: no_gpu_left(patched(healthy(), "gpus[*].proc", excluded=True)),
    ("dev.fell-off-bus", "drv.libraries"): lambda: no_gpu_left(patched(healthy(), "gpus[*].pci", responds=False)),
    ("env.limits", "drv.libraries"): lambda: patched(
        patched(healthy(), "driver", cuda_failure=CUDA_999), "confinement", limits={"nofile": 48}
    ),
    ("env.limits", "egm.alloc-active"): lambda: probes_failing(
        patched(healthy(), "confinement", limits={"nofile": 48}), "cuMemCreate", 2, "egm.alloc-active"
    ),
    ("drv.versions", "drv.libraries"): updated,
    ("drv.libraries", "dev.count-consistency"): lambda: blind(healthy(), CRASH),
    ("dev.cgroup-restricted", "dev.control-nodes"): without_control,
    ("dev.nodes-missing", "dev.control-nodes"): lambda: container(gpus=False),
    ("dev.cgroup-restricted", "dev.count-consistency"): lambda: with_gpu_denied(healthy(), 0, 1, 2, 3),
    ("dev.cgroup-restricted", "egm.cgroup-route"): lambda: with_gpu_denied(healthy(), 2, 3),
    ("dev.nodes-missing", "dev.count-consistency"): lambda: with_gpu_denied(healthy(), 0, 1, 2, 3, access="ENOENT"),
    ("dev.permissions", "dev.count-consistency"): lambda: with_gpu_denied(healthy(), 0, 1, 2, 3, access="EACCES"),
    ("dev.fell-off-bus", "dev.count-consistency"): lambda: patched(
        blind(healthy(), None), "gpus[*].pci", responds=False
    ),
    ("dev.excluded", "dev.count-consistency"): excluded,
    ("dev.control-nodes", "dev.count-consistency"): nvidiactl_only,
    ("dev.control-nodes", "drv.libraries"): nvidiactl_only,
    ("dev.control-nodes", "egm.alloc-active"): without_uvm,
    ("drv.libraries", "egm.alloc-active"): lambda: probes_failing(
        patched(healthy(), "driver", cuda_failure=CUDA_999), "cuInit", 999
    ),
    ("fabric.manager", "drv.libraries"): lambda: waiting(unmanaged()),
    ("fabric.management", "drv.libraries"): lambda: waiting(without_umad()),
    ("fabric.state", "drv.libraries"): lambda: waiting(patched(healthy(), "gpus[*].nvml.fabric", state="in-progress")),
    ("gpu.mig", "dev.count-consistency"): lambda: not_listed(
        patched(healthy(), "gpus[0].nvml", mig_mode=True), "cuda", Reason.NOT_PRESENT
    ),
    ("gpu.compute-mode", "dev.count-consistency"): lambda: not_listed(
        patched(healthy(), "gpus[0].nvml", compute_mode="prohibited"), "cuda", Reason.NOT_PRESENT
    ),
    ("kernel.xid", "dev.count-consistency"): lambda: xid(not_listed(healthy(), "nvml", Reason.FAILED), 119),
    ("dev.fell-off-bus", "kernel.xid"): lambda: xid(silent(), 79, 154),
    ("dev.fell-off-bus", "kernel.aer"): lambda: with_lines(silent(), AER),
    ("gpu.health", "kernel.xid"): lambda: xid(patched(healthy(), "gpus[0].nvml", remapped_rows_failure=True), 48, 64),
    ("nvlink.links", "kernel.xid"): lambda: xid(patched(healthy(), "gpus[0].nvml.nvlinks[3]", active=False), 74),
    ("nvlink.errors", "kernel.xid"): lambda: xid(
        patched(healthy(), "gpus[0].nvml.nvlinks[3].counters", recoveries=2, successful_recoveries=2), 149
    ),
    ("c2c.link", "kernel.xid"): lambda: xid(patched(healthy(), "gpus[0].nvml.c2c_links[*]", active=False), 173, 154),
    ("kernel.aer", "kernel.xid"): lambda: with_lines(healthy(), AER, "NVRM: Xid (PCI:0008:01:00): 167, a timeout."),
    ("kernel.xid", "gpu.health"): lambda: xid(patched(healthy(), "gpus[0].nvml", recovery_action="gpu-reset"), 119),
    ("kernel.xid", "kernel.xid"): lambda: xid(healthy(), 119, 154),
    ("imex.recovery", "gpu.health"): lambda: patched(healthy(), "gpus[0].nvml", recovery_action="recover-imex-domain"),
    ("dev.fell-off-bus", "kernel.driver-messages"): lambda: said(silent(), M.FELL_OFF_BUS),
    ("c2c.link", "kernel.driver-messages"): lambda: said(
        patched(healthy(), "gpus[0].nvml.c2c_links[*]", active=False), M.C2C_SELF_TEST
    ),
    ("nvlink.links", "kernel.driver-messages"): lambda: said(
        patched(healthy(), "gpus[0].nvml.nvlinks[3]", active=False), M.NVLINK_ALI
    ),
    ("fabric.state", "kernel.driver-messages"): lambda: said(
        patched(healthy(), "gpus[*].nvml.fabric", state="in-progress"), M.FABRIC_PROBE
    ),
    ("p2p.status", "kernel.driver-messages"): lambda: said(
        patched(healthy(), "pairs[*]", p2p_status={"read": "NS", "write": "NS", "nvlink": "NS"}),
        M.EGM_NO_FABRIC_ADDRESS,
    ),
    ("imex.recovery", "kernel.driver-messages"): lambda: said(
        patched(healthy(), "gpus[0].nvml", recovery_action="recover-imex-domain"), M.IMEX_SHUTDOWN
    ),
    ("uvm.addressing-mode", "kernel.driver-messages"): lambda: said(
        patched(healthy(), "gpus[*].nvml", addressing_mode="none"), M.SMMU_SVA
    ),
    ("numa.auto-online", "kernel.driver-messages"): lambda: said(
        faults()["numa.auto-online"].machine(), M.MEMORY_NOT_MOVABLE
    ),
    ("numa.mode", "kernel.driver-messages"): lambda: said(faults()["numa.mode"].machine(), M.MEMORY_ADD),
    ("imex.channel", "fabric.alloc-active"): no_channel,
    ("numa.cpuset-mems", "egm.alloc-active"): cpuset,
    ("numa.mempolicy-syscalls", "egm.alloc-active"): seccomp,
    ("numa.memory", "egm.alloc-active"): lambda: probes_failing(
        faults()["numa.memory"].machine(), "cuMemCreate", 1, "egm.alloc-active"
    ),
    ("ipc.ptrace", "ipc.pidfd-active"): ptrace,
}
"""A cause, an effect, and a machine that has both."""

SCOPES = {
    "ipc.ptrace": Scope(purposes=(Guard.IPC,)),
    "imex.channel": Scope(purposes=(Guard.FABRIC,)),
    "numa.cpuset-mems": Scope(numa=(1,)),
}


SEPARATE: dict[str, tuple[Callable[[], Machine], set[str]]] = {
    "Xids of two things": (
        lambda: xid(patched(healthy(), "gpus[0].nvml", remapped_rows_failure=True), 48, 79),
        {"gpu.health", "kernel.xid"},
    ),
    "C2C that is down and an Xid of NVLink": (
        lambda: xid(patched(healthy(), "gpus[0].nvml.c2c_links[*]", active=False), 74),
        {"c2c.link", "kernel.xid"},
    ),
    "an IMEX domain to recover and a row to remap": (
        lambda: patched(healthy(), "gpus[0].nvml", recovery_action="recover-imex-domain", remapped_rows_failure=True),
        {"imex.recovery", "gpu.health"},
    ),
    "an Xid of another GPU": (
        lambda: xid(patched(healthy(), "gpus[1].nvml", remapped_rows_failure=True), 48),
        {"gpu.health", "kernel.xid"},
    ),
    "GPUs that are denied and CUDA that fails otherwise": (
        lambda: patched(all_denied(), "driver", cuda_failure=CUDA_999),
        {"dev.cgroup-restricted", "drv.libraries"},
    ),
    "one GPU that is denied and CUDA that finds no other": (
        lambda: patched(patched(with_gpu_denied(healthy(), 3), "gpus[*]", cuda=None), "driver", cuda_failure=NO_DEVICE),
        {"drv.libraries"},
    ),
    "CUDA that fails otherwise": (
        lambda: patched(waiting(unmanaged()), "driver", cuda_failure=CUDA_999),
        {"fabric.manager", "drv.libraries"},
    ),
    "links that are down and a message about IMEX": (
        lambda: said(patched(healthy(), "gpus[0].nvml.nvlinks[3]", active=False), M.IMEX_SHUTDOWN),
        {"nvlink.links", "kernel.driver-messages"},
    ),
    "memory errors and an exclusive mode": (
        lambda: patched(healthy(), "gpus[0].nvml", remapped_rows_failure=True, compute_mode="exclusive-process"),
        {"gpu.health", "gpu.compute-mode"},
    ),
    "a denied GPU and its narrow link": (
        lambda: with_gpu_denied(narrow(healthy()), 3),
        {"dev.cgroup-restricted", "pcie.link"},
    ),
}
"""Two faults of which neither explains the other."""


@pytest.mark.parametrize("name", SEPARATE)
def test_what_has_another_mechanism_stays_a_cause(name: str) -> None:
    machine, expected = SEPARATE[name]
    roots = {one.check for one in told(machine()).findings if one.status in TOLD and not one.explained_by}
    assert expected <= roots, roots


@pytest.mark.parametrize(("pair", "machine"), PAIRS.items(), ids=map(">".join, PAIRS))
def test_each_pair(pair: tuple[str, str], machine: Callable[[], Machine]) -> None:
    cause, effect = pair
    findings = told(machine(), SCOPES.get(cause, EVERYTHING)).findings
    explained = [one for one in findings if one.check == effect and one.explained_by]
    assert explained, [(one.check, one.summary) for one in findings if one.status in TOLD]
    roots = {root for one in explained for root in one.explained_by}
    assert all(effect in one.explains for one in findings if one.check in roots and one.explains)
    # A cause that is itself explained passes on to its own.
    assert cause in roots or any(one.check == cause and one.explained_by for one in findings)


def test_every_rule_that_looks_at_the_machine_has_its_pair() -> None:
    assert {cause for rule in ON_FINDINGS if rule.holds is not alike for cause in rule.causes} == {
        cause for cause, _ in PAIRS
    }


ALIKE = [
    (cause, effect) for rule in ON_FINDINGS if rule.holds is alike for cause in rule.causes for effect in rule.effects
]


@pytest.mark.parametrize(("cause", "effect"), ALIKE)
def test_each_pair_that_sees_the_same_fault(cause: str, effect: str) -> None:
    """On the same GPU one explains the other; on another one both stay faults of their own."""
    first, second = (healthy().gpus or ())[:2]
    blank = dataclasses.replace(healthy(), probes=())
    for gpu, by in ((first, (cause,)), (second, ())):
        found = explained(blank, (fault(cause, first), fault(effect, gpu)))
        assert found[1].explained_by == by


def test_of_two_that_explain_each_other_one_stays_the_cause() -> None:
    """The version that NVML could not tell explains nothing away that its failure is the cause of, and the reverse."""
    gpu = (healthy().gpus or ())[0]
    pairs = {(cause, effect) for rule in ON_FINDINGS for cause in rule.causes for effect in rule.effects}
    both = [(cause, effect) for cause, effect in pairs if (effect, cause) in pairs]
    assert both
    for cause, effect in both:
        for machine in (healthy(), updated()):
            found = explained(machine, (fault(cause, gpu), fault(effect, gpu)))
            assert any(not one.explained_by for one in found), (cause, effect)


def fault(check: str, gpu: Gpu) -> Finding:
    return Finding(status=Status.FAIL, summary="", check=check, place=on_gpus([gpu]))


@pytest.mark.parametrize(
    ("number", "down", "root"), [(119, False, "kernel.xid"), (74, True, "nvlink.links"), (48, False, "kernel.xid")]
)
def test_a_gpu_that_wants_a_reset_after_an_xid_has_one_cause(number: int, down: bool, root: str) -> None:
    """As the driver does it: the Xid, Xid 154, and the recovery action that NVML reports from then on."""
    machine = patched(healthy(), "gpus[0].nvml", recovery_action="gpu-reset")
    machine = patched(machine, "gpus[0].nvml.nvlinks[3]", active=not down)
    found = told(xid(machine, number, 154)).findings
    roots = [one for one in found if one.status in TOLD and not one.explained_by]
    assert [one.check for one in roots] == [root], [(one.check, one.summary, one.explained_by) for one in found]
    assert roots[0].status is Status.FAIL


@pytest.mark.parametrize(
    ("logged", "roots"),
    [
        ("0:119 0:154", "0:119"),
        ("0:109 0:119 0:154", "0:109 0:119"),
        ("0:109 0:154 0:119 0:154", "0:109 0:119"),
        ("0:154 0:119", "0:119 0:154"),
        ("0:31 0:154", "0:154"),
        ("1:119 0:154", "0:154 1:119"),
    ],
)
def test_xid_154_is_told_with_the_xid_that_it_follows(logged: str, roots: str) -> None:
    """NVML need not report the recovery action any more; an application's Xid asks for none."""
    buses = ("0008:01:00", "0009:01:00")
    pairs = [one.split(":") for one in logged.split()]
    lines = [f"NVRM: Xid (PCI:{buses[int(gpu)]}): {number}, so it is." for gpu, number in pairs]
    found = told(with_lines(healthy(), *lines)).findings
    left = [one for one in found if one.status in TOLD and not one.explained_by]
    assert {tuple(title(one).split(",")[0].split(": Xid ")) for one in left} == {
        (f"GPU{gpu}", number) for gpu, number in (one.split(":") for one in roots.split())
    }
    explained = [one for one in found if one.explained_by]
    assert all("Xid 154" in one.summary and one.explained_by == ("kernel.xid",) for one in explained)


def test_a_denied_uvm_is_one_fault_with_what_it_explains() -> None:
    found = told(without_uvm())
    roots = [one for one in found.findings if one.status is Status.FAIL and not one.explained_by]
    assert [one.check for one in roots] == ["dev.control-nodes"]
    assert set(KINDS) - {"ipc.pidfd-active"} <= set(roots[0].explains)
    assert found.counts[Status.FAIL] == 1
    assert found.counts["explained"] >= len(KINDS)
    shown = text(doctor_document(found)).plain
    assert "1 root cause" in shown
    assert "explains" in shown
    assert len(doctor_nagios(found).splitlines()) == 2
    assert 'failures="1"' in doctor_junit(found)
    document = json.loads(result_json(found))["result"]
    assert next(one["explains"] for one in document["findings"] if one["check"] == "dev.control-nodes")


@pytest.mark.parametrize(("gpus", "cause"), [(False, "dev.nodes-missing"), (True, "dev.control-nodes")])
def test_a_container_without_gpus_has_one_cause(gpus: bool, cause: str) -> None:
    roots = [one for one in told(container(gpus=gpus)).findings if one.status in TOLD and not one.explained_by]
    assert {one.check for one in roots} == {cause}
    if not gpus:
        (root,) = roots
        assert root.summary == (
            "this container was started without GPUs (/dev/nvidia0, /dev/nvidia1, /dev/nvidia2, /dev/nvidia3 not "
            "given): no GPU can be used"
        )


def test_no_fault_of_the_node_explains_that_mpi_did_not_start() -> None:
    machine = patched(healthy(), "system", daemons=(), imex=Imex())
    machine = patched(machine, "", peers=Peers(nodes=(), problem="MPI_Init exited with code 1"))
    found = [one for one in told(machine).findings if one.check.startswith("peers.")]
    assert {(one.status, one.explained_by) for one in found} == {(Status.UNKNOWN, ())}


def test_a_cause_is_as_grave_as_what_it_explains() -> None:
    """A share of a node is a note, and no fault: that all of it is gone makes it one."""
    machine = patched(patched(healthy(), "gpus[*].pci", driver="vfio-pci"), "gpus[*]", nvml=None, cuda=None, proc=None)
    found = told(machine)
    assert found.verdicts["dev.driver-binding"] is Status.FAIL
    assert found.exit_code == 1


@pytest.mark.parametrize("check", sorted(faults()))
def test_no_fault_is_hidden(check: str) -> None:
    fault = faults()[check]
    found = diagnose(fault.machine(), fault.scope, CHECKS)
    gravity = list(Status)
    for one in found.findings:
        for root in one.explained_by:
            worst = min((other.status for other in found.findings if other.check == root), key=gravity.index)
            assert gravity.index(worst) <= gravity.index(one.status)
    assert any(one.status in TOLD and not one.explained_by for one in found.findings)


def test_a_board_without_its_fabric_manager_has_one_cause() -> None:
    """As people meet it: cuInit ends with 802, no GPU can be used, and the manager is what to start."""
    found = told(waiting(unmanaged())).findings
    roots = [one for one in found if one.status is Status.FAIL and not one.explained_by]
    assert [one.check for one in roots] == ["fabric.manager"], [(one.check, one.summary) for one in roots]
    assert {"drv.libraries", "dev.count-consistency", "fabric.state"} <= set(roots[0].explains)
    assert all("{" not in one.cause for one in found)


def test_gpus_that_are_denied_in_several_ways_leave_cuda_none_and_are_its_causes() -> None:
    machine = no_gpu_left(patched(all_denied(), "gpus[0].node", access="EACCES"))
    roots = [one for one in told(machine).findings if one.status is Status.FAIL and not one.explained_by]
    assert {one.check for one in roots} == {"dev.cgroup-restricted", "dev.permissions"}
    assert all("drv.libraries" in one.explains for one in roots)


GPUS = healthy().gpus or ()


def causes_of(*findings: Finding) -> list[tuple[str, list[str]]]:
    """Return the checks that are causes, each with the checks and places that it explains."""
    found = causes(explained(dataclasses.replace(healthy(), probes=()), findings))
    return [
        (cause.finding.check, [f"{effect.check} {effect.place.label}" for effect in cause.explains]) for cause in found
    ]


def test_only_an_xid_explains_another_finding_of_its_check() -> None:
    assert {check for rule in ON_FINDINGS for check in (*rule.causes, *rule.effects)} <= {check.id for check in CHECKS}
    assert [rule.causes for rule in ON_FINDINGS if set(rule.causes) & set(rule.effects)] == [("kernel.xid",)]


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
    found = causes(judged)
    listed = [finding for cause in found for finding in (cause.finding, *cause.explains)]
    problems = [finding for finding in judged if finding.status in TOLD]
    assert sorted(id(entry) for entry in listed if entry.status is not Status.UNKNOWN) == sorted(map(id, problems))
    gravity = [list(Status).index(cause.status) for cause in found]
    assert gravity == sorted(gravity)
