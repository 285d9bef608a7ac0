"""Views without measurements: the cases and whether they would run, the steps of a plan, and the cost of many ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from egmctl.bench.plan.task import shortened as shortened_task
from egmctl.model.listing import CaseCost, CaseList, JobCost, ListedCase, PlanReport
from egmctl.model.machine import OriginKind
from egmctl.model.task import Quantity
from egmctl.report import document as doc
from egmctl.report.document import Level, Tone
from egmctl.units import format_size, grouped, several, shortened


def cases_document(cases: CaseList) -> doc.Document:
    """Return the list of cases with the number of measurements that would run, and why the others would not."""
    families = grouped((case.family, case) for case in cases.cases)
    stops = ((case.name, case.reasons or ([] if case.measurements else ["needs two GPUs"])) for case in cases.cases)
    reasons = grouped((reason, name) for name, case_reasons in stops for reason in case_reasons)
    skipped = tuple(f"{shortened(names, _NAMED)}: {reason}" for reason, names in reasons.items())
    about = tuple((case.name, case.description) for case in cases.cases)
    return doc.Document(
        command="egmctl bench --list",
        subject=several(len(cases.cases), "case"),
        body=(
            *(_family(family, members) for family, members in families.items()),
            doc.Section("Skipped", (doc.Bullets(skipped),)),
            doc.Section("Suites", (doc.KeyValues(tuple(cases.suites.items())),)),
            doc.Section("What they measure", (doc.KeyValues(about),), level=Level.VERBOSE),
        ),
    )


_NAMED = 2
"""The number of cases named per reason why they would not run."""


def _family(family: str, cases: list[ListedCase]) -> doc.Section:
    rows = ((case.name, f"{case.runnable} of {case.measurements}", ", ".join(case.axes)) for case in cases)
    return doc.Section(family, (doc.table(("case", "would run", "--sweep"), rows, right=("would run",)),))


def plan_document(plan: PlanReport) -> doc.Document:
    """Return the steps of a plan, their peak memory and their estimated time."""
    return doc.Document(
        command="egmctl bench --dry-run", subject=several(len(plan.steps), "step"), body=tuple(_plan(plan))
    )


def _plan(plan: PlanReport) -> Iterator[doc.Block]:
    by_case: dict[str, list[tuple[str, str, str]]] = {}
    for number, step in enumerate(plan.steps, 1):
        tasks = [plan.tasks[place] for place in step.tasks]
        task = shortened_task(tasks[0]) if step.proof else tasks[0]
        much = format_size(task.size_bytes)
        if task.quantity is Quantity.BANDWIDTH:
            much = f"{1 if step.proof else plan.settings.samples} x {task.copies} x {much}"
        paths = ", ".join(task.path for task in tasks)
        alone = ", once more alone" if step.proof else ""
        by_case.setdefault(task.name, []).append((f"{number:>4}", f"{paths}{alone}", f"{much}, {step.seconds:.2f} s"))
    for case, rows in by_case.items():
        yield doc.Section(case, (doc.table(("", "", ""), rows, wrap=("",)),))
    waived = Counter(task.waiver for task in plan.tasks if task.waivers)
    reasons = (*(f"{count}: {reason}" for reason, count in waived.items()), *plan.notes)
    if reasons:
        yield doc.Section("Not measured", (doc.Bullets(reasons),))
    if plan.memory:
        held = tuple(f"{memory.place}: {format_size(memory.bytes)}" for memory in plan.memory)
        yield doc.Section("Peak memory", (doc.Bullets(held),))
    runnable = several(sum(not task.waivers for task in plan.tasks), "measurement")
    time = f"{plan.seconds:.0f} s" if plan.seconds < 7200 else duration(plan.seconds)
    yield doc.Paragraph(
        f"{runnable} in {several(len(plan.steps), 'step')}, {plan.bytes_moved / 1e12:.2f} TB, about {time}"
    )


def cost_document(cost: JobCost) -> doc.Document:
    """Return the cost of a run on many ranks, per case (``--dry-run --ranks``)."""
    name = cost.origin.name if cost.origin.kind is not OriginKind.LIVE else "this one"
    heads = ("", "measured", "steps", "TB moved", "time", "held")
    total = (
        "all",
        str(sum(case.measurements - case.waived for case in cost.costs)),
        str(sum(case.steps for case in cost.costs)),
        _tb(sum(case.bytes for case in cost.costs)),
        duration(cost.seconds),
        format_size(max(case.held_bytes for case in cost.costs)),
    )
    nothing = "Nothing was measured; all nodes are assumed to be one NVLink domain."
    return doc.Document(
        command="egmctl bench --dry-run",
        subject=f"{cost.ranks} GPUs",
        body=(
            doc.Paragraph(f"Cost: {several(cost.ranks, 'GPU')} on {several(cost.nodes, 'node')} like {name}"),
            doc.Paragraph(nothing, tone=Tone.DIM),
            doc.table(heads, (*map(_cells, cost.costs), total), right=heads[1:]),
            *(doc.Entry("!", Tone.WARN, line) for line in _breaks(cost)),
        ),
    )


def duration(seconds: float) -> str:
    """Return a duration in a suitable unit: ``51.0 s``, ``12.0 min``, ``3.4 h``, ``17.0 d``."""
    for unit, least, length in (("d", 2 * 86400, 86400), ("h", 2 * 3600, 3600), ("min", 120, 60)):
        if seconds >= least:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def _cells(cost: CaseCost) -> tuple[str, ...]:
    return (
        cost.case,
        str(cost.measurements - cost.waived),
        str(cost.steps),
        _tb(cost.bytes),
        duration(cost.seconds),
        format_size(cost.held_bytes) + "!" * cost.too_large,
    )


def _breaks(cost: JobCost) -> Iterator[str]:
    """Yield sentences on cases that need too much memory, and on skipped measurements."""
    large = [case.case for case in cost.costs if case.too_large]
    if large:
        yield f"more than one place may hold: use a smaller --size for {', '.join(large)}"
    for reason in dict.fromkeys(case.reason for case in cost.costs if case.reason):
        waived = sum(case.waived for case in cost.costs if case.reason == reason)
        yield f"skipped: {waived} ({reason})"


def _tb(count: int) -> str:
    return f"{count / 1e12:.1f}"
