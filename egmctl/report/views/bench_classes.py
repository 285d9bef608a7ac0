"""The path classes of a run: measured and expected values, and the paths that are slower than their peers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from egmctl.bench.suites import CASES, SUITES
from egmctl.model.measurement import Measurement, RunReport, Status
from egmctl.model.route import PublishedRate
from egmctl.model.task import Point, Quantity, named
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
from egmctl.report import document as doc
from egmctl.report.document import Body, Level, Tone, Words
from egmctl.units import grouped, shortened
from egmctl.verdict.yardsticks import ceiling, class_of

GRADE_TONES = {Grade.FAIL: Tone.BAD, Grade.WARN: Tone.WARN}
GRADE_MARKS = {Grade.FAIL: "!", Grade.WARN: "~"}
OUTLIER = "<"
"""The mark of a path that only the comparison with its peers grades as bad."""
UNSTABLE = "*"
STATUS_TONES = {Status.OK: Tone.PLAIN, Status.UNSTABLE: Tone.WARN, Status.WAIVED: Tone.DIM}

Brand = tuple[Tone, str]
"""The tone and the mark of the cell of a failed or warned measurement."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The order of labels and the marks that all matrices of a run share."""

    order: Sequence[str] = ()
    """The labels of the ends in the order of rows and columns."""
    brands: Mapping[int, Brand] = field(default_factory=dict)
    """The brands of measurements, by their ``id()``."""

    @classmethod
    def of(cls, report: RunReport) -> Frame:
        """Return the frame of a run."""
        order = [
            *(f"{kind}{node}" for kind in ("NUMA", "CPU") for node in report.numa_nodes),
            *(gpu.label for gpu in report.gpus),
            *(f"{rank.label}:NUMA{rank.numa_node}" for rank in report.ranks),
        ]
        judged = report.verdict.judged if report.verdict is not None else ()
        brands = {id(report.measurements[entry.measurement]): _brand(entry) for entry in judged}
        return cls(order, {key: brand for key, brand in brands.items() if brand is not None})

    def bandwidth(self, measurement: Measurement, flow: int | None = None) -> doc.Cell:
        """Return the cell of one flow, or of the sum of all flows, which is not compared with single flows."""
        summary = measurement.bandwidth_gb_s if flow is None else None
        if flow is not None and measurement.measured:
            summary = measurement.flows_gb_s[flow]
        alone = len(measurement.flows) == 1
        return self.number(
            measurement,
            summary.median if summary is not None and measurement.measured else None,
            digits=2,
            kind=measurement.flows[flow].route.symbol if flow is not None else "",
            compared=flow is not None or alone,
            # The verdict on the sum of several flows does not mark a single one.
            own=flow is None or alone,
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
    ) -> doc.Cell:
        """Return the cell of a number, or of the measurement's status if there is none.

        Parameters
        ----------
        compared
            Whether the number is compared with others of its kind in the matrix.
        own
            Whether the verdict on the measurement marks this number.
        """
        tone = tone_of(measurement)
        if value is None:
            return doc.Cell(measurement.status.value, tone)
        mark = UNSTABLE if measurement.status is Status.UNSTABLE else ""
        if own:
            tone, mark = self.brands.get(id(measurement), (tone, mark))
        return doc.Cell(f"{value:.{digits}f}", tone, mark, value=value if compared else None, kind=kind)

    def matrix(
        self,
        caption: str,
        cells: Mapping[tuple[str, tuple[str, ...]], doc.Cell],
        totals: Mapping[str, doc.Cell] | None = None,
        *,
        names: str,
        notes: tuple[str, ...] = (),
        after: tuple[str, ...] = (),
        better: doc.Better = doc.Better.HIGH,
    ) -> doc.Matrix:
        """Return a matrix of cells by row and column (its header lines), ordered by labels, with the sums of rows."""
        places = {label: place for place, label in enumerate(self.order)}

        def place(*labels: str) -> list[int]:
            return [places.get(label, len(places)) for label in labels]

        headers = sorted(dict.fromkeys(header for _, header in cells), key=lambda header: place(*header))
        rows = []
        for row in sorted(dict.fromkeys(row for row, _ in cells), key=place):
            sums = {("sum",): totals.get(row, doc.EMPTY)} if totals else {}
            rows.append((row, {header: cells.get((row, header), doc.EMPTY) for header in headers} | sums))
        return doc.grid(caption, rows, names=names, notes=notes, after=after, better=better)


