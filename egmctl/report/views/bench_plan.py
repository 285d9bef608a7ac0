"""What the bench would do: the cases and whether each would run here, the steps of one run, or what many ranks cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from egmctl.bench.case import Case
from egmctl.bench.plan import Plan
from egmctl.bench.plan.cost import CaseCost, JobCost, plan_bytes, plan_seconds, steps_seconds
from egmctl.bench.plan.task import shortened
from egmctl.bench.suites import SUITES
from egmctl.model.machine import Machine, OriginKind
from egmctl.model.measurement import Quantity
from egmctl.report.document import (
    Block,
    Bullets,
    Document,
    Entry,
    KeyValues,
    Paragraph,
    Section,
    Tone,
    table,
)
from egmctl.units import format_size, natural, several


def cases_document(plan: Plan, cases: Sequence[Case]) -> Document:
    """Return the cases with the number of their tasks in ``plan`` and the reasons for those that would not run."""
    suites = tuple((name, suite.description) for name, suite in SUITES.items())
    return Document(
        command="egmctl bench --list",
        subject=several(len(cases), "case"),
        body=(*(_case(plan, case) for case in cases), Section(title="Suites", body=(KeyValues(rows=suites),))),
    )


def _case(plan: Plan, case: Case) -> Section:
    planned = [task for task in plan.tasks if task.task.case == case.name]
    runnable = sum(task.waiver is None for task in planned)
    reasons = Counter(task.waiver for task in planned if task.waiver is not None)
    would = f"would run: {runnable} of {len(planned)}" if planned else "would not run: it needs two GPUs"
    told = (case.description, would, *(f"skipped: {count} ({reason})" for reason, count in reasons.items()))
    return Section(title=f"{case.name}  [{case.family}]", body=(Bullets(items=told),))


def plan_document(plan: Plan) -> Document:
    """Return the steps of a plan, the memory that they hold, and about how long they take."""
    return Document(command="egmctl bench --dry-run", subject=several(len(plan.steps), "step"), body=tuple(_plan(plan)))


def _plan(plan: Plan) -> Iterator[Block]:
    samples = plan.settings.samples
    by_case: dict[str, list[tuple[str, str, str]]] = {}
    for number, (step, seconds) in enumerate(zip(plan.steps, steps_seconds(plan), strict=True), 1):
        tasks = [plan.tasks[task].task for task in step.tasks]
        task = shortened(tasks[0]) if step.proof else tasks[0]
        much = format_size(task.size_bytes)
        if task.quantity is Quantity.BANDWIDTH:
            much = f"{1 if step.proof else samples} x {task.copies} x {much}"
        paths = ", ".join(task.path for task in tasks)
        alone = ", once more alone" if step.proof else ""
        by_case.setdefault(tasks[0].case, []).append((f"{number:>4}", f"{paths}{alone}", f"{much}, {seconds:.2f} s"))
    for case, rows in by_case.items():
        yield Section(title=case, body=(table(("", "", ""), rows, wrap=("",)),))
    waived = Counter(planned.waiver for planned in plan.tasks if planned.waiver is not None)
    if waived or plan.notes:
        told = (*(f"{count}: {reason}" for reason, count in waived.items()), *plan.notes)
        yield Section(title="Not measured", body=(Bullets(items=told),))
    held = sorted(plan.peaks, key=lambda peak: natural(peak.name))
    if held:
        told = tuple(f"{peak.name}: {format_size(peak.bytes)}" for peak in held)
        yield Section(title="Peak memory", body=(Bullets(items=told),))
    seconds = plan_seconds(plan)
    yield Paragraph(
        words=f"{several(len(plan.runnable), 'measurement')} in {several(len(plan.steps), 'step')}, "
        f"{plan_bytes(plan) / 1e12:.2f} TB, about {f'{seconds:.0f} s' if seconds < 7200 else duration(seconds)}"
    )


def cost_document(cost: JobCost, machine: Machine) -> Document:
    """Return what measuring a large machine would cost, case by case: ``--dry-run --ranks``."""
    name = machine.origin.name if machine.origin.kind is not OriginKind.LIVE else "this one"
    costs = cost.costs
    heads = ("", "measured", "steps", "TB moved", "time", "held")
    total = (
        "all",
        str(sum(one.measurements - one.waived for one in costs)),
        str(sum(one.steps for one in costs)),
        _tb(sum(one.bytes for one in costs)),
        duration(cost.seconds),
        format_size(max(one.held_bytes for one in costs)),
    )
    nothing = "Nothing was measured; all nodes are assumed to be one NVLink domain."
    return Document(
        command="egmctl bench --dry-run",
        subject=f"{cost.ranks} GPUs",
        body=(
            Paragraph(words=f"Cost: {several(cost.ranks, 'GPU')} on {several(cost.nodes, 'node')} like {name}"),
            Paragraph(words=nothing, tone=Tone.DIM),
            table(heads, (*(tuple(_cells(case)) for case in costs), total), right=heads[1:]),
            *(Entry(word="!", tone=Tone.WARN, title=line) for line in _breaks(costs)),
        ),
    )


def duration(seconds: float) -> str:
    """Write a duration for people: ``51 s``, ``12 min``, ``3.4 h``, ``17 d``."""
    for unit, least, length in (("d", 2 * 86400, 86400), ("h", 2 * 3600, 3600), ("min", 120, 60)):
        if seconds >= least:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def _cells(cost: CaseCost) -> Iterator[str]:
    yield cost.case
    yield str(cost.measurements - cost.waived)
    yield str(cost.steps)
    yield _tb(cost.bytes)
    yield duration(cost.seconds)
    yield format_size(cost.held_bytes) + "!" * cost.too_large


def _breaks(costs: Sequence[CaseCost]) -> Iterator[str]:
    """Say what does not work at this size."""
    large = [one.case for one in costs if one.too_large]
    if large:
        yield f"more than one place may hold: use a smaller --size for {', '.join(large)}"
    for reason in dict.fromkeys(one.reason for one in costs if one.reason):
        waived = sum(one.waived for one in costs if one.reason == reason)
        yield f"skipped: {waived} ({reason})"


def _tb(count: int) -> str:
    return f"{count / 1e12:.1f}"
