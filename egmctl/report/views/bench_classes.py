"""The path classes of a run: a row each with how many paths it has, their median, the worst, and what is expected.

Many classes do not fit a screen: then those that are not well and those of the quick suite are shown, the others with
``-v``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from egmctl.bench.registry import CASES
from egmctl.bench.suites import SUITES
from egmctl.model.measurement import Measurement, Quantity, RunReport
from egmctl.model.verdict import BAD_GRADES, ClassVerdict, Grade
from egmctl.report.document import Cell, Hint, Level, Matrix, Series, Tone
from egmctl.report.views.bench_cells import GRADE_MARKS, GRADE_TONES
from egmctl.units import format_size
from egmctl.verdict.classes import class_of, names

_SCREEN = 18
"""Path classes that are told without -v: with the answer, their links and notes they fill some 40 lines."""
_WHOLE = 1000
"""From here on nobody needs a decimal."""
_Row = tuple[str, str, Sequence[Measurement], ClassVerdict | None]
"""Case, link, its measurements, and what was judged of them."""
_NOTE = (
    "median and worst of n paths; expected by the profile; link: the median's share of its nominal rate; "
    "! fails, ~ warns"
)


def class_tables(report: RunReport) -> Iterator[Matrix | Hint]:
    """Yield the table of the path classes that fit a screen, and that of the others."""
    rows = _rows(report)
    first = _first(rows) if len(rows) > _SCREEN else rows
    if first:
        yield _summary(first)
    shown = {id(row) for row in first}
    if further := [row for row in rows if id(row) not in shown]:
        table = _summary(further, "Further path classes (GB/s; latencies in ns)")
        yield replace(table, level=Level.VERBOSE)
        yield Hint(words=f"and {len(further)} more path classes{_that_are_well(further)} (-v)", more=True)


def _first(rows: Sequence[_Row]) -> Sequence[_Row]:
    """Return what is worth a screen: what is not well, then what the quick suite looks at, in the order of the run."""
    quick = {case.name for case in CASES if SUITES["quick"].has(case)}
    bad = [row for grade in BAD_GRADES for row in rows if row[3] is not None and row[3].grade is grade]
    looked_at = [row for row in rows if row[2] and row[2][0].case in quick]
    chosen = {id(row) for row in [*bad, *looked_at, *rows][:_SCREEN]}
    return [row for row in rows if id(row) in chosen]


def _that_are_well(rows: Sequence[_Row]) -> str:
    return ", all as fast as expected" if all(row[3] is not None and row[3].grade is Grade.PASS for row in rows) else ""


def path_classes(measurements: Sequence[Measurement]) -> Matrix:
    """Return a row for each class of paths of which something is measured, without a verdict."""
    return _summary(_unjudged(measurements))


def _rows(report: RunReport) -> list[_Row]:
    verdict = report.verdict
    if verdict is not None:
        return [
            (
                f"{one.case} {format_size(one.size_bytes)}" if one.size_bytes else one.case,
                one.link,
                [report.measurements[number] for number in one.measurements],
                one,
            )
            for one in verdict.classes
        ]
    return _unjudged(report.measurements)


def _unjudged(measurements: Sequence[Measurement]) -> list[_Row]:
    members: dict[object, list[Measurement]] = {}
    shown = [m for m in measurements if m.headline is not None and m.blocks is None]
    sized = {one: name for one, name in names(map(class_of, shown)).items() if ", " in name}
    for m in shown:
        members.setdefault(class_of(m), []).append(m)
    return [
        (f"{one.case} {format_size(one.size_bytes)}" if one in sized else one.case, one.link, those, None)
        for those in members.values()
        for one in (class_of(those[0]),)
    ]


def _summary(rows: Sequence[_Row], caption: str = "Path classes (GB/s; latencies in ns)") -> Matrix:
    """Return a row for each class of paths, those over the same links together."""
    return by_link(
        [(case, link, _cells(measurements, verdict)) for case, link, measurements, verdict in rows],
        heads=("n", "median", "worst", "expect", "link"),
        caption=caption,
        notes=(_NOTE,),
    )


def by_link(
    rows: Sequence[tuple[str, str, Sequence[Cell]]], *, heads: Sequence[str], caption: str, notes: tuple[str, ...] = ()
) -> Matrix:
    """Return the cells of cases, those over the same links together under a heading.

    Parameters
    ----------
    rows
        Case, link and cells of each.
    """
    labels: list[str] = []
    cells: list[Sequence[Cell]] = []
    for link in dict.fromkeys(link for _, link, _ in rows):
        labels.append(link)
        cells.append((Cell(text=""),) * len(heads))
        for case, of, those in rows:
            if of == link:
                labels.append(f" {case}")
                cells.append(those)
    return Matrix(
        caption=caption,
        notes=notes,
        rows=tuple(labels),
        groups=(
            tuple(Series(header=(head,), cells=tuple(row[place] for row in cells)) for place, head in enumerate(heads)),
        ),
    )


def _cells(measurements: Sequence[Measurement], verdict: ClassVerdict | None) -> tuple[Cell, ...]:
    values = [m.headline.median for m in measurements if m.headline is not None]
    latency = measurements[0].quantity is Quantity.LATENCY
    grade = verdict.grade if verdict is not None else Grade.NO_REFERENCE
    worst = (max(values) if latency else min(values)) if values else None
    rates = [
        m.headline.median / rate
        for m in measurements
        if m.headline is not None and not latency and len(m.flows) == 1 and (rate := m.flows[0].route.at_most_gb_s)
    ]
    return (
        Cell(text=str(len(measurements))),
        Cell(text=number(median(values)) if values else "-"),
        Cell(text=number(worst), tone=GRADE_TONES.get(grade, Tone.PLAIN), mark=GRADE_MARKS.get(grade, "")),
        Cell(text=number(verdict.expected if verdict is not None else None)),
        Cell(text=f"{100 * median(rates):.0f} %" if rates else "-"),
    )


def number(value: float | None) -> str:
    """Return a bandwidth or a latency as tables and sentences show it."""
    return "-" if value is None else f"{value:.1f}" if value < _WHOLE else f"{value:.0f}"
