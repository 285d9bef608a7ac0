"""The path classes of a run: what each reaches, what was expected, and which paths are worse than their peers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

from egmctl.bench.suites import CASES, SUITES
from egmctl.model.measurement import Measurement, Quantity, RunReport, Status
from egmctl.model.task import named
from egmctl.model.verdict import (
    BAD_GRADES,
    ClassVerdict,
    Culprit,
    Direction,
    Grade,
    Judged,
    RunVerdict,
    Yardstick,
    worst_grade,
)
from egmctl.report.document import (
    EMPTY,
    Block,
    Body,
    Bullets,
    Cell,
    Hint,
    Level,
    Matrix,
    Paragraph,
    Series,
    Span,
    Tone,
    Words,
    columns_of,
)
from egmctl.units import shortened
from egmctl.verdict.yardsticks import PathClass, class_of

GRADE_TONES = {Grade.FAIL: Tone.BAD, Grade.WARN: Tone.WARN}
GRADE_MARKS = {Grade.FAIL: "!", Grade.WARN: "~"}
OUTLIER = "<"
"""Behind its peers, which nothing else has something against."""
UNSTABLE = "*"
STATUS_TONES = {Status.OK: Tone.PLAIN, Status.UNSTABLE: Tone.WARN, Status.WAIVED: Tone.DIM}


@dataclass(frozen=True, slots=True)
class Brand:
    """What the verdict has against a measurement."""

    tone: Tone
    mark: str


@dataclass(frozen=True, slots=True)
class Frame:
    """What all matrices of a run share."""

    order: Sequence[str] = ()
    """The labels of the ends, as rows and columns are ordered."""
    brands: Mapping[int, Brand] = field(default_factory=dict)
    """By a measurement's ``id``."""

    @classmethod
    def of(cls, report: RunReport) -> Frame:
        """Return the frame of a run."""
        judged = report.verdict.judged if report.verdict is not None else ()
        found = {id(report.measurements[one.measurement]): _brand(one) for one in judged}
        order = [
            *(f"{kind}{node}" for kind in ("NUMA", "CPU") for node in report.numa_nodes),
            *(gpu.label for gpu in report.gpus),
            *(f"{rank.label}:NUMA{rank.numa_node}" for rank in report.ranks),
        ]
        return cls(order, {key: brand for key, brand in found.items() if brand is not None})

    def bandwidth(self, measurement: Measurement, flow: int | None = None) -> Cell:
        """Return the cell of one flow, or of all of them together: no number to set against those of single flows."""
        summary = measurement.bandwidth_gb_s if flow is None else None
        if flow is not None and measurement.measured:
            summary = measurement.flows_gb_s[flow]
        value = summary.median if summary is not None and measurement.measured else None
        # A flow is not branded where the sum failed that it is a part of.
        own = flow is None or len(measurement.flows) == 1
        link = measurement.flows[flow].route.symbol if flow is not None else ""
        return self.number(
            measurement, value, digits=2, kind=link, compared=flow is not None or len(measurement.flows) == 1, own=own
        )

    def number(
        self,
        measurement: Measurement,
        value: float | None,
        *,
        digits: int,
        kind: str = "",
        compared: bool = True,
        own: bool = True,
    ) -> Cell:
        """Return the cell of a number, or of the status of what has none.

        Parameters
        ----------
        compared
            It is set against the others of its matrix of the same kind.
        own
            The measurement has this number alone.
        """
        tone = tone_of(measurement)
        if value is None:
            return Cell(text=measurement.status.value, tone=tone)
        mark = UNSTABLE if measurement.status is Status.UNSTABLE else ""
        brand = self.brands.get(id(measurement)) if own else None
        if brand is not None:
            tone, mark = brand.tone, brand.mark
        return Cell(text=f"{value:.{digits}f}", tone=tone, mark=mark, value=value if compared else None, kind=kind)

    def square(
        self, cells: Mapping[tuple[str, tuple[str, ...]], Cell], totals: Mapping[str, Cell] | None = None
    ) -> tuple[tuple[str, ...], tuple[tuple[Series, ...], ...]]:
        """Lay out cells by row and column (the lines above it) in the order of their labels; beside each row its sum.

        Returns
        -------
        tuple
            The rows and the groups of a :class:`egmctl.report.document.Matrix`.
        """
        places = {label: place for place, label in enumerate(self.order)}

        def place(*labels: str) -> list[int]:
            return [places.get(label, len(places)) for label in labels]

        rows = sorted(dict.fromkeys(row for row, _ in cells), key=place)
        headers = sorted(dict.fromkeys(header for _, header in cells), key=lambda header: place(*header))
        columns = {header: [cells.get((row, header), EMPTY) for row in rows] for header in headers}
        if totals:
            columns["sum",] = [totals.get(row, EMPTY) for row in rows]
        return tuple(rows), columns_of(columns)


def tone_of(measurement: Measurement) -> Tone:
    """Return what a measurement's status means."""
    return STATUS_TONES.get(measurement.status, Tone.BAD)


def _brand(judged: Judged) -> Brand | None:
    bad = [one for one in judged.judgements if one.grade in GRADE_TONES]
    if not bad:
        return None
    gravest = worst_grade(one.grade for one in bad)
    outlier = all(one.yardstick is Yardstick.PEERS for one in bad)
    return Brand(GRADE_TONES[gravest], OUTLIER if outlier else GRADE_MARKS[gravest])


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
                one.name,
                one.link,
                [report.measurements[number] for number in one.measurements],
                one,
            )
            for one in verdict.classes
        ]
    return _unjudged(report.measurements)


