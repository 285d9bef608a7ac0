"""``egmctl compare``: show the differences between saved results, and which of them are worse."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from egmctl.cli.options import takes_options
from egmctl.cli.output import OutputOptions, say
from egmctl.errors import UsageError
from egmctl.report.kinds import COMPARISON
from egmctl.units import several

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
    from egmctl.journal.read import earlier, ended

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
        if loaded.missing and not output.quiet:
            say(f"{loaded.path}: {loaded.missing}")
    spread = spread_of(saved, (lambda _: None) if output.quiet else say)
    compared = comparison.compare(saved, tolerance=tolerance / 100, spread=spread)
    outputs.show(compared)
    return compared.exit_code
