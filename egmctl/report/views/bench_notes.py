"""How a run was measured, how its measurements ended, and why some failed or were skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from egmctl.model.measurement import Measurement, Quantity, RunReport, Status, Verification
from egmctl.units import format_size
from egmctl.wording import several

_FEW = 3
"""Numbers of copies that are told one by one."""
_GATING = {
    "kernel": "queued behind a gate kernel",
    "none": "no gate: the time includes queueing",
}
_VERIFICATION = {
    Verification.GPU_EVERY_SAMPLE: "verified after every sample on the GPU",
    Verification.CHECKSUM_EVERY_SAMPLE: "reads and writes alone by checksum",
    Verification.COUNTERS_EVERY_SAMPLE: "atomic additions by their answers and their counters",
    Verification.WALK_EVERY_SAMPLE: "pointer chases verified by their final index",
}


def how(report: RunReport) -> list[str]:
    """Return how everything was measured, in a few words each."""
    settings = report.settings
    told = [
        f"buffers of {format_size(settings.size_bytes)}",
        f"median of {several(settings.samples, 'sample')}",
    ]
    measured = [m for m in report.measurements if m.samples]
    if copies := sorted({m.copies for m in measured if m.quantity is Quantity.BANDWIDTH}):
        times = " or ".join(map(str, copies)) if len(copies) <= _FEW else f"{copies[0]} to {copies[-1]}"
        told.insert(1, f"copied {times} times a sample")
    told += dict.fromkeys(_GATING[m.gating] for m in measured if m.gating in _GATING)
    told += dict.fromkeys(_VERIFICATION[m.verification] for m in measured if m.verification)
    return told


_CASES = 3
"""Cases that took longest that are named."""


def where_time_went(report: RunReport) -> str | None:
    """Return in one line what a run spent its time on, and the cases that took longest; ``None`` where not known."""
    spent = report.seconds
    if spent is None:
        return None
    phases = (
        ("starting", spent.starting_s),
        ("set-up", spent.set_up_s),
        ("warm-up", spent.warm_up_s),
        ("measuring", spent.measuring_s),
        ("verifying", spent.verifying_s),
        ("tear-down", spent.tear_down_s),
        ("waiting", spent.waiting_s),
    )
    longest = sorted(spent.cases, key=lambda one: -one.sum_s)[:_CASES]
    cases = f"; longest: {', '.join(f'{one.case} {one.sum_s:.2f} s' for one in longest)}" if longest else ""
    return f"Time: {', '.join(f'{name} {seconds:.2f} s' for name, seconds in phases)}{cases}."


def exceptions(report: RunReport) -> Iterator[tuple[Status, str, list[str]]]:
    """Yield status and reason of what is not ``ok``, and what it is: whole cases where they were waived, else paths.

    The first path of each case has the case's name before it: many cases take the same paths.
    """
    groups: dict[tuple[Status, str], list[Measurement]] = {}
    for measurement in report.measurements:
        if measurement.status is not Status.OK:
            groups.setdefault((measurement.status, measurement.reason or ""), []).append(measurement)
    for (status, reason), those in groups.items():
        cases = list(dict.fromkeys(m.case for m in those))
        whole = status is Status.WAIVED and len(those) == sum(m.case in cases for m in report.measurements)
        if whole:
            yield status, reason, cases
            continue
        paths = {case: list(dict.fromkeys(m.path for m in those if m.case == case)) for case in cases}
        yield status, reason, [f"{case} {path}" if path == of[0] else path for case, of in paths.items() for path in of]


def tally(report: RunReport) -> str:
    """Return how many measurements ended how."""
    counts = Counter(measurement.status for measurement in report.measurements)
    words = ", ".join(f"{counts[status]} {status}" for status in Status if counts[status])
    return f"{several(len(report.measurements), 'measurement')}: {words or 'none'}"
