"""The answer of a run: its verdict, the cause, the next step, and the most important warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from egmctl.bench.path_class import is_degraded
from egmctl.model.finding import OTHERS, THROTTLED, Status
from egmctl.model.kernel_log import LoggedFault
from egmctl.model.measurement import LinkEvidence, LinkProof, Measurement, MeasurementStatus, RunReport, Verification
from egmctl.model.profile import HealthyRuns
from egmctl.model.route import LinkKind
from egmctl.model.task import Quantity
from egmctl.model.verdict import BAD_GRADES
from egmctl.units import format_size, grouped, printable, several, shortened


def grave(report: RunReport) -> list[LoggedFault]:
    """Return the faults in the kernel log that require action by an operator, the most severe first."""
    return [fault for fault in report.logged if fault.status is not Status.PASS]


def kernel_line(report: RunReport) -> str | None:
    """Return a sentence on the harmless part of the kernel log; ``None`` if it was not watched or has only faults."""
    log = report.kernel_messages
    if log is None:
        return None
    if log.unread is not None:
        return f"Kernel log while it ran: unknown ({log.unread.detail or log.unread.reason.value})."
    parts = [fault.words for fault in report.logged if fault.status is Status.PASS]
    if log.left_out:
        parts.append(f"{log.left_out} more were not kept")
    if log.overwritten:
        parts.append("lines were overwritten before they were read")
    if not parts and grave(report):
        return None
    none = "no Xid, SXid, PCIe error or fault of the driver"
    return f"Kernel log while it ran: {'; '.join(parts) or none}."


_FEW = 3
"""The number of copy counts that are listed; for more, the range is given."""
_GATING = {"kernel": "queued behind a gate kernel", "none": "no gate: the time includes queueing"}
_VERIFICATION = {
    Verification.GPU_EVERY_SAMPLE: "verified after every sample on the GPU",
    Verification.CHECKSUM_EVERY_SAMPLE: "reads and writes alone by checksum",
    Verification.COUNTERS_EVERY_SAMPLE: "atomic additions by their answers and their counters",
    Verification.WALK_EVERY_SAMPLE: "pointer chases verified by their final index",
}


def how(report: RunReport) -> list[str]:
    """Return the settings of a run as short phrases: size, copies, samples, gating and verification."""
    settings = report.settings
    parts = [f"buffers of {format_size(settings.size_bytes)}", f"median of {several(settings.samples, 'sample')}"]
    measured = [m for m in report.measurements if m.samples]
    if copies := sorted({m.copies for m in measured if m.quantity is Quantity.BANDWIDTH}):
        times = " or ".join(map(str, copies)) if len(copies) <= _FEW else f"{copies[0]} to {copies[-1]}"
        parts.insert(1, f"copied {times} times a sample")
    parts += dict.fromkeys(_GATING[m.gating] for m in measured if m.gating in _GATING)
    parts += dict.fromkeys(_VERIFICATION[m.verification] for m in measured if m.verification)
    return parts


_CASES = 3
"""The number of slowest cases that are named."""
_PHASES = ("starting", "set_up", "warm_up", "measuring", "verifying", "tear_down", "waiting")


def where_time_went(report: RunReport) -> str | None:
    """Return a line with the time of each phase of a run and the slowest cases; ``None`` if it is unknown."""
    spent = report.seconds
    if spent is None:
        return None
    phases = ", ".join(f"{phase.replace('_', '-')} {getattr(spent, f'{phase}_s'):.2f} s" for phase in _PHASES)
    longest = sorted(spent.cases, key=lambda case: -case.sum_s)[:_CASES]
    cases = f"; longest: {', '.join(f'{case.case} {case.sum_s:.2f} s' for case in longest)}" if longest else ""
    return f"Time: {phases}{cases}."


def exceptions(report: RunReport) -> Iterator[tuple[MeasurementStatus, str, list[str]]]:
    """Yield status, reason and names of measurements that are not ``ok``: fully waived cases, otherwise paths."""
    bad = [m for m in report.measurements if m.status is not MeasurementStatus.OK]
    groups = grouped(((m.status, m.reason or ""), m) for m in bad)
    for (status, reason), members in groups.items():
        cases = list(dict.fromkeys(m.name for m in members))
        whole = status is MeasurementStatus.WAIVED and len(members) == sum(m.name in cases for m in report.measurements)
        yield status, reason, cases if whole else list(dict.fromkeys(f"{m.name} {m.path}" for m in members))


def tally(report: RunReport) -> str:
    """Return the number of measurements by status, in words."""
    counts = Counter(measurement.status for measurement in report.measurements)
    words = ", ".join(f"{counts[status]} {status}" for status in MeasurementStatus if counts[status])
    return f"{several(len(report.measurements), 'measurement')}: {words or 'none'}"


HARMLESS = frozenset({"applications-clocks-setting", "display-clock-setting"})
"""Throttle reasons that come from settings and do not invalidate a measurement."""
_SHOWN = 4


def warnings(report: RunReport) -> Iterator[str]:
    """Yield a sentence for each fault in the kernel log with its remedy, and for each warning with its paths."""
    yield from (f"logged by the kernel meanwhile: {fault.words}. {fault.remedy.words}" for fault in grave(report))
    yield from (f"{sentence}: {shortened(paths, _SHOWN)}" for sentence, paths in seen_by_bench(report).items())


def seen_by_bench(report: RunReport, *, causes: bool = True) -> dict[str, list[str]]:
    """Return the warnings in the evidence of measurements, with their paths.

    Parameters
    ----------
    causes
        Whether to include warnings that the causes of the run already report.
    """
    known = frozenset[_Sign]() if causes else frozenset(_signs(report))
    paths = grouped((words, f"{m.name} {m.path}") for m in report.measurements for words in _seen_on(m, known))
    return {words: list(dict.fromkeys(names)) for words, names in paths.items()}


def route_line(report: RunReport) -> str | None:
    """Return a sentence on how often link counters confirmed the expected route; ``None`` if none was checked."""
    counts = Counter(m.evidence.route.verdict for m in report.measurements if m.evidence and m.evidence.route)
    if not counts:
        return None
    meanings = {
        LinkProof.PROVEN: f"of {sum(counts.values())}",
        LinkProof.BY_EXCLUSION: "by exclusion: no other link carried the bytes",
        LinkProof.UNKNOWN: "not confirmed: no counters, or ones that contradict each other",
        LinkProof.REFUTED: "refuted, see the warnings",
    }
    parts = [f"{counts[verdict]} {meaning}" for verdict, meaning in meanings.items() if counts[verdict]]
    return f"Route confirmed by link counters: {', '.join(parts)}."


def false_alarms(profile: str, healthy: HealthyRuns) -> str:
    """Return a sentence on how often a profile called healthy machines slow."""
    runs, machines = several(healthy.runs, "run"), several(healthy.machines, "healthy machine")
    return f"Profile {profile}: {several(healthy.alarms, 'false alarm')} in {runs} of {machines}"


def alarm_line(report: RunReport) -> str | None:
    """Return how often the profile that calls a path slow was wrong before; ``None`` if it calls none slow."""
    verdict = report.verdict
    if verdict is None or verdict.profile is None or verdict.healthy is None:
        return None
    slow = any(path_class.by_profile in BAD_GRADES for path_class in verdict.classes)
    return false_alarms(verdict.profile, verdict.healthy) if slow else None


def egm_line(report: RunReport) -> str | None:
    """Return a sentence on EGM beside other host memory; ``None`` if no GPU read EGM memory of its own CPU."""
    if report.verdict is None or (egm := report.verdict.egm) is None:
        return None
    local = f"local {egm.local_gb_s:.1f} GB/s"
    ratios = egm.of_pinned, egm.of_system, egm.remote_of_local
    pinned, plain, far = ("not measured" if ratio is None else f"{ratio:.2f}" for ratio in ratios)
    return f"EGM by copy engines: {local}; ratio to pinned {pinned}, to plain memory {plain}; remote to local {far}."


def staged_lines(report: RunReport) -> Iterator[str]:
    """Yield for each reason the number of measurements staged through host memory without peer access."""
    reasons: Counter[str] = Counter()
    for m in report.measurements:
        if m.measured:
            staged = (flow.route.staged_reason for flow in m.flows if flow.route.staged_reason)
            reasons.update(tuple(dict.fromkeys(staged)))
    for reason, count in reasons.items():
        yield f"{several(count, 'measurement')} staged through host memory: {printable(reason)}"


_Sign = tuple[str, str]
"""A symptom of a GPU: the id of the finding, and the GPU's bus id."""


