"""What is measured between which ranks, and what is said where UCX is not to be had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from egmctl.api import bench as api
from egmctl.bench.cases import ipc
from egmctl.bench.plan.fabric import make_fabric_plan
from egmctl.bench.plan.make import make_plan
from egmctl.bench.plan.placement import RankLayout
from egmctl.bench.suites import SUITES, select_cases
from egmctl.model.machine import OriginKind
from egmctl.model.measurement import Settings
from egmctl.model.route import Egm, MemoryKind, Rank
from egmctl.model.task import Engine, Quantity
from tests.conftest import RunEgmctl
from tests.fake.node import load
from tests.fake.plugin import MakeFakeNode

SETTINGS = Settings(size_bytes=1 << 26, copies=None, samples=3, timeout_s=60)
NOT_INSTALLED = "UCX cannot be used: ucxx is not installed (pip install 'egmctl[rdma]')"
ONE_SIDED = tuple(case for case in ipc.UCX_CASES if case.engine in (Engine.UCX_PUT, Engine.UCX_GET))
MEMORY = (MemoryKind.DEVICE, MemoryKind.HOST_NUMA, MemoryKind.PINNED)


def test_the_suite_has_every_pair_of_memories_in_sizes_and_as_a_round_trip() -> None:
    cases = select_cases((), ("rdma",))
    assert [case.name for case in cases] == [case.name for case in ipc.UCX_CASES]
    assert {(case.source, case.destination) for case in cases} == {(one, other) for one in MEMORY for other in MEMORY}
    two_sided = [case for case in cases if case.engine is Engine.UCX]
    assert len(two_sided) == 9 * 2
    assert [len(case.points) for case in two_sided if case.quantity is Quantity.BANDWIDTH] == 9 * [5]


def test_each_end_is_memory_of_its_own_rank_and_each_pair_is_measured_both_ways() -> None:
    machine = load("gb200-tray")
    assert machine.gpus is not None
    plan = make_plan(machine, [machine.gpus[0], machine.gpus[2]], [0, 1], ipc.UCX_CASES, SETTINGS)
    flows = [planned.flows[0] for planned in plan.tasks if planned.name == "ucx_device_to_host_numa"]
    assert [flow.path for flow in flows] == ["GPU0 -> GPU2:NUMA1", "GPU2 -> GPU0:NUMA0"]
    assert [(flow.source.rank, flow.destination.rank) for flow in flows] == [(0, 1), (1, 0)]
    assert [flow.route.egm for flow in flows] == [Egm.YES, Egm.YES]
    assert all(planned.waiver is None for planned in plan.tasks)


def test_ranks_of_two_nodes_need_no_nvlink_domain() -> None:
    machine = load("dgx-h100")
    assert machine.gpus is not None
    ranks = tuple(
        Rank(number=number, label=f"node{number + 1}:GPU0", bus_id=machine.gpus[0].bus_id, numa_node=0, host=host)
        for number, host in enumerate(("a", "b"))
    )
    plan = make_fabric_plan(RankLayout(ranks, {"a": machine, "b": machine}), ipc.UCX_CASES, SETTINGS)
    assert len(plan.runnable) == 2 * sum(len(case.points) for case in ipc.UCX_CASES)
    paths = {task.path for task in plan.runnable if task.case == "ucx_host_to_host"}
    assert paths == {"node1:GPU0:NUMA0 -> node2:GPU0:NUMA0", "node2:GPU0:NUMA0 -> node1:GPU0:NUMA0"}


def test_each_kind_of_memory_is_put_and_got_in_each_size() -> None:
    assert len(ONE_SIDED) == 2 * 3
    assert all(case.points == ipc.MESSAGE_POINTS for case in ONE_SIDED)
    assert not [case.name for case in ONE_SIDED if SUITES["standard"].has(case) or SUITES["quick"].has(case)]


def test_who_puts_has_the_source_and_who_gets_the_destination() -> None:
    machine = load("gb200-tray")
    cases = [case for case in ONE_SIDED if case.name in ("ucx_put_host_to_host", "ucx_get_host_to_host")]
    made = make_plan(machine, (machine.gpus or ())[:2], [0], cases, SETTINGS)
    flows = [(planned.engine, planned.flows[0]) for planned in made.tasks]
    assert len(flows) == 4 * len(ipc.MESSAGE_POINTS)
    for engine, flow in flows:
        own, other = (flow.source, flow.destination) if engine is Engine.UCX_PUT else (flow.destination, flow.source)
        assert own.rank == flow.initiator_rank
        assert other.rank != flow.initiator_rank


@pytest.mark.parametrize("installed", [True, False])
def test_a_plan_counts_no_time_for_ucx_where_ucxx_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    machine = load("gb200-tray")
    here = replace(machine, origin=replace(machine.origin, kind=OriginKind.LIVE))
    monkeypatch.setattr(api, "find_spec", lambda _name: object() if installed else None)
    bench = api.Bench(cases=["ucx_device_to_device", "device_to_device_memcpy_write_ce"], gpus="0-1")
    plan = bench.plan(here)
    named = {one.case for one in plan.tasks if one.waiver is None}
    assert named == {"device_to_device_memcpy_write_ce"} | ({"ucx_device_to_device"} if installed else set())
    assert {one.waiver for one in plan.tasks} - {None} == (set() if installed else {NOT_INSTALLED})
    elsewhere = bench.plan(machine)
    assert all(one.waiver is None for one in elsewhere.tasks), "what is installed there is not known"


@pytest.mark.long
def test_without_ucxx_nothing_is_measured_and_the_reason_says_what_to_install(
    egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path
) -> None:
    (tmp_path / "ucxx").mkdir()
    (tmp_path / "ucxx" / "__init__.py").write_text("raise ImportError(\"No module named 'ucxx'\")\n")
    node = fake_node("gb200-tray")
    ended = egmctl(
        *("bench", "--gpus", "0-1", "--numa", "0", "--no-verdict", "--case", "ucx_host_to_host"),
        env=node.environment() | {"PYTHONPATH": str(tmp_path)},
    )
    assert ended.code == 3
    assert "pip install 'egmctl[rdma]'" in " ".join(ended.out.split())
