"""GPU to remote memory where there is no NVLink between nodes: UCX between two processes, from any memory to any.

What of it is RDMA, and what GPUDirect RDMA, UCX decides; each measurement says which way it took (docs/rdma.md).
"""

from __future__ import annotations

from egmctl.bench.case import Case, End, Footprint, Processes
from egmctl.model.measurement import Chase, ChaseOrder, Engine, MemoryKind, Pattern, Quantity
from egmctl.units import KIB, MIB, format_size

FAMILY = "rdma"
ROUND_TRIPS = 1000
MESSAGE_BYTES = 16
"""Of a round trip."""

_MEMORY = (
    ("device", MemoryKind.DEVICE, "device memory"),
    ("host_numa", MemoryKind.HOST_NUMA, "HOST_NUMA memory (EGM where the platform has it)"),
    ("host", MemoryKind.PINNED, "pinned memory"),
)


_SIZES = (("4k", 4 * KIB), ("64k", 64 * KIB), ("1m", MIB), ("16m", 16 * MIB))
"""Of messages, besides the size of the run: UCX takes other ways for small ones."""

_Memory = tuple[str, MemoryKind, str]


def _case(source: _Memory, destination: _Memory, suffix: str, footprint: Footprint | None, chase: Chase | None) -> Case:
    (one, kind, here), (other, other_kind, there) = source, destination
    if chase is None:
        size = f" of {format_size(footprint.least_bytes)}" if footprint else ""
        what = f"messages{size} by UCX from {here} to"
    else:
        what = f"round trip of {MESSAGE_BYTES} bytes by UCX between {here} and"
    return Case(
        name=f"ucx_{one}_to_{other}{suffix}",
        family=FAMILY,
        source=kind,
        destination=other_kind,
        engine=Engine.UCX,
        pattern=Pattern.PAIR,
        initiator=End.SOURCE,
        description=f"{what} another process' {there}",
        quantity=Quantity.BANDWIDTH if chase is None else Quantity.LATENCY,
        chase=chase,
        footprint=footprint,
        processes=Processes.NODE,
    )


_MESSAGES = (*((f"_{name}", Footprint(least_bytes=size), None) for name, size in _SIZES), ("", None, None))
_ROUND_TRIP = (
    "_round_trip",
    Footprint(least_bytes=4 * KIB),
    Chase(order=ChaseOrder.SEQUENTIAL, stride_bytes=MESSAGE_BYTES, warm=True, loads=ROUND_TRIPS),
)
"""A first message as long as the buffers makes UCX print what it does with shorter ones."""

_ALL = [
    _case(source, destination, *kind)
    for kinds in (_MESSAGES, (_ROUND_TRIP,))
    for source in _MEMORY
    for destination in _MEMORY
    for kind in kinds
]


def _one_sided(engine: Engine, word: str, near: _Memory, far: _Memory, size: tuple[str, int] | None) -> Case:
    """Return what one process puts to, or gets from, memory that the other one has registered."""
    (one, kind, here), (other, other_kind, there) = near, far
    puts = engine is Engine.UCX_PUT
    ends = f"from {here} to another process' {there}" if puts else f"from another process' {there} to {here}"
    of = f" of {format_size(size[1])}" if size else ""
    return Case(
        name=f"ucx_{word}_{f'{one}_to_{other}' if puts else f'{other}_to_{one}'}{f'_{size[0]}' if size else ''}",
        family=FAMILY,
        source=kind if puts else other_kind,
        destination=other_kind if puts else kind,
        engine=engine,
        pattern=Pattern.PAIR,
        initiator=End.SOURCE if puts else End.DESTINATION,
        description=f"one-sided {word}{of} by UCX {ends}, and what registering memory costs",
        footprint=Footprint(least_bytes=size[1]) if size else None,
        processes=Processes.NODE,
    )


_ALL += [
    _one_sided(engine, word, memory, memory, size)
    for engine, word in ((Engine.UCX_PUT, "put"), (Engine.UCX_GET, "get"))
    for memory in _MEMORY
    for size in (*_SIZES, None)
]
"""Between memory of one kind: what the kinds are to each other, the messages above say."""

CASES = tuple(sorted(_ALL, key=lambda case: MemoryKind.HOST_NUMA in (case.source, case.destination)))
"""Those with HOST_NUMA memory last: UCX has ended processes over it (:func:`egmctl.gpu.ucx.taken_for`), and ranks that
die again and again cost what comes after them."""
