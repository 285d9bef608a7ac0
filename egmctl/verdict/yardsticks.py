"""Three yardsticks for a measurement: the profile of its machine, the rate of its link, and its peers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median, median_high, median_low

from egmctl.bench.engine import ENGINES
from egmctl.bench.path_class import Ceiling, ceiling, class_of, common_symbol, is_degraded, unit_of
from egmctl.dataclass import dataclass
from egmctl.model.measurement import Measurement, RunReport
from egmctl.model.profile import Profile, Reference, Unit
from egmctl.model.route import HOST_MEMORY, Hop, LinkKind, MemoryKind
from egmctl.model.task import Endpoint, Pattern, Quantity
from egmctl.model.verdict import Culprit, Direction, Grade, Judgement, Yardstick
from egmctl.units import MIB, format_size, grouped

JUDGED_FROM_BYTES = 64 * MIB
"""The smallest buffers whose bandwidth is judged; with smaller ones the cost of starting a copy dominates. On HGX H200
copies of 64 MiB reach 98 % of the bandwidth of 512 MiB (docs/profiles.md)."""


def value_of(measurement: Measurement) -> float | None:
    """Return the median latency, or the median bandwidth of all flows together; ``None`` if there is none."""
    summary = measurement.headline
    return summary.median if summary is not None and summary.median > 0 else None


def not_judged(measurement: Measurement) -> str | None:
    """Return why a value is not judged; ``None`` if it is."""
    if is_degraded(measurement):
        return "its EGM route is blocked: what is left has no reference"
    if measurement.point.sms is not None:
        return "one of a series by the number of SMs: few need not fill a link"
    if any(MemoryKind.GPU_NUMA in (flow.source.memory, flow.destination.memory) for flow in measurement.flows):
        return "CPU threads are a lower bound"
    if measurement.quantity is Quantity.BANDWIDTH and measurement.size_bytes < JUDGED_FROM_BYTES:
        return f"buffers of less than {format_size(JUDGED_FROM_BYTES)} are not judged"
    return None


def is_by_host(measurement: Measurement) -> bool:
    """Return whether the value is a round trip of messages, which depends on the CPUs that run the processes.

    On eight idle H200, round trips by event took 24.7 to 38.6 us, depending on the pair (docs/hardware-notes.md).
    """
    return measurement.quantity is Quantity.LATENCY and ENGINES[measurement.engine].timed_by_host


LEAST_GPUS = 4
"""The smallest number of GPUs that have peers. With fewer, either of two different GPUs may be the outlier."""

_MIN_WEAK_PART = 0.75
"""The part of a GPU's cells that must be weak to report the GPU as outlier instead of its pairs."""

GpuEnd = str | None
"""A GPU, or ``None`` if that end of a path is not a GPU."""


@dataclass(frozen=True, slots=True)
class PeerCell:
    """One value of a class."""

    measurement: int
    source: GpuEnd
    destination: GpuEnd
    value: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """The thresholds of warning and failure. They are minima of a bandwidth and maxima of a latency."""

    warn: float | None
    fail: float | None
    latency: bool = False

    def grade(self, value: float) -> Grade:
        """Return the grade of a value. A bound that is ``None`` is not checked."""
        for grade, bound in ((Grade.FAIL, self.fail), (Grade.WARN, self.warn)):
            if bound is not None and (value > bound if self.latency else value < bound):
                return grade
        return Grade.PASS

    def times(self, typical: float) -> Bounds:
        """Return the bounds multiplied by a typical value; they must be parts of it."""
        return Bounds(self.warn and self.warn * typical, self.fail and self.fail * typical, self.latency)


BANDWIDTH = Bounds(warn=0.95, fail=0.85)
"""Bounds as parts of the peers' value. Chosen: healthy pairs of one node are 0.1 % apart on HGX H200
(docs/hardware-notes.md) and up to 3.5 % below their median in published matrices of HGX H100 (docs/profiles.md); one
missing link of 18 costs 5.6 %."""
HOST = Bounds(warn=0.8, fail=0.6)
"""Bounds between GPUs and host memory, which share more than their own links: root complexes, memory, and on a virtual
machine other tenants. Chosen: in 28 runs on HGX H200 a single GPU was up to 15 % below the others (docs/profiles.md); a
PCIe link that trained at half its width or rate loses half."""
LATENCY = Bounds(warn=1.15, fail=1.5, latency=True)
"""Bounds of latencies. Chosen: on HGX H200 they differ by up to 6 %, depending on the location of GPU and SM."""


