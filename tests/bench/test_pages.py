"""Host memory of huge and of managed pages: where it is waived and why, what it is made of, and that all comes back."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from egmctl.bench.evidence import link_evidence
from egmctl.bench.plan.budget import MANAGED_SHARE
from egmctl.bench.processes.context import _registered
from egmctl.facts import buffers as facts
from egmctl.gpu import cpu_threads as numa
from egmctl.gpu.cpu_threads import Node
from egmctl.gpu.memory import SystemMemory
from egmctl.gpu.telemetry import Traffic
from egmctl.model.finding import Waiver, WaiverKind
from egmctl.model.host import HugePages
from egmctl.model.machine import Machine
from egmctl.model.measurement import LinkProof
from egmctl.model.route import Egm, MemoryKind, Route
from egmctl.topology.routes import route
from egmctl.units import GIB, MIB
from tests.bench.conftest import FEW, Bench
from tests.bench.four import cases
from tests.bench.plans import plan_of, with_attributes
from tests.doctor.machines import patched, shipped
from tests.facts.sysroot import Tree

H200 = shipped("hgx-h200x4")
ONE_GPU = ("bench", "--numa", "1", "--gpus", "2", *FEW)
CASES = ("thp_to_device_memcpy_ce", "device_to_managed_memcpy_ce", "managed_to_device_memcpy_sm")


def host(machine: Machine, **changes: Any) -> Machine:
    return patched(machine, "host", **changes)


def waiver(machine: Machine, case: str, size_bytes: int = 512 * MIB) -> Waiver | None:
    (planned,) = plan_of(case, machine=machine, gpus=1, nodes=[0], size_bytes=size_bytes).tasks
    return planned.waivers[0] if planned.waivers else None


def waived(machine: Machine, case: str, size_bytes: int = 512 * MIB) -> Waiver:
    """Return the waiver of a case that has one."""
    given = waiver(machine, case, size_bytes)
    assert given is not None
    return given


class TestPlan:
    def test_without_free_huge_pages_hugetlb_memory_is_waived_and_says_how_many_there_are(self) -> None:
        found = waived(host(H200, huge_pages=(HugePages(page_size_bytes=2 * MIB, total=8, free=7),)), "hugetlb_to_*_ce")
        assert found.kind is WaiverKind.NO_PAGES
        assert found.reason == ("too few huge pages are free for 512 MiB: 7 of 2 MiB (HugePages_Free, vm.nr_hugepages)")

    @pytest.mark.parametrize("pool", [(2 * MIB, 256), (GIB, 1)])
    def test_any_pool_that_is_large_enough_will_do(self, pool: tuple[int, int]) -> None:
        page, free = pool
        machine = host(H200, huge_pages=(HugePages(page_size_bytes=page, total=free, free=free),))
        assert waiver(machine, "hugetlb_to_*_ce") is None

    def test_those_of_its_numa_node_count_where_they_are_known(self) -> None:
        (only,) = H200.host.numa_nodes or () if H200.host else ()
        mine = replace(only, huge_pages=(HugePages(page_size_bytes=2 * MIB, total=8, free=7),))
        machine = host(H200, huge_pages=(HugePages(page_size_bytes=GIB, total=8, free=8),), numa_nodes=(mine,))
        assert "too few huge pages are free on NUMA0 for 512 MiB: 7 of 2 MiB" in str(waiver(machine, "hugetlb_to_*_ce"))

    def test_where_nobody_has_looked_it_is_tried(self) -> None:
        assert waiver(host(H200, huge_pages=None), "hugetlb_to_*_ce") is None

    def test_transparent_huge_pages_that_are_off_are_waived(self) -> None:
        found = waived(host(H200, transparent_huge_pages="never"), "thp_to_*_ce")
        assert found.kind is WaiverKind.NO_PAGES
        assert waiver(host(H200, transparent_huge_pages="madvise"), "thp_to_*_ce") is None

    def test_managed_memory_is_a_small_part_of_what_is_free_on_the_gpu(self) -> None:
        assert H200.gpus is not None
        nvml = H200.gpus[0].nvml
        assert nvml is not None
        assert nvml.memory_total_bytes is not None
        free = nvml.memory_total_bytes - (nvml.memory_used_bytes or 0)
        machine = host(H200, memory_available_bytes=1 << 42)
        assert waiver(machine, "managed_to_*_ce", 512 * MIB) is None
        found = waived(machine, "managed_to_*_ce", (free // MANAGED_SHARE // MIB + 1) * MIB)
        assert found.kind is WaiverKind.NO_ROOM
        assert "managed memory" in found.reason

    def test_a_gpu_without_concurrent_managed_access_is_waived_for_it(self) -> None:
        found = waived(with_attributes(H200, 0, CONCURRENT_MANAGED_ACCESS=0), "managed_to_*_ce")
        assert found.kind is WaiverKind.UNSUPPORTED_MEMORY
        assert "CONCURRENT_MANAGED_ACCESS is 0" in found.reason


class TestWhetherManagedMemoryIsEgm:
    """UVM routes it: EGM may be where the GPU has it, and is not where there is none."""

    def route(self, machine: Machine, node: int = 0) -> Route:
        (planned,) = plan_of("managed_to_*_ce", machine=machine, gpus=1, nodes=[node], size_bytes=MIB).tasks
        return planned.flows[0].route

    @pytest.mark.parametrize("node", [0, 1])
    def test_with_egm_it_is_not_known_and_the_route_says_why(self, node: int) -> None:
        found = self.route(shipped("gb200-tray"), node)
        assert (found.egm, found.degraded) == (Egm.UNKNOWN, False)
        assert found.egm_reason.startswith(
            "UVM routes managed memory by the GPUs that this process registered as peers"
        )

    def test_without_egm_it_is_none_for_the_reason_of_the_gpu(self) -> None:
        found = self.route(H200)
        assert (found.egm, found.symbol) == (Egm.NO, "PCIe")
        assert found.egm_reason == route(H200, (H200.gpus or ())[0], 0).reason != ""

    @pytest.mark.parametrize(
        ("nvlink", "link", "verdict"),
        [(1 << 30, "nvlink", LinkProof.PROVEN), (0, "c2c", LinkProof.BY_EXCLUSION)],
        ids=["through a peer", "by itself"],
    )
    def test_the_counters_say_which_way_it_took(self, nvlink: int, link: str, verdict: LinkProof) -> None:
        plan = plan_of("managed_to_*_ce", machine="gb200-tray", gpus=1, nodes=[1], size_bytes=1 << 30, copies=1)
        (task,) = plan.tasks
        rises = {task.flows[0].initiator or "": Traffic({}, {"nvlink": nvlink, "pcie": 0})}
        found = link_evidence(task, 1, rises)
        assert found is not None
        assert (found.link, found.verdict) == (link, verdict)


class TestRun:
    def test_every_kind_is_measured_verified_and_given_back(self, bench: Bench) -> None:
        found = bench(*ONE_GPU, *cases(*CASES))
        assert (found.code, found.statuses()) == (0, ["ok"] * 3), found.reasons()
        advice = [(c.arguments["advice"], c.arguments["location"]) for c in found.node.calls("cuMemAdvise")]
        # Preferred on the node (3, a location of type 3), mapped by the GPU (5, of type 1).
        assert set(advice) == {("3", "3:1"), ("5", "1:2")}
        assert {m["gating"] for m in found.measurements} == {"kernel", "none"}
        assert found.node.leaks() == []

    def test_granularity_and_pages_of_buffers_are_in_the_result(self, bench: Bench) -> None:
        found = bench(*ONE_GPU, "--case", "host_numa_to_device_memcpy_ce")
        costs = [cost for m in found.measurements for cost in m["costs"]]
        told = {c["memory"]: (c["granularity_bytes"], c["recommended_granularity_bytes"]) for c in costs}
        assert told == {"host-numa": (2 * MIB, 2 * MIB), "device": (None, None)}

    def test_a_kernel_without_huge_pages_waives_what_needs_them(self, bench: Bench) -> None:
        found = bench(*ONE_GPU, "--case", "hugetlb_to_device_memcpy_ce")
        assert found.statuses() == ["waived"]
        assert found.measurements[0]["waivers"][0]["kind"] == "no-pages"
        assert found.node.leaks() == []


class TestPages:
    def test_the_kernel_says_what_a_mapping_is_made_of(self) -> None:
        memory = SystemMemory(Node(0), 8 * MIB, transparent=True)
        try:
            page_bytes, huge_bytes = facts.page_sizes(memory.address, memory.size_bytes)
            assert page_bytes == mmap.PAGESIZE
            assert huge_bytes is not None
            assert 0 <= huge_bytes <= 8 * MIB
            assert ctypes.string_at(memory.address, 8 * MIB) == bytes(8 * MIB)
        finally:
            memory.close()

    def test_the_smallest_huge_pages_of_which_a_node_has_enough_are_taken(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        tree = Tree(tmp_path)
        for kib, free in ((2048, 100), (1048576, 2)):
            tree.write(f"/sys/devices/system/node/node1/hugepages/hugepages-{kib}kB/free_hugepages", f"{free}\n")
        monkeypatch.setenv("EGMCTL_SYSROOT", str(tmp_path))
        assert facts.huge_page_bytes(1, 200 * MIB) == 2 * MIB
        assert facts.huge_page_bytes(1, 201 * MIB) == GIB
        with pytest.raises(facts.NoPages, match="NUMA node 1 has too few free huge pages for 3 GiB: 100 of"):
            facts.huge_page_bytes(1, 3 * GIB)
        with pytest.raises(facts.NoPages, match="NUMA node 0"):
            facts.huge_page_bytes(0, MIB)

    @pytest.mark.parametrize(("page", "order"), [(2 * MIB, 21), (GIB, 30)])
    def test_a_mapping_of_huge_pages_names_their_size_and_is_a_whole_number_of_them(
        self, monkeypatch: pytest.MonkeyPatch, page: int, order: int
    ) -> None:
        asked: dict[str, int] = {}

        def refused(_fd: int, size: int, *, flags: int) -> None:
            asked.update(size=size, flags=flags)
            raise OSError(12, "Cannot allocate memory")

        monkeypatch.setattr(mmap, "mmap", refused)
        with pytest.raises(OSError, match="Cannot allocate memory"):
            SystemMemory(Node(0), 3 * MIB, huge_page_bytes=page)
        assert asked["size"] == -(-3 * MIB // page) * page
        assert asked["flags"] >> 26 == order
        assert asked["flags"] & 0x40000

    @pytest.mark.parametrize("code", [errno.EFAULT, errno.ENOMEM])
    def test_huge_pages_that_are_gone_or_forbidden_when_they_are_needed_are_told_and_not_written(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int
    ) -> None:
        self._stand_in(monkeypatch, code)
        tree = Tree(tmp_path)
        tree.write("/sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", "8\n")
        monkeypatch.setenv("EGMCTL_SYSROOT", str(tmp_path))
        with pytest.raises(facts.NoPages, match=f"the kernel gave no page on NUMA node 0 .*{os.strerror(code)}"):
            _registered(MemoryKind.HUGETLB, Node(0), 4 * MIB, cast(Any, None))

    def test_a_kernel_that_cannot_make_pages_ahead_makes_them_as_they_are_written(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._stand_in(monkeypatch, errno.EINVAL)
        memory = SystemMemory(Node(0), 4 * MIB, huge_page_bytes=2 * MIB)
        assert memory.touch_ms is not None
        memory.close()

    def _stand_in(self, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
        """Map usual pages in place of huge ones, and have the kernel refuse to make them ahead."""
        usual = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        monkeypatch.setattr(mmap, "mmap", partial(_usual, mmap.mmap, usual))

        def refused(*_: object) -> int:
            ctypes.set_errno(code)
            return -1

        monkeypatch.setattr(numa._libc, "madvise", refused, raising=False)


def _usual(real: Any, usual: int, descriptor: int, size: int, *, flags: int) -> Any:
    return real(descriptor, size, flags=flags & usual)
