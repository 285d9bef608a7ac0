"""``device_access_life_cycle``: what peer access costs each allocation, beside cuMemSetAccess for chosen GPUs."""

from __future__ import annotations

import pytest

from egmctl.bench.engines.life_cycle import ACCESS_STAGES
from egmctl.model.measurement import Status
from tests.bench.plans import plan_of
from tests.bench.test_ipc import RunIpc, run

__all__ = ["run"]

CASE = "device_access_life_cycle"


def test_peer_access_is_on_for_the_stages_that_say_so_and_the_bytes_arrive(run: RunIpc) -> None:
    ended = run(CASE, "device_to_device_memcpy_read_sm")
    lives, reads = ended.of(CASE), ended.of("device_to_device_memcpy_read_sm")
    assert {m.status for m in lives} == {Status.OK}, lives[0].reason
    assert {m.concurrent for m in lives} == {1}
    for m in lives:
        assert [stage.name for stage in m.stages] == list(ACCESS_STAGES)
    # Enabled again for what follows.
    assert reads
    assert all(m.measured for m in reads), reads[0].reason
    assert ended.node.leaks() == []
    accesses = {call.arguments["access"].count("RW") for call in ended.node.calls("cuMemSetAccess")}
    assert accesses == {1, 2}


@pytest.mark.parametrize(
    ("faults", "status"),
    [("cuLaunchKernel@3=corrupt:8", Status.CORRUPT), ("cuCtxEnablePeerAccess=error:217", Status.FAILED)],
)
def test_a_life_that_goes_wrong_is_no_cost(run: RunIpc, faults: str, status: Status) -> None:
    ended = run(CASE, faults=faults)
    assert status in {m.status for m in ended.of(CASE)}
    assert ended.node.leaks() == []


def test_each_pair_runs_alone_and_one_gpu_is_not_enough() -> None:
    assert [len(step.tasks) for step in plan_of(CASE, gpus=4).steps] == [1] * 12
    plan = plan_of(CASE, gpus=1)
    assert not plan.tasks
    assert plan.notes == (f"these cases need two GPUs: {CASE}",)
