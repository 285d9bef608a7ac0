"""What a path between processes costs beside the same path within one: pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from egmctl.bench.case import Case
from egmctl.model.measurement import Endpoint, Measurement, Task

_Key = tuple[object, ...]


def counterparts(cases: Iterable[Case], every: Sequence[Case]) -> list[Case]:
    """Return the cases that take the paths of some within one process, of all that there are."""
    names = {case.in_process for case in cases}
    return [case for case in every if case.name in names]


def set_beside(measurements: Sequence[Measurement], every: Sequence[Case]) -> tuple[Measurement, ...]:
    """Return measurements, those by several processes with what the same path gave within one (``in_process``)."""
    within = {_key(m, m.case): summary for m in measurements if not m.ranks and (summary := m.headline)}
    names = {case.name: case.in_process for case in every}

    def beside(m: Measurement) -> Measurement:
        summary = within.get(_key(m, names.get(m.case))) if m.ranks and m.headline else None
        return m if summary is None else replace(m, in_process=summary.median)

    return tuple(beside(m) for m in measurements)


def _key(task: Task, case: str | None) -> _Key:
    """Return what a task has in common with the one of ``case`` that takes the same path."""
    ends = tuple((flow.initiator, _place(flow.source), _place(flow.destination)) for flow in task.flows)
    return case, task.size_bytes, ends


def _place(end: Endpoint) -> object:
    return end.bus_id if end.numa_node is None else end.numa_node
