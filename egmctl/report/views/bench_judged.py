"""What a run was judged by: each class of paths against its three references, the outliers, and their sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from egmctl.model.measurement import RunReport
from egmctl.model.verdict import BAD_GRADES, ClassVerdict, Culprit, Direction, Grade, RunVerdict, Yardstick
from egmctl.report.document import Bullets, Cell, Level, Matrix, Paragraph, Section, Span, Tone, Words
from egmctl.report.views.bench_cells import GRADE_TONES
from egmctl.report.views.bench_classes import by_link, number
from egmctl.units import format_size
from egmctl.wording import shortened

_WORDS = {Grade.FAIL: "FAIL", Grade.WARN: "warn", Grade.PASS: "pass", Grade.NO_REFERENCE: "-"}
_SIDES = {Direction.EGRESS: " egress", Direction.INGRESS: " ingress", None: ""}
_SHOWN = 3
_LEGEND = (
    "worst of the class's paths; expected by the profile; then the judgement by the profile, by the link (links x rate "
    "x payload) and by its peers (the same between other GPUs); -: nothing to judge by."
)


def judged_sections(report: RunReport, verdict: RunVerdict) -> Iterator[Section]:
    """Yield the table of the classes, what stands out, and where the references come from."""
    judged = [one for one in verdict.classes if {one.by_profile, one.by_link, one.by_peers} != {Grade.NO_REFERENCE}]
    if judged:
        body = (Paragraph(words=_LEGEND, tone=Tone.DIM), _table(judged))
        yield Section(title="Measured vs expected", body=body, level=Level.VERBOSE)
    for title, lines in (
        ("Outliers", _culprits(verdict.culprits)),
        ("Failures", _faults(report, verdict)),
        ("References", _references(verdict)),
    ):
        if items := tuple(lines):
            yield Section(title=title, body=(Bullets(items=items),), level=Level.VERBOSE)


def _table(classes: Sequence[ClassVerdict]) -> Matrix:
    return by_link(
        [
            (
                f"{one.case} {format_size(one.size_bytes)}" if one.size_bytes else one.case,
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
    for (label, direction), those in sorted(merged.items(), key=lambda item: len(item[1][0].gpus)):
        first = those[0]
        cases = _shortened([one.path_class for one in those])
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
            if not bad or (yardstick is Yardstick.PEERS and _explained(verdict, one)):
                continue
            bad.sort(key=lambda pair: pair[1].grade is not Grade.FAIL)
            paths = _shortened([report.measurements[number].path for number, _ in bad[1:]])
            more = f"; also {paths}" if paths else ""
            yield _grade(bad[0][1].grade), f" {one.path_class}: {bad[0][1].reason}{more}"
        if one.grade is Grade.FAIL and Grade.FAIL not in (one.by_profile, one.by_link, one.by_peers):
            yield Span("FAIL", Tone.BAD), f" {one.path_class}: {one.reason}"


def _explained(verdict: RunVerdict, one: ClassVerdict) -> bool:
    return any(culprit.path_class == one.path_class for culprit in verdict.culprits)


def _references(verdict: RunVerdict) -> Iterator[str]:
    """Say where the expected values come from, and why there are none."""
    yield f"{f'profile {verdict.profile}' if verdict.profile else 'none'}: {verdict.profile_reason}"
    sources: dict[str, list[str]] = {}
    for one in verdict.classes:
        if one.source is not None:
            sources.setdefault(one.source, []).append(one.path_class)
    for source, classes in sources.items():
        which = "" if len(sources) == 1 else f" ({_shortened(classes)})"
        yield f"{source}{which}"
    lacking: dict[str, list[str]] = {}
    for one in verdict.classes:
        if verdict.profile is not None and one.by_profile is Grade.NO_REFERENCE:
            lacking.setdefault(one.reason, []).append(one.path_class)
    for reason, classes in lacking.items():
        yield f"no reference for {_shortened(classes)}: {reason}"


def _shortened(items: Sequence[str]) -> str:
    return shortened(items, _SHOWN)
