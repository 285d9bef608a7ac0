"""Run a plan in worker processes, and keep their results even if they die.

One worker measures most steps; a group of ranks measures cases between processes. If a process dies or hangs, only the
current step is lost: its tasks are ``crashed`` or ``timed-out``, with the driver call in progress, and a new worker or
group continues with the rest. A process that crashes during set-up is replaced once.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from egmctl.bench.buffers import Buffer, Lifetimes, buffers_of
from egmctl.bench.case import Case
from egmctl.bench.plan import Plan
from egmctl.bench.plan.cost import steps_seconds
from egmctl.bench.plan.task import shortened_task
from egmctl.bench.processes.group import WORKER, Group, GroupFailed, start_group, start_worker
from egmctl.bench.processes.protocol import NodeAccess, OrderedStep, Preparation, Request
from egmctl.bench.results import Soak, of_both, with_proof
from egmctl.bench.suites import CASES
from egmctl.driver.signatures import cause_of_crash
from egmctl.errors import ChildFailed
from egmctl.facts.host import HostLoadWatch
from egmctl.facts.kernel_log import KernelLogWatch
from egmctl.facts.redact import redact
from egmctl.facts.root import Root
from egmctl.journal.events import Begin, Logged, NcclOutcome, Note, Problem, Recorder, StepBegun, TaskOutcome, forget
from egmctl.launch import Child, Endings
from egmctl.model.codec import from_json, to_json
from egmctl.model.finding import WaiverKind
from egmctl.model.listing import PlanStep
from egmctl.model.machine import Machine
from egmctl.model.measurement import (
    CaseSeconds,
    Measurement,
    MeasurementStatus,
    PhaseSeconds,
    RunReport,
    RunSeconds,
    finish,
    waived,
)
from egmctl.model.nccl import NcclPlan, NcclRun
from egmctl.model.record import BusId
from egmctl.model.route import HOST_MEMORY
from egmctl.model.task import Endpoint, Flow, NumberedTask, Task
from egmctl.topology.access import nvml_failure
from egmctl.units import parse_kernel_list

OnProgress = Callable[[float, Task | None], None]
"""A function of the finished fraction of the run, 0 to 1, and a task in progress, ``None`` between steps."""

WORKER_LIMIT = 4
"""The number of failed processes with one name (:attr:`_Kind.name`) after which its remaining steps are waived. More
would probably fail too, each after a whole timeout."""

PROOF_TOLERANCE = 0.01
"""The maximum relative difference between a pair measured alone and the same pair measured with others. If one pair
differs by more, all pairs of its group are measured one at a time. NVSwitch showed 0.0004."""

ATTEMPTS = 4
"""The maximum number of attempts at a step with unstable samples."""


def supervise(
    plan: Plan,
    machine: Machine,
    *,
    on_progress: OnProgress,
    worker: Child | None = None,
    target: str = WORKER,
    start_ranks: Callable[[int], Group] = start_group,
    recorder: Recorder = forget,
) -> RunReport:
    """Measure every step of a plan.

    KeyboardInterrupt (:mod:`egmctl.signals`) ends the run. The report then has the results so far and is marked as
    interrupted.

    Parameters
    ----------
    machine
        The machine for which the plan was made.
    on_progress
        Called before and after each step.
    worker
        The first worker, if it has been started already.
    target
        The target of later workers, as in :func:`start_worker`.
    start_ranks
        A function that starts a given number of ranks.
    recorder
        Called with each event of the run.
    """
    started_at = datetime.datetime.now(datetime.timezone.utc)
    started = time.perf_counter()
    root = Root.from_environment()
    watch = KernelLogWatch(root)
    # In a job of several commands the other ranks would count as other processes, and their nodes are not seen.
    load_watch = None if any(rank.host for rank in plan.ranks) else HostLoadWatch(root)
    report = RunReport(
        settings=plan.settings,
        gpus=plan.gpus,
        numa_nodes=plan.numa_nodes,
        driver_version=machine.driver.driver_version if machine.driver else None,
        cuda_driver_version=machine.driver.cuda_driver_version if machine.driver else None,
        started_at=started_at.isoformat(timespec="seconds"),
        wall_s=0.0,
        interrupted=False,
        notes=plan.notes,
        kernel_messages=watch.messages,
        ranks=plan.ranks,
        measurements=(),
        machines=(redact(machine),),
    )
    recorder(Begin(report=report, steps=len(plan.steps)))
    run = _Run(plan, machine, on_progress, recorder, watch)
    interrupted = False
    measured_by_nccl: NcclRun | None = None

    def start(by_ranks: bool) -> Group:
        nonlocal worker
        if by_ranks:
            return start_ranks(len(plan.ranks))
        first, worker = worker, None
        return Group({0: first or start_worker(target)})

    try:
        run.start_ranks(start)
        while run.goes_on:
            run.work(start)
        run.wait()
        if plan.nccl is not None:
            # The workers have ended: NCCL has the GPUs and their memory to itself.
            measured_by_nccl = _by_nccl(plan.nccl, machine, plan.settings.timeout_s)
            interrupted = measured_by_nccl.is_interrupted
    except KeyboardInterrupt:
        interrupted = True
        if plan.nccl is not None and measured_by_nccl is None:
            measured_by_nccl = _before_nccl(plan.nccl)
    finally:
        run.close()
    run.waive_rest("interrupted before it was done" if interrupted else None)
    run.tell()
    if measured_by_nccl is not None:
        recorder(NcclOutcome(nccl=measured_by_nccl))
    watch.close()
    wall_s = time.perf_counter() - started
    return replace(
        report,
        wall_s=wall_s,
        host_load=None if load_watch is None else load_watch.load(),
        seconds=run.spent.of_run(wall_s),
        interrupted=interrupted,
        notes=(*plan.notes, *run.notes),
        problems=tuple(run.problems),
        kernel_messages=watch.messages,
        measurements=set_beside([run.found[number] for number in range(len(plan.tasks))], CASES),
        nccl=measured_by_nccl,
    )


def _by_nccl(plan: NcclPlan, machine: Machine, timeout_s: float) -> NcclRun:
    """Return what NCCL measures."""
    # Other runs need not load what reads NCCL's log.
    from egmctl.bench.nccl.run import measure_plan

    return measure_plan(plan, machine, timeout_s)


def _before_nccl(plan: NcclPlan) -> NcclRun:
    """Return the outcome of NCCL in a run that was interrupted before it."""
    from egmctl.bench.nccl.outcome import interrupted

    return interrupted(plan)


def open_contexts(plan: Plan, worker: Child) -> None:
    """Have a worker open the contexts for its steps of a plan, without waiting for it.

    Parameters
    ----------
    worker
        A process of :func:`start_worker`, which becomes the first worker of :func:`supervise`.
    """
    steps = [step for step in plan.steps if step.isolated is None and not plan.tasks[step.tasks[0]].ranks]
    gpus, _ = _taking_part(plan, steps, {})
    Group({0: worker}).open_contexts({0: gpus})


class _Kind(NamedTuple):
    """The kind of processes that measure a step: all steps of a pool are of one kind."""

    by_ranks: bool
    isolated: str | None
    """See :attr:`egmctl.model.listing.PlanStep.isolated`."""

    @property
    def name(self) -> str:
        """The name of such processes. Failures of processes with another name do not count for them."""
        if self.by_ranks:
            return "groups of processes"
        return "processes that tried blocked EGM routes" if self.isolated else "workers"


class _Run:
    """The state of one run."""

    def __init__(
        self, plan: Plan, machine: Machine, on_progress: OnProgress, recorder: Recorder, watch: KernelLogWatch
    ) -> None:
        self.found: dict[int, Measurement] = {
            number: finish(planned, MeasurementStatus.WAIVED, reason=planned.waiver, waivers=planned.waivers)
            for number, planned in enumerate(plan.tasks)
            if planned.waivers
        }
        self.pending = deque(plan.steps)
        self.notes: list[str] = []
        self.problems: list[str] = []
        self.spent = Spent()
        self._ahead: dict[_Kind, Group] = {}
        """Processes that were started before their first step."""
        self._endings = Endings()
        self._plan = plan
        self._failures: Counter[str] = Counter()
        nodes = (machine.host and machine.host.numa_nodes) or ()
        failed = nvml_failure(machine)
        self._no_counters = None if failed is None else f"NVML {failed.words}"
        self._cpus = {node.id: parse_kernel_list(node.cpus) for node in nodes}
        self._tasks = plan.tasks
        self._on_progress = on_progress
        self._recorder = recorder
        self._watch = watch
        self._told = {"notes": 0, "problems": 0}
        for number, not_run in self.found.items():
            recorder(TaskOutcome(number=number, measurement=not_run))
        self._lifetimes = Lifetimes(map(self._buffers, plan.steps))
        self._differences: dict[str, float] = {}
        """The largest difference between a pair measured alone and the same pair measured with others, by group."""
        self._died_in_set_up: dict[_Kind, str] = {}
        """The failure of the last pool if it crashed before its first step, by kind of pool."""
        self._seconds = dict(zip(plan.steps, steps_seconds(plan), strict=True))
        self._soak = Soak(plan.settings.duration_s) if plan.settings.duration_s else None

    @property
    def goes_on(self) -> bool:
        """Whether steps are left to measure. A soak starts over at the end."""
        if self._soak and not self.pending and not self._soak.over:
            self.pending.extend(step for step in self._plan.steps if not step.proof)
        self.pending = deque(step for step in self.pending if self._failures[self._kind(step).name] < WORKER_LIMIT)
        return bool(self.pending)

    def work(self, start: Callable[[bool], Group]) -> None:
        """Start a pool and measure the pending steps of its kind until none is left or the pool fails.

        Parameters
        ----------
        start
            A function that starts a group of ranks if its argument is true, else a worker.
        """
        kind = self._kind(self.pending[0])
        under_way: PlanStep | None = None
        started = time.perf_counter()
        try:
            with contextlib.ExitStack() as closing:
                started_ahead = self._ahead.pop(kind, None)
                pool = closing.enter_context(started_ahead or start(kind.by_ranks))
                self._prepare(pool, kind)
                # No step is measured beside a process that may still hold a GPU.
                self._endings.wait()
                self.spent.starting_s += time.perf_counter() - started
                if died := self._died_in_set_up.pop(kind, None):
                    self.problems.append(f"{died} while it was set up; a new one took over")
                while self.goes_on and self._kind(self.pending[0]) == kind:
                    under_way = self.pending.popleft()
                    if not self._measure(pool, under_way):
                        self._failures[kind.name] += 1
                        return
                    under_way = None
                ending = time.perf_counter()
                self._open_ranks(start)
                pool.ask({"do": Request.FINISH}, self._plan.settings.timeout_s)
                # It has released everything: the rest of its end takes place beside the start of the next.
                self._endings.begin(closing.pop_all().close)
            self.spent.ending_s += time.perf_counter() - ending
        except ChildFailed as error:
            self._failures[kind.name] += 1
            self._blame(error, under_way, kind)

    def start_ranks(self, start: Callable[[bool], Group]) -> None:
        """Start the ranks if a worker measures before them: they import their modules while it opens its contexts."""
        starting = time.perf_counter()
        kinds = [self._kind(step) for step in self.pending]
        by_ranks = next((kind for kind in kinds if kind.by_ranks), None)
        if by_ranks is not None and not kinds[0].by_ranks:
            # They are started again if that failed.
            with contextlib.suppress(ChildFailed):
                self._ahead[by_ranks] = start(True)
        self.spent.starting_s += time.perf_counter() - starting

    def _open_ranks(self, start: Callable[[bool], Group]) -> None:
        """If ranks measure next, have them open their contexts, while the process before releases everything."""
        kind = self._kind(self.pending[0]) if self.goes_on else None
        if kind is None or not kind.by_ranks:
            return
        # In a soak each round has ranks of its own. They are started again if that failed.
        with contextlib.suppress(ChildFailed):
            if kind not in self._ahead:
                self._ahead[kind] = start(True)
            self._ahead[kind].open_contexts({rank.number: (rank.bus_id,) for rank in self._plan.ranks})

    def wait(self) -> None:
        """Wait for the end of the processes that have measured."""
        ending = time.perf_counter()
        self._endings.wait()
        self.spent.ending_s += time.perf_counter() - ending

    def close(self) -> None:
        """Close the processes that are left, and wait for the end of all."""
        with self._endings:
            for group in self._ahead.values():
                group.close()

    def waive_rest(self, why: str | None) -> None:
        """Waive every task without an outcome. The default reason is that too many processes have failed."""
        kind = WaiverKind.INTERRUPTED if why else WaiverKind.GIVEN_UP
        for step in self._plan.steps:
            reason = why or f"not run: {WORKER_LIMIT} {self._kind(step).name} had failed before"
            for number in step.tasks:
                if number not in self.found:
                    self._record(number, waived(self._tasks[number], kind, reason))

    def tell(self) -> None:
        """Send new notes, problems and kernel log messages to the recorder."""
        if logged := self._watch.events():
            self._recorder(Logged(events=tuple(logged)))
        for note in self.notes[self._told["notes"] :]:
            self._recorder(Note(text=note))
        for problem in self.problems[self._told["problems"] :]:
            self._recorder(Problem(text=problem))
        self._told = {"notes": len(self.notes), "problems": len(self.problems)}

    def _kind(self, step: PlanStep) -> _Kind:
        return _Kind(bool(self._tasks[step.tasks[0]].ranks), step.isolated)

    def _prepare(self, pool: Group, kind: _Kind) -> None:
        """Make a pool set up the GPUs for the pending steps of its kind."""
        plan = self._plan
        ranks = plan.ranks if kind.by_ranks else ()
        access: tuple[NodeAccess, ...] = ()
        gpus = tuple(rank.bus_id for rank in ranks)
        if not ranks:
            steps = [step for step in self.pending if self._kind(step) == kind]
            gpus, access = _taking_part(plan, steps, self._cpus)
        preparation = Preparation(
            settings=plan.settings, gpus=gpus, host_access=access, ranks=ranks, no_counters=self._no_counters
        )
        order = {"do": Request.PREPARE, "preparation": to_json(preparation)}
        pool.ask(order, plan.settings.timeout_s)

    def _measure(self, pool: Group, step: PlanStep) -> bool:
        """Measure a step in a pool; return whether the pool can continue."""
        tasks = tuple(NumberedTask(number=number, task=self._tasks[number]) for number in step.tasks)
        ordered = OrderedStep(
            tasks=tuple(replace(task, task=shortened_task(task.task)) for task in tasks) if step.proof else tasks,
            proof=step.proof,
            # A soak uses all buffers again.
            release=() if self._soak else self._lifetimes.finish(self._buffers(step)),
        )
        self._on_progress(self._part_over(step), self._tasks[step.tasks[0]])
        self.tell()
        self._recorder(StepBegun(tasks=tasks))
        # Many samples of large buffers may take longer than it takes to be sure that something hangs.
        timeout_s = max(self._plan.settings.timeout_s, 4 * self._seconds.get(step, 0))
        over = pool.ask(
            {"do": Request.MEASURE, "step": to_json(ordered)},
            timeout_s,
            lambda message: self._keep(step, message["task"], from_json(Measurement, message["measurement"])),
        )
        self.spent.add(self._tasks[step.tasks[0]].case, over[0].get("spent"))
        self._on_progress(self._part_over(), None)
        self.tell()
        self.problems += [message["problem"] for message in over if message["problem"]]
        self._repeat(step)
        self._judge(step)
        return not any(message["broken"] for message in over)

    def _part_over(self, under_way: PlanStep | None = None) -> float:
        """Return the finished fraction of a soak's duration, or else of the estimated time of all steps."""
        if self._soak is not None:
            return self._soak.part_over
        ahead = [*self.pending]
        if under_way:
            ahead.append(under_way)
        seconds = sum(self._seconds.get(step, 0) for step in ahead)
        return max(0, 1 - seconds / (sum(self._seconds.values()) or 1))

    def _keep(self, step: PlanStep, number: int, measurement: Measurement) -> None:
        before = self.found.get(number)
        measurement = by_blocked_route(measurement)
        if not step.proof:
            self._record(number, (self._soak.merge if self._soak else of_both)(before, measurement))
        elif before is not None:
            kept, difference = with_proof(before, measurement)
            if difference is not None and step.group is not None:
                self._differences[step.group] = max(difference, self._differences.get(step.group, 0))
            self._record(number, kept)

    def _record(self, number: int, outcome: Measurement) -> None:
        self.found[number] = outcome
        self._recorder(TaskOutcome(number=number, measurement=outcome))

    def _repeat(self, step: PlanStep) -> None:
        """Queue a step again if its samples are unstable."""
        measurements = [self.found[number] for number in step.tasks if number in self.found]
        unstable = any(m.status is MeasurementStatus.UNSTABLE and m.attempts < ATTEMPTS for m in measurements)
        if unstable and not step.proof and self._soak is None:
            self._lifetimes.add(self._buffers(step))
            self.pending.appendleft(step)

    def _judge(self, step: PlanStep) -> None:
        """After a group's last step, queue its pairs one at a time if measuring them together changed their results."""
        group = step.group
        if group is None or self._soak is not None or any(later.group == group for later in self.pending):
            return
        difference = self._differences.pop(group, 0)
        if difference <= PROOF_TOLERANCE:
            return
        steps = [PlanStep(tasks=(n,)) for s in self._plan.steps if s.group == group and not s.proof for n in s.tasks]
        self.notes.append(
            f"{group}: a pair alone differs by {100 * difference:.1f} % from the same pair among others, so they were "
            "measured again one at a time"
        )
        for single in reversed(steps):
            self._lifetimes.add(self._buffers(single))
            self.pending.appendleft(single)

    def _blame(self, error: ChildFailed, under_way: PlanStep | None, kind: _Kind) -> None:
        """Record a pool's failure as the outcome of the current step, or without one of all pending steps of its kind.

        After the first crash during set-up, these stay pending for a new pool.
        """
        self.tell()
        status = MeasurementStatus.TIMED_OUT if error.how == "timed-out" else MeasurementStatus.CRASHED
        if under_way is not None:
            again = self._soak is not None and not under_way.proof
            blamed = [number for number in under_way.tasks if again or number not in self.found]
        else:
            lost = [step for step in self.pending if self._kind(step) == kind]
            again = kind not in self._died_in_set_up and error.how == "crashed"
            if lost and again and self._failures[kind.name] < WORKER_LIMIT:
                # A signal may have killed that process only.
                self._died_in_set_up[kind] = str(error)
                return
            blamed = [number for step in lost for number in step.tasks if number not in self.found]
            status = MeasurementStatus.FAILED if error.how == "raised" else status
            self.pending = deque(step for step in self.pending if step not in lost)
        if not blamed:
            self.problems.append(str(error))
        for number in blamed:
            cause = cause_of_crash(error.last_call) if error.how == "crashed" else None
            outcome = finish(
                self._tasks[number],
                status,
                reason=f"{error}; {cause}" if cause else str(error),
                known_cause=cause is not None,
                last_call=error.last_call,
                failed_rank=error.rank if isinstance(error, GroupFailed) else None,
            )
            outcome = by_blocked_route(outcome)
            self._record(number, self._soak.merge(self.found.get(number), outcome) if self._soak else outcome)

    def _buffers(self, step: PlanStep) -> tuple[Buffer, ...]:
        return buffers_of([self._tasks[number] for number in step.tasks])


