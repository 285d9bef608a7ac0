"""Atomic additions that wait for their answers: none may be lost, and every answer is looked at."""

from __future__ import annotations

from collections import Counter

import pytest

from egmctl.bench.cases.one_process import FLAG_BYTES, LATENCY_CASES, LOADS
from egmctl.bench.suites import SUITES
from egmctl.gpu.chase import COUNTERS_BYTES
from egmctl.model.task import Engine
from tests.bench.conftest import MeasureLatencies
from tests.bench.latencies import shown
from tests.bench.plans import plan_of, with_attributes
from tests.doctor.machines import patched, shipped

H200 = shipped("hgx-h200x4")
ATOMICS = tuple(case for case in LATENCY_CASES if case.engine is Engine.ATOMIC_LATENCY)
NAMES = (
    "device_local_atomic_round_trip",
    "device_to_device_atomic_round_trip",
    "host_numa_to_device_atomic_round_trip",
    "host_to_device_atomic_round_trip",
)


def test_they_go_to_a_gpu_s_own_memory_to_peers_and_to_host_memory() -> None:
    assert tuple(case.name for case in ATOMICS) == NAMES
    tasks = list(plan_of(*NAMES, machine=H200, gpus=3, nodes=[0]).tasks)
    assert Counter(task.case for task in tasks) == dict(zip(NAMES, (3, 6, 3, 3), strict=True))
    assert {task.size_bytes for task in tasks} == {FLAG_BYTES} == {COUNTERS_BYTES}
    assert {task.chase.loads for task in tasks if task.chase} == {LOADS}


@pytest.mark.parametrize("suite", ["standard", "quick"])
def test_the_suites_that_are_to_be_fast_have_none(suite: str) -> None:
    assert not [case.name for case in ATOMICS if SUITES[suite].has(case)]


def test_a_peer_without_native_atomics_is_waived_with_the_attribute() -> None:
    machine = patched(H200, "pairs[*]", cuda_attributes={"NATIVE_ATOMIC_SUPPORTED": 0})
    plan = plan_of(*NAMES, machine=machine, gpus=2, nodes=[0])
    assert [planned.waiver for planned in plan.tasks if planned.case == NAMES[1]] == [
        f"GPU{one} has no native atomics on GPU{other}: CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED is 0"
        for one, other in ((0, 1), (1, 0))
    ]
    assert {planned.waiver for planned in plan.tasks if planned.case != NAMES[1]} == {None}


def test_the_additions_of_a_later_sample_go_on_from_those_of_the_first(latencies: MeasureLatencies) -> None:
    run = latencies(NAMES[0])
    launches = [call for call in run.node.calls("cuLaunchKernel") if call.arguments["kernel"] == "add_in_turn"]
    firsts = [int(call.arguments["argument1"], 16) for call in launches]
    each = sum(int(launches[0].arguments[f"argument{place}"], 16) for place in (2, 3))
    # Of two GPUs at once, and of one of them alone once more, which has one sample.
    assert Counter(firsts) == {0: 3, each: 2}


@pytest.mark.parametrize(
    ("case", "offset"), [(NAMES[0], 0), (NAMES[1], 8), (NAMES[2], 129), (NAMES[3], FLAG_BYTES - 1)]
)
def test_a_byte_that_is_damaged_is_found_wherever_it_is(latencies: MeasureLatencies, case: str, offset: int) -> None:
    run = latencies(case, faults=f"cuLaunchKernel@1=corrupt:{offset}")
    assert run.code == 1
    (bad,) = (m for m in run.measurements if m["status"] == "corrupt")
    assert bad["reason"] == (
        f"sample 0: additions were lost or answered wrongly; the first wrong counter is at offset {offset // 8 * 8}"
    )


def test_the_table_says_what_was_timed() -> None:
    text = shown(H200, 2, [0], "device_to_device_atomic")
    assert "latency GPU(row) <- GPU(column), atomic addition and its answer (ns)" in text
    assert "device_to_device_atomic_round_trip" in text


def test_additions_to_host_memory_that_are_not_native_are_told() -> None:
    machine = with_attributes(with_attributes(H200, HOST_NATIVE_ATOMIC_SUPPORTED=1), 0, HOST_NATIVE_ATOMIC_SUPPORTED=0)
    note = (
        "additions to host memory are atomic for the adding GPU alone: "
        "CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED is 0 of GPU0"
    )
    for names, told in ((NAMES, True), (NAMES[:2], False)):
        assert (note in plan_of(*names, machine=machine, gpus=2, nodes=[0]).notes) is told
