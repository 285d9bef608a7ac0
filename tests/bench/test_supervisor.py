"""Whatever becomes of a worker process, every task has an outcome and the others are measured."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from egmctl.bench import supervisor
from egmctl.bench.plan import Plan, make_plan
from egmctl.bench.registry import CASES
from egmctl.bench.supervisor import WORKER_LIMIT, supervise
from egmctl.errors import ExitCode
from egmctl.facts import replay
from egmctl.model.measurement import RunReport, Settings, Status, Task

ROOT = Path(__file__).resolve().parent.parent.parent
MACHINE = replay.load("dgx-h100")
TARGET = "tests.bench.workers:run"

Supervise = Callable[..., RunReport]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Supervise:
    """Run the worker of these tests on a plan of eight tasks (for two GPUs), with a fault."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(fault: str = "", timeout_s: float = 30, gpus: int = 2) -> RunReport:
        monkeypatch.setenv("EGMCTL_TEST_FAULT", fault)
        return supervise(plan(timeout_s, gpus), MACHINE, on_progress=lambda _done, _task: None, target=TARGET)

    return run


def plan(timeout_s: float = 30, gpus: int = 2) -> Plan:
    """Plan all cases for some GPUs and NUMA node 0: eight tasks for two."""
    settings = Settings(size_bytes=1 << 20, copies=1, samples=1, timeout_s=timeout_s)
    return make_plan(MACHINE, (MACHINE.gpus or ())[:gpus], [0], CASES, settings)


def statuses(report: RunReport) -> list[Status]:
    """Return the status of each task, in the plan's order."""
    return [measurement.status for measurement in report.measurements]


def processes(report: RunReport) -> int:
    """Return how many processes measured something."""
    reasons = (measurement.reason or "" for measurement in report.measurements)
    return len({reason for reason in reasons if reason.startswith("pid ")})


def test_one_worker_measures_everything_in_order(run: Supervise) -> None:
    report = run()
    assert statuses(report) == [Status.OK] * 8
    assert processes(report) == 1
    assert [m.case for m in report.measurements] == [planned.task.case for planned in plan().tasks]
    assert report.notes == ("nothing is measured here",)
    assert report.exit_code is ExitCode.OK


def test_a_crash_costs_one_task_and_a_new_worker_goes_on(run: Supervise) -> None:
    report = run("2:crash")
    assert statuses(report) == [Status.OK, Status.OK, Status.CRASHED, *[Status.OK] * 5]
    crashed = report.measurements[2]
    assert crashed.last_call == "cuStreamSynchronize"
    assert "SIGSEGV in cuStreamSynchronize" in (crashed.reason or "")
    assert processes(report) == 2
    assert report.exit_code is ExitCode.CRASHED


def test_a_hang_costs_one_task_and_its_timeout(run: Supervise) -> None:
    report = run("5:hang", timeout_s=3)
    assert statuses(report) == [*[Status.OK] * 5, Status.TIMED_OUT, Status.OK, Status.OK]
    assert report.measurements[5].last_call == "cuStreamSynchronize"
    assert "no result within 3 s, it is in cuStreamSynchronize" in (report.measurements[5].reason or "")
    assert 3 <= report.wall_s < 20
    assert report.exit_code is ExitCode.CRASHED


def test_a_bug_in_the_worker_is_a_crash_of_its_task(run: Supervise) -> None:
    report = run("1:raise")
    assert statuses(report) == [Status.OK, Status.CRASHED, *[Status.OK] * 6]
    assert "ValueError: a bug in the worker" in (report.measurements[1].reason or "")


def test_a_broken_context_is_left_to_a_new_worker(run: Supervise) -> None:
    report = run("0:break")
    assert statuses(report) == [Status.FAILED, *[Status.OK] * 7]
    assert processes(report) == 2


def test_workers_are_not_replaced_for_ever(run: Supervise) -> None:
    report = run(",".join(f"{number}:crash" for number in range(8)))
    assert statuses(report) == [Status.CRASHED] * WORKER_LIMIT + [Status.WAIVED] * (8 - WORKER_LIMIT)
    assert report.measurements[-1].reason == f"not run: {WORKER_LIMIT} workers have failed before it"
    assert report.exit_code is ExitCode.CRASHED


@pytest.mark.parametrize(
    ("fault", "status"), [("crash", Status.CRASHED), ("hang", Status.TIMED_OUT), ("raise", Status.FAILED)]
)
def test_a_worker_that_fails_at_setting_up_is_not_tried_again(run: Supervise, fault: str, status: Status) -> None:
    report = run(f"setup:{fault}", timeout_s=3)
    assert statuses(report) == [status] * 8
    assert {m.last_call for m in report.measurements} == {None if fault == "raise" else "cuInit"}
    assert report.exit_code is ExitCode.CRASHED


def test_a_worker_that_fails_at_releasing_keeps_its_results_but_not_quiet(run: Supervise) -> None:
    report = run("close:crash")
    assert statuses(report) == [Status.OK] * 8
    assert len(report.problems) == 1
    assert "cuMemRelease" in report.problems[0]
    assert report.exit_code is ExitCode.CRASHED


def test_sigterm_ends_the_run_with_what_there_is(run: Supervise) -> None:
    report = run("3:interrupt")
    assert report.interrupted
    assert statuses(report) == [*[Status.OK] * 3, *[Status.WAIVED] * 5]
    assert {m.reason for m in report.measurements[3:]} == {"interrupted before it was over"}
    assert report.exit_code is ExitCode.INTERRUPTED


def test_no_process_is_left_and_waived_tasks_start_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "spawn", lambda *_args, **_options: pytest.fail("a worker was started"))
    nothing = plan()
    waived = Plan(
        settings=nothing.settings,
        gpus=nothing.gpus,
        numa_nodes=nothing.numa_nodes,
        tasks=tuple(type(planned)(planned.task, "not here") for planned in nothing.tasks),
        steps=(),
    )
    report = supervise(waived, MACHINE, on_progress=lambda _done, _task: None)
    assert set(statuses(report)) == {Status.WAIVED}
    assert report.exit_code is ExitCode.NOTHING


def test_progress_names_the_task_under_way_and_counts_what_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("EGMCTL_TEST_FAULT", raising=False)
    seen: list[tuple[int, str | None]] = []

    def on_progress(done: int, task: Task | None) -> None:
        seen.append((done, task.flows[0].source.label if task else None))

    supervise(plan(gpus=1), MACHINE, on_progress=on_progress, target=TARGET)
    assert seen == [(0, "NUMA0"), (1, None), (1, "GPU0"), (2, None)]


def test_the_worker_has_the_environment_that_the_gate_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}

    def spawn(*_args: object, environment: dict[str, object], **_options: object) -> None:
        given.update(environment)
        raise KeyboardInterrupt

    monkeypatch.setattr(supervisor, "spawn", spawn)
    supervise(plan(), MACHINE, on_progress=lambda _done, _task: None)
    assert given == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_MODULE_LOADING": "EAGER", "CUDA_LAUNCH_BLOCKING": None}
    assert "CUDA_VISIBLE_DEVICES" not in given
    assert os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
