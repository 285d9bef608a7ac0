"""``--pair A:B``: paths that are picked by hand. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from egmctl.errors import UsageError
from egmctl.model.machine import Gpu
from egmctl.model.measurement import Endpoint, Flow, Pattern, Task
from egmctl.units import printable

_END = re.compile(r"(?P<kind>GPU|NUMA)?(?P<number>[0-9]{1,4})", re.ASCII | re.IGNORECASE)
_SINGLE = (Pattern.PAIR, Pattern.BOTH_DIRECTIONS, Pattern.LOCAL, Pattern.LOADED)
"""Patterns of one path; the others are of all GPUs together."""


@dataclass(frozen=True, slots=True)
class End:
    """One end of a path: a GPU, or the memory or the CPUs of a NUMA node."""

    bus_id: str | None
    numa_node: int | None

    def is_at(self, end: Endpoint) -> bool:
        """Say whether an end of a flow is this one."""
        if self.bus_id is not None:
            return end.bus_id == self.bus_id
        return (end.bus_id, end.numa_node) == (None, self.numa_node)


Pair = tuple[End, End]
"""Where the bytes come from and where they go to."""


def parse_pairs(text: str, gpus: Sequence[Gpu], nodes: Sequence[int]) -> tuple[Pair, ...]:
    """Return the paths that ``0:1,GPU1:NUMA0`` names, each in the direction in which the bytes move.

    Raises
    ------
    UsageError
        For a path that is none, or of a GPU or a NUMA node that is not chosen.
    """
    return tuple(_pair(part.strip(), gpus, nodes) for part in text.split(","))


def picked(task: Task, pairs: Sequence[Pair]) -> bool:
    """Say whether a task measures one of the paths, and nothing else."""
    flows = task.flows if task.pattern is not Pattern.LOADED else task.flows[:1]
    return task.pattern in _SINGLE and any(
        all(_is_of(flow, pair) for flow in flows) for pair in _both_ways(task, pairs)
    )


def _both_ways(task: Task, pairs: Sequence[Pair]) -> list[tuple[Pair, ...]]:
    """Return for each pair the directions that its flows may have."""
    if task.pattern is Pattern.BOTH_DIRECTIONS:
        return [(pair, pair[::-1]) for pair in pairs]
    return [(pair,) for pair in pairs]


def _is_of(flow: Flow, ways: Sequence[Pair]) -> bool:
    return any(source.is_at(flow.source) and destination.is_at(flow.destination) for source, destination in ways)


def _pair(text: str, gpus: Sequence[Gpu], nodes: Sequence[int]) -> Pair:
    ends = text.split(":")
    if len(ends) != 2:
        raise UsageError(f"--pair {printable(text[:100])!r}: expected two ends such as 0:1 or GPU0:NUMA1")
    return _end(ends[0], text, gpus, nodes), _end(ends[1], text, gpus, nodes)


def _end(text: str, pair: str, gpus: Sequence[Gpu], nodes: Sequence[int]) -> End:
    found = _END.fullmatch(text.strip())
    what = f"--pair {printable(pair[:100])!r}"
    if found is None:
        raise UsageError(f"{what}: {printable(text[:100])!r} is neither a GPU (0, GPU0) nor a NUMA node (NUMA0)")
    number = int(found["number"])
    if (found["kind"] or "GPU").upper() == "NUMA":
        if number not in nodes:
            known = ", ".join(map(str, nodes)) or "none"
            raise UsageError(f"{what}: NUMA node {number} is not among those measured: {known}")
        return End(None, number)
    gpu = next((gpu for gpu in gpus if gpu.index == number), None)
    if gpu is None:
        known = ", ".join(f"GPU{gpu.index}" for gpu in gpus)
        raise UsageError(f"{what}: GPU{number} is not among those measured: {known}")
    return End(gpu.bus_id, None)
