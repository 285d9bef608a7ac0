"""When a blocked EGM route is why memory could not be made: the facts and the call that failed say so. Pure."""

from __future__ import annotations

from dataclasses import replace

from egmctl.model.measurement import Measurement, Status

_MAKE_NUMA_MEMORY = frozenset(
    {
        *("cuMemCreate", "cuMemMap", "cuMemSetAccess"),
        *("cuMemPoolCreate", "cuMemPoolSetAccess", "cuMemAllocFromPoolAsync"),
    }
)
"""The calls that make HOST_NUMA memory and map it to a GPU: the driver looks for a route there
(open-gpu-kernel-modules, ``system_mem.c`` and ``uvm_map_external.c``)."""


def by_blocked_route(measurement: Measurement) -> Measurement:
    """Return a measurement with a blocked EGM route as its cause, where the facts and the call that failed say so.

    The route is blocked by the facts, the memory was refused, and nothing else is known to make that call fail: not
    documented is whether the driver then returns an error, ends the process or hangs. What else fails there, the start
    of CUDA or the kernel that reads, is not the route's doing.
    """
    blocked = next((flow.route.egm_reason for flow in measurement.flows if flow.route.degraded), "")
    tried = measurement.status in (Status.FAILED, Status.CRASHED, Status.TIMED_OUT) and not measurement.known_cause
    if not blocked or not tried or measurement.last_call not in _MAKE_NUMA_MEMORY:
        return measurement
    reason = f"{measurement.reason}; {blocked}"
    return replace(measurement, status=Status.FAILED, reason=reason, known_cause=True)