def _taking_part(
    plan: Plan, steps: Iterable[PlanStep], cpus: Mapping[int, tuple[int, ...]]
) -> tuple[tuple[BusId, ...], tuple[NodeAccess, ...]]:
    """Return the GPUs that steps of a worker use, and the NUMA nodes with the GPUs that access their memory."""
    flows = [flow for step in steps for number in step.tasks for flow in plan.tasks[number].flows]
    access = _host_access(plan, flows, cpus)
    bus_ids = {
        bus_id for flow in flows for bus_id in (flow.initiator, flow.source.bus_id, flow.destination.bus_id)
    }.union(*(node.gpus for node in access))
    return tuple(gpu.bus_id for gpu in plan.gpus if gpu.bus_id in bus_ids), access


def _host_access(plan: Plan, flows: Iterable[Flow], cpus: Mapping[int, tuple[int, ...]]) -> tuple[NodeAccess, ...]:
    access: dict[int, dict[str, None]] = {}
    for flow in flows:
        for end in (flow.source, flow.destination):
            if end.memory in HOST_MEMORY and end.numa_node is not None:
                gpus = access.setdefault(end.numa_node, {})
                # Memory that only CPUs access is also allocated through a GPU's context.
                gpus[flow.initiator or plan.gpus[0].bus_id] = None
                if end.allocated_by is not None:
                    gpus[end.allocated_by] = None
    return tuple(NodeAccess(numa_node=node, gpus=tuple(gpus), cpus=cpus.get(node, ())) for node, gpus in access.items())


