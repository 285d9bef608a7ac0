"""CPU threads read and write what is there, all of it: of host memory, and of a GPU's where it is a NUMA node."""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from egmctl.bench.buffers import buffers_of
from egmctl.bench.engine import ENGINES
from egmctl.bench.engines import cpu
from egmctl.bench.plan.make import make_plan
from egmctl.bench.processes.context import AllocatedBuffer, Stopwatch
from egmctl.bench.suites import SUITES, select_cases
from egmctl.facts.host import THREADS_LIMIT, NoCpus, cpus_of
from egmctl.gpu.cpu_threads import LINE_WORDS, CpuThreads, CpuTriad, words_of
from egmctl.model.finding import WaiverKind
from egmctl.model.listing import PlannedTasks
from egmctl.model.measurement import Measurement, MeasurementStatus, Placement, Settings, Verification
from egmctl.model.route import MemoryKind, Route
from egmctl.model.task import Endpoint, Engine, Flow, Pattern, Quantity, Task
from egmctl.report.views.machine import route_words
from egmctl.units import MIB
from egmctl.verdict.yardsticks import not_judged
from tests.bench.conftest import FEW, Bench, cases
from tests.doctor.machines import shipped
from tests.facts.sysroot import Tree

SETTINGS = Settings(size_bytes=1 << 20, copies=2, samples=3, timeout_s=1)
NODE = Endpoint(memory=MemoryKind.HOST_NUMA, label="NUMA0", numa_node=0)
CPUS = Endpoint(memory=MemoryKind.REGISTERS, label="CPU0", numa_node=0)


class Memory:
    """Memory of this process; its size is no multiple of the threads."""

    def __init__(self, size_bytes: int = 1 << 20) -> None:
        self._bytes = ctypes.create_string_buffer(size_bytes)
        self.address, self.size_bytes = ctypes.addressof(self._bytes), size_bytes


class StubRig:
    """A worker whose one buffer is memory of this process, of which the kernel says where it is."""

    def __init__(self, memory: Memory, *placements: Placement) -> None:
        self._memory, self._placements = memory, placements
        self.stopwatch = Stopwatch()

    def held(self, _buffer: object) -> AllocatedBuffer:
        memory: Any = self._memory
        return AllocatedBuffer(memory, seed=7)

    def placements(self, _buffers: object) -> tuple[Placement, ...]:
        return self._placements

    def new_seed(self) -> int:
        return 7


def measured(
    task: Task, *placements: Placement, memory: Memory | None = None, how: type[cpu.Passes | cpu.Walks] = cpu.Passes
) -> Measurement:
    """Measure a task on memory of this process."""
    worker: Any = StubRig(memory or Memory(), *placements)
    (found,) = cpu.measure_by_cpu(how, worker, [task], SETTINGS)
    return found


@pytest.fixture
def threads() -> CpuThreads:
    """Three threads, whatever CPUs there are."""
    cpus = sorted(os.sched_getaffinity(0))
    return CpuThreads([cpus[place % len(cpus)] for place in range(3)])


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Tree:
    """A machine whose node 0 has this process' CPUs, and whose node 1 has others."""
    tree = Tree(tmp_path)
    allowed = sorted(os.sched_getaffinity(0))
    tree.write("/sys/devices/system/node/node0/cpulist", ",".join(map(str, allowed)) + "\n")
    tree.write("/sys/devices/system/node/node1/cpulist", "4000-4071\n")
    monkeypatch.setenv("EGMCTL_SYSROOT", str(tmp_path))
    return tree


def task(source: Endpoint, destination: Endpoint) -> Task:
    flow = Flow(source=source, destination=destination, initiator=None, initiator_label="CPU0", route=Route())
    return Task(
        case="host_numa_read_cpu",
        family="egm",
        quantity=Quantity.BANDWIDTH,
        engine=Engine.CPU,
        pattern=Pattern.PAIR,
        flows=(flow,),
        counted="each byte read or written by the CPUs",
        size_bytes=1 << 20,
        copies=2,
    )