def _unjudged(measurements: Sequence[Measurement]) -> list[_Row]:
    members: dict[PathClass, list[Measurement]] = {}
    for m in measurements:
        if m.headline is not None and m.point.sms is None:
            members.setdefault(class_of(m), []).append(m)
    return [(named(key.case, key.point), key.link, alike, None) for key, alike in members.items()]


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
        for case, row_link, row_cells in rows:
            if row_link == link:
                labels.append(f" {case}")
                cells.append(row_cells)
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


_WORDS = {Grade.FAIL: "FAIL", Grade.WARN: "warn", Grade.PASS: "pass", Grade.NO_REFERENCE: "-"}
_SIDES = {Direction.EGRESS: " egress", Direction.INGRESS: " ingress", None: ""}
_SHOWN = 3
_LEGEND = (
    "worst of the class's paths; expected by the profile; then the judgement by the profile, by the link (links x rate "
    "x payload) and by its peers (the same between other GPUs); -: nothing to judge by."
)


def judged_sections(report: RunReport, verdict: RunVerdict) -> Iterator[tuple[str, Body]]:
    """Yield the table of the classes, what stands out, and where the references come from."""
    yield "Measured vs expected", partial(_judged, verdict)
    yield "Outliers", lambda: [Bullets(items=tuple(_culprits(verdict.culprits)))]
    yield "Failures", lambda: [Bullets(items=tuple(_faults(report, verdict)))]
    yield "References", lambda: [Bullets(items=tuple(_references(verdict)))]


def _judged(verdict: RunVerdict) -> Iterator[Block]:
    classes = [one for one in verdict.classes if {one.by_profile, one.by_link, one.by_peers} != {Grade.NO_REFERENCE}]
    if not classes:
        return
    yield Paragraph(words=_LEGEND, tone=Tone.DIM)
    yield by_link(
        [
            (
                one.name,
                one.link,
                (
                    Cell(text=number(one.worst)),
                    Cell(text=number(one.expected)),
                    *(
                        Cell(text=_WORDS[grade], tone=GRADE_TONES.get(grade, Tone.PLAIN))
                        for grade in (one.by_profile, one.by_link, one.by_peers)
                    ),
                ),
            )
            for one in classes
        ],
        heads=("worst", "expect", "profile", "link", "peers"),
        caption="Path classes (GB/s; latencies in ns)",
    )


def _grade(grade: Grade) -> Span:
    return Span(_WORDS[grade], GRADE_TONES.get(grade, Tone.PLAIN))


def _culprits(culprits: Sequence[Culprit]) -> Iterator[Words]:
    """Say of each GPU or pair once what is out of line, with all classes that show it."""
    merged: dict[tuple[str, Direction | None], list[Culprit]] = {}
    for culprit in culprits:
        merged.setdefault((culprit.label, culprit.direction), []).append(culprit)
    for (label, direction), alike in sorted(merged.items(), key=lambda item: len(item[1][0].gpus)):
        first = alike[0]
        cases = shortened([culprit.path_class for culprit in alike], _SHOWN)
        yield _grade(first.grade), f" {label}{_SIDES[direction]}: {first.reason}, in {cases}"


def _faults(report: RunReport, verdict: RunVerdict) -> Iterator[Words]:
    """Say of each class that is not well why, with the paths."""
    for warning in verdict.warnings:
        yield Span("warn", Tone.WARN), f" {warning}"
    judged = {one.measurement: one for one in verdict.judged}
    for one in verdict.classes:
        for yardstick in Yardstick:
            bad = [
                (number, judgement)
                for number in one.measurements
                if number in judged
                for judgement in judged[number].judgements
                if judgement.yardstick is yardstick and judgement.grade in BAD_GRADES
            ]
            explained = any(culprit.path_class == one.path_class for culprit in verdict.culprits)
            if not bad or (yardstick is Yardstick.PEERS and explained):
                continue
            bad.sort(key=lambda pair: pair[1].grade is not Grade.FAIL)
            paths = shortened([report.measurements[number].path for number, _ in bad[1:]], _SHOWN)
            more = f"; also {paths}" if paths else ""
            yield _grade(bad[0][1].grade), f" {one.path_class}: {bad[0][1].reason}{more}"
        if one.grade is Grade.FAIL and Grade.FAIL not in (one.by_profile, one.by_link, one.by_peers):
            yield Span("FAIL", Tone.BAD), f" {one.path_class}: {one.reason}"


def _references(verdict: RunVerdict) -> Iterator[str]:
    """Say where the expected values come from, and why there are none."""
    yield f"{f'profile {verdict.profile}' if verdict.profile else 'none'}: {verdict.profile_reason}"
    sources: dict[str, list[str]] = {}
    for one in verdict.classes:
        if one.source is not None:
            sources.setdefault(one.source, []).append(one.path_class)
    for source, classes in sources.items():
        which = "" if len(sources) == 1 else f" ({shortened(classes, _SHOWN)})"
        yield f"{source}{which}"
    lacking: dict[str, list[str]] = {}
    for one in verdict.classes:
        if verdict.profile is not None and one.by_profile is Grade.NO_REFERENCE:
            lacking.setdefault(one.reason, []).append(one.path_class)
    for reason, classes in lacking.items():
        yield f"no reference for {shortened(classes, _SHOWN)}: {reason}"
