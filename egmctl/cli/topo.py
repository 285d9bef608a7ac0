"""``egmctl topo``: show how GPUs, NICs and host memory are connected."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from egmctl.api.options import TopoOptions
from egmctl.cli.fabric import node_outputs
from egmctl.cli.options import MachineOption, read_machine, takes_options
from egmctl.cli.output import OutputOptions, Target, say
from egmctl.errors import ExitCode
from egmctl.report.kinds import TOPO, Format, rendered

SECTIONS = ("host", "gpus", "pairs", "switches", "nics", "driver", "process")
"""The sections of a machine that the command shows."""


MatrixOption = Annotated[
    bool, typer.Option("--matrix", "-m", help="Only the matrix of the links, as nvidia-smi topo -m shows it.")
]


@takes_options(TOPO.formats)
def topo(
    options: TopoOptions, output: OutputOptions, machine: MachineOption = None, matrix: MatrixOption = False
) -> int:
    """Show how GPUs, NICs and host memory are connected, and which routes are Extended GPU Memory (EGM).

    -m leaves out everything but the matrix; JSON and CSV are the same with it.
    """
    outputs = node_outputs(output, TOPO, machine)

    from egmctl.api.machine import topology_of
    from egmctl.topology.notes import missing

    node = read_machine(machine, SECTIONS, quiet=output.quiet)
    note = missing(node)
    shown = topology_of(node, **vars(options))

    def draw(target: Target) -> Any:
        from egmctl.report.render.text import WIDEST
        from egmctl.report.views.topo import matrix_document

        result = topology_of(node, **vars(options), redacted=True) if target.leaves_the_node else shown
        if not matrix or target.format in (Format.JSON, Format.CSV):
            return target.draw(result)
        return rendered(matrix_document(result), target.format, width=target.width or WIDEST)

    outputs.write(draw)
    if note is not None and not outputs.explains_itself:
        say(note.sentence)
    return ExitCode.OK if note is None else ExitCode.NOTHING
