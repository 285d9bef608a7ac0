"""``egmctl bench``: measure the paths of this node, or show the plan."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import typer

from egmctl.api.options import PREVIEW, BenchOptions, option
from egmctl.cli.fabric import job, measured_together
from egmctl.cli.options import (
    MachineOption,
    MpiOptions,
    reading_this_node,
    refuse_together,
    requested_machine,
    takes_options,
)
from egmctl.cli.output import OutputOptions, Outputs, say
from egmctl.cli.progress import JournalOptions, end_journal, open_journal, show_progress
from egmctl.dataclass import dataclass
from egmctl.errors import ExitCode, UsageError
from egmctl.report.kinds import BENCH, PLAN

if TYPE_CHECKING:
    from egmctl.api.bench import Bench, Profiles
    from egmctl.journal.events import Journal
    from egmctl.model.machine import Machine
    from egmctl.model.measurement import RunReport
    from egmctl.mpi.world import Launched


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


@dataclass(frozen=True, kw_only=True)
class RunOptions(JournalOptions, JobOptions):
    """The options of ``egmctl bench`` that apply to the whole run: MPI job, journal, verdict and preview."""

    HEADINGS: ClassVar[dict[str, str]] = {"Verdict": "profile no_verdict strict", PREVIEW: "list_cases dry_run"}
    profile: str | None = option(
        "Judge by this profile instead of the matching one; 'egmctl profile list' names them.", "FILE|NAME"
    )
    no_verdict: bool = option("Measure without a verdict.", default=False)
    strict: bool = option("Treat warnings as failures (exit code 1).", default=False)
    list_cases: bool = option("Show the cases and whether each can run here, then exit.", None, "--list", default=False)
    dry_run: bool = option("Show steps, bytes, memory and time, then exit.", default=False)

    def profiles(self) -> Profiles | None:
        """Return the profiles, or ``None`` for no verdict. Call it before measuring: a profile may be invalid."""
        from egmctl.api.bench import load_profiles

        if self.no_verdict:
            return None
        profiles = load_profiles(self.profile)
        for problem in profiles.broken:
            say(f"{problem}; continuing without it")
        return profiles


@takes_options(BENCH.formats)
def bench(options: BenchOptions, run: RunOptions, output: OutputOptions, machine: MachineOption = None) -> int:
    """Measure the paths between GPUs and to host memory (EGM where the node has it), and verify every byte.

    Needs idle GPUs. Without --quick, --full, --suite or --case: the suite 'standard', 15 s on two GPUs.
    """
    refuse_together({"--list": run.list_cases, "--dry-run": run.dry_run})
    refuse_together({"--no-verdict": run.no_verdict, "--strict": run.strict})
    refuse_together({"--no-verdict": run.no_verdict, "--profile": run.profile is not None})
    refuse_together({"--no-journal": run.no_journal, "--journal": run.journal is not None})
    launch = run.joined_job()
    preview = run.list_cases or run.dry_run
    measuring_with = None if preview else launch
    outputs = output.chosen(PLAN.formats if preview else BENCH.formats)
    if measuring_with is None:
        outputs.check()
    if machine is not None and not preview:
        raise UsageError("--machine: a recorded machine cannot be measured; use it with --list or --dry-run")
    if launch is not None and not options.suite_names:
        options = replace(options, suites=(FABRIC,))
    if measuring_with is not None and options.suite_names == (NCCL,):
        return _measure_by_tasks(options, run, outputs, measuring_with)
    fabric = _is_fabric(options, run, measuring_with, dry_run=run.dry_run)
    if preview:
        _show_plan(options, run, outputs, machine, fabric=fabric)
        return ExitCode.OK
    if fabric:
        # Each rank of a job reads its own node.
        return _measure_fabric(options, run, outputs, measuring_with)
    return _measure(options, run, outputs)


def _is_fabric(options: BenchOptions, job: JobOptions, launch: Launched | None, *, dry_run: bool) -> bool:
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


def _show_plan(options: BenchOptions, run: RunOptions, outputs: Outputs, machine: str | None, *, fabric: bool) -> None:
    """Show the cases (``--list``) or the steps of a run (``--dry-run``) on this node or a recorded machine."""
    from egmctl.api.bench import Bench
    from egmctl.bench.plan.cost import case_list, plan_report

    if run.profile is not None:
        run.profiles()
    bench = Bench(**vars(options))
    node = requested_machine(machine, bench.sections, quiet=outputs.options.quiet)
    shown: object
    if fabric and not run.list_cases:
        from egmctl.api.fabric import fabric_plan

        shown = fabric_plan(bench, node, ranks=run.ranks, sample=run.sample)
    elif run.list_cases:
        shown = case_list(bench.plan(node), bench.selected_cases, node.origin)
    else:
        shown = plan_report(bench.plan(node), node.origin)
    outputs.show(shown, answers=False)


def _measure(options: BenchOptions, run: RunOptions, outputs: Outputs) -> int:
    """Measure this node and return the exit code."""
    from egmctl.bench.processes.group import start_worker

    # Child processes query the libraries and initialise CUDA, which takes a second, while this process imports modules.
    # Reading starts first: it must record which device nodes are missing before CUDA creates them.
    with reading_this_node(quiet=outputs.options.quiet) as read, start_worker() as worker:
        import egmctl.bench.supervisor  # noqa: F401 - Bench.run would import it only after reading
        from egmctl.api.bench import Bench, measure_node

        bench = Bench(**vars(options))
        profiles = run.profiles()
        node = read(*bench.sections)
        plan = bench.plan(node)
        outputs.load_ahead(BENCH)
        kept = open_journal(run, outputs, node)
        with show_progress(outputs.options.quiet) as shown:
            report, after = measure_node(
                bench,
                plan,
                node,
                profiles=profiles,
                strict=run.strict,
                on_progress=shown,
                worker=worker,
                recorder=shown.recorder(kept),
            )
    return _finish(bench, report, outputs, kept, after)


def _measure_fabric(options: BenchOptions, run: RunOptions, outputs: Outputs, launch: Launched | None) -> int:
    """Measure between the ranks of an MPI job or of this node, and exit the command by ``typer.Exit``."""
    from egmctl.api.bench import Bench, judge_run
    from egmctl.verdict.explain import with_ucx_notes

    bench = Bench(**vars(options))
    profiles = run.profiles()
    kept = open_journal(replace(run, no_journal=True) if launch is not None and launch.rank else run, outputs)
    with measured_together(bench, run.sample, outputs, launch, kept) as report:
        if profiles is not None and len(report.machines) == 1:
            report = judge_run(report, report.machines[0], profiles, strict=run.strict)
        raise typer.Exit(_finish(bench, bench.explain(with_ucx_notes(report)), outputs, kept, None))


def _measure_by_tasks(options: BenchOptions, run: RunOptions, outputs: Outputs, launch: Launched) -> int:
    """Run NCCL between the tasks of a job, and exit the command by ``typer.Exit``."""
    from egmctl.api.bench import Bench, judge_run
    from egmctl.api.fabric import facts_of_rank
    from egmctl.bench.nccl.collectives import collective_names
    from egmctl.bench.nccl.job import measure_nccl_job
    from egmctl.units import listed

    bench = Bench(**vars(options))
    if not bench.nccl_request.collectives:
        raise UsageError(
            f"--case: the tasks of a job measure NCCL's collectives only, {listed(collective_names())}; with --mpi off "
            "this node measures other cases"
        )
    bench.refuse_for_nccl_alone()
    if (wrong := run.of_fabric) is not None:
        raise UsageError(f"{wrong} works with --suite {FABRIC} only")
    if run.journal is not None:
        raise UsageError(f"--journal cannot be combined with --suite {NCCL} in a job, which keeps none: give -o FILE")
    profiles = run.profiles()
    kept = open_journal(replace(run, no_journal=True), outputs)
    with job(launch) as world:
        measured = measure_nccl_job(world, partial(facts_of_rank, bench, outputs.check), bench.nccl_request)
        if measured is None:
            raise typer.Exit
        report, machine = measured
        if profiles is not None:
            report = judge_run(report, machine, profiles, strict=run.strict)
        raise typer.Exit(_finish(bench, bench.explain(report, machine), outputs, kept, machine))


def _finish(bench: Bench, report: RunReport, outputs: Outputs, kept: Journal, machine: Machine | None) -> int:
    """Write an explained run, end its journal and return the exit code."""
    from egmctl.facts.redact import redact_report

    outputs.show(report, lambda: bench.explain(redact_report(report, machine)))
    end_journal(kept, report.answer, quiet=outputs.options.quiet)
    return report.exit_code
