"""Which measurements of several runs are of the same path: by case, ends, size and how it was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from egmctl.model.measurement import Endpoint, Measurement, Quantity, RunReport, Summary
from egmctl.model.rank import Rank, node_names
from egmctl.model.route import Egm
from egmctl.model.task import UCX_ENGINES
from egmctl.verdict.classes import JUDGED_FROM_BYTES

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
