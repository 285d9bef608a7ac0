"""``egmctl topo``: what is connected to what, and by which link."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from egmctl.cli.mpi import Mpi, answers_alone, launched
from egmctl.cli.options import (
    ColorOption,
    CsvOption,
    ForceOption,
    GpusOption,
    JsonOption,
    MachineOption,
    NumaOption,
    QuietOption,
    VerboseOption,
    format_option,
    list_machines,
    output_option,
    read_machine,
)
from egmctl.cli.output import Color, Outputs, Target, say
from egmctl.errors import ExitCode
from egmctl.report.kinds import TOPO, Format
from egmctl.report.rendering import render

if TYPE_CHECKING:
    from rich.text import Text

SECTIONS = ("host", "gpus", "pairs", "switches", "nics", "driver", "process")
"""The sections of a machine that the command shows something of."""

FormatOption = Annotated[Format | None, format_option(TOPO.formats)]
OutputOption = Annotated[list[Path] | None, output_option(TOPO.formats)]


def topo(
    gpus: GpusOption = "all",
    numa: NumaOption = "all",
    machine: MachineOption = None,
    json: JsonOption = False,
    csv: CsvOption = False,
    format: FormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    verbose: VerboseOption = 0,
    quiet: QuietOption = False,
    color: ColorOption = Color.AUTO,
) -> int:
    """Show how GPUs, NICs and host memory are connected, and which routes are Extended GPU Memory (EGM)."""
    found = launched(Mpi.AUTO) if machine is None else None
    outputs = Outputs.chosen(TOPO, output, json=json, csv=csv, format=format, force=force, color=color, quiet=quiet)
    if machine == "list":
        return list_machines(outputs)
    if found is not None:
        outputs = answers_alone(found, outputs)
    outputs.check()

    from egmctl.api.machine import topology_of
    from egmctl.topology.notes import missing

    seen = read_machine(machine, SECTIONS, quiet=quiet)
    lacking = missing(seen)

    def draw(target: Target) -> Text | str:
        shown = topology_of(seen, gpus=gpus, numa=numa, redacted=target.leaves_the_node)
        return render(shown, target.format, verbose=verbose, brief=target.brief, width=target.width)

    outputs.write(draw)
    if lacking is not None and not {target.format for target in outputs.targets} & {Format.TEXT, Format.JSON}:
        say(lacking.sentence)
    return ExitCode.OK if lacking is None else ExitCode.NOTHING
