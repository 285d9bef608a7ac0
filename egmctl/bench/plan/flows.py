"""From a case to the ends of its flows, for some GPUs and NUMA nodes: pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations
from typing import NamedTuple

from egmctl.bench.case import Case, End
from egmctl.bench.plan.patterns import expand
from egmctl.model.machine import Gpu
from egmctl.model.measurement import Endpoint, Engine, MemoryKind, Pattern
from egmctl.model.memory import HOST_MEMORY
from egmctl.model.rank import Rank
from egmctl.model.task import CPU_ENGINES

Place = Gpu | int
"""A GPU, or the number of a NUMA node."""


class Ends(NamedTuple):
    """Where a flow's bytes come from and go to."""

    source: Place
    destination: Place
    by: Gpu | None = None
    """The GPU that issues the work, where it is at neither end."""
    allocated_by: Gpu | None = None
    """The GPU under which the host memory is allocated, where that is chosen."""

    @property
    def back(self) -> Ends:
        """The same the other way."""
        return self._replace(source=self.destination, destination=self.source)


def tasks_of(case: Case, gpus: Sequence[Gpu], nodes: Sequence[int]) -> Iterator[tuple[Ends, ...]]:
    """Yield the flows of each task that a case makes; of none, where it needs two GPUs and there is one."""
    host = case.source in HOST_MEMORY or case.destination in HOST_MEMORY
    if case.engine is Engine.PING_PONG and host:
        for node in nodes:
            yield from ((Ends(one, node), Ends(other, node)) for one, other in combinations(gpus, 2))
    elif MemoryKind.GPU_NUMA in (case.source, case.destination):
        for node in nodes:
            yield from ((Ends(gpu, node) if case.source is MemoryKind.GPU_NUMA else Ends(node, gpu),) for gpu in gpus)
    elif case.engine in CPU_ENGINES:
        for cpu_node in nodes:
            for node in nodes:
                yield (Ends(cpu_node, node) if case.destination in HOST_MEMORY else Ends(node, cpu_node),)
    elif case.source in HOST_MEMORY and case.destination in HOST_MEMORY:
        # Between nodes or, where there is one, within it: each GPU carries the bytes.
        for one, other in permutations(nodes, 2) if len(nodes) > 1 else ((node, node) for node in nodes):
            yield from ((Ends(one, other, gpu),) for gpu in gpus)
    elif host:
        yield from _with_host(case, gpus, nodes)
    else:
        yield from _between_gpus(case, gpus)


def _with_host(case: Case, gpus: Sequence[Gpu], nodes: Sequence[int]) -> Iterator[tuple[Ends, ...]]:
    def ends(gpu: Gpu, node: int) -> Ends:
        return Ends(node, gpu) if case.source in HOST_MEMORY else Ends(gpu, node)

    if case.pattern in (Pattern.OWN_NODE, Pattern.OWN_NODE_BOTH):
        own = [(gpu, node) for gpu in gpus if (node := own_node(gpu, nodes)) is not None]
        if len(own) > 1:
            yield tuple(
                flow
                for gpu, node in own
                for flow in (ends(gpu, node), ends(gpu, node).back)[: 2 if case.pattern is Pattern.OWN_NODE_BOTH else 1]
            )
        return
    if case.by_owner:
        for node in nodes:
            near = [gpu for gpu in gpus if own_node(gpu, nodes) == node]
            if len(near) > 1:
                yield from ((ends(gpu, node)._replace(allocated_by=owner),) for owner in near for gpu in near)
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


def own_node(gpu: Gpu, nodes: Sequence[int]) -> int | None:
    """Return which of some NUMA nodes is a GPU's own; ``None`` if that is another one, or is not known."""
    if gpu.host_numa_id is None:
        return nodes[0] if len(nodes) == 1 else None
    return gpu.host_numa_id if gpu.host_numa_id in nodes else None


def numa_node_of(gpu: Gpu) -> int | None:
    """Return the NUMA node that a GPU's own memory is; ``None`` where it is none."""
    return gpu.nvml.numa_node if gpu.nvml is not None else None


def _between_gpus(case: Case, gpus: Sequence[Gpu]) -> Iterator[tuple[Ends, ...]]:
    # Single paths are in the order of the GPUs that issue the work.
    pulled = case.pattern in (Pattern.PAIR, Pattern.LOADED) and case.initiator is End.DESTINATION
    for flows in expand(case.pattern, len(gpus)):
        yield tuple(Ends(gpus[other], gpus[one]) if pulled else Ends(gpus[one], gpus[other]) for one, other in flows)


def initiator(case: Case, ends: Ends) -> Gpu | None:
    """Return the GPU that issues a flow's work; ``None`` for CPU threads."""
    if case.engine in CPU_ENGINES:
        return None
    gpus = [place for place in (ends.by, ends.source, ends.destination) if isinstance(place, Gpu)]
    if len(gpus) < 2:
        return gpus[0] if gpus else None
    return gpus[0] if case.initiator is End.SOURCE else gpus[1]


def endpoint(memory: MemoryKind, place: Place, allocated_by: Gpu | None = None) -> Endpoint:
    """Return one end of a flow as results name it.

    Parameters
    ----------
    allocated_by
        The GPU under which host memory is allocated, where that is chosen.
    """
    if isinstance(place, Gpu):
        node = numa_node_of(place) if memory is MemoryKind.GPU_NUMA else None
        return Endpoint(memory=memory, label=f"GPU{place.index}", bus_id=place.bus_id, numa_node=node)
    if memory is MemoryKind.REGISTERS:
        return Endpoint(memory=memory, label=f"CPU{place}", numa_node=place)
    if allocated_by is None:
        return Endpoint(memory=memory, label=f"NUMA{place}", numa_node=place)
    name = f"GPU{allocated_by.index}"
    return Endpoint(
        memory=memory,
        label=f"NUMA{place} (by {name})",
        numa_node=place,
        allocated_by=allocated_by.bus_id,
        allocated_by_label=name,
    )


def own_end(memory: MemoryKind, rank: Rank) -> Endpoint:
    """Return memory that a rank makes for itself: its GPU's, or that of its NUMA node, where it has one."""
    if memory not in HOST_MEMORY or rank.numa_node is None:
        return Endpoint(memory=memory, label=rank.label, bus_id=rank.bus_id, rank=rank.number)
    # Both ranks may have memory of one NUMA node: the label says whose it is.
    label = f"{rank.label}:NUMA{rank.numa_node}"
    return Endpoint(memory=memory, label=label, numa_node=rank.numa_node, rank=rank.number)
