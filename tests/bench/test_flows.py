"""Which flows each pattern is made of, which of them ``--pair`` picks, and which buffers they work on."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.bench.buffers import Buffer, Lifetimes, assign_buffers, buffers_of
from egmctl.bench.peaks import peaks
from egmctl.bench.plan import Plan
from egmctl.bench.plan.flows import parse_pairs
from egmctl.bench.plan.make import sweep_sizes
from egmctl.bench.plan.task import copies_for
from egmctl.bench.suites import CASES
from egmctl.errors import UsageError
from egmctl.model.route import MemoryKind
from egmctl.units import MIB
from tests.bench.plans import plan_of, with_attributes
from tests.doctor.machines import patched, shipped

OWN_NODE = [gpu.host_numa_id for gpu in shipped("dgx-h100").gpus or ()]
COUNTS = st.lists(st.integers(0, 7), min_size=2, max_size=8, unique=True)
BY_OWNER = "host_numa_by_owner_to_device_memcpy_ce"


def paths(name: str, gpus: list[int], nodes: tuple[int, ...] = (0, 1)) -> list[list[str]]:
    """Return for each task of a case on a DGX H100 its flows' paths."""
    return [[flow.path for flow in task.flows] for task in plan_of(name, gpus=gpus, nodes=nodes).tasks]


@given(COUNTS)
def test_the_flows_of_each_task_of_a_pattern(gpus: list[int]) -> None:
    ring = zip(gpus, [*gpus[1:], gpus[0]], strict=True)
    own = [(f"GPU{gpu}", f"NUMA{OWN_NODE[gpu]}") for gpu in gpus]
    expected = {
        "device_to_device_bidirectional_memcpy_write_ce": [
            [f"GPU{a} -> GPU{b}", f"GPU{b} -> GPU{a}"] for a, b in combinations(gpus, 2)
        ],
        "ring_write_ce": [[f"GPU{a} -> GPU{b}" for a, b in ring]],
        "all_pairs_write_ce": [[f"GPU{a} -> GPU{b}" for a, b in permutations(gpus, 2)]],
        "one_to_all_write_ce": [[f"GPU{a} -> GPU{b}" for b in gpus if b != a] for a in gpus],
        "all_to_one_read_ce": [[f"GPU{b} -> GPU{a}" for b in gpus if b != a] for a in gpus],
        "all_to_host_one_node_memcpy_ce": [[f"GPU{gpu} -> NUMA{node}" for gpu in gpus] for node in (0, 1)],
        "all_to_host_memcpy_ce": [[f"{gpu} -> {node}" for gpu, node in own]],
        "host_to_all_bidirectional_memcpy_ce": [
            [path for gpu, node in own for path in (f"{node} -> {gpu}", f"{gpu} -> {node}")]
        ],
    }
    assert {name: paths(name, gpus) for name in expected} == expected


@given(COUNTS)
def test_a_bisection_sends_and_receives_on_every_gpu_once(gpus: list[int]) -> None:
    (flows,) = paths("bisect_write_ce", gpus)
    ends = [flow.split(" -> ") for flow in flows]
    assert sorted(a for a, _ in ends) == sorted(b for _, b in ends) == sorted(f"GPU{gpu}" for gpu in gpus)
    assert all(a != b for a, b in ends)


def test_a_gpu_whose_own_node_is_not_among_those_chosen_stays_out_and_one_that_is_not_known_is_the_only_one() -> None:
    silent = patched(with_attributes(shipped("dgx-h100"), HOST_NUMA_ID=-1), "gpus[*]", pci=None)
    (task,) = plan_of("host_to_all_memcpy_ce", machine=silent, gpus=2, nodes=(1,)).tasks
    assert [flow.path for flow in task.flows] == ["NUMA1 -> GPU0", "NUMA1 -> GPU1"]
    assert paths("host_to_all_memcpy_ce", [*range(8)], (1,)) == [
        [f"NUMA1 -> GPU{gpu}" for gpu in range(8) if OWN_NODE[gpu] == 1]
    ]


