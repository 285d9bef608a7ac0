"""Paths that became faster or slower between runs, judged by how far runs of a healthy node differ."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import mode
from typing import NamedTuple

from egmctl.model.comparison import Affected, Outcome, PathDifference
from egmctl.model.machine import Machine
from egmctl.model.measurement import BROKEN, Endpoint, Measurement, Quantity, RunReport, Status, Summary
from egmctl.model.profile import Profile
from egmctl.model.route import Egm
from egmctl.model.task import CPU_ENGINES, UCX_ENGINES
from egmctl.model.ucx import Rank, node_names
from egmctl.saved import Saved
from egmctl.units import natural
from egmctl.verdict.profiles import choose, load_all, match_profile
from egmctl.verdict.yardsticks import JUDGED_FROM_BYTES, is_by_host, reference_for

PathClass = tuple[str, str, str, int]
"""Case, stage, links and bytes: paths of one are alike."""


class Key(NamedTuple):
    """What makes a path of one run the same as that of another."""

    case: str
    stage: str
    ends: tuple[tuple[str, ...], ...]
    size_bytes: int
    """0 where it does not matter: the runs have the case at one size each, :data:`JUDGED_FROM_BYTES` or more. A run
    whose usual size did not fit took another."""
    how: tuple[str, ...]
    again: int
    """0, unless one run has the same path several times."""


@dataclass(frozen=True, slots=True)
class MeasuredPath:
    """One path of one run."""

    measurement: Measurement
    stage: str
    summary: Summary | None
    """``None`` where nothing was measured."""

    @property
    def value(self) -> float | None:
        """The median; ``None`` where there is none that says anything."""
        return self.summary.median if self.summary is not None and self.summary.median > 0 else None

    @property
    def unit(self) -> str:
        """The median's unit."""
        return self.measurement.quantity.unit

    @property
    def links(self) -> str:
        """The symbols of its routes."""
        return ", ".join(dict.fromkeys(flow.route.symbol for flow in self.measurement.flows))

    @property
    def egm(self) -> frozenset[Egm]:
        """Whether the host memory at its ends is EGM, where there is such."""
        return frozenset(flow.route.egm for flow in self.measurement.flows if flow.route.egm is not None)

    def slower(self, reference: float) -> float:
        """Return by what part of ``reference`` this path is slower, negative where it is faster."""
        change = (self.value or 0) / reference - 1
        return -change if self.measurement.quantity is Quantity.BANDWIDTH else change


class GpuNames:
    """What the GPUs of several files are called, so that the same GPU, or that in the same place, has one name.

    Parameters
    ----------
    indices
        For each file the index of each GPU by its bus id.
    """

    def __init__(self, indices: Sequence[Mapping[str, int]]) -> None:
        self.by_index = all(indices) and not set(indices[0]).intersection(*indices[1:])
        """The files have no bus id in common: their GPUs are matched by index."""
        self._indices = indices

    def name(self, file: int, bus_id: str) -> str:
        """Return the name of a GPU of one of the files."""
        index = self._indices[file].get(bus_id)
        return f"GPU{index}" if self.by_index and index is not None else bus_id

    def label(self, file: int, bus_id: str) -> str:
        """Return what people call a GPU of one of the files."""
        index = self._indices[file].get(bus_id)
        return bus_id if index is None else f"GPU{index}"


def points(runs: Sequence[RunReport], names: GpuNames) -> list[dict[Key, MeasuredPath]]:
    """Return the paths of each run by what makes them the same."""
    found: list[dict[Key, MeasuredPath]] = []
    sized = _sized(runs)
    for number, run in enumerate(runs):
        mine: dict[Key, MeasuredPath] = {}
        of_run = _Ranks(run.ranks, names, number)
        for measurement in run.measurements:
            for point in _points(measurement):
                key = _key(point, names, number, of_run)
                if measurement.case not in sized:
                    key = key._replace(size_bytes=0)
                while key in mine:
                    key = key._replace(again=key.again + 1)
                mine[key] = point
        found.append(mine)
    return found


def _sized(runs: Sequence[RunReport]) -> set[str]:
    """Return the cases whose sizes matter."""
    sized = set()
    for run in runs:
        sizes: dict[str, set[int]] = {}
        for measurement in run.measurements:
            sizes.setdefault(measurement.case, set()).add(measurement.size_bytes)
            if measurement.quantity is not Quantity.BANDWIDTH or measurement.size_bytes < JUDGED_FROM_BYTES:
                sized.add(measurement.case)
        sized |= {case for case, those in sizes.items() if len(those) > 1}
    return sized


