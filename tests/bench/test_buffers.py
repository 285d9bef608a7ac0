"""Which part of a buffer a sample works on: small sizes rotate, and nothing is moved twice that need not be."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.bench.buffers import (
    ROTATED_BELOW_BYTES,
    ROTATED_OVER_BYTES,
    Buffer,
    FlowBuffers,
    Lifetimes,
    assign_buffers,
    buffers_of,
    span_bytes,
    window,
)
from egmctl.bench.peaks import MemoryPlace, Peak, peaks, places
from egmctl.model.machine import Machine
from egmctl.units import MIB
from tests.bench import plans
from tests.bench.plans import plan_of, with_attributes
from tests.conftest import RunEgmctl
from tests.doctor.machines import patched, shipped
from tests.fake.plugin import MakeFakeNode

SIZES = st.integers(1, 1 << 23).map(lambda vectors: 16 * vectors)


@given(size=SIZES, passes=st.integers(1, 128), sample=st.integers(0, 1000))
def test_a_window_lies_in_the_buffer_and_holds_no_more_than_its_passes_move(
    size: int, passes: int, sample: int
) -> None:
    part = window(size, passes, sample)
    assert part.slot_bytes == size
    assert 1 <= part.slots <= passes
    assert part.offset_bytes % size == 0
    assert 0 <= part.offset_bytes <= part.offset_bytes + part.size_bytes <= span_bytes(size)


@given(size=SIZES, passes=st.integers(1, 128), sample=st.integers(0, 1000))
def test_small_sizes_come_to_the_same_bytes_only_after_many_others(size: int, passes: int, sample: int) -> None:
    if size >= ROTATED_BELOW_BYTES:
        assert span_bytes(size) == size == window(size, passes, sample).size_bytes
        return
    assert ROTATED_OVER_BYTES <= span_bytes(size) < ROTATED_OVER_BYTES + size
    windows = span_bytes(size) // window(size, passes, sample).size_bytes
    assert windows * window(size, passes, sample).size_bytes > ROTATED_OVER_BYTES // 2
    few = [window(size, passes, sample + number).offset_bytes for number in range(min(windows, 100))]
    assert len(set(few)) == len(few)


@given(size=SIZES, rotated_mib=st.integers(520, 2048), passes=st.integers(1, 128))
def test_buffers_that_a_larger_cache_could_serve_are_as_large_as_their_task_says(
    size: int, rotated_mib: int, passes: int
) -> None:
    rotated = rotated_mib * MIB
    span = span_bytes(size, rotated)
    assert rotated <= span < rotated + size if size < rotated else span == size
    part = window(size, passes, 3, rotated)
    assert part.offset_bytes + part.size_bytes <= span


@pytest.mark.parametrize(
    ("machine", "rotated_mib"),
    [
        (shipped("hgx-h200x4"), 0),
        (shipped("dgx-h100"), 0),
        (shipped("gh200x4"), 0),
        (patched(shipped("hgx-b200"), "gpus[*].cuda", attributes={"L2_CACHE_SIZE": 132644864}), 1012),
        (shipped("hgx-b200"), 1024),
    ],
)
def test_what_an_l2_larger_than_hoppers_could_serve_rotates_over_eight_times_it(
    machine: Machine, rotated_mib: int
) -> None:
    names = {
        "device_local_copy": rotated_mib,
        "device_local_read_sm": rotated_mib,
        "device_to_device_memcpy_read_sm": rotated_mib,
        "device_to_device_memcpy_read_ce": 0,
        "device_to_device_memcpy_write_sm": 0,
        "host_to_device_memcpy_sm": 0,
    }
    plan = plan_of(*names, machine=machine, gpus=2, nodes=[0], copies=2)
    assert {task.case: task.rotated_bytes // MIB for task in plan.tasks} == names
    (local,) = (
        task for task in plan.tasks if task.case == "device_local_copy" and task.flows[0].initiator_label == "GPU0"
    )
    assert {buffer.size_bytes for buffer in buffers_of([local])} == {(1024 if rotated_mib else 512) * MIB}


def held(machine_name: str, *cases: str) -> tuple[Peak, ...]:
    plan = plan_of(*cases, machine=machine_name, gpus=1, nodes=[0], size_bytes=64 * MIB, copies=1)
    steps = [[plan.tasks[number] for number in step.tasks] for step in plan.steps]
    assert steps
    return peaks(steps, keep=True)


def test_a_gpu_s_memory_is_one_place_also_where_the_kernel_has_it_as_a_numa_node() -> None:
    alone = {name: held("gh200", name) for name in ("device_local_copy", "gpu_numa_read_cpu")}
    assert {peak.place is not None and peak.place.bus_id is not None for one in alone.values() for peak in one} == {
        True
    }
    (both,) = held("gh200", *alone)
    assert both.bytes == sum(peak.bytes for one in alone.values() for peak in one)


def test_host_memory_of_no_known_node_is_the_host_s() -> None:
    (task,) = (
        one
        for one in plan_of(
            "host_to_device_memcpy_ce", machine="gh200", gpus=1, nodes=[0], size_bytes=64 * MIB, copies=1
        ).tasks
    )
    (flow,) = task.flows
    unknown = replace(task, flows=(replace(flow, source=replace(flow.source, numa_node=None)),))
    assert [peak.bytes for peak in peaks([[unknown]]) if peak.name == "host"] == [task.size_bytes]


@pytest.mark.parametrize("keep", [True, False])
def test_the_peak_of_a_place_is_the_most_that_its_assigned_buffers_hold_at_once(keep: bool) -> None:
    names = ("one_to_all_write_ce", "all_to_one_write_ce", "ring_write_ce", "all_to_host_numa_one_node_memcpy_ce")
    plan = plans.plan_of(*names, "device_to_device_latency_sm", machine="hgx-h200x4", gpus=4)
    steps = [[plan.tasks[number] for number in step.tasks] for step in plan.steps]
    lifetimes = Lifetimes(map(buffers_of, steps))
    held: set[Buffer] = set()
    most: Counter[MemoryPlace] = Counter()
    for buffers in map(buffers_of, steps):
        held |= {*buffers}
        now: Counter[MemoryPlace] = Counter()
        for buffer in held:
            now.update(dict.fromkeys(places(buffer.end, None), buffer.size_bytes))
        most |= now
        held -= set() if keep else {*lifetimes.finish(buffers)}
    assert {peak.key: peak.bytes for peak in peaks(steps, keep=keep)} == most


def test_copies_of_a_run_move_through_such_a_buffer_in_turn(fake_node: MakeFakeNode, egmctl: RunEgmctl) -> None:
    node = fake_node(with_attributes(shipped("hgx-b200"), L2_CACHE_SIZE=132644864))
    options = ("--case", "device_local_copy", "--gpus", "0", "--size", "64M", "--copies", "2", "--samples", "2")
    done = egmctl("bench", *options, env=node.environment())
    assert "1 measurement: 1 ok" in done.out
    copies = [call.arguments for call in node.calls("cuMemcpyAsync") if call.arguments["size"] == str(64 * MIB)]
    assert len({copy["to"] for copy in copies}) == 4, "two a sample, and the second sample moves on"
    assert not node.leaks()


def test_flows_at_once_have_buffers_of_their_own_and_one_to_all_sends_one_source() -> None:
    def of(case: str) -> list[FlowBuffers]:
        task = next(
            task for task in plans.plan_of(case, machine="hgx-h200x4", gpus=4, nodes=(0,)).tasks if len(task.flows) > 1
        )
        return list(assign_buffers([task])[0])

    there = [buffer for flow in of("all_to_one_write_ce") for buffer in flow.there]
    assert len(set(there)) == len(there)
    flows = of("one_to_all_write_ce")
    assert len({flow.source for flow in flows}) == 1
    assert len({flow.destination for flow in flows}) == len(flows)


def test_a_buffer_is_finished_with_the_last_step_that_uses_it() -> None:
    (first, *_), (*_, second) = (
        buffers_of([task])
        for task in plans.plan_of("device_to_device_memcpy_write_ce", machine="hgx-h200x4", gpus=4, nodes=(0,)).tasks[
            :2
        ]
    )
    lifetimes = Lifetimes([[first], [first, second]])
    assert lifetimes.finish([first]) == (), "a later step uses it"
    assert lifetimes.finish([first, second]) == (first, second)
