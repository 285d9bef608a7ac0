"""What the wire of a flow can carry by the specification: what a measured bandwidth is set against. Pure."""

from __future__ import annotations

from egmctl.bench.wires import wire_of
from egmctl.model.evidence import Wire
from egmctl.model.machine import Gpu, Machine
from egmctl.model.task import Flow, MemoryKind
from egmctl.topology import rates
from egmctl.topology.links import LinkClass, gpu_link
from egmctl.topology.routes import route


def nominal_gb_s(machine: Machine, flow: Flow) -> float | None:
    """Return the rate of one direction of the narrowest wire on a flow's way (:mod:`egmctl.topology.rates`).

    ``None`` where no wire between GPUs or to the host is crossed, or its rate is not known.
    """
    if flow.initiator is None or wire_of(flow) is None:
        return None
    gpus = {gpu.bus_id: gpu for gpu in machine.gpus or ()}
    initiator = gpus.get(flow.initiator)
    if initiator is None:
        return None
    ends = (flow.source, flow.destination)
    node = next((end.numa_node for end in ends if end.numa_node is not None), None)
    if node is None:
        other = next((end.bus_id for end in ends if end.bus_id not in (None, flow.initiator)), None)
        return _between(machine, initiator, gpus[other]) if other in gpus else None
    if any(end.memory in (MemoryKind.HOST_NUMA, MemoryKind.HOST_NUMA_POOL) for end in ends):
        return route(machine, initiator, node).at_most_gb_s
    return (rates.c2c(initiator) if wire_of(flow) == Wire.C2C else rates.pcie(initiator)).gb_s


def _between(machine: Machine, gpu: Gpu, other: Gpu) -> float | None:
    link = gpu_link(machine, gpu, other)
    if link.kind is LinkClass.NVLINK:
        return rates.nvlink(gpu, link.nvlinks or 1).gb_s
    return rates.pcie(gpu).gb_s
