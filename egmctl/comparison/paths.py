"""Compare paths between runs, with the differences between runs of a healthy node as the bound."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import mode
from typing import NamedTuple

from egmctl.comparison.collectives import SPREAD, ComparedCollective, collectives
from egmctl.dataclass import dataclass
from egmctl.model.comparison import Affected, Outcome, PathDifference
from egmctl.model.doubt import Effect
from egmctl.model.machine import Machine
from egmctl.model.measurement import BROKEN, Measurement, MeasurementStatus, RunReport, Summary
from egmctl.model.profile import Profile
from egmctl.model.route import Egm, node_names
from egmctl.model.task import CPU_ENGINES, UCX_ENGINES, Endpoint, Quantity
from egmctl.units import grouped, natural
from egmctl.verdict.profiles import all_profiles, choose, match_profile
from egmctl.verdict.trust import MeasurementUse, unbelieved
from egmctl.verdict.yardsticks import JUDGED_FROM_BYTES, is_by_host, reference_for

Alike = tuple[str, str, str, int]
"""A class of alike paths: the name of the case at its point, stage, links and size in bytes."""


class Key(NamedTuple):
    """The identity of a path: paths of two runs with the same key are the same path."""

    name: str
    """The name of the case at its point."""
    stage: str
    ends: tuple[tuple[str, ...], ...]
    size_bytes: int
    """0 for bandwidths of copies from :data:`JUDGED_FROM_BYTES` on. They do not depend on the size, and a run may use
    smaller buffers than usual if those do not fit."""
    method: tuple[str, ...]
    occurrence: int
    """A counter for a path that occurs several times in one run; 0 for the first."""


@dataclass(frozen=True, slots=True)
class MeasuredPath:
    """A path of one run, or the typical values of a path in several runs."""

    measurement: Measurement | ComparedCollective
    stage: str
    value: float | None
    """The median; ``None`` if there is none above 0."""
    links: str
    """The symbols of its routes."""
    egm: frozenset[Egm]
    """Whether the host memory of its routes is EGM; empty if there is no host memory."""
    status: MeasurementStatus | None
    """The status of the measurement; ``None`` if the run lacks the path."""
    forbidden: frozenset[MeasurementUse] = frozenset()
    """The uses of the value that doubts forbid (:mod:`egmctl.verdict.trust`)."""
    faulty: str = ""
    """The doubt that proves a fault of the path though its median is good; empty without one."""

    @property
    def believed(self) -> bool:
        """Whether the value may be compared at all."""
        return not self.forbidden >= {MeasurementUse.COMPARE_WORSE, MeasurementUse.COMPARE_BETTER}

    @property
    def path_class(self) -> Alike:
        """The class of alike paths that it belongs to."""
        return self.measurement.name, self.stage, self.links, self.measurement.size_bytes

    def slower(self, reference: float) -> float:
        """Return by what part of ``reference`` this path is slower; negative if it is faster."""
        change = (self.value or 0) / reference - 1
        return -change if self.measurement.quantity is Quantity.BANDWIDTH else change


class GpuNames:
    """Names of the GPUs of several files: the same GPU or, if no bus id is common, the same index has the same name.

    Parameters
    ----------
    indices
        The index of each GPU by bus id, for each file.
    """

    def __init__(self, indices: Sequence[Mapping[str, int]]) -> None:
        self.by_index = all(indices) and not set(indices[0]).intersection(*indices[1:])
        """Whether GPUs are matched by index, because the files have no bus id in common."""
        self._indices = indices
        self._first = {bus_id: index for gpus in reversed(indices) for bus_id, index in gpus.items()}
        numbers: dict[tuple[tuple[str, int], ...], int] = {}
        self._alike = [numbers.setdefault(tuple(gpus.items()), len(numbers)) for gpus in indices]

    def alike(self, file: int) -> int:
        """Return a number that the files have in common whose GPUs have the same bus ids and indices."""
        return self._alike[file]

    def name(self, file: int, bus_id: str) -> str:
        """Return the name of a GPU of a file."""
        index = self._indices[file].get(bus_id)
        return f"GPU{index}" if self.by_index and index is not None else bus_id

    def label(self, file: int, name: str) -> str:
        """Return the label of a thing in a file: its index for a GPU, its name for anything else."""
        index = self._indices[file].get(name, self._first.get(name))
        return name if index is None else f"GPU{index}"


def points(run: RunReport, names: GpuNames, number: int) -> dict[Key, MeasuredPath]:
    """Return the paths of a run and NCCL's collectives by key; ``number`` is the index of its file."""
    by_key: dict[Key, MeasuredPath] = {}
    owner = _owners(run, names, number)
    forbidden = {use: unbelieved(run.doubts, use) for use in MeasurementUse}
    faults = {doubt.measurement: doubt.reason.value for doubt in run.doubts if doubt.effect is Effect.FAIL}
    all_points = (
        (
            measurement,
            replace(
                point,
                forbidden=frozenset(use for use, numbers in forbidden.items() if index in numbers),
                faulty=faults.get(index, ""),
            ),
        )
        for index, measurement in enumerate(run.measurements)
        for point in _points(measurement)
    )
    for measurement, point in all_points:
        key = _key(measurement, point.stage, names, number, owner)
        while key in by_key:
            key = key._replace(occurrence=key.occurrence + 1)
        by_key[key] = point
    for collective in collectives(run):
        gpus = tuple(sorted(names.name(number, bus_id) for bus_id in collective.gpus))
        # Copies of 64 MiB and more are as fast as larger ones; collectives are not.
        by_key[Key(collective.name, "", (gpus,), collective.size_bytes, collective.method, 0)] = MeasuredPath(
            collective,
            "",
            value=collective.value,
            links=collective.transports,
            egm=frozenset(),
            status=collective.status,
        )
    return by_key