def _points(measurement: Measurement) -> Iterator[MeasuredPath]:
    if measurement.quantity is Quantity.DURATION:
        for stage in measurement.stages:
            yield MeasuredPath(measurement, stage.name, stage.ms if measurement.measured else None)
        if not measurement.stages:
            yield MeasuredPath(measurement, "", None)
    else:
        yield MeasuredPath(measurement, "", measurement.headline)


def _key(point: MeasuredPath, names: GpuNames, run: int, ranks: _Ranks) -> Key:
    measurement = point.measurement
    chase = measurement.chase
    how = (
        measurement.engine.value,
        measurement.pattern.value,
        str(measurement.streams),
        *(() if chase is None else (chase.order.value, str(chase.stride_bytes), str(chase.warm))),
        *(() if chase is None else (str(chase.load_blocks),)),
        *(() if measurement.blocks is None else (f"{measurement.blocks} blocks",)),
    )
    ends = tuple(
        (
            ranks.owner(measurement, end),
            end.memory.value,
            f"NUMA{end.numa_node}" if end.bus_id is None else names.name(run, end.bus_id),
            end.handle.value if end.handle else "",
            # Of several processes the rank tells.
            *((names.name(run, end.allocated_by),) if end.allocated_by is not None and end.rank is None else ()),
        )
        for flow in measurement.flows
        for end in (flow.source, flow.destination)
    )
    issuers = tuple(
        ("by", "" if flow.initiator is None else names.name(run, flow.initiator)) for flow in measurement.flows
    )
    return Key(measurement.case, point.stage, ends + issuers, measurement.size_bytes, how, 0)


class _Ranks:
    """Who has made the memory at an end, where that tells it from other memory of the same place."""

    def __init__(self, ranks: Sequence[Rank], names: GpuNames, run: int) -> None:
        nodes = node_names(rank.host for rank in ranks)
        self._nodes = {rank.number: nodes.get(rank.host, "") for rank in ranks}
        self._gpus = {rank.number: names.name(run, rank.bus_id) for rank in ranks}
        self._of_job = {rank.number for rank in ranks if rank.host is not None}

    def owner(self, measurement: Measurement, end: Endpoint) -> str:
        """Return the node, in a run over several; of host memory that is reached over its maker's GPU, that GPU too."""
        rank = end.rank
        if rank is None or rank not in self._nodes:
            return ""
        by_maker = end.bus_id is None and (rank in self._of_job or measurement.engine in UCX_ENGINES)
        return f"{self._nodes[rank]}:{self._gpus[rank]}" if by_maker else self._nodes[rank]


TOLERANCE = 0.05
"""What a median may differ by: a little less than what one lost NVLink of 18 costs, which is 5.6 %. Any other fault of
a link (a PCIe link at half its width or speed, a C2C link down) costs more."""

TIMES = 3
"""How many times the known spread a difference must be, of two runs: ``sqrt(2)`` times that of one."""

OUTLIER = 5
"""Of more than two nodes, how many standard deviations of their paths' distances from the medians a difference must be
as well: a node has hundreds of paths, and of a normal spread one in a million is farther out."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Standard deviation of one path's medians over many runs, as a part of their middle."""

    value: float
    source: str

    @property
    def bound(self) -> float:
        """What two runs may differ by."""
        return TIMES * math.sqrt(2) * self.value


DEFAULTS = {
    "between GPUs": Spread(0.005, "default for bandwidths between GPUs"),
    "latency": Spread(0.01, "default for latencies between GPUs"),
    "host": Spread(0.04, "default for paths to host memory, which others use too"),
    "cpu": Spread(0.1, "default for CPU threads, which share their memory with all else on the host"),
    "duration": Spread(0.15, "default for durations and round trips by message"),
}
"""Where no profile says more: rounded up from what was seen on H200 nodes, which docs/compare.md has."""

TRUSTED_RUNS = 20
"""A profile of fewer runs may have met quiet hours only: its spread counts where it is larger than the default."""

SpreadOf = Callable[[Measurement], Spread]


def default_spread(measurement: Measurement) -> Spread:
    """Return the spread of what was measured where no profile has one."""
    if measurement.quantity is Quantity.DURATION or is_by_host(measurement):
        return DEFAULTS["duration"]
    if measurement.engine in CPU_ENGINES:
        return DEFAULTS["cpu"]
    ends = (end for flow in measurement.flows for end in (flow.source, flow.destination))
    if any(end.bus_id is None for end in ends):
        return DEFAULTS["host"]
    return DEFAULTS["latency" if measurement.quantity is Quantity.LATENCY else "between GPUs"]


