"""Which flows each pattern is made of, and which buffers they work on."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.api.bench import Bench
from egmctl.bench.buffers import Buffer, Lifetimes, assign, buffers_of, peaks
from egmctl.bench.case import End
from egmctl.bench.plan import Plan
from egmctl.bench.plan.make import make_plan, sweep_sizes
from egmctl.bench.plan.task import copies_for
from egmctl.bench.suites import CASES, select_cases
from egmctl.errors import UsageError
from egmctl.model.measurement import Settings
from egmctl.model.route import MemoryKind
from egmctl.model.task import Pattern, Task
from egmctl.units import GIB, MIB
from tests.doctor.machines import shipped

DGX = shipped("dgx-h100")
SETTINGS = Settings(size_bytes=512 * MIB, copies=None, samples=5, timeout_s=60)
COUNTS = st.lists(st.integers(0, 7), min_size=2, max_size=8, unique=True)


def plan_of(name: str, gpus: list[int], nodes: tuple[int, ...] = (0, 1), settings: Settings = SETTINGS) -> Plan:
    """Plan cases for GPUs of a DGX H100 by index."""
    assert DGX.gpus is not None
    return make_plan(DGX, [DGX.gpus[index] for index in gpus], nodes, select_cases([name]), settings)


def paths(name: str, gpus: list[int]) -> list[list[str]]:
    """Return for each task of a case its flows' paths."""
    return [[flow.path for flow in planned.flows] for planned in plan_of(name, gpus).tasks]


@given(COUNTS)
def test_both_directions_are_every_unordered_pair_there_and_back(gpus: list[int]) -> None:
    found = paths("device_to_device_bidirectional_memcpy_write_ce", gpus)
    assert found == [[f"GPU{a} -> GPU{b}", f"GPU{b} -> GPU{a}"] for a, b in combinations(gpus, 2)]


@given(COUNTS)
def test_a_ring_visits_every_gpu_once_and_comes_back(gpus: list[int]) -> None:
    (flows,) = paths("ring_write_ce", gpus)
    assert flows == [f"GPU{a} -> GPU{b}" for a, b in zip(gpus, [*gpus[1:], gpus[0]], strict=True)]


@given(COUNTS)
def test_a_bisection_sends_and_receives_on_every_gpu_once(gpus: list[int]) -> None:
    (flows,) = paths("bisect_write_ce", gpus)
    ends = [flow.split(" -> ") for flow in flows]
    assert sorted(a for a, _ in ends) == sorted(b for _, b in ends) == sorted(f"GPU{g}" for g in gpus)
    assert all(a != b for a, b in ends)


@given(COUNTS)
def test_all_pairs_is_one_task_of_all_ordered_pairs(gpus: list[int]) -> None:
    (flows,) = paths("all_pairs_write_ce", gpus)
    assert flows == [f"GPU{a} -> GPU{b}" for a, b in permutations(gpus, 2)]


@given(COUNTS)
def test_one_to_all_and_all_to_one_are_a_task_for_each_gpu(gpus: list[int]) -> None:
    assert paths("one_to_all_write_ce", gpus) == [[f"GPU{a} -> GPU{b}" for b in gpus if b != a] for a in gpus]
    assert paths("all_to_one_read_ce", gpus) == [[f"GPU{b} -> GPU{a}" for b in gpus if b != a] for a in gpus]


@given(COUNTS)
def test_everyone_to_one_node_is_a_task_for_each_node(gpus: list[int]) -> None:
    assert paths("all_to_host_one_node_memcpy_ce", gpus) == [[f"GPU{g} -> NUMA{n}" for g in gpus] for n in (0, 1)]


@given(COUNTS)
def test_everyone_with_its_own_node_is_one_task(gpus: list[int]) -> None:
    own = [(g, DGX.gpus[g].host_numa_id) for g in gpus]  # type: ignore[index]
    assert paths("all_to_host_memcpy_ce", gpus) == [[f"GPU{g} -> NUMA{n}" for g, n in own]]
    both = paths("host_to_all_bidirectional_memcpy_ce", gpus)
    assert both == [[way for g, n in own for way in (f"NUMA{n} -> GPU{g}", f"GPU{g} -> NUMA{n}")]]


def test_a_gpu_whose_own_node_was_not_chosen_stays_out() -> None:
    own = [gpu.host_numa_id for gpu in DGX.gpus or ()]
    (task,) = plan_of("host_to_all_memcpy_ce", list(range(8)), (1,)).tasks
    assert [flow.path for flow in task.flows] == [f"NUMA1 -> GPU{g}" for g in range(8) if own[g] == 1]