def tone_of(measurement: Measurement) -> Tone:
    """Return the tone of a measurement's status."""
    return STATUS_TONES.get(measurement.status, Tone.BAD)


def _brand(judged: Judged) -> Brand | None:
    bad = [judgement for judgement in judged.judgements if judgement.grade in GRADE_TONES]
    if not bad:
        return None
    grade = worst_grade(judgement.grade for judgement in bad)
    outlier = all(judgement.yardstick is Yardstick.PEERS for judgement in bad)
    return GRADE_TONES[grade], OUTLIER if outlier else GRADE_MARKS[grade]


_SCREEN = 18
"""The number of path classes shown without ``-v``. With the answer and the notes they fill about 40 lines."""
_WHOLE = 1000
"""The number from which no decimal is shown."""
_BY_MEMORY = "#"
"""The mark of a share of what memory carries, where that is less than what the links carry."""
_HEADS = ("n", "median", "worst", "expect", "link")
_NOTE = (
    "median and worst of n paths; expected by the profile; link: the median's share of its nominal rate; "
    "! fails, ~ warns"
)


@dataclass(frozen=True, slots=True, eq=False)
class _Class:
    """A path class with its measurements and verdict."""

    case: str
    point: Point
    link: str
    measurements: Sequence[Measurement]
    verdict: ClassVerdict | None = None

    @property
    def grade(self) -> Grade:
        return Grade.NO_REFERENCE if self.verdict is None else self.verdict.grade


def class_tables(report: RunReport) -> Iterator[doc.Matrix | doc.Hint]:
    """Yield the table of the path classes that fit on a screen, and that of the others.

    If not all fit, failed and warned classes have priority, then those of the quick suite.
    """
    classes = _classes(report)
    quick = {case.name for case in CASES if SUITES["quick"].has(case)}
    bad = [entry for grade in BAD_GRADES for entry in classes if entry.grade is grade]
    chosen = [*bad, *(entry for entry in classes if entry.case in quick), *classes]
    first = set(list(dict.fromkeys(chosen))[:_SCREEN])
    if first:
        yield _table([entry for entry in classes if entry in first])
    if further := [entry for entry in classes if entry not in first]:
        yield _table(further, "Further path classes (GB/s; latencies in ns)", Level.VERBOSE)
        well = ", all as fast as expected" if all(entry.grade is Grade.PASS for entry in further) else ""
        yield doc.Hint(f"and {len(further)} more path classes{well} (-v)", more=True)


def path_classes(measurements: Sequence[Measurement]) -> doc.Matrix:
    """Return the table of the path classes with results, without a verdict."""
    return _table(_unjudged(measurements))


def _classes(report: RunReport) -> list[_Class]:
    if report.verdict is None:
        return _unjudged(report.measurements)
    return [
        _Class(judged.case, judged.point, judged.link, [report.measurements[n] for n in judged.measurements], judged)
        for judged in report.verdict.classes
    ]


def _unjudged(measurements: Sequence[Measurement]) -> list[_Class]:
    members = grouped((class_of(m), m) for m in measurements if m.headline is not None and m.point.sms is None)
    return [_Class(key.case, key.point, key.link, alike) for key, alike in members.items()]


def _table(
    classes: Sequence[_Class], caption: str = "Path classes (GB/s; latencies in ns)", level: Level = Level.NORMAL
) -> doc.Matrix:
    """Return a table with one row per class; classes over the same links are grouped under a heading."""
    rows: list[tuple[str, dict[str, str | doc.Cell]]] = []
    for link in dict.fromkeys(entry.link for entry in classes):
        rows.append((link, dict.fromkeys(_HEADS, "")))
        for entry in classes:
            if entry.link == link:
                rows.append((f" {named(entry.case, entry.point)}", dict(zip(_HEADS, _cells(entry), strict=True))))
    limits = (ceiling(m) for entry in classes for m in entry.measurements if m.headline is not None)
    rates = dict.fromkeys(limit.limit for limit in limits if limit is not None)
    memories = [f"{rate.name} {rate.gb_s:g} GB/s" for rate in rates if isinstance(rate, PublishedRate)]
    note = f"; {_BY_MEMORY} of the memory's, reads and writes together: {', '.join(memories)}" if memories else ""
    return doc.grid(caption, rows, notes=(_NOTE + note,), together=True, level=level)


