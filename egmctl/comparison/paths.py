"""The paths of runs of the bench against each other: a second run against the first, or each node against all."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from statistics import mode

from egmctl.comparison.matching import Key, MeasuredPath, PathClass
from egmctl.comparison.spread import OUTLIER, TIMES, Spread, SpreadOf
from egmctl.model.comparison import Outcome, PathDifference
from egmctl.model.measurement import BROKEN, Status
from egmctl.model.route import Egm

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
