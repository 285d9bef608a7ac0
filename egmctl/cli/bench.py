"""``egmctl bench``: measure the paths between GPUs and to the memory of NUMA nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from egmctl.cli.options import (
    ColorOption,
    CsvOption,
    ForceOption,
    GpusOption,
    JsonOption,
    NumaOption,
    OutputOption,
    QuietOption,
)
from egmctl.cli.output import Color, Form, check_output, choose_form, emit
from egmctl.errors import NothingToDo, UsageError
from egmctl.units import parse_size

if TYPE_CHECKING:
    from egmctl.bench.plan import Plan
    from egmctl.bench.supervisor import Progress
    from egmctl.launch import Child
    from egmctl.model.machine import Machine
    from egmctl.model.measurement import Settings

SizeOption = Annotated[
    str, typer.Option("--size", metavar="SIZE", help="Bytes of each buffer: 512M, 64MiB (2^20), 64MB (10^6).")
]
SamplesOption = Annotated[int, typer.Option("--samples", metavar="N", help="Samples of each path.")]
CopiesOption = Annotated[
    int | None,
    typer.Option("--copies", metavar="N", help="Copies of the buffer in one sample; by default as many as take 20 ms."),
]
CaseOption = Annotated[
    list[str] | None,
    typer.Option("--case", metavar="GLOB", help="Only the cases whose names fit; may be given several times."),
]
ListOption = Annotated[
    bool, typer.Option("--list", help="Show the cases, whether each would run here, and why not; measure nothing.")
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="Give one path up after this time and go on.")
]


def bench(
    gpus: GpusOption = "all",
    numa: NumaOption = "all",
    case: CaseOption = None,
    size: SizeOption = "512M",
    samples: SamplesOption = 5,
    copies: CopiesOption = None,
    timeout: TimeoutOption = 60.0,
    list_cases: ListOption = False,
    json: JsonOption = False,
    csv: CsvOption = False,
    output: OutputOption = None,
    force: ForceOption = False,
    color: ColorOption = Color.AUTO,
    quiet: QuietOption = False,
) -> None:
    """Measure, verified, the bandwidth between GPUs and to host NUMA memory (EGM where the node has it)."""
    form = choose_form(json, csv, output)
    if list_cases and form is not Form.TEXT:
        raise UsageError("--list is text: it has no other form")
    check_output(output, force)
    settings = _settings(size, samples, copies, timeout)

    from egmctl.bench.plan import SECTIONS, check_memory, make_plan
    from egmctl.bench.registry import select_cases
    from egmctl.bench.supervisor import start_worker
    from egmctl.facts.collect import collect
    from egmctl.selectors import select_gpus, select_numa

    cases = select_cases(case or ())
    with contextlib.ExitStack() as early:
        # CUDA takes a second to initialise: the worker does so while the facts are read.
        worker = None if list_cases else early.enter_context(start_worker())
        machine = collect(SECTIONS)
        if not machine.gpus:
            raise NothingToDo(f"there is no GPU to measure: {_why_no_gpu(machine)}")
        chosen = select_gpus(gpus, machine.gpus)
        plan = make_plan(machine, chosen, select_numa(numa, machine, chosen), cases, settings)
        if list_cases:
            from egmctl.report.bench_list import bench_list

            emit(bench_list(plan, cases), output=output, force=force, color=color)
            return
        check_memory(plan, machine)
        code = _measure(plan, machine, worker, form, output=output, force=force, color=color, quiet=quiet)
    raise typer.Exit(code)


def _measure(
    plan: Plan,
    machine: Machine,
    worker: Child | None,
    form: Form,
    *,
    output: OutputOption,
    force: bool,
    color: Color,
    quiet: bool,
) -> int:
    """Run the plan, write its report, and return the exit code."""
    from egmctl.bench.supervisor import supervise
    from egmctl.report.bench_csv import bench_csv
    from egmctl.report.bench_json import bench_json
    from egmctl.report.bench_text import bench_text

    with _progress(len(plan.tasks), quiet) as on_progress:
        report = supervise(plan, machine, on_progress=on_progress, worker=worker)
    if form is Form.JSON:
        emit(bench_json(report, machine), output=output, force=force)
    elif form is Form.CSV:
        emit(bench_csv(report), output=output, force=force)
    else:
        emit(bench_text(report), output=output, force=force, color=color)
    return report.exit_code


def _settings(size: str, samples: int, copies: int | None, timeout: float) -> Settings:
    from egmctl.bench.plan import COPIES_LIMIT
    from egmctl.model.measurement import Settings

    try:
        size_bytes = parse_size(size)
    except ValueError as error:
        raise UsageError(f"--size: {error}") from error
    if not 1 <= samples <= 1000:
        raise UsageError(f"--samples {samples}: it must be from 1 to 1000")
    if copies is not None and not 1 <= copies <= COPIES_LIMIT:
        raise UsageError(f"--copies {copies}: it must be from 1 to {COPIES_LIMIT}")
    if not 0 < timeout <= 86400:
        raise UsageError(f"--timeout {timeout:g}: it must be above 0 and at most 86400 seconds")
    return Settings(size_bytes=size_bytes, copies=copies, samples=samples, timeout_s=timeout)


def _why_no_gpu(machine: Machine) -> str:
    """Say in a few words what is missing."""
    driver = machine.driver
    if driver is None or driver.module_version is None:
        return "the NVIDIA kernel driver is not loaded; 'egmctl topo' shows what was found"
    return "the driver sees none; 'egmctl topo' shows what was found"


@contextlib.contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Progress]:
    """Show on standard error what is being measured, if that is a terminal and is wanted."""
    import os
    import sys

    if quiet or os.environ.get("EGMCTL_NO_PROGRESS") or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _done, _task: None
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("setting up", total=total)
        yield lambda done, task: progress.update(
            bar,
            completed=done,
            description=f"{task.case} {task.path}" if task else "",
        )
