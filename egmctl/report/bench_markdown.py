"""A run of the bench for a ticket: the verdict and what each wire gave; matrices and reasons folded."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.model.measurement import RunReport
from egmctl.model.verdict import ClassVerdict, Grade, RunVerdict
from egmctl.report.bench_html import banners, heading, subtitle
from egmctl.report.bench_parts import exceptions, families, how, tally
from egmctl.report.bench_summary import SUMMARY_NOTE, summary
from egmctl.report.bench_warnings import route_line, warnings
from egmctl.report.markdown import bullets, code, details, escaped, grid_markdown, table, warning


def bench_markdown(report: RunReport) -> str:
    """Return the text."""
    return "\n".join(part for part in _parts(report) if part)


def _parts(report: RunReport) -> Iterator[str]:
    yield f"## egmctl bench: {escaped(heading(report))}\n"
    yield warning(banners(report))
    yield f"{escaped(subtitle(report))}\n"
    if report.verdict is not None:
        yield _verdict(report.verdict)
    if told := [*report.problems, *warnings(report)]:
        yield "### Warnings\n"
        yield bullets(told)
    grids = list(summary(report, next(iter(report.machines), None)))
    if grids:
        yield "### By wire (GB/s)\n"
        yield "".join(map(grid_markdown, grids))
        yield f"{escaped(SUMMARY_NOTE)}\n"
    for family, tables in families(report):
        yield details(f"Tables of the family {family}", "\n".join(map(grid_markdown, tables)))
    if reasons := list(exceptions(report)):
        rows = [[f"**{status}**", escaped(", ".join(paths)), escaped(reason)] for status, reason, paths in reasons]
        yield details(f"Not plainly measured: {tally(report)}", table(("status", "what", "why"), rows))
    notes = [", ".join(how(report)), *filter(None, [route_line(report)]), *report.notes]
    yield details("How it was measured", bullets(notes))


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
    if verdict.classes:
        head = ("class", "grade", "profile", "wire", "siblings", "why", "median", "worst", "expected")
        told += "\n" + details("Each class of paths", table(head, map(_class, verdict.classes), 3))
    return told


def _class(one: ClassVerdict) -> tuple[str, ...]:
    numbers = (
        f"{value:.1f} {one.unit}" if value is not None else "-" for value in (one.median, one.worst, one.expected)
    )
    grades = (_grade(grade) for grade in (one.grade, one.profile, one.wires, one.siblings))
    return escaped(one.path_class), *grades, escaped(one.reason), *map(escaped, numbers)


def _grade(grade: Grade) -> str:
    return f"**{grade}**" if grade in (Grade.FAIL, Grade.WARN) else grade.value
