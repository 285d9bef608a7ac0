"""GPU to remote memory where there is no NVLink between nodes: UCX between two processes, from any memory to any.

What of it is RDMA, and what GPUDirect RDMA, UCX decides; each measurement says which way it took (docs/rdma.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.bench.case import Case, End, Footprint, Processes
from egmctl.model.route import MemoryKind
from egmctl.model.task import Chase, ChaseOrder, Engine, Point, Quantity
from egmctl.units import KIB, MIB

ROUND_TRIPS = 1000
MESSAGE_BYTES = 16
"""The message of a round trip."""
POINTS = (*(Point(size=size) for size in (4 * KIB, 64 * KIB, MIB, 16 * MIB)), Point())
"""The sizes of messages; the last one is the size of the run. UCX takes other ways for small ones."""

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
            # A first message as long as the buffers makes UCX print what it does with shorter ones.
            footprint=Footprint(least_bytes=4 * KIB),
            processes=Processes.NODE,
        )
    # Between memory of one kind: what the kinds are to each other, the messages above say.
    for engine, word, end in ((Engine.UCX_PUT, "put", End.SOURCE), (Engine.UCX_GET, "get", End.DESTINATION)):
        for name, kind in _MEMORY:
            yield Case(
                f"ucx_{word}_{name}_to_{name}",
                *("rdma", kind, kind, engine, end),
                points=POINTS,
                processes=Processes.NODE,
            )


CASES = tuple(sorted(_cases(), key=lambda case: MemoryKind.HOST_NUMA in (case.source, case.destination)))
"""Those with HOST_NUMA memory last: UCX has ended processes over it (:func:`egmctl.gpu.ucx.taken_for`), and ranks that
die again and again cost what comes after them."""
