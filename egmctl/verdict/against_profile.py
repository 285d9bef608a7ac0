"""Holds a measurement against what its platform's profile says of its path. Pure."""

from __future__ import annotations

from egmctl.model.measurement import Measurement
from egmctl.model.profile import Profile, Reference, Unit
from egmctl.model.verdict import Grade, Judgement, Yardstick
from egmctl.units import format_size
from egmctl.verdict.classes import class_of, kind_of, unit_of


def against_profile(measurement: Measurement, value: float, profile: Profile | None) -> Judgement:
    """Judge by the profile's reference for the case, the link and the number of flows."""
    if profile is None:
        return _none(value, "no profile matches this machine")
    reference, why = reference_for(measurement, profile)
    if reference is None:
        return _none(value, why)
    sign = 1 if reference.unit is Unit.GB_S else -1
    beyond = "below" if sign > 0 else "above"
    grade, against = Grade.PASS, ""
    for word, bound in ((Grade.FAIL, reference.fail), (Grade.WARN, reference.warn)):
        if bound is not None and sign * value < sign * bound:
            grade, against = word, f", {beyond} {bound:.4g}"
            break
    unit = reference.unit
    link = class_of(measurement).link
    usual = "" if reference.typical is None else f"; typical is {reference.typical:.4g}"
    over = "" if link == reference.link else f", over {link}, not {reference.link}"
    return Judgement(
        yardstick=Yardstick.PROFILE,
        grade=grade,
        reason=f"{measurement.path}: {value:.4g} {unit}{against}{usual}{over}",
        value=value,
        expected=reference.typical,
        warn=reference.warn,
        fail=reference.fail,
        source=cite(profile, reference),
    )


def reference_for(measurement: Measurement, profile: Profile) -> tuple[Reference | None, str]:
    """Return the reference that a measurement is to be held against, or why there is none.

    A pair of GPUs is held against the link that its platform has between GPUs even where it took another one: fewer
    NVLinks, or none, is what is to be found. Host memory that is farther away is another path.
    """
    of_case = [r for r in profile.references if r.case == measurement.case and r.unit is unit_of(measurement)]
    if not of_case:
        return None, f"{profile.name} does not have this case"
    link = class_of(measurement).link
    flow = measurement.flows[0]
    between_gpus = None not in (flow.source.bus_id, flow.destination.bus_id)
    kind = kind_of(measurement)
    over_link = [r for r in of_case if between_gpus or r.kind == kind]
    if not over_link:
        return None, f"{profile.name} does not have this case over {link}"
    count = len(measurement.flows)
    fitting = [r for r in over_link if r.flows in (None, count)]
    if not fitting:
        return None, f"{profile.name} has it for {over_link[0].flows} flows, not {count}"
    reference = fitting[0]
    if measurement.size_bytes < reference.least_bytes:
        return None, f"{profile.name} has it for buffers of {format_size(reference.least_bytes)} or more"
    return reference, ""


def cite(profile: Profile, reference: Reference) -> str:
    """Return where a reference's numbers come from, and how sure they are."""
    source = profile.sources[reference.source]
    said = f"{source.kind}: {source.text}"
    if reference.bounds_source is None or (reference.warn is None and reference.fail is None):
        return said
    bounds = profile.sources[reference.bounds_source]
    return f"{said}; bounds, {bounds.kind}: {bounds.text}"


def _none(value: float, why: str) -> Judgement:
    return Judgement(yardstick=Yardstick.PROFILE, grade=Grade.NO_REFERENCE, reason=why, value=value)
