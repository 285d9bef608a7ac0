"""``egmctl doctor``: what stops EGM, P2P, IPC, fabric handles and GPUDirect RDMA here, and what to do about it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

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
)
from egmctl.cli.machine import list_machines, read_machine
from egmctl.cli.mpi import Mpi, MpiOption, job, launched
from egmctl.cli.options import (
    ColorOption,
    ForceOption,
    FormatOption,
    JsonOption,
    MachineOption,
    OutputOption,
    QuietOption,
    VerboseOption,
)
from egmctl.cli.output import Color, say
from egmctl.cli.outputs import Draw, Outputs, Target
from egmctl.errors import EgmctlError, ExitCode, UsageError
from egmctl.report.forms import DOCTOR, Form, render, rendered
from egmctl.units import printable

if TYPE_CHECKING:
    from rich.text import Text

    from egmctl.doctor.check import Check
    from egmctl.doctor.scope import Expectation, Scope
    from egmctl.model.finding import Guard
    from egmctl.model.machine import Machine

ALWAYS = ("host", "gpus", "driver", "process", "confinement")
"""The sections that selectors, the platform and the causes of findings need, whatever is checked."""

PEERS = ("nics", "system")
"""What the nodes of an MPI job tell each other besides."""

OTHER_NODES = "peers.nodes"
"""The check that tells what the checks found on other nodes."""


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

    Files and NVML are read, CUDA is loaded by --active only, and nothing is changed: it may run beside jobs. Under
    mpirun or srun the nodes are compared too, and with --active open each other's memory.
    """
    try:
        found = launched(mpi) if machine is None and not pid else None
        outputs = Outputs.chosen(DOCTOR, output, json=json, form=format, force=force, color=color, quiet=quiet)
        if brief and verbose:
            raise UsageError("--brief and --verbose exclude each other; give one of them")
        if pid and machine is not None:
            raise UsageError("--pid and --machine exclude each other: a recorded machine has no processes")
        if active and (pid or machine is not None):
            raise UsageError("--active tries things from this process on this node: without --pid and --machine")
        if machine == "list":
            return list_machines(outputs)
        if list_checks and explain is not None:
            raise UsageError("--list and --explain exclude each other; give one of them")
        guards = _guards(purposes)
        if list_checks or explain is not None:
            outputs.all_in((Form.TEXT, Form.JSON), "--list" if explain is None else "--explain")
            outputs.check()
            outputs.write(_told(explain, guards), answers=False)
            return ExitCode.OK
        from egmctl.doctor.registry import select
        from egmctl.doctor.runner import diagnose
        from egmctl.facts.redact import redact

        expected = _expectation(expect)
        since_s = _since(since)
        # What fails on another node is told, whatever was asked for.
        checks = select(guards, (*check, OTHER_NODES) if check and found is not None else check or (), skip or ())
        sections = (*sections_of(checks), *(PEERS if found is not None else ()))

        def scope_of(seen: Machine) -> Scope:
            return replace(scope_of_options(seen, gpus, numa, guards, expected), since_s=since_s)

        def facts() -> Machine:
            outputs.check()
            seen = read_machine(machine, sections, quiet=quiet, cuda=active, pid=pid)
            # Of the ranks of a node one is enough, and that of rank 0 is shown.
            return with_probes(seen, scope_of(seen), checks) if active and (found is None or found.rank == 0) else seen

        def failing(seen: Machine) -> tuple[str, ...]:
            return diagnose(seen, scope_of(seen), checks, strict=strict).failures

        with contextlib.ExitStack() as joined:
            if found is None:
                seen = facts()
            else:
                from egmctl.doctor.peers import with_peers

                world = joined.enter_context(job(found))
                seen = with_peers(world, facts, failing, active=active)
            diagnosis = diagnose(seen, scope_of(seen), checks, strict=strict)

            def draw(target: Target) -> Text | str:
                shown = diagnosis
                if target.leaves_the_node:
                    shown = diagnose(redact(seen), scope_of(seen), checks, strict=strict)
                terse = brief or target.brief
                return render(shown, target.form, verbose=0 if terse else verbose, brief=terse, width=target.width)

            outputs.write(draw)
    except EgmctlError as error:
        if exit_style is ExitStyle.NAGIOS:
            # 2 would be CRITICAL: what could not be checked is UNKNOWN, which is 3 in both worlds.
            error.exit_code = ExitCode.NOTHING
        raise
    if diagnosis.nothing is not None:
        say(diagnosis.nothing)
    if found is not None and found.rank:
        return ExitCode.OK
    return diagnosis.nagios_state if exit_style is ExitStyle.NAGIOS else diagnosis.exit_code


def sections_of(checks: Sequence[Check]) -> tuple[str, ...]:
    """Return the facts that checks, and what explains their findings, need."""
    return tuple(dict.fromkeys((*ALWAYS, *(section for one in checks for section in (*one.sections, *one.wants)))))


def with_probes(machine: Machine, scope: Scope, checks: Sequence[Check]) -> Machine:
    """Return the machine with the results of the active probes that checks judge."""
    from egmctl.doctor.checks.active import kinds_of
    from egmctl.doctor.probes import probed

    return probed(machine, scope, kinds_of(checks))


def _guards(text: str | None) -> tuple[Guard, ...] | None:
    """Return the purposes that ``--for`` names; ``None`` where it was not given."""
    from egmctl.model.finding import Guard

    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in set(Guard):
            raise UsageError(f"--for {printable(word[:40])!r}: there is no such purpose; valid are {', '.join(Guard)}")
    return tuple(guard for guard in Guard if guard in words)


def _expectation(text: str | None) -> Expectation | None:
    if text is None:
        return None
    from egmctl.doctor.expectation import expectation

    return expectation(text)


def _since(text: str | None) -> float | None:
    """Return the seconds that ``--since`` names; ``None`` for this boot."""
    if text is None or text == "boot":
        return None
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", text, re.ASCII)
    if match is None:
        raise UsageError(f"--since {printable(text[:40])!r}: give boot, or a number with s, m, h or d: 30m, 2h, 1d")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


def scope_of_options(
    machine: Machine,
    gpus: str | None,
    numa: str | None,
    guards: tuple[Guard, ...] | None = None,
    expected: Expectation | None = None,
) -> Scope:
    """Return what ``--gpus``, ``--numa``, ``--for`` and ``--expect`` name."""
    from egmctl.doctor.scope import Scope
    from egmctl.selectors import select_gpus, select_numa

    chosen = None if gpus is None else select_gpus(gpus, machine.gpus or ())
    return Scope(
        gpus=None if chosen is None else tuple(gpu.bus_id for gpu in chosen),
        numa=None if numa is None else select_numa(numa, machine, chosen),
        purposes=guards,
        expectation=expected,
    )


def _told(explain: str | None, guards: tuple[Guard, ...] | None) -> Draw:
    """Return what ``--list`` or ``--explain`` shows."""
    from egmctl.doctor import registry
    from egmctl.report.exports.json import checks_json
    from egmctl.report.views.doctor import checks_document, explain_document

    checks = registry.select(guards) if explain is None else (registry.find(explain),)
    document = checks_document(checks) if explain is None else explain_document(checks[0])

    def draw(target: Target) -> Text | str:
        return checks_json(checks) if target.form is Form.JSON else rendered(document, target.form, width=target.width)

    return draw
