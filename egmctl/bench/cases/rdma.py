"""GPU to remote memory where there is no NVLink between nodes: UCX between two processes, from any memory to any.

What of it is RDMA, and what GPUDirect RDMA, UCX decides; each measurement says which way it took (docs/rdma.md).
"""

from __future__ import annotations

from egmctl.bench.case import Case, End, Footprint
from egmctl.model.measurement import Chase, ChaseOrder, Engine, MemoryKind, Pattern, Quantity

FAMILY = "rdma"
ROUND_TRIPS = 1000
MESSAGE_BYTES = 16
"""Of a round trip."""
FOOTPRINT = Footprint(least_bytes=4096)
"""Of its buffers: a first message of that size makes UCX print what it does with shorter ones."""

_MEMORY = (
    ("device", MemoryKind.DEVICE, "device memory"),
    ("host_numa", MemoryKind.HOST_NUMA, "HOST_NUMA memory (EGM where the platform has it)"),
    ("host", MemoryKind.PINNED, "pinned memory"),
)


def _case(source: tuple[str, MemoryKind, str], destination: tuple[str, MemoryKind, str], *, latency: bool) -> Case:
    (one, kind, here), (other, other_kind, there) = source, destination
    if latency:
        name, what = f"ucx_{one}_to_{other}_round_trip", f"round trip of {MESSAGE_BYTES} bytes by UCX between"
        chase = Chase(order=ChaseOrder.SEQUENTIAL, stride_bytes=MESSAGE_BYTES, warm=True, loads=ROUND_TRIPS)
    else:
        name, what, chase = f"ucx_{one}_to_{other}", "messages by UCX from", None
    return Case(
        name=name,
        family=FAMILY,
        source=kind,
        destination=other_kind,
        engine=Engine.UCX,
        pattern=Pattern.PAIR,
        initiator=End.SOURCE,
        description=f"{what} {here} {'and' if latency else 'to'} another process' {there}",
        quantity=Quantity.LATENCY if latency else Quantity.BANDWIDTH,
        chase=chase,
        footprint=FOOTPRINT if latency else None,
        processes=True,
    )


CASES = tuple(
    _case(source, destination, latency=latency)
    for latency in (False, True)
    for source in _MEMORY
    for destination in _MEMORY
)
