"""The names of routes in output. Only this module composes them."""

from __future__ import annotations

from collections.abc import Mapping

from egmctl.compat import assert_never
from egmctl.model.route import HOST_NAMES, Carrier, Egm, LinkKind, MemoryKind, Route
from egmctl.units import printable


def route_words(route: Route) -> str:
    """Return the name of a route: ``NV18``, ``EGM over NV18>C2C``, ``HOST_NUMA over PCIe, not EGM``."""
    match route.carrier:
        case Carrier.SOCKET:
            return "messages between the processes"
        case Carrier.UCX:
            return printable(route.symbol)
        case Carrier.CPU if any(hop.link is LinkKind.C2C for hop in route.hops):
            return printable(f"GPU memory over {route.symbol}")
        case Carrier.CPU:
            return "between NUMA nodes" if route.hops else "the node's own memory"
        case Carrier.NONE:
            return "blocked" if route.memory is None else f"{HOST_NAMES[route.memory]}, blocked"
        case Carrier.LINKS:
            if route.staged:
                return f"{printable(route.symbol)}, staged through host memory"
            return printable(route.symbol if route.memory is None else _to_host(route, HOST_NAMES[route.memory]))
        case _:
            assert_never(route.carrier)


_POOLS: Mapping[MemoryKind | None, str] = {
    MemoryKind.HOST_NUMA_DEFAULT_POOL: "default pool ",
    MemoryKind.HOST_NUMA_POOL: "pool ",
}


def _to_host(route: Route, name: str) -> str:
    if route.egm is Egm.YES:
        return f"EGM {_POOLS.get(route.memory, '')}over {route.symbol}"
    known = bool(route.hops) and route.hops[0].link is not LinkKind.UNKNOWN
    over = f"{name} over {route.symbol}" if known else name
    if route.egm is Egm.UNKNOWN:
        return f"{over}, unknown whether EGM{f': {route.egm_reason}' if route.egm_reason else ''}"
    return f"{over}, degraded: {route.egm_reason}" if route.degraded else f"{over}, not EGM"
