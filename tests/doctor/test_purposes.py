"""What a finding means for the purposes of ``--for``, whose GPUs are denied, and what ``--expect egm`` makes of EGM."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from egmctl.api.doctor import Doctor, NodeDoctor
from egmctl.doctor.check import Scope, expectation
from egmctl.doctor.findings import failed, noted, passed, warned
from egmctl.doctor.job import of_others, own_job
from egmctl.doctor.purposes import for_purposes
from egmctl.doctor.runner import CHECKS, DOCUMENTED, blocked_by, texts
from egmctl.errors import UsageError
from egmctl.model.answer import State
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Finding, Guard, Status
from egmctl.model.machine import Machine, SectionStatus
from egmctl.model.record import Reason, Unread
from egmctl.model.remedy import todo
from egmctl.verdict.answers import answered
from tests.doctor.builders import check, diagnosis
from tests.doctor.cases import asked
from tests.doctor.faults import healthy
from tests.doctor.machines import patched, run_one, shipped, with_gpu_denied

HGX = patched(shipped("hgx-h200x4"), "process", environment={}, container_signs=())
LOOK = todo("Look.")
GUARDS = some.lists(some.sampled_from(list(Guard)), unique=True).map(tuple)
FINDINGS = some.builds(
    Finding,
    status=some.sampled_from(list(Status)),
    summary=some.just("so it is"),
    remedy=some.just(LOOK),
    blocks=GUARDS,
)
GRAVITY = list(Status)


# --- what a finding counts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finding", "purposes", "status"),
    [
        (warned("MIG", LOOK, blocks=(Guard.P2P,)), None, Status.WARN),
        (warned("MIG", LOOK, blocks=(Guard.P2P,)), (Guard.P2P,), Status.FAIL),
        (warned("MIG", LOOK, blocks=(Guard.P2P,)), (Guard.EGM,), Status.WARN),
        (noted("EGM is off", blocks=(Guard.EGM,)), (Guard.EGM, Guard.IPC), Status.FAIL),
        (passed("little may be locked", blocks=(Guard.RDMA,)), (Guard.RDMA,), Status.FAIL),
        (passed("little may be locked", blocks=(Guard.RDMA,)), (Guard.IPC,), Status.PASS),
        (failed("refused", LOOK), None, Status.FAIL),
        (failed("refused", LOOK), (Guard.EGM,), Status.FAIL),
        (failed("refused", LOOK), (Guard.PERF,), Status.WARN),
    ],
)
def test_what_blocks_a_purpose_is_a_fault_for_it_alone(
    finding: Finding, purposes: tuple[Guard, ...] | None, status: Status
) -> None:
    assert for_purposes(finding, (Guard.EGM,), purposes).status is status


@given(FINDINGS, GUARDS, GUARDS, GUARDS)
def test_who_asks_for_more_is_never_told_less(
    finding: Finding, blocks: tuple[Guard, ...], purposes: tuple[Guard, ...], more: tuple[Guard, ...]
) -> None:
    some_asked, more_asked = (for_purposes(finding, blocks, each) for each in (purposes, (*purposes, *more)))
    assert GRAVITY.index(more_asked.status) <= GRAVITY.index(some_asked.status)


@given(FINDINGS, GUARDS, GUARDS)
def test_a_node_that_has_to_serve_a_purpose_is_no_better_than_without_it(
    finding: Finding, blocks: tuple[Guard, ...], purposes: tuple[Guard, ...]
) -> None:
    plain, whole = for_purposes(finding, blocks, None), for_purposes(finding, blocks, purposes, whole_node=True)
    assert GRAVITY.index(whole.status) <= GRAVITY.index(plain.status)


NEVER_FAILS = {"ns.gpu-containers", "ipc.libraries", "numa.huge-pages"}
"""Checks that warn or note at most, so that they block nothing."""


def test_what_a_check_blocks_is_what_it_guards_unless_its_file_says_less() -> None:
    assert set(texts()) == {each.id for each in DOCUMENTED}
    for each in CHECKS:
        assert set(blocked_by(each)) <= set(each.guards), each.id
        assert blocked_by(each) or each.id in NEVER_FAILS, each.id


# --- the answer for purposes -----------------------------------------------------------------------------------------


def told(machine: Machine, purposes: str | None = None, *, expect: str | None = None) -> Diagnosis:
    return answered(Doctor(purposes=purposes, expect=expect).diagnose(machine))


def test_what_blocks_is_named_by_its_place() -> None:
    machine = patched(with_gpu_denied(HGX, 3), "process", environment={"SLURM_GPUS_ON_NODE": "4"})
    answer = told(machine, "ipc").answer
    assert (answer.state, answer.word) == (State.BAD, "BLOCKED for GPU3")
    assert answer.sentence.startswith("the device cgroup denies /dev/nvidia3, of this job (SLURM_GPUS_ON_NODE=4)")
    assert told(machine).answer.exit_code == 0, "a note where nobody asks"


def test_of_several_purposes_each_has_a_line_and_the_worst_decides() -> None:
    answer = told(HGX, "egm,p2p").answer
    assert [(each.purpose, each.state) for each in answer.purposes] == [(Guard.EGM, State.BAD), (Guard.P2P, State.GOOD)]
    assert [each.word for each in answer.purposes] == ["BLOCKED for egm", "OK for p2p"]
    assert (answer.state, answer.word) == (State.BAD, "BLOCKED for egm")


@pytest.mark.parametrize(
    ("name", "purpose", "words"),
    [
        ("hgx-h200x4", "egm", "not an EGM platform"),
        ("gh200", "p2p", "this node has one GPU"),
        ("hgx-h200x4", "rdma", "no InfiniBand or RoCE device"),
    ],
)
def test_a_platform_without_a_purpose_says_no(name: str, purpose: str, words: str) -> None:
    answer = told(shipped(name), purpose).answer
    assert answer.state is State.BAD
    assert words in answer.sentence


def test_a_purpose_is_judged_by_its_own_checks() -> None:
    broken = check("a.one", failed("broken", LOOK, blocks=(Guard.EGM,)), guards=(Guard.EGM, Guard.P2P))
    fine = check("b.two", passed("fine"), guards=(Guard.P2P,))
    answer = answered(diagnosis(broken, fine, scope=asked(Guard.EGM, Guard.P2P))).answer
    assert {each.purpose: each.state for each in answer.purposes} == {Guard.EGM: State.BAD, Guard.P2P: State.GOOD}


UNREAD = SectionStatus(version=1, unread=Unread(reason=Reason.FAILED))
NOT_RECORDED = SectionStatus(version=1, unread=Unread(reason=Reason.NOT_ASKED))


@pytest.mark.parametrize("status", [UNREAD, NOT_RECORDED], ids=["unread", "not recorded"])
@pytest.mark.parametrize(("purpose", "section"), [("p2p", "pairs"), ("rdma", "nics")])
def test_a_purpose_whose_own_section_is_missing_is_not_determined(
    purpose: str, section: str, status: SectionStatus
) -> None:
    machine = replace(HGX, sections={**HGX.sections, section: status})
    machine = replace(machine, pairs=None) if section == "pairs" else replace(machine, nics=None)
    answer = told(machine, purpose).answer
    assert (answer.state, answer.exit_code) == (State.INCOMPLETE, 3), answer.sentence
    node = NodeDoctor(purposes=purpose).diagnose(machine)
    assert {"p2p": "p2p.status", "rdma": "rdma.ports"}[purpose] in node.undecided


@pytest.mark.parametrize(
    "options",
    [
        {"purposes": "p2p", "expect": "nics=40"},
        {"purposes": "p2p", "expect": "numa=9"},
        {"purposes": "rdma", "expect": "egm"},
        {"skip": ("rdma.ports",), "expect": "nics=40"},
        {"check": ("gpu.*",), "expect": "domain"},
    ],
)
def test_what_is_expected_and_judged_by_no_selected_check_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="no selected check judges it"):
        Doctor(**options)


# --- whose GPUs are denied -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "of_job", "number"),
    [
        ({}, [], 0),
        ({"SLURM_GPUS_ON_NODE": "4"}, [1, 2, 3], 3),
        ({"SLURM_GPUS_ON_NODE": "1"}, [], 0),
        ({"SLURM_GPUS_ON_NODE": "2"}, [1, 2, 3], 1),
        ({"SLURM_GPUS_PER_NODE": "h200:4"}, [1, 2, 3], 3),
        ({"SLURM_JOB_GPUS": "0,2"}, [2], 1),
        ({"SLURM_JOB_GPUS": "0-1", "SLURM_STEP_GPUS": "0"}, [1], 1),
        # That of another node, where the job began.
        ({"SLURM_JOB_GPUS": "1,2", "SLURM_GPUS_ON_NODE": "1"}, [], 0),
        ({"SLURM_STEP_GPUS": "0", "SLURM_GPUS_ON_NODE": "4"}, [1, 2, 3], 3),
        ({"SLURM_JOB_GPUS": "all of them"}, [], 0),
    ],
)
def test_a_step_is_compared_with_its_job(environment: dict[str, str], of_job: list[int], number: int) -> None:
    machine = patched(with_gpu_denied(HGX, 1, 2, 3), "process", environment=environment)
    denied = [gpu for gpu in machine.gpus or () if gpu.nvml is None]
    job = own_job(machine, denied)
    assert [gpu.index for gpu in job.gpus] == of_job
    assert job.number == number
    finding = run_one("dev.cgroup-restricted", machine) if len(of_job) in (0, 3) else None
    assert finding is None or (Guard.IPC in finding.blocks) is bool(of_job)


@pytest.mark.parametrize(
    ("request_of_container", "signs", "of_job"),
    [
        ("0,1", ("/.dockerenv",), [1]),
        ("all", ("/.dockerenv",), [1, 2, 3]),
        ("void", ("/.dockerenv",), []),
        ("0,1", (), []),
    ],
)
def test_a_container_is_compared_with_what_it_asked_for(
    request_of_container: str, signs: tuple[str, ...], of_job: list[int]
) -> None:
    environment = {"NVIDIA_VISIBLE_DEVICES": request_of_container}
    machine = patched(with_gpu_denied(HGX, 1, 2, 3), "process", environment=environment, container_signs=signs)
    denied = [gpu for gpu in machine.gpus or () if gpu.nvml is None]
    assert [gpu.index for gpu in own_job(machine, denied).gpus] == of_job


def test_what_all_images_ask_for_says_nothing_of_a_gpu_that_was_not_passed_in() -> None:
    machine = with_gpu_denied(HGX, 3, access="ENOENT")
    environment = {"NVIDIA_VISIBLE_DEVICES": "all"}
    machine = patched(machine, "process", environment=environment, container_signs=("/.dockerenv",))
    denied = [gpu for gpu in machine.gpus or () if gpu.nvml is None]
    assert own_job(machine, denied).gpus == ()


def test_a_job_is_closer_than_the_container_around_its_node() -> None:
    """Of 2 x H200 in a machine with NVIDIA_VISIBLE_DEVICES=0,1, a step of Slurm had one; the other was not its own."""
    environment = {"NVIDIA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "0"}
    machine = with_gpu_denied(HGX, 1, 2, 3)
    machine = patched(machine, "process", environment=environment, container_signs=("/.dockerenv",))
    denied = [gpu for gpu in machine.gpus or () if gpu.nvml is None]
    assert own_job(machine, denied).gpus == ()
    assert of_others(machine) == {gpu.bus_id for gpu in denied}


@pytest.mark.parametrize("environment", [{}, {"SLURM_JOB_ID": "4"}])
def test_where_nothing_says_whose_gpus_are_denied_none_is_known_to_be_others(environment: dict[str, str]) -> None:
    assert of_others(patched(with_gpu_denied(HGX, 1, 2, 3), "process", environment=environment)) == frozenset()


# --- EGM -------------------------------------------------------------------------------------------------------------


def test_a_partial_allocation_on_an_egm_platform_names_the_blocked_routes() -> None:
    answer = told(with_gpu_denied(healthy(), 2, 3)).answer
    assert answer.state is State.WARN
    (cause,) = [cause for cause in answer.causes if cause.finding.check == "dev.cgroup-restricted"]
    assert "EGM routes to NUMA 1 are blocked" in cause.finding.summary
    assert cause.finding.remedy is not None
    assert "CUDA_VISIBLE_DEVICES" in cause.finding.remedy.text
    assert told(with_gpu_denied(healthy(), 2, 3), "egm").answer.word == "BLOCKED for GPU2-3"


EGM_OFF = patched(healthy(), "gpus[*].nvml", capabilities=0)


def test_egm_that_is_off_is_a_note_where_nobody_asks_for_it() -> None:
    assert told(EGM_OFF).answer.exit_code == 0
    assert told(EGM_OFF, "egm").answer.word == "BLOCKED for GPU0-3"
    assert told(EGM_OFF, expect="egm").answer.state is State.BAD
    assert told(EGM_OFF, expect="gpus=4,egm").answer.state is State.BAD
    assert told(EGM_OFF, expect="gb200-nvl72").answer.state is State.BAD, "it was on there"
    assert told(HGX, expect="egm").answer.state is State.BAD
    assert told(healthy(), expect="egm").answer.exit_code == 0


def test_expect_takes_egm_and_names_what_it_does_not_take() -> None:
    assert expectation("egm").egm
    assert expectation("gpus=4, egm, domain").egm
    assert not expectation("domain").egm
    with pytest.raises(UsageError, match="valid are gpus=8,nics=4,numa=2,egm,domain"):
        expectation("egm=on")


NOT_REPORTED = {"capabilities": Unread(reason=Reason.NOT_SUPPORTED, detail="nvmlDeviceGetCapabilities: 3")}
EGM_UNKNOWN = patched(healthy(), "gpus[*].nvml", capabilities=None, unread=NOT_REPORTED)
FABRIC_UNREAD = patched(healthy(), "gpus[*].nvml", fabric=None, unread={"fabric": Unread(reason=Reason.FAILED)})


@pytest.mark.parametrize(
    ("machine", "purposes", "expect", "check"),
    [
        (EGM_UNKNOWN, "egm", None, "egm.capability"),
        (EGM_UNKNOWN, None, "egm", "egm.capability"),
        (EGM_UNKNOWN, None, "gb200-nvl72", "egm.capability"),
        (FABRIC_UNREAD, "fabric", None, "fabric.domain"),
        (FABRIC_UNREAD, None, "domain", "fabric.domain"),
        (FABRIC_UNREAD, None, "domain-gpus=72", "fabric.domain"),
        (patched(healthy(), "", nics=None), None, "nics=4", "rdma.ports"),
        (patched(healthy(), "host", numa_nodes=None), None, "numa=2", "numa.memory"),
    ],
)
def test_what_is_asked_and_was_not_read_is_not_ok(
    machine: Machine, purposes: str | None, expect: str | None, check: str
) -> None:
    assert told(machine).answer.exit_code == 0
    answer = told(machine, purposes, expect=expect).answer
    assert (answer.state, answer.exit_code) == (State.INCOMPLETE, 3)
    assert [gap.checks for gap in answer.gaps] == [(check,)]


@pytest.mark.parametrize(("machine", "purpose"), [(EGM_UNKNOWN, "egm"), (FABRIC_UNREAD, "fabric")])
def test_a_node_that_has_to_serve_what_was_not_read_is_not_known_to_be_good(machine: Machine, purpose: str) -> None:
    assert answered(NodeDoctor().diagnose(machine)).answer.state is State.GOOD
    assert answered(NodeDoctor(purposes="p2p").diagnose(machine)).answer.state is State.GOOD
    assert answered(NodeDoctor(purposes=purpose).diagnose(machine)).answer.state is State.INCOMPLETE


def test_a_purpose_is_known_though_what_another_one_needs_is_not() -> None:
    answer = told(EGM_UNKNOWN, "egm,p2p", expect="egm").answer
    assert {each.purpose: each.state for each in answer.purposes} == {
        Guard.EGM: State.INCOMPLETE,
        Guard.P2P: State.GOOD,
    }


def test_where_the_firmware_has_no_egm_and_it_is_expected_that_is_the_fault() -> None:
    off = patched(EGM_UNKNOWN, "system", acpi_egm=False, firmware_egm=())
    assert told(off).answer.exit_code == 0
    answer = told(off, expect="egm").answer
    assert (answer.state, answer.causes[0].finding.check) == (State.BAD, "egm.preconditions")


def test_the_number_of_gpus_of_a_domain_is_for_a_fleet_to_count() -> None:
    assert told(healthy(), expect="domain-gpus=72").answer.state is State.GOOD


@pytest.mark.parametrize(
    ("expect", "words"),
    [
        ("nics=99", "of the 99 expected NICs are here"),
        ("numa=9", "2 of the 9 expected NUMA nodes with CPUs are here"),
        ("gpus=9", "4 of the 9 expected GPUs can be used from here"),
    ],
)
def test_fewer_than_expected_is_a_fault(expect: str, words: str) -> None:
    answer = told(healthy(), expect=expect).answer
    assert (answer.state, answer.exit_code) == (State.BAD, 1)
    assert words in answer.causes[0].finding.summary
    count = expect.partition("=")[0]
    fewer = {"nics": len(healthy().nics or ()), "numa": 2, "gpus": 4}[count]
    assert told(healthy(), expect=f"{count}={fewer}").answer.state is State.GOOD


def test_a_node_without_the_nics_that_are_expected_is_faulty() -> None:
    answer = told(patched(HGX, "", nics=()), expect="nics=8").answer
    assert (answer.state, answer.causes[0].finding.summary) == (State.BAD, "0 of the 8 expected NICs are here")


def test_a_bring_up_judges_the_node_and_what_it_has_to_serve() -> None:
    assert set(NodeDoctor(purposes="egm").checks) == set(CHECKS)
    for machine, purposes in (
        (EGM_OFF, "egm"),
        (patched(healthy(), "gpus[0].nvml", remapped_rows_failure=True), "rdma"),
    ):
        answer = answered(NodeDoctor(purposes=purposes).diagnose(machine)).answer
        assert (answer.state, answer.word) == (State.BAD, "PROBLEMS")
    assert answered(NodeDoctor().diagnose(EGM_OFF)).answer.exit_code == 0


def test_a_tray_of_a_rack_outside_of_its_domain_is_not_known_to_be_good() -> None:
    outside = patched(healthy(), "gpus[*].nvml.fabric", cluster_uuid=None, clique_id=0)
    no_fabric = {"fabric": Unread(reason=Reason.NOT_SUPPORTED)}
    unregistered = patched(healthy(), "gpus[*].nvml", fabric=None, unread=no_fabric)
    for machine in (outside, unregistered):
        answer = told(machine).answer
        assert (answer.state, [gap.kind for gap in answer.gaps]) == (State.INCOMPLETE, ["domain"])
        assert answered(Doctor(purposes="fabric").diagnose(machine)).answer.state is State.BAD


# --- less fault is never worse ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("purposes", [None, *Guard])
def test_a_denied_gpu_more_is_never_better(purposes: Guard | None) -> None:
    order = list(State)
    for base in (HGX, healthy()):
        states = [
            told(patched(with_gpu_denied(base, *denied), "process", environment={"SLURM_JOB_GPUS": "0-3"}), purposes)
            for denied in ((), (3,), (2, 3), (1, 2, 3))
        ]
        places = [order.index(each.answer.state) for each in states]
        assert places == sorted(places, reverse=True), (purposes, [each.answer.word for each in states])


def test_no_check_reads_the_purposes() -> None:
    for each in CHECKS:
        plain, named = (tuple(each.judge(HGX, scope)) for scope in (Scope(), Scope(purposes=tuple(Guard))))
        assert plain == named, each.id
