"""A CPU follows a chain through memory of this process: every line once, in machine code that runs here for real."""

from __future__ import annotations

import platform
from typing import Any

import pytest

from egmctl.bench.engines.cpu import Walks
from egmctl.bench.suites import SUITES, select_cases
from egmctl.gpu.cpu_threads import CpuWalk, words_of
from egmctl.model.finding import WaiverKind
from egmctl.model.measurement import MeasurementStatus, Verification
from egmctl.model.task import Task
from egmctl.report.kinds import Format
from tests.answers import render
from tests.bench.conftest import FEW, Bench
from tests.bench.cpu import Memory, measured
from tests.bench.plans import plan_of
from tests.report.runs import run

CASE = "cpu_latency_host_numa"
STRIDE = 128


def task() -> Task:
    return plan_of(CASE, machine="gb200-tray", gpus=1, nodes=[0]).tasks[0]


@pytest.fixture
def memory() -> Any:
    return Memory(1 << 20)


class TestWalk:
    def test_the_chain_is_one_cycle_over_all_lines(self, memory: Any) -> None:
        walk = CpuWalk(memory, STRIDE, 7, 0)
        words = words_of(memory)
        at, seen = 0, set()
        for _ in range(walk.lines):
            seen.add(at)
            at = int(words[at // 8])
        walk.close()
        assert at == 0
        assert seen == set(range(0, 1 << 20, STRIDE))

    @pytest.mark.parametrize("loads", [1, 2, 8191, 8192, 50_000])
    def test_the_code_of_this_machine_ends_where_the_chain_leads(self, memory: Any, loads: int) -> None:
        walk = CpuWalk(memory, STRIDE, 7, 0)
        elapsed_ms, wrong = walk.walk(loads)
        again_ms, wrong_again = walk.walk(loads)
        walk.close()
        assert (wrong, wrong_again) == (None, None)
        assert elapsed_ms > 0
        assert again_ms > 0

    def test_a_wrong_word_leads_elsewhere_and_never_out_of_the_memory(self, memory: Any) -> None:
        walk = CpuWalk(memory, STRIDE, 7, 0)
        # All of them, far beyond the memory.
        words_of(memory)[:] += 1 << 40
        words_of(memory)[:: STRIDE // 8] ^= 8
        _, wrong = walk.walk(1000)
        walk.close()
        assert wrong is not None
        assert 0 <= wrong < 1 << 20

    def test_a_machine_without_code_says_so(self, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(platform, "machine", lambda: "riscv64")
        with pytest.raises(OSError, match="no machine code for riscv64"):
            CpuWalk(memory, STRIDE, 7, 0)


@pytest.mark.usefixtures("here")
class TestMeasurement:
    def test_a_sample_is_so_many_loads(self, memory: Any) -> None:
        found = measured(task(), memory=memory, how=Walks)
        assert found.status in (MeasurementStatus.OK, MeasurementStatus.UNSTABLE), found.reason
        assert found.verification is Verification.WALK_EVERY_SAMPLE
        assert found.chase is not None
        for sample in found.samples:
            assert sample.latency_ns == pytest.approx(sample.elapsed_ms * 1e6 / found.chase.loads)

    def test_a_chain_that_was_damaged_is_corrupt(self, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = CpuWalk.walk

        def damaging(self: CpuWalk, loads: int) -> tuple[float, int | None]:
            words_of(memory)[:: STRIDE // 8] |= 8
            return whole(self, loads)

        monkeypatch.setattr(CpuWalk, "walk", damaging)
        found = measured(task(), memory=memory, how=Walks)
        assert found.status is MeasurementStatus.CORRUPT
        assert "the pointer chase ended at the wrong offset" in (found.reason or "")

    def test_where_code_cannot_be_mapped_it_is_waived(self, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(platform, "machine", lambda: "riscv64")
        found = measured(task(), memory=memory, how=Walks)
        assert found.status is MeasurementStatus.WAIVED
        assert found.waivers[0].kind is WaiverKind.UNSUPPORTED_ENGINE


@pytest.mark.long
def test_on_a_fake_node_all_is_given_back(bench: Bench) -> None:
    found = bench("bench", "--numa", "0", "--gpus", "0", *FEW, "--samples", "1", "--case", "cpu_latency_*")
    assert set(found.statuses()) <= {"ok", "unstable", "waived"}
    assert found.node.leaks() == []


def test_its_table_has_a_column_for_each_cpu() -> None:
    text = str(render(run("gb200-tray", cases=(CASE,), gpus=1), Format.TEXT, verbose=1, width=200))
    assert "latency HOST_NUMA(row) -> CPU(column), pointer chase by a CPU (ns)" in text


def test_no_quick_or_standard_run_has_it() -> None:
    (case,) = select_cases([CASE])
    assert [name for name, suite in SUITES.items() if suite.has(case)] == ["full", "latency"]
