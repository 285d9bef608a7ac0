"""Two real processes send host memory by a real UCX; GPUs are fake ones, whose own memory UCX cannot reach."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from egmctl.bench.cases import ipc
from egmctl.bench.plan.make import make_plan
from egmctl.bench.plan.task import COPIES_LIMIT
from egmctl.bench.processes.group import Group
from egmctl.model.measurement import Measurement, MeasurementStatus
from egmctl.model.route import UcxRoute
from tests.bench.four import cases
from tests.conftest import RunEgmctl
from tests.fake.node import FakeNode
from tests.fake.plugin import MakeFakeNode
from tests.handles.ranks import ask
from tests.mpi.jobs import mpirun
from tests.rdma.ranks import SETTINGS, SPOILT_OFFSET, start

pytestmark = [pytest.mark.processes, pytest.mark.needs("ucxx")]

WITHOUT_CUDA = {
    # UCX's part for CUDA calls functions that the fake driver has not, and importing ucxx asks NVML for one.
    "UCX_MODULES": "^cuda",
    "UCX_CUDA_COPY_MAX_REG_RATIO": "0.1",
}
MEASURED = (MeasurementStatus.OK, MeasurementStatus.UNSTABLE)
"""How much the samples differ depends on what else this machine does."""

MIB = 1 << 20
STAGES = ["register", "pack", "unpack", "deregister"]

Measure = Callable[..., list[Measurement]]


@pytest.fixture(scope="module")
def node(fake_node: MakeFakeNode) -> FakeNode:
    return fake_node("gb200-tray")


@pytest.fixture(scope="module")
def measure(node: FakeNode) -> Iterator[Measure]:
    """Measure cases between two ranks, which are started once for each other environment."""
    plan = make_plan(node.machine, node.machine.gpus[:2], [0, 1], ipc.UCX_CASES, SETTINGS)  # type: ignore[index]

    @functools.cache
    def group(**variables: str) -> Group:
        with pytest.MonkeyPatch.context() as environment:
            for name, value in (node.environment() | WITHOUT_CUDA | variables).items():
                environment.delenv(name, raising=False)
                if value is not None:
                    environment.setenv(name, value)
            return ended.enter_context(start(2))

    with ExitStack() as ended:
        yield (
            lambda case, **variables: (
                ask(
                    group(**variables),
                    plan.ranks,
                    *(planned for planned in plan.tasks if planned.name == case),
                    timeout_s=100,
                ).measurements
            )
        )


@pytest.mark.long
@pytest.mark.parametrize("case", ["ucx_host_numa_to_host", "ucx_host_to_host_numa_round_trip"])
def test_messages_go_both_ways_through_shared_memory_and_arrive(measure: Measure, case: str) -> None:
    found = measure(case)
    assert [m.flows[0].path for m in found] == ["GPU0:NUMA0 -> GPU1:NUMA0", "GPU1:NUMA0 -> GPU0:NUMA0"]
    for m in found:
        assert m.status in MEASURED
        assert m.mismatch is None
        assert m.verification is not None
        assert m.ucx is not None
        assert (m.ucx.route, m.ucx.staging) == (UcxRoute.SHARED_MEMORY, None)
        assert {one.rank for one in m.ucx.protocols} == {0, 1}
        assert m.flows[0].route.symbol == "UCX, shared-memory"


@pytest.mark.long
def test_ucx_can_be_told_another_way_and_the_report_says_which(measure: Measure) -> None:
    found = measure("ucx_host_to_host 64 KiB", UCX_TLS="tcp")
    assert [m.ucx.route for m in found if m.ucx] == [UcxRoute.TCP] * 2
    for m in found:
        assert m.ucx is not None
        assert m.ucx.settings["UCX_TLS"] == "tcp"
        assert all(transport.startswith("tcp/") for transport in m.ucx.transports)


@pytest.mark.long
def test_a_sample_has_messages_for_its_time_however_short_they_are(measure: Measure) -> None:
    # How many depends on how busy this machine is; the plan has the same number for all that are short.
    measured = [measure("ucx_host_to_host 4 KiB")[0] for _ in range(3)]
    assert {m.size_bytes for m in measured} == {4096}
    assert {m.copies for m in measured} != {COPIES_LIMIT}
    assert all(sample.elapsed_ms > 0 for m in measured for sample in m.samples)


@pytest.mark.long
def test_a_byte_that_arrives_wrong_is_found_and_located(measure: Measure) -> None:
    (first, second) = measure("ucx_host_to_host 1 MiB", EGMCTL_TEST_SPOILT="1")
    assert (first.status, second.status in MEASURED) == (MeasurementStatus.CORRUPT, True)
    assert first.mismatch is not None
    assert first.mismatch.words == 1
    assert first.mismatch.first_offset_bytes % MIB == SPOILT_OFFSET // 8 * 8
    assert "1 of" in (first.reason or "")


@pytest.mark.long
def test_a_transport_that_reaches_nobody_is_an_error_with_the_call(measure: Measure) -> None:
    found = measure("ucx_host_to_host 64 KiB", UCX_TLS="self")
    assert {m.status for m in found} == {MeasurementStatus.FAILED}
    assert {m.last_call for m in found} == {"ucp_ep_create"}
    assert all(m.reason is not None and "unreachable" in m.reason.lower() for m in found)


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("case", ["ucx_put_host_to_host 1 MiB", "ucx_get_host_to_host 1 MiB"])
def test_a_byte_that_is_put_or_got_wrong_is_found_and_located(measure: Measure, case: str) -> None:
    (first, *_) = (m for m in measure(case, EGMCTL_TEST_SPOILT="1") if m.flows[0].destination.rank == 1)
    assert first.status is MeasurementStatus.CORRUPT
    assert first.mismatch is not None
    assert first.mismatch.first_offset_bytes % MIB == SPOILT_OFFSET // 8 * 8


@pytest.mark.long
@pytest.mark.parametrize("call", ["ucp_mem_map", "ucp_rkey_pack", "ucp_ep_rkey_unpack", "ucp_put_nbx"])
def test_each_call_that_fails_is_named_by_both(measure: Measure, call: str) -> None:
    found = measure("ucx_put_host_to_host 1 MiB", EGMCTL_TEST_UCX_FAILS=call)
    assert {m.status for m in found} == {MeasurementStatus.FAILED}
    assert {m.last_call for m in found} == {call}


@pytest.mark.long
def test_the_command_shows_ways_and_verdicts(egmctl: RunEgmctl, node: FakeNode, tmp_path: Path) -> None:
    options = [*("--gpus", "0-1", "--numa", "0", "--samples", "1", "--no-verdict"), *cases("ucx_host_to_host")]
    options += ["--sweep", "size", "--size", "4K"]
    environment = node.environment() | WITHOUT_CUDA | {"PYTHONPATH": os.environ.get("PYTHONPATH")}
    ended = egmctl("bench", "-v", *options, "-o", "-", "-o", tmp_path / "run.json", env=environment)
    assert ended.code == 0, ended.err
    assert "Memory moved by UCX (GB/s)" in ended.out
    assert "shared memory within the node (" in ended.out
    assert "doctor's check" not in ended.out, "between host memories there is nothing of GPUDirect to explain"
    document = json.loads((tmp_path / "run.json").read_text())
    assert [m["ucx"]["route"] for m in document["result"]["measurements"]] == ["shared-memory"] * 2


@pytest.mark.long
def test_two_mpi_processes_measure_each_other(node: FakeNode) -> None:
    environment = node.environment() | WITHOUT_CUDA | {"PYTHONPATH": os.environ.get("PYTHONPATH")}
    options = ["--suite", "rdma", "--case", "ucx_host_to_host_round_trip", "--samples", "1", "--no-verdict", "--json"]
    done = mpirun(2, ["-m", "egmctl", "bench", *options], env=environment)
    assert done.code == 0, done.err
    result = json.loads(done.out)["result"]
    assert [(m["status"] in MEASURED, m["ucx"]["route"]) for m in result["measurements"]] == [
        (True, "shared-memory")
    ] * 2
    assert [rank["number"] for rank in result["ranks"]] == [0, 1]
