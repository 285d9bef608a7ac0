"""What ``egmctl compare`` says: what the differences have in common, then bandwidths, latencies, findings and facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from statistics import median

from egmctl.errors import ExitCode
from egmctl.model.command import Command
from egmctl.model.comparison import Affected, AttributeDifference, Comparison, Outcome, PathDifference
from egmctl.model.gpu import FAKE
from egmctl.report.document import (
    Block,
    Bullets,
    Document,
    Entry,
    Hint,
    KeyValues,
    Level,
    Paragraph,
    Section,
    Span,
    Table,
    Tone,
    Verdict,
    Words,
    table,
)
from egmctl.report.views.causes import cause_rows
from egmctl.report.views.doctor import remedy_words
from egmctl.report.views.doctor import title as found_words
from egmctl.units import format_size, listed, natural, several, shortened

_TONES = {Outcome.WORSE: Tone.BAD, Outcome.BETTER: Tone.GOOD, Outcome.DIFFERENT: Tone.WARN, Outcome.SAME: Tone.GOOD}
_THINGS = {Command.BENCH: "path", Command.BRINGUP: "path", Command.DOCTOR: "finding"}
"""Of others facts are compared."""
_QUANTITIES = {"GB/s": "Bandwidth", "ns": "Latency", "ms": "Handle life cycle"}
FINDINGS, FILES = "Findings", "Files"
"""Titles of sections."""
_CASES_SHOWN = 3
_SHOWN = 15
"""Rows of a kind that are told without -v."""


def compare_document(comparison: Comparison) -> Document:
    """Return what differs between two runs or among many nodes."""
    times = sorted(_time(node.at) for node in comparison.nodes if node.at)
    when = f", {' to '.join(dict.fromkeys((times[0], times[-1])))}" if times else ""
    return Document(
        command="egmctl compare",
        subject=heading(comparison),
        subtitle=f"{heading(comparison)}: {several(len(comparison.nodes), 'file')}{when}",
        banners=tuple(banners(comparison)),
        body=tuple(_body(comparison)),
    )


def banners(comparison: Comparison) -> Iterator[str]:
    """Say which of the files that are compared are of no hardware, in the words that every form has."""
    nodes = comparison.nodes
    told = {
        "MODEL built from public documentation, not captured from hardware": [n.name for n in nodes if n.modelled],
        FAKE: [node.name for node in nodes if node.fake],
    }
    for words, names in told.items():
        if names:
            yield f"{words}: {comparison.folded if len(names) == len(nodes) else ', '.join(names)}"


def heading(comparison: Comparison) -> str:
    """Say what is compared."""
    who = comparison.folded if comparison.of_nodes else " -> ".join(node.name for node in comparison.nodes)
    return f"{comparison.kind} {who}"


def verdict(comparison: Comparison) -> Verdict:
    """Return in one sentence what the differences have in common."""
    counted = _counted(comparison)
    if comparison.exit_code is ExitCode.NOTHING:
        why = next(iter([*_problems(comparison), *comparison.notes]), "the files have nothing in common")
        return Verdict(word="NOT COMPARED", tone=Tone.WARN, sentence=why, advice="compare results of the same cases")
    gravest = next((one for one in Outcome if one in comparison.outcomes), Outcome.SAME)
    common, advice = _common(comparison), ""
    if gravest is Outcome.WORSE:
        where = _where_worse(comparison)
        advice = f"look for the cause with 'egmctl doctor' on {where}"
        if comparison.causes and (remedy := comparison.causes[0].finding.remedy) is not None:
            advice = remedy_words(remedy).removesuffix(".")
        if _got_busy(comparison):
            advice = "measure again when the GPUs are idle"
    return Verdict(
        word=gravest.upper(), tone=_TONES[gravest], sentence="; ".join(filter(None, (common, counted))), advice=advice
    )


def _common(comparison: Comparison) -> str:
    worse = [row for row in comparison.affected if row.outcome is Outcome.WORSE and row.change is not None]
    if comparison.of_nodes:
        bad = list(dict.fromkeys(row.node for row in worse))
        if not bad:
            return ""
        where = dict.fromkeys(row.where for row in worse)
        alike = f": {'; '.join(where)}" if len(where) <= _CASES_SHOWN else ""
        return f"only {_nodes(bad)} {'is' if len(bad) == 1 else 'are'} slower{alike}"
    if not worse:
        return ""
    busy = _got_busy(comparison)
    if comparison.touches:
        pair = _only_pair(comparison)
        ends = f"is between {listed(pair)}" if pair else f"touches {listed(comparison.touches, 'or')}"
        words = f"everything slower {ends}"
        if busy and set(comparison.touches) <= {*busy}:
            return f"{words}, which other processes used in {comparison.nodes[-1].name}"
    else:
        words = "what is slower has no GPU in common"
    return f"{words}; other processes used {listed(busy)} in {comparison.nodes[-1].name}" if busy else words


def _only_pair(comparison: Comparison) -> Sequence[str]:
    """Return the two ends that all worse paths have; none where they have not the same."""
    worse = [one for one in comparison.paths if one.outcome is Outcome.WORSE and one.change is not None]
    pairs = {frozenset((one.source, one.destination)) for one in worse}
    return sorted(next(iter(pairs)), key=natural) if len(pairs) == 1 and len(next(iter(pairs))) > 1 else ()


def _where_worse(comparison: Comparison) -> str:
    """Return on which nodes to look for the cause."""
    if not comparison.of_nodes:
        return f"the node where {comparison.nodes[-1].name} was measured"
    bad = dict.fromkeys(one.node for one in comparison.affected if one.outcome is Outcome.WORSE)
    return _nodes(list(bad)) if bad else "each node that is worse"


def _nodes(names: Sequence[str]) -> str:
    """Return the names of some nodes, and how many more there are."""
    if len(names) > _CASES_SHOWN:
        names = (*names[:_CASES_SHOWN], f"{len(names) - _CASES_SHOWN} more")
    return listed(names)


def _got_busy(comparison: Comparison) -> list[str]:
    """Return the GPUs that other processes used in the second of two runs only."""
    if comparison.of_nodes or len(comparison.nodes) != 2:
        return []
    before, after = comparison.nodes
    return [gpu for gpu in after.busy if gpu not in before.busy]


def _counted(comparison: Comparison) -> str:
    counts = {outcome: comparison.outcomes.count(outcome) for outcome in Outcome}
    thing = _THINGS.get(comparison.kind, "fact")
    told = [f"{counts[outcome]} {outcome}" for outcome in (Outcome.WORSE, Outcome.BETTER, Outcome.DIFFERENT)]
    return f"{several(comparison.compared, thing)} compared: {', '.join(told)}"


def _body(comparison: Comparison) -> Iterator[Block]:
    yield verdict(comparison)
    yield from _causes(comparison)
    for unit, title in (*_QUANTITIES.items(), ("", "Other paths")):
        rows = [row for row in comparison.affected if _unit(comparison, row) == unit]
        yield Section(title=title, body=tuple(_entry(comparison, row) for row in rows))
    yield from _told(comparison, comparison.words, FINDINGS if comparison.kind is Command.DOCTOR else "Facts")
    if comparison.same:
        yield Paragraph(words=(Span("SAME", Tone.GOOD), f"  {comparison.same_folded}"))
    if not comparison.of_nodes:
        for level, title in ((Level.VERBOSE, "Paths that differ"), (Level.ALL, "Paths that are the same")):
            yield Section(title=title, body=partial(_tables, comparison, level), level=level)
    one_sided = Bullets(items=tuple(_one_sided(comparison)))
    yield Section(title="Paths on one side, unstable, or over another link", body=(one_sided,))
    yield from _told(comparison, comparison.machines, "Machine differences", outcomes=False)
    notes = [*_problems(comparison), *comparison.notes]
    if comparison.kind in (Command.BENCH, Command.BRINGUP):
        of = "the median of the nodes" if comparison.of_nodes else "the first run"
        notes.append(
            f"shown are changes from {of} above {100 * comparison.tolerance:g} % and above 3x run-to-run noise"
        )
    yield Section(title="Notes", body=(Bullets(items=tuple(notes)),))
    files = tuple((node.name, _time(node.at) or "-", node.tool) for node in comparison.nodes)
    yield Section(title=FILES, body=(table(("file", "when", "written by"), files),), level=Level.VERBOSE)


def _causes(comparison: Comparison) -> Iterator[Entry]:
    """Yield what explains the paths that are worse, and what to do; or that nothing that was read does."""
    worse = {place for place, path in enumerate(comparison.paths) if path.outcome is Outcome.WORSE}
    for cause in comparison.causes:
        of = f"{cause.node}: " if comparison.of_nodes else ""
        rows = [*cause_rows(cause.finding), ("explains", f"{len(cause.explains)} of {len(worse)} worse paths")]
        title = (f"{of}{found_words(cause.finding)}", Span(f" [{cause.finding.check}]", Tone.DIM))
        yield Entry(word="CAUSE", tone=Tone.WARN, title=title, body=(KeyValues(rows=tuple(rows)),), level=Level.SUMMARY)
    explained = {place for cause in comparison.causes for place in cause.explains}
    if left := len(worse - explained):
        words = f"nothing that was read explains {left} of {len(worse)} worse paths"
        yield Entry(word="CAUSE", tone=Tone.UNKNOWN, title=words)


def _unit(comparison: Comparison, row: Affected) -> str:
    return comparison.paths[row.paths[0]].unit if row.change is not None else ""


def _entry(comparison: Comparison, row: Affected) -> Entry:
    paths = [comparison.paths[place] for place in row.paths]
    title = f"{row.where}: " if not comparison.of_nodes else f"{row.node}: {row.where} "
    title += _happened(comparison, row)
    if row.of > 1 or len(paths) > 1:
        title += f" ({len(paths)} of {row.of} paths)"
    numbers = comparison.of_nodes and row.change is not None
    lines = tuple(_medians(paths)) if numbers else (", ".join(row.cases),)
    body = tuple(Paragraph(words=line, tone=Tone.DIM) for line in lines)
    return Entry(word=row.outcome.upper(), tone=_TONES[row.outcome], title=title, body=body)


def _medians(paths: Iterable[PathDifference]) -> Iterator[str]:
    """Say of each case what paths of one node reach, and what those of all nodes do."""
    cases: dict[str, list[PathDifference]] = {}
    for path in paths:
        cases.setdefault(f"{_name(path)} ({path.unit})", []).append(path)
    for name, those in cases.items():
        found = median(path.value for path in those if path.value is not None)
        usual = median(path.reference for path in those if path.reference is not None)
        yield f"{name}: {found:.2f}, all nodes {usual:.2f}"


def _happened(comparison: Comparison, row: Affected) -> str:
    """Say how much slower or faster paths are, or why some have no number."""
    if row.change is None:
        return "; ".join(dict.fromkeys(comparison.paths[place].reason for place in row.paths))
    return f"{100 * abs(row.change):.1f} % {'slower' if row.change > 0 else 'faster'}"


def _told(
    comparison: Comparison, differences: Sequence[AttributeDifference], title: str, *, outcomes: bool = True
) -> Iterator[Section]:
    """Yield findings or facts: the first ones, and with -v the others."""

    def block(those: Sequence[AttributeDifference], level: Level) -> tuple[Block, ...]:
        if not outcomes:
            return (Bullets(items=tuple(_difference(comparison, one) for one in those), level=level),)
        return tuple(
            Entry(word=one.outcome.upper(), tone=_TONES[one.outcome], title=_difference(comparison, one), level=level)
            for one in those
        )

    body = block(differences[:_SHOWN], Level.NORMAL)
    if further := differences[_SHOWN:]:
        more = Hint(words=f"and {len(further)} more (-v)", more=True)
        body = (*body, more, *block(further, Level.VERBOSE))
    yield Section(title=title, body=body)


def _difference(comparison: Comparison, one: AttributeDifference) -> Words:
    subject = " ".join(filter(None, (one.about, one.what)))
    if comparison.of_nodes:
        return f"{one.folded}: {subject}: {one.value}; most: {one.reference}"
    return f"{subject}: {one.reference} -> {one.value}"


def _tables(comparison: Comparison, level: Level) -> Iterator[Table]:
    """Yield a table for each case in which one run is against another: what differs, or what is the same."""
    first, second = (node.name for node in comparison.nodes)
    numbers = (first, second, "change")
    cases: dict[str, list[PathDifference]] = {}
    for path in comparison.paths:
        both = path.reference is not None and path.value is not None
        if both and (path.outcome is Outcome.SAME) is (level is Level.ALL):
            cases.setdefault(f"{_name(path)} over {path.link} ({path.unit})", []).append(path)
    for name, paths in cases.items():
        yield table(("", *numbers, "outcome"), map(_row, paths), right=numbers, caption=name)


def _row(path: PathDifference) -> tuple[Words, ...]:
    unstable = path.outcome is Outcome.DIFFERENT and path.reason.startswith("unstable")
    word = Span("unstable" if unstable else path.outcome.value, _TONES[path.outcome])
    numbers = f"{path.reference:.2f}", f"{path.value:.2f}", f"{100 * (path.change or 0):+.1f} %"
    return path.path, *numbers, word


def _one_sided(comparison: Comparison) -> Iterator[str]:
    """Say what a reader of paths has to know: which have no number on one side, or an unstable one, or another link.

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
        cases = list(dict.fromkeys(path.name for path in paths))
        which = paths[0].path if len(paths) == 1 else f"{len(paths)} paths"
        yield f"{reason}: {shortened(cases, _CASES_SHOWN, 'cases')}, {which}"


def _problems(comparison: Comparison) -> Iterator[str]:
    """Say which files have no result, or only a part of one."""
    return (f"{node.name}: {node.problem}" for node in comparison.nodes if node.problem)


def _name(path: PathDifference) -> str:
    stage = f", {path.stage}" if path.stage else ""
    return f"{path.name}{stage}, {format_size(path.size_bytes)}"


def _time(at: str) -> str:
    return at.replace("T", " ").replace("+00:00", " UTC").replace("Z", " UTC")
