"""HOST_NUMA memory of one rank to that of another, by fabric handle, on one fake node: every byte arrives.

What is planned is in ``test_fabric_plan.py``, two nodes under MPI in ``tests/mpi/test_fabric.py``.
"""

from __future__ import annotations

import pytest

from egmctl.model.codec import from_json
from egmctl.model.measurement import RunReport
from egmctl.report.kinds import Format, render
from tests.bench.test_run import Bench, bench
from tests.bench.test_run_failures import STAYS
from tests.fake.machines import nvl4, with_imex_channel
from tests.mpi.nodes import QUICK

__all__ = ["bench"]

OPTIONS = ("bench", *QUICK, "--gpus", "0,2")
"""Each GPU is on another node."""
CASES = tuple(f"fabric_host_numa_to_host_numa_{way}_{suffix}" for suffix in ("ce", "sm") for way in ("write", "read"))
NODE = with_imex_channel(nvl4())


def test_both_ways_by_copy_engine_and_kernel_each_through_the_gpu_of_who_issues_it(bench: Bench) -> None:
    run = bench(*OPTIONS, *(word for case in CASES for word in ("--case", case)), machine=NODE)
    assert run.code == 0, run.reasons()
    measurements = run.result["measurements"]
    assert [m["case"] for m in measurements] == [case for case in CASES for _ in range(2)]
    assert {m["status"] for m in measurements} <= {"ok", "unstable"}
    assert {m["verification"] for m in measurements} == {"gpu-every-sample"}
    # cuMemcpyAsync between host memory comes back when it is done: behind a closed gate it never would.
    assert {(m["engine"], m["gating"]) for m in measurements} == {("ce", "none"), ("sm-copy", "kernel")}
    assert {m["counted"] for m in measurements} == {"each byte copied, once"}
    (flow,) = measurements[0]["flows"]
    assert (flow["source"]["label"], flow["destination"]["label"]) == ("GPU0:NUMA0", "GPU2:NUMA1")
    assert (flow["source"]["handle"], flow["destination"]["handle"]) == (None, "fabric")
    assert (flow["initiator_label"], flow["route"]["symbol"]) == ("GPU0", "C2C>NV18>C2C")
    created = [(call.arguments["location"], call.arguments["handle"]) for call in run.node.calls("cuMemCreate")]
    assert set(created) == {(f"HOST_NUMA:{node}", handle) for node in (0, 1) for handle in ("NONE", "FABRIC")}
    assert run.node.leaks() == []
    text = str(render(from_json(RunReport, run.result), Format.TEXT, verbose=1))
    read = text[text.index("memcpy CE HOST_NUMA(row) <- HOST_NUMA(column) by the row's GPU bandwidth (GB/s)") :]
    assert ["GPU0:NUMA0", "GPU2:NUMA1"] in [line.split() for line in read.splitlines()[:9]]


@pytest.mark.parametrize(
    ("case", "fault"), [(CASES[0], "cuMemcpyAsync@4=corrupt:4096"), (CASES[3], "cuLaunchKernel@5=corrupt:4096")]
)
def test_a_byte_that_arrives_wrong_is_found_by_its_owner(bench: Bench, case: str, fault: str) -> None:
    run = bench(*OPTIONS, "--case", case, machine=NODE, faults=fault)
    assert run.code == 1
    wrong = [m for m in run.result["measurements"] if m["status"] == "corrupt"]
    assert wrong
    assert {m["mismatch"]["words"] for m in wrong} == {1}
    assert run.node.leaks() == []


@pytest.mark.long
@pytest.mark.parametrize(
    "call",
    [
        "cuMemCreate@1",
        "cuMemCreate@2",
        "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle",
        "cuMemAddressReserve@2",
        "cuMemMap@2",
        "cuMemSetAccess@2",
        "cuMemcpyAsync@2",
        "cuStreamSynchronize@5",
        "cuMemRelease@1",
    ],
)
def test_a_call_that_fails_is_named_with_its_rank_and_all_else_is_given_back(bench: Bench, call: str) -> None:
    run = bench(*OPTIONS, "--case", CASES[0], machine=NODE, faults=f"{call}=error:719")
    assert run.code == 4
    name = call.partition("@")[0]
    told = " ".join([*run.reasons(), *run.result["problems"]])
    assert f"{name} failed: CUDA_ERROR_LAUNCH_FAILED (719)" in told
    assert {line.split(": ")[1].split()[0] for line in run.node.leaks()} <= STAYS.get(name, set())
