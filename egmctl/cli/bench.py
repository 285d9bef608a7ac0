"""``egmctl bench``: measure the paths between GPUs and to the memory of NUMA nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from egmctl.cli.bench_options import (
    AllowBusyOption,
    CaseOption,
    CopiesOption,
    DryRunOption,
    DurationOption,
    FullOption,
    JournalOption,
    ListOption,
    MemoryOption,
    NoGateOption,
    NoJournalOption,
    NoVerdictOption,
    PairOption,
    ProfileOption,
    QuickOption,
    RanksOption,
    SampleOption,
    SamplesOption,
    SerialOption,
    SizeOption,
    StrictOption,
    SuiteOption,
    SweepOption,
    TimeoutOption,
)
from egmctl.cli.fabric import FABRIC, FabricRun, is_fabric
from egmctl.cli.journal import end_journal, open_journal
from egmctl.cli.machine import list_machines, read_machine
from egmctl.cli.mpi import Mpi, MpiOption, launched
from egmctl.cli.options import (
    ColorOption,
    CsvOption,
    ForceOption,
    FormatOption,
    GpusOption,
    JsonOption,
    MachineOption,
    NumaOption,
    OutputOption,
    QuietOption,
    VerboseOption,
)
from egmctl.cli.output import Color, shows_progress
from egmctl.cli.outputs import Outputs, Target
from egmctl.cli.rdma import explained, sections
from egmctl.errors import NothingToDo, UsageError
from egmctl.report.forms import BENCH, Form, render
from egmctl.units import MIB, parse_size, printable

if TYPE_CHECKING:
    from rich.text import Text

    from egmctl.bench.budget import Memory
    from egmctl.bench.case import Case
    from egmctl.bench.plan import Plan
    from egmctl.bench.supervisor import Progress
    from egmctl.journal.write import Journal
    from egmctl.launch import Child
    from egmctl.model.machine import Machine
    from egmctl.model.measurement import RunReport, Settings
    from egmctl.model.profile import Profile

DEFAULT_SIZE_BYTES = 512 * MIB


def bench(
    gpus: GpusOption = "all",
    numa: NumaOption = "all",
    suite: SuiteOption = None,
    case: CaseOption = None,
    pair: PairOption = None,
    quick: QuickOption = False,
    full: FullOption = False,
    size: SizeOption = None,
    sweep: SweepOption = None,
    samples: SamplesOption = None,
    copies: CopiesOption = None,
    duration: DurationOption = None,
    serial: SerialOption = False,
    no_gate: NoGateOption = False,
    allow_busy: AllowBusyOption = False,
    memory: MemoryOption = 50,
    timeout: TimeoutOption = 60.0,
    sample: SampleOption = None,
    ranks: RanksOption = None,
    mpi: MpiOption = Mpi.AUTO,
    profile: ProfileOption = None,
    no_verdict: NoVerdictOption = False,
    strict: StrictOption = False,
    journal: JournalOption = None,
    no_journal: NoJournalOption = False,
    list_cases: ListOption = False,
    dry_run: DryRunOption = False,
    machine: MachineOption = None,
    json: JsonOption = False,
    csv: CsvOption = False,
    format: FormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    color: ColorOption = Color.AUTO,
    verbose: VerboseOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Measure, verified, the paths between GPUs and to host memory (EGM where the node has it)."""
    outputs = Outputs.chosen(BENCH, output, json=json, csv=csv, form=format, force=force, color=color, quiet=quiet)
    measuring = not (list_cases or dry_run)
    found = launched(mpi)
    job = found if measuring else None
    if list_cases and dry_run:
        raise UsageError("--list and --dry-run exclude each other; give one of them")
    if not measuring:
        outputs.all_in((Form.TEXT,) if list_cases else (Form.TEXT, Form.JSON), "--list" if list_cases else "--dry-run")
    if machine == "list":
        raise typer.Exit(list_machines(outputs))
    if job is None:
        outputs.check()
    if machine is not None and measuring:
        raise UsageError("--machine is not this node: only --list and --dry-run go with it")
    if no_verdict and (strict or profile is not None):
        raise UsageError(f"--no-verdict and {'--strict' if strict else '--profile'} exclude each other")
    if no_journal and journal is not None:
        raise UsageError("--no-journal and --journal exclude each other; give one of them")

    from egmctl.bench.budget import check_memory, memory_of
    from egmctl.bench.processes.pool import start_worker
    from egmctl.bench.suites import select_cases
    from egmctl.facts.cgroup import memory_left
    from egmctl.facts.root import Root

    suites = _suites(suite, quick=quick, full=full, sweep=sweep, cases=bool(case)) or ((FABRIC,) if found else ())
    fabric = is_fabric(suites, job, ranks=ranks, sample=sample, dry_run=dry_run)
    if fabric and suites == (FABRIC,) and (sweep is not None or numa != "all"):
        option = "--numa" if sweep is None else "--sweep"
        raise UsageError(f"{option} does not go with --suite {FABRIC}: one size, and each GPU's nearest NUMA node")
    if fabric and pair is not None:
        raise UsageError(f"--pair does not go with --suite {FABRIC} nor in an MPI job: those measure between all ranks")
    cases = select_cases(case or (), suites)
    settings = settings_of(suites, size, samples, copies, timeout, duration)
    if not 1 <= memory <= 95:
        raise UsageError(f"--memory {memory}: it must be from 1 to 95 per cent")
    profiles = profiles_of(profile) if profile is not None or (measuring and not no_verdict) else None
    settings = _with(settings, serial=serial, gate=not no_gate, allow_busy=allow_busy, memory_percent=memory)
    if fabric and not list_cases:
        kept = open_journal(journal, no_journal or not measuring or bool(job and job.rank), outputs.files, quiet=quiet)
        run = FabricRun(
            cases=cases,
            settings=settings,
            gpus=gpus,
            sections=sections(cases),
            sample=sample,
            fixed_size=size is not None,
            outputs=outputs,
            quiet=quiet,
            recorder=kept,
        )
        if dry_run:
            outputs.write(run.planned(machine, ranks), answers=False)
            return
        with run.measured(job, lambda: _progress(quiet)) as report:
            if profiles is not None and len(report.machines) == 1:
                report = judge_run(report, report.machines[0], profiles, named=profile is not None, strict=strict)
            report = explained(report)
            _write(outputs, report, None, verbose)
            end_journal(kept, report.exit_code, quiet=quiet)
            raise typer.Exit(report.exit_code)
    with contextlib.ExitStack() as early:
        # CUDA takes a second to initialise: the worker does so while the facts are read.
        worker = early.enter_context(start_worker()) if measuring else None
        seen = read_machine(machine, sections(cases), quiet=quiet)
        elsewhere = "" if measuring or machine else "; --machine NAME asks it of a machine that is not here"
        room = memory_of(seen, memory_left(Root.from_environment()) if machine is None else None)
        plan = plan_of(
            seen,
            gpus,
            numa,
            cases,
            settings,
            None if list_cases else room,
            swept=sweep is not None,
            size=size,
            pair=pair,
            elsewhere=elsewhere,
        )
        if not measuring:
            from egmctl.report.bench_list import bench_list, bench_plan
            from egmctl.report.exports.plan_json import plan_json

            def planned(target: Target) -> Text | str:
                if target.form is Form.JSON:
                    return plan_json(plan, seen)
                return bench_list(plan, cases) if list_cases else bench_plan(plan)

            outputs.write(planned, answers=False)
            return
        check_memory(plan, room)
        kept = open_journal(journal, no_journal, outputs.files, seen, quiet=quiet)
        report = explained(measure(plan, seen, worker, kept, quiet=quiet))
    if profiles is not None:
        report = judge_run(report, seen, profiles, named=profile is not None, strict=strict)
    _write(outputs, report, seen, verbose)
    end_journal(kept, report.exit_code, quiet=quiet)
    raise typer.Exit(report.exit_code)


