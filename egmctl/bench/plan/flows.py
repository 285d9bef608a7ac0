"""The flows of each pattern: the ends that exchange bytes, and the pairs that the user names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, permutations
from typing import NamedTuple

from egmctl.bench.case import Case, End
from egmctl.dataclass import dataclass
from egmctl.errors import UsageError
from egmctl.model.finding import Waiver, WaiverKind
from egmctl.model.gpu import Gpu
from egmctl.model.route import HOST_MEMORY, MemoryKind, Rank
from egmctl.model.task import CPU_ENGINES, Endpoint, Engine, Flow, Pattern
from egmctl.units import GIB, format_size, printable, shortened

FlowEnds = tuple[int, int]
"""The two ends of a flow: source and destination or, for ranks, the issuer and its peer."""


def expand(
    pattern: Pattern,
    count: int,
    *,
    meetings: Iterable[FlowEnds] | None = None,
    hubs: Iterable[int] | None = None,
    one_way: bool = False,
) -> Iterator[tuple[FlowEnds, ...]]:
    """Yield the flows of each task of a pattern; none if the pattern needs two ends and there is one.

    Parameters
    ----------
    count
        The number of ends.
    meetings
        The pairs to measure, both directions in turn; by default all pairs, ordered by the first end.
    hubs
        The single ends of patterns from or to one end; by default all.
    one_way
        Measure one direction of each pair, as for a round trip, which is the same from either end.
    """
    if pattern is Pattern.LOCAL:
        yield from (((first, first),) for first in range(count))
        return
    if count < 2:
        return
    indices = range(count)
    match pattern:
        case Pattern.BOTH_DIRECTIONS:
            pairs = combinations(indices, 2) if meetings is None else meetings
            yield from (((first, second), (second, first)) for first, second in pairs)
        case Pattern.RING | Pattern.BISECT:
            distance = 1 if pattern is Pattern.RING else count // 2
            yield tuple((first, (first + distance) % count) for first in indices)
        case Pattern.ALL_PAIRS:
            yield tuple(permutations(indices, 2))
        case Pattern.ONE_TO_ALL | Pattern.ALL_TO_ONE:
            for hub in indices if hubs is None else hubs:
                flows = tuple((hub, other) for other in indices if other != hub)
                yield flows if pattern is Pattern.ONE_TO_ALL else tuple(flow[::-1] for flow in flows)
        case _ if meetings is not None:
            for first, second in meetings:
                yield ((first, second),)
                yield ((second, first),)
        case _:
            # The load on a path is a flow of its own.
            count_of_flows = 2 if pattern is Pattern.LOADED else 1
            pairs = combinations(indices, 2) if one_way else permutations(indices, 2)
            yield from ((pair,) * count_of_flows for pair in pairs)


_LOCATION = re.compile(r"(?P<kind>GPU|NUMA)?(?P<number>[0-9]{1,4})", re.ASCII | re.IGNORECASE)
_SINGLE = (Pattern.PAIR, Pattern.BOTH_DIRECTIONS, Pattern.LOCAL, Pattern.LOADED)
"""Patterns of a single path; the others use all GPUs together."""


Location = Gpu | int
"""A GPU, or the number of a NUMA node."""
Pair = tuple[Location, Location]
"""Source and destination of the bytes."""


def parse_pairs(text: str, gpus: Sequence[Gpu], nodes: Sequence[int]) -> tuple[Pair, ...]:
    """Return the paths that a text such as ``0:1,GPU1:NUMA0`` names, each from source to destination.

    Raises
    ------
    UsageError
        A path is malformed, or its GPU or NUMA node is not selected.
    """
    return tuple(_pair(part.strip(), gpus, nodes) for part in text.split(","))


def measures_pair(pattern: Pattern, flows: Sequence[Flow], pairs: Sequence[Pair]) -> bool:
    """Return whether a task of these flows measures one of the paths and nothing else."""
    flows = flows if pattern is not Pattern.LOADED else flows[:1]
    both_directions = pattern is Pattern.BOTH_DIRECTIONS
    return pattern in _SINGLE and any(
        all(_joins(flow, pair) or (both_directions and _joins(flow, pair[::-1])) for flow in flows) for pair in pairs
    )


def _joins(flow: Flow, pair: Pair) -> bool:
    ends = zip(pair, (flow.source, flow.destination), strict=True)
    return all(
        end.bus_id == location.bus_id if isinstance(location, Gpu) else (end.bus_id, end.numa_node) == (None, location)
        for location, end in ends
    )


def _pair(text: str, gpus: Sequence[Gpu], nodes: Sequence[int]) -> Pair:
    ends = text.split(":")
    if len(ends) != 2:
        raise UsageError(f"--pair {printable(text[:100])!r}: expected two ends such as 0:1 or GPU0:NUMA1")
    return _location(ends[0], text, gpus, nodes), _location(ends[1], text, gpus, nodes)


def _location(text: str, pair: str, gpus: Sequence[Gpu], nodes: Sequence[int]) -> Location:
    match = _LOCATION.fullmatch(text.strip())
    option = f"--pair {printable(pair[:100])!r}"
    if match is None:
        raise UsageError(f"{option}: {printable(text[:100])!r} is neither a GPU (0, GPU0) nor a NUMA node (NUMA0)")
    number = int(match["number"])
    if (match["kind"] or "GPU").upper() == "NUMA":
        if number not in nodes:
            known = ", ".join(map(str, nodes)) or "none"
            raise UsageError(f"{option}: NUMA node {number} is not among those measured: {known}")
        return number
    gpu = next((gpu for gpu in gpus if gpu.index == number), None)
    if gpu is None:
        known = ", ".join(f"GPU{gpu.index}" for gpu in gpus)
        raise UsageError(f"{option}: GPU{number} is not among those measured: {known}")
    return gpu


class Ends(NamedTuple):
    """Source and destination of a flow's bytes."""

    source: Location
    destination: Location
    issuer: Gpu | None = None
    """The GPU that issues the work, if it is at neither end."""
    allocated_by: Gpu | None = None
    """The GPU that is current when the host memory is allocated, if the case selects one."""

    @property
    def back(self) -> Ends:
        """The same ends in the opposite direction."""
        return self._replace(source=self.destination, destination=self.source)


