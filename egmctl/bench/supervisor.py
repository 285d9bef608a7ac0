"""Runs a plan in worker processes and keeps what they found, whatever becomes of them.

A worker that dies or hangs costs the task that was under way: it is ``crashed`` or ``timed-out`` with the driver call
it was in, and a new worker goes on with the rest.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable

from egmctl.bench.plan import Plan
from egmctl.bench.protocol import Event, Order, OrderedTask
from egmctl.errors import ChildFailed
from egmctl.launch import Child, signals, spawn
from egmctl.model.codec import from_json, to_json
from egmctl.model.machine import Machine
from egmctl.model.measurement import Measurement, RunReport, Status, Task, finish

Progress = Callable[[int, Task | None], None]
"""Called with the number of tasks that are over and the task under way, ``None`` between two."""

WORKER = "egmctl.bench.worker:run"

WORKER_LIMIT = 4
"""Workers in one run. What makes the fourth one end would end the next one too, each time after a whole timeout."""

ENVIRONMENT = {
    # CUDA_VISIBLE_DEVICES is left as the user set it; this says how its numbers are meant (egmctl.bench.plan).
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    # A kernel that is loaded at its first launch waits for the GPU to be idle, which it never is behind a gate.
    "CUDA_MODULE_LOADING": "EAGER",
    # The launch of a gate that waits for the gate to open would never return.
    "CUDA_LAUNCH_BLOCKING": None,
}
"""Changes to the worker's environment."""


def supervise(plan: Plan, machine: Machine, *, on_progress: Progress, target: str = WORKER) -> RunReport:
    """Measure every runnable task of a plan.

    SIGINT, SIGTERM and SIGHUP end the run: the report then says that it was interrupted and holds what there is.

    Parameters
    ----------
    machine
        The one that the plan was made for.
    on_progress
        Called at each step.
    target
        The worker, as :func:`egmctl.launch.spawn` takes it; another one only in tests.
    """
    started_at = datetime.datetime.now(datetime.UTC)
    started = time.perf_counter()
    run = _Run(plan, on_progress, target)
    interrupted = False
    try:
        with signals.interruptible():
            while run.pending and run.workers < WORKER_LIMIT:
                run.work()
    except KeyboardInterrupt:
        interrupted = True
    why = "interrupted before it was over" if interrupted else f"not run: {WORKER_LIMIT} workers have failed before it"
    for number in run.pending:
        run.found[number] = finish(run.tasks[number], Status.WAIVED, reason=why)
    return RunReport(
        settings=plan.settings,
        gpus=plan.gpus,
        numa_nodes=plan.numa_nodes,
        driver_version=machine.driver.driver_version if machine.driver else None,
        cuda_driver_version=machine.driver.cuda_driver_version if machine.driver else None,
        started_at=started_at.isoformat(timespec="seconds"),
        wall_s=time.perf_counter() - started,
        interrupted=interrupted,
        notes=(*plan.notes, *run.notes),
        problems=tuple(run.problems),
        measurements=tuple(run.found[number] for number in range(len(plan.tasks))),
    )


class _Run:
    """The state of one run."""

    def __init__(self, plan: Plan, on_progress: Progress, target: str) -> None:
        self.tasks = [planned.task for planned in plan.tasks]
        self.found: dict[int, Measurement] = {
            number: finish(planned.task, Status.WAIVED, reason=planned.waiver)
            for number, planned in enumerate(plan.tasks)
            if planned.waiver is not None
        }
        self.workers = 0
        self.notes: list[str] = []
        self.problems: list[str] = []
        self._plan = plan
        self._on_progress = on_progress
        self._target = target
        self._current: int | None = None

    @property
    def pending(self) -> list[int]:
        """The numbers of the tasks that have no outcome yet."""
        return [number for number in range(len(self.tasks)) if number not in self.found]

    def work(self) -> None:
        """Have one worker measure the pending tasks, until it is done or fails."""
        self.workers += 1
        self._current = None
        try:
            with spawn(self._target, self._order(), environment=ENVIRONMENT) as worker:
                self._listen(worker)
        except ChildFailed as error:
            self._blame(error)

    def _order(self) -> dict[str, object]:
        tasks = tuple(OrderedTask(number=number, task=self.tasks[number]) for number in self.pending)
        taking_part = {
            bus_id
            for ordered in tasks
            for bus_id in (ordered.task.initiator, ordered.task.source.bus_id, ordered.task.destination.bus_id)
        }
        gpus = tuple(gpu.bus_id for gpu in self._plan.gpus if gpu.bus_id in taking_part)
        order: dict[str, object] = to_json(Order(settings=self._plan.settings, gpus=gpus, tasks=tasks))
        return order

    def _listen(self, worker: Child) -> None:
        while True:
            message, _ = worker.receive(self._plan.settings.timeout_s)
            match message["event"]:
                case Event.READY:
                    if message["note"] and message["note"] not in self.notes:
                        self.notes.append(message["note"])
                case Event.STARTED:
                    self._current = message["task"]
                    self._on_progress(len(self.found), self.tasks[message["task"]])
                case Event.MEASURED:
                    self.found[message["task"]] = from_json(Measurement, message["measurement"])
                    self._current = None
                    self._on_progress(len(self.found), None)
                case Event.BROKEN | Event.DONE:
                    return

    def _blame(self, error: ChildFailed) -> None:
        """Give the task under way, or all that are pending where there is none, what became of the worker."""
        status = Status.TIMED_OUT if error.how == "timed-out" else Status.CRASHED
        if self._current is not None:
            blamed = [self._current]
        elif self.pending:
            # It failed at setting up: the next one would fail there too.
            blamed = self.pending
            status = Status.FAILED if error.how == "raised" else status
        else:
            self.problems.append(str(error))
            return
        for number in blamed:
            self.found[number] = finish(self.tasks[number], status, reason=str(error), last_call=error.last_call)
