"""Whatever becomes of a worker process, every task has an outcome and the others are measured."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from egmctl.bench import supervisor
from egmctl.bench.plan import Plan
from egmctl.bench.plan.make import make_plan
from egmctl.bench.processes import group as pool
from egmctl.bench.suites import CASES
from egmctl.bench.supervisor import ATTEMPTS, WORKER_LIMIT, supervise
from egmctl.errors import ExitCode
from egmctl.launch import Child, Endings, Message
from egmctl.model.finding import Waiver, WaiverKind
from egmctl.model.listing import PlannedTasks
from egmctl.model.measurement import MeasurementStatus, RunReport, Settings
from egmctl.model.route import Rank
from egmctl.model.task import Task
from egmctl.signals import stopping
from egmctl.verdict.answers import answered
from tests.bench.four import FOUR
from tests.bench.supervised import MACHINE, TARGET, plan
from tests.doctor.machines import shipped, with_gpu_denied
from tests.known import known
from tests.launch.start import children

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("fast_children")]


Supervise = Callable[..., RunReport]
HANG_S = 3
"""The time that a step has where one hangs."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Supervise:
    """Run the worker of these tests on a plan of eight tasks (for two GPUs), with a fault."""

    def run(fault: str = "", timeout_s: float = 30, gpus: int = 2, duration_s: float | None = None) -> RunReport:
        monkeypatch.setenv("EGMCTL_TEST_FAULT", fault)
        planned = plan(timeout_s, gpus, duration_s)
        return answered(supervise(planned, MACHINE, on_progress=lambda _done, _task: None, target=TARGET))

    return run


def statuses(report: RunReport) -> list[MeasurementStatus]:
    """Return the status of each task, in the plan's order."""
    return [measurement.status for measurement in report.measurements]


def processes(report: RunReport) -> int:
    """Return how many processes measured something."""
    reasons = (measurement.reason or "" for measurement in report.measurements)
    return len({reason for reason in reasons if reason.startswith("pid ")})


def test_one_worker_measures_everything_in_order(run: Supervise) -> None:
    report = run()
    assert statuses(report) == [MeasurementStatus.OK] * 8
    assert processes(report) == 1
    assert [m.case for m in report.measurements] == [planned.case for planned in plan().tasks]
    assert report.exit_code is ExitCode.OK


@pytest.mark.parametrize(("host", "stated"), [(None, True), ("", True), ("node1", False)])
def test_the_load_of_the_host_is_stated_unless_other_commands_measure_too(host: str | None, stated: bool) -> None:
    ranks = (Rank(number=0, label="GPU0", bus_id="0000:1b:00.0", host=host),)
    report = supervise(
        replace(plan(), tasks=PlannedTasks.of(()), steps=(), ranks=ranks),
        MACHINE,
        on_progress=lambda _done, _task: None,
    )
    assert (report.host_load is not None) is stated


def test_a_crash_costs_one_task_and_a_new_worker_goes_on(run: Supervise) -> None:
    report = run("2:crash")
    assert statuses(report) == [
        MeasurementStatus.OK,
        MeasurementStatus.OK,
        MeasurementStatus.CRASHED,
        *[MeasurementStatus.OK] * 5,
    ]
    crashed = report.measurements[2]
    assert crashed.last_call == "cuStreamSynchronize"
    assert "SIGSEGV in cuStreamSynchronize" in (crashed.reason or "")
    assert processes(report) == 2
    assert report.exit_code is ExitCode.CRASHED


def test_a_hang_costs_one_task_and_its_timeout(run: Supervise) -> None:
    report = run("5:hang", timeout_s=HANG_S)
    assert statuses(report) == [
        *[MeasurementStatus.OK] * 5,
        MeasurementStatus.TIMED_OUT,
        MeasurementStatus.OK,
        MeasurementStatus.OK,
    ]
    assert report.measurements[5].last_call == "cuStreamSynchronize"
    assert f"no response for {HANG_S} s, it is in cuStreamSynchronize" in (report.measurements[5].reason or "")
    assert HANG_S <= report.wall_s < 60
    assert report.exit_code is ExitCode.CRASHED


def test_a_bug_in_the_worker_is_a_crash_of_its_task_and_a_broken_context_is_left_to_a_new_one(run: Supervise) -> None:
    report = run("1:raise,4:break")
    assert statuses(report) == [
        *(MeasurementStatus.OK, MeasurementStatus.CRASHED, MeasurementStatus.OK, MeasurementStatus.OK),
        *(MeasurementStatus.FAILED, MeasurementStatus.OK, MeasurementStatus.OK, MeasurementStatus.OK),
    ]
    assert "ValueError: a bug in the worker" in (report.measurements[1].reason or "")
    assert processes(report) == 3


