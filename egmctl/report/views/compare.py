"""The view of ``egmctl compare``: what the differences have in common, then paths, findings and facts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from xml.etree.ElementTree import Element

from egmctl.bench.suites import CASES
from egmctl.model.comparison import Affected, AttributeDifference, Comparison, Outcome, PathDifference
from egmctl.model.gpu import FAKE
from egmctl.model.record import Command
from egmctl.report import document as doc
from egmctl.report.document import Level, Tone, Words
from egmctl.report.render.page import arrows, element
from egmctl.report.views.causes import finding_entry, verdict
from egmctl.report.views.machine import time_words
from egmctl.units import format_size, grouped, several, shortened

_TONES = {Outcome.WORSE: Tone.BAD, Outcome.BETTER: Tone.GOOD, Outcome.DIFFERENT: Tone.WARN, Outcome.SAME: Tone.GOOD}
_QUANTITIES = {"GB/s": "Bandwidth", "ns": "Latency", "ms": "Handle life cycle"}
FINDINGS, FILES = "Findings", "Files"
"""The titles of two sections."""
_CASES_SHOWN = 3
_CHANGED = (Outcome.WORSE, Outcome.BETTER)
_SHOWN = 15
"""The number of differences per section shown without ``-v``."""


def compare_document(comparison: Comparison) -> doc.Document:
    """Return the document of a comparison of two files, or of several nodes."""
    times = sorted(_time(node.at) for node in comparison.nodes if node.at)
    when = f", {' to '.join(dict.fromkeys((times[0], times[-1])))}" if times else ""
    return doc.Document(
        command="egmctl compare",
        subject=arrows(heading(comparison)),
        subtitle=f"{heading(comparison)}: {several(len(comparison.nodes), 'file')}{when}",
        facts=tuple(_facts(comparison)),
        banners=tuple(banners(comparison)),
        body=tuple(_body(comparison)),
    )


def _facts(comparison: Comparison) -> Iterator[str]:
    """Yield how many files were compared, from when, and by which versions they were written."""
    times = dict.fromkeys(time_words(at) for at in sorted(node.at for node in comparison.nodes) if at)
    yield several(len(comparison.nodes), "file")
    yield from (" to ".join((*times,)[:: max(len(times) - 1, 1)]),) if times else ()
    yield from dict.fromkeys(node.tool for node in comparison.nodes if node.tool)


def banners(comparison: Comparison) -> Iterator[str]:
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


def _body(comparison: Comparison) -> Iterator[doc.Block]:
    yield verdict(comparison.answer)
    yield from _causes(comparison)
    if not comparison.of_nodes:
        yield doc.Section(f"Changes{', the slowest first' * bool(comparison.affected)}", partial(_changes, comparison))
    for unit, title in (*_QUANTITIES.items(), ("", "Other paths")):
        rows = [row for row in comparison.affected if _unit(comparison, row) == unit]
        if comparison.of_nodes or not unit:
            yield doc.Section(title, tuple(_entry(comparison, row) for row in rows))
    yield _entries(comparison, comparison.words, FINDINGS if comparison.kind is Command.DOCTOR else "Facts")
    if comparison.same:
        yield doc.Paragraph((doc.Span("SAME", Tone.GOOD), f"  {comparison.same_folded}"))
    one_sided = doc.Bullets(tuple(_one_sided(comparison)))
    yield doc.Section("Paths on one side, unstable, or over another link", (one_sided,))
    yield _entries(comparison, comparison.machines, "Machine differences")
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
    for name, alike in grouped((f"{path.name}, {_size(path)} ({path.unit})", path) for path in paths).items():
        own = median(path.value for path in alike if path.value is not None)
        usual = median(path.reference for path in alike if path.reference is not None)
        yield f"{name}: {own:.2f}, all nodes {usual:.2f}"


def _happened(comparison: Comparison, row: Affected) -> str:
    """Return how much slower or faster the paths are, or why they have no number."""
    if row.change is None:
        return "; ".join(dict.fromkeys(comparison.paths[place].reason for place in row.paths))
    return f"{100 * abs(row.change):.1f} % {'slower' if row.change > 0 else 'faster'}"


def _entries(comparison: Comparison, differences: Sequence[AttributeDifference], title: str) -> doc.Section:
    """Return a section with the differences of findings or facts; ``-v`` shows more than :data:`_SHOWN`."""
    entries = (
        doc.Entry(difference.outcome.upper(), _TONES[difference.outcome], _difference(comparison, difference))
        for difference in differences
    )
    return doc.Section(title, tuple(doc.limited(entries, _SHOWN)))


def _difference(comparison: Comparison, difference: AttributeDifference) -> str:
    subject = " ".join(filter(None, (difference.about, difference.what)))
    if comparison.of_nodes:
        return f"{difference.folded}: {subject}: {difference.value}; most: {difference.reference}"
    return f"{subject}: {difference.reference} -> {difference.value}"


def _changes(comparison: Comparison) -> Iterator[doc.Block]:
    """Yield the paths of two runs that changed, the slowest first, and how many did not change."""
    both = sorted((p for p in comparison.paths if None not in (p.change, p.reference, p.value)), key=_speed)
    changed = [path for path in both if path.outcome in _CHANGED]
    same = [path for path in both if path.outcome is Outcome.SAME]
    doubted = [path for path in both if path.outcome is Outcome.DIFFERENT]
    if changed:
        yield _diagram(changed[:_SHOWN])
    if more := changed[_SHOWN:]:
        yield doc.Hint(f"and {len(more)} more (-v)", more=True)
        yield doc.Section(f"{len(more)} more", (_diagram(more),), folded=True, level=Level.VERBOSE)
    if doubted:
        yield doc.Paragraph(f"{several(len(doubted), 'path')} not compared: the reasons are below", tone=Tone.DIM)
        yield replace(_diagram(doubted[:_SHOWN]), level=Level.VERBOSE)
        if more := doubted[_SHOWN:]:
            title, note = f"{len(more)} more not compared", "before and after"
            yield doc.Section(title, (_diagram(more),), folded=True, note=note, level=Level.VERBOSE)
    if same:
        band = f"within {100 * comparison.tolerance:g} % or 3x run-to-run noise"
        yield doc.Paragraph(f"{several(len(same), 'path')} unchanged: {band}", tone=Tone.DIM)
        note = several(len(same), "path")
        yield doc.Section("Unchanged", (_diagram(same),), folded=True, note=note, level=Level.ALL)


def _diagram(paths: Sequence[PathDifference]) -> doc.Diagram:
    cases = grouped(((path.name, f"{_size(path)} over {path.link} ({path.unit})"), path) for path in paths)
    return doc.Diagram(partial(_dumbbells, cases), lines=partial(_lines, cases))


_PLAIN = {case.name: case.description for case in CASES}
"""What a case measures, in words."""
_Cases = Mapping[tuple[str, str], Sequence[PathDifference]]
"""The paths by case, and by stage, size, links and unit."""


def _lines(cases: _Cases, width: int) -> Iterator[Words]:
    """Yield a line per path below the name of its case: both medians, the change, and the outcome."""
    rows = [(path, _values(path)) for paths in cases.values() for path in paths]
    names, values = (max(map(len, texts)) for texts in zip(*((p.path, text) for p, text in rows), strict=True))
    for heading, paths in cases.items():
        whole = ", ".join(heading)
        yield from (doc.Span(text, Tone.DIM) for text in (heading if len(whole) > width else (whole,)))
        for path in paths:
            text = f"  {path.path.ljust(names)}  {_values(path).rjust(values)}  {_percent(path)}  "
            yield text, doc.Span(path.outcome.value, _TONES[path.outcome])


def _values(path: PathDifference) -> str:
    return f"{path.reference:.2f} -> {path.value:.2f}"


def _percent(path: PathDifference) -> str:
    return f"{100 * (path.change or 0):+7.1f} %"


def _dumbbells(cases: _Cases) -> Element:
    """Return a row per path: both medians, and on a log scale the ring before, the dot after and the band of noise.

    Left is always slower, for latencies too. Coordinates are in percent, so that text and dots keep their size.
    """
    speeds = {id(path): _speed(path) for paths in cases.values() for path in paths}
    low, high = (math.log(limit) for limit in (min(0.7, *speeds.values()) / 1.05, max(1.1, *speeds.values()) * 1.05))

    def at(speed: float) -> str:
        return f"{100 * (math.log(speed) - low) / (high - low):.2f}%"

    legend = "ring: before; dot: after; grey: noise; left: slower"
    worst = min((path for paths in cases.values() for path in paths), key=_speed)
    finding = f"Before and after; the slowest is {worst.path}: {_values(worst)} {worst.unit}"
    parts = [element("title", finding), element("desc", legend), element("text", legend, x=0, y=14, class_="dim")]
    y = 34.0
    ticks = {0.25: "1/4", 0.5: "1/2", 0.75: "3/4", 1.0: "before", 1.5: "3/2", 2.0: "2x"}
    shown = (speed for speed in ticks if low <= math.log(speed) <= high)
    parts += [element("text", ticks[speed], x=at(speed), y=y, class_="dim middle") for speed in shown]
    for heading, paths in cases.items():
        y += 24
        if plain := _PLAIN.get(paths[0].case):
            parts.append(element("text", arrows(plain), x=0, y=y, class_="strong"))
        y += 32
        parts += [element("text", text, x=0, y=y + 14 * row - 14, class_="dim") for row, text in enumerate(heading)]
        for path in paths:
            y += 20
            look = {Outcome.WORSE: "worse", Outcome.BETTER: "better"}.get(path.outcome, "same")
            band, speed = min(path.bound or 0, 0.9), at(speeds[id(path)])
            x, middle = at(1 - band), y + 12
            width = f"{float(at(1 + band)[:-1]) - float(x[:-1]):.2f}%"
            words = f"{_values(path)} {path.unit} {_percent(path)}"
            title = element("title", arrows(f"{path.path}: {words}"))
            parts += [
                element("text", arrows(path.path), x=0, y=y, class_="strong"),
                element("text", arrows(words), x="100%", y=y, class_="end"),
                element("rect", x=x, y=middle - 7, width=width, height=14.0, class_="noise"),
                element("line", x1=at(1), x2=speed, y1=middle, y2=middle, class_=f"change {look}"),
                element("circle", cx=at(1), cy=middle, r=4.5, class_="before"),
                element("circle", title, cx=speed, cy=middle, r=4.5, class_=look),
            ]
            y += 18
    return element("svg", parts, class_="figure", role="img", width="100%", height=y + 8)


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
        cases = list(dict.fromkeys(path.name for path in paths))
        which = paths[0].path if len(paths) == 1 else f"{len(paths)} paths"
        yield f"{reason}: {shortened(cases, _CASES_SHOWN, 'cases')}, {which}"


def _problems(comparison: Comparison) -> Iterator[str]:
    """Return the files without a complete result, with the reasons."""
    return (f"{node.name}: {node.problem}" for node in comparison.nodes if node.problem)


def _size(path: PathDifference) -> str:
    """Return the size of a path's buffers, after the stage of a handle's life cycle."""
    return ", ".join(filter(None, (path.stage, format_size(path.size_bytes))))


def _time(at: str) -> str:
    return at.replace("T", " ").replace("+00:00", " UTC").replace("Z", " UTC")