def _cells(entry: _Class) -> tuple[str | doc.Cell, ...]:
    measurements = [m for m in entry.measurements if m.headline is not None]
    values = [m.headline.median for m in measurements if m.headline is not None]
    latency = entry.measurements[0].quantity is Quantity.LATENCY
    pick: Callable[[Iterable[float]], float] = max if latency else min
    limits = [(value, limit) for value, m in zip(values, measurements, strict=True) if (limit := ceiling(m))]
    share = f"{100 * median(value / limit.gb_s for value, limit in limits):.0f} %" if limits else "-"
    worst = number(pick(values) if values else None)
    return (
        str(len(entry.measurements)),
        number(median(values) if values else None),
        doc.Cell(worst, GRADE_TONES.get(entry.grade, Tone.PLAIN), GRADE_MARKS.get(entry.grade, "")),
        number(entry.verdict.expected if entry.verdict is not None else None),
        doc.Cell(share, mark=_BY_MEMORY if any(isinstance(limit.limit, PublishedRate) for _, limit in limits) else ""),
    )


def number(value: float | None) -> str:
    """Return a bandwidth or a latency with the decimals that tables and sentences show."""
    return "-" if value is None else f"{value:.1f}" if value < _WHOLE else f"{value:.0f}"


_SIDES = {Direction.EGRESS: " egress", Direction.INGRESS: " ingress", None: ""}
_SHOWN = 3


def judged_sections(report: RunReport, verdict: RunVerdict) -> Iterator[tuple[str, Body]]:
    """Yield the sections on outliers, on failures of classes, and on the sources of references."""
    yield "Outliers", lambda: [doc.Bullets(tuple(_culprits(verdict.culprits)))]
    yield "Failures", lambda: [doc.Bullets(tuple(_faults(report, verdict)))]
    yield "References", lambda: [doc.Bullets(tuple(_references(verdict)))]


def _grade(grade: Grade) -> doc.Span:
    return doc.Span("FAIL" if grade is Grade.FAIL else grade.value, GRADE_TONES.get(grade, Tone.PLAIN))


def _culprits(culprits: Sequence[Culprit]) -> Iterator[Words]:
    """Yield a line for each outlying GPU or pair, with the classes that show it."""
    merged = grouped(((culprit.label, culprit.direction), culprit) for culprit in culprits)
    for (label, direction), alike in sorted(merged.items(), key=lambda item: len(item[1][0].gpus)):
        first = alike[0]
        cases = shortened([culprit.path_class for culprit in alike], _SHOWN)
        yield _grade(first.grade), f" {label}{_SIDES[direction]}: {first.reason}, in {cases}"


def _faults(report: RunReport, verdict: RunVerdict) -> Iterator[Words]:
    """Yield the warnings, and a line for each failure of a class with its paths. Outliers have their own section."""
    for warning in verdict.warnings:
        yield _grade(Grade.WARN), f" {warning}"
    judgements = {judged.measurement: judged.judgements for judged in verdict.judged}
    outlying = {culprit.path_class for culprit in verdict.culprits}
    for path_class in verdict.classes:
        for yardstick in Yardstick:
            bad = [
                (judgement, report.measurements[number].path)
                for number in path_class.measurements
                for judgement in judgements.get(number, ())
                if judgement.yardstick is yardstick and judgement.grade in BAD_GRADES
            ]
            if not bad or (yardstick is Yardstick.PEERS and path_class.path_class in outlying):
                continue
            bad.sort(key=lambda entry: entry[0].grade is not Grade.FAIL)
            (first, _), *others = bad
            more = f"; also {shortened([path for _, path in others], _SHOWN)}" if others else ""
            yield _grade(first.grade), f" {path_class.path_class}: {first.reason}{more}"
        if path_class.grade is Grade.FAIL and path_class.by_speed is not Grade.FAIL:
            yield _grade(Grade.FAIL), f" {path_class.path_class}: {path_class.reason}"


def _references(verdict: RunVerdict) -> Iterator[str]:
    """Yield the sources of the expected values, and the reasons for missing ones."""
    yield f"{f'profile {verdict.profile}' if verdict.profile else 'none'}: {verdict.profile_reason}"
    sources = grouped((entry.source, entry.path_class) for entry in verdict.classes if entry.source is not None)
    unknown = [entry for entry in verdict.classes if verdict.profile and entry.by_profile is Grade.NO_REFERENCE]
    lacking = grouped((entry.reason, entry.path_class) for entry in unknown)
    for source, classes in sources.items():
        yield source if len(sources) == 1 else f"{source} ({shortened(classes, _SHOWN)})"
    for reason, classes in lacking.items():
        yield f"no reference for {shortened(classes, _SHOWN)}: {reason}"
