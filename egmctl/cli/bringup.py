"""``egmctl bringup``: decide from doctor, topology and the quick bench whether a node can be handed over."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from egmctl.api.options import BringupOptions
from egmctl.cli.fabric import MpiOptions, answers_alone, job
from egmctl.cli.options import (
    ExitStyle,
    ExitStyleOption,
    MachineOption,
    reading_this_node,
    requested_machine,
    takes_options,
)
from egmctl.cli.output import OutputOptions, Outputs, say
from egmctl.cli.progress import ProgressDisplay, probing, show_progress
from egmctl.cli.saved import JournalOptions, end_journal, open_journal
from egmctl.errors import ChildNotStarted, NothingToDo, UsageError
from egmctl.report.kinds import BRINGUP, EVIDENCE, FLEET
from egmctl.units import require_clustershell

if TYPE_CHECKING:
    from egmctl.api.bench import Bench
    from egmctl.api.doctor import Doctor
    from egmctl.bench.plan import Plan
    from egmctl.launch import Child
    from egmctl.model.bringup import Bringup
    from egmctl.model.diagnosis import Diagnosis
    from egmctl.model.machine import Machine
    from egmctl.model.measurement import RunReport
    from egmctl.mpi.world import Launched
    from egmctl.report.kinds import Kind

SUITE = "quick"
"""The suite that bringup runs: a quick measurement of every link."""


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
    launch = MpiOptions().launched() if machine is None else None
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
        from egmctl.api.bench import Bench
        from egmctl.api.doctor import NodeDoctor
        from egmctl.facts.redact import redact_report
        from egmctl.topology.topology import SECTIONS
        from egmctl.verdict.bringup import bringup_answer, identity_of

        doctor = NodeDoctor(**{name: value for name, value in vars(options).items() if name != "serials"})
        bench = Bench(suites=(SUITE,), gpus=options.gpus, numa=options.numa or "all")
        sections = dict.fromkeys((*doctor.sections, *SECTIONS, *bench.sections))
        if read is not None:
            node, before, run, not_measured = _examined(doctor, bench, partial(read, *sections), outputs, BRINGUP)
        else:
            node, before, run = requested_machine(machine, sections, quiet=outputs.options.quiet), None, None
            not_measured = "a recorded machine cannot be measured"
    identity = identity_of(node) if options.serials else None
    answered = partial(bringup_answer, before=before, not_measured=not_measured, no_fabric=no_fabric, identity=identity)

    def redacted() -> Bringup:
        diagnosis = doctor.diagnose(node, redacted=True)
        redacted_run = None if run is None else redact_report(run, node)
        return answered(diagnosis, redacted_run)

    return answered(doctor.diagnose(node), run), redacted


def settle_questions(file: Path | None, force: bool) -> int:
    """Settle questions on this node for ``egmctl snapshot --evidence``; return the exit code.

    Parameters
    ----------
    file
        The JSON file, beside which the answers are shown as text; ``None``: JSON on standard output.
    """
    output = OutputOptions(output=(file, Path("-"))) if file else OutputOptions(json=True)
    outputs = replace(output, force=force).checked(EVIDENCE.formats)

    from egmctl.api.bench import Bench
    from egmctl.api.doctor import Doctor
    from egmctl.api.machine import SECTIONS
    from egmctl.facts.redact import redact_report
    from egmctl.verdict.evidence import evidence, evidence_cases

    doctor, bench = Doctor(), Bench(cases=evidence_cases())
    with reading_this_node(quiet=outputs.options.quiet) as read:
        node, _, run, not_measured = _examined(doctor, bench, partial(read, *SECTIONS), outputs, EVIDENCE)
    redacted_run = None if run is None else redact_report(run, node)
    report = evidence(doctor.diagnose(node, redacted=True), redacted_run, not_measured=not_measured)
    outputs.show(report)
    return report.exit_code


def _examined(
    doctor: Doctor, bench: Bench, read: Callable[[], Machine], outputs: Outputs, kind: Kind
) -> tuple[Machine, Diagnosis, RunReport | None, str]:
    """Return this node after probes and a bench, the diagnosis before the bench, and the run or why there is none.

    Parameters
    ----------
    kind
        The kind of the result that will be shown.
    """
    from egmctl.bench.processes.group import start_worker
    from egmctl.bench.supervisor import open_contexts
    from egmctl.doctor.situation import shared_by_processes

    quiet, worker = outputs.options.quiet, None
    with show_progress(quiet) as shown, contextlib.ExitStack() as started:
        shown.doing(0.0, "doctor: reading this node")
        # The worker and doctor's processes initialise CUDA at the same time as the node is read. Where a GPU may have
        # contexts of several processes, the worker opens its own beside doctor's tests.
        with contextlib.suppress(ChildNotStarted):
            worker = started.enter_context(start_worker())
        with doctor.probing_processes() as waiting:
            node = read()
            outputs.load_ahead(kind)
            plan, not_measured = _planned(bench, node)
            if plan is not None and worker is not None and shared_by_processes(node.gpus or ()):
                open_contexts(plan, worker)
            node = doctor.probe(node, on_probe=probing(shown, node), waiting=waiting)
            before = doctor.diagnose(node)
        if plan is None:
            return node, before, None, not_measured
        try:
            run, node = _measured(bench, plan, node, outputs, shown, worker or started.enter_context(start_worker()))
        except ChildNotStarted as error:
            return node, before, None, str(error)
    return node, before, run, ""


def _planned(bench: Bench, machine: Machine) -> tuple[Plan | None, str]:
    """Return the plan of the bench, or why there is nothing to measure."""
    try:
        return bench.plan(machine), ""
    except NothingToDo as error:
        return None, str(error)


def _measured(
    bench: Bench, plan: Plan, machine: Machine, outputs: Outputs, shown: ProgressDisplay, worker: Child
) -> tuple[RunReport, Machine]:
    """Run the plan; return the judged run, and the machine reread after it: load reveals faults hidden at idle."""
    from egmctl.api.bench import judge_run, load_profiles, with_changes
    from egmctl.facts.collect import rereading

    profiles = load_profiles()
    for problem in profiles.broken:
        say(f"{problem}; continuing without it")
    with rereading() as reread:
        kept = open_journal(JournalOptions(), outputs, machine)
        run = bench.run(plan, machine, on_progress=shown, worker=worker, recorder=shown.recorder(kept))
        after = reread(machine)
        run = with_changes(run, machine, after)
        report = bench.explain(judge_run(run, machine, profiles), after)
    end_journal(kept, report.answer, quiet=outputs.options.quiet)
    return report, after
