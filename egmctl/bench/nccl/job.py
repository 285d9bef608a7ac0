"""Run NCCL in the tasks of a job on one node: each command starts the process of its own rank and GPU.

This is how programs run where a launcher gives each task one GPU. All commands go through the same rounds: each
exchanges what its process has said, so that all see a failure and end together.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from egmctl import __version__
from egmctl.bench.nccl.plan import (
    ITERATIONS,
    NcclRequest,
    fitting_bytes,
    free_bytes,
    installed,
    room_of,
    waivers_of,
)
from egmctl.bench.nccl.run import (
    TORCH,
    Gathering,
    Round,
    end,
    environment_of,
    failure_of,
    log_file,
    next_round,
    not_measured,
    put_together,
    rank_arguments,
    read_text,
    start_process,
    temporary_folder,
    without_folder,
)
from egmctl.bench.plan import bench_gpu
from egmctl.bench.plan.flows import busy_waiver
from egmctl.bench.plan.placement import RankInfo, assign, check_agreement, hosts, merge_gpus, rank_info
from egmctl.dataclass import dataclass
from egmctl.errors import ChildNotStarted, UsageError
from egmctl.facts.redact import redact
from egmctl.launch import Child
from egmctl.model.codec import from_json, to_json
from egmctl.model.finding import Waiver
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.model.measurement import RunReport
from egmctl.model.nccl import NcclPlan, NcclProgram, NcclRun, RankFailure
from egmctl.mpi.world import World

GATHER_S = 120.0
"""The timeout for the slowest task to read its facts."""
MARGIN_S = 30.0
"""The time beyond a rank's own timeout in which its command reports that it has responded to nothing."""
LOG_LIMIT = 256 << 10
"""The number of characters of each rank's log that go to rank 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one rank tells all others before the plan."""

    gpu: Gpu
    folder: str | None
    """The rank's folder; the ranks find each other by that of rank 0. ``None`` if none could be made."""
    has_torch: bool
    free_bytes: int | None
    busy: Waiver | None


def measure_job(
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
    bus_ids = assign(infos)
    check_agreement(infos, bus_ids, one_domain=False)
    if len(hosts(infos)) > 1:
        raise UsageError(f"--suite nccl is for the GPUs of one node, and this job has {len(hosts(infos))} nodes")
    gpu = machine.gpu(bus_ids[world.rank])
    with contextlib.ExitStack() as removed:
        folder = temporary_folder(removed)
        own = Part(
            gpu=gpu,
            folder=None if folder is None else str(folder),
            has_torch=installed() is NcclProgram.TORCH,
            free_bytes=free_bytes(machine, gpu),
            busy=None if request.settings.allow_busy else busy_waiver(gpu),
        )
        parts = [from_json(Part, part) for part in world.all_gather(to_json(own), GATHER_S)]
        node = merge_gpus(machine, [part.gpu for part in parts])
        plan = plan_of_job(node, bus_ids, parts, request)
        if plan.waivers:
            nccl = not_measured(plan, plan.waivers[0].reason)
        elif folder is None or parts[0].folder is None or any(part.folder is None for part in parts):
            nccl = put_together(plan, without_folder(plan), {}, {})
        else:
            nccl = _measure(world, plan, own, (folder, Path(parts[0].folder)), request)
        # Rank 0's folder is in use until the last rank is done.
        world.all_gather(None, GATHER_S)
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
        interrupted=False,
        measurements=(),
        nccl=nccl,
        machines=(redact(machine),),
    )
    return report, machine


def plan_of_job(node: Machine, bus_ids: Sequence[str], parts: Sequence[Part], request: NcclRequest) -> NcclPlan:
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


def _measure(world: World, plan: NcclPlan, own: Part, folders: tuple[Path, Path], request: NcclRequest) -> NcclRun:
    """Run this rank's process through all rounds; return the outcome, which is complete on rank 0.

    Parameters
    ----------
    folders
        This rank's folder, and that of rank 0.
    """
    timeout_s = request.settings.timeout_s
    # Device 0 of a process that sees its own GPU alone, as under a launcher that binds.
    changes = environment_of(plan, own.gpu.uuid or "")
    log = log_file(folders[0], world.rank)
    arguments = rank_arguments(plan, world.rank, 0, folders[1], timeout_s)
    gathering = Gathering(plan)
    with contextlib.ExitStack() as ended:
        members: dict[int, Child] = {}
        not_started = Round()
        try:
            child = start_process(world.rank, TORCH, arguments, {**changes, "NCCL_DEBUG_FILE": str(log)})
            ended.callback(child.close)
            members[world.rank] = child
        except ChildNotStarted as error:
            # The other ranks have to know.
            not_started.failures.append(failure_of(plan, world.rank, error.how, str(error)))

        def of_all(limit_s: float) -> Round:
            own_round = next_round(plan, members, limit_s) if members else not_started
            return _exchanged(world, own_round, limit_s)

        gathering.gather(of_all, timeout_s)
        if not gathering.failures:
            end(members)
    logs: list[str] = world.all_gather(read_text(log)[:LOG_LIMIT], GATHER_S)
    return put_together(plan, gathering, dict(enumerate(logs)), changes)


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
    if whole.failures and any(failure.how != "timed-out" for failure in whole.failures):
        # The others wait in a collective for the rank that failed.
        whole.failures = [failure for failure in whole.failures if failure.how != "timed-out"]
    return whole