def spread_of(saved: Sequence[Saved], warn: Callable[[str], None]) -> SpreadOf:
    """Return a function that knows the spreads of the profile that fits all machines of some results.

    Parameters
    ----------
    warn
        Told in a sentence of each profile that is broken: the comparison goes on without it.
    """
    known = load_all(lambda error: warn(f"{error}; continuing without it"))
    return known_spread([machine for one in saved for machine in one.machines], [profile for profile, _ in known])


def known_spread(machines: Sequence[Machine], profiles: Sequence[Profile]) -> SpreadOf:
    """Return a function that knows the spreads of the profile that fits all of the machines, and else the defaults.

    Parameters
    ----------
    profiles
        In the order in which they are asked: :func:`egmctl.verdict.profiles.load_all`.
    """
    profile = choose(machines[0], profiles)[0] if machines else None
    if profile is not None and not all(match_profile(machine, profile).fits for machine in machines[1:]):
        profile = None

    def spread(measurement: Measurement) -> Spread:
        reference = reference_for(measurement, profile)[0] if profile is not None and measurement.flows else None
        default = default_spread(measurement)
        if profile is None or reference is None or reference.run_to_run is None:
            return default
        runs = profile.sources[reference.source].runs or 0
        if runs < TRUSTED_RUNS and reference.run_to_run < default.value:
            return default
        return Spread(reference.run_to_run, f"profile {profile.name}")

    return spread


MOST = 0.75
"""From this part of a GPU's paths on they are told as the GPU's: of a few the change may be just within the bound."""

_Ends = tuple[str, str]
"""Source and destination, as people call them."""


_FEW = 3
"""More ends are nothing in common."""


def affected(
    differences: Sequence[PathDifference], measured: Mapping[str, Mapping[Key, MeasuredPath]]
) -> tuple[Affected, ...]:
    """Return what is worse or better of each node in short, the gravest first.

    Parameters
    ----------
    measured
        All paths of each node.
    """
    rows: list[Affected] = []
    numbered = [(place, one) for place, one in enumerate(differences) if one.outcome in (Outcome.WORSE, Outcome.BETTER)]
    for node in dict.fromkeys(one.node for _, one in numbered):
        known = _ends_by_class(measured.get(node, {}).values())
        parts: dict[tuple[Outcome, str, str], list[tuple[list[int], int]]] = {}
        mine = [(place, one) for place, one in numbered if one.node == node]
        for key, those in _grouped(mine):
            outcome, path_class = key
            for where, places, of in _wheres(those, known.get(path_class, [])):
                first = differences[places[0]]
                unit = first.unit if first.change is not None else ""
                parts.setdefault((outcome, where, unit), []).append((places, of))
        rows += [_row(node, outcome, where, found, differences) for (outcome, where, _unit), found in parts.items()]
    gravity = list(Outcome)
    return tuple(sorted(rows, key=lambda row: (gravity.index(row.outcome), row.node, -(row.change or 0))))


def touched(differences: Sequence[PathDifference]) -> tuple[str, ...]:
    """Return the fewest ends that every worse path touches; none where it takes more than a few, or all there are."""
    worse = [one for one in differences if one.outcome is Outcome.WORSE and one.change is not None]
    everyone = {end for one in differences for end in (one.source, one.destination)}
    left, found = [{one.source, one.destination} for one in worse], list[str]()
    while left and len(found) < _FEW:
        counted = Counter(end for ends in left for end in ends)
        found.append(min(counted, key=lambda end: (-counted[end], natural(end))))
        left = [ends for ends in left if found[-1] not in ends]
    return () if left or len(found) >= len(everyone) else tuple(sorted(found, key=natural))


def _row(
    node: str,
    outcome: Outcome,
    where: str,
    found: Sequence[tuple[list[int], int]],
    differences: Sequence[PathDifference],
) -> Affected:
    places = [place for those, _ in found for place in those]
    changes = [change for place in places if (change := differences[place].slower) is not None]
    return Affected(
        node=node,
        where=where,
        outcome=outcome,
        change=statistics.median(changes) if changes else None,
        cases=tuple(dict.fromkeys(differences[place].case for place in places)),
        paths=tuple(places),
        of=sum(of for _, of in found),
    )


