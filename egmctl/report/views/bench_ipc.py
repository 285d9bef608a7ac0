"""Measurements by several processes: beside the same path within one, and what each stage of a handle's life costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from egmctl.model.measurement import Measurement, Quantity, RunReport, Status, Summary
from egmctl.model.memory import HOST_NAMES
from egmctl.report.document import EMPTY, Better, Cell, Matrix, Series
from egmctl.report.views.bench_cells import columns_of, tone_of
from egmctl.units import format_size

_FEW_US = 10.0
"""Fewer microseconds than this are shown with a decimal."""


def beside(report: RunReport) -> Iterator[Matrix]:
    """Yield what the paths of cases by several processes give, beside what the same paths give within one process."""
    found: dict[str, list[tuple[float, float]]] = {}
    latencies = set()
    for m in report.measurements:
        if m.in_process and m.timed is not None:
            found.setdefault(m.case, []).append((m.timed.median, m.in_process))
            if m.quantity is Quantity.LATENCY:
                latencies.add(m.case)
    if not found:
        return
    ratios = {case: [value / within for value, within in pairs] for case, pairs in found.items()}
    digits = {case: 1 if case in latencies else 2 for case in found}
    columns = {
        "paths": [str(len(pairs)) for pairs in found.values()],
        "unit": ["ns" if case in latencies else "GB/s" for case in found],
        "ipc": [f"{median(value for value, _ in pairs):.{digits[case]}f}" for case, pairs in found.items()],
        "within": [f"{median(one for _, one in pairs):.{digits[case]}f}" for case, pairs in found.items()],
        "ratio": [f"{median(those):.3f}" for those in ratios.values()],
        "min": [f"{min(those):.3f}" for those in ratios.values()],
        "max": [f"{max(those):.3f}" for those in ratios.values()],
    }
    yield Matrix(
        caption="Between processes, beside the same path within one process",
        notes=("median over the paths; the ratio is path by path: median, min and max",),
        rows=tuple(found),
        groups=columns_of(columns),
    )


def life_cycles(measurements: Sequence[Measurement]) -> Iterator[Matrix]:
    """Yield what the stages of the life of shared memory cost: the median over the pairs of each kind."""
    lives = [m for m in measurements if m.quantity is Quantity.DURATION]
    cases: dict[str, list[Measurement]] = {}
    for m in lives:
        cases.setdefault(m.case, []).append(m)
    cases = {case: those for case, those in cases.items() if any(m.status is not Status.WAIVED for m in those)}
    if not cases:
        return
    first = next(iter(cases.values()))[0]
    # One that has all stages gives their order.
    told = sorted(([stage.name for stage in m.stages] for those in cases.values() for m in those), key=len)
    stages = list(dict.fromkeys(name for names in reversed(told) for name in names))
    count = max(len(those) for those in cases.values())
    yield Matrix(
        caption=f"Life of {format_size(first.size_bytes)} of shared memory, stage by stage (us)",
        notes=(
            f"Median over up to {count} ordered pairs, by the host's clock; a dash where a kind has no such stage.",
        ),
        rows=tuple(_shared(those[0]) for those in cases.values()),
        groups=tuple(
            (Series(header=(stage,), cells=tuple(_stage(those, stage) for those in cases.values())),)
            for stage in stages or ["status"]
        ),
        better=Better.LOW if stages else None,
    )


def _shared(measurement: Measurement) -> str:
    """Say which memory is shared, and how it is opened."""
    end = measurement.flows[0].source
    memory = HOST_NAMES.get(end.memory, "device")
    return memory if end.handle is None else f"{memory}, {end.handle}"


def _stage(measurements: Sequence[Measurement], name: str) -> Cell:
    found: list[Summary] = [stage.ms for m in measurements for stage in m.stages if stage.name == name]
    if not found:
        bad = next((m for m in measurements if m.status is not Status.OK), None)
        return EMPTY if bad is None else Cell(text=bad.status.value, tone=tone_of(bad))
    us = 1e3 * median(summary.median for summary in found)
    return Cell(text=f"{us:.1f}" if us < _FEW_US else f"{us:.0f}")