class Spent:
    """The time of a run, by case and phase."""

    def __init__(self) -> None:
        self.starting_s = 0.0
        self.ending_s = 0.0
        """The seconds in which the run waited for processes that ended normally."""
        self._cases: dict[str, CaseSeconds] = {}

    def add(self, case: str, spent: Mapping[str, float] | None) -> None:
        """Add a step of a case, with its seconds by phase if the first process reported them."""
        before = self._cases.get(case, CaseSeconds(case=case, steps=0))
        self._cases[case] = replace(before.plus(from_json(PhaseSeconds, spent or {})), steps=before.steps + 1)

    def of_run(self, wall_s: float) -> RunSeconds:
        """Return the record of a run that took ``wall_s`` seconds."""
        cases = tuple(self._cases.values())
        run = RunSeconds(tear_down_s=self.ending_s, starting_s=self.starting_s, waiting_s=0.0, cases=cases)
        for case_seconds in cases:
            run = run.plus(case_seconds)
        return replace(run, waiting_s=max(0.0, wall_s - self.starting_s - run.sum_s))


_MAKE_NUMA_MEMORY = frozenset(
    {
        *("cuMemCreate", "cuMemMap", "cuMemSetAccess"),
        *("cuMemPoolCreate", "cuMemPoolSetAccess", "cuMemAllocFromPoolAsync"),
    }
)
"""The calls that allocate HOST_NUMA memory and map it to a GPU. In these calls the driver looks for a route
(open-gpu-kernel-modules, ``system_mem.c`` and ``uvm_map_external.c``)."""


