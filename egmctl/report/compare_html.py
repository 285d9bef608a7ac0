"""What differs between saved results as one HTML page: what is worse on top, then the numbers, then the machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from egmctl.errors import ExitCode
from egmctl.model.command import Command
from egmctl.model.comparison import Affected, Comparison, Outcome, WordDifference
from egmctl.report.compare_text import (
    ONE_SIDED,
    by_case,
    happened,
    heading,
    last_line,
    medians,
    one_sided,
    problems,
    reported,
    word,
)
from egmctl.report.grid import Cell, Grid, Line
from egmctl.report.grid_html import grids_html
from egmctl.report.markup import Child, arrows, element
from egmctl.report.origin import compared_banners
from egmctl.report.page import Section, bullets, page, rows
from egmctl.report.table import BAD, WARN
from egmctl.report.verdict_html import call

_LOOKS = {Outcome.WORSE: "fail", Outcome.BETTER: "pass", Outcome.DIFFERENT: "warn", Outcome.SAME: "pass"}
_WORDS = {
    Outcome.WORSE: "Worse",
    Outcome.BETTER: "Better",
    Outcome.DIFFERENT: "Different",
    Outcome.SAME: "The same",
}
_STYLES = {Outcome.WORSE: BAD, Outcome.DIFFERENT: WARN}


def compare_html(comparison: Comparison) -> str:
    """Return the page."""
    banners = compared_banners(comparison)
    sections = list(_sections(comparison))
    return page("egmctl compare", arrows(heading(comparison)), _subtitle(comparison), banners, sections)


def _subtitle(comparison: Comparison) -> str:
    times = sorted({_time(node.at) for node in comparison.nodes if node.at})
    when = f", measured or recorded {' to '.join(dict.fromkeys((times[0], times[-1])))}" if times else ""
    return f"{len(comparison.nodes)} files{when}"


def _sections(comparison: Comparison) -> Iterator[Section]:
    yield Section("verdict", "Verdict", tuple(_verdict(comparison)))
    if not comparison.of_nodes and (grids := list(_grids(comparison))):
        yield Section("paths", "Paths", (grids_html(grids, {}),))
    if single := list(one_sided(comparison)):
        yield Section("single", ONE_SIDED, (bullets(single),))
    if comparison.machines:
        told = "It stands beside the result and judges nothing."
        body = element("p", told, class_="dim"), _words(comparison, comparison.machines)
        yield Section("machines", "Differences of the machines", body)
    yield Section("files", "What is compared", tuple(_files(comparison)))


def _verdict(comparison: Comparison) -> Iterator[Child]:
    if comparison.exit_code is ExitCode.NOTHING:
        yield call("plain", "Nothing could be compared", last_line(comparison))
    else:
        gravest = next((one for one in Outcome if one in comparison.outcomes), Outcome.SAME)
        yield call(_LOOKS[gravest], _WORDS[gravest], last_line(comparison))
    if comparison.kind is Command.BENCH:
        yield element("p", f"{reported(comparison).capitalize()}.", class_="dim")
    if comparison.affected:
        head = ("outcome", *(("node",) if comparison.of_nodes else ()), "where", "change", "paths", "cases")
        yield rows(head, [_affected(comparison, row) for row in comparison.affected], ("paths",))
    if comparison.words:
        yield _words(comparison, comparison.words, outcomes=True)
    if comparison.same:
        yield element("p", element("strong", "Same: "), comparison.same_folded)


def _affected(comparison: Comparison, row: Affected) -> Sequence[Child]:
    paths = [comparison.paths[place] for place in row.paths]
    cases: Child = ", ".join(row.cases)
    if comparison.of_nodes and row.change is not None:
        cases = [element("p", line) for line in medians(paths)]
    told = (element("span", words, class_="phrase") for words in (arrows(row.where), happened(comparison, row)))
    node = (row.node,) if comparison.of_nodes else ()
    return _label(row.outcome), *node, *told, f"{len(paths)} of {row.of}", cases


def _words(comparison: Comparison, words: Sequence[WordDifference], *, outcomes: bool = False) -> Child:
    of_nodes = comparison.of_nodes
    sides = ("nodes", "what", "most", "found") if of_nodes else ("what", *(node.name for node in comparison.nodes))
    head = (*(("outcome",) if outcomes else ()), *sides)
    body = [
        (
            *((_label(one.outcome),) if outcomes else ()),
            *((one.folded,) if of_nodes else ()),
            f"{one.about} {one.what}".strip(),
            one.reference,
            one.value,
        )
        for one in words
    ]
    return rows(head, body)


def _grids(comparison: Comparison) -> Iterator[Grid]:
    """Yield a table for each case in which one run is against another."""
    first, second = (node.name for node in comparison.nodes)
    for name, paths in by_case(comparison, same=False).items():
        columns = (
            (first, [Cell(text=f"{path.reference:.2f}") for path in paths]),
            (second, [Cell(text=f"{path.value:.2f}", style=_STYLES.get(path.outcome, "")) for path in paths]),
            ("change", [Cell(text=f"{100 * (path.change or 0):+.1f} %") for path in paths]),
            ("outcome", [Cell(text=word(path)) for path in paths]),
        )
        yield Grid(
            caption=name,
            rows=tuple(arrows(path.path) for path in paths),
            groups=tuple((Line(header=(head,), cells=tuple(cells)),) for head, cells in columns),
        )


def _files(comparison: Comparison) -> Iterator[Child]:
    yield rows(
        ("file", "when", "written by"), [(node.name, _time(node.at) or "-", node.tool) for node in comparison.nodes]
    )
    yield bullets([*problems(comparison), *comparison.notes])


def _time(at: str) -> str:
    return at.replace("T", " ").replace("+00:00", " UTC").replace("Z", " UTC")


def _label(outcome: Outcome) -> Child:
    return element("span", outcome.value, class_=f"word-{_LOOKS[outcome]}")