def test_every_word_is_written_and_summed(threads: CpuThreads) -> None:
    memory: Any = Memory(8 * 1001)
    words = words_of(memory)
    threads.write(words, 1, (1 << 64) - 3)
    assert (words == (1 << 64) - 3).all()
    elapsed_ms, total = threads.read(words, 2)
    assert total == -3 * 1001 % (1 << 64)
    assert elapsed_ms > 0


@pytest.mark.usefixtures("here")
class TestMeasurement:
    @pytest.mark.parametrize(("source", "destination"), [(NODE, CPUS), (CPUS, NODE)], ids=["read", "write"])
    def test_a_sample_is_so_many_passes_over_the_memory(self, source: Endpoint, destination: Endpoint) -> None:
        found = measured(task(source, destination))
        assert (found.status, found.verification) == (MeasurementStatus.OK, Verification.CHECKSUM_EVERY_SAMPLE)
        assert len(found.samples) == 3
        for sample in found.samples:
            assert sample.bandwidth_gb_s == pytest.approx((2 << 20) / sample.elapsed_ms / 1e6)

    def test_a_word_that_is_wrong_is_found_and_located(self, monkeypatch: pytest.MonkeyPatch) -> None:
        memory = Memory()
        whole = CpuThreads.write

        def damaging(self: CpuThreads, words: Any, passes: int, word: int) -> float:
            elapsed_ms = whole(self, words, passes, word)
            words[77] ^= 1 << 5
            return elapsed_ms

        monkeypatch.setattr(CpuThreads, "write", damaging)
        found = measured(task(CPUS, NODE), memory=memory)
        assert found.status is MeasurementStatus.CORRUPT
        assert found.mismatch is not None
        assert (found.mismatch.sample, found.mismatch.words, found.mismatch.first_offset_bytes) == (0, 1, 8 * 77)
        assert int(found.mismatch.expected, 16) ^ int(found.mismatch.found, 16) == 1 << 5

    def test_a_node_whose_cpus_are_not_allowed_is_waived(self) -> None:
        elsewhere = Endpoint(memory=MemoryKind.REGISTERS, label="CPU1", numa_node=1)
        found = measured(task(NODE, elsewhere))
        assert found.status is MeasurementStatus.WAIVED
        assert found.reason == "this process may run on none of the CPUs of NUMA node 1"

    def test_the_threads_are_bound_to_the_nodes_cpus_and_the_caller_stays_free(self) -> None:
        before = os.sched_getaffinity(0)
        assert set(cpus_of(0)) <= before
        measured(task(NODE, CPUS))
        assert os.sched_getaffinity(0) == before


TRIAD = replace(
    task(NODE, CPUS), case="host_triad_cpu", engine=Engine.CPU_TRIAD, counted=ENGINES[Engine.CPU_TRIAD].counted
)


@pytest.fixture
def arrays() -> Any:
    """Three arrays of 1003 lines, which three threads do not share evenly, at the start of a line."""
    whole = np.zeros(3 * 1003 * LINE_WORDS + LINE_WORDS)
    start = -whole.ctypes.data % 64 // 8
    return whole[start : start + 3 * 1003 * LINE_WORDS].reshape(3, 1003, LINE_WORDS)


