"""What is measured between all ranks, on one node and on several, and which of it at the same time."""

from __future__ import annotations

from collections import Counter
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
from egmctl.model.measurement import Settings, Status, finish
from egmctl.model.route import Egm, MemoryKind
from egmctl.model.task import HandleKind, Task
from egmctl.report.route_words import route_words
from egmctl.verdict.explain import with_causes
from egmctl.verdict.yardsticks import against_link
from tests.bench.reports import report
from tests.doctor.machines import patched
from tests.fake.machines import with_imex_channel
from tests.fake.node import load

SETTINGS = Settings(size_bytes=512 << 20, copies=None, samples=3, timeout_s=60)


def layout(name: str, ranks: int) -> RankLayout:
    return modelled(with_imex_channel(load(name)), ranks)


def tasks(of: RankLayout, case: str, sample: int | None = None) -> list[Task]:
    plan = make_fabric_plan(of, [one for one in FABRIC_CASES if one.name == case], SETTINGS, sample)
    return list(plan.tasks)


def ends(task: Task) -> tuple[int | None, int | None]:
    return task.flows[0].source.rank, task.flows[0].destination.rank


@pytest.mark.parametrize("case", ["fabric_device_write_ce", "fabric_host_numa_write_sm"])
def test_every_ordered_pair_of_ranks_once_by_fabric_handle(case: str) -> None:
    found = tasks(layout("gb200-nvl72", 8), case)
    assert Counter(map(ends, found)) == Counter(permutations(range(8), 2))
    for task in found:
        assert task.flows[0].initiator_rank == task.flows[0].source.rank
        assert task.flows[0].destination.handle is HandleKind.FABRIC


def test_host_memory_is_its_owners_nearest_and_named_by_the_owner() -> None:
    (task,) = [one for one in tasks(layout("gb200-nvl72", 8), "fabric_host_numa_read_ce") if ends(one) == (6, 1)]
    assert (task.flows[0].source.label, task.flows[0].source.numa_node) == ("node2:GPU2:NUMA1", 1)
    assert route_words(task.flows[0].route) == "EGM over NV18>C2C across nodes"
    assert task.flows[0].route.egm is Egm.YES


def test_over_pcie_each_gpu_s_own_link_is_measured_once() -> None:
    found = tasks(layout("hgx-h200x4", 4), "fabric_host_numa_write_ce")
    assert Counter(task.flows[0].initiator_rank for task in found) == Counter(range(4))


TO_HOST = {way: f"fabric_host_numa_to_host_numa_{way}_sm" for way in ("write", "read")}


class TestEgmToEgm:
    """From the rank's own NUMA node to another's, and back: through the GPU of the rank that issues the work."""

    @pytest.mark.parametrize("way", TO_HOST)
    def test_every_ordered_pair_of_ranks_once_and_the_other_s_end_by_fabric_handle(self, way: str) -> None:
        found = tasks(layout("gb200-nvl72", 8), TO_HOST[way])
        assert Counter(map(ends, found)) == Counter(permutations(range(8), 2))
        for task in found:
            (flow,) = task.flows
            own, other = (flow.source, flow.destination)[:: 1 if way == "write" else -1]
            assert flow.initiator_rank == own.rank
            assert (own.handle, other.handle) == (None, HandleKind.FABRIC)
            assert {own.memory, other.memory} == {MemoryKind.HOST_NUMA}

    @pytest.mark.parametrize(
        ("way", "links"), [("write", "C2C>NV18>C2C across nodes"), ("read", "NV18>C2C>C2C across nodes")]
    )
    def test_across_nodes_the_bytes_take_c2c_of_both_and_the_nvlinks_between(self, way: str, links: str) -> None:
        wanted = (2, 5) if way == "write" else (5, 2)
        (task,) = [one for one in tasks(layout("gb200-nvl72", 8), TO_HOST[way]) if ends(one) == wanted]
        (flow,) = task.flows
        assert (flow.route.symbol, flow.route.egm, flow.route.memory) == (links, Egm.YES, MemoryKind.HOST_NUMA)
        path = ["node1:GPU2:NUMA1", "node2:GPU1:NUMA0"][:: 1 if way == "write" else -1]
        assert task.path == f"{' -> '.join(path)} by node1:GPU2"

    def test_within_a_node_the_same_links_as_in_one_process(self) -> None:
        routes = {ends(task): task.flows[0].route for task in tasks(layout("gb200-nvl72", 4), TO_HOST["write"])}
        assert {pair: route.symbol for pair, route in routes.items() if pair in ((0, 1), (0, 2))} == {
            (0, 1): "C2C>C2C",
            (0, 2): "C2C>NV18>C2C",
        }
        over_pcie = tasks(layout("hgx-h200x4", 4), TO_HOST["write"])
        assert {task.flows[0].route.symbol for task in over_pcie} == {"PCIe>PCIe"}
        assert Counter(task.flows[0].initiator_rank for task in over_pcie) == Counter(range(4)), "each link once"

    @pytest.mark.parametrize("sample", [None, 2])
    def test_no_two_pairs_of_a_step_use_the_memory_of_one_numa_node(self, sample: int | None) -> None:
        of = layout("gb200-nvl72", 8)
        cases = [one for one in FABRIC_CASES if one.name == TO_HOST["write"]]
        plan = make_fabric_plan(of, cases, SETTINGS, sample)
        steps = [step for step in plan.steps if not step.proof]
        assert sorted(number for step in steps for number in step.tasks) == list(range(len(plan.tasks)))
        assert any(len(step.tasks) > 1 for step in steps)
        for step in steps:
            there = [
                node
                for number in step.tasks
                for flow in plan.tasks[number].flows
                for node in {(of.node_of(end), end.numa_node) for end in (flow.source, flow.destination)}
            ]
            assert len(set(there)) == len(there)
        if sample is not None:
            assert Counter(planned.flows[0].initiator_rank for planned in plan.tasks) == Counter(
                sample * list(range(8))
            )

    def test_a_node_whose_gpus_cannot_share_host_memory_says_so(self) -> None:
        machine = without_multinode_ipc(with_imex_channel(load("gb200-nvl72")))
        plan = make_fabric_plan(modelled(machine, 8), [c for c in FABRIC_CASES if c.name == TO_HOST["read"]], SETTINGS)
        across = [one for one in plan.tasks if one.flows[0].route.across_nodes]
        assert len(across) == 2 * 4 * 4
        assert all("HOST_NUMA_MULTINODE_IPC_SUPPORTED is 0" in (one.waiver or "") for one in across)

    def test_two_links_in_a_row_are_no_yardstick_of_a_copy(self) -> None:
        plan = make_fabric_plan(
            layout("gb200-nvl72", 8), [c for c in FABRIC_CASES if c.name == TO_HOST["read"]], SETTINGS
        )
        measured = [finish(one, Status.OK) for one in plan.tasks if one.flows[0].route.across_nodes]
        assert "from link to link" in against_link(measured[0], 300.0, None).reason


