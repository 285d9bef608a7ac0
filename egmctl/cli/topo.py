"""``egmctl topo`` shows a node, and ``egmctl snapshot`` records it in one file, to replay with ``--machine FILE``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from egmctl.api.options import TopoOptions
from egmctl.cli.bringup import settle_questions
from egmctl.cli.fabric import answers_alone
from egmctl.cli.options import ForceOption, MachineOption, MpiOptions, refuse_together, requested_machine, takes_options
from egmctl.cli.output import OutputOptions, Target, check_output, emit, file_of, say
from egmctl.errors import ExitCode, UsageError
from egmctl.report.kinds import TOPO, Format, rendered

MatrixOption = Annotated[bool, typer.Option("--matrix", "-m", help="Only the matrices of the links and of the routes.")]


@takes_options(TOPO.formats)
def topo(
    options: TopoOptions, output: OutputOptions, machine: MachineOption = None, matrix: MatrixOption = False
) -> int:
    """Show how GPUs, NICs and host memory are connected, and which routes are Extended GPU Memory (EGM).

    -m leaves out everything but the matrix of nvidia-smi topo -m and that of the routes. JSON and CSV are the same
    with it.
    """
    launch = MpiOptions().joined_job() if machine is None else None
    outputs = output.chosen(TOPO.formats)
    outputs = outputs if launch is None else answers_alone(launch, outputs)
    outputs.check()

    from egmctl.api.machine import topology_of
    from egmctl.topology.topology import SECTIONS, missing

    node = requested_machine(machine, SECTIONS, quiet=output.quiet)
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
    return shown.answer.exit_code


JsonFileOption = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE.json", help="Write to FILE.json.")]
_SECTIONS = "All, or some of host, gpus, pairs, switches, nics, driver, process, confinement, system."
SectionsOption = Annotated[str, typer.Option("--sections", metavar="LIST", help=_SECTIONS)]
_EVIDENCE = "Also probe and measure, for minutes, and say which assumptions on Grace that settles. Needs idle GPUs."
EvidenceOption = Annotated[bool, typer.Option("--evidence", help=_EVIDENCE)]
_FULL = "Keep names, serial numbers, UUIDs and paths; without it they become pseudonyms."
FullOption = Annotated[bool, typer.Option("--full", help=_FULL)]


def snapshot(
    output: JsonFileOption = None,
    full: FullOption = False,
    sections: SectionsOption = "all",
    force: ForceOption = False,
    evidence: EvidenceOption = False,
) -> int:
    """Record this node into one JSON document that 'egmctl topo --machine FILE' shows anywhere.

    With --evidence the document is for 'egmctl show FILE'.
    """
    output = file_of(output)
    if output is not None and output.suffix.lower() != ".json":
        raise UsageError(f"a snapshot is JSON: give a name that ends in .json instead of {str(output)!r}")
    check_output(output, force)
    if evidence:
        refuse_together({"--evidence": True, "--full": full, "--sections": sections != "all"})
        return settle_questions(output, force)

    from egmctl.api.machine import SECTIONS
    from egmctl.facts.collect import collect
    from egmctl.facts.redact import redact
    from egmctl.facts.replay import machine_text

    names = SECTIONS if sections.strip() == "all" else dict.fromkeys(part.strip() for part in sections.split(","))
    if wrong := [name for name in names if name not in SECTIONS]:
        raise UsageError(f"--sections: there is no section {wrong[0]!r}; valid are all and {','.join(SECTIONS)}")
    machine = collect(names, on_wait=say)
    emit(machine_text(machine if full else redact(machine)), output, force=force, is_document=True)
    return ExitCode.OK
