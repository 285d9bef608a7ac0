"""``egmctl compare``: what differs between saved results, and whether that is worse."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from egmctl.cli.options import (
    ColorOption,
    CsvOption,
    ForceOption,
    FormatOption,
    JsonOption,
    OutputOption,
    VerboseOption,
)
from egmctl.cli.output import Color, say
from egmctl.cli.outputs import Outputs
from egmctl.errors import UsageError
from egmctl.report.forms import COMPARISON, render

FilesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="Two results: the second against the first. More: nodes of one kind against each other.",
    ),
]
ToleranceOption = Annotated[
    float,
    typer.Option(
        "--tolerance",
        metavar="PERCENT",
        help="What a median may differ by; a little less than one lost NVLink of 18 costs.",
    ),
]


def compare(
    files: FilesArgument,
    tolerance: ToleranceOption = 5.0,
    json: JsonOption = False,
    csv: CsvOption = False,
    format: FormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    verbose: VerboseOption = 0,
    color: ColorOption = Color.AUTO,
) -> int:
    """Say what differs between results of egmctl bench, doctor, topo or snapshot; exit 1 where something is worse."""
    outputs = Outputs.chosen(COMPARISON, output, json=json, csv=csv, form=format, force=force, color=color)
    outputs.check()
    if not 0 <= tolerance < 100:
        raise UsageError(f"--tolerance {tolerance:g}: it must be from 0 to below 100 per cent")

    from egmctl import comparison
    from egmctl.comparison.spread import known_spread
    from egmctl.nodesets import require_clustershell
    from egmctl.saved import load_all
    from egmctl.verdict import load as profiles

    if len(files) > 2:
        require_clustershell("comparing more than two files")
    saved = load_all(files)
    known = profiles.load_all(lambda error: say(f"{error}; the comparison goes on without it"))
    spread = known_spread([machine for one in saved for machine in one.machines], [profile for profile, _ in known])
    found = comparison.compare(saved, tolerance=tolerance / 100, spread=spread)
    outputs.write(lambda target: render(found, target.form, verbose=verbose, width=target.width), answers=False)
    return found.exit_code
