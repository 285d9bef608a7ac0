"""Words that the answers share: the next step for a finding, and what a cause explains in a run."""

from __future__ import annotations

from collections.abc import Iterable

from egmctl.model.answer import Cause, Clauses, Gap
from egmctl.model.doubt import Doubt, DoubtReason
from egmctl.model.finding import Finding, WaiverKind
from egmctl.model.measurement import Measurement, RunReport
from egmctl.model.route import LinkKind
from egmctl.units import several


def advice(finding: Finding) -> str:
    """Return the next step for a finding, without a full stop."""
    if finding.remedy is None:
        return "see what it is about with 'egmctl doctor'"
    return finding.remedy.words.removesuffix(".")


_STEPS = {WaiverKind.NO_ROOM: "free memory there, then run it again"}
"""The next step for measurements that were not made, by the kind of the reason."""


def to_measure(report: RunReport, gap: Gap) -> str | None:
    """Return the next step for a gap whose measurements were all waived for the same kind of reason; ``None``: it has
    none of its own."""
    kinds = {waiver.kind for number in gap.measurements for waiver in report.measurements[number].waivers}
    return _STEPS.get(next(iter(kinds))) if len(kinds) == 1 else None


def cause_words(report: RunReport | None, cause: Cause) -> Clauses:
    """Return a sentence with a cause and the number of paths and measurements that it explains."""
    measurements = [] if report is None else [report.measurements[number] for number in cause.measurements]
    missed = [m for m in measurements if m.missed_path]
    measured = _paths(m for m in measurements if m.measured and not m.missed_path)
    broke = _paths(m for m in measurements if not m.measured and not m.missed_path)
    parts = [cause.title]
    if measured and all(map(crosses_unknown_links, measurements)):
        parts.append(f"the links of {several(len(measured), 'path')} are unknown")
    elif measured:
        parts.append(f"explains {several(len(measured), 'path')}")
    if broke:
        parts.append(f"{several(len(broke), 'path')} broke")
    if missed:
        parts.append(f"{several(len(missed), 'measurement')} not made")
    return Clauses.of(*parts)


def first_causes(report: RunReport | None, causes: Iterable[Cause], most: int = 2) -> Clauses:
    """Return the words for the first ``most`` causes, and the number of the others."""
    first = [cause_words(report, cause) for cause in causes]
    more = [f"and {several(len(first) - most, 'more cause')}"] if len(first) > most else []
    return Clauses.of("", *first[:most], *more)


def doubt_words(report: RunReport, doubt: Doubt) -> str:
    """Return what is doubted of a measurement: ``GPU0 -> GPU1: 112 to 447 GB/s in 4 attempts``."""
    measurement = report.measurements[doubt.measurement]
    return f"{measurement.path}: {_doubt(doubt, measurement.quantity.unit)}"


def _doubt(doubt: Doubt, unit: str) -> str:
    values = f"{doubt.lowest or 0:.0f} to {doubt.highest or 0:.0f} {unit}"
    attempts = several(doubt.attempts or 1, "attempt")
    match doubt.reason:
        case DoubtReason.UNSTABLE:
            return f"{values}, unstable after {attempts}"
        case DoubtReason.WORST_SAMPLE:
            return f"{values} in {attempts}"
        case DoubtReason.ATTEMPTS_DIFFER:
            return f"medians of {values} in {attempts}"
        case DoubtReason.PLACEMENT:
            return f"memory on another NUMA node ({doubt.detail})"
        case DoubtReason.ROUTE:
            return f"the bytes did not go over {doubt.detail}, by the counters of the links"
        case DoubtReason.TOO_FAST:
            return f"{doubt.highest or 0:.0f} {unit}, more than the {doubt.bound or 0:.0f} of its link"
        case DoubtReason.DEGRADED:
            return "its EGM route is blocked; another one was measured"
        case _:
            return f"{doubt.reason.value.replace('-', ' ')}{f': {doubt.detail}' if doubt.detail else ''}"


def crosses_unknown_links(measurement: Measurement) -> bool:
    """Return whether a route of a measurement contains an unknown link."""
    return any(hop.link is LinkKind.UNKNOWN for flow in measurement.flows for hop in flow.route.hops)


def _paths(measurements: Iterable[Measurement]) -> frozenset[str]:
    return frozenset(m.path for m in measurements)
