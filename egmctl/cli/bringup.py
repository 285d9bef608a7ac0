"""``egmctl bringup``: decide from doctor, topology and the quick bench whether a node can be handed over."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from egmctl.api.options import BringupOptions
from egmctl.cli.fabric import answers_alone, job
from egmctl.cli.options import (
    ExitStyle,
    ExitStyleOption,
    MachineOption,
    MpiOptions,
    reading_this_node,
    requested_machine,
    takes_options,
)
from egmctl.cli.output import OutputOptions, Outputs, say
from egmctl.cli.progress import JournalOptions, ProgressDisplay, end_journal, open_journal, probing, show_progress
from egmctl.errors import UsageError
from egmctl.report.kinds import BRINGUP, EVIDENCE, FLEET
from egmctl.units import require_clustershell

if TYPE_CHECKING:
    from egmctl.api.bringup import Observer
    from egmctl.doctor.probes import OnProbe
    from egmctl.journal.events import Recorder
    from egmctl.model.answer import Answer
    from egmctl.model.bringup import Bringup
    from egmctl.model.machine import Machine
    from egmctl.model.task import Task
    from egmctl.mpi.world import Launched
    from egmctl.report.kinds import Kind


@takes_options(BRINGUP.formats)
def bringup(
    options: BringupOptions,
    output: OutputOptions,
    machine: MachineOption = None,
    exit_style: ExitStyleOption = ExitStyle.EGMCTL,
) -> int:
    """Say whether this node can be handed over: GO, NO-GO or INCOMPLETE, with the cause and what to do.

    Runs doctor with its active probes, the topology and the quick bench, and joins what they find. Needs idle GPUs.
    With --machine nothing can be measured: the answer is then NO-GO or INCOMPLETE. Under mpirun or srun one task brings
    up each node, then all measure the fabric between their GPUs, and rank 0 writes one answer.
    """
    launch = MpiOptions().joined_job() if machine is None else None
    # Whether MPI starts is not known yet.
    formats = BRINGUP.formats if launch is None else [format for format in FLEET.formats if format in BRINGUP.formats]
    outputs, no_fabric = output.chosen(formats), ""
    if launch is not None:
        if exit_style is ExitStyle.NAGIOS:
            raise UsageError("--exit-style nagios is for one node: leave it out under mpirun or srun")
        no_fabric = _bring_up_job(launch, options, outputs)
        outputs = answers_alone(launch, outputs, f"the fabric is not measured: {no_fabric}")
    outputs.check()
    answer, redacted = _bring_up_node(options, outputs, machine, no_fabric)
    outputs.show(answer, redacted)
    return answer.answer.nagios if exit_style is ExitStyle.NAGIOS else answer.exit_code


def _bring_up_job(launch: Launched, options: BringupOptions, outputs: Outputs) -> str:
    """Bring up the nodes of an MPI job and exit the command by ``typer.Exit``, or return why the job cannot begin."""
    from egmctl.mpi.world import MpiFailed

    try:
        require_clustershell("the fabric of an MPI job")
    except UsageError as error:
        return str(error)
    from egmctl.api.rack import Hooks, bring_up_job

    hooks = Hooks(ready=outputs.check, say=say, progress=partial(show_progress, outputs.options.quiet))
    try:
        with job(launch) as world:
            report = bring_up_job(world, lambda: _bring_up_node(options, outputs)[1](), options, hooks)
            if report is None:
                raise typer.Exit
            outputs.show(report)
            raise typer.Exit(report.exit_code)
    except MpiFailed as error:
        return error.reason


def _bring_up_node(
    options: BringupOptions, outputs: Outputs, machine: str | None = None, no_fabric: str = ""
) -> tuple[Bringup, Callable[[], Bringup]]:
    """Return the answer for this node or a recorded machine, and a function that returns it with pseudonyms."""
    with contextlib.ExitStack() as started:
        # Children query the libraries, which takes half a second, while this process imports modules.
        read = None if machine is not None else started.enter_context(reading_this_node(quiet=outputs.options.quiet))
        from egmctl.api.bringup import Examined, NodeBringup

        asked = NodeBringup(options)
        if read is not None:
            observer = started.enter_context(_observer(outputs, BRINGUP))
            node = asked.examine(partial(read, *asked.sections), observer)
        else:
            recorded = requested_machine(machine, asked.sections, quiet=outputs.options.quiet)
            node = Examined(machine=recorded, not_measured="a recorded machine cannot be measured")
    return asked.answer(node, no_fabric), lambda: asked.answer(node, no_fabric, redacted=True)


def settle_questions(file: Path | None, force: bool) -> int:
    """Settle questions on this node for ``egmctl snapshot --evidence``; return the exit code.

    Parameters
    ----------
    file
        The JSON file, beside which the answers are shown as text; ``None``: JSON on standard output.
    """
    output = OutputOptions(output=(file, Path("-"))) if file else OutputOptions(json=True)
    outputs = replace(output, force=force).checked(EVIDENCE.formats)

    with reading_this_node(quiet=outputs.options.quiet) as read:
        from egmctl.api.bench import Bench
        from egmctl.api.bringup import evidence_of_node, examined
        from egmctl.api.doctor import Doctor
        from egmctl.api.machine import SECTIONS
        from egmctl.verdict.evidence import evidence_cases

        doctor, bench = Doctor(), Bench(cases=evidence_cases())
        with _observer(outputs, EVIDENCE) as observer:
            node = examined(doctor, bench, partial(read, *SECTIONS), observer)
    report = evidence_of_node(doctor, node)
    outputs.show(report)
    return report.exit_code


@contextlib.contextmanager
def _observer(outputs: Outputs, kind: Kind) -> Iterator[Observer]:
    """Yield what shows the progress of a bring-up, and keeps the journal of its bench.

    Parameters
    ----------
    kind
        The kind of the result that will be shown.
    """
    from egmctl.api.bringup import Observer

    class Terminal(Observer):
        def __init__(self, shown: ProgressDisplay) -> None:
            self._shown = shown

        def doing(self, part: float, what: str) -> None:
            self._shown.doing(part, what)

        def has_read(self) -> None:
            outputs.load_ahead(kind)

        def probing(self, machine: Machine) -> OnProbe:
            return probing(self._shown, machine)

        def warn(self, sentence: str) -> None:
            say(sentence)

        def __call__(self, part: float, task: Task | None) -> None:
            self._shown(part, task)

        def recorder(self, machine: Machine) -> Recorder:
            self._journal = open_journal(JournalOptions(), outputs, machine)
            return self._shown.recorder(self._journal)

        def has_measured(self, answer: Answer) -> None:
            end_journal(self._journal, answer, quiet=outputs.options.quiet)

    with show_progress(outputs.options.quiet) as shown:
        yield Terminal(shown)
