"""``egmctl topo``: show how GPUs, NICs and host memory are connected."""

from __future__ import annotations

from egmctl.api.options import TopoOptions
from egmctl.cli.fabric import node_outputs
from egmctl.cli.options import MachineOption, read_machine, takes_options
from egmctl.cli.output import OutputOptions, say
from egmctl.errors import ExitCode
from egmctl.report.kinds import TOPO

SECTIONS = ("host", "gpus", "pairs", "switches", "nics", "driver", "process")
"""The sections of a machine that the command shows."""


@takes_options(TOPO.formats)
def topo(options: TopoOptions, output: OutputOptions, machine: MachineOption = None) -> int:
    """Show how GPUs, NICs and host memory are connected, and which routes are Extended GPU Memory (EGM)."""
    outputs = node_outputs(output, TOPO, machine)

    from egmctl.api.machine import topology_of
    from egmctl.topology.notes import missing

    node = read_machine(machine, SECTIONS, quiet=output.quiet)
    note = missing(node)
    shown = topology_of(node, **vars(options))
    outputs.show(shown, lambda: topology_of(node, **vars(options), redacted=True))
    if note is not None and not outputs.explains_itself:
        say(note.sentence)
    return ExitCode.OK if note is None else ExitCode.NOTHING
