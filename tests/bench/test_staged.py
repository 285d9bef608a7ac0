"""Copies between GPUs without peer access: staged through host memory, called so, and judged by no link's reference."""

from __future__ import annotations

import pytest

from egmctl.bench.cases.one_process import P2P_CASES
from egmctl.bench.path_class import class_of
from egmctl.bench.plan import Plan
from egmctl.model.machine import Machine
from egmctl.model.measurement import MeasurementStatus, finish
from egmctl.model.route import LinkKind, MemoryKind
from egmctl.model.task import Engine, Pattern
from egmctl.report.views.bench import painted
from egmctl.report.views.bench_answer import staged_lines
from egmctl.report.views.machine import route_words
from egmctl.verdict.yardsticks import against_link
from tests.bench.conftest import FEW, Bench
from tests.bench.plans import plan_of
from tests.bench.reports import report
from tests.doctor.machines import patched, shipped

STAGED = ("device_to_device_staged_memcpy_ce",)
WRITE = "device_to_device_memcpy_write_ce"
GB200, DGX = shipped("gb200-tray"), shipped("dgx-h100")
WHY = "GPU0 has no peer access to GPU1: P2P read is CNS"


def without_access(machine: Machine) -> Machine:
    """Return a machine whose GPUs do not reach each other's memory, although links join them."""
    return patched(machine, "pairs[*]", can_access_peer=False, p2p_status={"read": "CNS"})


def planned(machine: Machine, *names: str, gpus: int = 2) -> Plan:
    return plan_of(*names, machine=machine, gpus=gpus, nodes=[0])


class TestPlan:
    @pytest.mark.parametrize(("machine", "link"), [(GB200, "C2C>host>C2C"), (DGX, "PCIe>host>PCIe")])
    def test_it_crosses_each_gpu_s_link_to_its_host_and_is_another_class_than_nvlink(
        self, machine: Machine, link: str
    ) -> None:
        tasks = planned(machine, *STAGED, WRITE).tasks
        symbols = {task.case: {flow.route.symbol for flow in task.flows} for task in tasks}
        assert symbols == {WRITE: {"NV18"}, **{name: {link} for name in STAGED}}
        assert {task.waiver for task in tasks} == {None}
        route = next(flow.route for task in tasks for flow in task.flows if flow.route.staged)
        assert (len(route.hops), route.staged_reason) == (2, "")
        assert route_words(route) == f"{link}, staged through host memory"

    def test_every_ordered_pair_is_measured_and_none_beside_another(self) -> None:
        made = planned(DGX, *STAGED, gpus=3)
        assert [len(task.flows) for task in made.tasks] == [1] * 6
        assert {len(step.tasks) for step in made.steps} == {1}

    def test_without_peer_access_copy_engines_are_measured_so_with_the_reason_and_kernels_are_waived(self) -> None:
        plan = planned(without_access(DGX), *(case.name for case in P2P_CASES if "local" not in case.name))
        for task in plan.tasks:
            # One flow at a time: see bench/cases/one_process.py.
            by_copy_engine = task.engine is Engine.COPY_ENGINE and task.pattern is Pattern.PAIR
            # Memory of pools is open by the pool's access, not by peer access: that it is staged is not documented.
            by_copy_engine &= task.flows[0].source.memory is not MemoryKind.DEVICE_DEFAULT_POOL
            assert (task.waiver is None) is by_copy_engine, task.case
            for flow in task.flows:
                assert flow.route.staged is by_copy_engine
                forced = task.case in STAGED
                reason = f"{flow.initiator_label} has no peer access to "
                assert flow.route.staged_reason.startswith(reason) is (by_copy_engine or forced)

    def test_a_gpu_s_own_memory_is_never_staged(self) -> None:
        tasks = planned(without_access(DGX), "device_local_copy").tasks
        assert {(task.waiver, task.flows[0].route.symbol) for task in tasks} == {(None, "local")}


class TestJudged:
    def test_no_link_and_no_picture_takes_the_number_for_its_own(self) -> None:
        (task, _) = planned(without_access(DGX), WRITE).tasks
        measured = finish(task, MeasurementStatus.OK)
        assert class_of(measured).link == "PCIe>host>PCIe"
        judged = against_link(measured, 10.0, None)
        assert (judged.grade, judged.reason) == (
            "no-reference",
            "staged through host memory: what that reaches of its links is not known",
        )
        assert painted(report(planned(DGX, WRITE), [measured])) == {}

    def test_the_path_that_was_asked_for_counts_as_missed_only_where_access_is_missing(self) -> None:
        forced, wanted = planned(DGX, *STAGED).tasks[0], planned(without_access(DGX), WRITE).tasks[0]
        assert not finish(forced, MeasurementStatus.OK).missed_path
        assert finish(wanted, MeasurementStatus.OK).missed_path
        found = report(
            planned(DGX, WRITE), [finish(wanted, MeasurementStatus.OK), finish(forced, MeasurementStatus.OK)]
        )
        assert list(staged_lines(found)) == [f"1 measurement staged through host memory: {WHY}"]


CHOSEN = ("bench", "--numa", "1", "--gpus", "0-1", *FEW, "--case", WRITE, "--case", STAGED[0])


class TestOnAFakeNode:
    def test_peer_access_is_taken_back_before_and_given_again_after(self, bench: Bench) -> None:
        run = bench(*CHOSEN, "--case", "device_to_device_write_sm")
        assert run.code == 0, run.reasons()
        assert set(run.statuses()) == {"ok"}
        access = [call.name for call in run.worker_calls() if "PeerAccess" in call.name]
        assert access == ["cuCtxEnablePeerAccess"] * 2 + ["cuCtxDisablePeerAccess"] * 2 + ["cuCtxEnablePeerAccess"] * 2
        assert run.node.leaks() == []
        for m in run.measurements:
            staged = m["case"] in STAGED
            assert {flow["route"]["staged"] for flow in m["flows"]} == {staged}
            assert m["verification"] == "gpu-every-sample"
            assert m["gating"] == ("none" if staged else "kernel")
            if staged:
                assert m["reason"] == (
                    "measured without a gate: copies that are staged may block the host until they are done"
                )
                assert m["flows"][0]["route"]["hops"][0]["link"] == LinkKind.C2C

    def test_a_node_without_peer_access_says_it_and_enables_none(self, bench: Bench) -> None:
        run = bench("bench", "--numa", "1", "--gpus", "0-1", *FEW, "--case", WRITE, machine=without_access(GB200))
        assert set(run.statuses()) == {"ok"}
        assert not [call for call in run.worker_calls() if "PeerAccess" in call.name]
        assert {m["flows"][0]["route"]["symbol"] for m in run.measurements} == {"C2C>host>C2C"}
        assert ("fail", [0, 1]) in [(cause["status"], cause["measurements"]) for cause in run.result["causes"]]
        assert run.code == 1, "a path that a fault kept from being measured makes the run incomplete"
