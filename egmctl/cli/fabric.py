"""``egmctl bench --suite fabric``: measure between the GPUs of this node or of an MPI job. Also joins MPI jobs."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import typer

from egmctl.api.options import BenchOptions, option
from egmctl.cli import output
from egmctl.cli.output import Outputs
from egmctl.cli.progress import show_progress
from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.errors import EgmctlError, ExitCode, UsageError

if TYPE_CHECKING:
    from egmctl.api.bench import Bench
    from egmctl.journal.events import Recorder
    from egmctl.model.measurement import RunReport
    from egmctl.mpi.world import Launched, World


class Mpi(StrEnum):
    """The values of ``--mpi``."""

    AUTO = "auto"
    """Join a job if the environment has the variables of a launcher."""
    OFF = "off"


@dataclass(frozen=True, kw_only=True)
class MpiOptions:
    """The option that decides whether the command joins an MPI job."""

    HEADINGS: ClassVar[dict[str, str]] = {"MPI jobs": "mpi sample ranks"}
    mpi: Mpi = option(
        "auto: join the MPI job if mpirun or srun started this process; off: run alone.", default=Mpi.AUTO
    )

    def launched(self) -> Launched | None:
        """Return the rank and size of the MPI job to join, or ``None`` if the process runs alone.

        From now on, all ranks except 0 write nothing.
        """
        if self.mpi is Mpi.OFF:
            return None
        from egmctl.mpi.world import launched

        launch = launched(os.environ)
        if launch is not None:
            output.relayed = True
            output.muted = launch.rank > 0
        return launch


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


FABRIC, RDMA, NCCL = "fabric", "rdma", "nccl"
"""The suites that the ranks of an MPI job measure together."""


@dataclass(frozen=True, kw_only=True)
class JobOptions(MpiOptions):
    """The options of a measurement between the GPUs of many nodes."""

    sample: int | None = option(
        "With --suite fabric: measure each GPU with K random others instead of all.", "K", min=1
    )
    ranks: int | None = option(
        "With --dry-run --suite fabric: the cost for N GPUs on nodes like this one.", "N", min=2, max=100_000
    )

    @property
    def of_fabric(self) -> str | None:
        """The name of a given option that works with the suite ``fabric`` only; ``None`` without one."""
        given = {"--ranks": self.ranks, "--sample": self.sample}
        return next((name for name, value in given.items() if value is not None), None)


def is_fabric(options: BenchOptions, job: JobOptions, launch: Launched | None, *, dry_run: bool) -> bool:
    """Return whether ranks measure a run together: those of an MPI job or, for the suite ``fabric``, of this node.

    Raises
    ------
    UsageError
        If an option does not apply to the suites.
    """
    suites, ranks = options.suite_names, job.ranks
    fabric = suites == (FABRIC,)
    if not fabric and not (suites == (RDMA,) and launch is not None and ranks is None):
        if launch is not None:
            raise UsageError(
                f"{launch.by} started {launch.size} processes, which can only measure --suite {FABRIC}, {RDMA} or "
                f"{NCCL} together; with --mpi off each measures by itself"
            )
        if (wrong := job.of_fabric) is not None:
            raise UsageError(f"{wrong} works with --suite {FABRIC} only")
        return False
    if ranks is not None and not dry_run:
        raise UsageError("--ranks is for --dry-run; a real run has as many ranks as mpirun or srun starts")
    given = {"--sweep": fabric and options.sweep, "--numa": fabric and options.numa != "all", "--pair": options.pair}
    if wrong := next((name for name, value in given.items() if value), None):
        raise UsageError(
            f"{wrong} cannot be combined with --suite {FABRIC} or an MPI job: those measure one size between all "
            "ranks, and each GPU's nearest NUMA node"
        )
    return True


@contextlib.contextmanager
def measured_together(
    bench: Bench, options: JobOptions, outputs: Outputs, launch: Launched | None, recorder: Recorder
) -> Iterator[RunReport]:
    """Measure, and yield the report on rank 0; other ranks end with ``typer.Exit`` instead of entering the block.

    Parameters
    ----------
    launch
        The MPI job of this process; ``None``: ranks on this node measure.
    """
    from egmctl.api.fabric import facts_of_rank, run_request
    from egmctl.bench.fabric_run import measure_here, measure_job
    from egmctl.bench.processes.group import start_rank

    request, quiet = run_request(bench, options.sample), outputs.options.quiet
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
