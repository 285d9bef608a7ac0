"""Two real processes put to and get from each other's host memory by a real UCX; a plan for them without one."""

from __future__ import annotations

import pytest

from egmctl.bench.cases import rdma
from egmctl.bench.plan.make import make_plan
from egmctl.bench.suites import SUITES
from egmctl.model.measurement import Status
from egmctl.model.route import UcxRoute
from egmctl.model.task import Engine
from tests.doctor.machines import shipped
from tests.rdma.ranks import SETTINGS, SPOILT_OFFSET
from tests.rdma.test_messages import MEASURED, MIB, Measure, measure, node

__all__ = ["measure", "node"]

GB200 = shipped("gb200-tray")
ONE_SIDED = tuple(case for case in rdma.CASES if case.engine in (Engine.UCX_PUT, Engine.UCX_GET))
REAL_UCX = pytest.mark.needs("ucxx")
STAGES = ["register", "pack", "unpack", "deregister"]


def test_each_kind_of_memory_is_put_and_got_in_each_size() -> None:
    assert len(ONE_SIDED) == 2 * 3
    assert all(case.points == rdma.POINTS for case in ONE_SIDED)
    assert not [case.name for case in ONE_SIDED if SUITES["standard"].has(case) or SUITES["quick"].has(case)]


def test_who_puts_has_the_source_and_who_gets_the_destination() -> None:
    cases = [case for case in ONE_SIDED if case.name in ("ucx_put_host_to_host", "ucx_get_host_to_host")]
    made = make_plan(GB200, (GB200.gpus or ())[:2], [0], cases, SETTINGS)
    flows = [(planned.engine, planned.flows[0]) for planned in made.tasks]
    assert len(flows) == 4 * len(rdma.POINTS)
    for engine, flow in flows:
        own, other = (flow.source, flow.destination) if engine is Engine.UCX_PUT else (flow.destination, flow.source)
        assert own.rank == flow.initiator_rank
        assert other.rank != flow.initiator_rank


@REAL_UCX
@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize(
    "case", ["ucx_put_host_to_host 1 MiB", "ucx_get_host_to_host 1 MiB", "ucx_put_host_to_host 4 KiB"]
)
def test_every_byte_is_where_it_is_to_be_and_registering_is_timed(measure: Measure, case: str) -> None:
    found = measure(case)
    assert len(found) == 2
    for m in found:
        assert (m.status in MEASURED, m.mismatch) == (True, None), m.reason
        assert m.bandwidth_gb_s is not None
        assert m.bandwidth_gb_s.median > 0
        assert [stage.name for stage in m.stages] == STAGES
        assert all(stage.ms.min >= 0 for stage in m.stages)
        assert m.ucx is not None
        assert m.ucx.route is UcxRoute.SHARED_MEMORY
        assert any(word in one.operation for one in m.ucx.protocols for word in ("put", "get")), m.ucx.protocols


@REAL_UCX
@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("case", ["ucx_put_host_to_host 1 MiB", "ucx_get_host_to_host 1 MiB"])
def test_a_byte_that_is_wrong_is_found_and_located(measure: Measure, case: str) -> None:
    (first, *_) = (m for m in measure(case, EGMCTL_TEST_SPOILT="1") if m.flows[0].destination.rank == 1)
    assert first.status is Status.CORRUPT
    assert first.mismatch is not None
    assert first.mismatch.first_offset_bytes % MIB == SPOILT_OFFSET // 8 * 8


@REAL_UCX
@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("call", ["ucp_mem_map", "ucp_rkey_pack", "ucp_ep_rkey_unpack", "ucp_put_nbx"])
def test_each_call_that_fails_is_named_by_both(measure: Measure, call: str) -> None:
    found = measure("ucx_put_host_to_host 1 MiB", EGMCTL_TEST_UCX_FAILS=call)
    assert {m.status for m in found} == {Status.FAILED}
    assert {m.last_call for m in found} == {call}
