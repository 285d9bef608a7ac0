"""Host memory that a step no longer needs: the next step uses it if it can, and else it is freed first."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from egmctl.bench.buffers import Buffer
from egmctl.bench.case import End
from egmctl.bench.processes.context import WorkerContext
from egmctl.model.route import MemoryKind
from egmctl.model.task import Endpoint
from tests.bench.conftest import FEW, Bench, Run
from tests.bench.four import cases

GPU = ("bench", "--numa", "1", "--gpus", "0", *FEW)
RESULTS_BYTES = 4096
"""The most bytes of pinned memory that kernels use for flags and results."""


def allocations(run: Run) -> list[str]:
    """Return the calls that allocate and free host memory of buffers, in order."""
    names = {"cuMemCreate", "cuMemHostAlloc", "cuMemFreeHost", "cuMemRelease", "cuMemHostRegister"}
    calls = [call for call in run.worker_calls() if call.name in names]
    flags = [call for call in calls if int(call.arguments.get("size", RESULTS_BYTES + 1)) <= RESULTS_BYTES]
    # Flags and results are allocated first and freed last.
    return [call.name for call in calls if call not in flags][: len(calls) - 2 * len(flags)]


def costs(run: Run) -> list[list[dict[str, Any]]]:
    return [
        [buffer for buffer in measurement["costs"] if buffer["label"].startswith("NUMA")]
        for measurement in run.measurements
    ]


@pytest.fixture(scope="module")
def back_and_forth(bench: Bench) -> Run:
    """Copy from pinned memory, then to it, then to registered memory."""
    return bench(*GPU, *cases("host_to_device_memcpy_ce", "device_to_host_memcpy_ce", "device_to_registered_memcpy_ce"))


def test_a_destination_takes_over_the_memory_of_a_source_and_other_memory_frees_it(back_and_forth: Run) -> None:
    assert back_and_forth.statuses() == ["ok"] * 3
    assert allocations(back_and_forth) == ["cuMemHostAlloc", "cuMemFreeHost", "cuMemHostRegister"]
    assert back_and_forth.node.leaks() == []


def test_its_cost_is_that_of_its_allocation_and_its_place_is_known(back_and_forth: Run) -> None:
    source, destination, registered = costs(back_and_forth)
    assert source == destination
    assert source[0]["allocate_ms"] != registered[0]["allocate_ms"]
    placements = [measurement["placements"] for measurement in back_and_forth.measurements]
    assert placements[0] == placements[1] != []


def test_what_was_left_in_it_is_no_proof_of_a_copy() -> None:
    """The new buffer has a pattern of its own, which nothing has written yet."""
    memory: Any = SimpleNamespace(size_bytes=1 << 20, close=lambda: None)
    worker = object.__new__(WorkerContext)
    worker._buffers, worker._spares, worker._before, worker._placements = {}, {}, {}, {}
    worker._new_seeds = count(1)
    end = Endpoint(label="NUMA1", memory=MemoryKind.PINNED, numa_node=1)
    source, destination = (Buffer(end=end, role=role, index=0, size_bytes=1 << 20) for role in End)
    worker.adopt(source, memory, worker.new_seed())
    worker.held(source).filled_bytes = 1 << 20
    assert worker.release_after_step([source]) is None
    taken_over = worker.held(destination)
    assert taken_over.memory is memory
    assert (taken_over.seed, taken_over.filled_bytes, taken_over.is_compared_by_cpu) == (2, 0, False)


def test_each_buffer_gets_its_own_memory_back_where_both_fit() -> None:
    """Else what is known of one buffer's place would go with the other's."""
    worker = object.__new__(WorkerContext)
    worker._buffers, worker._spares, worker._before, worker._placements = {}, {}, {}, {}
    worker._new_seeds = count(1)
    end = Endpoint(label="NUMA1", memory=MemoryKind.PINNED, numa_node=1)
    both = [Buffer(end=end, role=role, index=0, size_bytes=1 << 20) for role in End]
    memories: list[Any] = [SimpleNamespace(size_bytes=1 << 20, close=lambda: None) for _ in both]
    for buffer, memory in zip(both, memories, strict=True):
        worker.adopt(buffer, memory, worker.new_seed())
    worker.release_after_step(both)
    assert [worker.held(buffer).memory for buffer in both[::-1]] == memories[::-1]


def test_memory_that_the_next_step_does_not_use_is_freed_after_it(bench: Bench) -> None:
    run = bench(*GPU, *cases("device_to_host_memcpy_ce", "device_local_copy", "device_local_latency_uncached"))
    assert run.statuses() == ["ok"] * 3
    calls = [call.arguments.get("kernel") or call.name for call in run.worker_calls()]
    last_check = max(number for number, name in enumerate(calls) if name == "verify_pattern")
    assert last_check < calls.index("cuMemFreeHost") < calls.index("chase")
    assert run.node.leaks() == []
