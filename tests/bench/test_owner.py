"""Whose EGM memory is: the case from the command to the fake driver and back, where NVML counts what links carry."""

from __future__ import annotations

from typing import Any

from tests.bench.conftest import Bench, Run
from tests.fake.node import load

CASE = ("--case", "host_numa_by_owner_to_device_memcpy_ce")
TELLING = ("bench", "--size", "16M", "--samples", "2", "--copies", "4", *CASE)
"""So many bytes that counters prove something."""
LITTLE = ("bench", "--size", "1M", "--samples", "2", "--copies", "2", *CASE)
COUNTERS = {"EGMCTL_FAKE_COUNTERS": "1"}


def owners(found: Run) -> dict[tuple[int, str], str | None]:
    """Return for each node and GPU under which memory was allocated its owner, or why there is none."""
    told = found.result["verdict"]["owners"]
    return {(one["numa_node"], one["allocated_by_label"]): one["owner_label"] or one["unknown"] for one in told}


def links(found: Run) -> dict[str, tuple[str, str]]:
    """Return for each path the link that carried the bytes, and how that is known."""
    routes: dict[str, Any] = {
        f"{flow['source']['label']} -> {flow['destination']['label']}": m["evidence"]["route"]
        for m in found.measurements
        for flow in m["flows"]
    }
    return {path: (route["link"], route["verdict"]) for path, route in routes.items()}


def test_each_gpu_of_a_cpu_owns_what_was_allocated_under_it_and_serves_the_other_over_nvlink(bench: Bench) -> None:
    found = bench(*TELLING, "--numa", "0", "--gpus", "0-1", env=COUNTERS)
    assert (found.code, found.statuses()) == (0, ["ok"] * 4)
    assert {m["verification"] for m in found.measurements} == {"gpu-every-sample"}
    assert links(found) == {
        "NUMA0 (by GPU0) -> GPU0": ("c2c", "by-exclusion"),
        "NUMA0 (by GPU0) -> GPU1": ("nvlink", "proven"),
        "NUMA0 (by GPU1) -> GPU0": ("nvlink", "proven"),
        "NUMA0 (by GPU1) -> GPU1": ("c2c", "by-exclusion"),
    }
    assert owners(found) == {(0, "GPU0"): "GPU0", (0, "GPU1"): "GPU1"}
    moved = 2 * 4 * (16 << 20)
    sent = {
        (flow["source"]["allocated_by_label"], gpu["label"]): gpu["sent_bytes"]["nvlink"]
        for m in found.measurements
        for flow in m["flows"]
        for gpu in m["evidence"]["gpus"]
        if flow["source"]["allocated_by_label"] != flow["initiator_label"]
    }
    assert sent == {("GPU0", "GPU0"): moved, ("GPU0", "GPU1"): 0, ("GPU1", "GPU1"): moved, ("GPU1", "GPU0"): 0}
    assert found.node.leaks() == []


def test_memory_is_made_while_the_gpus_own_context_is_current(bench: Bench) -> None:
    found = bench(*LITTLE, "--numa", "0-1", "--gpus", "0-3")
    assert (found.code, found.statuses()) == (0, ["ok"] * 8)
    current, made = "", []
    for call in found.worker_calls():
        if call.name == "cuCtxSetCurrent":
            current = call.arguments["device"]
        elif call.name == "cuMemCreate":
            made.append((call.arguments["location"], current))
    assert made == [("HOST_NUMA:0", "0"), ("HOST_NUMA:0", "1"), ("HOST_NUMA:1", "2"), ("HOST_NUMA:1", "3")]
    assert set(owners(found).values()) == {"no-counters"}
    assert found.node.leaks() == []


def test_a_process_that_works_one_gpu_shares_egm_memory_of_that_gpu(bench: Bench) -> None:
    cases = ("--case", "ipc_posix_fd_host_numa_read_ce", "--case", "ipc_posix_fd_host_numa_write_ce")
    found = bench(*TELLING[:-2], *cases, "--numa", "0", "--gpus", "0-1", env=COUNTERS)
    assert found.code == 0, found.reasons()
    shared = [m for m in found.measurements if m["case"].startswith("ipc")]
    assert {m["evidence"]["route"]["link"] for m in shared} == {"nvlink"}
    told = {(one["case"], one["allocated_by_label"]): one["owner_label"] for one in found.result["verdict"]["owners"]}
    assert told == {(case, gpu): gpu for case in cases[1::2] for gpu in ("GPU0", "GPU1")}


def test_without_egm_the_case_runs_and_says_that_no_gpu_owns_the_memory(bench: Bench) -> None:
    machine = load("hgx-h200x4")
    found = bench(*TELLING, "--numa", "0", "--gpus", "0-1", machine=machine, env=COUNTERS)
    assert (found.code, found.statuses()) == (0, ["ok"] * 4)
    assert set(links(found).values()) == {("pcie", "proven")}
    assert owners(found) == {(0, "GPU0"): "not-egm", (0, "GPU1"): "not-egm"}