@dataclass(frozen=True, slots=True)
class Outlier:
    """A GPU in one direction, or a pair, with a value beyond the bounds."""

    gpus: tuple[str, ...]
    direction: Direction | None
    ratio: float
    """Its value divided by its peers' value. A GPU's value is the median of all its cells in the direction."""
    grade: Grade


@dataclass(frozen=True, slots=True)
class Fit:
    """The typical value and the outliers of one class."""

    typical: float | None
    """The typical value: the upper median of bandwidths or the lower median of latencies; ``None`` for too few GPUs."""
    outliers: tuple[Outlier, ...] = ()
    """GPUs first, then pairs; the worst first."""


def fit(cells: Sequence[PeerCell], bounds: Bounds) -> Fit:
    """Return the typical value and the outliers among the cells of one class.

    Parameters
    ----------
    cells
        Values above 0, each of a different pair of ends.
    """
    if len({end for cell in cells for end in (cell.source, cell.destination) if end is not None}) < LEAST_GPUS:
        return Fit(None)
    # No path is faster than its link: if half of the paths are slow, the slow ones are the outliers.
    better_median = median_low if bounds.latency else median_high
    typical = better_median([cell.value for cell in cells])
    better_group = _better_group(cells, bounds)
    if better_group:
        typical = better_median(better_group)
    weak = {cell for cell in cells if bounds.grade(cell.value / typical) is not Grade.PASS}
    are_pairs = all(cell.source is not None and cell.destination not in (None, cell.source) for cell in cells)
    ratios: dict[tuple[GpuEnd, Direction], float] = {}
    for direction in Direction if are_pairs else ():
        by_gpu = grouped((cell.source if direction is Direction.EGRESS else cell.destination, cell) for cell in cells)
        medians = {gpu: median(cell.value for cell in gpu_cells) for gpu, gpu_cells in by_gpu.items()}
        for gpu, gpu_cells in by_gpu.items():
            ratio = medians[gpu] / (typical if better_group else better_median(medians.values()))
            mostly_weak = len(gpu_cells) > 1 and len(weak.intersection(gpu_cells)) >= _MIN_WEAK_PART * len(gpu_cells)
            if mostly_weak and bounds.grade(ratio) is not Grade.PASS:
                ratios[gpu, direction] = ratio
    outliers = [
        Outlier((str(gpu),), direction, ratio, bounds.grade(ratio)) for (gpu, direction), ratio in ratios.items()
    ]
    for cell in cells:
        factor = ratios.get((cell.source, Direction.EGRESS), 1) * ratios.get((cell.destination, Direction.INGRESS), 1)
        if bounds.grade(cell.value / (typical * factor)) is not Grade.PASS:
            gpus = tuple(dict.fromkeys(end for end in (cell.source, cell.destination) if end is not None))
            ratio = cell.value / typical
            outliers.append(Outlier(gpus, _direction(cell), ratio, bounds.grade(ratio)))
    outliers.sort(key=lambda outlier: (len(outlier.gpus), -abs(math.log(outlier.ratio))))
    return Fit(typical, tuple(outliers))


def _better_group(cells: Sequence[PeerCell], bounds: Bounds) -> Sequence[float]:
    """Return the values of the better of two groups, however many are in the worse one; empty if there is one group.

    Two groups are further apart than the bound of a failure, which no values of healthy peers are. A single GPU at
    either end makes no group: one number, or one GPU, above all others may be the wrong one.
    """
    ordered = sorted(cells, key=lambda cell: cell.value, reverse=not bounds.latency)
    for count in range(1, len(ordered)):
        better = ordered[:count]
        sources, destinations = {cell.source for cell in better}, {cell.destination for cell in better}
        several_gpus = all(ends == {None} or len(ends) > 1 for ends in (sources, destinations))
        if several_gpus and bounds.grade(ordered[count].value / better[-1].value) is Grade.FAIL:
            return [cell.value for cell in better]
    return ()


