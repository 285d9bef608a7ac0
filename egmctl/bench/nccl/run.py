"""Run NCCL in its processes, and end them with the measurement: no process and no file is left behind."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from egmctl.bench.nccl.outcome import not_measured, put_together, until_interrupted
from egmctl.bench.nccl.plan import binaries
from egmctl.bench.nccl.rounds import TESTS, TORCH, RankReports, failure_of, next_round
from egmctl.bench.nccl.torch_rank import WARM_UP
from egmctl.errors import ChildFailed, ChildNotStarted
from egmctl.launch import Child
from egmctl.model.machine import Machine
from egmctl.model.nccl import Ending, NcclPlan, NcclProgram, NcclRun

END_S = 5.0
"""The time in which processes that have measured everything end by themselves."""
LOG_LIMIT = 4 << 20
"""The number of bytes that are read of each log of NCCL. Eight ranks of H200 write 300 kB each."""

_DEBUG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV"}
"""What makes NCCL log its version, variables and connections; all of it when it starts, nothing in a collective."""

Start = Callable[[int, str, dict[str, Any], Mapping[str, str | None]], Child]
"""A function of a rank, a target, its arguments and its environment that starts the rank's process."""


def start_process(_rank: int, target: str, arguments: dict[str, Any], environment: Mapping[str, str | None]) -> Child:
    """Start the process of a rank."""
    return Child(target, arguments, environment=environment)


def measure_plan(plan: NcclPlan, machine: Machine, timeout_s: float, start: Start = start_process) -> NcclRun:
    """Measure a plan without waivers, and return how it went; waived if the plan has waivers.

    KeyboardInterrupt ends it: the result then has the collectives so far, and a waiver that it was interrupted.

    Parameters
    ----------
    machine
        The live node that the plan was made for.
    timeout_s
        The time without a message after which a process is given up.
    start
        The function that starts the processes; only tests change it.
    """
    if plan.waivers:
        return not_measured(plan, plan.waivers[0].reason)
    devices = ",".join(machine.gpu(bus_id).uuid or "" for bus_id in plan.gpus)
    is_interrupted = False
    environment = environment_of(plan, devices)
    gathering = RankReports(plan)
    with contextlib.ExitStack() as removed:
        folder = temporary_folder(removed)
        if folder is None:
            return put_together(plan, without_folder(plan), {}, environment)
        try:
            with _processes(plan, folder, environment, timeout_s, start) as children:
                members = dict(enumerate(children))
                gathering.gather(lambda limit_s: next_round(plan, members, limit_s), timeout_s)
                if not gathering.failures:
                    end_ranks(members)
        except ChildNotStarted as error:
            gathering.failures.append(failure_of(plan, None, Ending(error.how), str(error)))
        except KeyboardInterrupt:
            is_interrupted = True
        logs = {rank: read_text(log_file(folder, rank)) for rank in range(len(plan.gpus))}
    whole = put_together(plan, gathering, logs, environment)
    return until_interrupted(whole) if is_interrupted else whole


def environment_of(plan: NcclPlan, devices: str) -> dict[str, str | None]:
    """Return the changes to the environment of NCCL's processes.

    Parameters
    ----------
    devices
        The UUIDs of the GPUs that a process sees: on one node all of the plan's, as most programs start their ranks.
    """
    multicast = {} if plan.nvls else {"NCCL_NVLS_ENABLE": "0"}
    # With blocking launches no collective would be queued behind another.
    return {**_DEBUG, **multicast, "CUDA_VISIBLE_DEVICES": devices, "CUDA_LAUNCH_BLOCKING": None}


def temporary_folder(removed: contextlib.ExitStack) -> Path | None:
    """Return a new folder, which the stack removes; ``None`` if none can be made, as on a full or read-only disk."""
    try:
        return Path(removed.enter_context(tempfile.TemporaryDirectory(prefix="egmctl-nccl-")))
    except OSError:
        return None


def without_folder(plan: NcclPlan) -> RankReports:
    """Return what the processes of a plan report that cannot be started without a temporary folder."""
    reason = "no folder for its logs can be made: TMPDIR must name a folder that can be written"
    return RankReports(plan, failures=[failure_of(plan, None, Ending.NO_FOLDER, reason)])


def log_file(folder: Path, rank: int) -> Path:
    """Return the file of a rank's log."""
    return folder / f"nccl.{rank}.log"


@contextlib.contextmanager
def _processes(
    plan: NcclPlan, folder: Path, environment: Mapping[str, str | None], timeout_s: float, start: Start
) -> Iterator[list[Child]]:
    """Start the processes of a plan, and end them all at the end of the block."""
    ranks = len(plan.gpus)
    arguments: list[dict[str, Any]]
    if plan.program is NcclProgram.NCCL_TESTS:
        size = str(plan.size_bytes)
        options = ["-b", size, "-e", size, "-g", str(ranks), "-n", str(plan.iterations), "-w", str(WARM_UP), "-c", "1"]
        programs = binaries()
        arguments = [{"programs": {name: programs[name] for name in plan.collectives}, "options": options}]
    else:
        arguments = [rank_arguments(plan, rank, rank, folder, timeout_s) for rank in range(ranks)]
    target = TESTS if plan.program is NcclProgram.NCCL_TESTS else TORCH
    with contextlib.ExitStack() as ended:
        children = []
        for rank, own in enumerate(arguments):
            variables = {**environment, "NCCL_DEBUG_FILE": str(log_file(folder, rank))}
            child = start(rank, target, own, variables)
            ended.callback(child.close)
            children.append(child)
        yield children
        for child in children:
            # Close all channels, so that all processes begin to end, before the wait for the first one.
            child.channel.close()


def rank_arguments(plan: NcclPlan, rank: int, device: int, folder: Path, timeout_s: float) -> dict[str, Any]:
    """Return the arguments of a rank of PyTorch that uses a CUDA device; all ranks name the same folder."""
    return {
        "rank": rank,
        "ranks": len(plan.gpus),
        "device": device,
        "store": str(folder / "store"),
        "collectives": list(plan.collectives),
        "size_bytes": plan.size_bytes,
        "iterations": plan.iterations,
        "samples": plan.samples,
        "timeout_s": timeout_s,
    }


def end_ranks(members: Mapping[int, Child]) -> None:
    """Wait for processes that have measured everything; how they end does not change it."""
    deadline = time.monotonic() + END_S
    for child in members.values():
        with contextlib.suppress(ChildFailed):
            child.result(max(0.0, deadline - time.monotonic()))


def read_text(path: Path) -> str:
    """Return a log, up to :data:`LOG_LIMIT`; empty if there is none."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        data = file.read(LOG_LIMIT)
        return data.decode("utf-8", "replace")
    return ""
