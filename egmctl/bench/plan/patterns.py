"""From a pattern to the flows of its tasks: the one place that expands patterns. Pure.

Who takes part is a number here, from 0: a GPU of one process, or a rank of several, on one node or on many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, permutations

from egmctl.model.measurement import Pattern

FlowEnds = tuple[int, int]
"""The two ends of a flow: where bytes come from and go to or, of a pair, who issues the work and with whom."""


def expand(
    pattern: Pattern,
    count: int,
    *,
    meetings: Iterable[FlowEnds] | None = None,
    ones: Iterable[int] | None = None,
    one_way: bool = False,
) -> Iterator[tuple[FlowEnds, ...]]:
    """Yield the flows of each task of a pattern; of none where it needs two and there is one.

    Parameters
    ----------
    count
        How many take part.
    meetings
        The pairs that are measured, both ways one after the other; by default all, in the order of who issues the work.
    ones
        Of patterns from or to one: the ones; by default all.
    one_way
        Of each pair one direction is enough: a round trip is the same from either end.
    """
    if pattern is Pattern.LOCAL:
        yield from (((one, one),) for one in range(count))
        return
    if count < 2:
        return
    everyone = range(count)
    match pattern:
        case Pattern.BOTH_DIRECTIONS:
            met = combinations(everyone, 2) if meetings is None else meetings
            yield from (((one, other), (other, one)) for one, other in met)
        case Pattern.RING:
            yield tuple((one, (one + 1) % count) for one in everyone)
        case Pattern.BISECT:
            yield tuple((one, (one + count // 2) % count) for one in everyone)
        case Pattern.ALL_PAIRS:
            yield tuple(permutations(everyone, 2))
        case Pattern.ONE_TO_ALL:
            for one in everyone if ones is None else ones:
                yield tuple((one, other) for other in everyone if other != one)
        case Pattern.ALL_TO_ONE:
            for one in everyone if ones is None else ones:
                yield tuple((other, one) for other in everyone if other != one)
        case _ if meetings is not None:
            for one, other in meetings:
                yield ((one, other),)
                yield ((other, one),)
        case _:
            # What loads a path is a flow of its own.
            flows = 2 if pattern is Pattern.LOADED else 1
            chosen = combinations(everyone, 2) if one_way else permutations(everyone, 2)
            yield from ((pair,) * flows for pair in chosen)
