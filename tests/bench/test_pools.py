"""Memory from pools: the driver's own pool of a node beside one of our own, its latency, and pools by fabric handle."""

from __future__ import annotations

import itertools

import pytest

from egmctl.bench.suites import CASES, SUITES
from egmctl.report.kinds import Format
from egmctl.report.views.machine import route_words
from tests.answers import render
from tests.bench.conftest import FEW, Bench, Run
from tests.bench.four import cases
from tests.bench.plans import plan_of, waivers, with_attributes
from tests.doctor.machines import patched, shipped
from tests.report.runs import run as made_up

H200, GB200 = shipped("hgx-h200x4"), shipped("gb200-tray")
DEFAULT = tuple(case.name for case in CASES if "host_numa_default_pool" in case.name)
OF_HOST = ("host_default_pool_to_device_memcpy_ce", "device_to_host_default_pool_memcpy_ce")
OF_GPUS = ("device_default_pool_memcpy_write_ce", "device_default_pool_local_copy")
LATENCY = ("host_numa_pool_to_device_latency_cached", "host_numa_pool_to_device_latency_uncached")
OPTIONS = ("bench", "--numa", "1", "--gpus", "0-1", *FEW)


def test_the_driver_s_own_pool_is_copied_to_and_from_by_copy_engines_and_kernels_and_is_called_so() -> None:
    assert len(DEFAULT) == 4
    (route, *_) = (planned.flows[0].route for planned in plan_of(*DEFAULT, machine=GB200, gpus=2, nodes=[0]).tasks)
    assert route_words(route) == "EGM default pool over C2C"
    (route, *_) = (planned.flows[0].route for planned in plan_of(*DEFAULT, machine=H200, gpus=2, nodes=[0]).tasks)
    assert route_words(route) == "HOST_NUMA default pool over PCIe, not EGM"


@pytest.mark.parametrize("suite", ["standard", "quick"])
def test_the_suites_that_are_to_be_fast_have_none_of_it(suite: str) -> None:
    mine = (*DEFAULT, *OF_HOST, *OF_GPUS, *LATENCY)
    new = [case.name for case in CASES if case.name in mine or "pool_fabric" in case.name]
    assert len(new) > len(mine)
    assert not [case.name for case in CASES if case.name in new and SUITES[suite].has(case)]


def test_without_pools_of_nodes_they_are_waived_with_the_attribute() -> None:
    machine = with_attributes(H200, HOST_NUMA_MEMORY_POOLS_SUPPORTED=0)
    assert waivers(plan_of(*DEFAULT, *LATENCY, machine=machine, gpus=2, nodes=[0])) == {
        f"GPU{gpu} cannot use {name} memory: CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED is 0"
        for gpu in (0, 1)
        for name in ("HOST_NUMA pool", "HOST_NUMA default pool")
    }


@pytest.mark.parametrize(("handles", "stopped"), [(1, "pool_fabric"), (8, "pool")])
def test_a_pool_goes_by_the_handles_that_the_driver_has_for_it(handles: int, stopped: str) -> None:
    machine = with_attributes(H200, MEMPOOL_SUPPORTED_HANDLE_TYPES=handles)
    names = ("ipc_pool_device_write_ce", "ipc_pool_fabric_device_write_ce")
    plan = plan_of(*names, machine=machine, gpus=2, nodes=[0])
    waived = {task.case for task in plan.tasks if task.waiver is not None}
    assert f"ipc_{stopped}_device_write_ce" in waived
    told = {"pool": "file descriptor", "pool_fabric": "fabric handle"}[stopped]
    why = f"exports no pools by {told}: CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES is {handles}"
    assert any(why in reason for reason in waivers(plan))


@pytest.mark.long
def test_each_is_measured_verified_and_given_back_and_the_default_pool_stays(bench: Bench) -> None:
    names = (*DEFAULT, LATENCY[0])
    run = bench(*OPTIONS, *cases(*names))
    assert run.code == 0, run.reasons()
    assert {m["case"] for m in run.measurements} == set(names)
    assert set(run.statuses()) == {"ok"}
    asked = run.node.calls("cuMemGetDefaultMemPool")
    assert {call.arguments["location"] for call in asked} == {"HOST_NUMA:1"}
    assert len(run.node.calls("cuMemPoolCreate")) == len(run.node.calls("cuMemPoolDestroy")) == 1
    assert run.node.leaks() == []


def access(run: Run) -> list[str]:
    """Return what was asked for of pools, in order."""
    return [call.arguments["access"] for call in run.node.calls("cuMemPoolSetAccess")]


def next_access(run: Run) -> str | None:
    """Return what was asked for of pools first after the allocation that failed, before anything else is allocated."""
    calls = run.worker_calls()
    (failed,) = (at for at, call in enumerate(calls) if call.name == "cuMemAllocFromPoolAsync" and call.injected)
    following = itertools.takewhile(lambda call: not call.name.startswith("cuMemAlloc"), calls[failed + 1 :])
    return next((call.arguments["access"] for call in following if call.name == "cuMemPoolSetAccess"), None)