def test_workers_are_not_replaced_for_ever(run: Supervise) -> None:
    report = run(",".join(f"{number}:crash" for number in range(8)))
    assert statuses(report) == [MeasurementStatus.CRASHED] * WORKER_LIMIT + [MeasurementStatus.WAIVED] * (
        8 - WORKER_LIMIT
    )
    assert report.measurements[-1].reason == f"not run: {WORKER_LIMIT} workers had failed before"
    assert report.exit_code is ExitCode.CRASHED


@pytest.mark.long
def test_a_soak_goes_on_after_a_crash_and_keeps_what_was_found(run: Supervise) -> None:
    report = run("1:crash", gpus=1, duration_s=1)
    assert statuses(report) == [MeasurementStatus.OK, MeasurementStatus.CRASHED]
    assert report.measurements[0].attempts >= WORKER_LIMIT - 1
    assert report.exit_code is ExitCode.CRASHED


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "status"),
    [("crash", MeasurementStatus.CRASHED), ("hang", MeasurementStatus.TIMED_OUT), ("raise", MeasurementStatus.FAILED)],
)
def test_workers_that_fail_at_setting_up_cost_all_tasks(run: Supervise, fault: str, status: MeasurementStatus) -> None:
    report = run(f"setup:{fault}", timeout_s=HANG_S if fault == "hang" else 60)
    assert statuses(report) == [status] * 8
    assert {m.last_call for m in report.measurements} == {None if fault == "raise" else "cuInit"}
    assert report.exit_code is ExitCode.CRASHED


def test_a_worker_that_fails_at_releasing_keeps_its_results_but_not_quiet(run: Supervise) -> None:
    report = run("close:crash")
    assert statuses(report) == [MeasurementStatus.OK] * 8
    assert len(report.problems) == 1
    assert "cuMemRelease" in report.problems[0]
    assert report.exit_code is ExitCode.CRASHED


def test_sigterm_ends_the_run_with_what_there_is(run: Supervise) -> None:
    with stopping():
        report = run("3:interrupt")
    assert report.interrupted
    assert statuses(report) == [*[MeasurementStatus.OK] * 3, *[MeasurementStatus.WAIVED] * 5]
    assert {m.reason for m in report.measurements[3:]} == {"interrupted before it was done"}
    assert report.exit_code is ExitCode.INTERRUPTED


def test_no_process_is_left_and_waived_tasks_start_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "Child", lambda *_args, **_options: pytest.fail("a worker was started"))
    nothing, not_here = plan(), Waiver(kind=WaiverKind.REFUSED, reason="not here")
    waived = Plan(
        settings=nothing.settings,
        gpus=nothing.gpus,
        numa_nodes=nothing.numa_nodes,
        tasks=PlannedTasks.of([replace(planned, waivers=(not_here,)) for planned in nothing.tasks]),
        steps=(),
    )
    report = supervise(waived, MACHINE, on_progress=lambda _done, _task: None)
    assert set(statuses(report)) == {MeasurementStatus.WAIVED}
    assert report.exit_code is ExitCode.NOTHING


def test_progress_names_the_task_under_way_and_counts_what_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EGMCTL_TEST_FAULT", raising=False)
    seen: list[tuple[float, str | None]] = []

    def on_progress(part: float, task: Task | None) -> None:
        seen.append((part, task.path if task else None))

    supervise(plan(gpus=1), MACHINE, on_progress=on_progress, target=TARGET)
    assert [path for _, path in seen] == ["NUMA0 -> GPU0", None, "GPU0 -> NUMA0", None]
    assert seen[0][0] == pytest.approx(0)
    assert 0 < seen[1][0] < 1
    assert seen[3][0] == pytest.approx(1)


