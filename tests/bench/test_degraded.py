"""Paths to NUMA memory whose EGM route is blocked: tried apart from the rest, measured, marked and explained."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from egmctl.bench.evidence import link_evidence
from egmctl.bench.plan import Plan
from egmctl.bench.plan.make import make_plan
from egmctl.bench.suites import select_cases
from egmctl.facts import replay
from egmctl.gpu.telemetry import Traffic
from egmctl.model.machine import Machine
from egmctl.model.measurement import LinkProof, MeasurementStatus, Settings
from egmctl.model.route import Egm, LinkKind
from egmctl.report.views.machine import route_words
from egmctl.verdict.explain import with_causes
from egmctl.verdict.judge import with_verdict
from tests.answers import shown as answer
from tests.bench.conftest import FEW
from tests.bench.reports import report
from tests.doctor.cgroups import denying_v2
from tests.doctor.machines import patched, shipped, with_gpu_denied
from tests.doctor.real_node import Node, hgx_node, without_driver
from tests.verdict.runs import measured

GB200 = shipped("gb200-tray")
NUMA, PINNED = "host_numa_to_device_memcpy_ce", "host_to_device_memcpy_ce"
KINDS = (NUMA, PINNED, "registered_to_device_memcpy_ce", "system_to_device_memcpy_ce")
SETTINGS = Settings(size_bytes=1 << 20, copies=1, samples=1, timeout_s=1)


def planned(machine: Machine, *cases: str, gpus: int = 2, nodes: Sequence[int] = (0, 1)) -> Plan:
    return make_plan(machine, (machine.gpus or ())[:gpus], nodes, select_cases(cases or KINDS), SETTINGS)


def without_owners() -> Machine:
    """A Grace node whose second CPU's GPUs a cgroup denies: no GPU is left to own EGM there."""
    return with_gpu_denied(GB200, 2, 3)


def two_gh200() -> Machine:
    """Two GH200 in one node without NVLink between them, as people publish numbers of."""
    machine = shipped("gh200x4")
    machine = patched(machine, "gpus[*].cuda", attributes={})
    return patched(machine, "pairs[*]", nvlink_count=0)


class TestThePlan:
    def test_tries_what_is_left_and_says_so(self) -> None:
        plan = planned(without_owners(), NUMA)
        far = [one for one in plan.tasks if one.flows[0].source.numa_node == 1]
        assert [one.waiver for one in far] == [None, None]
        for one in far:
            route = one.flows[0].route
            assert (route.degraded, route.egm, route.symbol) == (True, Egm.NO, "C2C-sys>SMP")
            assert route.egm_reason.startswith("the EGM route is blocked: GPU2: denied by the device cgroup")
            assert ", degraded: the EGM route is blocked" in route_words(route)

    def test_the_near_node_stays_egm(self) -> None:
        near = [one for one in planned(without_owners(), NUMA).tasks if one.flows[0].source.numa_node == 0]
        assert {(one.flows[0].route.egm, one.flows[0].route.degraded) for one in near} == {(Egm.YES, False)}

    def test_each_pair_of_ends_has_a_process_of_its_own_after_all_others(self) -> None:
        steps = planned(without_owners(), NUMA, "device_to_host_numa_memcpy_ce", PINNED).steps
        names = [step.isolated for step in steps]
        tried = [name for name in names if name is not None]
        assert tried == ["GPU0 NUMA1"] * 2 + ["GPU1 NUMA1"] * 2
        assert names[-len(tried) :] == tried
        numbers = [number for step in steps if not step.proof for number in step.tasks]
        assert len(numbers) == len(set(numbers))

    @pytest.mark.parametrize("machine", [without_owners(), two_gh200()], ids=["denied owners", "no NVLink"])
    def test_other_host_memory_never_depends_on_the_egm_route(self, machine: Machine) -> None:
        nodes = sorted({gpu.host_numa_id for gpu in machine.gpus or () if gpu.host_numa_id is not None})[:2]
        plan = planned(machine, *KINDS[1:], nodes=nodes)
        assert {one.waiver for one in plan.tasks} == {None}
        assert not any(flow.route.degraded for one in plan.tasks for flow in one.flows)

    def test_a_node_whose_memory_is_forbidden_is_not_tried(self) -> None:
        machine = patched(without_owners(), "host", allowed_numa_nodes="0")
        far = [one for one in planned(machine).tasks if one.flows[0].source.numa_node == 1]
        assert all(one.waiver and "Mems_allowed" in one.waiver for one in far)

    @pytest.mark.parametrize("name", [name for name in replay.machine_names() if "h100" in name or "h200x" in name])
    def test_on_x86_nothing_changes(self, name: str) -> None:
        for machine in (shipped(name), with_gpu_denied(shipped(name), 1)):
            if machine.host is None or machine.host.architecture != "x86_64":
                continue
            plan = planned(machine)
            assert not any(flow.route.degraded for one in plan.tasks for flow in one.flows)
            assert not any(step.isolated for step in plan.steps)

    def test_a_whole_egm_node_has_none(self) -> None:
        assert not any(step.isolated for step in planned(GB200, gpus=4).steps)