def _points(measurement: Measurement) -> Iterator[MeasuredPath]:
    summaries: dict[str, Summary | None] = {"": measurement.headline}
    if measurement.quantity is Quantity.DURATION:
        stages = {stage.name: stage.ms if measurement.measured else None for stage in measurement.stages}
        summaries = stages or {"": None}
    routes = [flow.route for flow in measurement.flows]
    for stage, summary in summaries.items():
        yield MeasuredPath(
            measurement,
            stage,
            value=summary.median if summary is not None and summary.median > 0 else None,
            links=", ".join(dict.fromkeys(route.symbol for route in routes)),
            egm=frozenset(route.egm for route in routes if route.egm is not None),
            status=measurement.status,
        )


def _key(measurement: Measurement, stage: str, names: GpuNames, run: int, owner: Owner) -> Key:
    chase = measurement.chase
    method: list[object] = [measurement.engine, measurement.pattern]
    method += [] if chase is None else [chase.order, chase.stride_bytes, chase.warm]
    ends = tuple(
        (
            owner(measurement, end),
            end.memory.value,
            f"NUMA{end.numa_node}" if end.bus_id is None else names.name(run, end.bus_id),
            end.handle.value if end.handle else "",
            # With several processes, the rank already identifies it.
            "" if end.allocated_by is None or end.rank is not None else names.name(run, end.allocated_by),
        )
        for flow in measurement.flows
        for end in (flow.source, flow.destination)
    )
    issuers = tuple("" if flow.initiator is None else names.name(run, flow.initiator) for flow in measurement.flows)
    usual = measurement.quantity is Quantity.BANDWIDTH and measurement.size_bytes >= JUDGED_FROM_BYTES
    size_bytes = 0 if usual else measurement.size_bytes
    return Key(measurement.name, stage, (*ends, issuers), size_bytes, tuple(map(str, method)), 0)


Owner = Callable[[Measurement, Endpoint], str]


def _owners(run: RunReport, names: GpuNames, number: int) -> Owner:
    """Return a function that identifies the owner of the memory at an end, if other memory may be there.

    In a run over several nodes the owner is the node. For host memory reached over its owner's GPU, that GPU is added.
    The text is empty if no owner is needed.
    """
    ranks = {rank.number: rank for rank in run.ranks}
    nodes = node_names(rank.host for rank in run.ranks)

    def owner(measurement: Measurement, end: Endpoint) -> str:
        rank = None if end.rank is None else ranks.get(end.rank)
        if rank is None:
            return ""
        node = nodes.get(rank.host, "")
        is_gpu_named = end.bus_id is None and (rank.host is not None or measurement.engine in UCX_ENGINES)
        return f"{node}:{names.name(number, rank.bus_id)}" if is_gpu_named else node

    return owner


TOLERANCE = 0.05
"""The default tolerance: slightly less than the 5.6 % that one lost NVLink of 18 costs. Other faults of a link (a PCIe
link at half its width or speed, a C2C link down) cost more."""

TIMES = 3
"""The factor by which a difference must exceed the spread of the difference of two runs, ``sqrt(2)`` times that of
one."""

