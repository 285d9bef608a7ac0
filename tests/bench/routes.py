"""Routes by hand, for tests of what is done with them."""

from __future__ import annotations

from egmctl.model.route import Egm, Hop, LinkClass, LinkKind, MemoryKind, Route

C2C = Hop(link=LinkKind.C2C, nominal_gb_s=450.0)
PCIE = Hop(link=LinkKind.PCIE, nominal_gb_s=63.0)
SMP = Hop(link=LinkKind.SMP, reason="nothing reports the rate between NUMA nodes")
PHB = Hop(link=LinkKind.PCIE, pci=LinkClass.PHB, nominal_gb_s=63.0)


def nv(nvlinks: int) -> Hop:
    """Return NVLinks of H200."""
    return Hop(link=LinkKind.NVLINK, nvlinks=nvlinks, nominal_gb_s=25 * nvlinks)


def over(*hops: Hop) -> Route:
    """Return the route between GPUs; without hops within one."""
    return Route(hops=hops)


def to_host(*hops: Hop, memory: MemoryKind = MemoryKind.HOST_NUMA, egm: Egm = Egm.NO) -> Route:
    """Return the route between a GPU and host memory."""
    return Route(memory=memory, hops=hops, egm=egm)
