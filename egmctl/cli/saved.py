"""Saved results: ``egmctl history``, ``egmctl show`` and ``egmctl compare``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from egmctl.cli.options import NO_LEVELS, refuse_together, takes_options
from egmctl.cli.output import OutputOptions, Target, say
from egmctl.errors import ExitCode, UsageError
from egmctl.report.kinds import COMPARISON, DOCTOR, HISTORY, TOPO, Format, kind_of
from egmctl.units import several

if TYPE_CHECKING:
    from rich.text import Text


@takes_options(HISTORY.formats, without=NO_LEVELS)
def history(
    output: OutputOptions,
    folder: Annotated[
        Path | None, typer.Option("--journal", metavar="DIR", help="Folder given to bench --journal.")
    ] = None,
) -> int:
    """List the bench runs that this node keeps, the latest last."""
    outputs = output.checked(HISTORY.formats)

    from egmctl.journal.events import earlier
    from egmctl.model.listing import History, KeptRun
    from egmctl.model.measurement import MeasurementStatus
    from egmctl.saved import load_journal

    rows: list[KeptRun] = []
    for path in earlier(folder):
        try:
            # Keep only a row of each journal: all journals together may not fit in memory.
            kept = load_journal(path)
        except UsageError as error:
            say(str(error))
            continue
        report = kept.report
        row = KeptRun(
            file=str(path),
            started_at=report.started_at,
            gpus=tuple(gpu.label for gpu in report.gpus),
            measurements=len(report.measurements),
            ok=sum(measurement.status is MeasurementStatus.OK for measurement in report.measurements),
            exit_code=kept.exit_code,
            state=kept.state,
            ending="; ".join(filter(None, (kept.ending, kept.missing))),
        )
        rows.append(row)
    outputs.show(History(runs=tuple(rows)))
    return ExitCode.OK


_FILE = "JSON that any command wrote, also packed (.gz), the journal of a bench, or the folder of a fleet."
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help=_FILE)]


@takes_options(tuple(Format), note=" (those of the command that wrote FILE)")
def show(
    file: FileArgument,
    output: OutputOptions,
    brief: Annotated[bool, typer.Option("--brief", help="Of a result of doctor: one line per problem.")] = False,
) -> int:
    """Show a saved result again, in any format that its command has: the bytes that it would have written itself.

    It judges nothing: the exit code is 0 once the result is shown, 4 where lines of a journal are damaged. That of its
    command is exit_code in JSON.
    """
    from egmctl.documents import ascii_text
    from egmctl.model.machine import Machine
    from egmctl.saved import load_any, viewed

    saved = load_any(file)
    written = saved.content
    # Snapshots, and documents of commands that ended without a result, have the formats of a topology.
    kind = TOPO if saved.result is None or isinstance(saved.result, Machine) else kind_of(saved.result)
    outputs = output.chosen(kind.formats, brief=brief)
    if brief and kind is not DOCTOR:
        raise UsageError(f"--brief works with a result of egmctl doctor, which {file} is not")
    refuse_together({"--brief": brief, "--verbose": output.verbose > 0})
    outputs.check()
    read = written is None or any(target.format is not Format.JSON for target in outputs.targets)
    result = viewed(saved) if read else None

    def draw(target: Target) -> Text | str:
        try:
            if result is None or (written is not None and target.format is Format.JSON):
                return ascii_text(written or b"")
            return target.draw(result)
        except (LookupError, ValueError, ArithmeticError) as error:
            # No run writes such a file: each value is valid, but they contradict each other.
            raise UsageError(f"file {file} cannot be shown: its parts do not fit together ({error})") from error

    outputs.write(draw, answers=result is not None)
    if not output.quiet:
        for sentence in filter(None, (saved.newer, saved.missing)):
            say(f"{file}: {sentence}")
    return ExitCode.CRASHED if saved.damaged else ExitCode.OK


FilesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="Two results: the second against the first. More: nodes against each other. 'last' is this node's latest "
        "bench run, 'last~1' the one before; 'last' alone compares the two.",
    ),
]
ToleranceOption = Annotated[
    float,
    typer.Option(
        "--tolerance", metavar="PERCENT", help="How far a median may differ; one lost NVLink of 18 costs 5.6."
    ),
]


def _with_last(files: list[Path]) -> list[Path]:
    """Return the files, with ``last`` and ``last~N`` replaced by the journals of earlier runs."""
    from egmctl.journal.events import earlier, ended

    if [str(file) for file in files] == ["last"] and not os.path.exists(files[0]):
        files = [Path("last~1"), Path("last")]
    named: list[Path] = []
    for file in files:
        match = re.fullmatch(r"last(?:~([0-9]{1,3}))?", str(file), re.ASCII)
        if match is not None and not os.path.exists(file):
            runs = [path for path in earlier() if ended(path)]
            back = int(match[1] or 0)
            if back >= len(runs):
                kept = several(len(runs), "finished bench run")
                raise UsageError(f"{file}: there is no such run: {kept} of this node are kept (egmctl history)")
            file = runs[-1 - back]
        named.append(file)
    return named


@takes_options(COMPARISON.formats)
def compare(files: FilesArgument, output: OutputOptions, tolerance: ToleranceOption = 5.0) -> int:
    """Compare saved results of bringup, bench, doctor, topo or snapshot; exit code 1 if something is worse."""
    outputs = output.checked(COMPARISON.formats)
    if not 0 <= tolerance < 100:
        raise UsageError(f"--tolerance {tolerance:g}: it must be from 0 to below 100 per cent")

    from egmctl import comparison
    from egmctl.comparison.paths import spread_of
    from egmctl.saved import load_all
    from egmctl.units import require_clustershell

    if len(files) > 2:
        require_clustershell("comparing more than two files")
    saved = load_all(_with_last(files))
    for loaded in saved:
        for sentence in filter(None, (loaded.newer, loaded.missing)):
            if not output.quiet:
                say(f"{loaded.path}: {sentence}")
    machines = [machine for file in saved for machine in file.machines]
    spread = spread_of(machines, (lambda _: None) if output.quiet else say)
    compared = comparison.compare(saved, tolerance=tolerance / 100, spread=spread)
    outputs.show(compared)
    return compared.exit_code