OUTLIER = 5
"""For more than two nodes, a difference must also exceed this many standard deviations of the paths' distances from the
medians. A node has hundreds of paths; with a normal distribution, one in a million is farther out."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The standard deviation of one path's medians over many runs, as a part of their median."""

    value: float
    source: str

    @property
    def bound(self) -> float:
        """The largest usual difference between two runs."""
        return TIMES * math.sqrt(2) * self.value


TRUSTED_RUNS = 20
"""The smallest number of runs whose spread is trusted. That of fewer runs, possibly all in quiet hours, is used only if
it is larger than the default."""

SpreadOf = Callable[[Measurement], Spread]


def default_spread(measurement: Measurement) -> Spread:
    """Return the spread of a measurement for which no profile has one.

    The values are rounded up from observations on H200 nodes (docs/compare.md).
    """
    if measurement.quantity is Quantity.DURATION or is_by_host(measurement):
        return Spread(0.15, "default for durations and round trips by message")
    if measurement.engine in CPU_ENGINES:
        return Spread(0.1, "default for CPU threads, which share their memory with all else on the host")
    ends = (end for flow in measurement.flows for end in (flow.source, flow.destination))
    if any(end.bus_id is None for end in ends):
        return Spread(0.04, "default for paths to host memory, which others use too")
    if measurement.quantity is Quantity.LATENCY:
        return Spread(0.01, "default for latencies between GPUs")
    return Spread(0.005, "default for bandwidths between GPUs")


def spread_of(machines: Sequence[Machine], warn: Callable[[str], None]) -> SpreadOf:
    """Return a function with the spreads of the profile that matches all machines.

    Parameters
    ----------
    warn
        A function that is called with a sentence about each broken profile, which is then skipped.
    """
    known = all_profiles(lambda error: warn(f"{error}; continuing without it"))
    return known_spread(machines, [profile for profile, _ in known])


def known_spread(machines: Sequence[Machine], profiles: Sequence[Profile]) -> SpreadOf:
    """Return a function with the spreads of the first profile that matches all machines, or else the defaults."""
    profile = choose(machines[0], profiles)[0] if machines else None
    if profile is None or not all(match_profile(machine, profile).fits for machine in machines[1:]):
        return default_spread

    def spread(measurement: Measurement) -> Spread:
        default = default_spread(measurement)
        reference = reference_for(measurement, profile)[0] if measurement.flows else None
        if reference is None or reference.run_to_run is None:
            return default
        runs = profile.sources[reference.source].runs or 0
        if runs < TRUSTED_RUNS and reference.run_to_run < default.value:
            return default
        return Spread(reference.run_to_run, f"profile {profile.name}")

    return spread


MOST = 0.75
"""The part of a GPU's paths that must differ to report the GPU; the change of the others may be just within the
bound."""

_FEW = 3
"""The maximum number of ends that :func:`touched` returns."""


def affected(
    differences: Sequence[PathDifference], measured: Mapping[str, Mapping[Key, MeasuredPath]]
) -> tuple[Affected, ...]:
    """Return a summary of what is worse, better, or slower for a reason that excuses it on each node, worse first.

    Parameters
    ----------
    measured
        All paths of each node.
    """
    gravity = [Outcome.WORSE, Outcome.BETTER, Outcome.DIFFERENT]
    by_class = grouped(
        ((path.node, path.outcome, (path.name, path.stage, path.link, path.size_bytes)), (index, path))
        for index, path in enumerate(differences)
        if path.outcome in (Outcome.WORSE, Outcome.BETTER) or path.is_slower
    )

    def ends(node: str, path_class: Alike) -> list[tuple[str, str]]:
        return [point.measurement.ends for point in measured.get(node, {}).values() if point.path_class == path_class]

    def unit(path: PathDifference) -> str:
        return path.unit if path.change is not None else ""

    parts = grouped(
        ((node, outcome, location, unit(differences[indices[0]])), (indices, count))
        for (node, outcome, path_class), paths in sorted(by_class.items())
        for location, indices, count in _locations(dict(paths), ends(node, path_class))
    )
    rows: list[Affected] = []
    for (node, outcome, location, _unit), groups in parts.items():
        numbers = [index for indices, _ in groups for index in indices]
        changes = [change for index in numbers if (change := differences[index].slower) is not None]
        rows.append(
            Affected(
                node=node,
                where=location,
                outcome=outcome,
                change=statistics.median(changes) if changes else None,
                cases=tuple(dict.fromkeys(differences[index].name for index in numbers)),
                paths=tuple(numbers),
                of=sum(count for _, count in groups),
            )
        )
    return tuple(sorted(rows, key=lambda row: (gravity.index(row.outcome), row.node, -(row.change or 0))))