def _signs(report: RunReport) -> Iterator[_Sign]:
    """Yield the symptoms that the causes of a run report, each for the GPUs that the cause names."""
    for cause in report.causes:
        if cause.finding.check in (OTHERS, THROTTLED):
            yield from ((cause.finding.check, bus_id) for bus_id in cause.finding.place.ids)


def _seen_on(measurement: Measurement, known: Collection[_Sign]) -> Iterator[str]:
    for placement in measurement.placements:
        if placement.right is False:
            yield f"memory of {placement.label} is elsewhere ({printable(placement.detail)})"
    evidence = measurement.evidence
    route = evidence.route if evidence is not None else None
    if measurement.measured and is_degraded(measurement):
        reason = next(flow.route.egm_reason for flow in measurement.flows if flow.route.degraded)
        yield f"degraded, not EGM ({printable(reason)}); {_carried(route)}"
    for gpu in evidence.gpus if evidence is not None else ():
        yield from (f"{name} of {gpu.label} rose by {rise}" for name, rise in gpu.errors.items())
        if gpu.other_processes and (OTHERS, gpu.bus_id) not in known:
            yield f"other processes used {gpu.label} meanwhile ({', '.join(map(str, gpu.other_processes[:_SHOWN]))})"
        slowed = sorted(set(gpu.throttle_reasons or ()) - HARMLESS)
        if slowed and (THROTTLED, gpu.bus_id) not in known:
            yield f"clocks of {gpu.label} throttled: {', '.join(slowed)}"
    if route is not None and route.verdict is LinkProof.REFUTED:
        if route.carried_bytes is None:
            yield f"another link than {route.link} carried the bytes"
        else:
            yield f"{route.link} carried only {100 * route.carried_bytes / route.expected_bytes:.0f} % of the bytes"


def _carried(route: LinkEvidence | None) -> str:
    if route is None or route.verdict in (LinkProof.UNKNOWN, LinkProof.REFUTED):
        return "no counter shows which link carried the bytes"
    how = "by its counters" if route.verdict is LinkProof.PROVEN else "by exclusion"
    return f"{_LINKS[route.link]} carried the bytes, {how}"


_LINKS = {LinkKind.NVLINK: "NVLink", LinkKind.C2C: "C2C", LinkKind.PCIE: "PCIe"}


def was_run(measurement: Measurement) -> bool:
    """Return whether a measurement was attempted, whatever its status."""
    return measurement.status is not MeasurementStatus.WAIVED
