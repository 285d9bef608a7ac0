"""The table of the measurements that are not believed, or not all of them: why, which, and what it means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from egmctl.bench.path_class import unit_of
from egmctl.model.doubt import Doubt, DoubtReason, Effect
from egmctl.model.measurement import RunReport
from egmctl.report.document import Level, Section, Span, Tone, number, table
from egmctl.units import grouped, printable, several, shortened

_NAMED = 4
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


def doubts_section(report: RunReport) -> Iterator[Section]:
    """Yield the section with the doubts about a run, the most severe first; nothing without a doubt.

    It is folded where each measurement counts all the same.
    """
    if not report.doubts:
        return
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
            filter(None, (shortened(list(details), _NAMED) if details else "", _values(report, doubts[0])))
        )
        rows.append((_WHY.get(reason, str(reason)), shortened(list(paths), _NAMED), seen or "-", Span(means, tone)))
    doubted = len({doubt.measurement for doubt in report.doubts})
    folded = all(doubt.effect is Effect.NOTE for doubt in report.doubts)
    heads = ("why", "paths", "seen", "what it means")
    listed = table(heads, rows, wrap=("paths", "seen", "what it means"))
    note = several(doubted, "measurement")
    yield Section("Doubts", (listed,), folded=folded, note=note, level=Level.VERBOSE)


def _values(report: RunReport, doubt: Doubt) -> str:
    """Return the values that a doubt is about: ``112.0 to 447.3 GB/s in 4 attempts``."""
    if doubt.lowest is None or doubt.highest is None:
        return ""
    attempts = f" in {several(doubt.attempts, 'attempt')}" if doubt.attempts else ""
    unit = unit_of(report.measurements[doubt.measurement])
    return f"{number(doubt.lowest)} to {number(doubt.highest)} {unit}{attempts}"
