"""``egmctl doctor``: what stops EGM, P2P, IPC, fabric handles and GPUDirect RDMA here, and what to do about it."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from egmctl.cli.doctor_options import (
    ActiveOption,
    BriefOption,
    CheckOption,
    ExitStyle,
    ExitStyleOption,
    ExpectOption,
    ExplainOption,
    GpusOption,
    ListOption,
    NumaOption,
    PidOption,
    PurposeOption,
    SinceOption,
    SkipOption,
    StrictOption,
    exit_codes,
)
from egmctl.cli.mpi import Mpi, MpiOption, answers_alone, job, launched
from egmctl.cli.options import (
    ColorOption,
    ForceOption,
    JsonOption,
    MachineOption,
    QuietOption,
    VerboseOption,
    check_detail,
    format_option,
    list_machines,
    output_option,
    read_machine,
)
from egmctl.cli.output import Color, Draw, Outputs, Target, say
from egmctl.cli.progress import probing, show_progress
from egmctl.errors import ExitCode, UsageError
from egmctl.report.kinds import CHECKS, DOCTOR, Format
from egmctl.report.rendering import render

if TYPE_CHECKING:
    from rich.text import Text

    from egmctl.model.machine import Machine

PEERS = ("nics", "system")
"""What the nodes of an MPI job tell each other besides."""

OTHER_NODES = "peers.nodes"
"""The check that tells what the checks found on other nodes."""

FormatOption = Annotated[Format | None, format_option(DOCTOR.formats)]
OutputOption = Annotated[list[Path] | None, output_option(DOCTOR.formats)]


def doctor(
    purposes: PurposeOption = None,
    gpus: GpusOption = None,
    numa: NumaOption = None,
    check: CheckOption = None,
    skip: SkipOption = None,
    active: ActiveOption = False,
    expect: ExpectOption = None,
    pid: PidOption = 0,
    since: SinceOption = None,
    strict: StrictOption = False,
    machine: MachineOption = None,
    list_checks: ListOption = False,
    explain: ExplainOption = None,
    json: JsonOption = False,
    format: FormatOption = None,
    brief: BriefOption = False,
    verbose: VerboseOption = 0,
    exit_style: ExitStyleOption = ExitStyle.EGMCTL,
    output: OutputOption = None,
    force: ForceOption = False,
    mpi: MpiOption = Mpi.AUTO,
    quiet: QuietOption = False,
    color: ColorOption = Color.AUTO,
) -> int:
    """Say what stops EGM, P2P, IPC, fabric handles and GPUDirect RDMA here, and what to do about it.

    Reads files and NVML, changes nothing and may run beside jobs; only --active loads CUDA. Under mpirun or srun it
    compares the nodes too, and with --active they open each other's memory.
    """
    with exit_codes(exit_style):
        found, problem = launched(mpi) if machine is None and not pid else None, ""
        outputs = Outputs.chosen(DOCTOR, output, json=json, format=format, force=force, color=color, quiet=quiet)
        check_detail(brief=brief, verbose=verbose)
        if pid and machine is not None:
            raise UsageError("--pid and --machine exclude each other: a recorded machine has no processes")
        if active and (pid or machine is not None):
            raise UsageError("--active works on this node and process only: leave out --pid and --machine")
        if machine == "list":
            return list_machines(outputs)
        if list_checks and explain is not None:
            raise UsageError("--list and --explain exclude each other; give one of them")
        if list_checks or explain is not None:
            outputs.all_in(CHECKS.formats, "--list" if explain is None else "--explain")
            outputs.check()
            outputs.write(_listed(explain, purposes), answers=False)
            return ExitCode.OK
        from egmctl.api.doctor import Doctor

        asked = Doctor(
            purposes=purposes,
            gpus=gpus,
            numa=numa,
            # What fails on another node is told, whatever the user chose.
            check=(*check, OTHER_NODES) if check and found is not None else check or (),
            skip=skip or (),
            expect=expect,
            since=since,
            strict=strict,
        )
        sections = (*asked.sections, *(PEERS if found is not None else ()))

        def facts() -> Machine:
            outputs.check()
            seen = read_machine(machine, sections, quiet=quiet, cuda=active, pid=pid)
            # Of the ranks of a node one is enough, and that of rank 0 is shown.
            if not active or (found is not None and found.rank):
                return seen
            with show_progress(quiet) as shown:
                return asked.probe(seen, on_probe=probing(shown, seen))

        def failing(seen: Machine) -> tuple[str, ...]:
            return asked.diagnose(seen).failures

        with contextlib.ExitStack() as joined:
            if found is not None:
                from egmctl.doctor.peers import with_peers
                from egmctl.mpi.world import MpiFailed

                try:
                    world = joined.enter_context(job(found))
                except MpiFailed as error:
                    outputs = answers_alone(found, outputs)
                    if found.rank == 0:
                        say(f"{error}; the first process of each node answers for that node alone")
                    problem, found = error.reason, None
            if found is None:
                seen = facts()
                if problem:
                    from egmctl.model.machine import Peers

                    seen = replace(seen, peers=Peers(nodes=(), problem=problem))
            else:
                seen = with_peers(world, facts, failing, active=active)
            diagnosis = asked.diagnose(seen)

            def draw(target: Target) -> Text | str:
                shown = asked.diagnose(seen, redacted=True) if target.leaves_the_node else diagnosis
                terse = brief or target.brief
                return render(shown, target.format, verbose=0 if terse else verbose, brief=terse, width=target.width)

            outputs.write(draw)
    if diagnosis.nothing is not None and not {target.format for target in outputs.targets} & {Format.TEXT, Format.JSON}:
        say(diagnosis.nothing)
    if found is not None and found.rank:
        return ExitCode.OK
    return diagnosis.nagios_state if exit_style is ExitStyle.NAGIOS else diagnosis.exit_code


def _listed(explain: str | None, purposes: str | None) -> Draw:
    """Return the renderer of the checks that ``--list`` or ``--explain`` shows."""
    from egmctl.api.doctor import purposes_of
    from egmctl.doctor import runner as registry

    checks = registry.select(purposes_of(purposes)) if explain is None else (registry.find(explain),)
    listed = registry.check_list(checks)
    return lambda target: render(listed, target.format, width=target.width)
