"""Access from a GPU to remote memory without NVLink between nodes: UCX between two processes, for all pairs of memory.

UCX selects the transport, and so whether it uses RDMA or GPUDirect RDMA. Each measurement reports the route that was
used (docs/rdma.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.bench.case import Case, End, Footprint, Processes
from egmctl.model.route import MemoryKind
from egmctl.model.task import Chase, ChaseOrder, Engine, Point, Quantity
from egmctl.units import KIB, MIB

ROUND_TRIPS = 1000
MESSAGE_BYTES = 16
"""The size of a message of a round trip."""
POINTS = (*(Point(size=size) for size in (4 * KIB, 64 * KIB, MIB, 16 * MIB)), Point())
"""The message sizes; the last one is the size of the run. UCX uses other protocols for small messages."""

_MEMORY = (("device", MemoryKind.DEVICE), ("host_numa", MemoryKind.HOST_NUMA), ("host", MemoryKind.PINNED))


def _cases() -> Iterator[Case]:
    ends = [(*source, *destination) for source in _MEMORY for destination in _MEMORY]
    for source, source_kind, destination, destination_kind in ends:
        yield Case(
            f"ucx_{source}_to_{destination}",
            *("rdma", source_kind, destination_kind, Engine.UCX, End.SOURCE),
            points=POINTS,
            processes=Processes.NODE,
        )
    for source, source_kind, destination, destination_kind in ends:
        yield Case(
            f"ucx_{source}_to_{destination}_round_trip",
            *("rdma", source_kind, destination_kind, Engine.UCX, End.SOURCE),
            quantity=Quantity.LATENCY,
            chase=Chase(order=ChaseOrder.SEQUENTIAL, stride_bytes=MESSAGE_BYTES, warm=True, loads=ROUND_TRIPS),
            # If the first message is as long as the buffers, UCX prints what it does with shorter ones.
            footprint=Footprint(least_bytes=4 * KIB),
            processes=Processes.NODE,
        )
    # Only between memory of one kind: the messages above show how the kinds differ.
    for engine, word, end in ((Engine.UCX_PUT, "put", End.SOURCE), (Engine.UCX_GET, "get", End.DESTINATION)):
        for name, kind in _MEMORY:
            yield Case(
                f"ucx_{word}_{name}_to_{name}",
                *("rdma", kind, kind, engine, end),
                points=POINTS,
                processes=Processes.NODE,
            )


CASES = tuple(sorted(_cases(), key=lambda case: MemoryKind.HOST_NUMA in (case.source, case.destination)))
"""Cases with HOST_NUMA memory come last: UCX has crashed processes with it (:func:`egmctl.gpu.ucx.taken_for`), and
ranks that crash repeatedly delay the cases after them."""
