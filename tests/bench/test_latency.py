"""Latencies: which tasks there are, what the worker makes of them on fake nodes, and how they are shown."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from egmctl.bench.buffers import assign_buffers
from egmctl.bench.cases.one_process import FOOTPRINTS_LOCAL, LAPS, LATENCY_CASES, LOAD_BLOCKS_PEER, LOADS, UNCACHED
from egmctl.bench.engines.latency import WARM_UP_LOADS
from egmctl.bench.plan.make import make_plan
from egmctl.gpu import chase
from egmctl.model.listing import PlannedTask
from egmctl.model.machine import Machine
from egmctl.model.route import Route
from egmctl.model.task import Point, Quantity
from egmctl.report.render.text import WIDTH
from egmctl.report.views.bench_details import knee
from egmctl.units import GIB, MIB
from tests.bench.conftest import MeasureLatencies
from tests.bench.latencies import SETTINGS, shown
from tests.bench.plans import plan_of
from tests.doctor.machines import patched, shipped

GB200 = shipped("gb200-tray")
H200 = shipped("hgx-h200x4")
DGX = shipped("dgx-h100")


def plan(machine: Machine, gpus: int, nodes: list[int]) -> dict[str, list[PlannedTask]]:
    """Return the planned tasks by case."""
    found: dict[str, list[PlannedTask]] = {case.name: [] for case in LATENCY_CASES}
    for planned in make_plan(machine, (machine.gpus or ())[:gpus], nodes, LATENCY_CASES, SETTINGS).tasks:
        found[planned.case].append(planned)
    return found


class TestPlan:
    def test_names_are_unique_and_nvbandwidth_s_where_it_has_one(self) -> None:
        names = [case.name for case in LATENCY_CASES]
        assert len(set(names)) == len(names)
        assert {"device_to_device_latency_sm", "host_device_latency_sm"} <= set(names)

    def test_every_ordered_pair_is_read_by_the_gpu_that_measures(self) -> None:
        tasks = list(plan(H200, 4, [0])["device_to_device_latency_uncached"])
        pairs = Counter((task.flows[0].source.label, task.flows[0].destination.label) for task in tasks)
        assert len(pairs) == 12
        assert set(pairs.values()) == {1}
        assert all(task.flows[0].initiator == task.flows[0].destination.bus_id for task in tasks)

    def test_uncached_is_four_times_the_l2_cache_or_more(self) -> None:
        (gpu, *_) = H200.gpus or ()
        assert gpu.cuda is not None
        l2_bytes = gpu.cuda.attributes["L2_CACHE_SIZE"]
        (task, *_) = plan(H200, 2, [0])["device_to_device_latency_uncached"]
        assert l2_bytes is not None
        assert 4 * l2_bytes <= task.size_bytes < 4 * l2_bytes + MIB
        # Each line is read once: the samples do not come round.
        lines = UNCACHED.least_bytes // 128
        assert SETTINGS.samples * (LOADS + WARM_UP_LOADS) < lines

    def test_a_ping_pong_s_flag_is_as_large_as_its_kernel_takes_it(self) -> None:
        (planned,) = plan(GB200, 2, [0, 1])["device_to_device_ping_pong_latency"]
        assert planned.size_bytes == chase.FLAG_BYTES

    def test_a_ping_pong_has_the_flag_of_each_side_in_the_other_s_memory(self) -> None:
        (planned,) = plan(GB200, 2, [0, 1])["device_to_device_ping_pong_latency"]
        there, back = planned.flows
        assert (there.initiator, back.initiator) == (there.source.bus_id, back.source.bus_id)
        assert (there.source, there.destination) == (back.destination, back.source)
        ((flag, other),) = assign_buffers([planned])
        assert flag.destination is not None
        assert other.destination is not None
        assert [flag.destination.end.label, other.destination.end.label] == ["GPU1", "GPU0"]

    def test_a_ping_pong_through_host_memory_has_two_flags_on_each_node(self) -> None:
        tasks = list(plan(GB200, 3, [0, 1])["host_numa_ping_pong_latency"])
        assert len(tasks) == 3 * 2
        for task in tasks:
            assert len({flow.initiator for flow in task.flows}) == 2
            ((one, other),) = assign_buffers([task])
            assert one.destination != other.destination

    def test_load_and_chase_work_on_buffers_of_their_own_at_the_same_end(self) -> None:
        for planned in plan(GB200, 2, [0])["device_to_device_latency_loaded"]:
            ((chase, load),) = assign_buffers([planned])
            assert chase.source is not None
            assert load.source is not None
            assert chase.source.end == load.source.end
            assert chase.source != load.source

    def test_a_chain_is_never_written_into_what_a_copy_reads_from(self) -> None:
        (chase, *_) = plan(GB200, 2, [0])["device_to_device_latency_uncached"]
        copy = replace(chase, quantity=Quantity.BANDWIDTH)
        ((of_chase,), (of_copy,)) = assign_buffers([chase, copy])
        assert of_chase.source != of_copy.source

    @pytest.mark.parametrize(
        ("name", "routes"), [("device_to_device_latency_loaded", 1), ("host_numa_to_device_footprint", 2)]
    )
    def test_curves_are_measured_over_one_path_of_each_route(self, name: str, routes: int) -> None:
        # To the nearer NUMA node, and through it to the other one.
        by_point: dict[Point, list[Route]] = {}
        for planned in plan(DGX, 8, [0, 1])[name]:
            by_point.setdefault(planned.point, []).append(planned.flows[0].route)
        assert all(len(found) == len(set(found)) == routes for found in by_point.values())

    @pytest.mark.parametrize(("free", "largest"), [(128 * GIB, 32), (127 * GIB, 16), (2000 * GIB, 256), (None, 256)])
    def test_the_hosts_footprints_go_as_far_as_what_is_free_allows(self, free: int | None, largest: int) -> None:
        machine = patched(H200, "host", memory_available_bytes=free, memory_total_bytes=1 << 40)
        machine = patched(machine, "host.numa_nodes[*]", memory_free_bytes=free, memory_total_bytes=1 << 40)
        plan = plan_of("host_numa_to_device_footprint", machine=machine, gpus=1, nodes=[0])
        # What has no room is no task: nothing is missing, and no run is incomplete for it.
        assert max(planned.size_bytes for planned in plan.tasks) == largest * GIB
        assert all(planned.waiver is None for planned in plan.tasks)
        assert plan.notes == ()

    def test_curves_begin_idle_and_footprints_in_the_cache(self) -> None:
        assert LOAD_BLOCKS_PEER[0] == 0
        assert FOOTPRINTS_LOCAL[0] == 2 * MIB
        assert sorted(FOOTPRINTS_LOCAL) == list(FOOTPRINTS_LOCAL)


class TestOnAFakeNode:
    @pytest.mark.parametrize(("suffix", "kernel"), [("sm", "chase"), ("tma", "chase_bulk")])
    def test_a_sample_of_nvbandwidth_s_definition_has_loads_enough_on_several_multiprocessors(
        self, latencies: MeasureLatencies, suffix: str, kernel: str
    ) -> None:
        run = latencies(f"device_to_device_latency_{suffix}")
        walks = [call for call in run.node.calls("cuLaunchKernel") if call.arguments["kernel"] == kernel]
        timed = [call for call in walks if int(call.arguments["argument3"], 16) > 1]
        blocks = int(timed[0].arguments["grid"].split(",")[0])
        loads = int(timed[0].arguments["argument3"], 16)
        assert loads == 1_000_000 // blocks
        assert {int(call.arguments["argument1"], 16) for call in timed} == {0}
        launches = {int(call.arguments["argument4"], 16) for call in timed}
        assert len(launches) * loads >= LOADS
        assert max(launches) < blocks

    @pytest.mark.parametrize("case", ["device_local_latency_cached", "device_to_device_latency_tma"])
    def test_a_damaged_chain_is_corrupt(self, latencies: MeasureLatencies, case: str) -> None:
        # The second byte of the first line's link: it leads to another line, so the walk ends somewhere else.
        run = latencies(case, faults="cuLaunchKernel@1=corrupt:1")
        assert run.code == 1
        assert Counter(m["status"] for m in run.measurements) == {"corrupt": 1, "ok": 1}
        (bad,) = (m for m in run.measurements if m["status"] == "corrupt")
        assert "sample 0: the pointer chase ended at the wrong offset " in bad["reason"]
        assert "ended at the wrong offset" in bad["reason"]

    @pytest.mark.parametrize("call", ["cuMemAlloc@5", "cuLaunchKernel@1", "cuMemcpyAsync@1"])
    def test_a_gpu_that_fails_does_not_cost_the_others_of_its_step(
        self, latencies: MeasureLatencies, call: str
    ) -> None:
        run = latencies("device_local_latency_cached", faults=f"{call}=error:719")
        assert Counter(m["status"] for m in run.measurements) == {"failed": 1, "ok": 1}


class TestText:
    def test_rows_read_from_columns(self) -> None:
        assert """\
