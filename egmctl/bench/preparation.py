"""What processes are told before they measure: the GPUs that take part, and who reaches which NUMA node's memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from egmctl.bench.plan import Plan
from egmctl.bench.processes.protocol import NodeAccess, Preparation
from egmctl.model.measurement import Flow
from egmctl.model.memory import HOST_MEMORY


def for_ranks(plan: Plan, no_counters: str | None) -> Preparation:
    """Return what a group of ranks is told.

    Parameters
    ----------
    no_counters
        Why NVML must not be called; ``None`` where it may.
    """
    gpus = tuple(rank.bus_id for rank in plan.ranks)
    return Preparation(settings=plan.settings, gpus=gpus, ranks=plan.ranks, no_counters=no_counters)


def for_worker(
    plan: Plan, flows: Iterable[Flow], cpus: Mapping[int, tuple[int, ...]], no_counters: str | None
) -> Preparation:
    """Return what a worker is told.

    Parameters
    ----------
    flows
        Those that it is to measure.
    cpus
        Of each NUMA node.
    no_counters
        As of :func:`for_ranks`.
    """
    flows = tuple(flows)
    access = _host_access(plan, flows, cpus)
    taking_part = {
        bus_id for flow in flows for bus_id in (flow.initiator, flow.source.bus_id, flow.destination.bus_id)
    } | {bus_id for one in access for bus_id in one.gpus}
    return Preparation(
        settings=plan.settings,
        gpus=tuple(gpu.bus_id for gpu in plan.gpus if gpu.bus_id in taking_part),
        host_access=access,
        no_counters=no_counters,
    )


def _host_access(plan: Plan, flows: Iterable[Flow], cpus: Mapping[int, tuple[int, ...]]) -> tuple[NodeAccess, ...]:
    access: dict[int, dict[str, None]] = {}
    for flow in flows:
        for end in (flow.source, flow.destination):
            if end.memory in HOST_MEMORY and end.numa_node is not None:
                gpus = access.setdefault(end.numa_node, {})
                # Memory that CPUs work on is allocated through a GPU's context too.
                gpus[flow.initiator or plan.gpus[0].bus_id] = None
                if end.allocated_by is not None:
                    gpus[end.allocated_by] = None
    return tuple(NodeAccess(numa_node=node, gpus=tuple(gpus), cpus=cpus.get(node, ())) for node, gpus in access.items())
