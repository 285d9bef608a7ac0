"""What measuring a large machine would cost, as text: ``--dry-run --ranks``."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from egmctl.bench.plan.cost import CaseCost, JobCost
from egmctl.model.machine import Machine, OriginKind
from egmctl.report.table import DIM, HEADING, WARN, Column, table, wrap
from egmctl.units import format_size, printable


def bench_cost(cost: JobCost, machine: Machine) -> Text:
    """Render the costs of each case and of all."""
    name = machine.origin.name if machine.origin.kind is not OriginKind.LIVE else "this one"
    text = Text()
    text.append("Cost: ", HEADING)
    text.append(f"{cost.ranks} GPUs on {cost.nodes} nodes like {printable(name)}\n")
    text.append("Nothing was measured; all nodes together are taken to be one NVLink domain.\n", DIM)
    costs = cost.costs
    rows = [one.case for one in costs] + ["all"]
    cells = [[*_cells(one)] for one in costs]
    cells.append(
        [
            str(sum(one.measurements - one.waived for one in costs)),
            str(sum(one.steps for one in costs)),
            _tb(sum(one.bytes for one in costs)),
            duration(cost.seconds),
            format_size(max(one.held_bytes for one in costs)),
        ]
    )
    headers = ("measured", "steps", "TB moved", "time", "held")
    columns = [[Column([row[place] for row in cells], (header,), ">")] for place, header in enumerate(headers)]
    text.append_text(table(rows, columns))
    for line in _breaks(costs):
        text.append(wrap(line, "", "  "), WARN)
    return text


def duration(seconds: float) -> str:
    """Write a duration for people: ``51 s``, ``12 min``, ``3.4 h``, ``17 d``."""
    for unit, least, length in (("d", 2 * 86400, 86400), ("h", 2 * 3600, 3600), ("min", 120, 60)):
        if seconds >= least:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def _cells(cost: CaseCost) -> Iterator[str]:
    yield str(cost.measurements - cost.waived)
    yield str(cost.steps)
    yield _tb(cost.bytes)
    yield duration(cost.seconds)
    yield format_size(cost.held_bytes) + "!" * cost.too_large


def _breaks(costs: tuple[CaseCost, ...]) -> Iterator[str]:
    """Say what does not work at this size."""
    large = [one.case for one in costs if one.too_large]
    if large:
        yield f"! more than may be held at one place: --size has to be smaller for {', '.join(large)}"
    reasons = dict.fromkeys(one.reason for one in costs if one.reason)
    for reason in reasons:
        waived = sum(one.waived for one in costs if one.reason == reason)
        yield f"waived: {waived} ({printable(reason)})"


def _tb(count: int) -> str:
    return f"{count / 1e12:.1f}"