def flow_shape(case: Case) -> tuple[object, ...]:
    """Return what :func:`tasks_of` and :func:`initiator` read of a case: cases of equal shape have the same flows."""
    engine = case.engine if case.engine in (*CPU_ENGINES, Engine.PING_PONG) else None
    return case.source, case.destination, case.initiator, case.pattern, case.by_owner, engine


def tasks_of(case: Case, gpus: Sequence[Gpu], nodes: Sequence[int]) -> Iterator[tuple[Ends, ...]]:
    """Yield the flows of each task of a case; none if the case needs two GPUs and there is one."""
    host = case.source in HOST_MEMORY or case.destination in HOST_MEMORY
    if case.engine is Engine.PING_PONG and host:
        for node in nodes:
            yield from ((Ends(first, node), Ends(second, node)) for first, second in combinations(gpus, 2))
    elif MemoryKind.GPU_NUMA in (case.source, case.destination):
        for node in nodes:
            yield from ((Ends(gpu, node) if case.source is MemoryKind.GPU_NUMA else Ends(node, gpu),) for gpu in gpus)
    elif case.engine in CPU_ENGINES:
        for cpu_node in nodes:
            # STREAM's triad is about the memory, so no link is crossed.
            for node in (cpu_node,) if case.engine is Engine.CPU_TRIAD else nodes:
                yield (Ends(cpu_node, node) if case.destination in HOST_MEMORY else Ends(node, cpu_node),)
    elif case.source in HOST_MEMORY and case.destination in HOST_MEMORY:
        # Between NUMA nodes or, if there is only one, within it. Each GPU in turn carries the bytes.
        for first, second in permutations(nodes, 2) if len(nodes) > 1 else ((node, node) for node in nodes):
            yield from ((Ends(first, second, gpu),) for gpu in gpus)
    elif host:
        yield from _host_tasks(case, gpus, nodes)
    else:
        yield from _gpu_tasks(case, gpus)


def _host_tasks(case: Case, gpus: Sequence[Gpu], nodes: Sequence[int]) -> Iterator[tuple[Ends, ...]]:
    def ends(gpu: Gpu, node: int) -> Ends:
        return Ends(node, gpu) if case.source in HOST_MEMORY else Ends(gpu, node)

    if case.pattern in (Pattern.OWN_NODE, Pattern.OWN_NODE_BOTH):
        own_nodes = [(gpu, node) for gpu in gpus if (node := own_node_among(gpu, nodes)) is not None]
        if len(own_nodes) > 1:
            yield tuple(
                flow
                for gpu, node in own_nodes
                for flow in (ends(gpu, node), ends(gpu, node).back)[: 2 if case.pattern is Pattern.OWN_NODE_BOTH else 1]
            )
        return
    if case.by_owner:
        for node in nodes:
            local = [gpu for gpu in gpus if own_node_among(gpu, nodes) == node]
            if len(local) > 1:
                yield from ((ends(gpu, node)._replace(allocated_by=owner),) for owner in local for gpu in local)
        return
    for node in nodes:
        match case.pattern:
            case Pattern.ONE_NODE:
                if len(gpus) > 1:
                    yield tuple(ends(gpu, node) for gpu in gpus)
            case Pattern.BOTH_DIRECTIONS:
                yield from ((ends(gpu, node), ends(gpu, node).back) for gpu in gpus)
            case Pattern.LOADED:
                yield from ((ends(gpu, node), ends(gpu, node)) for gpu in gpus)
            case _:
                yield from ((ends(gpu, node),) for gpu in gpus)


