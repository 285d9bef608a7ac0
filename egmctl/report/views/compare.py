"""The view of ``egmctl compare``: what the differences have in common, then paths, findings and facts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from textwrap import wrap
from xml.etree.ElementTree import Element

from egmctl.model.comparison import Affected, AttributeDifference, Comparison, Outcome, PathDifference
from egmctl.model.gpu import FAKE
from egmctl.model.record import Command
from egmctl.report import document as doc
from egmctl.report.document import Better, Level, Tone, Words
from egmctl.report.render.page import arrows, element
from egmctl.report.views.bench_classes import plain_case
from egmctl.report.views.findings import finding_entry, verdict
from egmctl.report.views.machine import time_words
from egmctl.units import fold, format_size, grouped, natural, several

_TONES = {Outcome.WORSE: Tone.BAD, Outcome.BETTER: Tone.GOOD, Outcome.DIFFERENT: Tone.WARN, Outcome.SAME: Tone.GOOD}
_OF_MACHINES = {**_TONES, Outcome.DIFFERENT: Tone.PLAIN}
"""The tones of facts of the machines: what is neither better nor worse counts for nothing in the answer."""
_QUANTITIES = {"GB/s": "Bandwidth", "ns": "Latency", "ms": "Handle life cycle"}
FINDINGS, FILES, SPEED = "Findings", "Files", "Speed by node"
"""The titles of sections."""
_NODES_SHOWN = 40
"""The number of nodes that differ which the picture of many nodes shows."""
_CASES_SHOWN = 3
_CHANGED = (Outcome.WORSE, Outcome.BETTER)
_SHOWN = 15
"""The number of differences per section shown without ``-v``."""


def compare_document(comparison: Comparison) -> doc.Document:
    """Return the document of a comparison of two files, or of several nodes."""
    times = sorted(_time(node.at) for node in comparison.nodes if node.at)
    when = ""
    if times:
        when = f", {times[0]}" if times[0] == times[-1] else f", {times[0]} to {times[-1]}"
    return doc.Document(
        command="egmctl compare",
        subject=arrows(heading(comparison)),
        subtitle=f"{heading(comparison)}: {several(len(comparison.nodes), 'file')}{when}",
        facts=tuple(_facts(comparison)),
        banners=tuple(comparison_banners(comparison)),
        body=tuple(_body(comparison)),
    )


def _facts(comparison: Comparison) -> Iterator[str]:
    """Yield how many files were compared, from when, and by which versions they were written."""
    times = [time_words(at) for at in sorted(node.at for node in comparison.nodes) if at]
    yield several(len(comparison.nodes), "file")
    if times:
        yield times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}"
    yield from dict.fromkeys(node.tool for node in comparison.nodes if node.tool)


def comparison_banners(comparison: Comparison) -> Iterator[str]:
    """Yield banners that name the compared files that are not from hardware."""
    nodes = comparison.nodes
    warnings = {
        "MODEL built from public documentation, not captured from hardware": [n.name for n in nodes if n.modelled],
        FAKE: [node.name for node in nodes if node.fake],
    }
    for words, names in warnings.items():
        if names:
            yield f"{words}: {comparison.folded if len(names) == len(nodes) else ', '.join(names)}"


def heading(comparison: Comparison) -> str:
    """Return the title: the command and the compared files or nodes."""
    names = comparison.folded if comparison.of_nodes else " -> ".join(node.name for node in comparison.nodes)
    return f"{comparison.kind} {names}"


def _body(comparison: Comparison) -> Iterator[doc.DocumentBlock]:
    yield verdict(comparison.answer)
    yield from _causes(comparison)
    if comparison.of_nodes:
        yield doc.Section(SPEED, partial(speed_by_node, comparison), level=Level.PAGE)
    else:
        title = "Changes, the slowest first" if comparison.affected else "Changes"
        yield doc.Section(title, partial(_changes, comparison))
    for unit, title in (*_QUANTITIES.items(), ("", "Other paths")):
        rows = [row for row in comparison.affected if _unit(comparison, row) == unit]
        if comparison.of_nodes or not unit:
            yield doc.Section(title, tuple(_entry(comparison, row) for row in rows))
    yield _entries(comparison, comparison.words, FINDINGS if comparison.kind is Command.DOCTOR else "Facts", _TONES)
    if comparison.same:
        yield doc.Paragraph((doc.Span("SAME", Tone.GOOD), f"  {comparison.same_folded}"))
    one_sided = doc.Bullets(tuple(_one_sided(comparison)))
    yield doc.Section("Paths on one side, unstable, or over another link", (one_sided,))
    yield _entries(comparison, comparison.machines, "Machine differences", _OF_MACHINES)
    notes = [*_problems(comparison), *comparison.notes]
    if comparison.kind in (Command.BENCH, Command.BRINGUP) and comparison.of_nodes:
        above = f"above {100 * comparison.tolerance:g} % and above 3x run-to-run noise"
        notes.append(f"shown are changes from the median of the nodes {above}")
    yield doc.Section("Notes", (doc.Bullets(tuple(notes)),))
    files = tuple((node.name, _time(node.at) or "-", node.tool) for node in comparison.nodes)
    yield doc.Section(
        FILES,
        (doc.table(("file", "when", "written by"), files),),
        folded=True,
        note=f"{len(files)}",
        level=Level.VERBOSE,
    )


def _causes(comparison: Comparison) -> Iterator[doc.Entry]:
    """Yield the causes of worse paths with their remedies, then the number of worse paths without a known cause."""
    worse = {place for place, path in enumerate(comparison.paths) if path.outcome is Outcome.WORSE}
    for cause in comparison.causes:
        node = f"{cause.node}: " if comparison.of_nodes else ""
        explained = worse.intersection(cause.explains)
        count = f"{len(explained)} of {len(worse)} worse paths" if explained else several(len(cause.explains), "path")
        rows = [("explains", count)]
        words = f"{node}{cause.finding.title}"
        yield finding_entry(cause.finding, words, word="CAUSE", tone=Tone.WARN, rows=rows)
    explained = {place for cause in comparison.causes for place in cause.explains}
    if left := len(worse - explained):
        words = f"nothing that was read explains {left} of {len(worse)} worse paths"
        yield doc.Entry("CAUSE", Tone.UNKNOWN, words)


def _unit(comparison: Comparison, row: Affected) -> str:
    return comparison.paths[row.paths[0]].unit if row.change is not None else ""


def _entry(comparison: Comparison, row: Affected) -> doc.Entry:
    paths = [comparison.paths[place] for place in row.paths]
    title = f"{row.where}: " if not comparison.of_nodes else f"{row.node}: {row.where} "
    title += _happened(comparison, row)
    if row.of > 1 or len(paths) > 1:
        title += f" ({len(paths)} of {row.of} paths)"
    numbers = comparison.of_nodes and row.change is not None
    lines = tuple(_medians(paths)) if numbers else (", ".join(row.cases),)
    body = tuple(doc.Paragraph(line, tone=Tone.DIM) for line in lines)
    return doc.Entry(row.outcome.upper(), _TONES[row.outcome], title, body=body)


def _medians(paths: Iterable[PathDifference]) -> Iterator[str]:
    """Yield for each case the median over the paths of one node, and that of all nodes."""
    for (plain, name, unit), alike in grouped(
        ((plain_case(path.case), f"{path.name}, {_size(path)}", path.unit), path) for path in paths
    ).items():
        own = median(path.value for path in alike if path.value is not None)
        usual = median(path.reference for path in alike if path.reference is not None)
        yield f"{plain}: {own:.2f} {unit}, all nodes {usual:.2f} ({name})"


def _happened(comparison: Comparison, row: Affected) -> str:
    """Return how much slower or faster the paths are, or why they have no number."""
    if row.change is None:
        return "; ".join(dict.fromkeys(comparison.paths[place].reason for place in row.paths))
    return f"{100 * abs(row.change):.1f} % {'slower' if row.change > 0 else 'faster'}"


def _entries(
    comparison: Comparison, differences: Sequence[AttributeDifference], title: str, tones: Mapping[Outcome, Tone]
) -> doc.Section:
    """Return a section with the differences of findings or facts; ``-v`` shows more than :data:`_SHOWN`."""
    entries = (
        doc.Entry(each.outcome.upper(), tones[each.outcome], each.words(of_nodes=comparison.of_nodes))
        for each in differences
    )
    shown = [*entries]
    more = shown[_SHOWN:]
    hint = (doc.Hint(f"and {len(more)} more (-v)", more=True),) if more else ()
    rest = doc.Section(f"{len(more)} more", tuple(more), folded=True, level=Level.VERBOSE)
    return doc.Section(title, (*shown[:_SHOWN], *hint, rest))


def speed_by_node(comparison: Comparison) -> Iterator[doc.Matrix]:
    """Yield the matrix of nodes by class of paths, the nodes with the most problems first, and one row for the others.

    The matrix is empty if no node differs.
    """
    shares: dict[str, dict[tuple[str, ...], list[PathDifference]]] = {}
    for path in comparison.paths:
        if path.slower is not None and path.outcome is not Outcome.SAME:
            shares.setdefault(path.node, {}).setdefault(_class_name(path), []).append(path)
    classes = sorted({name for of_node in shares.values() for name in of_node})
    nodes = sorted(shares, key=lambda node: (-len(shares[node]), natural(node)))
    # A path without a number is not known to be within the bound.
    unknown = {(path.node, _class_name(path)) for path in comparison.paths if path.slower is None}
    incomplete = {node for node, _ in unknown}
    more = nodes[_NODES_SHOWN:]
    others = [node.name for node in comparison.nodes if not node.problem and node.name not in {*shares, *incomplete}]
    rows = nodes[:_NODES_SHOWN]
    if shares and others:
        rows.append(others[0] if len(others) == 1 else f"{len(others)} others")
    notes = ["100: within the bound; the classes in which no node differs are not shown"]
    notes += [f"and {several(len(more), 'more node')} that differ: {fold(more)}"] if more else []
    yield doc.grid(
        "Share of what all nodes reach, by node and class of paths (%)",
        [
            (node, {name: _share(shares.get(node, {}).get(name), (node, name) in unknown) for name in classes})
            for node in rows
        ],
        notes=notes,
        better=Better.HIGH,
    )


def _class_name(path: PathDifference) -> tuple[str, ...]:
    return (*plain_case(path.case).split(", ", 1), *filter(None, (str(path.point),)), path.link)


def _share(paths: Sequence[PathDifference] | None, is_unknown: bool) -> doc.Cell:
    if paths is None:
        return doc.Cell("-") if is_unknown else doc.Cell("100", value=100.0)
    share = 100 * median(_speed(path) for path in paths)
    worse = any(path.outcome is Outcome.WORSE for path in paths)
    tone, mark = (Tone.BAD, "!") if worse else (Tone.PLAIN, "")
    return doc.Cell(f"{share:.0f}", tone, mark, value=max(share, 0.1))


def _changes(comparison: Comparison) -> Iterator[doc.DocumentBlock]:
    """Yield the paths of two runs that changed, the slowest first, and how many did not change."""
    both = sorted((p for p in comparison.paths if None not in (p.change, p.reference, p.value)), key=_speed)
    changed = [path for path in both if path.outcome in _CHANGED]
    same = [path for path in both if path.outcome is Outcome.SAME]
    doubted = [path for path in both if path.outcome is Outcome.DIFFERENT]
    if changed:
        yield _diagram(changed[:_SHOWN])
    if more := changed[_SHOWN:]:
        yield doc.Hint(f"and {len(more)} more (-v)", more=True)
        yield doc.Section(f"{len(more)} more", (_diagram(more, folded=True),), folded=True, level=Level.VERBOSE)
    if doubted:
        words = f"{several(len(doubted), 'path')} different, neither worse nor better: the reasons are below"
        yield doc.Paragraph(words, tone=Tone.DIM)
        yield replace(_diagram(doubted[:_SHOWN]), level=Level.VERBOSE)
        if more := doubted[_SHOWN:]:
            title, note = f"{len(more)} more different", "before and after"
            yield doc.Section(title, (_diagram(more, folded=True),), folded=True, note=note, level=Level.VERBOSE)
    if same:
        band = f"within {100 * comparison.tolerance:g} % or 3x run-to-run noise"
        yield doc.Paragraph(f"{several(len(same), 'path')} unchanged: {band}", tone=Tone.DIM)
        note = several(len(same), "path")
        yield doc.Section("Unchanged", (_diagram(same, folded=True),), folded=True, note=note, level=Level.ALL)


def _diagram(paths: Sequence[PathDifference], *, folded: bool = False) -> doc.Diagram:
    """Return the picture of paths; what is folded has one for all screens, which halves its bytes."""
    cases = grouped((_heading(path), path) for path in paths)
    wide, narrow = partial(_dumbbells, cases), partial(_dumbbells, cases, phone=True)
    lines = partial(_lines, cases)
    return doc.Diagram(narrow, lines=lines) if folded else doc.Diagram(wide, narrow=narrow, lines=lines)


def _heading(path: PathDifference) -> tuple[str, str]:
    """Return what a path's case measures in plain words, and its name with the point, the size and the links."""
    return plain_case(path.case), f"{path.name}, {_size(path)} over {path.link} ({path.unit})"