class TestWhatCarriedTheBytes:
    TASK = next(one for one in planned(without_owners(), NUMA).tasks if one.flows[0].source.numa_node == 1)
    LARGE = replace(TASK, size_bytes=1 << 30)

    def seen(self, nvlink: int, pcie: int) -> tuple[str, LinkProof]:
        gpu = self.LARGE.flows[0].initiator or ""
        rises = {gpu: Traffic({}, {LinkKind.NVLINK: nvlink, LinkKind.PCIE: pcie})}
        found = link_evidence(self.LARGE, 1, rises)
        assert found is not None
        return found.link, found.verdict

    def test_is_told_by_the_counters(self) -> None:
        total = 1 << 30
        assert self.seen(total, 0) == (LinkKind.NVLINK, LinkProof.PROVEN)
        assert self.seen(0, total) == (LinkKind.PCIE, LinkProof.PROVEN)
        assert self.seen(0, 0) == (LinkKind.C2C, LinkProof.BY_EXCLUSION)


def test_it_is_a_warning_that_its_cause_explains_and_no_reference_judges() -> None:
    plan = planned(without_owners(), NUMA)
    made = report(plan, [measured(one, lambda _task, _flow: 50.0) for one in plan.tasks])
    made = replace(made, machines=(without_owners(),))
    made = with_verdict(made, None)
    judged = with_causes(made)
    assert judged.verdict is not None
    assert "without EGM, whose route is blocked (degraded): NUMA1 -> GPU0, NUMA1 -> GPU1" in judged.verdict.warnings[0]
    degraded = [n for n, one in enumerate(judged.measurements) if one.flows[0].route.degraded]
    assert len(degraded) == 2
    explains = {number: cause.finding.check for cause in judged.causes for number in cause.measurements}
    assert {explains[number] for number in degraded} == {"dev.cgroup-restricted"}
    first = answer(judged)
    assert first.word == "INCOMPLETE", "what was measured is another path than the one that was asked for"
    assert "2 measurements not believed: NUMA1 -> GPU0: its EGM route is blocked" in str(first.sentence)


@pytest.fixture
def grace() -> Iterator[Node]:
    with hgx_node("gb200-tray") as made:
        made.allow_memory_of("0-1")
        yield made


def bench(node: Node, faults: str = "") -> tuple[int, list[dict[str, Any]], list[dict[str, Any]]]:
    """Run it where the cgroup denies both GPUs of the second CPU; return the measurements and the causes."""
    cases = (word for name in (NUMA, PINNED) for word in ("--case", name))
    with denying_v2(2, 3) as cgroup:
        options = ("bench", "--gpus", "0-1", *FEW, "--json", *cases)
        code, out = node.run(*options, before=cgroup.join, faults=faults)
    result = json.loads(out)["result"]
    return code, result["measurements"], result["causes"]


@pytest.mark.needs_root
@pytest.mark.needs("mount", "cc")
@without_driver
class TestOnAFakeGraceNode:
    """In a real device cgroup, with the fake driver."""

    @pytest.mark.long
    def test_the_path_is_measured_marked_and_explained(self, grace: Node) -> None:
        code, found, causes = bench(grace)
        degraded = [n for n, one in enumerate(found) if one["flows"][0]["route"]["degraded"]]
        assert {(found[n]["case"], found[n]["flows"][0]["source"]["label"]) for n in degraded} == {(NUMA, "NUMA1")}
        assert all(one["status"] == MeasurementStatus.OK and one["bandwidth_gb_s"]["median"] > 0 for one in found)
        assert {number for cause in causes for number in cause["measurements"]} == set(degraded)
        assert causes[0]["finding"]["check"] == "dev.cgroup-restricted"
        assert code == 3, "what was measured is another path than the one that was asked for"

    @pytest.mark.long
    def test_one_that_crashes_costs_itself_alone(self, grace: Node) -> None:
        """Of the two that are tried the first one's process ends in cuMemCreate: a process makes one allocation."""
        code, found, _ = bench(grace, faults="cuMemCreate@1=abort")
        degraded = [one for one in found if one["flows"][0]["route"]["degraded"]]
        assert {one["status"] for one in degraded} == {"failed"}
        assert all("died from SIGABRT in cuMemCreate; the EGM route is blocked" in one["reason"] for one in degraded)
        assert {one["status"] for one in found if one["case"] == PINNED} == {"ok"}
        assert code == 1, "what is known to be wrong comes before what crashed for no known cause"
