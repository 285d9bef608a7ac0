"""Why numbers of a run are low or not believed: its causes with what each costs and explains, and its doubts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from egmctl.bench.path_class import unit_of
from egmctl.model.answer import Cause
from egmctl.model.doubt import Doubt, DoubtReason, Effect
from egmctl.model.finding import Finding
from egmctl.model.measurement import Measurement, RunReport
from egmctl.model.task import Quantity
from egmctl.report.document import Entry, Hint, Level, Section, Span, Tone, Words, limited, number, table
from egmctl.report.views.bench_classes import plain_name
from egmctl.report.views.findings import TONES, explained_words, finding_entry
from egmctl.units import grouped, printable, several, shortened

CAUSES = 3
"""The number of causes shown without ``-v``."""
COSTS = 3
"""The number of classes of paths for which the cost of a cause is shown."""
EXPLAINED = 2
"""The number of findings that are named where a cause explains them; doctor has all."""
PATHS = 3
"""The number of paths named per cause."""
_ENDS = ("paths", "broke", "not made")
"""The rows of a cause: slow paths, paths that broke, and paths that were not measured as planned."""


def _end(measurement: Measurement) -> str:
    if measurement.missed_path:
        return "not made"
    return "paths" if measurement.measured else "broke"


def _explained(report: RunReport | None, cause: Cause) -> list[Measurement]:
    return [] if report is None else [report.measurements[number] for number in cause.measurements]


def _paths(measurements: Iterable[Measurement], end: str) -> list[str]:
    return list(dict.fromkeys(m.path for m in measurements if _end(m) == end))


def cause_entries(report: RunReport) -> Iterator[Entry | Hint]:
    """Yield the entries of a run's causes. The first one omits the text of its remedy, which the answer contains."""
    entries = (cause_entry(report, cause, "CAUSE", fix=place > 0) for place, cause in enumerate(report.causes))
    return limited(entries, CAUSES, "cause", Level.SUMMARY)


def cause_entry(
    report: RunReport | None,
    cause: Cause,
    word: str,
    *,
    fix: bool,
    with_cause: bool = True,
    findings: Iterable[Finding] = (),
) -> Entry:
    """Return the entry of a cause, with what it costs, and the paths and the findings that it explains.

    Parameters
    ----------
    word
        The word shown for its status.
    fix, with_cause
        Whether to show the remedy's text and the finding's cause.
    findings
        The findings of doctor, of which it may explain some.
    """
    measurements = _explained(report, cause)
    lists = {end: _paths(measurements, end) for end in _ENDS}
    rows: list[tuple[str, Words]] = [("costs", words) for words in ([] if report is None else costs(report, cause))]
    rows += [(name, shortened(items, PATHS)) for name, items in lists.items() if items]
    check, place = cause.finding.check, cause.finding.place
    own = [each for each in findings if check in each.explained_by and each.check in cause.finding.explains]
    explained = [each for each in own if place.meets(each.place)]
    rows += [("explains", explained_words(each)) for each in explained[:EXPLAINED]]
    if more := len(explained[EXPLAINED:]):
        rows.append(("explains", f"and {several(more, 'more finding')}"))
    tone = TONES[cause.status]
    return finding_entry(cause.finding, cause.title, word=word, tone=tone, cause=with_cause, fix=fix, rows=rows)


def costs(report: RunReport, cause: Cause) -> list[str]:
    """Return what a cause costs, for each class of its slow paths, the slowest first: how many, and how fast they are.

    Only classes with an expected value have a cost.
    """
    chosen = frozenset(cause.measurements)
    lines: list[tuple[float, str]] = []
    for entry in () if report.verdict is None else report.verdict.classes:
        slow = [m for n in entry.measurements if n in chosen and (m := report.measurements[n]).headline is not None]
        if not entry.expected or not slow or any(m.missed_path for m in slow):
            continue
        shares = [m.headline.median / entry.expected for m in slow if m.headline is not None]
        worst = min(shares) if slow[0].quantity is Quantity.BANDWIDTH else max(shares)
        low, high = (f"{100 * share:.0f}" for share in (min(shares), max(shares)))
        percent = low if low == high else f"{low} to {high}"
        of_all = f"{len(slow)} of {several(len(entry.measurements), 'path')}"
        expected = f"{number(entry.expected)} {slow[0].quantity.unit}"
        lines.append((abs(1 - worst), f"{plain_name(slow[0])}: {of_all} at {percent} % of the expected {expected}"))
    return [words for _, words in sorted(lines, reverse=True)[:COSTS]]