class TestPairsAtOnce:
    """Four GPUs: the pairs of a round of the tournament are measured at once, and one of them alone."""

    def test_where_that_changes_nothing_the_result_stands_with_its_proof(self, run: Supervise) -> None:
        report = run(gpus=4)
        pairs = [m for m in report.measurements if m.case.startswith("device_to_device")]
        assert {m.concurrent for m in pairs} == {2}
        assert sum(m.alone is not None for m in pairs) == 2 * 6
        assert {m.alone for m in pairs} == {None, 100.0}
        assert not any("one at a time" in note for note in report.notes)

    @pytest.mark.parametrize(("together", "stands"), [("99.1", True), ("98.9", False), ("101.5", False)])
    def test_where_it_changes_more_than_a_percent_the_class_is_measured_one_pair_at_a_time(
        self, run: Supervise, monkeypatch: pytest.MonkeyPatch, together: str, stands: bool
    ) -> None:
        monkeypatch.setenv("EGMCTL_TEST_TOGETHER", together)
        report = run(gpus=4)
        pairs = [m for m in report.measurements if m.case.startswith("device_to_device")]
        assert {m.concurrent for m in pairs} == ({2} if stands else {1})
        assert {m.bandwidth_gb_s and m.bandwidth_gb_s.median for m in pairs} == {float(together) if stands else 100.0}
        said = [note for note in report.notes if "one at a time" in note]
        assert len(said) == (0 if stands else 2)

    @pytest.mark.parametrize(
        ("fault", "together", "status", "code"),
        [
            ("{member}:crash", "100", MeasurementStatus.CRASHED, ExitCode.CRASHED),
            ("{proof}p:corrupt", "100", MeasurementStatus.CORRUPT, ExitCode.FAILED),
            # Wrong among others, and right alone.
            ("{member}t:corrupt", "90", MeasurementStatus.CORRUPT, ExitCode.FAILED),
            # What the proof would have shown is unknown, and the results stand.
            ("{proof}p:crash", "100", None, ExitCode.CRASHED),
        ],
    )
    def test_what_goes_wrong_costs_its_own_pair_at_most(
        self,
        run: Supervise,
        monkeypatch: pytest.MonkeyPatch,
        fault: str,
        together: str,
        status: MeasurementStatus | None,
        code: int,
    ) -> None:
        monkeypatch.setenv("EGMCTL_TEST_TOGETHER", together)
        planned = plan(gpus=4)
        member = next(step.tasks for step in planned.steps if len(step.tasks) > 1)[1]
        (proof,) = next(step.tasks for step in planned.steps if step.proof)
        report = run(fault.format(member=member, proof=proof), gpus=4)
        wrong = {number: found for number, found in enumerate(statuses(report)) if found is not MeasurementStatus.OK}
        faulty = proof if "proof" in fault else member
        assert wrong == ({} if status is None else {faulty: status})
        assert any("one at a time" in note for note in report.notes) is (together != "100")
        assert len(report.problems) == (status is None)
        assert report.exit_code is code


def test_unstable_samples_are_taken_again_three_times(run: Supervise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EGMCTL_TEST_UNSTABLE", "1")
    report = run(gpus=1)
    assert [m.attempts for m in report.measurements] == [ATTEMPTS, ATTEMPTS]
    assert set(statuses(report)) == {MeasurementStatus.UNSTABLE}


def test_a_soak_goes_round_until_its_time_is_up_and_keeps_the_worst(run: Supervise) -> None:
    report = run(gpus=1, duration_s=1)
    assert report.wall_s >= 1
    for measurement in report.measurements:
        assert measurement.attempts > 1
        assert len(measurement.samples) == measurement.attempts
        assert measurement.slowest_at_s is not None
        assert measurement.slowest_at_s <= report.wall_s


def test_the_worker_has_the_environment_that_the_gate_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}

    def child(*_args: object, environment: dict[str, object], **_options: object) -> None:
        given.update(environment)
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "Child", child)
    supervise(plan(), MACHINE, on_progress=lambda _done, _task: None)
    assert given == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_MODULE_LOADING": "EAGER", "CUDA_LAUNCH_BLOCKING": None}
    assert "CUDA_VISIBLE_DEVICES" not in given
    assert os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"


DEGRADED = ("host_numa_to_device_memcpy_ce", "device_to_host_numa_memcpy_ce")


