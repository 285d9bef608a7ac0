"""``egmctl topo``: what is connected to what, and by which wire."""

from __future__ import annotations

from egmctl.cli.machine import list_machines, read_machine
from egmctl.cli.options import (
    ColorOption,
    CsvOption,
    ForceOption,
    GpusOption,
    JsonOption,
    MachineOption,
    NumaOption,
    OutputOption,
    QuietOption,
    VerboseOption,
)
from egmctl.cli.output import Color, Form, check_output, choose_form, emit, say
from egmctl.errors import ExitCode, NothingToDo

SECTIONS = ("host", "gpus", "pairs", "switches", "nics", "driver", "process")
"""The sections of a machine that the command shows something of."""


def topo(
    gpus: GpusOption = "all",
    numa: NumaOption = "all",
    machine: MachineOption = None,
    json: JsonOption = False,
    csv: CsvOption = False,
    output: OutputOption = None,
    force: ForceOption = False,
    verbose: VerboseOption = 0,
    quiet: QuietOption = False,
    color: ColorOption = Color.AUTO,
) -> int:
    """Show how GPUs, NICs and host memory are connected, and which routes are Extended GPU Memory (EGM)."""
    form = choose_form(json, csv, output)
    check_output(output, force)
    if machine == "list":
        return list_machines(form, output, force, color)

    from egmctl.report.envelope import dump, envelope
    from egmctl.report.topo_csv import topo_csv
    from egmctl.report.topo_json import TOPO_SCHEMA, topo_result
    from egmctl.report.topo_missing import missing_text
    from egmctl.report.topo_text import topo_text
    from egmctl.selectors import select_gpus, select_numa
    from egmctl.topo.missing import missing
    from egmctl.topo.topology import topology

    seen = read_machine(machine, SECTIONS, quiet=quiet)
    lacking = missing(seen)
    chosen = seen.gpus or ()
    if chosen or gpus != "all":
        chosen = select_gpus(gpus, chosen)
    nodes = select_numa(numa, seen, chosen) if numa != "all" else None
    judged = topology(seen, chosen, nodes)
    code = ExitCode.OK if lacking is None else ExitCode.NOTHING
    if form is Form.JSON:
        errors = [] if lacking is None else [NothingToDo(lacking.sentence)]
        document = envelope(TOPO_SCHEMA, code, topo_result(judged, lacking), machine=seen, errors=errors)
        emit(dump(document), output=output, force=force)
    elif form is Form.CSV:
        emit(topo_csv(judged), output=output, force=force)
        if lacking is not None:
            say(lacking.sentence)
    else:
        text = topo_text(judged, verbose=verbose) if lacking is None else missing_text(seen, lacking)
        emit(text, output=output, force=force, color=color)
    return code