def _direction(cell: PeerCell) -> Direction | None:
    """Return a cell's direction; a pair and a GPU's own memory have none."""
    if cell.source is not None and cell.destination is not None:
        return None
    return Direction.EGRESS if cell.source is not None else Direction.INGRESS


def against_profile(measurement: Measurement, value: float, profile: Profile | None) -> Judgement:
    """Judge a value by the profile's reference for the case, the link and the number of flows."""
    if profile is None:
        return no_reference(Yardstick.PROFILE, value, "no profile matches this machine")
    reference, missing = reference_for(measurement, profile)
    if reference is None:
        return no_reference(Yardstick.PROFILE, value, missing)
    if (excess := more_than_it_carries(measurement, reference)) is not None:
        return no_reference(Yardstick.PROFILE, value, f"{profile.name} is wrong: {excess}")
    if reference.warn is None and reference.fail is None:
        reason = f"{profile.name} has no bounds for it"
        missing_bounds = no_reference(Yardstick.PROFILE, value, reason)
        return replace(missing_bounds, expected=reference.typical, source=cite(profile, reference))
    bounds = Bounds(reference.warn, reference.fail, latency=reference.unit is Unit.NS)
    grade, link = bounds.grade(value), class_of(measurement).link
    bound = {Grade.FAIL: reference.fail, Grade.WARN: reference.warn}.get(grade)
    side = "above" if bounds.latency else "below"
    beyond = "" if bound is None else f", {side} {bound:.4g}"
    usual = "" if reference.typical is None else f"; typical is {reference.typical:.4g}"
    over = "" if link == reference.link else f", over {link}, not {reference.link}"
    reason = f"{measurement.path}: {value:.4g} {reference.unit}{beyond}{usual}{over}"
    source = cite(profile, reference)
    return Judgement(Yardstick.PROFILE, grade, reason, value, reference.typical, bounds.warn, bounds.fail, source)


def reference_for(measurement: Measurement, profile: Profile) -> tuple[Reference | None, str]:
    """Return the profile's reference for a measurement, or ``None`` and why there is none.

    A pair of GPUs is compared with the profile's link between GPUs even if it used another one, so that missing NVLinks
    are found. Host memory that is reached over another kind of link is a different path.
    """
    point = measurement.point.unsized
    candidates = [
        candidate
        for candidate in profile.references
        if (candidate.case, candidate.point) == (measurement.case, point) and candidate.unit is unit_of(measurement)
    ]
    if not candidates:
        return None, f"{profile.name} does not have this case{f' at {point}' if str(point) else ''}"
    link = class_of(measurement).link
    flow = measurement.flows[0]
    between_gpus = None not in (flow.source.bus_id, flow.destination.bus_id)
    # Without the number of NVLinks: ``NV`` for ``NV18`` and ``NV16``.
    kind = common_symbol(flow.route.kind for flow in measurement.flows)
    same_link = [candidate for candidate in candidates if between_gpus or candidate.kind == kind]
    if not same_link:
        return None, f"{profile.name} does not have this case over {link}"
    count = len(measurement.flows)
    fitting = [candidate for candidate in same_link if candidate.flows in (None, count)]
    if not fitting:
        return None, f"{profile.name} has it for {same_link[0].flows} flows, not {count}"
    reference = fitting[0]
    if measurement.size_bytes < reference.least_bytes:
        return None, f"{profile.name} has it for buffers of {format_size(reference.least_bytes)} or more"
    return reference, ""


def more_than_it_carries(measurement: Measurement, reference: Reference) -> str | None:
    """Return the half sentence that a reference expects more than the links of a path carry; ``None`` if not.

    Only the rate that the driver reports counts: a published rate of a memory is rounded, and a cache may exceed it.
    """
    limit = ceiling(measurement)
    least = min((bound for bound in (reference.fail, reference.warn) if bound is not None), default=None)
    if limit is None or not isinstance(limit.limit, Hop) or limit.limit.source is not None or least is None:
        return None
    if least <= MORE_THAN_IT_CARRIES * limit.gb_s:
        return None
    return f"it expects {least:.4g} GB/s of {reference.case}, and {limit.name} carries {limit.gb_s:.4g} GB/s"


