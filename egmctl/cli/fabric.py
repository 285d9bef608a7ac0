"""Join the MPI job of this process, and measure between the GPUs of the job or of this node."""

from __future__ import annotations

import atexit
import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import typer

from egmctl.cli import output
from egmctl.cli.output import Outputs
from egmctl.cli.progress import show_progress
from egmctl.errors import EgmctlError, ExitCode

if TYPE_CHECKING:
    from egmctl.api.bench import Bench
    from egmctl.journal.events import Recorder
    from egmctl.model.measurement import RunReport
    from egmctl.mpi.world import Launched, World


def answers_alone(launch: Launched, outputs: Outputs, problem: str = "") -> Outputs:
    """Let the first process of each node report for that node, and end the others silently.

    Parameters
    ----------
    problem
        The reason, which rank 0 says.

    Returns
    -------
    Outputs
        The outputs of the node. Except on rank 0, file names contain the name of the node: no two nodes write the same
        file.
    """
    if not launch.first_of_node:
        raise typer.Exit
    if problem:
        output.say(f"{problem}; the first process of each node answers for that node alone")
    output.muted = False
    return outputs.of_node(socket.gethostname()) if launch.rank else outputs


@contextlib.contextmanager
def job(launch: Launched) -> Iterator[World]:
    """Join the job, and leave it together with the other ranks.

    Raises
    ------
    MpiFailed
        If MPI does not start.
    EgmctlError
        On rank 0, the error that was raised on all ranks; the others exit silently.
    """
    from egmctl.mpi.world import RanksMissing, World

    world = World(launch, on_wait=lambda: output.say(f"waiting for all {launch.size} processes to start MPI"))
    try:
        yield world
    except RanksMissing as error:
        # The ranks no longer wait for each other: rank 0 reports the reason and aborts the job.
        if world.rank == 0:
            output.say(str(error))
            world.abort(ExitCode.CRASHED)
        raise typer.Exit(ExitCode.CRASHED) from None
    except EgmctlError:
        world.finish()
        if world.rank:
            raise typer.Exit from None
        raise
    except typer.Exit as ended:
        if world.broken:
            world.abort(ended.exit_code)
        world.finish()
        raise
    except Exception:
        # A bug: the rank that has it reports it, whichever it is, and aborts the job when it exits.
        output.muted = False
        atexit.register(world.abort, ExitCode.CRASHED)
        raise
    else:
        world.finish()


@contextlib.contextmanager
def measured_together(
    bench: Bench, sample: int | None, outputs: Outputs, launch: Launched | None, recorder: Recorder
) -> Iterator[RunReport]:
    """Measure, and yield the report on rank 0; other ranks end with ``typer.Exit`` instead of entering the block.

    Parameters
    ----------
    sample
        The number of random others that each GPU is measured with; ``None``: all.
    launch
        The MPI job of this process; ``None``: ranks on this node measure.
    """
    from egmctl.api.fabric import facts_of_rank, run_request
    from egmctl.bench.fabric_run import measure_here, measure_job
    from egmctl.bench.processes.group import start_rank

    request, quiet = run_request(bench, sample), outputs.options.quiet
    if launch is None:
        node, chosen = facts_of_rank(bench, outputs.check)
        with show_progress(quiet) as shown:
            report = measure_here(node, chosen, request, shown, recorder)
        yield report
        return
    with job(launch) as world:
        child = start_rank(world.rank, world.size)
        facts = partial(facts_of_rank, bench, outputs.check)
        with show_progress(quiet) as shown:
            report_of_job = measure_job(world, child, facts, request, shown, recorder)
        if report_of_job is None:
            raise typer.Exit
        yield report_of_job
