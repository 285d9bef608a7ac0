"""``egmctl fleet`` for people: nodes that are alike in one block, then what they differ in."""

from __future__ import annotations

from rich.text import Text

from egmctl.model.fleet import FleetReport, Group, Line, Reach, State
from egmctl.report.compare_text import compare_text
from egmctl.report.table import BAD, DIM, HEADING, WARN, trimmed, wrap
from egmctl.units import printable

LINES_SHOWN = 12
"""Lines of a group beyond this many are counted: one missing GPU fails dozens of measurements."""

_STYLES = {"fail": BAD, "warn": WARN} | {reach.value: BAD for reach in Reach}


def fleet_text(report: FleetReport, *, verbose: int = 0) -> Text:
    """Render a fleet's answers.

    Parameters
    ----------
    verbose
        Above 0, nothing is counted instead of shown.
    """
    asked = report.asked
    words = " ".join(("egmctl", asked.command.value, *asked.arguments))
    text = _answer(report).append("\n")
    text.append(wrap(f"{_nodes(len(asked.nodes))} {report.folded} by {report.launcher}: {printable(words)}", ""))
    text.append(wrap(f"Results: {printable(report.folder)}", ""), DIM)
    for group in report.groups:
        text.append("\n").append(printable(group.folded), HEADING)
        text.append(f"  {_nodes(len(group.nodes))}\n" if len(group.nodes) > 1 else "\n", DIM)
        shown = group.lines if verbose else group.lines[:LINES_SHOWN]
        for line in shown:
            _line(text, line)
        if len(shown) < len(group.lines):
            text.append(f"  and {len(group.lines) - len(shown)} lines more (-v shows them)\n", DIM)
    if report.comparison is not None:
        text.append("\n").append_text(compare_text(report.comparison, verbose=verbose))
    return trimmed(text)


def _answer(report: FleetReport) -> Text:
    """Say how many nodes are in which state, which they are, and the first thing that is wrong with each group."""
    states = {answer.node: answer.state for answer in report.answers}
    groups = report.groups or tuple(Group(nodes=(one.node,), folded=one.node, lines=()) for one in report.answers)
    parts = []
    for state in State:
        told = []
        for group in groups:
            nodes = [node for node in group.nodes if states.get(node) is state]
            if nodes:
                names = group.folded if len(nodes) == len(group.nodes) else ",".join(nodes)
                told.append(printable(names) + ("" if state is State.HEALTHY else _first(group)))
        if told:
            parts.append(f"{state} {list(states.values()).count(state)}: {', '.join(told)}")
    bad = set(states.values()) - {State.HEALTHY}
    text = Text()
    lines = wrap(" \N{MIDDLE DOT} ".join(parts), "", "  ")
    return text.append(lines, BAD if State.FAILED in bad else WARN if bad else "bold green")


def _first(group: Group) -> str:
    line = next((line for line in group.lines if line.status), None)
    if line is None:
        return ""
    return f" ({printable(': '.join(filter(None, (line.key, line.value))))})"


def _line(text: Text, line: Line) -> None:
    head = f"  {line.status.upper()}  " if line.status else "  "
    text.append(head, _STYLES.get(line.status, ""))
    words = ": ".join(filter(None, (printable(line.key), printable(line.value))))
    text.append(wrap(words, head, "      ")[len(head) :])


def _nodes(number: int) -> str:
    return f"{number} node{'s' * (number != 1)}"
