"""What differs between saved results as text for people: the gravest first, then what stands beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from rich.text import Text

from egmctl.model.command import Command
from egmctl.model.comparison import Affected, Comparison, Outcome, PathDifference, WordDifference
from egmctl.report.origin import compared_banners
from egmctl.report.table import BAD, DIM, HEADING, WARN, Column, table, trimmed, wrap
from egmctl.units import format_size, printable

_STYLES = {Outcome.WORSE: BAD, Outcome.BETTER: "green", Outcome.DIFFERENT: WARN, Outcome.SAME: ""}
_THINGS = {Command.BENCH: "path", Command.DOCTOR: "finding", Command.TOPO: "fact", Command.SNAPSHOT: "fact"}
_INDENT = " " * (max(map(len, Outcome)) + 2)
ONE_SIDED = "Of single paths"
"""Heads what :func:`one_sided` tells."""

_CASES_SHOWN = 3
_SHOWN = 40
"""Lines of facts about machines that are told; ``-v`` tells all."""


def compare_text(comparison: Comparison, *, verbose: int = 0) -> Text:
    """Render a comparison.

    Parameters
    ----------
    verbose
        Above 0, paths that are the same are listed too, and every fact.
    """
    text = _head(comparison)
    rows = [_affected(comparison, row) for row in comparison.affected]
    rows += [_word(comparison, one) for one in comparison.words]
    if comparison.same:
        rows.append(Text(_line("same", printable(comparison.same_folded))))
    if rows:
        text.append("\n")
    for one in rows:
        text.append_text(one)
    text.append_text(_tables(comparison, verbose))
    for title, lines in (
        (ONE_SIDED, list(one_sided(comparison))),
        ("Differences of the machines", list(machine_lines(comparison))),
        ("Notes", [*problems(comparison), *comparison.notes]),
    ):
        shown = lines if verbose else lines[:_SHOWN]
        if shown:
            text.append(f"\n{title}\n", HEADING).append("".join(wrap(printable(line)) for line in shown))
        if len(shown) < len(lines):
            text.append(f"  and {len(lines) - len(shown)} more: -v tells them\n", DIM)
    text.append(f"\n{last_line(comparison)}\n", HEADING)
    return trimmed(text)


def heading(comparison: Comparison) -> str:
    """Say what is compared."""
    who = comparison.folded if comparison.of_nodes else " -> ".join(node.name for node in comparison.nodes)
    return f"Compare {comparison.kind}: {who}"


def _head(comparison: Comparison) -> Text:
    text = Text()
    for banner in compared_banners(comparison):
        text.append(wrap(printable(banner), "", "  "), WARN)
    text.append(f"{printable(heading(comparison))}\n", HEADING)
    if comparison.kind is Command.BENCH:
        text.append(wrap(reported(comparison), ""), DIM)
    return text


def reported(comparison: Comparison) -> str:
    """Say which paths of runs are told."""
    of = "from the median of the nodes" if comparison.of_nodes else "from the first run"
    return (
        f"reported: medians that are farther {of} than {100 * comparison.tolerance:g} % "
        "and three times the known spread from run to run"
    )


def _affected(comparison: Comparison, row: Affected) -> Text:
    paths = [comparison.paths[place] for place in row.paths]
    words = f"{row.where}: " if not comparison.of_nodes else f"{row.node}: {row.where} "
    words += happened(comparison, row)
    if row.of > 1 or len(paths) > 1:
        words += f" ({len(paths)} of {row.of} paths)"
    text = Text()
    text.append(row.outcome.upper().ljust(len(_INDENT)), _STYLES[row.outcome])
    text.append(wrap(printable(words), _INDENT, _INDENT)[len(_INDENT) :])
    if not comparison.of_nodes or row.change is None:
        return text.append(wrap(printable(", ".join(row.cases)), _INDENT), DIM)
    for line in medians(paths):
        text.append(wrap(printable(line), _INDENT), DIM)
    return text


def medians(paths: Iterable[PathDifference]) -> Iterator[str]:
    """Say of each case what paths of one node reach, and what those of all nodes do."""
    cases: dict[str, list[PathDifference]] = {}
    for path in paths:
        cases.setdefault(f"{_name(path)} ({path.unit})", []).append(path)
    for name, those in cases.items():
        found = median(path.value for path in those if path.value is not None)
        usual = median(path.reference for path in those if path.reference is not None)
        yield f"{name}: {found:.2f}, all nodes {usual:.2f}"


def happened(comparison: Comparison, row: Affected) -> str:
    """Say how much slower or faster paths are, or why some have no number."""
    if row.change is not None:
        return change(row)
    return "; ".join(dict.fromkeys(comparison.paths[place].reason for place in row.paths))


def change(row: Affected) -> str:
    """Say how much slower or faster paths are."""
    part = row.change or 0
    return f"{100 * abs(part):.1f} % {'slower' if part > 0 else 'faster'}"


def _word(comparison: Comparison, one: WordDifference) -> Text:
    text = Text()
    text.append(one.outcome.upper().ljust(len(_INDENT)), _STYLES[one.outcome])
    return text.append(wrap(printable(_told(one, comparison.of_nodes)), _INDENT, _INDENT)[len(_INDENT) :])


def _told(one: WordDifference, of_nodes: bool) -> str:
    who = f"{one.folded}: " if of_nodes else ""
    subject = " ".join(filter(None, (one.about, one.what)))
    if of_nodes:
        return f"{who}{subject}: {one.value}; most: {one.reference}"
    return f"{subject}: {one.reference} -> {one.value}"


def machine_lines(comparison: Comparison) -> Iterator[str]:
    """Say what differs in the machines."""
    return (_told(one, comparison.of_nodes) for one in comparison.machines)


def _tables(comparison: Comparison, verbose: int) -> Text:
    """Return a table for each case in which one run is against another; of more nodes the rows above tell all."""
    text = Text()
    if comparison.of_nodes or not comparison.paths:
        return text
    names = tuple(printable(node.name) for node in comparison.nodes)
    for name, paths in by_case(comparison, same=verbose > 0).items():
        text.append(f"\n{printable(name)}\n", HEADING).append_text(_table(paths, names))
    return text


def by_case(comparison: Comparison, *, same: bool) -> dict[str, list[PathDifference]]:
    """Return paths with a number on both sides by case, wire and unit; ``same``: those too that are as they were."""
    cases: dict[str, list[PathDifference]] = {}
    for path in comparison.paths:
        both = path.reference is not None and path.value is not None
        if both and (same or path.outcome is not Outcome.SAME):
            cases.setdefault(f"{_name(path)} over {path.wire} ({path.unit})", []).append(path)
    return cases


def _table(paths: Sequence[PathDifference], names: Sequence[str]) -> Text:
    changes = [f"{100 * (path.change or 0):+.1f} %" for path in paths]
    outcomes = [word(path) for path in paths]
    columns = (
        Column(cells=[f"{path.reference:.2f}" for path in paths], header=(names[0],), align=">"),
        Column(cells=[f"{path.value:.2f}" for path in paths], header=(names[1],), align=">"),
        Column(cells=changes, header=("change",), align=">"),
        Column(
            cells=outcomes,
            header=("",),
            styles={**{outcome.value: style for outcome, style in _STYLES.items() if style}, "unstable": WARN},
        ),
    )
    return table([printable(path.path) for path in paths], [columns])


def word(path: PathDifference) -> str:
    """Return the outcome of a path that has two numbers, in a word."""
    unstable = path.outcome is Outcome.DIFFERENT and path.reason.startswith("unstable")
    return "unstable" if unstable else path.outcome.value


def one_sided(comparison: Comparison) -> Iterator[str]:
    """Say what a reader of paths has to know: which have no number on one side, or an unstable one, or another wire.

    Those with the same reason share a line.
    """
    by_reason: dict[tuple[str, str], list[PathDifference]] = {}
    for path in comparison.paths:
        both = path.value is not None and path.reference is not None
        if path.reason and (both or path.outcome is Outcome.DIFFERENT):
            # How far the samples of each unstable path vary, its run has told.
            reason = path.reason.partition(":")[0] if both else path.reason
            by_reason.setdefault((path.node if comparison.of_nodes else "", reason), []).append(path)
    for (_, reason), paths in by_reason.items():
        cases = list(dict.fromkeys(path.case for path in paths))
        which = paths[0].path if len(paths) == 1 else f"{len(paths)} paths"
        more = f" and {len(cases) - _CASES_SHOWN} more cases" if len(cases) > _CASES_SHOWN else ""
        yield f"{reason}: {', '.join(cases[:_CASES_SHOWN])}{more}, {which}"


def _name(path: PathDifference) -> str:
    stage = f", {path.stage}" if path.stage else ""
    return f"{path.case}{stage}, {format_size(path.size_bytes)}"


def problems(comparison: Comparison) -> Iterator[str]:
    """Say which files have no result, or only a part of one."""
    return (f"{node.name}: {node.problem}" for node in comparison.nodes if node.problem)


def _line(word: str, words: str) -> str:
    return word.upper().ljust(len(_INDENT)) + wrap(words, _INDENT, _INDENT)[len(_INDENT) :]


def last_line(comparison: Comparison) -> str:
    """Count what was found."""
    counts = {outcome: comparison.outcomes.count(outcome) for outcome in Outcome}
    thing = _THINGS[comparison.kind]
    told = [f"{counts[outcome]} {outcome}" for outcome in (Outcome.WORSE, Outcome.BETTER, Outcome.DIFFERENT)]
    return f"{comparison.compared} {thing}{'s' * (comparison.compared != 1)} compared: {', '.join(told)}"