latency GPU(row) <- GPU(column), random lines of 2 MiB, read before (ns)
device_to_device_latency_cached
NV18
       GPU0   GPU1   GPU2
GPU0      -  100.2  101.2
GPU1  102.2      -  103.2
GPU2  104.2  105.2      -
""" in shown(H200, 3, [0], "device_to_device_latency_cached")

    def test_a_gpu_s_own_memory_is_the_diagonal(self) -> None:
        text = shown(H200, 2, [0], "device_")
        assert "device_local_latency_cached, device_to_device_latency_cached\n" in text
        (table,) = (part for part in text.split("\n\n") if "device_local_latency_cached" in part)
        assert "-" not in table.rpartition("GPU1\n")[2]

    def test_host_memory_says_whether_it_is_egm(self) -> None:
        text = shown(GB200, 4, [0, 1], "host_numa_to_device_latency_cached")
        assert "latency HOST_NUMA(row) -> GPU(column), random lines of 2 MiB, read before (ns)" in text
        assert "EGM over C2C: NUMA0 with GPU0 GPU1, NUMA1 with GPU2 GPU3" in text

    def test_round_trips_are_shown_once_a_pair_with_the_worst_tail(self) -> None:
        text = shown(H200, 3, [0], "device_to_device_ping_pong")
        assert "round trip of a flag GPU(row) <-> GPU(column), each polls its own (ns, p50)" in text
        assert "p99 at most 111 ns (GPU1 <-> GPU2)" in text
        assert "      GPU1  GPU2\nGPU0   100   101\nGPU1     -   102\n" in text

    def test_load_is_what_was_reached(self) -> None:
        text = shown(H200, 2, [0], "device_to_device_latency_loaded")
        assert "device_to_device_latency_loaded\n" in text
        assert ["2", "blocks", "102.2", "20.0"] in [line.split() for line in text.splitlines()]

    def test_the_knee_is_named_and_its_rule_stated(self) -> None:
        sizes = [size for size in FOOTPRINTS_LOCAL if size <= 8 * GIB]
        values = [1200.0 if size < 2 * GIB else 1500.0 for size in sizes] + [1500.0] * 9
        text = shown(H200, 2, [0], "device_local_footprint", *values)
        assert "knee: the first footprint that takes 10 % longer than 512 MiB" in text
        assert re.search(r"inside one GPU latency +1200\.[0-9] +1500\.[0-9] +2 GiB", text)

    @pytest.mark.parametrize("gpus", [1, 2, 8])
    def test_a_page_is_wide_enough_for_eight_gpus(self, gpus: int) -> None:
        text = shown(DGX, gpus, [0, 1], "", *[1234.5] * 2000)
        assert max(map(len, text.splitlines())) <= WIDTH


class TestKnee:
    def test_a_level_curve_has_none(self) -> None:
        assert knee({512 * MIB: 340, GIB: 341, 64 * GIB: 343}) is None

    def test_what_a_cache_answered_is_no_base(self) -> None:
        assert knee({2 * MIB: 147, 512 * MIB: 340, GIB: 341}) is None
        assert knee({2 * MIB: 147, 32 * MIB: 220, 128 * MIB: 337}) is None

    def test_it_is_the_first_footprint_above_the_bound(self) -> None:
        assert knee({512 * MIB: 1000, GIB: 1100, 2 * GIB: 1101, 4 * GIB: 1200}) == 2 * GIB


def test_laps_are_as_many_as_the_issue_of_a_percentile_needs() -> None:
    assert LAPS >= 1000