class TestBlockedEgmRoutes:
    """Tried in processes of their own: two GPUs of a Grace CPU, memory of another, whose GPUs are denied."""

    @pytest.fixture
    def tried(self, monkeypatch: pytest.MonkeyPatch) -> Supervise:
        """Run only the four tasks that are tried so."""
        machine = with_gpu_denied(shipped("gb200-tray"), 2, 3)
        cases = [case for case in CASES if case.name in DEGRADED]

        def run(fault: str, timeout_s: float = 30, of: int = 2) -> RunReport:
            monkeypatch.setenv("EGMCTL_TEST_FAULT", fault)
            settings = Settings(size_bytes=1 << 20, copies=1, samples=1, timeout_s=timeout_s)
            plan = make_plan(machine, (machine.gpus or ())[:2], [1], cases[:of], settings)
            assert all(step.isolated for step in plan.steps)
            return answered(supervise(plan, machine, on_progress=lambda _done, _task: None, target=TARGET))

        return run

    @pytest.mark.long
    @pytest.mark.parametrize("how", ["crash", "hang"])
    def test_explain_what_fails_where_the_memory_is_made(self, tried: Supervise, how: str) -> None:
        first = tried(f"0:{how}@cuMemCreate", timeout_s=HANG_S if how == "hang" else 60, of=1).measurements[0]
        assert (first.status, first.known_cause, first.last_call) == (MeasurementStatus.FAILED, True, "cuMemCreate")
        assert "; the EGM route is blocked: GPU2: denied by the device cgroup" in (first.reason or "")

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("how", "status"),
        [
            ("crash", MeasurementStatus.CRASHED),
            ("hang", MeasurementStatus.TIMED_OUT),
            ("break", MeasurementStatus.FAILED),
        ],
    )
    def test_explain_nothing_that_fails_elsewhere(self, tried: Supervise, how: str, status: MeasurementStatus) -> None:
        report = tried(f"0:{how}", timeout_s=HANG_S if how == "hang" else 60, of=1)
        assert statuses(report) == [status, MeasurementStatus.OK]
        assert "EGM" not in (report.measurements[0].reason or "")
        assert report.exit_code is ExitCode.CRASHED

    @pytest.mark.long
    def test_are_not_waited_for_one_after_the_other_for_ever(
        self, tried: Supervise, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(supervisor, "WORKER_LIMIT", 2)
        report = tried(",".join(f"{number}:hang@cuMemCreate" for number in range(4)), timeout_s=HANG_S)
        assert [m.status for m in report.measurements].count(MeasurementStatus.FAILED) == 2
        waived = [m.reason for m in report.measurements if m.status is MeasurementStatus.WAIVED]
        assert waived == ["not run: 2 processes that tried blocked EGM routes had failed before"] * 2


def test_sigterm_while_the_last_process_ends_loses_nothing(run: Supervise, monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()
    close, wait = pool.Group.close, Endings.wait
    waits = threading.Event()

    def wait_for_ends(endings: Endings) -> None:
        if endings._under_way:
            waits.set()
        wait(endings)

    def close_after_sigterm(group: pool.Group) -> None:
        assert waits.wait(60)
        signal.pthread_kill(known(threading.main_thread().ident), signal.SIGTERM)
        close(group)

    monkeypatch.setattr(Endings, "wait", wait_for_ends)
    monkeypatch.setattr(pool.Group, "close", close_after_sigterm)
    with stopping():
        report = run()
    assert report.interrupted
    assert statuses(report) == [MeasurementStatus.OK] * 8
    assert children() == before


@pytest.mark.parametrize("duration_s", [None, 1.0], ids=["once", "a soak"])
def test_ranks_open_their_contexts_while_the_worker_releases_everything(
    monkeypatch: pytest.MonkeyPatch, duration_s: float | None
) -> None:
    before = children()
    done: list[object] = []
    ask = pool.Group.ask

    def asked(group: pool.Group, request: Message, *more: Any) -> list[Message]:
        done.append(str(request["do"]))
        return ask(group, request, *more)

    def start(size: int) -> pool.Group:
        done.append("start")
        return pool.Group({number: Child(TARGET, {}) for number in range(size)})

    monkeypatch.setattr(pool.Group, "ask", asked)
    monkeypatch.setattr(pool.Group, "open_contexts", lambda _group, gpus: done.append(gpus))
    ipc = next(case for case in CASES if case.name == "ipc_posix_fd_device_write_ce")
    settings = Settings(size_bytes=1 << 20, copies=1, samples=1, timeout_s=30, duration_s=duration_s)
    planned = make_plan(MACHINE, (MACHINE.gpus or ())[:2], [0], [FOUR[0], ipc], settings)
    report = supervise(planned, MACHINE, on_progress=lambda _done, _task: None, target=TARGET, start_ranks=start)
    assert set(statuses(report)) == {MeasurementStatus.OK}
    without_steps = [word for word in done if word != "measure"]
    own_gpu = {rank.number: (rank.bus_id,) for rank in planned.ranks}
    # In the first round the ranks start before the worker has its preparation; in a soak the end may come in any round.
    assert without_steps[:6] == ["start", "prepare", own_gpu, "finish", "prepare", "finish"]
    later_round = ["prepare", "start", own_gpu, "finish", "prepare", "finish"]
    assert without_steps[6:] == (later_round * len(done))[: len(without_steps) - 6]
    assert (len(without_steps) > 6) == (duration_s is not None)
    assert children() == before