def test_both_directions_with_host_memory_are_issued_by_the_gpu() -> None:
    (task,) = plan_of("host_numa_to_device_bidirectional_memcpy_ce", gpus=1, nodes=(0,)).tasks
    assert [(flow.source.memory, flow.destination.memory, flow.initiator_label) for flow in task.flows] == [
        (MemoryKind.HOST_NUMA, MemoryKind.DEVICE, "GPU0"),
        (MemoryKind.DEVICE, MemoryKind.HOST_NUMA, "GPU0"),
    ]


def test_what_only_reads_ends_in_registers_of_who_reads() -> None:
    flows = [task.flows[0] for task in plan_of("host_numa_read_sm", gpus=2, nodes=(0,)).tasks]
    assert [(flow.path, flow.destination.memory, flow.initiator_label) for flow in flows] == [
        ("NUMA0 -> GPU0", "registers", "GPU0"),
        ("NUMA0 -> GPU1", "registers", "GPU1"),
    ]


def test_a_triad_is_about_a_node_s_own_memory() -> None:
    paths = [task.flows[0].path for task in plan_of("host_triad_cpu").tasks]
    assert paths == ["NUMA0 -> CPU0", "NUMA1 -> CPU1"]


def test_cpu_threads_of_each_node_work_with_the_memory_of_each() -> None:
    flows = [task.flows[0] for task in plan_of("host_numa_read_cpu").tasks]
    assert [(flow.path, flow.initiator, flow.initiator_label) for flow in flows] == [
        (f"NUMA{memory} -> CPU{cpu}", None, f"CPU{cpu}") for cpu in (0, 1) for memory in (0, 1)
    ]


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
    plan = plan_of(BY_OWNER, gpus=gpus, nodes=nodes)
    assert (len(plan.tasks), plan.notes) == (0, (f"these cases need two GPUs on one NUMA node: {BY_OWNER}",))


def test_a_pcie_card_beside_a_grace_s_gpu_owns_no_egm() -> None:
    assert [gpu.host_numa_id for gpu in shipped("dgx-station-gb300").gpus or ()] == [0, 0]
    assert plan_of(BY_OWNER, machine="dgx-station-gb300", nodes=(0,)).tasks == ()


def picked(text: str, suite: str = "full") -> Plan:
    """Return the plan of a suite on a GB200 for the pairs that ``--pair`` names."""
    pairs = parse_pairs(text, shipped("gb200-tray").gpus or (), (0, 1))
    return plan_of(machine="gb200-tray", suites=(suite,), pairs=pairs)


def test_between_gpus_only_in_the_direction_that_is_named() -> None:
    plan = picked("0:1,gpu3:GPU2")
    names = {task.name for task in plan.runnable}
    found = {name: sorted(task.path for task in plan.runnable if task.name == name) for name in names}
    one_way = ["GPU0 -> GPU1", "GPU3 -> GPU2"]
    for name in ("device_to_device_memcpy_write_ce", "device_to_device_memcpy_read_sm", "ipc_legacy_device_write_ce"):
        assert found[name] == one_way
    assert found["device_to_device_bidirectional_memcpy_write_ce"] == ["GPU0 <-> GPU1", "GPU2 <-> GPU3"]
    assert {task.pattern for task in plan.runnable}.isdisjoint({"ring", "all-pairs", "one-to-all", "bisect"})


