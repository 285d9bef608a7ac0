"""CPU threads on a GPU's memory: planned where it is a NUMA node, measured only where its pages are shown to be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from egmctl.bench.plan.make import make_plan
from egmctl.bench.suites import SUITES, select_cases
from egmctl.model.finding import WaiverKind
from egmctl.model.listing import PlannedTask
from egmctl.model.measurement import Placement, Status
from egmctl.model.task import Task
from egmctl.report.route_words import route_words
from egmctl.units import MIB
from egmctl.verdict.yardsticks import not_judged
from tests.bench.conftest import FEW, Bench, cases
from tests.bench.test_cpu import SETTINGS, here, measured
from tests.doctor.machines import shipped

__all__ = ["here"]

CASES = ("gpu_numa_read_cpu", "gpu_numa_write_cpu")


def planned(machine: str, case: str = CASES[0]) -> tuple[PlannedTask, ...]:
    seen = shipped(machine)
    return make_plan(seen, (seen.gpus or ())[:4], (0, 1), select_cases([case]), SETTINGS).tasks


class TestPlan:
    def test_cpus_of_each_node_meet_each_gpu(self) -> None:
        tasks = [one for one in planned("gb200-tray") if one.waiver is None]
        assert [task.path for task in tasks] == [f"GPU{gpu} -> CPU{node}" for node in (0, 1) for gpu in range(4)]
        assert [task.flows[0].route.symbol for task in tasks[:3:2]] == ["CPU>C2C", "CPU>SMP>C2C"]
        (flow,) = tasks[0].flows
        assert (flow.source.memory, flow.initiator, flow.initiator_label) == ("gpu-numa", None, "CPU0")
        assert flow.source.numa_node is not None
        assert route_words(flow.route) == "GPU memory over CPU>C2C"

    def test_written_memory_is_the_destination(self) -> None:
        assert planned("gb200-tray", CASES[1])[0].path == "CPU0 -> GPU0"

    @pytest.mark.parametrize(
        ("machine", "why"), [("dgx-h100", "GPU0"), ("gb200-nvl72-cdmm", "GPU0's memory is no NUMA node of the host")]
    )
    def test_elsewhere_it_is_waived_with_the_reason(self, machine: str, why: str) -> None:
        found = planned(machine)
        assert {waiver.kind for one in found for waiver in one.waivers} == {WaiverKind.UNSUPPORTED_MEMORY}
        assert why in (found[0].waiver or "")

    def test_no_quick_or_standard_run_has_it(self) -> None:
        (case,) = select_cases([CASES[0]])
        assert [name for name, suite in SUITES.items() if suite.has(case)] == ["full", "host"]


def placed(*, right: bool | None) -> Placement:
    return Placement(label="GPU0", proof="move_pages", detail="of one page in each 2 MiB: 1 on node 4", right=right)


ELSEWHERE = "its pages are not shown to be in GPU0's memory: of one page in each 2 MiB: 1 on node 4"


@pytest.mark.usefixtures("here")
class TestMeasurement:
    @pytest.fixture
    def task(self) -> Task:
        (first, *_) = planned("gb200-tray")
        return replace(first, size_bytes=MIB)

    def test_memory_that_is_the_gpus_is_measured_and_never_judged(self, task: Task) -> None:
        found = measured(task, placed(right=True))
        assert found.status is Status.OK
        assert len(found.samples) == 3
        assert not_judged(found) == "CPU threads are a lower bound"

    @pytest.mark.parametrize(
        ("placements", "reason"),
        [
            ([], "its pages are not shown to be in GPU0's memory: location unknown"),
            ([placed(right=None)], ELSEWHERE),
            ([placed(right=False)], ELSEWHERE),
        ],
    )
    def test_memory_that_may_lie_elsewhere_is_not_called_the_gpus(
        self, task: Task, placements: list[Placement], reason: str
    ) -> None:
        found = measured(task, *placements)
        assert found.status is Status.WAIVED
        assert found.waivers[0].kind is WaiverKind.NO_NUMA_MEMORY
        assert found.reason == reason
        assert found.samples == ()


def test_on_a_fake_node_nothing_shows_where_pages_are_and_all_is_given_back(bench: Bench) -> None:
    found = bench("bench", "--numa", "0", "--gpus", "0", *FEW, *cases(*CASES))
    assert set(found.statuses()) == {"waived"}
    assert found.node.leaks() == []