@pytest.mark.usefixtures("here")
class TestTriad:
    def test_the_code_of_this_machine_computes_every_element_and_no_other(
        self, threads: CpuThreads, arrays: Any
    ) -> None:
        arrays[1] = np.arange(arrays[1].size).reshape(arrays[1].shape)
        arrays[2] = arrays[1] * 3 + 1
        operands = arrays[1:].copy()
        triad = CpuTriad(threads, arrays)
        assert triad.run(2, 0.5) > 0
        triad.close()
        assert (arrays[0] == operands[0] + 0.5 * operands[1]).all()
        assert (arrays[1:] == operands).all()

    def test_more_threads_than_lines_end(self, arrays: Any) -> None:
        triad = CpuTriad(CpuThreads([min(os.sched_getaffinity(0))] * 5), arrays[:, :2])
        triad.run(1, 0)
        triad.close()

    def test_two_reads_and_a_write_are_counted_and_the_buffer_has_three_arrays(self) -> None:
        assert [buffer.size_bytes for buffer in buffers_of([TRIAD])] == [3 << 20]
        found = measured(TRIAD, memory=Memory(3 << 20), how=cpu.Triad)
        assert (found.status, found.verification) == (MeasurementStatus.OK, Verification.CHECKSUM_EVERY_SAMPLE), (
            found.reason
        )
        for sample in found.samples:
            assert sample.bandwidth_gb_s == pytest.approx(2 * (3 << 20) / sample.elapsed_ms / 1e6)

    def test_a_result_that_is_wrong_is_found_and_located(self, monkeypatch: pytest.MonkeyPatch) -> None:
        memory: Any = Memory(3 << 20)
        whole = CpuTriad.run

        def damaging(self: CpuTriad, passes: int, factor: float) -> float:
            elapsed_ms = whole(self, passes, factor)
            words_of(memory)[77] ^= 1
            return elapsed_ms

        monkeypatch.setattr(CpuTriad, "run", damaging)
        found = measured(TRIAD, memory=memory, how=cpu.Triad)
        assert found.status is MeasurementStatus.CORRUPT
        assert found.mismatch is not None
        assert (found.mismatch.words, found.mismatch.first_offset_bytes) == (1, 8 * 77)

    def test_a_process_with_few_of_the_cpus_does_not_measure_the_memory(self, here: Tree) -> None:
        here.write("/sys/devices/system/node/node0/cpulist", "0-71\n")
        found = measured(TRIAD, memory=Memory(3 << 20), how=cpu.Triad)
        assert found.status is MeasurementStatus.WAIVED
        count = len(os.sched_getaffinity(0))
        assert (
            found.reason == f"this process may run on {count} of the 72 CPUs of NUMA node 0: too few to fill its memory"
        )

    def test_all_allowed_cpus_take_part(self, here: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
        here.write("/sys/devices/system/node/node0/cpulist", "0-71\n")
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(4, 72)))
        assert cpus_of(0, whole=True) == tuple(range(4, 72))

    def test_a_size_of_no_whole_lines_is_waived(self) -> None:
        found = measured(replace(TRIAD, size_bytes=(1 << 20) + 16), memory=Memory(4 << 20), how=cpu.Triad)
        assert (found.status, found.reason) == (
            MeasurementStatus.WAIVED,
            "1048592 bytes are no multiple of 64, as the triad needs",
        )

    def test_where_code_cannot_be_mapped_it_is_waived(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(platform, "machine", lambda: "riscv64")
        found = measured(TRIAD, memory=Memory(3 << 20), how=cpu.Triad)
        assert (found.status, found.reason) == (MeasurementStatus.WAIVED, "no machine code for riscv64")

    def test_a_sample_is_at_least_eight_passes_over_arrays_larger_than_caches(self) -> None:
        gh200, usual = shipped("gh200"), Settings(size_bytes=512 * MIB, copies=None, samples=3, timeout_s=1)
        (planned_task,) = make_plan(gh200, gh200.gpus or (), (0,), select_cases(["host_triad_cpu"]), usual).tasks
        assert planned_task.copies == 8
        assert planned_task.flows[0].route.symbol == "CPU"


def test_of_many_cpus_some_spread_over_the_node_are_used(here: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    here.write("/sys/devices/system/node/node0/cpulist", "0-71\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(72)))
    assert cpus_of(0) == tuple(range(0, 72, 3))
    assert len(cpus_of(0)) <= THREADS_LIMIT


def test_a_node_that_is_not_there_has_no_cpus(here: Tree) -> None:
    del here
    with pytest.raises(NoCpus, match="node7"):
        cpus_of(7)


CASES = ("gpu_numa_read_cpu", "gpu_numa_write_cpu")


def planned(machine: str, case: str = CASES[0]) -> PlannedTasks:
    seen = shipped(machine)
    return make_plan(seen, (seen.gpus or ())[:4], (0, 1), select_cases([case]), SETTINGS).tasks


class TestPlanOfGpuMemory:
    def test_cpus_of_each_node_meet_each_gpu(self) -> None:
        tasks = [one for one in planned("gb200-tray") if one.waiver is None]
        assert [task.path for task in tasks] == [f"GPU{gpu} -> CPU{node}" for node in (0, 1) for gpu in range(4)]
        assert [task.flows[0].route.symbol for task in tasks[:3:2]] == ["CPU>C2C", "CPU>SMP>C2C"]
        (flow,) = tasks[0].flows
        assert (flow.source.memory, flow.initiator, flow.initiator_label) == ("gpu-numa", None, "CPU0")
        assert flow.source.numa_node is not None
        assert route_words(flow.route) == "GPU memory over CPU>C2C"

    def test_written_memory_is_the_destination(self) -> None:
        assert planned("gb200-tray", CASES[1])[0].path == "CPU0 -> GPU0"

    @pytest.mark.parametrize(
        ("machine", "why"), [("dgx-h100", "GPU0"), ("gb200-nvl72-cdmm", "GPU0's memory is no NUMA node of the host")]
    )
    def test_elsewhere_it_is_waived_with_the_reason(self, machine: str, why: str) -> None:
        found = planned(machine)
        assert {waiver.kind for one in found for waiver in one.waivers} == {WaiverKind.UNSUPPORTED_MEMORY}
        assert why in (found[0].waiver or "")

    def test_no_quick_or_standard_run_has_it(self) -> None:
        (case,) = select_cases([CASES[0]])
        assert [name for name, suite in SUITES.items() if suite.has(case)] == ["full", "host"]


def placed(*, right: bool | None) -> Placement:
    return Placement(label="GPU0", proof="move_pages", detail="of one page in each 2 MiB: 1 on node 4", right=right)


ELSEWHERE = "its pages are not shown to be in GPU0's memory: of one page in each 2 MiB: 1 on node 4"


@pytest.mark.usefixtures("here")
class TestGpuMemory:
    @pytest.fixture
    def task(self) -> Task:
        (first, *_) = planned("gb200-tray")
        return replace(first, size_bytes=MIB)

    def test_memory_that_is_the_gpus_is_measured_and_never_judged(self, task: Task) -> None:
        found = measured(task, placed(right=True))
        assert found.status is MeasurementStatus.OK
        assert len(found.samples) == 3
        assert not_judged(found) == "CPU threads are a lower bound"

    @pytest.mark.parametrize(
        ("placements", "reason"),
        [
            ([], "its pages are not shown to be in GPU0's memory: location unknown"),
            ([placed(right=None)], ELSEWHERE),
            ([placed(right=False)], ELSEWHERE),
        ],
    )
    def test_memory_that_may_lie_elsewhere_is_not_called_the_gpus(
        self, task: Task, placements: list[Placement], reason: str
    ) -> None:
        found = measured(task, *placements)
        assert found.status is MeasurementStatus.WAIVED
        assert found.waivers[0].kind is WaiverKind.NO_NUMA_MEMORY
        assert found.reason == reason
        assert found.samples == ()


def test_on_a_fake_node_nothing_shows_where_pages_are_and_all_is_given_back(bench: Bench) -> None:
    found = bench("bench", "--numa", "0", "--gpus", "0", *FEW, *cases(*CASES))
    assert set(found.statuses()) == {"waived"}
    assert found.node.leaks() == []