def test_both_directions_with_host_memory_are_issued_by_the_gpu() -> None:
    (there, back) = plan_of("host_numa_to_device_bidirectional_memcpy_ce", [0], (0,)).tasks[0].flows
    assert (there.path, back.path) == ("NUMA0 -> GPU0", "GPU0 -> NUMA0")
    assert (there.source.memory, there.destination.memory) == (MemoryKind.HOST_NUMA, MemoryKind.DEVICE)
    assert (back.source.memory, back.destination.memory) == (MemoryKind.DEVICE, MemoryKind.HOST_NUMA)
    assert there.initiator == back.initiator == there.destination.bus_id


def test_what_only_reads_ends_in_registers_of_who_reads() -> None:
    flows = [planned.flows[0] for planned in plan_of("host_numa_read_sm", [0, 1], (0,)).tasks]
    assert [(f.path, f.destination.memory, f.initiator_label) for f in flows] == [
        ("NUMA0 -> GPU0", "registers", "GPU0"),
        ("NUMA0 -> GPU1", "registers", "GPU1"),
    ]


def test_cpu_threads_of_each_node_work_with_the_memory_of_each() -> None:
    flows = [planned.flows[0] for planned in plan_of("host_numa_read_cpu", [0, 1]).tasks]
    assert [flow.path for flow in flows] == [f"NUMA{m} -> CPU{c}" for c in (0, 1) for m in (0, 1)]
    assert {(flow.initiator, flow.initiator_label) for flow in flows} == {(None, "CPU0"), (None, "CPU1")}


@given(COUNTS, st.sampled_from([case.name for case in CASES]))
def test_no_two_flows_of_a_step_write_to_one_buffer_and_none_reads_what_another_writes(
    gpus: list[int], name: str
) -> None:
    plan = plan_of(name, gpus)
    for step in plan.steps:
        flows = [f for of_task in assign([plan.tasks[n] for n in step.tasks]) for f in of_task]
        written = [flow.destination for flow in flows if flow.destination is not None]
        assert len(written) == len(set(written))
        assert not set(written) & {flow.source for flow in flows}


def test_one_gpu_sends_the_same_buffer_to_all_others() -> None:
    (flows,) = assign([plan_of("one_to_all_write_ce", [0, 1, 2]).tasks[0]])
    assert len({flow.source for flow in flows}) == 1
    assert len({flow.destination for flow in flows}) == 2


@pytest.mark.long
@given(COUNTS)
def test_a_buffer_is_given_back_after_its_last_step_and_all_are_in_the_end(gpus: list[int]) -> None:
    plan = plan_of("*_to_device_memcpy_ce", gpus)
    steps: list[list[Task]] = [[plan.tasks[n] for n in step.tasks] for step in plan.steps]
    lifetimes, held, given_back = Lifetimes(steps), set[Buffer](), set[Buffer]()
    for tasks in steps:
        assert not {*buffers_of(tasks)} & given_back
        held.update(buffers_of(tasks))
        given_back.update(lifetimes.finish(tasks))
    assert given_back == held


def test_the_peak_counts_what_is_held_at_the_same_time() -> None:
    plan = plan_of("all_to_host_numa_one_node_memcpy_ce", [0, 1, 2, 3], (0, 1))
    most = {peak.place.label if peak.place else "host": peak.bytes for peak in plan.peaks}
    # Four destinations on one node, given back before those on the other are made.
    assert most["NUMA0"] == most["NUMA1"] == most["host"] == 2 * GIB
    assert most["GPU3"] == 512 * MIB


def test_no_steps_hold_nothing() -> None:
    assert peaks([]) == ()


def test_end_words() -> None:
    assert {buffer.role for buffer in buffers_of([plan_of("ring_write_ce", [0, 1]).tasks[0]])} == set(End)


@pytest.mark.parametrize(
    ("size", "rate", "copies"),
    [(512 * MIB, 396, 16), (512 * MIB, 55.5, 3), (4096, 396, 128), (16 * GIB, 396, 1), (512 * MIB, 800, 32)],
)
def test_a_sample_is_long_enough_but_never_more_than_can_be_queued(size: int, rate: float, copies: int) -> None:
    assert copies_for(size, rate) == copies


def test_flows_that_share_a_link_share_the_sample() -> None:
    copies = {
        name: plan_of(name, list(range(8))).tasks[0].copies
        for name in ("device_to_device_memcpy_write_ce", "one_to_all_write_ce", "all_pairs_write_ce", "ring_write_ce")
    }
    assert copies == {
        "device_to_device_memcpy_write_ce": 16,
        "one_to_all_write_ce": 3,
        "all_pairs_write_ce": 3,
        "ring_write_ce": 16,
    }


