"""``egmctl bench --suite fabric``: between all GPUs of this node, under MPI of all nodes; and what that would cost."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from egmctl.api.options import BenchOptions, option
from egmctl.cli import output
from egmctl.cli.options import read_machine
from egmctl.cli.output import OutputOptions, Outputs
from egmctl.cli.progress import show_progress
from egmctl.compat import StrEnum
from egmctl.errors import EgmctlError, ExitCode, NothingToDo, UsageError

if TYPE_CHECKING:
    from egmctl.api.bench import Bench
    from egmctl.bench.fabric_run import Asked
    from egmctl.journal.events import Recorder
    from egmctl.model.gpu import Gpu
    from egmctl.model.listing import JobCost, PlanReport
    from egmctl.model.machine import Machine
    from egmctl.model.measurement import RunReport
    from egmctl.mpi.world import Launched, World
    from egmctl.report.kinds import Kind


class Mpi(StrEnum):
    """The words of ``--mpi``."""

    AUTO = "auto"
    """The variables of a launcher decide."""
    OFF = "off"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MpiOptions:
    """Whether the command joins an MPI job."""

    mpi: Mpi = option(
        "auto: join the MPI job if mpirun or srun started this process; off: run alone.", default=Mpi.AUTO
    )

    def launched(self) -> Launched | None:
        """Return what the launcher says, if this is one of several processes and they belong together.

        From now on all but rank 0 are silent.
        """
        if self.mpi is Mpi.OFF:
            return None
        from egmctl.mpi.world import launched

        launch = launched(os.environ)
        if launch is not None:
            output.relayed = True
            output.muted = launch.rank > 0
        return launch


def answers_alone(launch: Launched, outputs: Outputs) -> Outputs:
    """Have one process of each node answer for it, and the others end in silence.

    Returns
    -------
    Outputs
        On all nodes but that of rank 0 with the node's name in each file's: two nodes never write the same file.
    """
    if not launch.first_of_node:
        raise typer.Exit
    output.muted = False
    return outputs.of_node(socket.gethostname()) if launch.rank else outputs


def node_outputs(chosen: OutputOptions, kind: Kind, machine: str | None) -> Outputs:
    """Return where a command writes that answers for one node: as one of an MPI job's processes, for its own node."""
    launch = MpiOptions().launched() if machine is None else None
    outputs = chosen.chosen(kind.formats)
    outputs = outputs if launch is None else answers_alone(launch, outputs)
    outputs.check()
    return outputs


@contextlib.contextmanager
def job(launch: Launched) -> Iterator[World]:
    """Join the job, and leave it with all others.

    Raises
    ------
    MpiFailed
        If MPI does not start.
    EgmctlError
        On rank 0, what was raised on all ranks; the others end in silence.
    """
    from egmctl.mpi.world import RanksMissing, World

    world = World(launch, on_wait=lambda: output.say(f"waiting for all {launch.size} processes to start MPI"))
    try:
        yield world
    except RanksMissing as error:
        # Nobody waits for anybody any more: rank 0 says why, and takes all with it.
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
        # A fault of the tool: it is told wherever it is, and with the end of this process all others are ended.
        output.muted = False
        atexit.register(world.abort, ExitCode.CRASHED)
        raise
    else:
        world.finish()


FABRIC, RDMA = "fabric", "rdma"
"""The suites that MPI processes measure together."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class JobOptions(MpiOptions):
    """How GPUs of many nodes are measured together."""

    sample: int | None = option(
        "With --suite fabric: measure each GPU with K random others instead of all.", "K", min=1
    )
    ranks: int | None = option(
        "With --dry-run --suite fabric: the cost for N GPUs on nodes like this one.", "N", min=2, max=100_000
    )


def is_fabric(options: BenchOptions, job: JobOptions, launch: Launched | None, *, dry_run: bool) -> bool:
    """Say whether a run is one that MPI processes measure together.

    Raises
    ------
    UsageError
        If an option makes no sense with the suites.
    """
    suites, sample, ranks = options.suite_names, job.sample, job.ranks
    fabric = suites == (FABRIC,)
    if not fabric and not (suites == (RDMA,) and launch is not None and ranks is None):
        if launch is not None:
            raise UsageError(
                f"{launch.by} started {launch.size} processes, which can only measure --suite {FABRIC} or {RDMA} "
                "together; with --mpi off each measures by itself"
            )
        if ranks is not None or sample is not None:
            raise UsageError(f"--{'ranks' if ranks is not None else 'sample'} works with --suite {FABRIC} only")
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


def fabric_plan(bench: Bench, job: JobOptions, node: Machine) -> PlanReport | JobCost:
    """Return what ``--dry-run`` shows: the steps between this node's GPUs, or what a job of ``--ranks`` costs."""
    from egmctl.bench.fabric_run import alone, plan_for
    from egmctl.bench.plan.cost import job_cost, plan_report
    from egmctl.bench.plan.fabric import make_fabric_plan
    from egmctl.bench.plan.placement import modelled

    if job.ranks is None:
        return plan_report(plan_for(alone(node, bench.chosen(node)), _asked(bench, job)), node.origin)
    if not node.gpus:
        raise NothingToDo("no GPU here to scale from; --machine names a machine that has GPUs")
    layout = modelled(node, job.ranks)
    return job_cost(make_fabric_plan(layout, bench.selected_cases, bench.settings, job.sample), layout)


@contextlib.contextmanager
def measured_together(
    bench: Bench, options: JobOptions, outputs: Outputs, launch: Launched | None, recorder: Recorder
) -> Iterator[RunReport]:
    """Measure, and hand over the report on the one rank that has it; on the others the block ends with ``typer.Exit``.

    Parameters
    ----------
    launch
        The job that this process is a rank of; ``None``: ranks on this node measure.
    """
    from egmctl.bench.fabric_run import measure_here, measure_job
    from egmctl.bench.processes.group import start_rank

    asked, quiet = _asked(bench, options), outputs.options.quiet

    def facts() -> tuple[Machine, Sequence[Gpu]]:
        # Only rank 0 writes: what keeps it from that has to reach the others, who would wait for it.
        outputs.check()
        node = read_machine(None, bench.sections, quiet=True)
        if not node.gpus:
            raise NothingToDo("no GPU to measure; 'egmctl topo' shows what was found")
        return node, bench.chosen(node)

    if launch is None:
        node, chosen = facts()
        with show_progress(quiet) as shown:
            report = measure_here(node, chosen, asked, shown, recorder)
        yield report
        return
    with job(launch) as world:
        child = start_rank(world.rank, world.size)
        with show_progress(quiet) as shown:
            report_of_job = measure_job(world, child, facts, asked, shown, recorder)
        if report_of_job is None:
            raise typer.Exit
        yield report_of_job


def _asked(bench: Bench, job: JobOptions) -> Asked:
    from egmctl.bench.fabric_run import Asked

    return Asked(
        cases=bench.selected_cases, settings=bench.settings, sample=job.sample, fixed_size=bench.size is not None
    )
