"""Atomic additions that wait for their answers: none may be lost, and every answer is looked at."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from egmctl.bench.cases.latency import CASES, FLAG_BYTES, LOADS
from egmctl.bench.plan.make import make_plan
from egmctl.bench.suites import SUITES
from egmctl.gpu.chase import COUNTERS_BYTES
from egmctl.model.task import Engine
from tests.bench.test_latency import SETTINGS, MeasureLatencies, measure, shown
from tests.doctor.machines import shipped

__all__ = ["measure"]

H200 = shipped("hgx-h200x4")
ATOMICS = tuple(case for case in CASES if case.engine is Engine.ATOMIC_LATENCY)
NAMES = (
    "device_local_atomic_round_trip",
    "device_to_device_atomic_round_trip",
    "host_numa_to_device_atomic_round_trip",
    "host_to_device_atomic_round_trip",
)


def test_they_go_to_a_gpu_s_own_memory_to_peers_and_to_host_memory() -> None:
    assert tuple(case.name for case in ATOMICS) == NAMES
    made = make_plan(H200, (H200.gpus or ())[:3], [0], ATOMICS, SETTINGS)
    assert Counter(planned.case for planned in made.tasks) == dict(zip(NAMES, (3, 6, 3, 3), strict=True))
    assert {planned.size_bytes for planned in made.tasks} == {FLAG_BYTES} == {COUNTERS_BYTES}
    assert {planned.chase.loads for planned in made.tasks if planned.chase} == {LOADS}


@pytest.mark.parametrize("suite", ["standard", "quick"])
def test_the_suites_that_are_to_be_fast_have_none(suite: str) -> None:
    assert not [case.name for case in ATOMICS if SUITES[suite].has(case)]


def test_a_peer_without_native_atomics_is_waived_with_the_attribute() -> None:
    pairs = tuple(replace(one, cuda_attributes={"NATIVE_ATOMIC_SUPPORTED": 0}) for one in H200.pairs or ())
    made = make_plan(replace(H200, pairs=pairs), (H200.gpus or ())[:2], [0], ATOMICS, SETTINGS)
    assert [planned.waiver for planned in made.tasks if planned.case == NAMES[1]] == [
        f"GPU{one} has no native atomics on GPU{other}: CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED is 0"
        for one, other in ((0, 1), (1, 0))
    ]
    assert {planned.waiver for planned in made.tasks if planned.case != NAMES[1]} == {None}


def test_every_kind_is_measured_and_verified_and_all_is_given_back(measure: MeasureLatencies) -> None:
    run = measure(*NAMES)
    assert run.code == 0, run.measurements
    assert {m["case"] for m in run.measurements} == set(NAMES)
    for m in run.measurements:
        assert (m["status"], m["quantity"], m["verification"]) == ("ok", "latency", "counters-every-sample")
        assert m["latency_ns"]["median"] > 0
        assert len(m["samples"]) == 2
    assert run.node.leaks() == []


def test_the_additions_of_a_later_sample_go_on_from_those_of_the_first(measure: MeasureLatencies) -> None:
    run = measure(NAMES[0])
    launches = [call for call in run.node.calls("cuLaunchKernel") if call.arguments["kernel"] == "add_in_turn"]
    firsts = [int(call.arguments["argument1"], 16) for call in launches]
    each = sum(int(launches[0].arguments[f"argument{place}"], 16) for place in (2, 3))
    # Of two GPUs at once, and of one of them alone once more, which has one sample.
    assert Counter(firsts) == {0: 3, each: 2}


@pytest.mark.parametrize(
    ("case", "offset"), [(NAMES[0], 0), (NAMES[1], 8), (NAMES[2], 129), (NAMES[3], FLAG_BYTES - 1)]
)
def test_a_byte_that_is_damaged_is_found_wherever_it_is(measure: MeasureLatencies, case: str, offset: int) -> None:
    run = measure(case, faults=f"cuLaunchKernel@1=corrupt:{offset}")
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
    gpus = tuple(
        replace(gpu, cuda=replace(gpu.cuda, attributes={**gpu.cuda.attributes, "HOST_NATIVE_ATOMIC_SUPPORTED": native}))
        for native, gpu in enumerate(H200.gpus or ())
        if gpu.cuda is not None
    )
    note = (
        "additions to host memory are atomic for the adding GPU alone: "
        "CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED is 0 of GPU0"
    )
    for chosen, told in ((ATOMICS, True), (ATOMICS[:2], False)):
        made = make_plan(replace(H200, gpus=gpus), gpus[:2], [0], chosen, SETTINGS)
        assert (note in made.notes) is told
