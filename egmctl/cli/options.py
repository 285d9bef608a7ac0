"""The options that commands share, so that one word means one thing everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from egmctl.cli.output import Color
from egmctl.report.forms import Form

GpusOption = Annotated[
    str,
    typer.Option("--gpus", metavar="LIST", help="GPUs: all, 0-3,5, 0-7/2, a UUID (or its start), a PCI bus id."),
]
MeasuredGpusOption = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        metavar="LIST",
        help="GPUs: all (the default), 0-3,5, 0-7/2, a UUID (or its start), a PCI bus id. A named GPU that cannot be "
        "measured is a failure.",
    ),
]
NumaOption = Annotated[
    str,
    typer.Option("--numa", metavar="LIST", help="CPU NUMA nodes: all, local (to the chosen GPUs), 1, 0-1."),
]
MachineOption = Annotated[
    str | None,
    typer.Option(
        "--machine",
        metavar="FILE|NAME",
        help="A recorded or shipped machine instead of this node; 'list' names the shipped ones.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write one JSON document, also on failure.")]
CsvOption = Annotated[bool, typer.Option("--csv", help="Write CSV, one fact per row.")]
FormatOption = Annotated[
    Form | None,
    typer.Option(
        "--format",
        metavar="FORM",
        help="Output format: text, json, csv, html, svg, md, prom, nagios, junit, as far as a command has it.",
    ),
]
OutputOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write to FILE, the format by its suffix: .txt, .json, .csv, .html, .svg, .md, .prom, .xml (JUnit), as "
        "far as the command has it. Can be given several times; - is standard output.",
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite a file that exists.")]
ColorOption = Annotated[
    Color, typer.Option("--color", help="When to use colour; auto follows NO_COLOR, FORCE_COLOR and the terminal.")
]
VerboseOption = Annotated[
    int, typer.Option("--verbose", "-v", count=True, show_default=False, help="Show more detail.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on standard error.")]
