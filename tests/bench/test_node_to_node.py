"""HOST_NUMA memory to HOST_NUMA memory through a GPU, of one process or of two: over which route, and what is said."""

from __future__ import annotations

from egmctl.bench.path_class import class_of
from egmctl.model.codec import from_json
from egmctl.model.measurement import RunReport
from egmctl.model.route import Egm, MemoryKind
from egmctl.model.task import Task
from egmctl.report.kinds import Format
from egmctl.verdict.yardsticks import against_link
from tests.answers import render
from tests.bench.conftest import FEW, Bench
from tests.bench.four import cases
from tests.bench.plans import plan_of
from tests.fake.machines import nvl4, with_imex_channel
from tests.mpi.nodes import QUICK
from tests.report.runs import run

CASE = "host_numa_to_host_numa_memcpy_ce"
BOTH = ("--case", CASE, "--case", "host_numa_to_host_numa_memcpy_sm")
NODES = ("bench", "--numa", "0-1", "--gpus", "0,2", *FEW)
"""Each GPU is on another node."""


def tasks(machine: str, gpus: int, nodes: tuple[int, ...]) -> list[Task]:
    return list(plan_of(CASE, machine=machine, gpus=gpus, nodes=nodes).tasks)


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


RANKS = ("bench", *QUICK, "--gpus", "0,2")
"""Each GPU is on another node."""
FABRIC_CASES = tuple(
    f"fabric_host_numa_to_host_numa_{way}_{suffix}" for suffix in ("ce", "sm") for way in ("write", "read")
)
DOMAIN = with_imex_channel(nvl4())


def test_both_ways_by_copy_engine_and_kernel_each_through_the_gpu_of_who_issues_it(bench: Bench) -> None:
    ended = bench(*RANKS, *cases(*FABRIC_CASES), machine=DOMAIN)
    assert ended.code == 0, ended.reasons()
    measurements = ended.measurements
    assert [m["case"] for m in measurements] == [case for case in FABRIC_CASES for _ in range(2)]
    assert {m["status"] for m in measurements} <= {"ok", "unstable"}
    assert {m["verification"] for m in measurements} == {"gpu-every-sample"}
    # cuMemcpyAsync between host memory comes back when it is done: behind a closed gate it never would.
    assert {(m["engine"], m["gating"]) for m in measurements} == {("ce", "none"), ("sm-copy", "kernel")}
    assert {m["counted"] for m in measurements} == {"each byte copied, once"}
    (flow,) = measurements[0]["flows"]
    assert (flow["source"]["label"], flow["destination"]["label"]) == ("GPU0:NUMA0", "GPU2:NUMA1")
    assert (flow["source"]["handle"], flow["destination"]["handle"]) == (None, "fabric")
    assert (flow["initiator_label"], flow["route"]["symbol"]) == ("GPU0", "C2C>NV18>C2C")
    created = [(call.arguments["location"], call.arguments["handle"]) for call in ended.node.calls("cuMemCreate")]
    assert set(created) == {(f"HOST_NUMA:{node}", handle) for node in (0, 1) for handle in ("NONE", "FABRIC")}
    assert ended.node.leaks() == []
    text = str(render(from_json(RunReport, ended.result), Format.TEXT, verbose=1))
    read = text[text.index("memcpy CE HOST_NUMA(row) <- HOST_NUMA(column) by the row's GPU bandwidth (GB/s)") :]
    assert ["GPU0:NUMA0", "GPU2:NUMA1"] in [line.split() for line in read.splitlines()[:9]]