def _locations(
    differing: Mapping[int, PathDifference], ends: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, list[int], int]]:
    """Yield the differing paths of one class in groups: location, indices of the paths, number of all paths there.

    Parameters
    ----------
    ends
        Source and destination of every path of the class.
    """
    rest = dict(differing)
    if len(rest) >= 3 and len(rest) == len(ends):
        yield "all paths", list(rest), len(ends)
        return
    for side, name in ((0, "{} -> *"), (1, "* -> {}")):
        for label, count in Counter(pair[side] for pair in ends).items():
            indices = [index for index, path in rest.items() if (path.source, path.destination)[side] == label]
            if count > 1 and len(indices) > 1 and len(indices) >= MOST * count:
                yield name.format(label), indices, count
                for index in indices:
                    del rest[index]
    for index, path in rest.items():
        yield path.path, [index], 1


def touched(differences: Sequence[PathDifference]) -> tuple[str, ...]:
    """Return a few ends such that each worse path has one of them; empty if that takes more than a few, or all ends."""
    # A collective touches all its GPUs.
    paths = [path for path in differences if not path.gpus]
    worse = [path for path in paths if path.change is not None and (path.outcome is Outcome.WORSE or path.is_slower)]
    labels = {label for path in paths for label in (path.source, path.destination)}
    left, selected = [{path.source, path.destination} for path in worse], list[str]()
    while left and len(selected) < _FEW:
        counted = Counter(label for pair in left for label in pair)
        selected.append(min(counted, key=lambda label: (-counted[label], natural(label))))
        left = [pair for pair in left if selected[-1] not in pair]
    return () if left or len(selected) >= len(labels) else tuple(sorted(selected, key=natural))


NORMAL = 1.4826
"""The ratio of standard deviation to median absolute deviation of a normal distribution."""

Points = Mapping[Key, MeasuredPath]


def path_differences(
    nodes: Sequence[str], runs: Sequence[Points], tolerance: float, spread: SpreadOf, *, of_nodes: bool
) -> Iterator[PathDifference]:
    """Yield the differences of paths from the reference: the first of two runs, or else the medians of all nodes.

    With several nodes only outliers are yielded. Paths without a value on at least half of the nodes have no reference.
    """
    reference = _usual(runs) if of_nodes else runs[0]
    scatter = _scatter(runs, reference) if of_nodes else {}
    for node, points in [*zip(nodes, runs, strict=True)][0 if of_nodes else 1 :]:
        for key in reference if of_nodes else dict.fromkeys((*reference, *points)):
            present = points.get(key) or reference[key]
            absent = replace(present, value=None, status=None)
            before, after = reference.get(key, absent), points.get(key, absent)
            sigma = scatter.get(before.path_class, 0.0)
            bound, bound_reason = _bound(tolerance, _spread(present.measurement, spread), sigma)
            outcome, reason = _outcome(before, after, bound, (nodes[0], node))
            is_beyond = outcome in (Outcome.WORSE, Outcome.BETTER) or after.value is None
            if outcome is None or (of_nodes and not is_beyond):
                continue
            old, new = before.value, after.value
            yield PathDifference(
                node=node,
                case=present.measurement.case,
                point=present.measurement.point,
                stage=present.stage,
                path=present.measurement.path,
                source=present.measurement.ends[0],
                destination=present.measurement.ends[1],
                gpus=present.measurement.labels if isinstance(present.measurement, ComparedCollective) else (),
                link=present.links,
                size_bytes=present.measurement.size_bytes,
                unit=present.measurement.quantity.unit,
                outcome=outcome,
                reference=old,
                value=new,
                change=None if old is None or new is None else new / old - 1,
                bound=bound,
                bound_reason=bound_reason,
                reason=reason,
            )


def _spread(measurement: Measurement | ComparedCollective, spread: SpreadOf) -> Spread:
    """Return the spread of a path by a function, and that of a collective, of which no profile has one."""
    if isinstance(measurement, ComparedCollective):
        return Spread(SPREAD, "default for bus bandwidths of NCCL")
    return spread(measurement)