class TestPoolsOfGpus:
    """``device_default_pool_*``: each GPU's own pool, opened to the peer that writes to it."""

    def test_memory_is_of_the_pool_and_access_is_given_and_taken_back(self, bench: Bench) -> None:
        run = bench(*OPTIONS, *cases(*OF_GPUS))
        assert (run.code, run.statuses()) == (0, ["ok"] * 4), run.reasons()
        assert {m["verification"] for m in run.measurements} == {"gpu-every-sample"}
        ends = [end for m in run.measurements for end in (m["flows"][0]["source"], m["flows"][0]["destination"])]
        assert {end["memory"] for end in ends} == {"device-default-pool"}
        assert not run.node.calls("cuMemGetDefaultMemPool"), "before CUDA 13.0 too"
        assert not run.node.calls("cuCtxEnablePeerAccess")
        given = access(run)
        assert sorted(given) == sorted(["DEVICE:0:RW", "DEVICE:0:NONE", "DEVICE:1:RW", "DEVICE:1:NONE"])
        assert given.index("DEVICE:0:RW") < given.index("DEVICE:0:NONE")
        assert run.node.leaks() == []

    @pytest.mark.parametrize("number", [1, 2])
    def test_where_the_source_or_the_destination_cannot_be_had_access_is_taken_back_at_once(
        self, bench: Bench, number: int
    ) -> None:
        run = bench(*OPTIONS, "--case", OF_GPUS[0], faults=f"cuMemAllocFromPoolAsync@{number}=error:2")
        assert sorted(run.statuses()) == ["failed", "ok"]
        assert next_access(run) == "DEVICE:0:NONE"
        assert run.node.leaks() == []

    def test_the_table_says_of_which_memory_it_is(self) -> None:
        text = str(render(made_up("hgx-h200x4", cases=OF_GPUS, gpus=2), Format.TEXT, verbose=1))
        assert "memcpy CE GPU default pool(row) -> GPU default pool(column) bandwidth (GB/s)" in text

    def test_without_peer_access_the_reason_is_said_and_nothing_is_staged(self) -> None:
        plan = plan_of(OF_GPUS[0], machine=patched(H200, "pairs[*]", can_access_peer=False), gpus=2, nodes=[0])
        assert all("has no peer access" in (task.waiver or "") for task in plan.tasks)
        assert not any(task.flows[0].route.staged for task in plan.tasks)

    def test_a_gpu_without_pools_is_waived_with_the_attribute(self) -> None:
        machine = with_attributes(H200, MEMORY_POOLS_SUPPORTED=0)
        assert waivers(plan_of(*OF_GPUS, machine=machine, gpus=2, nodes=[0])) == {
            f"GPU{gpu} cannot use default pool memory: CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED is 0"
            for gpu in (0, 1)
        }


class TestThePoolOfTheHost:
    """``*host_default_pool*``: CU_MEM_LOCATION_TYPE_HOST, of which the driver chooses the node."""

    def test_it_is_no_egm_and_is_called_what_it_is(self) -> None:
        (route, *_) = (planned.flows[0].route for planned in plan_of(*OF_HOST, machine=GB200, gpus=2, nodes=[0]).tasks)
        assert route_words(route) == "HOST default pool over C2C, not EGM"

    def test_it_is_measured_verified_its_placement_is_recorded_and_access_is_taken_back(self, bench: Bench) -> None:
        run = bench(*OPTIONS, *cases(*OF_HOST))
        assert (run.code, run.statuses()) == (0, ["ok"] * 4), run.reasons()
        assert {call.arguments["location"].partition(":")[0] for call in run.node.calls("cuMemGetDefaultMemPool")} == {
            "HOST"
        }
        for m in run.measurements:
            assert (m["gating"], m["verification"]) == ("kernel", "gpu-every-sample")
            assert [placement["label"] for placement in m["placements"]] == ["NUMA1"]
        assert access(run)[-1] == "DEVICE:0:NONE,DEVICE:1:NONE"
        assert run.node.leaks() == []

    def test_where_it_gives_no_memory_access_is_taken_back_at_once(self, bench: Bench) -> None:
        run = bench(*OPTIONS, "--case", OF_HOST[0], faults="cuMemAllocFromPoolAsync@1=error:2")
        assert sorted(run.statuses()) == ["failed", "ok"]
        assert next_access(run) == "DEVICE:0:NONE,DEVICE:1:NONE"

    def test_a_driver_before_cuda_13_is_waived_and_the_missing_call_named(self, bench: Bench) -> None:
        run = bench(*OPTIONS, "--case", OF_HOST[0], faults="cuMemGetDefaultMemPool=missing")
        assert (run.code, set(run.statuses())) == (3, {"waived"})
        (reason,) = run.reasons()
        assert reason.startswith("cuMemGetDefaultMemPool failed: the driver has no such function; ")
        assert reason.endswith("come with CUDA 13.0 (driver 580)")

    def test_a_gpu_whose_driver_has_no_host_pools_is_waived_with_the_attribute(self) -> None:
        machine = with_attributes(H200, HOST_MEMORY_POOLS_SUPPORTED=0)
        assert waivers(plan_of(*OF_HOST, machine=machine, gpus=2, nodes=[0])) == {
            f"GPU{gpu} cannot use HOST default pool memory: CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED is 0"
            for gpu in (0, 1)
        }


def test_a_driver_before_cuda_13_is_waived_and_named(bench: Bench) -> None:
    run = bench(*OPTIONS, "--case", DEFAULT[0], faults="cuMemGetDefaultMemPool=missing")
    assert run.code == 3
    assert set(run.statuses()) == {"waived"}
    assert any("cuMemGetDefaultMemPool" in reason for reason in run.reasons())


@pytest.mark.parametrize("fault", ["missing", "error:801"])
def test_a_driver_without_pools_waives_what_needs_them(bench: Bench, fault: str) -> None:
    chosen = cases("host_numa_pool_to_device_memcpy_ce", "registered_to_device_memcpy_ce")
    run = bench("bench", "--numa", "0", "--gpus", "0", *FEW, *chosen, faults=f"cuMemPoolCreate={fault}")
    assert (run.code, run.statuses()) == (0, ["waived", "ok"])
    (reason,) = run.reasons()
    assert reason.startswith("cuMemPoolCreate failed: ")
