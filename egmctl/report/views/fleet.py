"""The view of ``egmctl fleet``: the nodes by state, each cause once, and the differences between the nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from statistics import median
from textwrap import wrap
from xml.etree.ElementTree import Element

from egmctl.model.answer import TABLE, WORDS, State, asked
from egmctl.model.comparison import Comparison, Outcome
from egmctl.model.fleet import (
    FleetGpu,
    FleetReport,
    GroupLine,
    NodeGroup,
    NodeResult,
    Reach,
    Unready,
    unready_words,
)
from egmctl.report import document as doc
from egmctl.report.document import Better, Level, Tone
from egmctl.report.render.page import Child, element
from egmctl.report.views.bench import bench_banners, bench_document
from egmctl.report.views.bench_answer import tally
from egmctl.report.views.bringup import part
from egmctl.report.views.causes import cause_entry, verdict
from egmctl.report.views.compare import FILES, FINDINGS, banners, compare_document, heading
from egmctl.report.views.machine import time_words
from egmctl.units import grouped, natural, printable, several

CAUSES_SHOWN = 12
"""The number of causes shown without ``-v``; one missing GPU fails dozens of measurements."""
TRAYS_SHOWN = 24
"""The number of nodes with a GPU that is not ready that text shows."""
NODES_WITH_WORDS = 72
"""The number of nodes up to which a page has words beside each."""
_TONES = {"fail": Tone.BAD, "warn": Tone.WARN} | {reach.value: Tone.BAD for reach in Reach}
_ORDER = [*(reach.value for reach in Reach), "fail", "warn", "note"]


def fleet_document(report: FleetReport) -> doc.Document:
    """Return the document of a fleet report."""
    run = report.fabric.run if report.fabric else None
    of_nodes = () if report.comparison is None else banners(report.comparison)
    return doc.Document(
        command="egmctl bringup" if report.fabric else "egmctl fleet",
        subject=f"{several(len(report.asked.nodes), 'node')} {report.folded}",
        facts=(time_words(report.started_at), _by(report), *((f"results in {report.folder}",) * bool(report.folder))),
        banners=(*of_nodes, *(bench_banners(run) if run and not report.comparison else ())),
        body=tuple(_body(report)),
    )


def _body(report: FleetReport) -> Iterator[doc.Block]:
    yield from answer(report)
    causes = doc.Section("Causes", tuple(doc.limited(_all_causes(report), CAUSES_SHOWN)))
    if any(answer.gpus for answer in report.answers):
        answers = sorted(report.answers, key=lambda answer: natural(answer.node))
        drawing = doc.Diagram(partial(_trays, report, answers), lines=partial(_tray_lines, answers))
        yield replace(drawing, paged=False)
        yield doc.Section("GPUs by node", (drawing,), level=Level.PAGE)
        large = len(answers) > NODES_WITH_WORDS
        yield replace(causes, beside=not large, level=Level.PAGE)
    else:
        yield replace(causes, level=Level.PAGE)
    by = f"{_by(report)}; results in {report.folder}" if report.launcher else _by(report)
    names = f"{several(len(report.asked.nodes), 'node')} {report.folded}"
    yield replace(doc.Paragraph(f"{names} {by}", tone=Tone.DIM), paged=False)
    yield replace(causes, paged=False)
    run = report.fabric.run if report.fabric else None
    if run is not None:
        fabric = partial(part, partial(bench_document, run))
        yield doc.Section("Fabric", fabric, folded=True, note=tally(run), level=Level.VERBOSE)
    if report.comparison is not None:
        yield doc.Section("Nodes", partial(_shares, report, report.comparison), level=Level.PAGE)
        compared = report.comparison.answer
        title, note = f"Compared: {heading(report.comparison)}", f"{compared.word}: {compared.sentence}"
        yield doc.Section(title, tuple(_own(compare_document(report.comparison))), folded=True, note=note)
    groups = partial(map, _group, report.groups, count())
    note = f"{several(len(report.groups), 'group')}: what each node found"
    yield doc.Section("Nodes that are alike", groups, note=note, level=Level.VERBOSE)


def _by(report: FleetReport) -> str:
    """Return how the nodes were asked, and with which command."""
    words = " ".join(("egmctl", report.asked.command.value, *report.asked.arguments))
    return f"by {report.launcher}: {words}" if report.launcher else f"as one MPI job: {words}"


def _all_causes(report: FleetReport) -> Iterator[doc.Entry]:
    """Yield the causes on the nodes, then those that the run between them found itself."""
    yield from _causes(report)
    run = report.fabric.run if report.fabric else None
    # The other causes of the run are findings of doctor, which the nodes have.
    fabric = [cause for cause in run.causes if cause.by_run] if run is not None else []
    yield from (cause_entry(run, cause, cause.status.upper(), fix=True, with_cause=False) for cause in fabric)


def _own(compared: doc.Document) -> Iterator[doc.Block]:
    """Yield the blocks of a comparison without files and advice; its findings, also among the causes, need ``-v``."""
    for block in compared.body:
        if isinstance(block, doc.Verdict):
            yield replace(block, advice="")
        elif not isinstance(block, doc.Section):
            yield block
        elif block.title != FILES:
            yield replace(block, level=Level.VERBOSE) if block.title == FINDINGS else block


def answer(report: FleetReport) -> Iterator[doc.Block]:
    """Yield the answer, then the number and names of the nodes in each state with the first problem of each group."""
    yield verdict(report.answer)
    states = {node.node: node.state for node in report.answers}
    groups = report.groups or tuple(NodeGroup(nodes=(node,), folded=node, lines=()) for node in states)
    parts: list[doc.Part] = []
    for state in reversed(State):
        names = []
        for group in groups:
            nodes = [node for node in group.nodes if states.get(node) is state]
            folded = group.folded if len(nodes) == len(group.nodes) else ",".join(nodes)
            first = next((_words(line) for line in group.lines if line.status and state is not State.GOOD), "")
            if nodes:
                names.append(f"{folded} ({first})" if first else folded)
        if names:
            word = f"{WORDS[asked(report.asked.command)][state]} {list(states.values()).count(state)}"
            parts.append(doc.Part(name="", word=word, tone=Tone(TABLE[state].tone), sentence=", ".join(names)))
    words: list[str | doc.Span] = []
    for each in parts:
        words += [" \N{MIDDLE DOT} "] if words else []
        words += [doc.Span(each.word, each.tone), f": {each.sentence}"]
    yield doc.Paragraph(tuple(words) or "no node was asked", level=Level.SUMMARY, paged=not parts)
    # The worst first, as on every page.
    yield doc.Parts(tuple(reversed(parts)), level=Level.PAGE)


_MARKS = {
    "ready": ("\N{BLACK SQUARE}", Tone.PLAIN),
    "warning": ("\N{BLACK UP-POINTING TRIANGLE}", Tone.WARN),
    Unready.FAULT: ("\N{MULTIPLICATION X}", Tone.BAD),
    Unready.OUTSIDE: ("\N{WHITE SQUARE}", Tone.BAD),
    Unready.MISSING: ("\N{MIDDLE DOT}", Tone.BAD),
    Unready.UNKNOWN: ("?", Tone.UNKNOWN),
}
"""The mark of a GPU and its tone, by the word for its state. Each state has its own mark, so colour only adds."""


def _state(gpu: FleetGpu) -> str:
    return gpu.kind or ("warning" if gpu.reason else "ready")


def _tray_words(answer: NodeResult) -> str:
    """Return what is wrong with the GPUs of a node; empty if all are ready."""
    wrong = ((label, unready_words(state, number)) for label, number, state in answer.by_state)
    return "; ".join(": ".join(filter(None, (label, words))) for label, words in wrong if words)


def _key(answers: Iterable[NodeResult]) -> str:
    states = {_state(gpu) for answer in answers for gpu in answer.gpus}
    return ", ".join(f"{mark} {state}" for state, (mark, _) in _MARKS.items() if state in states)


def _tray_lines(answers: Sequence[NodeResult], width: int) -> Iterator[doc.Words]:
    """Yield a line for each node with a GPU that is not ready or warns, and one for all others."""
    bad = [(answer, words) for answer in answers if (words := _tray_words(answer))]
    name = max((len(printable(answer.node)) for answer, _ in bad), default=0)
    size = max((len(answer.gpus) for answer, _ in bad), default=0)
    for answer, words in bad[:TRAYS_SHOWN]:
        squares = [doc.Span(*_MARKS[_state(gpu)]) for gpu in answer.gpus]
        first, *rest = wrap(words, max(width - name - size - 4, 20))
        yield (f"{answer.node.ljust(name)}  ", *squares, " " * (size - len(squares) + 2), first)
        yield from (" " * (name + size + 4) + line for line in rest)
    if more := len(bad[TRAYS_SHOWN:]):
        yield f"and {several(more, 'more node')}: the page (-o fleet.html) shows all"
    if bad:
        ready = sum(len(answer.gpus) for answer in answers) - sum(len(answer.gpus) for answer, _ in bad)
        yield f"{several(len(answers) - len(bad), 'other node')}: {several(ready, 'GPU')} ready"
        yield doc.Span(f"GPUs: {_key(answer for answer, _ in bad)}", Tone.DIM)


def _trays(report: FleetReport, answers: Sequence[NodeResult]) -> Element:
    """Return the nodes in the order of their names by NVLink domain, each with its GPUs as squares.

    Each is a link to its group. In a fleet larger than a few racks, the words on a node are only in its tooltip.
    """
    places = {node: place for place, group in enumerate(report.groups) for node in group.nodes}
    several_domains = len({answer.domain for answer in answers} - {""}) > 1
    domains = grouped((answer.domain * several_domains, answer) for answer in answers)
    large = len(answers) > NODES_WITH_WORDS
    lists: list[Child] = []
    for domain, members in domains.items():
        lists.append(element("h3", domain or "In no known NVLink domain") if several_domains else None)
        items = []
        for answer in members:
            words = _tray_words(answer)
            states = map(_state, answer.gpus)
            tick = "" if large else "✓"
            squares = [element("i", _MARKS[s][0], class_=s) if s != "ready" else element("i", tick) for s in states]
            link = element(
                "a",
                answer.node,
                element("span", squares, aria_hidden="true"),
                href=f"#group-{places.get(answer.node, 0)}",
                title=words or f"{several(len(answer.gpus), 'GPU')} ready",
            )
            items.append(element("li", link, words if not large else None))
        lists.append(element("ul", items, class_="trays large" if large else "trays"))
    return element("div", lists, element("p", f"Each square is a GPU: {_key(answers)}.", class_="key"))


def _words(line: GroupLine) -> str:
    return ": ".join(filter(None, (line.key, line.value)))


def _causes(report: FleetReport) -> Iterator[doc.Entry]:
    """Yield each problem once with its nodes: ordered by severity, then by the number of nodes."""
    pairs = ((line, group) for group in report.groups for line in dict.fromkeys(group.lines))
    groups = grouped((line, group) for line, group in pairs if line.status)
    counts = {line: sum(len(group.nodes) for group in alike) for line, alike in groups.items()}
    for line in sorted(groups, key=lambda line: (_rank(line.status), -counts[line])):
        nodes = ",".join(group.folded for group in groups[line])
        nodes += f" ({counts[line]} nodes)" if counts[line] > 1 else ""
        yield replace(_entry(line), body=(doc.KeyValues((("on", nodes),)),))


def _rank(status: str) -> int:
    return _ORDER.index(status) if status in _ORDER else len(_ORDER)


def _entry(line: GroupLine) -> doc.Entry:
    return doc.Entry(line.status.upper(), _TONES.get(line.status, Tone.PLAIN), _words(line))


def _group(group: NodeGroup, place: int) -> doc.Section:
    title = group.folded if len(group.nodes) == 1 else f"{group.folded}  {several(len(group.nodes), 'node')}"
    faults = sum(bool(line.status) for line in group.lines)
    note = several(faults, "problem") if faults else "no problem"
    body = tuple(map(_entry, group.lines))
    return doc.Section(title, body, folded=True, note=note, anchor=f"group-{place}", level=Level.VERBOSE)


def _shares(report: FleetReport, comparison: Comparison) -> Iterator[doc.Matrix]:
    """Yield the matrix of nodes by class of paths, the nodes with the most problems first, and one row for the others.

    The matrix is empty if no node differs.
    """
    shares: dict[str, dict[tuple[str, ...], list[float]]] = {}
    for path in comparison.paths:
        if path.slower is not None and path.outcome is not Outcome.SAME:
            shares.setdefault(path.node, {}).setdefault((path.name, path.link), []).append(path.slower)
    classes = sorted({name for of_node in shares.values() for name in of_node})
    nodes = sorted(shares, key=lambda node: (-len(shares[node]), natural(node)))
    others = [answer.node for answer in report.answers if answer.reach is Reach.ANSWERED and answer.node not in shares]
    nodes += [others[0] if len(others) == 1 else f"{len(others)} others"] if shares and others else []
    yield doc.grid(
        "Share of what all nodes reach, by node and class of paths (%)",
        [(node, {name: _share(shares.get(node, {}).get(name)) for name in classes}) for node in nodes],
        notes=("100: within the bound; the classes in which no node differs are not shown",),
        better=Better.HIGH,
    )


def _share(slower: Sequence[float] | None) -> doc.Cell:
    if slower is None:
        return doc.Cell("100", value=100.0)
    share = 100 * (1 - median(slower))
    return doc.Cell(f"{share:.0f}", Tone.WARN, "!", value=max(share, 0.1))