_Cases = Mapping[tuple[str, str], Sequence[PathDifference]]
"""The paths by heading."""


def _lines(cases: _Cases, width: int) -> Iterator[Words]:
    """Yield a line per path below the name of its case: both medians, the change, and the outcome."""
    rows = [(path, _values(path)) for paths in cases.values() for path in paths]
    names, values = (max(map(len, texts)) for texts in zip(*((p.path, text) for p, text in rows), strict=True))
    for heading, paths in cases.items():
        yield heading[0]
        yield from (doc.Span(f"  {text}", Tone.DIM) for text in wrap(heading[1], width - 2, break_on_hyphens=False))
        for path in paths:
            text = f"  {path.path.ljust(names)}  {_values(path).rjust(values)}  {_percent(path)}  "
            yield text, doc.Span(path.outcome.value, _TONES[path.outcome])


def _values(path: PathDifference) -> str:
    return f"{path.reference:.2f} -> {path.value:.2f}"


def _percent(path: PathDifference) -> str:
    return f"{100 * (path.change or 0):+7.1f} %"


_STRIP, _VALUES = (24.0, 72.0), 90.0
"""Where the strip of a row begins and ends, and where its values end, in percent of the width; a phone has them below
each other."""


def _dumbbells(cases: _Cases, *, phone: bool = False) -> Element:
    """Return a row per path: both medians, and on a log scale the ring before, the dot after and the band of noise.

    Left is always slower, for latencies too. Coordinates are in percent, so that text and dots keep their size.
    """
    speeds = {id(path): _speed(path) for paths in cases.values() for path in paths}
    low, high = (math.log(limit) for limit in (min(0.7, *speeds.values()) / 1.05, max(1.1, *speeds.values()) * 1.05))
    start, end = (0.0, 100.0) if phone else _STRIP

    def at(speed: float) -> str:
        return f"{start + (end - start) * (math.log(speed) - low) / (high - low):.2f}%"

    legend = "ring: before; dot: after; grey: noise; left: slower"
    worst = min((path for paths in cases.values() for path in paths), key=_speed)
    finding = f"Before and after; the slowest is {worst.path}: {_values(worst)} {worst.unit}"
    parts = [
        element("title", arrows(finding)),
        element("desc", legend),
        element("text", legend, x=0, y=14, class_="dim"),
    ]
    y = 34.0
    ticks = {0.25: "1/4", 0.5: "1/2", 0.75: "3/4", 1.0: "before", 1.5: "3/2", 2.0: "2x"}
    shown = (speed for speed in ticks if low <= math.log(speed) <= high)
    parts += [element("text", ticks[speed], x=at(speed), y=y, class_="dim middle") for speed in shown]
    for (plain, case), paths in cases.items():
        y += 28
        for text, look in ((plain, "strong"), (case, "dim")):
            for line in wrap(text, _PHONE_COLUMNS) if phone else [text]:
                parts.append(element("text", arrows(line), x=0, y=y, class_=look))
                y += 15
        y -= 15
        for path in paths:
            y += 20 if phone else 22
            look = {Outcome.WORSE: "worse", Outcome.BETTER: "better"}.get(path.outcome, "same")
            band, speed = min(path.bound or 0, 0.9), at(speeds[id(path)])
            x, middle = at(1 - band), y + 12 if phone else y - 4
            width = f"{float(at(1 + band)[:-1]) - float(x[:-1]):.2f}%"
            values, percent = f"{_values(path)} {path.unit}", _percent(path).strip()
            title = None if phone else element("title", arrows(f"{path.path}: {values} {percent}"))
            said = [(f"{values} {percent}", "100%")] if phone else [(values, f"{_VALUES}%"), (percent, "100%")]
            parts += [
                element("text", arrows(path.path), x=0 if phone else 12, y=y),
                *(element("text", arrows(text), x=place, y=y, class_="end") for text, place in said),
                element("rect", x=x, y=middle - 7, width=width, height=14.0, class_="noise"),
                element("line", x1=at(1), x2=speed, y1=middle, y2=middle, class_=f"change {look}"),
                element("circle", cx=at(1), cy=middle, r=4.5, class_="before"),
                element("circle", title, cx=speed, cy=middle, r=4.5, class_=look),
            ]
            y += 18 if phone else 0
    return element("svg", parts, class_="figure", role="img", width="100%", height=y + 8)