def cite(profile: Profile, reference: Reference) -> str:
    """Return the sources of a reference's numbers and of its bounds."""
    sources = str(profile.sources[reference.source])
    if reference.bounds_source is None or (reference.warn is None and reference.fail is None):
        return sources
    return f"{sources}; bounds, {profile.sources[reference.bounds_source]}"


def no_reference(yardstick: Yardstick, value: float, reason: str) -> Judgement:
    """Return the judgement of a value for which a yardstick has no reference."""
    return Judgement(yardstick, Grade.NO_REFERENCE, reason, value)


_LINK_BOUNDS = Bounds(warn=0.5, fail=0.25)
"""Bounds as parts of the link's payload rate. Chosen: the lowest of the healthy paths in docs/profiles.md reaches 55 %
(kernels that read host memory over PCIe on H100); a quarter is the rate of a link two PCIe generations older or with a
quarter of the lanes."""
MORE_THAN_IT_CARRIES = 1.01
"""Above this part of the link's rate, not all bytes can have crossed the link: a cache or another route carried
some."""

_ONE_WAY = (Pattern.PAIR, Pattern.ONE_TO_ALL, Pattern.ALL_TO_ONE)
"""Patterns in which all bytes cross one GPU's link in one direction."""


def against_link(measurement: Measurement, value: float, profile: Profile | None) -> Judgement:
    """Judge a value by its :func:`ceiling`; if the driver reports no rate of the link, the profile's rate counts."""
    if (unbounded := _unbounded(measurement)) is not None:
        return no_reference(Yardstick.LINK, value, unbounded)
    route = measurement.flows[0].route
    limit, source = ceiling(measurement), "nominal: the links and their rate as the driver reports them"
    facts = next((facts for facts in (profile.links if profile else ()) if facts.link == route.first_link), None)
    if limit is None and facts is not None and profile is not None and len(route.hops) == 1:
        limit, source = Ceiling(facts.gb_s, route.hops[0]), str(profile.sources[facts.source])
    if limit is None:
        return no_reference(Yardstick.LINK, value, "the link's rate is not known")
    part = value / limit.gb_s
    grade = _LINK_BOUNDS.grade(part)
    reason = f"{measurement.path}: {value:.4g} GB/s is {100 * part:.0f} % of {limit.name}'s {limit.gb_s:.4g} GB/s"
    unrated = any(hop.link is LinkKind.SMP and hop.nominal_gb_s is None for hop in route.hops)
    if grade is not Grade.PASS and unrated and route.first_link is LinkKind.C2C:
        # A board of two GH200 reaches 30 % of C2C across its CPUs (profiles/gh200x2-480gb.toml).
        return no_reference(Yardstick.LINK, value, f"{reason}; the rate of the link between the CPUs is not known")
    if limit.limit.source is not None:
        source = f"published: {limit.limit.source}"
    elif part > MORE_THAN_IT_CARRIES:
        grade, reason = Grade.WARN, f"{reason}: not all bytes can have crossed the link"
    bounds = _LINK_BOUNDS.times(limit.gb_s)
    return Judgement(
        Yardstick.LINK, grade, reason, value, limit.gb_s, bounds.warn, bounds.fail, source, limit=limit.name
    )


def _unbounded(measurement: Measurement) -> str | None:
    """Return why no link's rate bounds a measurement; ``None`` if one does."""
    flow = measurement.flows[0]
    if measurement.quantity is not Quantity.BANDWIDTH:
        return "a link's rate does not bound a latency"
    if measurement.pattern not in _ONE_WAY and ceiling(measurement) is None:
        return "its flows do not share one link in one direction"
    if flow.through_gpu and flow.route.across_nodes:
        return "its bytes go through a GPU from link to link: what that reaches is not known"
    if flow.through_gpu:
        return "its bytes cross the GPU's link in both directions"
    if any(flow.route.staged for flow in measurement.flows):
        return "staged through host memory: what that reaches of its links is not known"
    return None if flow.route.first_link else "it crosses no known link"


_GPU_PATTERNS = (Pattern.PAIR, Pattern.LOCAL, Pattern.BOTH_DIRECTIONS, Pattern.ONE_TO_ALL, Pattern.ALL_TO_ONE)


