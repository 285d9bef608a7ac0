"""Where the time of a run goes: each second once, and the whole is what the run took."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from egmctl.bench.processes.context import Stopwatch
from egmctl.bench.supervisor import Spent
from egmctl.model.codec import from_json
from egmctl.model.measurement import Phase, PhaseSeconds, RunReport, RunSeconds
from egmctl.report.views.bench_answer import where_time_went
from tests.bench.conftest import FEW, Bench
from tests.bench.four import cases

PHASES = [field.name for field in fields(PhaseSeconds)]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time that the stopwatch reads, which a test moves on."""
    at = [100.0]
    monkeypatch.setattr("egmctl.bench.processes.context.time.perf_counter", lambda: at[0])
    return at


def test_a_phase_within_another_has_its_seconds_to_itself(now: list[float]) -> None:
    watch = Stopwatch()
    with watch.phase(Phase.SET_UP):
        now[0] += 1
        with watch.phase(Phase.MEASURING):
            now[0] += 2
        now[0] += 4
    now[0] += 8
    with watch.phase(Phase.TEAR_DOWN):
        now[0] += 16
    assert watch.take() == PhaseSeconds(set_up_s=5, measuring_s=2, tear_down_s=16)
    assert watch.take() == PhaseSeconds(), "what was taken begins anew"


def test_a_phase_that_fails_is_counted_and_over(now: list[float]) -> None:
    watch = Stopwatch()

    def fails() -> None:
        with watch.phase(Phase.WARM_UP):
            now[0] += 1
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    now[0] += 2
    assert watch.take() == PhaseSeconds(warm_up_s=1)


def test_steps_of_a_case_are_added_and_the_rest_is_waiting() -> None:
    spent = Spent()
    spent.starting_s, spent.ending_s = 1.0, 0.5
    for measuring_s in (2.0, 3.0):
        spent.add("one", {"set_up_s": 0.25, "measuring_s": measuring_s})
    spent.add("of a process that does not report", None)
    found = spent.of_run(10.0)
    one, silent = found.cases
    assert (one.case, one.steps, one.set_up_s, one.measuring_s) == ("one", 2, 0.5, 5.0)
    assert (silent.steps, silent.sum_s) == (1, 0)
    assert (found.tear_down_s, found.measuring_s, found.starting_s) == (0.5, 5.0, 1.0)
    assert found.sum_s + found.starting_s + found.waiting_s == pytest.approx(10.0)


def test_a_run_says_where_its_time_went_and_in_one_line_with_more_words(bench: Bench) -> None:
    names = ("device_to_device_memcpy_write_ce", "device_local_latency_cached", "ipc_event_round_trip")
    run = bench("bench", "--numa", "1", "--gpus", "2-3", *FEW, *cases(*names))
    assert run.code == 0, run.reasons()
    found = from_json(RunSeconds, run.result["seconds"])
    assert {one.case for one in found.cases} == set(names)
    for one in found.cases:
        assert one.steps >= 1
        assert one.set_up_s > 0
        assert one.measuring_s > 0
    assert found.starting_s > 0
    assert found.tear_down_s > 0
    for phase in PHASES:
        assert getattr(found, phase) >= sum(getattr(one, phase) for one in found.cases)
    assert found.sum_s + found.starting_s + found.waiting_s == pytest.approx(run.result["wall_s"])
    line = where_time_went(from_json(RunReport, run.result))
    assert line is not None
    assert re.fullmatch(
        r"Time: starting \S+ s, set-up \S+ s, warm-up \S+ s, measuring \S+ s, verifying \S+ s, tear-down \S+ s, "
        r"waiting \S+ s; longest: .* \S+ s\.",
        line,
    )


def test_a_worker_that_dies_leaves_its_time_to_waiting(bench: Bench) -> None:
    run = bench(
        *("bench", "--numa", "1", "--gpus", "0", *FEW, "--case", "host_to_device_memcpy_ce"),
        faults="cuMemcpyAsync@1=kill:11",
    )
    assert run.code == 4
    assert run.result["seconds"]["cases"] == []
    assert run.result["seconds"]["waiting_s"] > 0