_PHONE_COLUMNS = 42
"""The number of characters of small text that a phone shows in a line."""


def _speed(path: PathDifference) -> float:
    """Return the speed after as a part of the speed before; for a latency that is before / after."""
    ratio = 1 + (path.change or 0)
    return ratio if path.unit == "GB/s" else 1 / ratio


def _one_sided(comparison: Comparison) -> Iterator[str]:
    """Yield the paths with a number on one side only, with an unstable number or with different links.

    Paths with the same reason share a line.
    """
    by_reason: dict[tuple[str, str], list[PathDifference]] = {}
    for path in comparison.paths:
        both = path.value is not None and path.reference is not None
        if path.reason and (both or path.outcome is Outcome.DIFFERENT):
            by_reason.setdefault((path.node if comparison.of_nodes else "", path.reason), []).append(path)
    for (_, reason), paths in by_reason.items():
        cases = list(dict.fromkeys(plain_case(path.case) for path in paths))
        which = paths[0].path if len(paths) == 1 else f"{len(paths)} paths"
        # Their names have commas.
        more = len(cases) - _CASES_SHOWN
        names = cases[:_CASES_SHOWN]
        if more > 0:
            names = [*names, several(more, "more case")]
        yield f"{reason}: {which}: {'; '.join(names)}"


def _problems(comparison: Comparison) -> Iterator[str]:
    """Return the files without a complete result, with the reasons."""
    return (f"{node.name}: {node.problem}" for node in comparison.nodes if node.problem)


def _size(path: PathDifference) -> str:
    """Return the size of a path's buffers, after the stage of a handle's life cycle."""
    return ", ".join(filter(None, (path.stage, format_size(path.size_bytes))))


def _time(at: str) -> str:
    return at.replace("T", " ").replace("+00:00", " UTC").replace("Z", " UTC")
