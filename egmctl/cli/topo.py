"""``egmctl topo``: what is connected to what, and by which wire."""

from __future__ import annotations

from egmctl.cli.machine import list_machines, read_machine
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
from egmctl.cli.output import Color, check_output, choose_form, emit, leaves_the_node, say
from egmctl.errors import ExitCode
from egmctl.report.forms import TOPO, Form, render

SECTIONS = ("host", "gpus", "pairs", "switches", "nics", "driver", "process")
"""The sections of a machine that the command shows something of."""


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
    form = choose_form(TOPO, output, json=json, csv=csv, form=format)
    check_output(output, force)
    if machine == "list":
        return list_machines(form, output, force, color)

    from egmctl.facts.redact import redact
    from egmctl.selectors import select_gpus, select_numa
    from egmctl.topology.missing import missing
    from egmctl.topology.topology import topology

    seen = read_machine(machine, SECTIONS, quiet=quiet)
    lacking = missing(seen)
    chosen = seen.gpus or ()
    if chosen or gpus != "all":
        chosen = select_gpus(gpus, chosen)
    nodes = select_numa(numa, seen, chosen) if numa != "all" else None
    if leaves_the_node(form, output):
        seen = redact(seen)
        chosen = tuple(seen.gpu(gpu.bus_id) for gpu in chosen)
    content = render(topology(seen, chosen, nodes), form, verbose=verbose)
    emit(content, output=output, force=force, color=color)
    if lacking is not None and form not in (Form.TEXT, Form.JSON):
        say(lacking.sentence)
    return ExitCode.OK if lacking is None else ExitCode.NOTHING
