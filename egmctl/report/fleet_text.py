"""``egmctl fleet`` for people: nodes that are alike in one block, then what the others differ in."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from egmctl.model.fleet import FleetReport, Group, Line, Reach
from egmctl.report.table import BAD, DIM, HEADING, WARN, trimmed, wrap
from egmctl.units import printable

LINES_SHOWN = 12
"""Differences of a group beyond this many are counted: one missing GPU changes dozens of lines."""

_STYLES = {"fail": BAD, "warn": WARN, "unknown": "magenta"} | {reach.value: BAD for reach in Reach}


def fleet_text(report: FleetReport, *, verbose: int = 0) -> Text:
    """Render a fleet's answers.

    Parameters
    ----------
    verbose
        Above 0, nothing is counted instead of shown.
    """
    asked = report.asked
    words = " ".join(("egmctl", asked.command.value, *asked.arguments))
    text = Text(wrap(f"{_nodes(len(asked.nodes))} {report.folded} by {report.launcher}: {printable(words)}", ""))
    text.append(wrap(f"Results: {printable(report.folder)}", ""), DIM)
    for place, group in enumerate(report.groups):
        text.append("\n").append(f"{printable(group.folded)}", HEADING)
        text.append(f"  {_nodes(len(group.nodes))}\n" if len(group.nodes) > 1 else "\n", DIM)
        _group(text, group, usual=place == 0, verbose=verbose)
    told = ", ".join(f"{number} {reach}" for reach, number in report.counts.items())
    text.append("\n").append(f"{_nodes(len(asked.nodes))}: {told}\n", HEADING)
    return trimmed(text)


def _group(text: Text, group: Group, *, usual: bool, verbose: int) -> None:
    lines = [line for line in group.lines if verbose or not (usual and line.detail)]
    shown = lines if verbose else _gravest(lines)[:LINES_SHOWN]
    for line in shown:
        _line(text, line)
    if len(shown) < len(lines):
        text.append(f"  and {len(lines) - len(shown)} lines more (-v shows them)\n", DIM)
    if not lines:
        text.append("  the same\n")


def _gravest(lines: Sequence[Line]) -> list[Line]:
    order = {status: place for place, status in enumerate((*(reach.value for reach in Reach), "fail", "warn"))}
    return sorted(lines, key=lambda line: order.get(line.status, len(order)) if line.status else -1)


def _line(text: Text, line: Line) -> None:
    head = "  "
    if line.status:
        head += f"{line.status.upper():<6} "
    elif line.usual is not None:
        head += "differs "
    text.append(head, _STYLES.get(line.status, WARN if line.usual is not None else ""))
    value = printable(line.value) if line.value else "not there"
    words = f"{printable(line.key)}: {value}" if line.key else value
    if line.usual is not None:
        words += f"; usual: {printable(line.usual)}" if line.usual else ""
    text.append(wrap(words, head, "      ")[len(head) :])


def _nodes(number: int) -> str:
    return f"{number} node{'s' * (number != 1)}"
