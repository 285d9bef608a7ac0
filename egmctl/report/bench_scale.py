"""What measuring a large machine would cost, as text: ``--dry-run --ranks``."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from egmctl.bench.scale import Cost, Scale
from egmctl.model.machine import Machine, OriginKind
from egmctl.report.table import DIM, HEADING, WARN, Column, table, wrap
from egmctl.units import format_size, printable


def bench_scale(scale: Scale, machine: Machine) -> Text:
    """Render the costs of each case and of all."""
    name = machine.origin.name if machine.origin.kind is not OriginKind.LIVE else "this one"
    text = Text()
    text.append("Scale: ", HEADING)
    text.append(f"{scale.ranks} GPUs on {scale.nodes} nodes like {printable(name)}\n")
    text.append("Nothing was measured; all nodes together are taken to be one NVLink domain.\n", DIM)
    costs = scale.costs
    rows = [cost.case for cost in costs] + ["all"]
    cells = [[*_cells(cost)] for cost in costs]
    cells.append(
        [
            str(sum(cost.measurements for cost in costs)),
            str(sum(cost.steps for cost in costs)),
            _tb(sum(cost.bytes for cost in costs)),
            duration(scale.seconds),
            format_size(max(cost.held_bytes for cost in costs)),
            _report(sum(cost.report_bytes for cost in costs)),
        ]
    )
    headers = ("measured", "steps", "TB moved", "time", "held", "report")
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


def _cells(cost: Cost) -> Iterator[str]:
    yield str(cost.measurements - cost.waived)
    yield str(cost.steps)
    yield _tb(cost.bytes)
    yield duration(cost.seconds)
    yield format_size(cost.held_bytes) + "!" * cost.too_large
    yield _report(cost.report_bytes)


def _breaks(costs: tuple[Cost, ...]) -> Iterator[str]:
    """Say what does not work at this size."""
    large = [cost.case for cost in costs if cost.too_large]
    if large:
        yield f"! more than may be held at one place: --size has to be smaller for {', '.join(large)}"
    reasons = {cost.reason: cost.waived for cost in costs if cost.reason}
    for reason in reasons:
        waived = sum(cost.waived for cost in costs if cost.reason == reason)
        yield f"waived: {waived} ({printable(reason)})"


def _tb(count: int) -> str:
    return f"{count / 1e12:.1f}"


def _report(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"
