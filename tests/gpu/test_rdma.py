"""Messages by UCX between two GPUs of one node: which way they took, and that they arrived."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from typing import Any

import pytest

from egmctl.facts.collect import collect
from tests.conftest import RunEgmctl

pytestmark = pytest.mark.gpu

UCX = find_spec("ucxx") is not None


@pytest.fixture
def measured(egmctl: RunEgmctl) -> Any:
    """Run cases between the first two GPUs under variables; return the exit code and the measurements."""
    if len(collect(("gpus",)).gpus or ()) < 2:
        pytest.skip("messages go between two GPUs")

    def run(*cases: str, **variables: str) -> tuple[int, list[dict[str, Any]]]:
        options = [word for case in cases for word in ("--case", case)]
        ended = egmctl(
            *("bench", "--gpus", "0-1", *options, "--size", "16M", "--samples", "2", "--no-verdict", "--json"),
            # The test's own path: ucxx may lie in a folder of its own.
            env={**variables, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
            timeout_s=100,
        )
        return ended.code, json.loads(ended.out)["result"]["measurements"]

    return run


@pytest.mark.skipif(UCX, reason="ucxx is installed")
def test_without_ucxx_the_measurement_is_waived(measured: Any) -> None:
    code, results = measured("ucx_device_to_device")
    assert (code, {m["status"] for m in results}) == (3, {"waived"})


@pytest.mark.skipif(not UCX, reason="ucxx is not installed")
def test_ucx_takes_cuda_ipc_between_gpus_and_every_kind_of_memory_arrives(measured: Any) -> None:
    code, results = measured(
        *(f"ucx_{source}_to_host_numa" for source in ("device", "host_numa", "host")),
        *("ucx_device_to_device", "ucx_host_numa_to_device"),
    )
    assert code == 0, results
    assert {m["status"] for m in results} <= {"ok", "unstable"}
    by_case = {m["case"]: m["ucx"] for m in results if m["point"]["size"] is None}
    assert (by_case["ucx_device_to_device"]["route"], by_case["ucx_device_to_device"]["staging"]) == ("cuda-ipc", None)
    assert "no GPUDirect RDMA" in by_case["ucx_device_to_device"]["verdict"]


@pytest.mark.skipif(not UCX, reason="ucxx is not installed")
def test_forced_to_tcp_messages_are_staged_through_host_memory(measured: Any) -> None:
    code, results = measured("ucx_device_to_device", UCX_TLS="tcp,cuda_copy")
    assert code == 0, results
    assert {(m["ucx"]["route"], m["ucx"]["staging"]) for m in results} == {("tcp", "host")}


@pytest.mark.skipif(not UCX, reason="ucxx is not installed")
@pytest.mark.parametrize(("memory", "route"), [("device", "cuda-ipc"), ("host", "shared-memory")])
def test_what_is_put_and_got_one_sided_is_there_and_what_registering_costs_is_told(
    measured: Any, memory: str, route: str
) -> None:
    names = [f"ucx_{word}_{memory}_to_{memory}" for word in ("put", "get")]
    code, results = measured(*names)
    assert code == 0, [m["reason"] for m in results]
    assert {m["case"] for m in results} == set(names)
    for m in results:
        assert (m["status"] in ("ok", "unstable"), m["mismatch"]) == (True, None), m["reason"]
        assert [stage["name"] for stage in m["stages"]] == ["register", "pack", "unpack", "deregister"]
        assert m["ucx"]["route"] == route, m["ucx"]


@pytest.mark.skipif(not UCX, reason="ucxx is not installed")
def test_host_numa_memory_one_sided_is_measured_or_refused_by_name_and_ends_no_process(measured: Any) -> None:
    _, results = measured("ucx_put_host_numa_to_host_numa", "ucx_get_host_numa_to_host_numa")
    assert {m["status"] for m in results} <= {"ok", "unstable", "failed"}, [m["reason"] for m in results]