def _outcome(
    before: MeasuredPath, after: MeasuredPath, bound: float, nodes: tuple[str, str]
) -> tuple[Outcome | None, str]:
    """Return the outcome and its reason; no outcome if both have the same status and neither has a value."""
    old, new = before.value, after.value
    if old is not None and new is not None:
        # Notes on unstable values, on links that differ, and on memory that is EGM on one side only.
        points = zip((before, after), nodes, strict=True)
        unstable = " and ".join(node for point, node in points if point.status is MeasurementStatus.UNSTABLE)
        notes = [f"unstable in {unstable}"] if unstable else []
        notes += [f"over {after.links}, not {before.links}"] if after.links != before.links else []
        egm = [" and ".join(sorted(point.egm)) for point in (after, before)]
        notes += [f"EGM: {', not '.join(egm)}"] if after.egm != before.egm else []
        slower = after.slower(old)
        proven = before.faulty != after.faulty and not (before.faulty and after.faulty)
        # A proven fault counts, whatever the number beside it is worth.
        if not all(point.believed or (proven and point.faulty) for point in (before, after)):
            doubted = [node for point, node in zip((before, after), nodes, strict=True) if not point.believed]
            return Outcome.DIFFERENT, "; ".join([f"not believed in {' and '.join(doubted)}", *notes])
        if proven:
            notes.append(f"{before.faulty or after.faulty} in {nodes[0] if before.faulty else nodes[1]}")
            return Outcome.WORSE if after.faulty else Outcome.BETTER, "; ".join(notes)
        if abs(slower) > bound:
            slow, fast = (after, before) if slower > 0 else (before, after)
            if MeasurementUse.COMPARE_WORSE in slow.forbidden or MeasurementUse.COMPARE_BETTER in fast.forbidden:
                node = nodes[1] if (slow is after) is (MeasurementUse.COMPARE_WORSE in slow.forbidden) else nodes[0]
                return Outcome.DIFFERENT, "; ".join([*notes, f"doubted in {node}"])
            return Outcome.WORSE if slower > 0 else Outcome.BETTER, "; ".join(notes)
        same = (before.status, before.links, before.egm) == (after.status, after.links, after.egm)
        return (Outcome.SAME, "") if same else (Outcome.DIFFERENT, "; ".join(notes))
    reasons = _reason(before, nodes[0]), _reason(after, nodes[1])
    # A path that a run lacks counts as waived.
    old_status, new_status = (point.status or MeasurementStatus.WAIVED for point in (before, after))
    if old is not None:
        return Outcome.WORSE if new_status in BROKEN else Outcome.DIFFERENT, reasons[1]
    if new is not None:
        return Outcome.BETTER if old_status in BROKEN else Outcome.DIFFERENT, reasons[0]
    if old_status is new_status:
        return None, ""
    return Outcome.DIFFERENT, reasons[1] if new_status in BROKEN else reasons[0]


def _reason(point: MeasuredPath, node: str) -> str:
    """Return the status of a path on a node, with the reason."""
    if point.status is None:
        return f"not measured in {node}"
    reason = f": {point.measurement.reason}" if point.measurement.reason else ""
    return f"{point.status.value} in {node}{reason}"


def _bound(tolerance: float, spread: Spread, sigma: float) -> tuple[float, str]:
    """Return the largest of the three bounds and its description."""
    return max(
        (tolerance, "the tolerance"),
        (spread.bound, f"{TIMES} x the spread of two runs, each {100 * spread.value:.2g} %: {spread.source}"),
        (OUTLIER * sigma, f"{OUTLIER} x the standard deviation of these paths over the nodes, {100 * sigma:.2g} %"),
    )


def _usual(runs: Sequence[Points]) -> Points:
    """Return the typical values of each path that has a value on at least half of the nodes, and on two or more."""
    usual: dict[Key, MeasuredPath] = {}
    for key in sorted({key for points in runs for key in points}):
        known = [points[key] for points in runs if key in points]
        values = [point.value for point in known if point.value is not None and point.believed]
        if len(values) > 1 and 2 * len(values) >= len(runs):
            usual[key] = replace(
                known[0],
                value=statistics.median(values),
                links=mode(point.links for point in known),
                egm=mode(point.egm for point in known),
                status=MeasurementStatus.OK,
            )
    return usual


def _scatter(runs: Sequence[Points], usual: Points) -> dict[Alike, float]:
    """Return the robust standard deviation of each class: of its paths' distances from their medians over the nodes.

    All paths of a class count together: from three nodes on they give an estimate, which three values of one path could
    not. A class has the links that most nodes have, as the paths of a node that lacks links would scatter as much as
    they are slow.
    """
    distances: dict[Alike, list[float]] = {}
    for key, reference in usual.items():
        for points in runs:
            if key in points and points[key].value is not None:
                distance = abs(points[key].slower(reference.value or 0))
                distances.setdefault(reference.path_class, []).append(distance)
    return {path_class: NORMAL * statistics.median(known) for path_class, known in distances.items()}
