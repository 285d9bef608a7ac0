"""The cases of the bench as text: what each measures, and whether it would run here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from egmctl.bench.case import Case
from egmctl.bench.plan import Plan
from egmctl.report.table import DIM, HEADING
from egmctl.units import printable


def bench_list(plan: Plan, cases: Sequence[Case]) -> Text:
    """Render the cases with the number of their tasks in ``plan`` and the reasons for those that would not run."""
    text = Text()
    for case in cases:
        planned = [task for task in plan.tasks if task.task.case == case.name]
        runnable = sum(task.waiver is None for task in planned)
        text.append(case.name, HEADING).append(f"  [{case.family}]\n", DIM)
        text.append(f"  {case.description}\n")
        reasons = Counter(task.waiver for task in planned if task.waiver is not None)
        text.append(f"  would run: {runnable} of {len(planned)} paths\n")
        for reason, count in reasons.items():
            text.append(f"  waived: {count} ({printable(reason)})\n")
    for note in plan.notes:
        text.append(f"{note}\n")
    return text
