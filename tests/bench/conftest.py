"""What tests of the bench on fake nodes use: ``bench(...)`` runs the command and returns what it found and called."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from egmctl.model.machine import Machine
from tests import forked
from tests.bench.four import OPTIONS, cases
from tests.bench.ipc import RunIpc, runner
from tests.conftest import RunEgmctl
from tests.facts.sysroot import Tree
from tests.fake.calls import Call
from tests.fake.node import FakeNode
from tests.fake.plugin import MakeFakeNode
from tests.schemas import validate

FEW = ("--size", "1M", "--samples", "2", "--copies", "2")
SMALL = (*FEW, *OPTIONS)
TWO_GPUS = ("bench", "--numa", "1", "--gpus", "0-1", *SMALL)

WORKER_CALLS = (
    *("cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetByPCIBusId"),
    *("cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuCtxEnablePeerAccess"),
    *("cuStreamCreate", "cuEventCreate", "cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute"),
    *("cuMemHostAlloc", "cuMemAlloc", "cuMemGetAllocationGranularity", "cuMemCreate", "cuMemAddressReserve"),
    *("cuMemMap", "cuMemSetAccess", "cuLaunchKernel", "cuMemsetD32Async", "cuMemcpyAsync", "cuEventRecord"),
    *("cuEventElapsedTime", "cuStreamSynchronize", "cuMemUnmap", "cuMemAddressFree", "cuMemRelease", "cuMemFree"),
    *("cuMemFreeHost", "cuModuleUnload", "cuEventDestroy", "cuStreamDestroy", "cuDevicePrimaryCtxRelease"),
)
"""Every driver call that the worker makes."""
SHARED_WITH_FACTS = {"cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetAttribute"}
"""The facts' child makes these too, before: a fault in it is another test's."""
STAYS = {
    "cuMemUnmap": {"mapping", "reserved"},
    "cuMemAddressFree": {"reserved"},
    "cuMemRelease": {"allocation"},
    "cuMemFree": {"memory"},
    "cuMemFreeAsync": {"memory", "pool"},
    "cuMemFreeHost": {"pinned"},
    "cuMemHostUnregister": {"registered"},
    "cuMemPoolDestroy": {"pool"},
    "cuModuleUnload": {"module"},
    "cuEventDestroy": {"event"},
    "cuStreamDestroy": {"stream"},
    "cuDevicePrimaryCtxRelease": {"primary"},
}
"""What cannot be given back where the call that would do it fails, by the first word of the fake's account."""


class Run(NamedTuple):
    """How a bench on a fake node ended."""

    code: int
    result: dict[str, Any]
    node: FakeNode

    @property
    def measurements(self) -> list[dict[str, Any]]:
        """The measurements, in the plan's order."""
        measurements: list[dict[str, Any]] = self.result["measurements"]
        return measurements

    def said(self) -> str:
        """Return all reasons and problems."""
        return " ".join([*self.reasons(), *self.result["problems"]])

    def corrupt(self) -> list[dict[str, Any]]:
        """Return the measurements whose data was wrong."""
        return [measurement for measurement in self.measurements if measurement["status"] == "corrupt"]

    def left(self) -> set[str]:
        """Return what was not given back, by the first word of the fake's account."""
        return {line.split(": ")[1].split()[0] for line in self.node.leaks()}

    def statuses(self) -> list[str]:
        """Return the status of every measurement."""
        return [measurement["status"] for measurement in self.measurements]

    def reasons(self) -> set[str]:
        """Return the reasons of the measurements that have one."""
        return {measurement["reason"] for measurement in self.measurements if measurement["reason"]}

    def worker_calls(self) -> list[Call]:
        """Return the CUDA calls of the processes that took a context."""
        calls = [call for call in self.node.calls() if call.name.startswith("cu")]
        workers = {call.pid for call in calls if call.name == "cuDevicePrimaryCtxRetain"}
        return [call for call in calls if call.pid in workers]


Bench = Callable[..., Run]


@pytest.fixture(scope="session")
def bench(egmctl: RunEgmctl, fake_node: MakeFakeNode) -> Bench:
    """Run the bench on a fake node and return its JSON result."""

    def run(
        *arguments: str, faults: str = "", machine: Machine | str = "gb200-tray", env: dict[str, str] | None = None
    ) -> Run:
        node = fake_node(machine)
        ended = egmctl(*arguments, "--json", env=node.environment(faults) | (env or {}))
        assert "Traceback" not in ended.err
        document = json.loads(ended.out)
        assert document["result"] is not None, document["errors"]
        validate(document, "bench")
        assert document["exit_code"] == ended.code
        return Run(ended.code, document["result"], node)

    return run


@pytest.fixture
def run_ipc(fake_node: MakeFakeNode, monkeypatch: pytest.MonkeyPatch) -> RunIpc:
    """Measure cases of shared memory by two processes and more of this test's."""
    return runner(fake_node, monkeypatch)


@pytest.fixture
def fast_children() -> Iterator[None]:
    """Have children be forks."""
    with forked.children():
        yield


MeasureLatencies = Callable[..., Run]


@pytest.fixture
def latencies(bench: Bench) -> MeasureLatencies:
    """Measure latencies between two GPUs and with a node of a fake GB200 with small caches."""

    def run(*names: str, faults: str = "") -> Run:
        options = ("bench", "--gpus", "0-1", "--numa", "0", "--samples", "2")
        return bench(*options, *cases(*names), faults=faults)

    return run


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Tree:
    """A machine whose node 0 has this process' CPUs, and whose node 1 has others."""
    tree = Tree(tmp_path)
    allowed = sorted(os.sched_getaffinity(0))
    tree.write("/sys/devices/system/node/node0/cpulist", ",".join(map(str, allowed)) + "\n")
    tree.write("/sys/devices/system/node/node1/cpulist", "4000-4071\n")
    monkeypatch.setenv("EGMCTL_SYSROOT", str(tmp_path))
    return tree
