"""HOST_NUMA memory of one rank to that of another, by fabric handle, on one fake node: every byte arrives.

What is planned is in ``test_fabric_plan.py``, two nodes under MPI in ``tests/mpi/test_fabric.py``.
"""

from __future__ import annotations

from egmctl.model.codec import from_json
from egmctl.model.measurement import RunReport
from egmctl.report.kinds import Format, render
from tests.bench.conftest import Bench
from tests.fake.machines import nvl4, with_imex_channel
from tests.mpi.nodes import QUICK

OPTIONS = ("bench", *QUICK, "--gpus", "0,2")
"""Each GPU is on another node."""
CASES = tuple(f"fabric_host_numa_to_host_numa_{way}_{suffix}" for suffix in ("ce", "sm") for way in ("write", "read"))
NODE = with_imex_channel(nvl4())


def test_both_ways_by_copy_engine_and_kernel_each_through_the_gpu_of_who_issues_it(bench: Bench) -> None:
    run = bench(*OPTIONS, *(word for case in CASES for word in ("--case", case)), machine=NODE)
    assert run.code == 0, run.reasons()
    measurements = run.measurements
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