def own_node_among(gpu: Gpu, nodes: Sequence[int]) -> int | None:
    """Return the NUMA node in ``nodes`` that is a GPU's own; ``None`` if its own is another one or unknown."""
    if gpu.host_numa_id is None:
        return nodes[0] if len(nodes) == 1 else None
    return gpu.host_numa_id if gpu.host_numa_id in nodes else None


def numa_node_of(gpu: Gpu) -> int | None:
    """Return the NUMA node that is the GPU's own memory; ``None`` if there is none."""
    return gpu.nvml.numa_node if gpu.nvml is not None else None


def _gpu_tasks(case: Case, gpus: Sequence[Gpu]) -> Iterator[tuple[Ends, ...]]:
    # Single paths are ordered by the GPU that issues the work.
    pulled = case.pattern in (Pattern.PAIR, Pattern.LOADED) and case.initiator is End.DESTINATION
    for flows in expand(case.pattern, len(gpus)):
        yield tuple(
            Ends(gpus[second], gpus[first]) if pulled else Ends(gpus[first], gpus[second]) for first, second in flows
        )


def initiator(case: Case, ends: Ends) -> Gpu | None:
    """Return the GPU that issues a flow's work; ``None`` for CPU threads."""
    if case.engine in CPU_ENGINES:
        return None
    if ends.issuer is not None:
        return ends.issuer
    first, second = ends.source, ends.destination
    if case.initiator is End.DESTINATION:
        first, second = second, first
    if isinstance(first, Gpu):
        return first
    return second if isinstance(second, Gpu) else None


def endpoint(memory: MemoryKind, location: Location, allocated_by: Gpu | None = None) -> Endpoint:
    """Return the record of one end of a flow.

    Parameters
    ----------
    allocated_by
        The GPU that is current when host memory is allocated, if the case selects one.
    """
    if isinstance(location, Gpu):
        node = numa_node_of(location) if memory is MemoryKind.GPU_NUMA else None
        return Endpoint(memory=memory, label=f"GPU{location.index}", bus_id=location.bus_id, numa_node=node)
    if allocated_by is None:
        label = f"{'CPU' if memory is MemoryKind.REGISTERS else 'NUMA'}{location}"
        return Endpoint(memory=memory, label=label, numa_node=location)
    name = f"GPU{allocated_by.index}"
    return Endpoint(
        memory=memory,
        label=f"NUMA{location} (by {name})",
        numa_node=location,
        allocated_by=allocated_by.bus_id,
        allocated_by_label=name,
    )


def own_endpoint(memory: MemoryKind, rank: Rank) -> Endpoint:
    """Return the end for memory that a rank allocates itself: host memory is on its NUMA node, if it has one."""
    if memory not in HOST_MEMORY or rank.numa_node is None:
        return Endpoint(memory=memory, label=rank.label, bus_id=rank.bus_id, rank=rank.number)
    # Memory of both ranks may be on the same NUMA node, so the label names the rank.
    label = f"{rank.label}:NUMA{rank.numa_node}"
    return Endpoint(memory=memory, label=label, numa_node=rank.numa_node, rank=rank.number)


IDLE_MEMORY_BYTES = GIB
"""The threshold of memory in use without a visible process; above it, another container uses the GPU. The driver itself
was seen to hold some 600 MiB on H200. If a GPU's memory is a NUMA node, the operating system's own pages are there
too."""

PIDS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Use:
    """The use of a GPU by other processes."""

    gpu: Gpu
    pids: tuple[int, ...] = ()
    """Process ids that NVML lists; empty if only the memory in use is known."""
    used_bytes: int = 0
    """Bytes in use without a visible process."""

    def __str__(self) -> str:
        label = f"GPU{self.gpu.index}"
        if self.pids:
            return f"{label} is in use by process {shortened(self.pids, PIDS_SHOWN)}"
        return f"{format_size(self.used_bytes)} of {label} are in use, by no process that is visible from here"


def gpu_use(gpu: Gpu) -> Use | None:
    """Return the use of a GPU by others; ``None`` if NVML shows none."""
    if gpu.nvml is None:
        return None
    if processes := gpu.nvml.processes:
        # Only pids: NVML's name of a process is its command line, which is private to its owner.
        return Use(gpu, tuple(process.pid for process in processes))
    used = gpu.nvml.memory_used_bytes or 0
    return Use(gpu, used_bytes=used) if used > IDLE_MEMORY_BYTES and gpu.nvml.numa_node is None else None


def busy_waiver(gpu: Gpu) -> Waiver | None:
    """Return a waiver for a GPU that others use, with the option that overrides it; ``None`` if it is unused."""
    if (use := gpu_use(gpu)) is None:
        return None
    return Waiver.about(WaiverKind.GPU_BUSY, f"{use}; 'egmctl bench --allow-busy' measures it anyway", gpu)
