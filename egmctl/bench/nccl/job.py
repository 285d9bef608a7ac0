"""Run NCCL in the tasks of a job on one node: each command starts the process of its own rank and GPU.

This is how programs run where a launcher gives each task one GPU. All commands go through the same rounds: each
exchanges what its process has said, so that all see a failure and end together.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from egmctl import __version__
from egmctl.bench.fabric_run import INTERRUPTED_S
from egmctl.bench.nccl.outcome import not_measured, put_together, until_interrupted
from egmctl.bench.nccl.plan import (
    ITERATIONS,
    NcclRequest,
    fitting_bytes,
    free_gpu_bytes,
    installed,
    room_of,
    waivers_of,
)
from egmctl.bench.nccl.rounds import TORCH, RankReports, Round, failure_of, next_round
from egmctl.bench.nccl.run import (
    end_ranks,
    environment_of,
    log_file,
    rank_arguments,
    read_text,
    start_process,
    temporary_folder,
    without_folder,
)
from egmctl.bench.plan import bench_gpu
from egmctl.bench.plan.flows import busy_waiver
from egmctl.bench.plan.placement import RankInfo, assign_gpus, check_agreement, hosts, merge_gpus, rank_info
from egmctl.bench.processes.group import REPORT_S
from egmctl.dataclass import dataclass
from egmctl.errors import ChildNotStarted, UsageError
from egmctl.facts.redact import redact
from egmctl.launch import Child
from egmctl.model.codec import from_json, to_json
from egmctl.model.finding import Waiver
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.model.measurement import RunReport
from egmctl.model.nccl import Ending, NcclPlan, NcclProgram, NcclRun, RankFailure
from egmctl.mpi.world import RanksMissing, World

_NOT_SHARED = (
    "it cannot use rank 0's temporary folder, by which the ranks find each other: TMPDIR must name a folder that all "
    "tasks of the job can write"
)
_LOST = "its command is gone or does not respond"
GATHER_S = 120.0
"""The timeout for the slowest task to read its facts."""
MARGIN_S = 30.0
"""The time beyond a rank's own timeout in which its command reports that it has responded to nothing."""
LOG_LIMIT = 256 << 10
"""The number of characters of each rank's log that go to rank 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """What one rank tells all others before the plan."""

    gpu: Gpu
    folder: str | None
    """The rank's folder; the ranks find each other by that of rank 0. ``None`` if none could be made."""
    has_torch: bool
    free_bytes: int | None
    busy: Waiver | None


def measure_nccl_job(
    world: World, facts: Callable[[], tuple[Machine, Sequence[Gpu]]], request: NcclRequest
) -> tuple[RunReport, Machine] | None:
    """Measure between the tasks of a job, one GPU each.

    Parameters
    ----------
    facts
        A function that reads the node as this task sees it, and returns it with the GPUs that the user chose.

    Returns
    -------
    tuple[RunReport, Machine] | None
        On rank 0 the report, without verdict, and the node as rank 0 sees it; ``None`` on other ranks.

    Raises
    ------
    NothingToDo, UsageError
        A rank cannot take part, the ranks do not fit together, or they are on several nodes. Raised on every rank.
    RanksMissing
        Some commands of the job do not respond.
    """
    started_at = datetime.datetime.now(datetime.timezone.utc)
    started = time.perf_counter()

    def described(facts: tuple[Machine, Sequence[Gpu]]) -> RankInfo:
        machine, chosen = facts
        return rank_info(machine, (machine.host.hostname if machine.host else None) or world.host, __version__, chosen)

    (machine, _), infos = world.share(RankInfo, facts, described, GATHER_S)
    bus_ids = assign_gpus(infos)
    check_agreement(infos, bus_ids, one_domain=False)
    if len(hosts(infos)) > 1:
        raise UsageError(f"--suite nccl is for the GPUs of one node, and this job has {len(hosts(infos))} nodes")
    gpu = machine.gpu(bus_ids[world.rank])
    with contextlib.ExitStack() as removed:
        folder = temporary_folder(removed)
        own = RankFacts(
            gpu=gpu,
            folder=None if folder is None else str(folder),
            has_torch=installed() is NcclProgram.TORCH,
            free_bytes=free_gpu_bytes(machine, gpu),
            busy=None if request.settings.allow_busy else busy_waiver(gpu),
        )
        parts = [from_json(RankFacts, part) for part in world.all_gather(to_json(own), GATHER_S)]
        node = merge_gpus(machine, [part.gpu for part in parts])
        plan = plan_of_job(node, bus_ids, parts, request)
        if plan.waivers:
            nccl = not_measured(plan, plan.waivers[0].reason)
        elif folder is None or parts[0].folder is None or any(part.folder is None for part in parts):
            nccl = put_together(plan, without_folder(plan), {}, {})
        elif blind := _without_shared_folder(world, Path(parts[0].folder)):
            failures = [failure_of(plan, rank, Ending.NO_FOLDER, _NOT_SHARED) for rank in blind]
            nccl = put_together(plan, RankReports(plan, failures=failures), {}, {})
        else:
            nccl = _measure(world, plan, own, (folder, Path(parts[0].folder)), request)
    if world.rank:
        return None
    report = RunReport(
        settings=request.settings,
        gpus=tuple(bench_gpu(node.gpu(bus_id), f"GPU{node.gpu(bus_id).index}") for bus_id in bus_ids),
        numa_nodes=(),
        driver_version=machine.driver.driver_version if machine.driver else None,
        cuda_driver_version=machine.driver.cuda_driver_version if machine.driver else None,
        started_at=started_at.isoformat(timespec="seconds"),
        wall_s=time.perf_counter() - started,
        interrupted=nccl.is_interrupted,
        measurements=(),
        nccl=nccl,
        machines=(redact(machine),),
    )
    return report, machine


