"""What the bench would do, as text: the cases and whether each would run here, or the steps of one run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from egmctl.bench.case import Case
from egmctl.bench.estimate import plan_bytes, plan_seconds, steps_seconds
from egmctl.bench.plan import Plan, shortened
from egmctl.bench.suites import SUITES
from egmctl.model.measurement import Endpoint, Quantity
from egmctl.report.table import DIM, HEADING, WIDTH, wrap
from egmctl.units import format_size, natural, printable

_STEP = " " * 8
"""What stands before a step's further lines: the width of its number."""


def bench_list(plan: Plan, cases: Sequence[Case]) -> Text:
    """Render the cases with the number of their tasks in ``plan`` and the reasons for those that would not run."""
    text = Text()
    for case in cases:
        planned = [task for task in plan.tasks if task.task.case == case.name]
        runnable = sum(task.waiver is None for task in planned)
        text.append(case.name, HEADING).append(f"  [{case.family}]\n", DIM)
        text.append(wrap(case.description))
        reasons = Counter(task.waiver for task in planned if task.waiver is not None)
        if planned:
            text.append(f"  would run: {runnable} of {len(planned)}\n")
        else:
            text.append("  would not run: it needs two GPUs\n")
        for reason, count in reasons.items():
            text.append(wrap(f"waived: {count} ({printable(reason)})"))
    text.append("\nSuites\n", HEADING)
    width = max(map(len, SUITES))
    for name, suite in SUITES.items():
        text.append(f"  {name:{width}}  {suite.description}\n")
    return text


def bench_plan(plan: Plan) -> Text:
    """Render the steps of a plan, the memory that they hold, and about how long they take."""
    text = Text()
    samples = plan.settings.samples
    case = None
    for number, (step, seconds) in enumerate(zip(plan.steps, steps_seconds(plan), strict=True), 1):
        tasks = [plan.tasks[task].task for task in step.tasks]
        if tasks[0].case != case:
            case = tasks[0].case
            text.append(f"{case}\n", HEADING)
        task = shortened(tasks[0]) if step.proof else tasks[0]
        much = format_size(task.size_bytes)
        if task.quantity is Quantity.BANDWIDTH:
            much = f"{1 if step.proof else samples} x {task.copies} x {much}"
        paths = ", ".join(task.path for task in tasks)
        alone = ", once more alone" if step.proof else ""
        shown = wrap(f"{paths}{alone}", f"  {number:4}  ", _STEP).removesuffix("\n")
        cost = f"{much}, {seconds:.2f} s"
        fits = len(shown.rpartition("\n")[2]) + 2 + len(cost) <= WIDTH
        text.append(shown).append("  " if fits else f"\n{_STEP}").append(f"{cost}\n", DIM)
    waived = Counter(planned.waiver for planned in plan.tasks if planned.waiver is not None)
    if waived or plan.notes:
        text.append("Not measured\n", HEADING)
    for reason, count in waived.items():
        text.append(wrap(f"{count}: {printable(reason)}"))
    for note in plan.notes:
        text.append(wrap(note))
    if plan.peaks:
        text.append("Memory held at most\n", HEADING)
    held = {_place(peak.place): peak.bytes for peak in plan.peaks}
    for place in sorted(held, key=natural):
        text.append(f"  {place}: {format_size(held[place])}\n")
    text.append(
        f"{len(plan.runnable)} measurements in {len(plan.steps)} steps, {plan_bytes(plan) / 1e12:.2f} TB, "
        f"about {plan_seconds(plan):.0f} s\n"
    )
    return text


def _place(end: Endpoint | None) -> str:
    """Name a GPU or a NUMA node; between processes the label of an end is that of the buffer's owner."""
    if end is None:
        return "host, all nodes"
    return end.label if end.bus_id is not None else f"NUMA{end.numa_node}"
