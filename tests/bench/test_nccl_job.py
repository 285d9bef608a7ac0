"""NCCL in the tasks of a job: what stays after an interrupt or a lost task, and the folder that all tasks share.

The tasks are threads that meet at a barrier in place of MPI; their NCCL processes are real, with the fake PyTorch.
Under mpirun: ``tests/mpi/test_nccl.py``.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from egmctl.bench.nccl.job import measure_nccl_job
from egmctl.bench.nccl.plan import NcclRequest
from egmctl.model.answer import State
from egmctl.model.codec import from_json, to_json
from egmctl.model.machine import Machine
from egmctl.model.measurement import RunReport, Settings
from egmctl.model.nccl import Ending, NcclProgram, NcclStatus
from egmctl.mpi.world import RanksMissing, World
from egmctl.verdict.answers import answered
from egmctl.verdict.nccl import with_nccl_cause
from tests.conftest import ROOT
from tests.doctor.machines import shipped

pytestmark = pytest.mark.processes
TASKS = 2
REQUEST = NcclRequest(
    collectives=("all_reduce", "all_gather"),
    settings=Settings(size_bytes=1 << 16, copies=2, samples=2, timeout_s=60),
    size_bytes=1 << 16,
    nvls=False,
)


class Task:
    """A task's connection to the others, as :class:`egmctl.mpi.world.World`."""

    host = "n1"
    size = TASKS

    def __init__(self, rank: int, met: threading.Barrier, values: dict[int, Any]) -> None:
        self.rank = rank
        self.broken = False
        self.lost: tuple[int, ...] = ()
        """The tasks that rank 0 misses when it calls the roll."""
        self.stops: BaseException | None = None
        """What ends this task before the exchange of the second collective, or once another task has ended there."""
        self.received: Callable[[list[Any]], list[Any]] = lambda values: values
        self._met, self._values = met, values

    def all_gather(self, value: Any, timeout_s: float) -> list[Any]:
        assert timeout_s > 0
        said = value.get("messages", ()) if isinstance(value, dict) else ()
        if self.stops is not None and any(message.get("collective") == "all_gather" for _, message in said):
            # The processes of the tasks are not equally fast: another task may not have come to its second collective.
            self._met.abort()
            raise self.stops
        self._values[self.rank] = value
        try:
            self._met.wait(60)
            values = [self._values[rank] for rank in range(TASKS)]
            self._met.wait(60)
        except threading.BrokenBarrierError:
            if self.stops is None:
                raise
            raise self.stops from None
        return self.received(values)

    def share(self, kind: Any, read: Any, describe: Any, timeout_s: float) -> tuple[Any, list[Any]]:
        facts = read()
        return facts, [from_json(kind, part) for part in self.all_gather(to_json(describe(facts)), timeout_s)]

    def roll_call(self, within_s: float) -> tuple[int, ...]:
        assert within_s < 1, "mpirun kills a task a second after its signal"
        return self.lost


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Task, ...]:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'tests/fake/pytorch'}{os.pathsep}{ROOT}")
    monkeypatch.setattr("egmctl.bench.nccl.job.installed", lambda: NcclProgram.TORCH)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    met, values = threading.Barrier(TASKS), dict[int, Any]()
    return tuple(Task(rank, met, values) for rank in range(TASKS))


def measured(tasks: Sequence[Task]) -> tuple[RunReport, Sequence[BaseException | None]]:
    """Return the report of rank 0, explained and answered, and how the other tasks ended."""
    node = shipped("hgx-h200x4")
    gpus = node.gpus or ()

    def of_task(task: Task) -> tuple[RunReport, Machine] | None:
        return measure_nccl_job(cast(World, task), lambda: (node, (gpus[task.rank],)), REQUEST)

    with ThreadPoolExecutor(TASKS) as pool:
        ended = [pool.submit(of_task, task) for task in tasks]
    whole = ended[0].result()
    assert whole is not None
    report, _ = whole
    assert report.nccl is not None
    return answered(with_nccl_cause(report, report.nccl)), [task.exception() for task in ended[1:]]


def test_what_was_measured_before_an_interrupt_of_the_job_stays(tasks: tuple[Task, ...], tmp_path: Path) -> None:
    for task in tasks:
        task.stops = KeyboardInterrupt()
    report, (other,) = measured(tasks)
    assert report.nccl is not None
    assert [result.name for result in report.nccl.results] == ["all_reduce"]
    assert (report.interrupted, report.nccl.status, report.nccl.versions["nccl"]) == (
        True,
        NcclStatus.WAIVED,
        "2.28.9+cuda13.0",
    )
    assert (report.answer.state, report.answer.exit_code) == (State.INTERRUPTED, 130)
    assert report.answer.sentence == "stopped with 1 of 2 collectives of NCCL made"
    assert isinstance(other, KeyboardInterrupt)
    assert tasks[0].broken, "the others send no message any more, so that the job is aborted"
    assert not [*tmp_path.glob("egmctl-nccl-*")]


@pytest.mark.parametrize("interrupted", [True, False])
def test_a_lost_task_is_the_failure_and_what_was_measured_stays(tasks: tuple[Task, ...], interrupted: bool) -> None:
    # mpirun interrupts all tasks where it sees that one is gone; without that rank 0 waits in vain.
    tasks[0].stops = KeyboardInterrupt() if interrupted else RanksMissing((1,))
    tasks[1].stops = RanksMissing(())
    tasks[0].lost = (1,)
    report, (other,) = measured(tasks)
    assert report.nccl is not None
    assert [result.name for result in report.nccl.results] == ["all_reduce"]
    assert (report.interrupted, report.nccl.status, report.answer.exit_code) == (False, NcclStatus.FAILED, 4)
    assert (report.nccl.failures[0].rank, report.nccl.failures[0].how) == (1, Ending.CRASHED)
    assert report.nccl.reason == ("NCCL failed in all_gather: rank 1 (GPU1): its command is gone or does not respond")
    assert isinstance(other, RanksMissing)


def test_a_folder_that_a_task_does_not_see_is_named(tasks: tuple[Task, ...]) -> None:
    def elsewhere(values: list[Any]) -> list[Any]:
        parts = [value for value in values if isinstance(value, dict) and "folder" in value]
        return [part | {"folder": "/nowhere"} for part in parts] or values

    tasks[1].received = elsewhere
    report, (other,) = measured(tasks)
    assert other is None
    assert report.nccl is not None
    assert [(failure.rank, failure.how) for failure in report.nccl.failures] == [(1, Ending.NO_FOLDER)]
    assert report.answer.sentence.endswith("TMPDIR must name a folder that all tasks of the job can write")
    assert report.answer.next_step is not None
    assert report.answer.next_step.text.startswith("Set TMPDIR to a folder")
