"""Paths that differ, in short: those that begin or end at one GPU are told as that GPU's."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from egmctl.comparison.matching import Key, PathClass, Point
from egmctl.model.comparison import Affected, Outcome, PathDifference

MOST = 0.75
"""From this part of a GPU's paths on they are told as the GPU's: of a few the change may be just within the bound."""


def affected(
    differences: Sequence[PathDifference], measured: Mapping[str, Mapping[Key, Point]]
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
        parts: dict[tuple[Outcome, str, bool], list[tuple[list[int], int]]] = {}
        mine = [(place, one) for place, one in numbered if one.node == node]
        for key, those in _grouped(mine):
            outcome, path_class = key
            for where, places, of in _wheres(those, known.get(path_class, [])):
                numbers = differences[places[0]].change is not None
                parts.setdefault((outcome, where, numbers), []).append((places, of))
        rows += [_row(node, outcome, where, found, differences) for (outcome, where, _numbers), found in parts.items()]
    gravity = list(Outcome)
    return tuple(sorted(rows, key=lambda row: (gravity.index(row.outcome), row.node, -(row.change or 0))))


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
        return one.outcome, (one.case, one.stage, one.wire, one.size_bytes)

    for found, those in groupby(sorted(numbered, key=key), key=key):
        yield found, list(those)


def _ends_by_class(points: Iterable[Point]) -> dict[PathClass, list[str]]:
    known: dict[PathClass, list[str]] = {}
    for point in points:
        measurement = point.measurement
        path_class = measurement.case, point.stage, point.links, measurement.size_bytes
        known.setdefault(path_class, []).append(measurement.path)
    return known


def _wheres(
    differing: Sequence[tuple[int, PathDifference]], all_paths: Sequence[str]
) -> Iterator[tuple[str, list[int], int]]:
    """Yield what differs of one class: where, the places of its paths, and how many paths there are there."""
    left = {place: one.path for place, one in differing}
    if len(left) >= 3 and len(left) == len(all_paths):
        yield "all paths", list(left), len(all_paths)
        return
    for end, name in ((0, "{} -> *"), (1, "* -> {}")):
        rows: dict[str, list[str]] = {}
        for path in all_paths:
            rows.setdefault(_ends(path)[end], []).append(path)
        for label, row in rows.items():
            places = [place for place, path in left.items() if _ends(path)[end] == label]
            if len(row) > 1 and len(places) > 1 and len(places) >= MOST * len(row):
                yield name.format(label), places, len(row)
                for place in places:
                    del left[place]
    for place, path in left.items():
        yield path, [place], 1


def _ends(path: str) -> tuple[str, str]:
    """Return the two ends of ``GPU0 -> GPU1``; of both directions, each is an end of either."""
    for arrow in (" <-> ", " -> "):
        source, found, destination = path.partition(arrow)
        if found:
            return source, destination
    return path, path
