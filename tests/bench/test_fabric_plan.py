"""What is measured between all ranks, on one node and on several, and which of it at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations

import pytest

from egmctl.bench.fabric_run import alone
from egmctl.bench.plan import Plan
from egmctl.bench.plan.fabric import make_fabric_plan
from egmctl.bench.plan.placement import RankLayout, modelled
from egmctl.bench.suites import FABRIC_CASES
from egmctl.errors import NothingToDo
from egmctl.model.finding import WaiverKind
from egmctl.model.machine import Machine
from egmctl.model.measurement import MeasurementStatus, finish
from egmctl.model.route import Egm, MemoryKind
from egmctl.model.task import HandleKind, Task
from egmctl.report.views.machine import route_words
from egmctl.verdict.explain import with_causes
from egmctl.verdict.yardsticks import against_link
from tests.bench.plans import SETTINGS, waivers, with_attributes
from tests.bench.reports import report
from tests.doctor.machines import patched
from tests.fake.machines import with_imex_channel
from tests.fake.node import load

NVL72 = with_imex_channel(load("gb200-nvl72"))
WRITE, RING = "fabric_device_write_ce", "fabric_device_ring_write_ce"
TO_HOST = {way: f"fabric_host_numa_to_host_numa_{way}_sm" for way in ("write", "read")}


def plan_for(layout: RankLayout, *names: str, sample: int | None = None) -> Plan:
    """Plan cases of several processes, or all of them."""
    cases = [case for case in FABRIC_CASES if case.name in names or not names]
    return make_fabric_plan(layout, cases, SETTINGS, sample)


def plan_of(*names: str, ranks: int = 8, machine: Machine = NVL72, sample: int | None = None) -> Plan:
    """Plan them for ranks on nodes that are all alike."""
    return plan_for(modelled(machine, ranks), *names, sample=sample)


def by_ends(plan: Plan) -> Mapping[tuple[int | None, int | None], Task]:
    """Return the tasks by the ranks of their source and destination, which no two may have."""
    tasks = {(task.flows[0].source.rank, task.flows[0].destination.rank): task for task in plan.tasks}
    assert len(tasks) == len(plan.tasks)
    return tasks


def issuers(plan: Plan) -> Counter[int | None]:
    return Counter(task.flows[0].initiator_rank for task in plan.tasks)


@pytest.mark.parametrize("case", [WRITE, "fabric_host_numa_write_sm"])
def test_every_ordered_pair_of_ranks_once_by_fabric_handle(case: str) -> None:
    found = by_ends(plan_of(case))
    assert set(found) == set(permutations(range(8), 2))
    for (source, _), task in found.items():
        assert task.flows[0].initiator_rank == source
        assert task.flows[0].destination.handle is HandleKind.FABRIC


def test_host_memory_is_its_owners_nearest_and_named_by_the_owner() -> None:
    (flow,) = by_ends(plan_of("fabric_host_numa_read_ce"))[6, 1].flows
    assert (flow.source.label, flow.source.numa_node) == ("node2:GPU2:NUMA1", 1)
    assert (route_words(flow.route), flow.route.egm) == ("EGM over NV18>C2C across nodes", Egm.YES)


def test_over_pcie_each_gpu_s_own_link_is_measured_once() -> None:
    hgx = with_imex_channel(load("hgx-h200x4"))
    for case in ("fabric_host_numa_write_ce", TO_HOST["write"]):
        assert issuers(plan_of(case, ranks=4, machine=hgx)) == Counter(range(4))


@pytest.mark.parametrize(
    ("way", "ends", "links"),
    [("write", (2, 5), "C2C>NV18>C2C across nodes"), ("read", (5, 2), "NV18>C2C>C2C across nodes")],
)
def test_egm_to_egm_goes_through_the_gpu_of_the_rank_that_issues_the_work(
    way: str, ends: tuple[int, int], links: str
) -> None:
    found = by_ends(plan_of(TO_HOST[way]))
    assert set(found) == set(permutations(range(8), 2))
    for task in found.values():
        (flow,) = task.flows
        own, other = (flow.source, flow.destination)[:: 1 if way == "write" else -1]
        assert flow.initiator_rank == own.rank
        assert (own.handle, other.handle) == (None, HandleKind.FABRIC)
        assert own.memory is other.memory is MemoryKind.HOST_NUMA
    across = found[ends]
    route = across.flows[0].route
    assert (route.symbol, route.egm, route.memory) == (links, Egm.YES, MemoryKind.HOST_NUMA)
    path = ["node1:GPU2:NUMA1", "node2:GPU1:NUMA0"][:: 1 if way == "write" else -1]
    assert across.path == f"{' -> '.join(path)} by node1:GPU2"
    # Two links in a row are no yardstick of a copy.
    assert "from link to link" in against_link(finish(across, MeasurementStatus.OK), 300.0, None).reason


def test_egm_to_egm_within_a_node_takes_the_same_links_as_in_one_process() -> None:
    found = by_ends(plan_of(TO_HOST["write"], ranks=4))
    assert [found[ends].flows[0].route.symbol for ends in ((0, 1), (0, 2))] == ["C2C>C2C", "C2C>NV18>C2C"]


@pytest.mark.parametrize("sample", [None, 2])
def test_no_two_pairs_of_a_step_use_the_memory_of_one_numa_node(sample: int | None) -> None:
    layout = modelled(NVL72, 8)
    plan = plan_for(layout, TO_HOST["write"], sample=sample)
    steps = [step for step in plan.steps if not step.proof]
    assert sorted(number for step in steps for number in step.tasks) == list(range(len(plan.tasks)))
    assert any(len(step.tasks) > 1 for step in steps)
    for step in steps:
        flows = [flow for number in step.tasks for flow in plan.tasks[number].flows]
        nodes = Counter(
            node
            for flow in flows
            for node in {(layout.node_of(end), end.numa_node) for end in (flow.source, flow.destination)}
        )
        assert set(nodes.values()) == {1}
    assert issuers(plan) == Counter((sample or 7) * list(range(8)))


def test_disjoint_pairs_run_at_the_same_time_whatever_their_links() -> None:
    plan = plan_of(WRITE)
    busy = [
        sorted(rank for number in step.tasks for rank in plan.tasks[number].ranks)
        for step in plan.steps
        if not step.proof
    ]
    assert busy == [list(range(8))] * (2 * 7)


def test_a_sample_has_fewer_rounds_and_every_rank() -> None:
    plan = plan_of(WRITE, ranks=16, sample=2)
    assert sum(not step.proof for step in plan.steps) == 2 * 2
    assert issuers(plan) == Counter(2 * list(range(16)))
    assert plan.notes == ("a sample: 16 of the 120 pairs of 16 ranks, chosen at random (seed 1)",)


def test_patterns_of_all_ranks_cross_nodes() -> None:
    (ring,) = plan_of(RING).tasks
    assert [(f.source.rank, f.destination.rank) for f in ring.flows] == [(n, (n + 1) % 8) for n in range(8)]
    (bisect,) = plan_of("fabric_host_numa_bisect_write_ce").tasks
    assert [(f.source.rank, f.destination.rank) for f in bisect.flows] == [(n, (n + 4) % 8) for n in range(8)]
    assert {route_words(f.route) for f in bisect.flows} == {"EGM over NV18>C2C across nodes"}
    assert [len(task.flows) for task in plan_of("fabric_device_all_to_one_write_ce").tasks] == [7] * 8


@pytest.mark.parametrize("case", ["fabric_host_numa_read_ce", TO_HOST["read"]])
def test_nodes_that_cannot_share_host_memory_say_why(case: str) -> None:
    plan = plan_of(case, machine=with_attributes(NVL72, HOST_NUMA_MULTINODE_IPC_SUPPORTED=0))
    across = [task for task in plan.tasks if task.flows[0].route.across_nodes]
    assert len(across) == 2 * 4 * 4
    assert all("HOST_NUMA_MULTINODE_IPC_SUPPORTED is 0" in (task.waiver or "") for task in across)


@pytest.mark.parametrize(
    ("ranks", "words"), [(1, "there is only one GPU"), (576, "--sample 8 or --case measures some")]
)
def test_more_than_one_run_can_report_is_refused_with_what_to_do_and_so_is_one_rank(ranks: int, words: str) -> None:
    with pytest.raises(NothingToDo, match=words):
        plan_of(ranks=ranks)


def test_a_rank_without_a_channel_takes_part_in_nothing() -> None:
    layout = modelled(NVL72, 8)
    machines = {**layout.machines, "node2": patched(NVL72, "driver", imex_channels=())}
    plan = plan_for(replace(layout, machines=machines), WRITE)
    assert {task.ranks for task in plan.runnable} == {task.ranks for task in plan.tasks if max(task.ranks) < 4}
    assert any("node2:GPU0: there is no IMEX channel" in reason for reason in waivers(plan))


@pytest.mark.parametrize("ranks", [2, 8])
def test_host_memory_of_a_node_that_states_no_numa_node_is_waived_and_everything_else_measured(ranks: int) -> None:
    plan = plan_of(ranks=ranks, machine=patched(NVL72, "host", numa_nodes=None))
    waived = {task.case: task.waiver for task in plan.tasks if task.waiver}
    assert waived["fabric_host_numa_write_sm"] == waived["fabric_host_numa_read_ce"]
    assert "has no NUMA node that has memory" in str(waived["fabric_host_numa_write_sm"])
    assert WRITE not in waived


class TestAGpuThatCannotBeUsed:
    """GPU1 of a run on one node has MIG on: it has no process, and it is not passed over in silence."""

    MACHINE = patched(NVL72, "gpus[1].nvml", mig_mode=True)
    LAYOUT = alone(MACHINE, MACHINE.gpus or ())

    def test_its_paths_are_waived_and_it_has_no_process(self) -> None:
        plan = plan_for(self.LAYOUT, WRITE)
        assert [rank.label for rank in plan.ranks] == ["GPU0", "GPU2", "GPU3"]
        assert [gpu.label for gpu in plan.gpus] == ["GPU0", "GPU1", "GPU2", "GPU3"]
        waived = [task for task in plan.tasks if task.waivers]
        assert len(waived) == sum("GPU1" in task.path for task in plan.tasks) == 6
        assert all("GPU1" in task.path for task in waived)
        assert {waiver.kind for task in waived for waiver in task.waivers} == {WaiverKind.GPU_UNUSABLE}
        assert waivers(plan) == {"GPU1: MIG is on: it can only be used in parts"}
        assert {rank for task in plan.tasks for rank in task.ranks} == set(range(4)), "the last one is GPU1"
        assert all(3 not in plan.tasks[number].ranks for step in plan.steps for number in step.tasks)

    def test_patterns_of_all_are_of_those_that_can(self) -> None:
        (ring,) = plan_for(self.LAYOUT, RING).tasks
        assert ring.waiver is None
        assert [flow.source.label for flow in ring.flows] == ["GPU0", "GPU2", "GPU3"]

    def test_of_two_one_is_not_enough_and_says_why(self) -> None:
        machine = patched(patched(self.MACHINE, "gpus[2].nvml", mig_mode=True), "gpus[3].nvml", mig_mode=True)
        plan = plan_for(alone(machine, machine.gpus or ()), WRITE, RING)
        assert plan.tasks
        assert all(task.waivers for task in plan.tasks)
        assert plan.steps == ()

    def test_that_it_was_asked_for_is_a_failure_of_the_run(self) -> None:
        plan = plan_for(self.LAYOUT, WRITE)
        status = {False: MeasurementStatus.OK, True: MeasurementStatus.WAIVED}
        found = [finish(task, status[bool(task.waivers)], waivers=task.waivers) for task in plan.tasks]
        made = replace(report(plan, found), ranks=plan.ranks, machines=(self.MACHINE,))
        (cause,) = with_causes(made, asked=[gpu.bus_id for gpu in plan.gpus]).causes
        assert (cause.finding.check, cause.asked) == ("gpu.mig", "GPU1")