def _write(outputs: Outputs, report: RunReport, machine: Machine | None, verbose: int) -> None:
    from egmctl.facts.redact import redact_run

    def draw(target: Target) -> Text | str:
        shown = redact_run(report, machine) if target.leaves_the_node else report
        return render(shown, target.form, verbose=verbose, brief=target.brief, width=target.width)

    outputs.write(draw)


def plan_of(
    machine: Machine,
    gpus: str,
    numa: str,
    cases: Sequence[Case],
    settings: Settings,
    room: Memory | None,
    *,
    swept: bool = False,
    size: str | None = None,
    pair: str | None = None,
    elsewhere: str = "",
) -> Plan:
    """Return what is to be measured, with buffers that fit where no size was asked for.

    Parameters
    ----------
    room
        The memory that there is; ``None``: the buffers need not fit.
    elsewhere
        What to say besides where there is no GPU.

    Raises
    ------
    NothingToDo
        If the machine has no GPU.
    UsageError
        If the options name what it does not have.
    """
    if not machine.gpus:
        raise NothingToDo(f"there is no GPU to measure: {_why_no_gpu(machine)}{elsewhere}")

    def plan(of: Settings) -> Plan:
        return _plan(machine, gpus, numa, cases, of, swept=swept, size=size, pair=pair)

    from egmctl.bench.budget import fitted

    made = plan(settings)
    if size is not None or room is None:
        return made
    return fitted(made, room, lambda size_bytes: plan(_with(settings, size_bytes=size_bytes)))