def test_to_host_memory_and_within_a_gpu() -> None:
    plan = picked("0:NUMA1,2:2,NUMA0:3", "quick")
    assert {task.name: task.path for task in plan.runnable} == {
        "device_to_host_numa_memcpy_ce": "GPU0 -> NUMA1",
        "device_to_host_memcpy_ce": "GPU0 -> NUMA1",
        "host_numa_to_device_memcpy_ce": "NUMA0 -> GPU3",
        "host_to_device_memcpy_ce": "NUMA0 -> GPU3",
        "device_local_copy": "GPU2 -> GPU2",
    }
    assert any("these cases measure none of the pairs: device_to_device" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0", "expected two ends such as 0:1 or GPU0:NUMA1"),
        ("0:1:2", "expected two ends"),
        ("0:x", "'x' is neither a GPU (0, GPU0) nor a NUMA node (NUMA0)"),
        ("0:9", "GPU9 is not among those measured: GPU0, GPU1, GPU2, GPU3"),
        ("NUMA7:0", "NUMA node 7 is not among those measured: 0, 1"),
        ("", "expected two ends"),
        ("NUMA0:NUMA1", "none of the chosen cases measures a single path"),
    ],
)
def test_what_is_no_path_is_refused_with_what_is_one(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        picked(text, "p2p")
    assert sentence in str(caught.value)


@given(COUNTS, st.sampled_from([case.name for case in CASES]))
def test_no_two_flows_of_a_step_write_to_one_buffer_and_none_reads_what_another_writes(
    gpus: list[int], name: str
) -> None:
    plan = plan_of(name, gpus=gpus)
    for step in plan.steps:
        flows = [f for of_task in assign_buffers([plan.tasks[n] for n in step.tasks]) for f in of_task]
        written = [flow.destination for flow in flows if flow.destination is not None]
        assert len(written) == len(set(written))
        assert not set(written) & {flow.source for flow in flows}


def test_one_gpu_sends_the_same_buffer_to_all_others() -> None:
    (flows,) = assign_buffers(plan_of("one_to_all_write_ce", gpus=3).tasks[:1])
    assert [len({flow.source for flow in flows}), len({flow.destination for flow in flows})] == [1, 2]


def test_a_buffer_is_given_back_after_its_last_step_and_all_are_in_the_end() -> None:
    plan = plan_of("*_to_device_memcpy_ce", gpus=4)
    steps = [buffers_of([plan.tasks[n] for n in step.tasks]) for step in plan.steps]
    lifetimes, held, given_back = Lifetimes(steps), set[Buffer](), set[Buffer]()
    for buffers in steps:
        assert not {*buffers} & given_back
        held.update(buffers)
        given_back.update(lifetimes.finish(buffers))
    assert given_back == held


def test_memory_that_was_allocated_under_different_gpus_is_never_one_buffer() -> None:
    tasks = plan_of(BY_OWNER, gpus=[1, 2]).tasks
    sources = {buffer for task in tasks for buffer in buffers_of([task]) if buffer.end.memory is MemoryKind.HOST_NUMA}
    assert sorted(str(buffer.end.allocated_by_label) for buffer in sources) == ["GPU1", "GPU2"]
    # They lie on one NUMA node all the same.
    assert {peak.name: peak.bytes for peak in peaks([tasks], keep=True)}["NUMA0"] == 4 * 512 * MIB


@pytest.mark.parametrize(
    ("name", "copies"),
    [
        ("device_to_device_memcpy_write_ce", 16),
        ("one_to_all_write_ce", 3),
        ("all_pairs_write_ce", 3),
        ("ring_write_ce", 16),
    ],
)
def test_flows_that_share_a_link_share_the_sample(name: str, copies: int) -> None:
    assert plan_of(name).tasks[0].copies == copies


@given(st.integers(4096, 1 << 40), st.floats(1, 5000))
def test_a_sample_takes_20_ms_unless_the_queue_is_full(size: int, rate: float) -> None:
    copies = copies_for(size, rate)
    assert copies == 128 or copies * size / (rate * 1e9) >= 0.02
    assert copies == 1 or copies * size * 2 / 3 / (rate * 1e9) < 0.02 or copies == 2


@given(st.integers(4096, 1 << 40))
def test_a_sweep_begins_at_4_kib_and_ends_at_the_top(top: int) -> None:
    sizes = sweep_sizes(top)
    assert (sizes[0], sizes[-1]) == (4096, top)
    assert list(sizes) == sorted(set(sizes))
    with pytest.raises(UsageError, match="a sweep begins at 4096 bytes"):
        sweep_sizes(2048)
