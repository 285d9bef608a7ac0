"""What each process of the job does in test_world.py: one of the scenes, named on the command line."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from array import array
from collections.abc import Callable

from egmctl.cli.fabric import job
from egmctl.cli.options import launched
from egmctl.mpi.world import Launched, MpiFailed, RanksMissing, World


def calls(world: World) -> None:
    """Make every call, with much, little and no data."""
    me = world.rank
    gathered = world.all_gather("x" * me * 100_000, 60)
    assert [len(part) for part in gathered] == [rank * 100_000 for rank in range(world.size)]
    assert world.all_gather(None, 60) == [None] * world.size
    assert world.all_gather({"\u20ac": me}, 60) == [{"\u20ac": rank} for rank in range(world.size)]
    assert world.roll_call(60) == ()
    parts = {rank: "x" * rank * 100_000 for rank in range(world.size)}
    assert world.gather(parts[me], 60) == (parts if me == 0 else {})
    world.finish()
    say(f"rank {me} of {world.size}: all calls")


def one_is_away(world: World) -> None:
    """Rank 2 does not come to a call in time, rank 3 is dead."""
    world.all_gather("", 60)
    if world.rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if world.rank == 2:
        time.sleep(20)
    parts = world.gather(f"of rank {world.rank}", 1)
    if world.rank == 0:
        say(f"given {parts}, broken: {world.broken}")
    try:
        world.all_gather("here", 1)
    except RanksMissing as missing:
        if world.rank == 0:
            say(f"missing {missing.ranks}: {missing}")
            world.abort(4)
    time.sleep(2)


def one_is_late(world: World) -> None:
    """Rank 2 comes when the others have given the call up, whose buffers MPI fills all the same."""
    world.all_gather("", 60)
    if world.rank == 2:
        time.sleep(4.5)
    with contextlib.suppress(RanksMissing):
        world.all_gather("x" * 77, 0.5)
    if world.rank == 0:
        # They lie where the buffers of the call were, had it let go of them.
        others = [array("i", bytes(4 * world.size)) for _ in range(10_000)]
        world.roll_call(3)
        say(f"overwritten: {sum(any(other) for other in others)}")
        world.abort(0)
    # Until rank 0 ends the job, however long that takes.
    time.sleep(120)


def one_has_a_fault(started: Launched) -> None:
    """Rank 1 comes upon a fault of the tool, and the others wait for it."""
    with job(started) as world:
        if world.rank == 1:
            raise ValueError("a fault")
        world.all_gather("", 600)


def unknown_to_mpi(_world: World) -> None:
    """Be told of more processes than MPI knows."""


SCENES: dict[str, Callable[[World], None]] = {
    function.__name__: function for function in (calls, one_is_away, one_is_late, unknown_to_mpi)
}


def say(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Play the scene."""
    started = launched(os.environ)
    assert started is not None
    if sys.argv[1] == one_has_a_fault.__name__:
        one_has_a_fault(started)
    try:
        world = World(started)
    except MpiFailed as error:
        say(str(error))
        sys.exit(3)
    assert (world.rank, world.size) == (started.rank, started.size)
    SCENES[sys.argv[1]](world)


main()
