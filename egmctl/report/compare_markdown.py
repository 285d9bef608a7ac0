"""What differs between saved results as Markdown, for a ticket: what is worse on top, the rest folded away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from egmctl.model.comparison import Affected, Comparison, Outcome, PathDifference, WordDifference
from egmctl.report.compare_text import ONE_SIDED, change, heading, last_line, machine_lines, one_sided, problems
from egmctl.report.markdown import bullets, details, escaped, table, warning
from egmctl.report.origin import compared_banners

_SHOWN = (Outcome.WORSE, Outcome.BETTER)


def compare_markdown(comparison: Comparison) -> str:
    """Return the text."""
    box = warning(compared_banners(comparison))
    parts = [f"## {escaped(heading(comparison))}\n\n{box}**{escaped(last_line(comparison))}**\n"]
    if comparison.affected:
        head = ("", *(("node",) if comparison.of_nodes else ()), "where", "change", "paths", "cases")
        parts.append(table(head, [_affected(comparison, row) for row in comparison.affected]))
    if comparison.words:
        parts.append(_words(comparison.words))
    if comparison.same:
        parts.append(f"Same: {escaped(comparison.same_folded)}\n")
    shown = [path for path in comparison.paths if path.outcome in _SHOWN and path.value is not None]
    if shown:
        parts.append(details(f"{len(shown)} paths", _paths(shown)))
    for title, lines in (
        (ONE_SIDED, one_sided(comparison)),
        ("Differences of the machines", machine_lines(comparison)),
        ("Notes", (*problems(comparison), *comparison.notes)),
    ):
        if found := bullets(lines):
            parts.append(details(title, found))
    return "\n".join(parts)


def _affected(comparison: Comparison, row: Affected) -> Sequence[str]:
    node = (escaped(row.node),) if comparison.of_nodes else ()
    told = change(row) if row.change is not None else comparison.paths[row.paths[0]].reason
    cases = ", ".join(map(escaped, row.cases))
    return _bold(row.outcome), *node, escaped(row.where), escaped(told), f"{len(row.paths)} of {row.of}", cases


def _words(words: Sequence[WordDifference]) -> str:
    rows = (
        (_bold(one.outcome), *map(escaped, (one.folded, f"{one.about} {one.what}".strip(), one.reference, one.value)))
        for one in words
    )
    return table(("", "node", "what", "reference", "found"), rows)


def _paths(paths: Sequence[PathDifference]) -> str:
    return table(("node", "case", "path", "unit", "reference", "found", "change"), _rows(paths), right=3)


def _rows(paths: Sequence[PathDifference]) -> Iterator[Sequence[str]]:
    for path in paths:
        if path.reference is not None and path.value is not None:
            case = f"{path.case} {path.stage}".rstrip()
            numbers = f"{path.reference:.2f}", f"{path.value:.2f}", f"{100 * (path.change or 0):+.1f} %"
            yield *map(escaped, (path.node, case, path.path, path.unit)), *numbers


def _bold(outcome: Outcome) -> str:
    return f"**{outcome}**" if outcome is Outcome.WORSE else outcome.value
