"""What ``egmctl fleet`` says: which nodes are well and which are not, each cause once, then what they differ in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from egmctl.model.command import Command
from egmctl.model.comparison import Comparison, Outcome
from egmctl.model.fleet import FleetReport, GroupLine, NodeGroup, NodeState, Reach
from egmctl.report.document import (
    EMPTY,
    Better,
    Block,
    Cell,
    Document,
    Entry,
    Hint,
    KeyValues,
    Level,
    Matrix,
    Paragraph,
    Section,
    Span,
    Tone,
    Verdict,
    columns_of,
)
from egmctl.report.views.compare import FILES, FINDINGS, banners, compare_document, heading
from egmctl.units import natural, several

CAUSES_SHOWN = 12
"""Causes that are told without -v: one missing GPU fails dozens of measurements."""
_TONES = {"fail": Tone.BAD, "warn": Tone.WARN} | {reach.value: Tone.BAD for reach in Reach}
_ORDER = [*(reach.value for reach in Reach), "fail", "warn"]
_STATES = {
    NodeState.HEALTHY: Tone.GOOD,
    NodeState.FAILED: Tone.BAD,
    NodeState.NOT_DETERMINED: Tone.WARN,
    NodeState.UNREACHABLE: Tone.WARN,
}


def fleet_document(report: FleetReport) -> Document:
    """Return what there is to say of many nodes."""
    return Document(
        command="egmctl fleet",
        subject=f"{several(len(report.asked.nodes), 'node')} {report.folded}",
        banners=() if report.comparison is None else tuple(banners(report.comparison)),
        body=tuple(_body(report)),
    )


def _body(report: FleetReport) -> Iterator[Block]:
    yield from answer(report)
    asked = report.asked
    words = " ".join(("egmctl", asked.command.value, *asked.arguments))
    how = f"{several(len(asked.nodes), 'node')} {report.folded} by {report.launcher}: {words}; results: {report.folder}"
    yield Paragraph(words=how, tone=Tone.DIM)
    causes = list(_causes(report))
    if causes:
        body: tuple[Block, ...] = tuple(causes[:CAUSES_SHOWN])
        if more := tuple(replace(cause, level=Level.VERBOSE) for cause in causes[CAUSES_SHOWN:]):
            body = (*body, Hint(words=f"and {len(more)} more (-v)", more=True), *more)
        yield Section(title="Causes", body=body)
    if report.comparison is not None:
        yield Section(title="Nodes", body=partial(_heat_maps, report, report.comparison), level=Level.PAGE)
        title = f"Compared: {heading(report.comparison)}"
        yield Section(title=title, body=tuple(_own(compare_document(report.comparison))))
    groups = partial(map, _group, report.groups)
    yield Section(title="Nodes that are alike", body=groups, level=Level.VERBOSE)


def _own(compared: Document) -> Iterator[Block]:
    """Yield what a comparison says that a fleet has not said already: findings are among the causes."""
    for block in compared.body:
        if isinstance(block, Verdict):
            yield replace(block, advice="")
        elif not isinstance(block, Section):
            yield block
        elif block.title != FILES:
            yield replace(block, level=Level.VERBOSE) if block.title == FINDINGS else block


def answer(report: FleetReport) -> Iterator[Paragraph]:
    """Yield how many nodes are in which state, which they are, and the first thing that is wrong with each group."""
    states = {one.node: one.state for one in report.answers}
    groups = report.groups or tuple(NodeGroup(nodes=(one.node,), folded=one.node, lines=()) for one in report.answers)
    parts: list[str | Span] = []
    for state in NodeState:
        told = []
        for group in groups:
            nodes = [node for node in group.nodes if states.get(node) is state]
            if nodes:
                names = group.folded if len(nodes) == len(group.nodes) else ",".join(nodes)
                why = "" if state is NodeState.HEALTHY else _first(group)
                told.append(f"{names} ({why})" if why else names)
        if told:
            number = list(states.values()).count(state)
            between = " \N{MIDDLE DOT} " if parts else ""
            parts += [between, Span(f"{_name(report, state)} {number}", _STATES[state]), f": {', '.join(told)}"]
    yield Paragraph(words=tuple(parts) or "no node was asked", level=Level.SUMMARY)
    if advice := _advice(set(states.values()) - {NodeState.HEALTHY}):
        yield Paragraph(words=(Span("Next: ", Tone.STRONG), advice), level=Level.SUMMARY)


def _name(report: FleetReport, state: NodeState) -> str:
    """Return what a state is called: of bring-ups by their answers."""
    answers = {NodeState.HEALTHY: "GO", NodeState.FAILED: "NO-GO", NodeState.NOT_DETERMINED: "INCOMPLETE"}
    return answers.get(state, state.value) if report.asked.command is Command.BRINGUP else state.value


def _advice(bad: set[NodeState]) -> str:
    if NodeState.FAILED in bad:
        return "the causes are below; 'egmctl show' reads each node's file; --list failed prints the node set"
    if NodeState.UNREACHABLE in bad:
        return "retry the silent nodes with --resume"
    return "see what keeps them from an answer with 'egmctl doctor' there" if bad else ""


def _first(group: NodeGroup) -> str:
    line = next((line for line in group.lines if line.status), None)
    return "" if line is None else _words(line)


def _words(line: GroupLine) -> str:
    return ": ".join(filter(None, (line.key, line.value)))


def _causes(report: FleetReport) -> Iterator[Entry]:
    """Yield each thing that is wrong once, with the nodes where it is, the most frequent first."""
    found: dict[GroupLine, list[NodeGroup]] = {}
    for group in report.groups:
        for line in group.lines:
            if line.status:
                groups = found.setdefault(line, [])
                if group not in groups:
                    groups.append(group)
    number = {line: sum(len(group.nodes) for group in groups) for line, groups in found.items()}
    for line in sorted(found, key=lambda line: (_rank(line.status), -number[line])):
        nodes = ",".join(group.folded for group in found[line])
        nodes += f" ({number[line]} nodes)" if number[line] > 1 else ""
        yield Entry(
            word=line.status.upper(),
            tone=_TONES.get(line.status, Tone.PLAIN),
            title=_words(line),
            body=(KeyValues(rows=(("on", nodes),)),),
        )


def _rank(status: str) -> int:
    return _ORDER.index(status) if status in _ORDER else len(_ORDER)


def _group(group: NodeGroup) -> Section:
    lines = tuple(
        Entry(word=line.status.upper(), tone=_TONES.get(line.status, Tone.PLAIN), title=_words(line))
        for line in group.lines
    )
    title = group.folded if len(group.nodes) == 1 else f"{group.folded}  {several(len(group.nodes), 'node')}"
    return Section(title=title, body=lines, level=Level.VERBOSE)


def _heat_maps(report: FleetReport, comparison: Comparison) -> Iterator[Matrix]:
    """Yield the nodes by class of paths and by check, those with most against them first."""
    yield from _by_class(report, comparison)
    yield from _by_check(report)


def _by_class(report: FleetReport, comparison: Comparison) -> Iterator[Matrix]:
    shares: dict[str, dict[tuple[str, str], list[float]]] = {}
    for path in comparison.paths:
        if path.slower is not None and path.outcome is not Outcome.SAME:
            shares.setdefault(path.node, {}).setdefault((path.name, path.link), []).append(path.slower)
    classes = sorted({name for of_node in shares.values() for name in of_node})
    nodes = _rows(report, {node: len(of_node) for node, of_node in shares.items()})
    if classes:
        yield Matrix(
            caption="Share of what all nodes reach, by node and class of paths (%)",
            notes=("100: within the bound; the classes in which no node differs are not shown",),
            rows=tuple(nodes),
            groups=columns_of(
                {name: [_share(shares.get(node, {}).get(name), node in shares) for node in nodes] for name in classes}
            ),
            better=Better.HIGH,
        )


def _share(slower: Sequence[float] | None, outlier: bool) -> Cell:
    if slower is None:
        return Cell(text="100", value=100.0)
    share = 100 * (1 - median(slower))
    return Cell(text=f"{share:.0f}", value=max(share, 0.1), tone=Tone.WARN if outlier else Tone.PLAIN, mark="!")


def _by_check(report: FleetReport) -> Iterator[Matrix]:
    statuses: dict[str, dict[str, str]] = {}
    for group in report.groups:
        for line in group.lines:
            check = line.check
            if line.status in ("fail", "warn") and check:
                for node in group.nodes:
                    worse = "fail" in (line.status, statuses.get(node, {}).get(check))
                    statuses.setdefault(node, {})[check] = "fail" if worse else "warn"
    checks = sorted({check for of_node in statuses.values() for check in of_node})
    nodes = _rows(report, {node: len(of_node) for node, of_node in statuses.items()})
    if checks:
        yield Matrix(
            caption="Nodes by check",
            notes=("checks that no node fails are not shown",),
            rows=tuple(nodes),
            groups=columns_of({check: [_status(statuses.get(node, {}), check) for node in nodes] for check in checks}),
        )


def _status(of: Mapping[str, str], check: str) -> Cell:
    return Cell(text=of[check], tone=_TONES[of[check]]) if check in of else EMPTY


def _rows(report: FleetReport, faults: Mapping[str, int]) -> list[str]:
    """Return the nodes that something is against, those with most first, and one row for all others."""
    answered = [answer.node for answer in report.answers if answer.reach is Reach.ANSWERED]
    bad = sorted((node for node in answered if faults.get(node)), key=lambda node: (-faults[node], natural(node)))
    others = [node for node in answered if node not in bad]
    return [*bad, *(others if len(others) == 1 else [f"{len(others)} others"] if others else [])]