def test_disjoint_pairs_run_at_the_same_time_whatever_their_links() -> None:
    of = layout("gb200-nvl72", 8)
    plan = make_fabric_plan(of, FABRIC_CASES[:1], SETTINGS)
    steps = [step for step in plan.steps if not step.proof]
    assert len(steps) == 2 * 7
    for step in steps:
        busy = [rank for number in step.tasks for rank in plan.tasks[number].ranks]
        assert sorted(busy) == list(range(8))


def test_a_sample_has_fewer_rounds_and_every_rank() -> None:
    of = layout("gb200-nvl72", 16)
    plan = make_fabric_plan(of, FABRIC_CASES[:1], SETTINGS, 2)
    assert len([step for step in plan.steps if not step.proof]) == 2 * 2
    assert Counter(planned.flows[0].initiator_rank for planned in plan.tasks) == Counter(2 * list(range(16)))
    assert plan.notes == ("a sample: 16 of the 120 pairs of 16 ranks, chosen at random (seed 1)",)


def test_patterns_of_all_ranks_cross_nodes() -> None:
    of = layout("gb200-nvl72", 8)
    (ring,) = tasks(of, "fabric_device_ring_write_ce")
    assert [(f.source.rank, f.destination.rank) for f in ring.flows] == [(n, (n + 1) % 8) for n in range(8)]
    (bisect,) = tasks(of, "fabric_host_numa_bisect_write_ce")
    assert [(f.source.rank, f.destination.rank) for f in bisect.flows] == [(n, (n + 4) % 8) for n in range(8)]
    assert {route_words(f.route) for f in bisect.flows} == {"EGM over NV18>C2C across nodes"}
    everyone = tasks(of, "fabric_device_all_to_one_write_ce")
    assert [len(task.flows) for task in everyone] == [7] * 8


def without_multinode_ipc(machine: Machine) -> Machine:
    gpus = tuple(
        replace(
            gpu,
            cuda=gpu.cuda
            and replace(gpu.cuda, attributes={**gpu.cuda.attributes, "HOST_NUMA_MULTINODE_IPC_SUPPORTED": 0}),
        )
        for gpu in machine.gpus or ()
    )
    return replace(machine, gpus=gpus)


def test_nodes_that_cannot_share_host_memory_say_why() -> None:
    of = modelled(without_multinode_ipc(with_imex_channel(load("gb200-nvl72"))), 8)
    plan = make_fabric_plan(of, [c for c in FABRIC_CASES if c.name == "fabric_host_numa_read_ce"], SETTINGS)
    waived = [planned for planned in plan.tasks if planned.waiver]
    assert len(waived) == 2 * 4 * 4
    assert all("HOST_NUMA_MULTINODE_IPC_SUPPORTED is 0" in (planned.waiver or "") for planned in waived)


