"""A run's verdict as text: one line a path class with what it was held against, then everything that is not well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from egmctl.model.measurement import RunReport
from egmctl.model.verdict import ClassVerdict, Culprit, Direction, Grade, RunVerdict, Yardstick
from egmctl.report.table import BAD, DIM, HEADING, WARN, Column, table, wrap
from egmctl.units import format_size, printable

_WORDS = {Grade.FAIL: "FAIL", Grade.WARN: "warn", Grade.PASS: "pass", Grade.NO_REFERENCE: "-"}
_STYLES = {"FAIL": BAD, "warn": WARN, "-": DIM}
_RUN = {Grade.FAIL: ("FAIL", BAD), Grade.WARN: ("WARN", WARN), Grade.PASS: ("PASS", "bold green")}
_SIDES = {Direction.EGRESS: " egress", Direction.INGRESS: " ingress", None: ""}
_SHOWN = 3
_WHOLE = 1000
"""From here on nobody needs a decimal."""


def verdict_line(verdict: RunVerdict) -> Text:
    """Return the whole verdict in one line."""
    word, style = _RUN.get(verdict.grade, ("NO REFERENCE", DIM))
    by = f", by profile {verdict.profile}" if verdict.profile else ""
    text = Text().append("Verdict: ", HEADING).append(word, style)
    lines = wrap(printable(f"Verdict: {word}{by}: {verdict.reason}"), "", "  ")
    return text.append(lines.removeprefix(f"Verdict: {word}"))


def verdict_text(report: RunReport, verdict: RunVerdict) -> Text:
    """Render the verdict of a report: a table for each wire, what stands out, and where the references come from."""
    text = Text()
    judged = [one for one in verdict.classes if {one.by_profile, one.by_link, one.by_peers} != {Grade.NO_REFERENCE}]
    if judged:
        told = (
            "worst: of the class's paths; typical: by the profile; then the judgement by the profile, by the wire "
            "(links x rate x payload) and by the siblings (the same between other GPUs); -: nothing to judge by. GB/s, "
            "latencies in ns."
        )
        text.append("What it should be\n", HEADING).append(wrap(told, ""), DIM)
    for link in dict.fromkeys(one.link for one in judged):
        text.append(f"{printable(link)}\n", DIM)
        text.append_text(_table([one for one in judged if one.link == link]))
    for title, lines in (
        ("Out of line", _culprits(verdict.culprits)),
        ("Not as it should be", _faults(report, verdict)),
        ("References", _references(verdict)),
    ):
        if found := list(lines):
            text.append(f"{title}\n", HEADING).append("".join(wrap(line) for line in found))
    return text


def _table(classes: list[ClassVerdict]) -> Text:
    columns = {
        "worst": [_number(one.worst) for one in classes],
        "typical": [_number(one.expected) for one in classes],
        "prof": [_WORDS[one.by_profile] for one in classes],
        "wire": [_WORDS[one.by_link] for one in classes],
        "sibl": [_WORDS[one.by_peers] for one in classes],
    }
    labels = [one.case if one.size_bytes is None else f"{one.case}, {format_size(one.size_bytes)}" for one in classes]
    return table(labels, [[Column(cells, (name,), ">", _STYLES) for name, cells in columns.items()]])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value < _WHOLE else f"{value:.0f}"


def _culprits(culprits: Iterable[Culprit]) -> Iterator[str]:
    """Say of each GPU or pair once what is out of line, with all classes that show it."""
    merged: dict[tuple[str, Direction | None], list[Culprit]] = {}
    for culprit in culprits:
        merged.setdefault((culprit.label, culprit.direction), []).append(culprit)
    for (label, direction), those in sorted(merged.items(), key=lambda item: len(item[1][0].gpus)):
        first = those[0]
        cases = _several([one.path_class for one in those])
        yield f"{_WORDS[first.grade]} {label}{_SIDES[direction]}: {first.reason}, in {printable(cases)}"


def _faults(report: RunReport, verdict: RunVerdict) -> Iterator[str]:
    """Say of each class that is not well why, with the paths."""
    yield from (f"warn {printable(warning)}" for warning in verdict.warnings)
    judged = {one.measurement: one for one in verdict.judged}
    for one in verdict.classes:
        for yardstick in Yardstick:
            bad = [
                (number, judgement)
                for number in one.measurements
                if number in judged
                for judgement in judged[number].judgements
                if judgement.yardstick is yardstick and judgement.grade in (Grade.FAIL, Grade.WARN)
            ]
            if not bad or (yardstick is Yardstick.PEERS and _explained(verdict, one)):
                continue
            bad.sort(key=lambda pair: pair[1].grade is not Grade.FAIL)
            paths = _several([report.measurements[number].path for number, _ in bad[1:]])
            more = f"; also {paths}" if paths else ""
            yield f"{_WORDS[bad[0][1].grade]} {printable(f'{one.path_class}: {bad[0][1].reason}{more}')}"
        if one.grade is Grade.FAIL and Grade.FAIL not in (one.by_profile, one.by_link, one.by_peers):
            yield f"FAIL {printable(f'{one.path_class}: {one.reason}')}"


def _explained(verdict: RunVerdict, one: ClassVerdict) -> bool:
    return any(culprit.path_class == one.path_class for culprit in verdict.culprits)


def _references(verdict: RunVerdict) -> Iterator[str]:
    """Say where the typical values come from, and why there are none."""
    yield printable(f"{f'profile {verdict.profile}' if verdict.profile else 'none'}: {verdict.profile_reason}")
    sources: dict[str, list[str]] = {}
    for one in verdict.classes:
        if one.source is not None:
            sources.setdefault(one.source, []).append(one.path_class)
    for source, classes in sources.items():
        which = "" if len(sources) == 1 else f" ({_several(classes)})"
        yield printable(f"{source}{which}")
    lacking: dict[str, list[str]] = {}
    for one in verdict.classes:
        if verdict.profile is not None and one.by_profile is Grade.NO_REFERENCE:
            lacking.setdefault(one.reason, []).append(one.path_class)
    for reason, classes in lacking.items():
        yield printable(f"no reference for {_several(classes)}: {reason}")


def _several(items: list[str]) -> str:
    shown = ", ".join(items[:_SHOWN])
    return f"{shown} and {len(items) - _SHOWN} more" if len(items) > _SHOWN else shown
