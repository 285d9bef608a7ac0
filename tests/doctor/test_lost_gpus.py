"""A GPU that NVML calls lost, or in need of a reset, never passes: not in one call, of all that doctor and topo make.

Each case is one child that asks the fake NVML, and what the checks make of its answer. The calls are taken from a run
without faults, so that a new one is tested as soon as it is made.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from egmctl.bench.plan.paths import gpu_waiver
from egmctl.errors import ExitCode
from egmctl.facts import replay
from egmctl.facts.collect import collect
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Finding, Status
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.topology.access import obstacle
from tests.conftest import RunEgmctl
from tests.doctor.machines import of_two_gpus
from tests.doctor.nvml_faults import SECTIONS, calls, diagnosed, here, outcomes
from tests.fake.node import FakeNode
from tests.fake.plugin import MakeFakeNode

pytestmark = [pytest.mark.processes, pytest.mark.needs("cc")]

ERRORS = {15: "NVML_ERROR_GPU_IS_LOST", 16: "NVML_ERROR_RESET_REQUIRED"}
NO_GPU = ("nvmlErrorString", "nvmlShutdown")
"""Calls whose answers are about no GPU: a text, and the end of the library after all has been read."""
OPENING = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetPciInfo")
"""Calls that a GPU which fell off the bus may still answer."""


class Node:
    """A fake node of two GPUs of a machine, and the machine that is read there without a fault."""

    def __init__(self, name: str, directory: Path) -> None:
        self.fake = FakeNode(of_two_gpus(replay.load_machine(name)), directory)
        with here(self.fake):
            self.machine = collect((*SECTIONS, "pairs"), cuda=False)
        self.calls = [name for name in calls(self.fake) if name not in NO_GPU]

    def diagnoses(self, plans: list[str]) -> dict[str, Diagnosis]:
        return {plan: diagnosed(self.machine, outcome) for plan, outcome in outcomes(self.fake, plans)}


@pytest.fixture(scope="module", params=["hgx-h200x4", "gb200-tray"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Node:
    return Node(request.param, tmp_path_factory.mktemp("node"))


def failures(diagnosis: Diagnosis, gpu: Gpu) -> list[Finding]:
    """Return the failures that name a GPU."""
    failed = [finding for finding in diagnosis.findings if finding.status is Status.FAIL]
    return [finding for finding in failed if gpu.bus_id in finding.place.ids]


def lost(diagnosis: Diagnosis) -> list[int]:
    """Return the indices of the GPUs that cannot be used."""
    machine = diagnosis.machine
    return [gpu.index for gpu in machine.gpus or () if obstacle(machine, gpu) is not None]


@pytest.mark.long
@pytest.mark.parametrize("number", ERRORS)
def test_every_call_that_ends_so_on_every_gpu_is_a_failure_of_each(node: Node, number: int) -> None:
    assert len(node.calls) > 40, "the calls were not found"
    for plan, diagnosis in node.diagnoses([f"{call}=error:{number}" for call in node.calls]).items():
        assert diagnosis.exit_code is ExitCode.FAILED, plan
        for gpu in diagnosis.machine.gpus or ():
            assert failures(diagnosis, gpu), (plan, gpu.index)
        assert lost(diagnosis) == [0, 1], plan


@pytest.mark.long
@pytest.mark.parametrize("number", ERRORS)
def test_every_call_that_ends_so_on_one_gpu_is_a_failure_of_that_one(node: Node, number: int) -> None:
    of_a_gpu = [call for call in node.calls if "Device" in call and call != "nvmlDeviceGetCount"]
    of_pairs = ("nvmlDeviceGetP2PStatus", "nvmlDeviceGetTopologyCommonAncestor")
    for plan, diagnosis in node.diagnoses([f"{call}#1=error:{number}" for call in of_a_gpu]).items():
        first, second = diagnosis.machine.gpus or ()
        # Which end of a pair is the lost one is not known, if all other calls about both are answered.
        names_both = plan.startswith((*of_pairs, "nvmlSystem"))
        assert diagnosis.exit_code is ExitCode.FAILED, plan
        assert failures(diagnosis, second), plan
        assert bool(failures(diagnosis, first)) is names_both, plan
        assert lost(diagnosis) == ([0, 1] if names_both else [1]), plan


def all_but_the_opening(node: Node, gpu: int | None = None) -> str:
    """Return the plan of a node where a GPU that is lost, or each, answers what the driver keeps in memory only."""
    which = "" if gpu is None else f"#{gpu}"
    of_a_gpu = [call for call in node.calls if "Device" in call and call not in (*OPENING, "nvmlDeviceGetCount")]
    return ";".join(f"{call}{which}=error:15" for call in of_a_gpu)


def test_a_gpu_of_which_only_the_handle_is_left(node: Node) -> None:
    (diagnosis,) = node.diagnoses([all_but_the_opening(node, 1)]).values()
    machine = diagnosis.machine
    first, second = machine.gpus or ()
    (finding,) = failures(diagnosis, second)
    assert (finding.check, finding.summary, finding.place.label) == (
        "dev.count-consistency",
        "NVML calls it lost",
        "GPU1",
    )
    counts, *reasons = (evidence.value for evidence in finding.evidence)
    assert counts == "2 on PCI > 2 driver > 2 device node > 2 accessible > 1 NVML > not asked CUDA"
    assert set(reasons) == {"NVML_ERROR_GPU_IS_LOST"}
    assert (failures(diagnosis, first), lost(diagnosis)) == ([], [1])
    assert gpu_waiver(machine, second) is not None


def test_a_field_value_that_ends_so_is_a_call(node: Node) -> None:
    for plan, diagnosis in node.diagnoses([f"nvmlField91#1=error:{number}" for number in ERRORS]).items():
        assert lost(diagnosis) == [1], plan
        assert (diagnosis.machine.gpus or ())[1].nvml is not None


def test_no_gpu_that_works_is_called_lost(node: Node) -> None:
    assert [gpu.nvml and gpu.nvml.lost_calls for gpu in node.machine.gpus or ()] == [{}, {}]


@pytest.mark.long
def test_doctor_topo_and_bench_say_so_in_every_form(egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
    node = fake_node("hgx-h200x4")
    environment = node.environment(faults="nvmlDeviceGetTemperature#2=error:15;nvmlDeviceGetPowerUsage#2=error:15")
    done = egmctl("doctor", env=environment)
    words = " ".join(done.out.split())
    assert (done.code, "GPU2: NVML calls it lost" in words) == (1, True), done.out
    done = egmctl("doctor", "--format", "json", env=environment)
    fault = next(finding for finding in json.loads(done.out)["result"]["findings"] if finding["status"] == "fail")
    assert (done.code, fault["place"]["label"], fault["summary"]) == (1, "GPU2", "NVML calls it lost")
    done = egmctl("doctor", "--format", "junit", env=environment)
    assert (done.code, "<failure" in done.out, "NVML calls it lost" in done.out) == (1, True, True)
    done = egmctl("topo", env=environment)
    words = " ".join(done.out.split())
    assert "NVML calls it lost" in words, done.out
    assert "no GPU hidden" not in words
    done = egmctl("bench", "--dry-run", "--suite", "quick", env=environment)
    assert "GPU2: NVML calls it lost" in " ".join((done.out + done.err).split())


def test_a_machine_file_that_lacks_the_calls_says_nothing_of_them() -> None:
    machine: Machine = replay.load_machine("hgx-h200x4")
    assert [obstacle(machine, gpu) for gpu in machine.gpus or ()] == [None] * 4