def by_blocked_route(measurement: Measurement) -> Measurement:
    """Return a measurement with a blocked EGM route as its cause, if the facts and the failed call show this.

    The facts must show a blocked route, one of :data:`_MAKE_NUMA_MEMORY` must have failed, crashed or timed out (it is
    not documented which), and no other cause may be known. The route does not cause failures of other calls, such as
    the start of CUDA or a launch.
    """
    blocked = next((flow.route.egm_reason for flow in measurement.flows if flow.route.degraded), "")
    tried = (
        measurement.status in (MeasurementStatus.FAILED, MeasurementStatus.CRASHED, MeasurementStatus.TIMED_OUT)
        and not measurement.known_cause
    )
    if not blocked or not tried or measurement.last_call not in _MAKE_NUMA_MEMORY:
        return measurement
    reason = f"{measurement.reason}; {blocked}"
    return replace(measurement, status=MeasurementStatus.FAILED, reason=reason, known_cause=True)


_Key = tuple[object, ...]


def set_beside(measurements: Sequence[Measurement], every: Sequence[Case]) -> tuple[Measurement, ...]:
    """Return measurements; those by several processes get the result of the same path within one as ``in_process``."""
    within = {_key(m, m.case): summary for m in measurements if not m.ranks and (summary := m.headline)}
    names = {case.name: case.in_process for case in every}

    def beside(m: Measurement) -> Measurement:
        summary = within.get(_key(m, names.get(m.case))) if m.ranks and m.headline else None
        return m if summary is None else replace(m, in_process=summary.median)

    return tuple(beside(m) for m in measurements)


def _key(task: Task, case: str | None) -> _Key:
    """Return the key that a task shares with the task of ``case`` over the same path."""
    ends = tuple((flow.initiator, _place(flow.source), _place(flow.destination)) for flow in task.flows)
    return case, task.point, task.size_bytes, ends


def _place(end: Endpoint) -> object:
    return end.bus_id if end.numa_node is None else end.numa_node
