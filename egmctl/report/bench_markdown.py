"""A run of the bench for a ticket: the verdict and what each wire gave; matrices and reasons folded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from egmctl.model.measurement import RunReport
from egmctl.model.verdict import ClassVerdict, Grade, RunVerdict
from egmctl.report.bench_html import banners, heading, subtitle
from egmctl.report.bench_kernel import kernel_line
from egmctl.report.bench_parts import exceptions, families, how, tally
from egmctl.report.bench_summary import summary, summary_note
from egmctl.report.bench_warnings import route_line, warnings
from egmctl.report.markdown import bullets, code, details, escaped, grid_markdown, table, warning

LIMIT = 60_000
"""Characters; GitHub takes 65536 in one comment."""


def bench_markdown(report: RunReport) -> str:
    """Return the text: without the tables that would make it longer than :data:`LIMIT`, which it then says."""
    text = "\n".join(part for part in _parts(report) if part)
    left_out = []
    for name, part in _folded(report):
        if len(text) + len(part) > LIMIT:
            left_out.append(name)
        else:
            text += f"\n{part}"
    if left_out:
        text += f"\nToo long for a ticket, left out: {escaped('; '.join(left_out))}. The page and JSON have it.\n"
    return text


def _parts(report: RunReport) -> Iterator[str]:
    yield f"## egmctl bench: {escaped(heading(report))}\n"
    yield warning(banners(report))
    yield f"{escaped(subtitle(report))}\n"
    if report.verdict is not None:
        yield _verdict(report.verdict)
    if told := [*report.problems, *warnings(report)]:
        yield "### Warnings\n"
        yield bullets(told)


def _folded(report: RunReport) -> Iterator[tuple[str, str]]:
    """Yield the further parts with their names, the most telling first."""
    if reasons := list(exceptions(report)):
        rows = [[f"**{status}**", escaped(", ".join(paths)), escaped(reason)] for status, reason, paths in reasons]
        name = f"Not plainly measured: {tally(report)}"
        yield name, details(name, table(("status", "what", "why"), rows))
    if grids := list(summary(report)):
        name = "By wire (GB/s)"
        yield name, f"### {name}\n\n{''.join(map(grid_markdown, grids))}{escaped(summary_note(grids))}\n"
    if report.verdict is not None and report.verdict.classes:
        yield "Each class of paths", details("Each class of paths", _classes(report.verdict.classes))
    for family, tables in families(report):
        name = f"Tables of the family {family}"
        yield name, details(name, "\n".join(map(grid_markdown, tables)))
    notes = [", ".join(how(report)), *filter(None, [route_line(report), kernel_line(report)]), *report.notes]
    yield "How it was measured", details("How it was measured", bullets(notes))


def _verdict(verdict: RunVerdict) -> str:
    by = f"profile {code(verdict.profile)}" if verdict.profile else "no profile"
    told = (
        f"### Verdict: {verdict.grade.upper()}\n\n{escaped(verdict.reason)} ({by}: {escaped(verdict.profile_reason)})\n"
    )
    if verdict.warnings:
        told += "\n" + bullets(verdict.warnings)
    if verdict.culprits:
        rows = [
            (
                f"**{escaped(one.label)}** {one.direction or ''}",
                f"{100 * one.ratio:.0f} %",
                one.grade.value,
                escaped(one.reason),
            )
            for one in verdict.culprits
        ]
        told += "\n" + table(("out of line", "reaches", "grade", "why"), rows)
    if bad := [one for one in verdict.classes if one.grade in (Grade.FAIL, Grade.WARN)]:
        told += "\n" + _classes(bad)
    return told


def _classes(classes: Iterable[ClassVerdict]) -> str:
    head = ("class", "grade", "profile", "wire", "siblings", "why", "median", "worst", "expected")
    return table(head, map(_class, classes), 3)


def _class(one: ClassVerdict) -> tuple[str, ...]:
    numbers = (
        f"{value:.1f} {one.unit}" if value is not None else "-" for value in (one.median, one.worst, one.expected)
    )
    grades = (_grade(grade) for grade in (one.grade, one.by_profile, one.by_link, one.by_peers))
    return escaped(one.path_class), *grades, escaped(one.reason), *map(escaped, numbers)


def _grade(grade: Grade) -> str:
    return f"**{grade}**" if grade in (Grade.FAIL, Grade.WARN) else grade.value