# --- doubts -----------------------------------------------------------------------------------------------------------

_DOUBTED = 4
"""The number of paths named per doubt."""
_WHY: Mapping[DoubtReason, str] = {
    DoubtReason.UNSTABLE: "the samples vary too much",
    DoubtReason.WORST_SAMPLE: "a sample is beyond the bound of a failure",
    DoubtReason.ATTEMPTS_DIFFER: "two attempts differ",
    DoubtReason.PLACEMENT: "a buffer is not on its NUMA node",
    DoubtReason.ROUTE: "the link counters refute the route",
    DoubtReason.ROUTE_UNKNOWN: "no counter says which links carried EGM",
    DoubtReason.NO_COUNTERS: "no link counter confirms the route",
    DoubtReason.TOO_FAST: "faster than its link",
    DoubtReason.OTHER_PROCESSES: "other processes used a GPU of the path",
    DoubtReason.HOST_BUSY: "other processes kept the CPUs busy",
    DoubtReason.THROTTLED: "the clocks of a GPU were throttled",
    DoubtReason.ERRORS_ROSE: "an error counter of a GPU rose",
    DoubtReason.DEGRADED: "the EGM route is blocked, another one was measured",
    DoubtReason.UNGATED: "the time contains queueing",
    DoubtReason.UNVERIFIED: "no byte was verified",
}
_MEANS: Mapping[Effect, tuple[str, Tone]] = {
    Effect.FAIL: ("a fault", Tone.BAD),
    Effect.VOID: ("not the number of this path", Tone.UNKNOWN),
    Effect.LOW: ("may be faster than this", Tone.WARN),
    Effect.WARN: ("counts, with a warning", Tone.WARN),
    Effect.NOTE: ("counts", Tone.PLAIN),
}


def doubts_section(report: RunReport) -> Section:
    """Return the section with the doubts about a run, the most severe first.

    It is folded where each measurement counts all the same.
    """
    # A newer egmctl may know more effects; they come last.
    order = {effect: place for place, effect in enumerate(Effect)}
    alike = grouped(((doubt.effect, doubt.reason), doubt) for doubt in report.doubts)
    rows = []
    for (effect, reason), doubts in sorted(alike.items(), key=lambda item: order.get(item[0][0], len(order))):
        paths = dict.fromkeys(report.measurements[doubt.measurement].path for doubt in doubts)
        means, tone = _MEANS.get(effect, (str(effect), Tone.PLAIN))
        details = dict.fromkeys(
            printable(part) for doubt in doubts for part in doubt.details or (doubt.detail,) if part
        )
        seen = "; ".join(
            filter(None, (shortened(list(details), _DOUBTED) if details else "", _values(report, doubts[0])))
        )
        rows.append((_WHY.get(reason, str(reason)), shortened(list(paths), _DOUBTED), seen or "-", Span(means, tone)))
    doubted = len({doubt.measurement for doubt in report.doubts})
    folded = all(doubt.effect is Effect.NOTE for doubt in report.doubts)
    heads = ("why", "paths", "seen", "what it means")
    listed = table(heads, rows, wrap=("paths", "seen", "what it means"))
    note = several(doubted, "measurement")
    return Section("Doubts", (listed,), folded=folded, note=note, level=Level.VERBOSE)


def _values(report: RunReport, doubt: Doubt) -> str:
    """Return the values that a doubt is about: ``112.0 to 447.3 GB/s in 4 attempts``."""
    if doubt.lowest is None or doubt.highest is None:
        return ""
    attempts = f" in {several(doubt.attempts, 'attempt')}" if doubt.attempts else ""
    unit = unit_of(report.measurements[doubt.measurement])
    return f"{number(doubt.lowest)} to {number(doubt.highest)} {unit}{attempts}"
