"""Holds the measurements of one class against each other, and says who is out of line. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from egmctl.model.measurement import Endpoint, Measurement, Pattern, Quantity, RunReport
from egmctl.model.memory import HOST_MEMORY
from egmctl.model.verdict import Culprit, Direction, Grade, Judgement, Yardstick
from egmctl.verdict.classes import is_by_host, not_judged
from egmctl.verdict.peers import BANDWIDTH, HOST, LATENCY, LEAST_GPUS, Fit, Outlier, PeerCell, Tolerance, fit

_SOURCE = "this run: the same class between its other GPUs"
_OF_GPUS = (Pattern.PAIR, Pattern.LOCAL, Pattern.BOTH_DIRECTIONS, Pattern.ONE_TO_ALL, Pattern.ALL_TO_ONE)
_ORDER = (Grade.FAIL, Grade.WARN, Grade.PASS)


def against_peers(
    report: RunReport, path_class: str, values: Mapping[int, float]
) -> tuple[dict[int, Judgement], tuple[Culprit, ...]]:
    """Judge the measurements of one class by each other.

    Parameters
    ----------
    path_class
        What the class is called.
    values
        Of each of its measurements, by its place in the report.

    Returns
    -------
    tuple
        A judgement for each, and who is out of line.
    """
    measurements = [report.measurements[number] for number in values]
    tolerance = _tolerance(measurements[0]) if measurements else BANDWIDTH
    groups: dict[tuple[bool, bool], list[PeerCell]] = {}
    if not any(not_judged(one) or is_by_host(one) for one in measurements):
        for number, value in values.items():
            for cell in _cells(number, report.measurements[number], value):
                groups.setdefault((cell.source is None, cell.destination is None), []).append(cell)
    bus_ids = {
        end.label: end.bus_id for m in measurements for flow in m.flows for end in (flow.source, flow.destination)
    }
    found: dict[int, Judgement] = {}
    culprits: list[Culprit] = []
    for cells in groups.values():
        fitted = fit(cells, tolerance)
        if fitted.typical is None:
            continue
        for cell in cells:
            judgement = _judgement(cell, values[cell.measurement], report.measurements, fitted.typical, tolerance)
            before = found.get(cell.measurement)
            if before is None or _ORDER.index(judgement.grade) < _ORDER.index(before.grade):
                found[cell.measurement] = judgement
        culprits += [_culprit(outlier, fitted, path_class, bus_ids, tolerance) for outlier in fitted.outliers]
    return {
        number: found.get(number) or _none(value, report.measurements[number]) for number, value in values.items()
    }, tuple(culprits)


def _tolerance(measurement: Measurement) -> Tolerance:
    if measurement.quantity is Quantity.LATENCY:
        return LATENCY
    ends = (measurement.flows[0].source, measurement.flows[0].destination)
    return HOST if any(end.memory in HOST_MEMORY for end in ends) else BANDWIDTH


def _cells(number: int, measurement: Measurement, value: float) -> Iterator[PeerCell]:
    """Yield what a measurement says of single GPUs or pairs; nothing where all work at the same time."""
    flow = measurement.flows[0]
    if measurement.pattern is Pattern.ONE_TO_ALL:
        yield PeerCell(number, _gpu(flow.source), None, value)
    elif measurement.pattern is Pattern.ALL_TO_ONE:
        yield PeerCell(number, None, _gpu(flow.destination), value)
    elif measurement.pattern is Pattern.BOTH_DIRECTIONS and measurement.flows_gb_s:
        for one, summary in zip(measurement.flows, measurement.flows_gb_s, strict=True):
            if summary.median > 0:
                yield PeerCell(number, _gpu(one.source), _gpu(one.destination), summary.median)
    elif measurement.pattern in (Pattern.PAIR, Pattern.LOCAL) and len(measurement.flows) == 1:
        yield PeerCell(number, _gpu(flow.source), _gpu(flow.destination), value)


def _gpu(end: Endpoint) -> str | None:
    """Return what tells a GPU from the others of a run: bus ids are those of one node."""
    return end.label if end.bus_id is not None else None


def _judgement(
    cell: PeerCell, value: float, measurements: tuple[Measurement, ...], typical: float, tolerance: Tolerance
) -> Judgement:
    ratio = cell.value / typical
    return Judgement(
        yardstick=Yardstick.PEERS,
        grade=tolerance.grade(ratio),
        reason=f"{measurements[cell.measurement].path}: {100 * ratio:.0f} % of its peers' {typical:.4g}",
        value=value,
        expected=typical,
        warn=tolerance.bound(typical, tolerance.warn),
        fail=tolerance.bound(typical, tolerance.fail),
        source=_SOURCE,
    )


def _none(value: float, measurement: Measurement) -> Judgement:
    few = measurement.pattern in _OF_GPUS
    why = f"no peers: fewer than {LEAST_GPUS} GPUs" if few else "no peers: several GPUs at the same time"
    if is_by_host(measurement):
        why = "no peers: a round trip by message depends on where the host runs the processes"
    return Judgement(yardstick=Yardstick.PEERS, grade=Grade.NO_REFERENCE, reason=why, value=value)


def _culprit(
    outlier: Outlier, fitted: Fit, path_class: str, bus_ids: Mapping[str, str | None], tolerance: Tolerance
) -> Culprit:
    side = {Direction.EGRESS: "traffic from it", Direction.INGRESS: "traffic to it", None: "it"}
    takes = "takes" if tolerance.latency else "reaches"
    reason = (
        f"{side[outlier.direction] if len(outlier.gpus) == 1 else 'this pair alone'} {takes} "
        f"{100 * outlier.ratio:.0f} % of its peers' {fitted.typical:.4g}"
    )
    return Culprit(
        path_class=path_class,
        gpus=tuple(bus_id for gpu in outlier.gpus if (bus_id := bus_ids[gpu])),
        label=" -> ".join(outlier.gpus),
        direction=outlier.direction,
        ratio=outlier.ratio,
        grade=outlier.grade,
        reason=reason,
    )
