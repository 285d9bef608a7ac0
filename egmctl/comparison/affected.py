"""Paths that differ, in short: those that begin or end at one GPU are told as that GPU's."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from egmctl.comparison.matching import Key, MeasuredPath, PathClass
from egmctl.model.comparison import Affected, Outcome, PathDifference
from egmctl.units import natural

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