def _grouped(
    numbered: Iterable[tuple[int, PathDifference]],
) -> Iterator[tuple[tuple[Outcome, PathClass], list[tuple[int, PathDifference]]]]:
    def key(item: tuple[int, PathDifference]) -> tuple[Outcome, PathClass]:
        one = item[1]
        return one.outcome, (one.case, one.stage, one.link, one.size_bytes)

    for found, those in groupby(sorted(numbered, key=key), key=key):
        yield found, list(those)


def _ends_by_class(points: Iterable[MeasuredPath]) -> dict[PathClass, list[_Ends]]:
    known: dict[PathClass, list[_Ends]] = {}
    for point in points:
        measurement = point.measurement
        path_class = measurement.case, point.stage, point.links, measurement.size_bytes
        known.setdefault(path_class, []).append(measurement.ends)
    return known


def _wheres(
    differing: Sequence[tuple[int, PathDifference]], all_paths: Sequence[_Ends]
) -> Iterator[tuple[str, list[int], int]]:
    """Yield what differs of one class: where, the places of its paths, and how many paths there are there."""
    left = dict(differing)
    if len(left) >= 3 and len(left) == len(all_paths):
        yield "all paths", list(left), len(all_paths)
        return
    for end, name in ((0, "{} -> *"), (1, "* -> {}")):
        counts = Counter(ends[end] for ends in all_paths)
        for label, count in counts.items():
            places = [place for place, one in left.items() if (one.source, one.destination)[end] == label]
            if count > 1 and len(places) > 1 and len(places) >= MOST * count:
                yield name.format(label), places, count
                for place in places:
                    del left[place]
    for place, one in left.items():
        yield one.path, [place], 1


NORMAL = 1.4826
"""Standard deviation of a normal distribution by its median absolute deviation."""

Points = Mapping[Key, MeasuredPath]


def against_first(
    nodes: Sequence[str], runs: Sequence[Points], tolerance: float, spread: SpreadOf
) -> list[PathDifference]:
    """Return what the paths of the second of two runs are to those of the first."""
    first, second = runs
    found = []
    for key in dict.fromkeys((*first, *second)):
        before, after = first.get(key), second.get(key)
        either = after or before
        if either is None:
            continue
        bound = _bound(tolerance, spread(either.measurement), 0.0)
        outcome, reason = _outcome(before, after, bound[0], nodes)
        if outcome is not None:
            found.append(_difference(nodes[1], either, outcome, _value(before), _value(after), bound, reason))
    return found


def against_all(
    nodes: Sequence[str], runs: Sequence[Points], tolerance: float, spread: SpreadOf
) -> list[PathDifference]:
    """Return how the paths of each of several nodes differ from the median of all; ones that most lack are left out."""
    medians = dict(_medians(runs))
    links = {key: mode(points[key].links for points in runs if key in points) for key in medians}
    egm = {key: mode(points[key].egm for points in runs if key in points) for key in medians}
    scatter = _scatter(runs, medians, links)
    found = []
    for node, points in zip(nodes, runs, strict=True):
        for key, median in medians.items():
            point = points.get(key)
            either = point or next(one[key] for one in runs if key in one)
            bound = _bound(tolerance, spread(either.measurement), scatter[_path_class(key, links)])
            if point is None or point.value is None:
                broken = point is not None and point.measurement.status in BROKEN
                outcome, reason = Outcome.WORSE if broken else Outcome.DIFFERENT, _why_none(point, node)
            else:
                slower = point.slower(median)
                if abs(slower) <= bound[0]:
                    continue
                outcome = Outcome.WORSE if slower > 0 else Outcome.BETTER
                reason = _joined(_unsure(point, node), _other_route(point, links[key], egm[key]))
            found.append(_difference(node, either, outcome, median, _value(point), bound, reason))
    return found


def compared(runs: Sequence[Points]) -> int:
    """Return how many paths have a number in two runs or more."""
    return sum(sum(points[key].value is not None for points in runs if key in points) > 1 for key in _keys(runs))


def _outcome(
    before: MeasuredPath | None, after: MeasuredPath | None, bound: float, nodes: Sequence[str]
) -> tuple[Outcome | None, str]:
    """Return what the two are to each other and why; no outcome where neither has a number, for the same reason."""
    if before is None or after is None or before.value is None or after.value is None:
        return _one_sided(before, after, nodes)
    slower = after.slower(before.value)
    reason = _joined(
        _unsure(before, nodes[0]) or _unsure(after, nodes[1]), _other_route(after, before.links, before.egm)
    )
    if abs(slower) > bound:
        return Outcome.WORSE if slower > 0 else Outcome.BETTER, reason
    same = before.measurement.status is after.measurement.status and (before.links, before.egm) == (
        after.links,
        after.egm,
    )
    return (Outcome.SAME, "") if same else (Outcome.DIFFERENT, reason)