def test_one_rank_has_nobody_to_share_with() -> None:
    with pytest.raises(NothingToDo, match="there is only one GPU"):
        make_fabric_plan(layout("gb200-nvl72", 1), FABRIC_CASES, SETTINGS)


def test_more_than_one_run_can_report_is_refused_with_what_to_do() -> None:
    with pytest.raises(NothingToDo, match="--sample 8 or --case measures some"):
        make_fabric_plan(layout("gb200-nvl72", 576), FABRIC_CASES, SETTINGS)


def test_a_rank_without_a_channel_takes_part_in_nothing() -> None:
    machine: Machine = load("gb200-nvl72")
    assert machine.driver is not None
    of = layout("gb200-nvl72", 8)
    hosts = dict(of.machines) | {"node2": replace(machine, driver=replace(machine.driver, imex_channels=()))}
    plan = make_fabric_plan(replace(of, machines=hosts), FABRIC_CASES[:1], SETTINGS)
    for planned in plan.tasks:
        assert (planned.waiver is not None) == any(rank >= 4 for rank in planned.ranks)
    assert any("node2:GPU0: there is no IMEX channel" in (planned.waiver or "") for planned in plan.tasks)


@pytest.mark.parametrize("ranks", [2, 8])
def test_host_memory_of_a_node_that_states_no_numa_node_is_waived_and_everything_else_measured(ranks: int) -> None:
    node = with_imex_channel(load("gb200-nvl72"))
    silent = replace(node, host=replace(node.host, numa_nodes=None) if node.host else None)
    plan = make_fabric_plan(modelled(silent, ranks), FABRIC_CASES, SETTINGS)
    waived = {planned.case: planned.waiver for planned in plan.tasks if planned.waiver}
    assert waived["fabric_host_numa_write_sm"] == waived["fabric_host_numa_read_ce"]
    assert "has no NUMA node that has memory" in str(waived["fabric_host_numa_write_sm"])
    assert "fabric_device_write_ce" not in waived


class TestAGpuThatCannotBeUsed:
    """Of a run on one node GPU1 has MIG on: it has no process, and it is not passed over in silence."""

    MACHINE = patched(with_imex_channel(load("gb200-nvl72")), "gpus[1].nvml", mig_mode=True)
    LAYOUT = alone(MACHINE, MACHINE.gpus or ())

    def planned(self, *cases: str) -> Plan:
        return make_fabric_plan(self.LAYOUT, [one for one in FABRIC_CASES if one.name in cases], SETTINGS)

    def test_its_paths_are_waived_and_it_has_no_process(self) -> None:
        plan = self.planned("fabric_device_write_ce")
        assert [rank.label for rank in plan.ranks] == ["GPU0", "GPU2", "GPU3"]
        assert [gpu.label for gpu in plan.gpus] == ["GPU0", "GPU1", "GPU2", "GPU3"]
        waived = [planned for planned in plan.tasks if planned.waivers]
        assert len(waived) == 6
        assert all("GPU1" in planned.path for planned in waived)
        assert {waiver.kind for planned in waived for waiver in planned.waivers} == {WaiverKind.GPU_UNUSABLE}
        assert {planned.waiver for planned in waived} == {"GPU1: MIG is on: it can only be used in parts"}
        started = {rank for number in range(len(plan.tasks)) for rank in plan.tasks[number].ranks}
        assert started == set(range(4)), "the last one is GPU1, which no step has"
        assert all(3 not in plan.tasks[number].ranks for step in plan.steps for number in step.tasks)

    def test_patterns_of_all_are_of_those_that_can(self) -> None:
        (ring,) = self.planned("fabric_device_ring_write_ce").tasks
        assert ring.waiver is None
        assert [flow.source.label for flow in ring.flows] == ["GPU0", "GPU2", "GPU3"]

    def test_of_two_one_is_not_enough_and_says_why(self) -> None:
        machine = patched(patched(self.MACHINE, "gpus[2].nvml", mig_mode=True), "gpus[3].nvml", mig_mode=True)
        cases = [one for one in FABRIC_CASES if one.name in ("fabric_device_write_ce", "fabric_device_ring_write_ce")]
        plan = make_fabric_plan(alone(machine, machine.gpus or ()), cases, SETTINGS)
        assert plan.tasks
        assert all(planned.waivers for planned in plan.tasks)
        assert plan.steps == ()

    def test_that_it_was_asked_for_is_a_failure_of_the_run(self) -> None:
        plan = self.planned("fabric_device_write_ce")
        status = {False: Status.OK, True: Status.WAIVED}
        found = [finish(one, status[bool(one.waivers)], waivers=one.waivers) for one in plan.tasks]
        made = replace(report(plan, found), ranks=plan.ranks, machines=(self.MACHINE,))
        (cause,) = with_causes(made, asked=[gpu.bus_id for gpu in plan.gpus]).causes
        assert (cause.finding.check, cause.asked) == ("gpu.mig", "GPU1")