def plan_of_job(node: Machine, bus_ids: Sequence[str], parts: Sequence[RankFacts], request: NcclRequest) -> NcclPlan:
    """Return the plan, which all ranks make alike."""
    settings = request.settings
    room = room_of((part.free_bytes for part in parts), settings)
    program = NcclProgram.TORCH if all(part.has_torch for part in parts) else None
    plan = NcclPlan(
        collectives=request.collectives,
        gpus=tuple(bus_ids),
        labels=tuple(f"GPU{node.gpu(bus_id).index}" for bus_id in bus_ids),
        size_bytes=fitting_bytes(request.size_bytes, len(parts), room, program),
        iterations=settings.copies or ITERATIONS,
        samples=settings.samples,
        nvls=request.nvls,
        program=program,
    )
    busy = [part.busy for part in parts if part.busy is not None]
    missing = "" if program is not None else "PyTorch is not installed for every task"
    own = waivers_of(plan, [part.gpu for part in parts], settings, room, missing=missing)
    return replace(plan, waivers=(*busy, *own))


def _without_shared_folder(world: World, folder: Path) -> list[int]:
    """Return the ranks that cannot use rank 0's folder: tasks in containers may each have a ``/tmp`` of their own."""
    usable: list[bool] = world.all_gather(os.access(folder, os.R_OK | os.W_OK | os.X_OK), GATHER_S)
    return [rank for rank, is_usable in enumerate(usable) if not is_usable]


def _measure(world: World, plan: NcclPlan, own: RankFacts, folders: tuple[Path, Path], request: NcclRequest) -> NcclRun:
    """Run this rank's process through all rounds; return the outcome, which is complete on rank 0.

    On rank 0 the collectives that were measured stay if the job is interrupted, or if another command is lost.

    Parameters
    ----------
    folders
        This rank's folder, and that of rank 0.

    Raises
    ------
    KeyboardInterrupt, RanksMissing
        On other ranks than 0: the job was interrupted, or a command is lost.
    """
    timeout_s = request.settings.timeout_s
    # Device 0 of a process that sees its own GPU alone, as under a launcher that binds.
    changes = environment_of(plan, own.gpu.uuid or "")
    log = log_file(folders[0], world.rank)
    arguments = rank_arguments(plan, world.rank, 0, folders[1], timeout_s)
    gathering = RankReports(plan)
    logs: dict[int, str] = {}
    is_interrupted = False
    with contextlib.ExitStack() as ended:
        members: dict[int, Child] = {}
        not_started = Round()

        def of_all(limit_s: float) -> Round:
            own_round = next_round(plan, members, limit_s) if members else not_started
            return _exchanged(world, own_round, limit_s)

        try:
            try:
                child = start_process(world.rank, TORCH, arguments, {**changes, "NCCL_DEBUG_FILE": str(log)})
                ended.callback(child.close)
                members[world.rank] = child
            except ChildNotStarted as error:
                # The other ranks have to know.
                not_started.failures.append(failure_of(plan, world.rank, Ending(error.how), str(error)))
            gathering.gather(of_all, timeout_s)
            if not gathering.failures:
                end_ranks(members)
            ended.close()
            # After this no process uses rank 0's folder.
            logs = dict(enumerate(world.all_gather(read_text(log)[:LOG_LIMIT], GATHER_S)))
        except KeyboardInterrupt:
            # The launcher kills this command a second after its signal, and a process may be slow in a driver call.
            for child in members.values():
                child.kill_soon()
            if world.rank:
                world.roll_call(REPORT_S)
                raise
            is_interrupted = True
        except RanksMissing as error:
            if world.rank:
                raise
            gathering.failures += _lost(plan, error.ranks or (None,))
    if is_interrupted:
        # The other commands are interrupted too, and report; the launcher interrupts them also if it has lost one.
        world.broken = True
        if missing := world.roll_call(INTERRUPTED_S):
            is_interrupted = False
            gathering.failures += _lost(plan, missing)
    whole = put_together(plan, gathering, logs or {world.rank: read_text(log)}, changes)
    return until_interrupted(whole) if is_interrupted else whole


def _lost(plan: NcclPlan, ranks: Iterable[int | None]) -> list[RankFailure]:
    """Return the failures of ranks whose commands are lost; ``None`` is a rank that is not known."""
    return [failure_of(plan, rank, Ending.CRASHED, _LOST) for rank in ranks]


def _exchanged(world: World, own: Round, timeout_s: float) -> Round:
    """Return the round of all ranks."""
    part = {
        "messages": [[rank, message] for rank, message in own.messages.items()],
        "failures": [to_json(failure) for failure in own.failures],
        "outputs": own.outputs,
    }
    parts: list[dict[str, Any]] = world.all_gather(part, timeout_s + MARGIN_S)
    whole = Round()
    for each in parts:
        whole.messages.update({int(rank): message for rank, message in each["messages"]})
        whole.failures += [from_json(RankFailure, failure) for failure in each["failures"]]
        whole.outputs += each["outputs"]
    if whole.failures and any(failure.how is not Ending.TIMED_OUT for failure in whole.failures):
        # The others wait in a collective for the rank that failed.
        whole.failures = [failure for failure in whole.failures if failure.how is not Ending.TIMED_OUT]
    return whole
