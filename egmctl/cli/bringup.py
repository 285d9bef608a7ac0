"""``egmctl bringup``: whether a node can be handed over, by doctor, topology and the quick bench together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from egmctl.cli.doctor_options import ExitStyle, ExitStyleOption, GpusOption, NumaOption, exit_codes
from egmctl.cli.journal import end_journal, open_journal
from egmctl.cli.mpi import Mpi, answers_alone, launched
from egmctl.cli.options import (
    ColorOption,
    ForceOption,
    JsonOption,
    MachineOption,
    QuietOption,
    VerboseOption,
    format_option,
    list_machines,
    output_option,
    read_machine,
)
from egmctl.cli.output import Color, Outputs, Target
from egmctl.cli.progress import Beside, Shown, probing, show_progress
from egmctl.cli.topo import SECTIONS as TOPO_SECTIONS
from egmctl.errors import ChildNotStarted, NothingToDo
from egmctl.report.kinds import BRINGUP, Format
from egmctl.report.rendering import render

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from egmctl.api.bench import Bench
    from egmctl.model.diagnosis import Diagnosis
    from egmctl.model.machine import Machine
    from egmctl.model.measurement import RunReport

SUITE = "quick"
"""What is measured: one look at every link."""

FormatOption = Annotated[Format | None, format_option(BRINGUP.formats)]
OutputOption = Annotated[list[Path] | None, output_option(BRINGUP.formats)]


def bringup(
    gpus: GpusOption = None,
    numa: NumaOption = None,
    machine: MachineOption = None,
    json: JsonOption = False,
    format: FormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    verbose: VerboseOption = 0,
    exit_style: ExitStyleOption = ExitStyle.EGMCTL,
    quiet: QuietOption = False,
    color: ColorOption = Color.AUTO,
) -> int:
    """Say whether this node can be handed over: GO, NO-GO or INCOMPLETE, with the cause and what to do.

    Runs doctor with its active probes, the topology and the quick bench, and joins what they find. Needs idle GPUs.
    With --machine nothing can be measured: the answer is then NO-GO or INCOMPLETE.
    """
    with exit_codes(exit_style):
        found = launched(Mpi.AUTO) if machine is None else None
        outputs = Outputs.chosen(BRINGUP, output, json=json, format=format, force=force, color=color, quiet=quiet)
        if machine == "list":
            return list_machines(outputs)
        if found is not None:
            outputs = answers_alone(found, outputs)
        outputs.check()

        from egmctl.api.bench import Bench
        from egmctl.api.doctor import Doctor
        from egmctl.facts.redact import redact_run
        from egmctl.verdict.bringup import bringup as judged

        doctor = Doctor(gpus=gpus, numa=numa)
        bench = Bench(suites=(SUITE,), gpus=gpus, numa="all" if numa is None else numa)
        sections = dict.fromkeys((*doctor.sections, *TOPO_SECTIONS, *bench.sections))
        run: RunReport | None = None
        before: Diagnosis | None = None
        why = "a recorded machine cannot be measured"
        if machine is not None:
            seen = read_machine(machine, sections, quiet=quiet)
        else:
            with show_progress(quiet) as shown:
                shown.doing(0.0, "doctor: reading this node")
                seen = read_machine(None, sections, quiet=quiet)
                seen = doctor.probe(seen, on_probe=probing(shown, seen))
                before = doctor.diagnose(seen)
                try:
                    run, seen = _measured(bench, seen, outputs.files, shown, quiet=quiet)
                except (NothingToDo, ChildNotStarted) as error:
                    why = str(error)
        answer = judged(doctor.diagnose(seen), run, before=before, not_measured=why)

        def draw(target: Target) -> Text | str:
            shown = answer
            if target.leaves_the_node:
                redacted = None if run is None else redact_run(run, seen)
                shown = judged(doctor.diagnose(seen, redacted=True), redacted, before=before, not_measured=why)
            return render(shown, target.format, verbose=verbose, brief=target.brief, width=target.width)

        outputs.write(draw)
    return answer.nagios_state if exit_style is ExitStyle.NAGIOS else answer.exit_code


def _measured(
    bench: Bench, machine: Machine, files: Sequence[Path], shown: Shown, *, quiet: bool
) -> tuple[RunReport, Machine]:
    """Return the judged run of the quick suite, and the machine as it is after it: load brings out what idling hides.

    Raises
    ------
    NothingToDo
        If there is nothing to measure, or no memory for it.
    """
    from egmctl.api.bench import judge_run, load_profiles
    from egmctl.bench.processes.group import start_worker
    from egmctl.facts.collect import rereading

    profiles = load_profiles()
    plan = bench.plan(machine)
    with rereading() as reread, start_worker() as worker:
        kept = open_journal(None, False, files, machine, quiet=quiet)
        run = bench.run(plan, machine, on_progress=shown, worker=worker, recorder=Beside(kept, shown))
        after = reread(machine)
        report = bench.explain(judge_run(run, machine, profiles), after)
    end_journal(kept, report.exit_code, quiet=quiet)
    return report, after
