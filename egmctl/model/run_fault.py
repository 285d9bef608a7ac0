"""What does not fit together in a run that was read: documents and journals are held against the same rules."""

from __future__ import annotations

from egmctl.model.measurement import Measurement, RunReport
from egmctl.model.verdict import MemoryOwner


def run_fault(report: RunReport) -> str | None:
    """Return what in a run does not fit together, as half a sentence that names the place; ``None``: all fits."""
    for place, measurement in enumerate(report.measurements):
        if fault := measurement_fault(measurement):
            return f"result.measurements[{place}].{fault}"
    numbers: list[tuple[str, int]] = []
    if (verdict := report.verdict) is not None:
        for place, owner in enumerate(verdict.owners):
            if fault := _owner_fault(owner):
                return f"result.verdict.owners[{place}]{fault}"
        numbers += [("verdict", one.measurement) for one in verdict.judged]
        numbers += [("verdict", number) for one in verdict.classes for number in one.measurements]
        numbers += [("verdict.owners", number) for one in verdict.owners for number in one.measurements]
    numbers += [(f"causes[{place}]", number) for place, one in enumerate(report.causes) for number in one.explains]
    count = len(report.measurements)
    return next(
        (f"result.{where}: there is no measurement {n} of {count}" for where, n in numbers if not 0 <= n < count), None
    )


def measurement_fault(measurement: Measurement) -> str | None:
    """Return what in a measurement does not fit together, as half a sentence that begins with the field."""
    flows = len(measurement.flows)
    if not flows:
        return "flows: there is none, a measurement has at least one"
    counts: list[tuple[str, tuple[object, ...]]] = [("flows_gb_s", measurement.flows_gb_s)]
    counts += [(f"samples[{place}].flows_gb_s", sample.flows_gb_s) for place, sample in enumerate(measurement.samples)]
    for name, values in counts:
        if values and len(values) != flows:
            return f"{name}: {len(values)} numbers for {flows} flows"
    return None


def _owner_fault(owner: MemoryOwner) -> str | None:
    if not owner.measurements:
        return ".measurements: there is none"
    if (owner.owner is None) == (owner.unknown is None):
        return ": one of owner and unknown is there, and not both"
    if (owner.owner is None) != (owner.owner_label is None):
        return ".owner_label: it is there where owner is"
    return None
