"""NVML that fails in any of its calls, in any way, is a fault: GPUs that cannot be used are never a pass.

Each case is one child that asks the fake NVML, and what the checks make of its end. The fake's NVML calls are taken
from a run without faults, so that a new one is tested as soon as it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from egmctl import launch
from egmctl.cli.options import requested_machine
from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.runner import CHECKS
from egmctl.errors import ChildNotStarted, ExitCode
from egmctl.facts import collect as wait
from egmctl.facts import replay
from egmctl.facts.collect import collect
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Status
from egmctl.model.machine import Machine
from tests.answers import diagnose
from tests.conftest import RunEgmctl
from tests.doctor.machines import of_two_gpus
from tests.doctor.nvml_faults import SECTIONS, calls, diagnosed, here, outcomes
from tests.fake.build import CUDA
from tests.fake.node import FakeNode
from tests.fake.plugin import MakeFakeNode

pytestmark = [pytest.mark.processes, pytest.mark.needs("cc")]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> FakeNode:
    return FakeNode(of_two_gpus(replay.load_machine("hgx-h200x4")), tmp_path_factory.mktemp("node"))


NEEDED = ("nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetPciInfo")
"""Calls without which a GPU is not known; an error of another one costs its value."""
ENDS = {"crashed": "kill:11", "exited": "exit:0", "timed-out": "hang"}


@pytest.fixture(scope="module")
def healthy(node: FakeNode) -> Machine:
    with here(node):
        return collect(SECTIONS, cuda=False)


def roots(diagnosis: Diagnosis) -> list[str]:
    return [
        finding.check for finding in diagnosis.findings if finding.status is Status.FAIL and not finding.explained_by
    ]


def test_without_a_fault_all_is_well(healthy: Machine) -> None:
    assert [gpu.nvml is not None for gpu in healthy.gpus or ()] == [True, True]
    assert diagnose(healthy, EVERYTHING, CHECKS).exit_code is ExitCode.OK


@pytest.mark.long
@pytest.mark.parametrize("how", ENDS)
def test_every_call_that_ends_or_holds_the_process_is_named(node: FakeNode, healthy: Machine, how: str) -> None:
    bus_ids = {gpu.bus_id for gpu in healthy.gpus or ()}
    names = [name for name in calls(node) if name not in ("nvmlErrorString", "nvmlShutdown")]
    assert len(names) > 30
    plans = {f"{name}={ENDS[how]}": name for name in names}
    for plan, outcome in outcomes(node, list(plans)):
        diagnosis = diagnosed(healthy, outcome)
        assert (diagnosis.exit_code, diagnosis.answer.nagios, roots(diagnosis)) == (
            ExitCode.FAILED,
            2,
            ["drv.libraries"],
        ), plan
        assert diagnosis.machine.driver is not None
        failure = diagnosis.machine.driver.nvml_failure
        assert failure is not None
        assert failure.how == ("timed-out" if how == "timed-out" else "crashed")
        assert (failure.call or "").startswith(plans[plan]), plan
        assert failure.gpu is None or failure.gpu in bus_ids
        assert (failure.gpu is None) or "Device" in plans[plan]


@pytest.mark.long
def test_every_call_that_returns_an_error_costs_its_value_or_is_a_fault(node: FakeNode, healthy: Machine) -> None:
    names = [name for name in calls(node) if name != "nvmlErrorString"]
    plans = {f"{name}=error:999": name for name in names}
    for plan, outcome in outcomes(node, list(plans)):
        diagnosis = diagnosed(healthy, outcome)
        if plans[plan] in NEEDED:
            assert diagnosis.exit_code is ExitCode.FAILED, plan
        else:
            assert all(gpu.nvml is not None for gpu in diagnosis.machine.gpus or ()), plan
            assert not [finding for finding in diagnosis.findings if "the check itself failed" in finding.summary], plan


@pytest.mark.long
def test_every_error_of_its_start_is_a_fault(node: FakeNode, healthy: Machine) -> None:
    plans = [f"nvmlInit=error:{number}" for number in (*range(1, 24), 999)]
    for plan, outcome in outcomes(node, plans):
        diagnosis = diagnosed(healthy, outcome)
        (root,) = [finding for finding in diagnosis.findings if finding.check in roots(diagnosis)][:1]
        assert (diagnosis.exit_code, diagnosis.answer.nagios) == (ExitCode.FAILED, 2), plan
        assert root.remedy is not None
        assert diagnosis.machine.driver is not None
        assert diagnosis.machine.driver.nvml_failure is not None
        assert diagnosis.machine.driver.nvml_failure.number == int(plan.rpartition(":")[2])


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetPciInfo"])
def test_one_lost_gpu_is_a_fault_and_moves_no_number(node: FakeNode, healthy: Machine, call: str) -> None:
    ((_, outcome),) = outcomes(node, [f"{call}@1=error:15"])
    diagnosis = diagnosed(healthy, outcome)
    first, second = diagnosis.machine.gpus or ()
    assert [(gpu.index, gpu.nvml is None) for gpu in (first, second)] == [(0, True), (1, False)]
    assert roots(diagnosis) == ["dev.count-consistency"]
    (lost,) = [finding for finding in diagnosis.findings if finding.check == "dev.count-consistency"]
    assert (lost.place.label, lost.summary) == ("GPU0", "NVML counts it and cannot open it")


def test_no_child_can_be_started(node: FakeNode) -> None:
    def refuse(*_arguments: object, **_options: object) -> Callable[..., object]:
        raise ChildNotStarted("a child process cannot be started: EAGAIN", how="crashed")

    with here(node) as patch:
        patch.setattr(launch, "Child", refuse)
        diagnosis = diagnose(collect(SECTIONS, cuda=False), EVERYTHING, CHECKS)
    assert (diagnosis.exit_code, roots(diagnosis)) == (ExitCode.FAILED, ["drv.libraries"])
    (root,) = [finding for finding in diagnosis.findings if finding.check == "drv.libraries"]
    assert "no child process can be started" in root.summary


@pytest.mark.long
def test_the_command_says_so_in_every_form(egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
    node = fake_node("hgx-h200x4")
    environment = node.environment(faults="nvmlDeviceGetUUID=kill:11")
    done = egmctl("doctor", env=environment)
    assert done.code == 1
    words = " ".join(done.out.split())
    assert "NVML crashed in nvmlDeviceGetUUID of 0000:" in words
    assert words.startswith("PROBLEMS: 1 failure;")
    done = egmctl("doctor", "--format", "nagios", "--exit-style", "nagios", env=environment)
    assert (done.code, done.out.startswith("EGMCTL CRITICAL")) == (2, True)


@pytest.mark.long
def test_the_library_is_missing(egmctl: RunEgmctl, tmp_path: Path) -> None:
    done = egmctl("doctor", env=FakeNode("hgx-h200x4", tmp_path, libraries=(CUDA,)).environment())
    assert done.code == 1
    assert "NVML is missing" in " ".join(done.out.split())


def test_who_waits_for_nvml_is_told_what_for(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    """A GPU without persistence mode may take longer than 5 s to initialise; one that hangs is given up at 60 s."""
    assert (wait.WAIT_UNTOLD_S, wait.DEADLINE_S) == (5, 60)
    with here(node, faults="nvmlInit=hang") as patch:
        patch.setattr(wait, "WAIT_UNTOLD_S", 1)
        patch.setattr(wait, "DEADLINE_S", 2)
        diagnosis = diagnose(requested_machine(None, SECTIONS, quiet=False, cuda=False), EVERYTHING, CHECKS)
    (root,) = [finding for finding in diagnosis.findings if finding.check == "drv.libraries"]
    assert (diagnosis.exit_code, roots(diagnosis)) == (ExitCode.FAILED, ["drv.libraries"])
    assert "NVML did not answer in time, it hangs in nvmlInit" in root.summary
    assert capsys.readouterr().err == (
        "egmctl: waiting for NVML, which is in nvmlInit: GPUs without persistence mode take long to initialise; it is "
        "given up after 2 s\n"
    )


@pytest.mark.long
def test_a_child_of_nvml_that_was_killed_is_no_gpu_that_is_not_listed(
    egmctl: RunEgmctl, fake_node: MakeFakeNode
) -> None:
    environment = fake_node("hgx-h200x4").environment(faults="nvmlDeviceGetUUID=kill:9")
    told = [egmctl(command, env=environment) for command in ("doctor", "topo")]
    dry = egmctl("bench", "--dry-run", "--suite", "quick", env=environment)
    assert "NVML crashed in nvmlDeviceGetUUID" in " ".join(told[0].out.split())
    for done in (*told, dry):
        assert "NVML does not list" not in " ".join((done.out + done.err).split()), done