def _plan(
    machine: Machine,
    gpus: str,
    numa: str,
    cases: Sequence[Case],
    settings: Settings,
    *,
    swept: bool,
    size: str | None,
    pair: str | None,
) -> Plan:
    from egmctl.bench.pairs import parse_pairs
    from egmctl.bench.plan import make_plan
    from egmctl.bench.sweep import sweep_sizes, top_that_fits
    from egmctl.selectors import select_gpus, select_numa

    chosen = select_gpus(gpus, machine.gpus or ())
    nodes = select_numa(numa, machine, chosen)
    pairs = () if pair is None else parse_pairs(pair, chosen, nodes)
    if not swept:
        return make_plan(machine, chosen, nodes, cases, settings, pairs=pairs)
    top = settings.size_bytes if size else top_that_fits(machine, chosen, nodes, cases, settings)
    return make_plan(machine, chosen, nodes, cases, _with(settings, size_bytes=top), sweep_sizes(top), pairs=pairs)


def measure(plan: Plan, machine: Machine, worker: Child | None, kept: Journal | None, *, quiet: bool) -> RunReport:
    """Return what measuring a plan gave, with progress on a terminal."""
    from egmctl.bench.supervisor import supervise

    with _progress(quiet) as on_progress:
        return supervise(plan, machine, on_progress=on_progress, worker=worker, recorder=kept)


def profiles_of(name: str | None = None) -> tuple[Profile, ...]:
    """Return the profile that is asked for, or all: before anything is measured, as one may be broken."""
    from egmctl.verdict.load import load, load_all

    return (load(name),) if name is not None else tuple(profile for profile, _ in load_all())


def judge_run(
    report: RunReport, machine: Machine, profiles: Sequence[Profile], *, named: bool = False, strict: bool = False
) -> RunReport:
    """Return the run with its verdict, by the profile that fits or was asked for."""
    from dataclasses import replace

    from egmctl.verdict.judge import judge
    from egmctl.verdict.match import choose, match_profile

    chosen, why = choose(machine, profiles)
    if named:
        fits = match_profile(machine, profiles[0])
        chosen, why = profiles[0], "asked for" if fits.fits else f"asked for, but of another kind: {fits.reason}"
    return replace(report, verdict=judge(report, chosen, profile_reason=why, strict=strict))


def _suites(suite: str | None, *, quick: bool, full: bool, sweep: str | None, cases: bool) -> tuple[str, ...]:
    """Return the names of the suites that are asked for, none where cases are or the standard one is meant."""
    from egmctl.bench.suites import select_suites

    if sum((suite is not None, quick, full)) > 1:
        raise UsageError("--suite, --quick and --full exclude each other")
    if sweep not in (None, "size"):
        raise UsageError(f"--sweep {printable(sweep or '')!r}: the only thing to sweep is size")
    if suite is not None:
        return select_suites(suite)
    named = "quick" if quick else "full" if full else "sweep" if sweep and not cases else None
    return (named,) if named else ()


def settings_of(
    suites: Sequence[str],
    size: str | None = None,
    samples: int | None = None,
    copies: int | None = None,
    timeout: float = 60.0,
    duration: float | None = None,
) -> Settings:
    """Return how everything in a run is measured.

    Raises
    ------
    UsageError
        For what is out of its range.
    """
    from egmctl.bench.plan import COPIES_LIMIT
    from egmctl.bench.suites import STANDARD, SUITES
    from egmctl.model.measurement import Settings

    try:
        size_bytes = DEFAULT_SIZE_BYTES if size is None else parse_size(size)
    except ValueError as error:
        raise UsageError(f"--size: {error}") from error
    if samples is None:
        samples = max(SUITES[name].samples for name in suites or (STANDARD,))
    if not 1 <= samples <= 1000:
        raise UsageError(f"--samples {samples}: it must be from 1 to 1000")
    if copies is not None and not 1 <= copies <= COPIES_LIMIT:
        raise UsageError(f"--copies {copies}: it must be from 1 to {COPIES_LIMIT}")
    if not 0 < timeout <= 86400:
        raise UsageError(f"--timeout {timeout:g}: it must be above 0 and at most 86400 seconds")
    if duration is not None and not 0 < duration <= 30 * 86400:
        raise UsageError(f"--duration {duration:g}: it must be above 0 and at most {30 * 86400} seconds")
    return Settings(size_bytes=size_bytes, copies=copies, samples=samples, timeout_s=timeout, duration_s=duration)


def _with(settings: Settings, **changes: object) -> Settings:
    from dataclasses import replace

    return replace(settings, **changes)  # type: ignore[arg-type]


def _why_no_gpu(machine: Machine) -> str:
    """Say in a few words what is missing."""
    driver = machine.driver
    if driver is None or driver.module_version is None:
        return "the NVIDIA kernel driver is not loaded; 'egmctl topo' shows what was found"
    return "the driver sees none; 'egmctl topo' shows what was found"


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    """Show on standard error what is being measured, if that is a terminal and is wanted."""
    if not shows_progress(quiet):
        yield lambda _part, _task: None
        return

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.percentage:>3.0f} %"),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("setting up", total=1)
        yield lambda part, task: progress.update(
            bar, completed=part, description=f"{task.case} {task.path}" if task else ""
        )