def against_peers(
    report: RunReport, path_class: str, values: Mapping[int, float]
) -> tuple[dict[int, Judgement], tuple[Culprit, ...]]:
    """Judge the measurements of one class by each other.

    Parameters
    ----------
    path_class
        The name of the class.
    values
        The value of each measurement of the class, by its index in the report.

    Returns
    -------
    tuple
        The judgement of each measurement by index, and the outliers.
    """
    measurements = [report.measurements[number] for number in values]
    if not measurements:
        return {}, ()
    bounds = _bounds(measurements[0])
    are_judged = not any(not_judged(m) or is_by_host(m) for m in measurements)
    judged = values.items() if are_judged else ()
    cells_of_class = (cell for number, value in judged for cell in _cells(number, report.measurements[number], value))
    groups = grouped(((cell.source is None, cell.destination is None), cell) for cell in cells_of_class)
    bus_ids = {
        end.label: end.bus_id for m in measurements for flow in m.flows for end in (flow.source, flow.destination)
    }
    judgements = {
        number: [no_reference(Yardstick.PEERS, value, _without_peers(report.measurements[number]))]
        for number, value in values.items()
    }
    culprits: list[Culprit] = []
    source = "this run: the same class between its other GPUs"
    for cells in groups.values():
        fitted = fit(cells, bounds)
        if fitted.typical is None:
            continue
        limits = bounds.times(fitted.typical)
        for cell in cells:
            number, ratio = cell.measurement, cell.value / fitted.typical
            reason = f"{report.measurements[number].path}: {100 * ratio:.0f} % of its peers' {fitted.typical:.4g}"
            grade, value = bounds.grade(ratio), values[number]
            judgements[number].append(
                Judgement(Yardstick.PEERS, grade, reason, value, fitted.typical, limits.warn, limits.fail, source)
            )
        culprits += [_culprit(outlier, fitted, path_class, bus_ids, bounds) for outlier in fitted.outliers]
    gravest = {number: min(known, key=lambda j: list(Grade).index(j.grade)) for number, known in judgements.items()}
    return gravest, tuple(culprits)


def _bounds(measurement: Measurement) -> Bounds:
    if measurement.quantity is Quantity.LATENCY:
        return LATENCY
    ends = (measurement.flows[0].source, measurement.flows[0].destination)
    return HOST if any(end.memory in HOST_MEMORY for end in ends) else BANDWIDTH


def _cells(number: int, measurement: Measurement, value: float) -> Iterator[PeerCell]:
    """Yield the values of single GPUs or pairs in a measurement; none if all GPUs work at the same time."""
    flow = measurement.flows[0]
    if measurement.pattern is Pattern.ONE_TO_ALL:
        yield PeerCell(number, _gpu(flow.source), None, value)
    elif measurement.pattern is Pattern.ALL_TO_ONE:
        yield PeerCell(number, None, _gpu(flow.destination), value)
    elif measurement.pattern is Pattern.BOTH_DIRECTIONS and measurement.flows_gb_s:
        for direction, summary in zip(measurement.flows, measurement.flows_gb_s, strict=True):
            if summary.median > 0:
                yield PeerCell(number, _gpu(direction.source), _gpu(direction.destination), summary.median)
    elif measurement.pattern in (Pattern.PAIR, Pattern.LOCAL) and len(measurement.flows) == 1:
        yield PeerCell(number, _gpu(flow.source), _gpu(flow.destination), value)


def _gpu(end: Endpoint) -> str | None:
    """Return the label of a GPU, which is unique in a run, unlike a bus id, which is unique on a node."""
    return end.label if end.bus_id is not None else None


def _without_peers(measurement: Measurement) -> str:
    """Return why a measurement has no peers."""
    if is_by_host(measurement):
        return "no peers: a round trip by message depends on where the host runs the processes"
    few = measurement.pattern in _GPU_PATTERNS
    return f"no peers: fewer than {LEAST_GPUS} GPUs" if few else "no peers: several GPUs at the same time"


def _culprit(
    outlier: Outlier, fitted: Fit, path_class: str, bus_ids: Mapping[str, str | None], bounds: Bounds
) -> Culprit:
    side = {Direction.EGRESS: "traffic from it", Direction.INGRESS: "traffic to it", None: "it"}
    verb = "takes" if bounds.latency else "reaches"
    reason = (
        f"{side[outlier.direction] if len(outlier.gpus) == 1 else 'this pair alone'} {verb} "
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