def _one_sided(
    before: MeasuredPath | None, after: MeasuredPath | None, nodes: Sequence[str]
) -> tuple[Outcome | None, str]:
    if before is not None and before.value is not None:
        broken = after is not None and after.measurement.status in BROKEN
        return Outcome.WORSE if broken else Outcome.DIFFERENT, _why_none(after, nodes[1])
    if after is not None and after.value is not None:
        broken = before is not None and before.measurement.status in BROKEN
        return Outcome.BETTER if broken else Outcome.DIFFERENT, _why_none(before, nodes[0])
    statuses = [point.measurement.status if point is not None else Status.WAIVED for point in (before, after)]
    if statuses[0] is statuses[1]:
        return None, ""
    worse = statuses[1] in BROKEN
    return Outcome.DIFFERENT, _why_none(after if worse else before, nodes[worse])


def _value(point: MeasuredPath | None) -> float | None:
    return None if point is None else point.value


def _why_none(point: MeasuredPath | None, node: str) -> str:
    if point is None:
        return f"not measured in {node}"
    reason = f": {point.measurement.reason}" if point.measurement.reason else ""
    return f"{point.measurement.status.value} in {node}{reason}"


def _unsure(point: MeasuredPath, node: str) -> str:
    return _why_none(point, node) if point.measurement.status is Status.UNSTABLE else ""


def _other_route(point: MeasuredPath, usual: str, usual_egm: frozenset[Egm]) -> str:
    """Say that bytes take other links than is usual, or that memory is EGM on one side only."""
    over = "" if point.links == usual else f"over {point.links}, not {usual}"
    if point.egm == usual_egm:
        return over
    return _joined(over, f"EGM: {' and '.join(sorted(point.egm))}, not {' and '.join(sorted(usual_egm))}")


def _joined(*reasons: str) -> str:
    return "; ".join(filter(None, reasons))


def _bound(tolerance: float, spread: Spread, sigma: float) -> tuple[float, str]:
    """Return the largest of the three bounds, and which one it is."""
    return max(
        (tolerance, "the tolerance"),
        (spread.bound, f"{TIMES} x the spread of two runs, each {100 * spread.value:.2g} %: {spread.source}"),
        (OUTLIER * sigma, f"{OUTLIER} x the standard deviation of these paths over the nodes, {100 * sigma:.2g} %"),
    )


def _keys(runs: Sequence[Points]) -> dict[Key, None]:
    return dict.fromkeys(key for points in runs for key in points)


def _medians(runs: Sequence[Points]) -> Iterator[tuple[Key, float]]:
    """Yield the median over the nodes of each path that at least half of them have a number of."""
    for key in sorted(_keys(runs)):
        values = [value for points in runs if key in points and (value := points[key].value) is not None]
        if len(values) > 1 and 2 * len(values) >= len(runs):
            yield key, statistics.median(values)


def _path_class(key: Key, links: Mapping[Key, str]) -> PathClass:
    return key.case, key.stage, links[key], key.size_bytes


def _scatter(runs: Sequence[Points], medians: Mapping[Key, float], links: Mapping[Key, str]) -> dict[PathClass, float]:
    """Return the robust standard deviation of each class: of how far its paths are from their medians over the nodes.

    All paths of a class together tell it from three nodes on, where one path's three values could not. A class is of
    the links that most nodes have: the paths of one node that lacks links would scatter as much as they are slow.
    """
    distances: dict[PathClass, list[float]] = {}
    for key, median in medians.items():
        known = distances.setdefault(_path_class(key, links), [])
        of_key = (points[key] for points in runs if key in points)
        known += [abs(point.slower(median)) for point in of_key if point.value is not None]
    return {one: NORMAL * statistics.median(known) for one, known in distances.items()}


def _difference(
    node: str,
    point: MeasuredPath,
    outcome: Outcome,
    reference: float | None,
    value: float | None,
    bound: tuple[float, str],
    reason: str,
) -> PathDifference:
    return PathDifference(
        node=node,
        case=point.measurement.case,
        stage=point.stage,
        path=point.measurement.path,
        source=point.measurement.ends[0],
        destination=point.measurement.ends[1],
        link=point.links,
        size_bytes=point.measurement.size_bytes,
        unit=point.unit,
        outcome=outcome,
        reference=reference,
        value=value,
        change=None if reference is None or value is None else value / reference - 1,
        bound=bound[0],
        bound_reason=bound[1],
        reason=reason,
    )
