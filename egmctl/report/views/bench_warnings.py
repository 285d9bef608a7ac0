"""What a reader should know before trusting a number: errors that rose, other users, slowed clocks, another route."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from egmctl.model.evidence import GpuEvidence, LinkEvidence, Verdict
from egmctl.model.measurement import Measurement, RunReport
from egmctl.model.route import LinkKind
from egmctl.report.views.bench_kernel import kernel_sentences
from egmctl.units import printable
from egmctl.verdict.classes import is_degraded
from egmctl.verdict.seen import OTHERS, THROTTLED, words
from egmctl.wording import several, shortened

HARMLESS = frozenset({"applications-clocks-setting", "display-clock-setting"})
"""Clocks that somebody chose do not make a measurement wrong."""
_SHOWN = 4


def warnings(report: RunReport) -> Iterator[str]:
    """Yield a sentence for each thing that was seen, with the paths that it was seen on."""
    yield from kernel_sentences(report)
    for sentence, paths in seen(report).items():
        yield f"{sentence}: {shortened(paths, _SHOWN)}"


def seen(report: RunReport, *, causes: bool = True) -> dict[str, list[str]]:
    """Return a sentence for each thing that was seen, and the paths that it was seen on.

    Parameters
    ----------
    causes
        Also what a cause of the run tells.
    """
    found: dict[str, dict[str, None]] = {}
    told = frozenset[_Sign]() if causes else frozenset(_told(report))
    for measurement in report.measurements:
        for sentence in _of(measurement, told):
            found.setdefault(sentence, {})[f"{measurement.case} {measurement.path}"] = None
    return {sentence: list(paths) for sentence, paths in found.items()}


def route_line(report: RunReport) -> str | None:
    """Say in one sentence how often the counters showed the expected link; ``None`` if nothing was to be shown."""
    routes = [m.evidence.route for m in report.measurements if m.evidence and m.evidence.route]
    if not routes:
        return None
    proven = [route for route in routes if route.verdict is Verdict.PROVEN]
    parts = [f"{len(proven)} of {len(routes)}"] if proven else []
    if excluded := sum(route.verdict is Verdict.BY_EXCLUSION for route in routes):
        parts.append(f"{excluded} by exclusion: no other link carried the bytes")
    if unknown := sum(route.verdict is Verdict.UNKNOWN for route in routes):
        parts.append(f"{unknown} not confirmed: there are no counters")
    if refuted := sum(route.verdict is Verdict.REFUTED for route in routes):
        parts.append(f"{refuted} refuted, see the warnings")
    return f"Route confirmed by link counters: {', '.join(parts)}."


def staged_lines(report: RunReport) -> Iterator[str]:
    """Yield in a sentence for each reason how many measurements went through host memory for want of peer access."""
    reasons = Counter(
        why
        for m in report.measurements
        for why in dict.fromkeys(flow.route.staged_reason for flow in m.flows if flow.route.staged_reason)
        if m.measured
    )
    for why, count in reasons.items():
        yield f"{several(count, 'measurement')} staged through host memory: {printable(why)}"


_Sign = tuple[str, str, str]
"""What a GPU showed: the id of the finding, the GPU's label, and the finding's sentence."""


def _told(report: RunReport) -> Iterator[_Sign]:
    """Yield what the causes of a run tell of GPUs: one GPU's cause tells nothing of another one."""
    for cause in report.causes:
        finding = cause.finding
        for measurement in report.measurements if finding.check in (OTHERS, THROTTLED) else ():
            for gpu in measurement.evidence.gpus if measurement.evidence else ():
                if gpu.bus_id in finding.place.ids and words(finding.check, gpu) == finding.summary:
                    yield finding.check, gpu.label, finding.summary


def _of(measurement: Measurement, told: Collection[_Sign]) -> Iterator[str]:
    for placement in measurement.placements:
        if placement.right is False:
            yield f"memory of {placement.label} is elsewhere ({printable(placement.detail)})"
    evidence = measurement.evidence
    if measurement.measured and is_degraded(measurement):
        yield _degraded(measurement)
    if evidence is None:
        return
    for gpu in evidence.gpus:
        for name, rise in gpu.errors.items():
            yield f"{name} of {gpu.label} rose by {rise}"
        if gpu.other_processes and not _is_told(OTHERS, gpu, told):
            pids = ", ".join(map(str, gpu.other_processes[:_SHOWN]))
            yield f"other processes used {gpu.label} meanwhile ({pids})"
        slowed = sorted(set(gpu.throttle_reasons or ()) - HARMLESS)
        if slowed and not _is_told(THROTTLED, gpu, told):
            yield f"clocks of {gpu.label} throttled: {', '.join(slowed)}"
    if evidence.route is not None and evidence.route.verdict is Verdict.REFUTED:
        yield _refuted(evidence.route)


def _is_told(check: str, gpu: GpuEvidence, told: Collection[_Sign]) -> bool:
    """Say whether a cause tells this of this GPU; who uses one changes from one measurement to the next."""
    said = words(check, gpu)
    return any(
        (one, label) == (check, gpu.label) and (sentence == said or check == OTHERS) for one, label, sentence in told
    )


def _degraded(measurement: Measurement) -> str:
    route = measurement.evidence.route if measurement.evidence is not None else None
    why = next(flow.route.egm_reason for flow in measurement.flows if flow.route.degraded)
    if route is None or route.verdict in (Verdict.UNKNOWN, Verdict.REFUTED):
        carried = "no counter shows which link carried the bytes"
    else:
        how = "by its counters" if route.verdict is Verdict.PROVEN else "by exclusion"
        carried = f"{_LINKS[route.link]} carried the bytes, {how}"
    return f"degraded, not EGM ({printable(why)}); {carried}"


_LINKS = {LinkKind.NVLINK: "NVLink", LinkKind.C2C: "C2C", LinkKind.PCIE: "PCIe"}


def _refuted(route: LinkEvidence) -> str:
    if route.carried_bytes is None:
        return f"another link than {route.link} carried the bytes"
    share = 100 * route.carried_bytes / route.expected_bytes
    return f"{route.link} carried only {share:.0f} % of the bytes"
