"""The view of ``egmctl fleet``: the nodes by state, each cause once, and the differences between the nodes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count

from egmctl.model.answer import TABLE, WORDS, State, asked
from egmctl.model.comparison import Comparison
from egmctl.model.fleet import FleetReport, GroupLine, NodeGroup, Reach
from egmctl.model.remedy import common
from egmctl.report import document as doc
from egmctl.report.document import Level, Tone
from egmctl.report.views.bench import bench_banners, bench_document
from egmctl.report.views.bench_answer import tally
from egmctl.report.views.bringup import part
from egmctl.report.views.causes import cause_entry
from egmctl.report.views.compare import (
    FILES,
    FINDINGS,
    SPEED,
    compare_document,
    comparison_banners,
    heading,
    speed_by_node,
)
from egmctl.report.views.findings import commands_of, tone_of, verdict
from egmctl.report.views.fleet_drawing import NODES_WITH_GPUS, is_rack, ordered, state_counts, tray_lines, trays
from egmctl.report.views.machine import time_words
from egmctl.units import grouped, several

CAUSES_SHOWN = 12
"""The number of causes shown without ``-v``; one missing GPU fails dozens of measurements."""
_REACHES = tuple(reach.value for reach in Reach)
_TONES = {row.tag: Tone(row.tone) for row in TABLE.values() if row.tag} | dict.fromkeys(_REACHES, Tone.UNKNOWN)
_ORDER = list(dict.fromkeys(["fail", "interrupted", "broke", *_REACHES, "incomplete", "warn", "note"]))


def fleet_document(report: FleetReport) -> doc.Document:
    """Return the document of a fleet report."""
    run = report.fabric.run if report.fabric else None
    of_nodes = () if report.comparison is None else comparison_banners(report.comparison)
    of_run = bench_banners(run) if run and not report.comparison else ()
    return doc.Document(
        command="egmctl bringup" if report.fabric else "egmctl fleet",
        subject=f"{several(len(report.asked.nodes), 'node')} {report.folded}",
        facts=tuple(_facts(report)),
        banners=(*of_nodes, *of_run),
        body=tuple(_body(report)),
    )


def _body(report: FleetReport) -> Iterator[doc.DocumentBlock]:
    yield from answer(report)
    causes = doc.Section("Causes", tuple(doc.limited(_all_causes(report), CAUSES_SHOWN)))
    on_page = replace(causes, title="What to do, the worst first", level=Level.PAGE)
    if any(answer.gpus for answer in report.answers):
        answers = ordered(report.answers)
        drawing = doc.Diagram(partial(trays, report, answers), lines=partial(tray_lines, answers))
        yield replace(drawing, paged=False)
        large = len(answers) > NODES_WITH_GPUS
        title = "Nodes" if large else "GPUs by node"
        if is_rack(answers):
            title = "Rack, front view"
        picture = doc.Section(title, (drawing,), level=Level.PAGE)
        # A page of many nodes begins with the few that need something.
        yield from (on_page, picture) if large else (picture, replace(on_page, beside=True))
    else:
        yield on_page
    by = f"{_by(report)}; files in {report.folder}" if report.launcher else _by(report)
    names = f"{several(len(report.asked.nodes), 'node')} {report.folded}"
    yield replace(doc.Paragraph(f"{names} {by}", tone=Tone.DIM), paged=False)
    yield replace(causes, paged=False)
    run = report.fabric.run if report.fabric else None
    if run is not None:
        fabric = partial(part, partial(bench_document, run))
        is_good = run.answer.state in (State.GOOD, State.WARN)
        yield doc.Section("Fabric", fabric, folded=is_good, note=tally(run), level=Level.VERBOSE)
    if report.comparison is not None:
        yield doc.Section("Who deviates in versions", partial(_versions, report.comparison), level=Level.PAGE)
        yield doc.Section(SPEED, partial(speed_by_node, report.comparison), level=Level.PAGE)
        compared = report.comparison.answer
        title, note = f"Compared: {heading(report.comparison)}", f"{compared.word}: {compared.sentence}"
        yield doc.Section(title, tuple(_own(compare_document(report.comparison))), folded=True, note=note)
    groups = partial(map, _group, report.groups, count())
    note = f"{several(len(report.groups), 'group')}: what each node found"
    yield doc.Section("Nodes that are alike", groups, note=note, level=Level.VERBOSE)


def _facts(report: FleetReport) -> Iterator[str]:
    """Yield when the nodes were asked, what for, how many answered and how long the slowest took, and the folder."""
    yield time_words(report.started_at)
    yield _by(report)
    asked = len(report.asked.nodes)
    took = max((node.duration_s or 0.0 for node in report.answers), default=0.0)
    answered = sum(node.reach is Reach.ANSWERED for node in report.answers)
    yield f"{answered} of {asked} answered{f' in {took:.0f} s' if took >= 1 else ''}"
    if report.folder:
        yield f"files in {report.folder}"
    yield from dict.fromkeys(node.version for node in report.answers if node.version)


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


def _own(compared: doc.Document) -> Iterator[doc.DocumentBlock]:
    """Yield the blocks of a comparison without files and advice; its findings, also among the causes, need ``-v``."""
    for block in compared.body:
        if isinstance(block, doc.Verdict):
            yield replace(block, advice="")
        elif not isinstance(block, doc.Section):
            yield block
        elif block.title not in (FILES, SPEED):
            yield replace(block, level=Level.VERBOSE) if block.title == FINDINGS else block


def answer(report: FleetReport) -> Iterator[doc.DocumentBlock]:
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
            parts.append(doc.Part(name="", word=word, tone=tone_of(state), sentence=", ".join(names)))
    words: list[str | doc.Span] = []
    for each in parts:
        words += [" \N{MIDDLE DOT} "] if words else []
        words += [doc.Span(each.word, each.tone), f": {each.sentence}"]
    yield doc.Paragraph(tuple(words) or "no node was asked", level=Level.SUMMARY, paged=not parts)
    if not any(node.gpus for node in report.answers):
        # The worst first, as on every page.
        yield doc.Parts(tuple(reversed(parts)), level=Level.PAGE)
    elif len(report.answers) > NODES_WITH_GPUS:
        short = (
            doc.Part(name=several(n, "node"), word=word, tone=tone, sentence="")
            for word, tone, n in state_counts(report)
        )
        yield doc.Parts(tuple(short), level=Level.PAGE)


def _words(line: GroupLine) -> str:
    explains = f"; explains {', '.join(line.explains)}" if line.explains else ""
    return ": ".join(filter(None, (line.key, line.value))) + explains


def _causes(report: FleetReport) -> Iterator[doc.Entry]:
    """Yield each problem once with its nodes and what to do: ordered by severity, then by the number of nodes."""
    pairs = ((line, group) for group in report.groups for line in dict.fromkeys(group.lines))
    groups = grouped((line, (line, group)) for line, group in pairs if line.status)
    counts = {line: sum(len(group.nodes) for _, group in alike) for line, alike in groups.items()}
    outside = report.readiness.outside if report.readiness is not None else frozenset()

    def rank(line: GroupLine) -> tuple[float, int]:
        status = _ORDER.index(line.status) if line.status in _ORDER else len(_ORDER)
        # What keeps GPUs out of their domain comes before the nodes that only did not answer.
        is_outside = line.status == "warn" and all(outside.issuperset(group.nodes) for _, group in groups[line])
        return (_ORDER.index("fail") + 0.5 if is_outside else status), -counts[line]

    for line in sorted(groups, key=rank):
        nodes = ",".join(group.folded for _, group in groups[line])
        remedy = common(alike.remedy for alike, _ in groups[line])
        yield _cause(report, replace(line, remedy=remedy), nodes, counts[line])


def _cause(report: FleetReport, line: GroupLine, nodes: str, number: int) -> doc.Entry:
    """Return the entry of a problem: where it is, why, and what to do."""
    names = nodes if len(nodes) <= _NAMES else several(number, "node")
    where = f"{line.place} of {names}" if line.place else names
    key = "" if line.check else line.key
    rows = [("cause", line.cause)]
    rows += [("on", f"{nodes} ({number} nodes)")] if names != nodes else []
    commands: tuple[doc.ShellCommand, ...] = ()
    if line.remedy is not None:
        rows.append(("fix", line.remedy.words))
        commands = commands_of(line.remedy)
    elif line.status in _REACHES and report.folder:
        command = f"egmctl fleet {report.asked.command} --resume {shlex.quote(report.folder)}"
        commands = (doc.ShellCommand(command, "look"),)
    effects = (("explains", ", ".join(line.explains)),) if line.explains else ()
    explains = doc.KeyValues(effects, level=Level.VERBOSE)
    body: tuple[doc.DocumentBlock, ...] = (doc.KeyValues(tuple((n, v) for n, v in rows if v)), *commands, explains)
    title = ": ".join(filter(None, (where, key, line.value)))
    return doc.Entry(line.status.upper(), _TONES.get(line.status, Tone.PLAIN), title, id=line.check, body=body)


_NAMES = 30
"""The length of folded names of nodes above which a title has their number instead."""


def _entry(line: GroupLine) -> doc.Entry:
    return doc.Entry(line.status.upper(), _TONES.get(line.status, Tone.PLAIN), _words(line))


def _group(group: NodeGroup, place: int) -> doc.Section:
    title = group.folded if len(group.nodes) == 1 else f"{group.folded}  {several(len(group.nodes), 'node')}"
    faults = sum(bool(line.status) for line in group.lines)
    note = several(faults, "problem") if faults else "no problem"
    body = tuple(map(_entry, group.lines))
    return doc.Section(title, body, folded=True, note=note, anchor=f"group-{place}", level=Level.VERBOSE)


_VERSIONS = {
    "driver_version": "Driver",
    "module_version": "Kernel module of the driver",
    "cuda_driver_version": "CUDA",
    "vbios": "GPU VBIOS",
    "firmware": "NIC firmware",
    "kernel": "Kernel",
}
"""The names of facts that should be the same in all of a rack, by the last part of their names."""


def _versions(comparison: Comparison) -> Iterator[doc.Matrix]:
    """Yield the table of versions that some nodes do not have: that of most nodes, and who deviates."""
    pairs = (
        (name, difference)
        for difference in (*comparison.machines, *comparison.words)
        if (name := _VERSIONS.get(difference.what.rpartition(" ")[2])) is not None
    )
    heads = ("", "most nodes have", "has")
    rows = [(f"{name} of {' '.join(filter(None, (d.folded, d.about)))}", d.reference, d.value) for name, d in pairs]
    yield doc.table(heads, rows)
