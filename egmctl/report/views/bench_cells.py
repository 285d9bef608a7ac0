"""The cells of a run's matrices: each marked for its own value, whatever the matrix that it stands in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from egmctl.model.measurement import Measurement, RunReport, Status
from egmctl.model.verdict import Grade, Judged, Yardstick, worst_grade
from egmctl.report.document import EMPTY, Cell, Series, Tone

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
        self, cells: Mapping[tuple[str, str], Cell], totals: Mapping[str, Cell] | None = None
    ) -> tuple[tuple[str, ...], tuple[tuple[Series, ...], ...]]:
        """Lay out cells by row and column in the order of their labels, and beside each row its sum.

        Returns
        -------
        tuple
            The rows and the groups of a :class:`egmctl.report.document.Matrix`.
        """
        places = {label: place for place, label in enumerate(self.order)}
        rows, columns = (
            sorted(dict.fromkeys(labels), key=lambda label: places.get(label, len(places)))
            for labels in ((row for row, _ in cells), (column for _, column in cells))
        )
        groups = [
            (Series(header=(column,), cells=tuple(cells.get((row, column), EMPTY) for row in rows)),)
            for column in columns
        ]
        if totals:
            groups.append((Series(header=("sum",), cells=tuple(totals.get(row, EMPTY) for row in rows)),))
        return tuple(rows), tuple(groups)


def tone_of(measurement: Measurement) -> Tone:
    """Return what a measurement's status means."""
    return STATUS_TONES.get(measurement.status, Tone.BAD)


def columns_of(columns: Mapping[str, Sequence[str]]) -> tuple[tuple[Series, ...], ...]:
    """Return columns of words by their headings."""
    return tuple(
        (Series(header=(name,), cells=tuple(Cell(text=text) for text in texts)),) for name, texts in columns.items()
    )


def _brand(judged: Judged) -> Brand | None:
    bad = [one for one in judged.judgements if one.grade in GRADE_TONES]
    if not bad:
        return None
    gravest = worst_grade(one.grade for one in bad)
    outlier = all(one.yardstick is Yardstick.PEERS for one in bad)
    return Brand(GRADE_TONES[gravest], OUTLIER if outlier else GRADE_MARKS[gravest])
