"""The options of ``egmctl bench`` that no other command has."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from egmctl.cli.fabric import FABRIC, FabricRun, is_fabric
from egmctl.cli.journal import end_journal, open_journal
from egmctl.cli.mpi import Mpi, MpiOption, launched
from egmctl.cli.options import (
    ColorOption,
    CsvOption,
    ForceOption,
    JsonOption,
    MachineOption,
    MeasuredGpusOption,
    NumaOption,
    QuietOption,
    VerboseOption,
    format_option,
    list_machines,
    output_option,
    read_machine,
)
from egmctl.cli.output import Color, Outputs, Target
from egmctl.cli.progress import Beside, show_progress
from egmctl.errors import NothingToDo, UsageError
from egmctl.report.kinds import BENCH, Format
from egmctl.report.rendering import render
from egmctl.units import printable

if TYPE_CHECKING:
    from rich.text import Text

    from egmctl.api.bench import Bench
    from egmctl.launch import Child
    from egmctl.model.machine import Machine
    from egmctl.model.measurement import RunReport


CaseOption = Annotated[
    list[str] | None,
    typer.Option("--case", metavar="GLOB", help="Only cases whose names match; can be given several times."),
]
SuiteOption = Annotated[
    str | None, typer.Option("--suite", metavar="NAME[,..]", help="Suites of cases; --list names them.")
]
QuickOption = Annotated[bool, typer.Option("--quick", help="A quick look at every link: --suite quick.")]
FullOption = Annotated[bool, typer.Option("--full", help="Every case: --suite full.")]
PairOption = Annotated[
    str | None,
    typer.Option(
        "--pair", metavar="A:B[,..]", help="Only these paths, from A to B: GPUs (0, GPU0) and NUMA nodes (NUMA0)."
    ),
]
SizeOption = Annotated[
    str | None,
    typer.Option("--size", metavar="SIZE", help="Bytes of each buffer: 512M (the default), 64MiB (2^20), 64MB (10^6)."),
]
SweepOption = Annotated[
    str | None,
    typer.Option(
        "--sweep",
        metavar="size",
        help="Measure sizes from 4 KiB to --size (default: the largest that fits, up to 8 GiB).",
    ),
]
SamplesOption = Annotated[
    int | None, typer.Option("--samples", metavar="N", help="Samples of each path: 3 or 5, by the suite.")
]
CopiesOption = Annotated[
    int | None,
    typer.Option("--copies", metavar="N", help="Copies of the buffer in one sample; by default as many as take 20 ms."),
]
DurationOption = Annotated[
    float | None,
    typer.Option("--duration", metavar="SECONDS", help="Soak test: repeat all measurements for this long."),
]
SerialOption = Annotated[
    bool, typer.Option("--serial", help="Measure one pair at a time, even if pairs share no GPU or link.")
]
NoGateOption = Annotated[bool, typer.Option("--no-gate", help="Do not queue work behind a gate kernel: for profilers.")]
AllowBusyOption = Annotated[
    bool, typer.Option("--allow-busy", help="Measure GPUs that other processes use, and mark the results.")
]
MemoryOption = Annotated[
    int, typer.Option("--memory", metavar="PERCENT", help="Share of the free memory that buffers may take, 1 to 95.")
]
JournalOption = Annotated[
    Path | None,
    typer.Option(
        "--journal",
        metavar="DIR",
        help="Where to keep the run's journal. Default: ~/.local/state/egmctl/journal.",
    ),
]
NoJournalOption = Annotated[
    bool,
    typer.Option("--no-journal", help="Keep no journal; a killed run then loses its results."),
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="Give up a step after this long and continue.")
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="FILE|NAME",
        help="Judge by this profile instead of the matching one; 'egmctl profile list' names them.",
    ),
]
NoVerdictOption = Annotated[bool, typer.Option("--no-verdict", help="Measure without a verdict.")]
StrictOption = Annotated[bool, typer.Option("--strict", help="Treat warnings as failures (exit code 1).")]
ListOption = Annotated[bool, typer.Option("--list", help="Show the cases and whether each can run here, then exit.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show steps, bytes, memory and time, then exit.")]
RanksOption = Annotated[
    int | None,
    typer.Option(
        "--ranks",
        metavar="N",
        help="With --dry-run --suite fabric: the cost for N GPUs on nodes like this one.",
    ),
]
SampleOption = Annotated[
    int | None,
    typer.Option(
        "--sample",
        metavar="K",
        help="With --suite fabric: measure each GPU with K random others instead of all.",
    ),
]


FormatOption = Annotated[Format | None, format_option(BENCH.formats)]
OutputOption = Annotated[list[Path] | None, output_option(BENCH.formats)]


def bench(
    gpus: MeasuredGpusOption = None,
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
    """Measure the paths between GPUs and to host memory (EGM where the node has it), and verify every byte.

    Needs idle GPUs. Without --quick, --full, --suite or --case: the suite 'standard', 15 s on two GPUs.
    """
    outputs = Outputs.chosen(BENCH, output, json=json, csv=csv, format=format, force=force, color=color, quiet=quiet)
    measuring = not (list_cases or dry_run)
    found = launched(mpi)
    job = found if measuring else None
    if list_cases and dry_run:
        raise UsageError("--list and --dry-run exclude each other; give one of them")
    if not measuring:
        outputs.all_in(
            (Format.TEXT,) if list_cases else (Format.TEXT, Format.JSON), "--list" if list_cases else "--dry-run"
        )
    if machine == "list":
        raise typer.Exit(list_machines(outputs))
    if job is None:
        outputs.check()
    if machine is not None and measuring:
        raise UsageError("--machine: a recorded machine cannot be measured; use it with --list or --dry-run")
    if no_verdict and (strict or profile is not None):
        raise UsageError(f"--no-verdict and {'--strict' if strict else '--profile'} exclude each other")
    if no_journal and journal is not None:
        raise UsageError("--no-journal and --journal exclude each other; give one of them")

    suites = _suites(suite, quick=quick, full=full, sweep=sweep, cases=bool(case)) or ((FABRIC,) if found else ())
    fabric = is_fabric(suites, job, ranks=ranks, sample=sample, dry_run=dry_run)
    if fabric and suites == (FABRIC,) and (sweep is not None or numa != "all"):
        option = "--numa" if sweep is None else "--sweep"
        raise UsageError(
            f"{option} cannot be combined with --suite {FABRIC}, which measures one size and each GPU's "
            "nearest NUMA node"
        )
    if fabric and pair is not None:
        raise UsageError(
            f"--pair cannot be combined with --suite {FABRIC} or an MPI job: those measure between all ranks"
        )
    # The ranks of a job read their own nodes.
    with _begun(measuring and not fabric) as begun:
        from egmctl.api.bench import Bench, judge_run, load_profiles
        from egmctl.verdict.ucx_route import explained

        asked = Bench(
            suites=suites,
            cases=case or (),
            gpus=gpus,
            numa=numa,
            pair=pair,
            size=size,
            sweep=sweep is not None,
            samples=samples,
            copies=copies,
            duration_s=duration,
            timeout_s=timeout,
            serial=serial,
            gate=not no_gate,
            allow_busy=allow_busy,
            memory_percent=memory,
        )
        # Before anything is measured, as one may be broken.
        profiles = load_profiles(profile) if profile is not None or (measuring and not no_verdict) else None
        if fabric and not list_cases:
            kept = open_journal(
                journal, no_journal or not measuring or bool(job and job.rank), outputs.files, quiet=quiet
            )
            run = FabricRun(
                cases=asked.cases,
                settings=asked.settings,
                gpus="all" if gpus is None else gpus,
                sections=asked.sections,
                sample=sample,
                fixed_size=size is not None,
                outputs=outputs,
                quiet=quiet,
                recorder=kept,
            )
            if dry_run:
                outputs.write(run.planned(machine, ranks), answers=False)
                return
            with run.measured(job, lambda: show_progress(quiet)) as report:
                if profiles is not None and len(report.machines) == 1:
                    report = judge_run(report, report.machines[0], profiles, strict=strict)
                report = asked.explain(explained(report))
                _write(outputs, asked, report, None, verbose)
                end_journal(kept, report.exit_code, quiet=quiet)
                raise typer.Exit(report.exit_code)
        seen = begun.machine(*asked.sections) if begun else read_machine(machine, asked.sections, quiet=quiet)
        try:
            plan = asked.plan(seen, fit=not list_cases, check=not list_cases)
        except NothingToDo as error:
            elsewhere = "" if measuring or machine else "; --machine NAME answers for another machine"
            raise NothingToDo(f"{error}{elsewhere}") from error
        if begun is None:
            from egmctl.report.exports.plan_json import plan_json
            from egmctl.report.rendering import rendered
            from egmctl.report.views.bench_plan import cases_document, plan_document

            def planned(target: Target) -> Text | str:
                if target.format is Format.JSON:
                    return plan_json(plan, seen)
                told = cases_document(plan, asked.cases) if list_cases else plan_document(plan)
                return rendered(told, target.format, width=target.width)

            outputs.write(planned, answers=False)
            return
        kept = open_journal(journal, no_journal, outputs.files, seen, quiet=quiet)
        with show_progress(quiet) as on_progress:
            report = asked.run(
                plan, seen, on_progress=on_progress, worker=begun.worker, recorder=Beside(kept, on_progress)
            )
    if profiles is not None:
        report = judge_run(report, seen, profiles, strict=strict)
    report = asked.explain(report, seen)
    _write(outputs, asked, report, seen, verbose)
    end_journal(kept, report.exit_code, quiet=quiet)
    raise typer.Exit(report.exit_code)


@dataclass(frozen=True, slots=True)
class _Begun:
    """What goes on in child processes meanwhile."""

    machine: Callable[..., Machine]
    """Returns the node, with more sections of it: :func:`egmctl.facts.collect.reading`."""
    worker: Child


@contextlib.contextmanager
def _begun(measuring: bool) -> Iterator[_Begun | None]:
    """Have the libraries asked and CUDA initialised in children, a second's work, while modules are loaded here."""
    if not measuring:
        yield None
        return
    from egmctl.bench.processes.group import start_worker
    from egmctl.facts.collect import LIBRARY_SECTIONS, reading

    # Reading comes first: it looks which device nodes are missing before CUDA makes them.
    with reading(LIBRARY_SECTIONS) as machine, start_worker() as worker:
        yield _Begun(machine, worker)


def _write(outputs: Outputs, asked: Bench, report: RunReport, machine: Machine | None, verbose: int) -> None:
    from egmctl.facts.redact import redact_run

    def draw(target: Target) -> Text | str:
        shown = asked.explain(redact_run(report, machine)) if target.leaves_the_node else report
        return render(shown, target.format, verbose=verbose, brief=target.brief, width=target.width)

    outputs.write(draw)


def _suites(suite: str | None, *, quick: bool, full: bool, sweep: str | None, cases: bool) -> tuple[str, ...]:
    """Return the names of the suites that the user chose, none where cases are or the standard one is meant."""
    from egmctl.bench.suites import select_suites

    if sum((suite is not None, quick, full)) > 1:
        raise UsageError("--suite, --quick and --full exclude each other")
    if sweep not in (None, "size"):
        raise UsageError(f"--sweep {printable(sweep or '')!r}: the only valid sweep is size")
    if suite is not None:
        return select_suites(suite)
    named = "quick" if quick else "full" if full else "sweep" if sweep and not cases else None
    return (named,) if named else ()
