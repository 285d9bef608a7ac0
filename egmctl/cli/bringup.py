"""``egmctl bringup``: whether a node can be handed over, by doctor, topology and the quick bench together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from egmctl.cli.bench import judge_run, measure, plan_of, profiles_of, settings_of
from egmctl.cli.doctor import scope_of_options, sections_of, with_probes
from egmctl.cli.doctor_options import GpusOption, NumaOption
from egmctl.cli.journal import end_journal, open_journal
from egmctl.cli.machine import list_machines, read_machine
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
from egmctl.cli.output import Color
from egmctl.cli.outputs import Outputs, Target
from egmctl.cli.rdma import sections as bench_sections
from egmctl.cli.topo import SECTIONS as TOPO_SECTIONS
from egmctl.errors import NothingToDo
from egmctl.report.forms import BRINGUP, render

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from egmctl.bench.case import Case
    from egmctl.model.machine import Machine
    from egmctl.model.measurement import RunReport

SUITE = "quick"
"""What is measured: one look at every link."""


def bringup(
    gpus: GpusOption = None,
    numa: NumaOption = None,
    machine: MachineOption = None,
    json: JsonOption = False,
    format: FormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    verbose: VerboseOption = 0,
    quiet: QuietOption = False,
    color: ColorOption = Color.AUTO,
) -> int:
    """Say whether this node can be handed over: GO, NO-GO or INCOMPLETE, with the cause and what to do.

    Runs doctor with its active probes, the topology and the quick bench, and joins what they find. Needs idle GPUs.
    With --machine nothing can be measured: the answer is then NO-GO or INCOMPLETE.
    """
    outputs = Outputs.chosen(BRINGUP, output, json=json, form=format, force=force, color=color, quiet=quiet)
    if machine == "list":
        return list_machines(outputs)
    outputs.check()

    from egmctl.bench.suites import select_cases
    from egmctl.doctor.kernel_faults import with_messages
    from egmctl.doctor.registry import select
    from egmctl.doctor.runner import diagnose
    from egmctl.facts.redact import redact, redact_run
    from egmctl.verdict.bringup import bringup as judged

    checks, cases = select(None, (), ()), select_cases((), (SUITE,))
    sections = dict.fromkeys((*sections_of(checks), *TOPO_SECTIONS, *bench_sections(cases)))
    seen = read_machine(machine, sections, quiet=quiet)
    scope = scope_of_options(seen, gpus, numa)
    run: RunReport | None = None
    why = "a recorded machine is not here to measure"
    if machine is None:
        seen = with_probes(seen, scope, checks)
        try:
            run = _measured(seen, gpus or "all", numa or "all", cases, outputs.files, quiet=quiet)
            seen = with_messages(seen, run.kernel_messages)
        except NothingToDo as error:
            why = str(error)
    found = judged(diagnose(seen, scope, checks), run, not_measured=why)

    def draw(target: Target) -> Text | str:
        shown = found
        if target.leaves_the_node:
            redacted = None if run is None else redact_run(run, seen)
            shown = judged(diagnose(redact(seen), scope, checks), redacted, not_measured=why)
        return render(shown, target.form, verbose=verbose, brief=target.brief, width=target.width)

    outputs.write(draw)
    return found.exit_code


def _measured(
    machine: Machine, gpus: str, numa: str, cases: Sequence[Case], files: Sequence[Path], *, quiet: bool
) -> RunReport:
    """Return the judged run of the quick suite.

    Raises
    ------
    NothingToDo
        If there is nothing to measure, or no memory for it.
    """
    import contextlib

    from egmctl.bench.budget import check_memory, memory_of
    from egmctl.bench.processes.pool import start_worker
    from egmctl.facts.cgroup import memory_left
    from egmctl.facts.root import Root

    profiles = profiles_of()
    room = memory_of(machine, memory_left(Root.from_environment()))
    plan = plan_of(machine, gpus, numa, cases, settings_of((SUITE,)), room)
    check_memory(plan, room)
    with contextlib.ExitStack() as early:
        worker = early.enter_context(start_worker())
        kept = open_journal(None, False, files, machine, quiet=quiet)
        report = judge_run(measure(plan, machine, worker, kept, quiet=quiet), machine, profiles)
    end_journal(kept, report.exit_code, quiet=quiet)
    return report
