"""What each process of the job does in test_job.py: rank 0 asks for the steps that are on the command line, as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from egmctl.bench.processes import mpi
from egmctl.bench.processes.group import GroupFailed, start_rank
from egmctl.bench.processes.protocol import Request
from egmctl.mpi.environment import launched
from egmctl.mpi.world import RanksMissing, World

TARGET = "tests.mpi.ranks:run"


def main() -> None:
    """Lead or follow."""
    started = launched(os.environ)
    assert started is not None
    mpi.MARGIN_S = 3.0
    world = World(started)
    child = start_rank(world.rank, world.size, TARGET)
    if os.environ.get("EGMCTL_TEST_KILL") == str(world.rank):
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGKILL)).start()
    if world.rank == 0:
        lead(world, mpi.Coordinator(world, child, lambda rank: f"node1:GPU{rank}", TARGET))
    else:
        try:
            mpi.serve_rank(world, child, TARGET)
        except RanksMissing:
            return
    world.finish()


def lead(world: World, coordinator: mpi.Coordinator) -> None:
    """Ask for each step of a group, of a new one after a failure, and say what came of it."""
    group = coordinator.start()
    for step in json.loads(sys.argv[1]):
        try:
            over = group.ask({"do": Request.MEASURE, **step}, step.get("timeout_s", 60))
            say({"pids": [one["pid"] for one in over], "said": [one["said"] for one in over]})
        except GroupFailed as error:
            say({"failed": error.rank, "how": error.how, "call": error.last_call, "words": str(error)})
            if coordinator.lost:
                world.abort(4)
            group.close()
            group = coordinator.start()
    coordinator.finish()
    group.close()


def say(line: object) -> None:
    """Write a line at once."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


main()