@given(st.integers(4096, 1 << 40), st.floats(1, 5000))
def test_a_sample_takes_20_ms_unless_the_queue_is_full(size: int, rate: float) -> None:
    copies = copies_for(size, rate)
    assert copies == 128 or copies * size / (rate * 1e9) >= 0.02
    assert copies == 1 or copies * size * 2 / 3 / (rate * 1e9) < 0.02 or copies == 2


@given(st.integers(4096, 1 << 40))
def test_a_sweep_begins_at_4_kib_and_ends_at_the_top(top: int) -> None:
    sizes = sweep_sizes(top)
    assert sizes[0] == 4096
    assert sizes[-1] == top
    assert list(sizes) == sorted(set(sizes))


def test_a_sweep_without_a_top_ends_where_half_of_the_memory_does() -> None:
    bench = Bench(gpus="0-1", numa="0", sweep="size", cases=["host_numa_to_device_memcpy_ce"])
    assert bench.plan(DGX).settings.size_bytes == 8 * GIB
    assert DGX.host is not None
    little = tuple(replace(node, memory_free_bytes=300 * MIB) for node in DGX.host.numa_nodes or ())
    plan = bench.plan(replace(DGX, host=replace(DGX.host, numa_nodes=little)))
    # Smaller buffers hold several slots: all sizes together are to fit.
    assert plan.settings.size_bytes == max(task.size_bytes for task in plan.tasks) < 300 * MIB
    assert plan.notes[-1].startswith(f"buffers of {plan.settings.size_bytes // MIB} MiB, not of the usual 8 GiB")


def test_a_sweep_begins_at_its_first_size() -> None:
    with pytest.raises(UsageError, match="a sweep begins at 4096 bytes"):
        sweep_sizes(2048)


def test_patterns_that_are_named_have_a_case() -> None:
    assert {case.pattern for case in CASES} >= set(Pattern) - {Pattern.LOADED}


def test_which_of_several_equals_is_named_is_the_same_in_every_process() -> None:
    """Python's hashes of strings differ from process to process: nothing may follow the order of a set."""
    (step,) = (task for task in plan_of("ring_write_ce", [0, 1, 2, 3]).tasks)
    initiators = [flow.source.label for flow in step.flows]
    sources = [buffer.end.label for buffer in buffers_of([step]) if buffer.role is End.SOURCE]
    assert sources == initiators
    assert [peak.place.label for peak in peaks([[step]]) if peak.place] == ["GPU0", "GPU1", "GPU2", "GPU3"]


BY_OWNER = "host_numa_by_owner_to_device_memcpy_ce"


def test_memory_is_allocated_under_each_gpu_of_its_node_and_read_by_each_of_them() -> None:
    assert [path for (path,) in paths(BY_OWNER, [1, 2, 5, 6])] == [
        f"NUMA{node} (by GPU{owner}) -> GPU{reader}"
        for node, near in ((0, (1, 2)), (1, (5, 6)))
        for owner in near
        for reader in near
    ]


@pytest.mark.parametrize(("gpus", "nodes"), [([3], (0, 1)), ([3, 4], (0, 1)), ([4, 5], (0,))])
def test_where_no_node_has_two_gpus_no_owner_is_asked_for_and_the_plan_says_so(
    gpus: list[int], nodes: tuple[int, ...]
) -> None:
    plan = plan_of(BY_OWNER, gpus, nodes)
    assert (plan.tasks, plan.notes) == ((), (f"these cases need two GPUs on one NUMA node: {BY_OWNER}",))


def test_memory_that_was_allocated_under_different_gpus_is_never_one_buffer() -> None:
    tasks = list(plan_of(BY_OWNER, [1, 2]).tasks)
    sources = {buffer for task in tasks for buffer in buffers_of([task]) if buffer.end.memory is MemoryKind.HOST_NUMA}
    assert {buffer.end.allocated_by_label for buffer in sources} == {"GPU1", "GPU2"}
    assert len(sources) == 2
    # They lie on one NUMA node all the same.
    on_host = [peak for peak in peaks([tasks], keep=True) if peak.place is not None and peak.place.bus_id is None]
    assert [peak.bytes for peak in on_host] == [4 * 512 * MIB]


def test_a_pcie_card_beside_a_grace_s_gpu_owns_no_egm() -> None:
    station = shipped("dgx-station-gb300")
    plan = make_plan(station, station.gpus or (), (0,), select_cases([BY_OWNER]), SETTINGS)
    assert [gpu.host_numa_id for gpu in station.gpus or ()] == [0, 0]
    assert plan.tasks == ()
