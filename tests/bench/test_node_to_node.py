"""HOST_NUMA memory to HOST_NUMA memory through a GPU: who meets whom, over which route, and that every byte arrives."""

from __future__ import annotations

from egmctl.bench.plan.make import make_plan
from egmctl.bench.suites import select_cases
from egmctl.model.measurement import Settings
from egmctl.model.route import Egm, MemoryKind
from egmctl.model.task import Task
from egmctl.report.kinds import Format, render
from egmctl.units import MIB
from egmctl.verdict.yardsticks import against_link, class_of
from tests.bench.conftest import FEW, Bench
from tests.doctor.machines import shipped
from tests.report.runs import run

CASE = "host_numa_to_host_numa_memcpy_ce"
BOTH = ("--case", CASE, "--case", "host_numa_to_host_numa_memcpy_sm")
NODES = ("bench", "--numa", "0-1", "--gpus", "0,2", *FEW)
"""Each GPU is on another node."""


def tasks(machine: str, gpus: int, nodes: tuple[int, ...]) -> list[Task]:
    seen = shipped(machine)
    settings = Settings(size_bytes=512 * MIB, copies=None, samples=3, timeout_s=60)
    plan = make_plan(seen, (seen.gpus or ())[:gpus], nodes, select_cases([CASE]), settings)
    return list(plan.tasks)


def test_each_gpu_copies_between_two_nodes_both_ways() -> None:
    assert [task.path for task in tasks("dgx-h100", 2, (0, 1))] == [
        "NUMA0 -> NUMA1 by GPU0",
        "NUMA0 -> NUMA1 by GPU1",
        "NUMA1 -> NUMA0 by GPU0",
        "NUMA1 -> NUMA0 by GPU1",
    ]


def test_of_a_single_node_each_gpu_copies_within_it() -> None:
    assert [task.path for task in tasks("hgx-h200x4", 2, (0,))] == ["NUMA0 -> NUMA0 by GPU0", "NUMA0 -> NUMA0 by GPU1"]
    (flow,) = tasks("hgx-h200x4", 1, (0,))[0].flows
    assert (flow.route.symbol, flow.route.egm, flow.route.memory) == ("PCIe>PCIe", Egm.NO, MemoryKind.HOST_NUMA)


def test_the_route_leads_through_the_gpu_from_the_source_to_the_destination() -> None:
    there, back = (task.flows[0] for task in tasks("gb200-tray", 1, (0, 1)))
    assert (there.route.symbol, back.route.symbol) == ("C2C>NV18>C2C", "NV18>C2C>C2C")
    assert there.route.egm is back.route.egm is Egm.YES
    assert there.initiator_label == "GPU0"


def test_both_buffers_are_made_on_their_nodes_and_every_byte_is_looked_at(bench: Bench) -> None:
    found = bench(*NODES, *BOTH)
    assert found.code == 0, found.reasons()
    assert found.statuses() == ["ok"] * 8
    assert {m["verification"] for m in found.measurements} == {"gpu-every-sample"}
    # cuMemcpyAsync between host memory comes back when it is done: behind a closed gate it never would.
    assert {(m["engine"], m["gating"]) for m in found.measurements} == {("ce", "none"), ("sm-copy", "kernel")}
    assert {call.arguments["location"] for call in found.node.calls("cuMemCreate")} == {"HOST_NUMA:0", "HOST_NUMA:1"}
    assert found.node.leaks() == []


def test_the_table_has_a_row_for_each_gpu_and_a_column_for_each_way() -> None:
    text = str(render(run("dgx-h100", cases=(CASE,), gpus=2), Format.TEXT, verbose=1))
    assert "memcpy CE HOST_NUMA -> HOST_NUMA(column) by GPU(row) bandwidth (GB/s)" in text
    (head,) = [line for line in text.splitlines() if "NUMA0->NUMA1" in line]
    assert head.split() == ["NUMA0->NUMA1", "NUMA1->NUMA0"]


def test_a_link_that_carries_the_bytes_twice_is_no_yardstick() -> None:
    (first, *_) = run("dgx-h100", cases=(CASE,), gpus=2).measurements
    assert "both directions" in against_link(first, 20.0, None).reason
    assert class_of(first).link == first.flows[0].route.symbol
