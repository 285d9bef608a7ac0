"""``doctor --isolation`` on fake nodes: what it tries, what it makes of it, and where it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from egmctl.api.doctor import Doctor
from egmctl.api.isolation import announced
from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.isolation import planned
from egmctl.doctor.isolation_findings import ISOLATION_CHECKS
from egmctl.doctor.runner import CHECKS, diagnose
from egmctl.errors import NothingToDo
from egmctl.model.finding import Finding, Status
from egmctl.model.gpu import GpuProcess
from egmctl.model.machine import Machine
from egmctl.model.probes import IsolationKind, IsolationTrial, ProbeOutcome
from tests.conftest import Ended, RunEgmctl
from tests.doctor.machines import patched, shipped
from tests.fake.node import FakeNode
from tests.fake.plugin import MakeFakeNode

H200 = "hgx-h200x4"
Isolate = Callable[..., Ended]


@pytest.fixture
def node(fake_node: MakeFakeNode) -> FakeNode:
    return fake_node(H200)


@pytest.fixture
def isolate(egmctl: RunEgmctl, node: FakeNode) -> Isolate:
    """Run the command on a node whose small allocations share blocks and whose driver writes its kernel log."""

    def run(*arguments: str, faults: str = "", **variables: str) -> Ended:
        log = node.sysroot / "dev/kmsg"
        log.parent.mkdir(exist_ok=True)
        log.write_text("")
        fake = {"EGMCTL_FAKE_BLOCKS": "1", "EGMCTL_FAKE_KMSG": str(log), **variables}
        return egmctl("doctor", "--isolation", *arguments, env=node.environment(faults) | fake, timeout_s=280)

    return run


def findings(done: Ended) -> dict[str, list[dict[str, Any]]]:
    by_check: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(done.out)["result"]["findings"]:
        by_check.setdefault(finding["check"], []).append(finding)
    return by_check


def values(finding: dict[str, Any]) -> dict[str, str]:
    return {evidence["source"]: evidence["value"] for evidence in finding["evidence"]}


class TestOnAFakeNode:
    @pytest.mark.long
    def test_kernels_are_refused_what_was_not_shared_and_read_the_block_of_a_legacy_handle(
        self, isolate: Isolate, node: FakeNode
    ) -> None:
        done = isolate("--json")
        found = findings(done)
        assert [finding["status"] for finding in found["isolation.unshared"]] == ["pass"] * 3
        peer, host, process = map(values, found["isolation.unshared"])
        assert (peer["kernel"], peer["copy by the reader"], peer["cuMemGetAccess"]) == ("700", "1", "0")
        assert peer["cuMemcpyPeer"] == "0", "the driver's own copy needs no mapping"
        assert (host["kernel"], process["kernel"]) == ("700", "700")
        assert "copy by the reader" not in host, "the driver makes it by the CPU, and ends the process"
        (legacy,) = found["isolation.legacy-block"]
        assert legacy["status"] == "warn"
        assert "also opens 3 of 3 allocations behind it that were not exported" in legacy["summary"]
        assert "up to the end of the block of 2 MiB" in legacy["summary"]
        assert "2097152 bytes" in legacy["remedy"]["text"]
        assert (values(legacy)["kernel"], values(legacy)["copy by the reader"]) == ("700", "1")
        assert done.code == 0
        # Announced before, and recognised after by the id of the process that it was.
        assert "4 processes of this test" in done.err
        assert "each leaves an Xid 31" in done.err
        logged = (node.sysroot / "dev/kmsg").read_text().splitlines()
        assert len(logged) == 4
        for finding in (*found["isolation.unshared"], legacy):
            assert values(finding)["kernel log"].endswith("from this trial, expected")

    @pytest.mark.long
    def test_one_gpu_is_enough_for_what_processes_may_read_of_each_other(self, isolate: Isolate) -> None:
        done = isolate("--gpus", "0", "--json")
        found = findings(done)
        assert [finding["status"] for finding in found["isolation.unshared"]] == ["pass"]
        assert [finding["status"] for finding in found["isolation.legacy-block"]] == ["warn"]

    def test_a_call_that_fails_is_no_answer(self, isolate: Isolate) -> None:
        done = isolate("--json", faults="cuMemCreate=error:2")
        found = findings(done)
        assert {finding["status"] for finding in found["isolation.unshared"]} == {"unknown"}
        assert "OUT_OF_MEMORY" in found["isolation.unshared"][0]["summary"]

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("--active",), "--isolation and --active exclude each other"),
            (("--pid", "1"), "leave out --pid and --machine"),
            (("--machine", H200), "leave out --pid and --machine"),
            (("--check", "numa.*"), "leave out --check, --skip and --for"),
        ],
    )
    def test_it_stands_alone(self, isolate: Isolate, arguments: tuple[str, ...], words: str) -> None:
        done = isolate(*arguments)
        assert done.code == 2
        assert words in done.err

    @pytest.mark.long
    def test_neither_active_nor_another_command_tries_it(self, egmctl: RunEgmctl, node: FakeNode) -> None:
        done = egmctl("doctor", "--active", "--json", env=node.environment(), timeout_s=280)
        assert json.loads(done.out)["result"]["machines"][0]["isolation"] is None
        assert not [call for call in node.calls() if call.result == 700]


def test_no_other_run_of_doctor_has_these_checks() -> None:
    assert not {check.id for check in ISOLATION_CHECKS} & {check.id for check in CHECKS}


class TestRefusals:
    def busy(self) -> Machine:
        machine = shipped(H200)
        first, *others = machine.gpus or ()
        assert first.nvml is not None
        used = replace(first.nvml, processes=(GpuProcess(pid=77),))
        return replace(machine, gpus=(replace(first, nvml=used), *others))

    def test_a_gpu_that_others_use(self) -> None:
        with pytest.raises(NothingToDo, match=r"needs idle GPUs.*GPU0 is in use by process 77"):
            announced(Doctor(), self.busy())
        assert "on GPU3" in announced(Doctor(gpus="2,3"), self.busy()), "the others are idle"

    def test_a_gpu_whose_use_is_unknown(self) -> None:
        machine = shipped(H200)
        gpus = [replace(gpu, nvml=gpu.nvml and replace(gpu.nvml, processes=None)) for gpu in machine.gpus or ()]
        with pytest.raises(NothingToDo, match="who uses GPU0 cannot be read"):
            announced(Doctor(), replace(machine, gpus=tuple(gpus)))

    def test_mps_by_its_daemon(self) -> None:
        machine = patched(shipped(H200), "system", daemons=("nvidia-cuda-mps-control",))
        with pytest.raises(NothingToDo, match="passes them on to its other clients"):
            announced(Doctor(), machine)

    def test_mps_by_what_cuda_says_of_the_gpu(self) -> None:
        machine = shipped(H200)
        gpus = [
            replace(gpu, cuda=gpu.cuda and replace(gpu.cuda, attributes={**gpu.cuda.attributes, "MPS_ENABLED": 1}))
            for gpu in machine.gpus or ()
        ]
        with pytest.raises(NothingToDo, match="MPS"):
            announced(Doctor(), replace(machine, gpus=tuple(gpus)))

    def test_no_gpu(self) -> None:
        with pytest.raises(NothingToDo, match="no usable GPU"):
            announced(Doctor(), replace(shipped(H200), gpus=()))


def judged(**seen: Any) -> list[Finding]:
    """Return the findings of the check that the trial is for."""
    machine = shipped(H200)
    first, second, *_ = machine.gpus or ()
    plain: dict[str, Any] = {
        "kind": IsolationKind.PEER,
        "outcome": ProbeOutcome.OK,
        "kernel_result": 700,
        "copy_result": 1,
        "pid": 5,
    }
    trial = IsolationTrial(owner=first.bus_id, reader=second.bus_id, **plain | seen)
    every = diagnose(replace(machine, isolation=(trial,)), EVERYTHING, ISOLATION_CHECKS).findings
    check = "isolation.legacy-block" if trial.kind is IsolationKind.LEGACY_BLOCK else "isolation.unshared"
    return [finding for finding in every if finding.check == check]


@pytest.mark.parametrize(
    ("seen", "status", "words"),
    [
        ({}, Status.PASS, "was refused (700)"),
        ({"kernel_result": 0, "pid": None}, Status.FAIL, "a kernel of GPU1 read it"),
        ({"copy_result": 0}, Status.FAIL, "a copy by GPU1 read it"),
        ({"kernel_result": 719}, Status.UNKNOWN, "CUresult 719"),
        ({"kernel_result": None}, Status.UNKNOWN, "did not end"),
        ({"outcome": ProbeOutcome.TIMED_OUT, "kernel_result": None, "detail": "it hangs"}, Status.UNKNOWN, "it hangs"),
        ({"outcome": ProbeOutcome.NOT_RUN, "detail": "same address"}, Status.SKIP, "same address"),
    ],
)
def test_what_is_made_of_a_trial(seen: dict[str, Any], status: Status, words: str) -> None:
    (finding,) = judged(**seen)
    assert finding.status is status
    assert words in finding.summary


@pytest.mark.parametrize(
    ("seen", "status", "words"),
    [
        ({"disclosed": 3}, Status.WARN, "3 of 3 allocations"),
        ({"disclosed": 3, "kernel_result": 0}, Status.WARN, "and beyond the block"),
        ({"disclosed": 3, "kernel_result": None}, Status.WARN, "in the block of 2 MiB"),
        ({"disclosed": 0}, Status.PASS, "opens nothing"),
        ({"disclosed": None}, Status.UNKNOWN, "was not read"),
        ({"disclosed": 0, "neighbours": 0}, Status.UNKNOWN, "no other allocation"),
    ],
)
def test_what_is_made_of_a_legacy_handle(seen: dict[str, Any], status: Status, words: str) -> None:
    (finding,) = judged(kind=IsolationKind.LEGACY_BLOCK, **{"neighbours": 3, **seen})
    assert finding.status is status
    assert words in finding.summary


@pytest.mark.parametrize(("xids", "words"), [(1, "expected"), (0, "no Xid 31"), (None, "not readable")])
def test_the_xid_is_recognised_by_its_process(xids: int | None, words: str) -> None:
    (finding,) = judged(xids=xids)
    (said,) = [evidence.value for evidence in finding.evidence if evidence.source == "kernel log"]
    assert words in said
    assert "process 5" in said


def test_two_gpus_answer_for_the_node() -> None:
    machine = shipped(H200)
    assert [trial.kind for trial in planned(machine, EVERYTHING)] == [*IsolationKind]
    assert len({trial.owner for trial in planned(machine, EVERYTHING)}) == 1
