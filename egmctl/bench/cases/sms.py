"""Bandwidth against the number of multiprocessors (SMs) that move the bytes: how few of them fill a link.

Communication that overlaps computation should take no more SMs than it needs.
"""

from __future__ import annotations

from egmctl.bench.case import ALL_SMS, Case, End
from egmctl.model.measurement import Engine, MemoryKind, Pattern

BLOCKS = (1, 2, 4, 8, 16, 32, 64, ALL_SMS)

_ENGINES = ((Engine.SM_COPY, "sm", "SM copies"), (Engine.BULK, "bulk", "bulk copies (TMA)"))
_DEVICE, _HOST = MemoryKind.DEVICE, MemoryKind.HOST_NUMA
_PATHS = (
    ("device_to_device_write", _DEVICE, _DEVICE, Pattern.PAIR, End.SOURCE, "device memory to a peer's, pushed"),
    ("device_to_device_read", _DEVICE, _DEVICE, Pattern.PAIR, End.DESTINATION, "device memory to a peer's, pulled"),
    ("host_numa_to_device", _HOST, _DEVICE, Pattern.PAIR, End.DESTINATION, "HOST_NUMA memory to device memory"),
    ("device_to_host_numa", _DEVICE, _HOST, Pattern.PAIR, End.SOURCE, "device memory to HOST_NUMA memory"),
    ("device_local", _DEVICE, _DEVICE, Pattern.LOCAL, End.SOURCE, "device memory to the same GPU's"),
)


def _on(blocks: int) -> str:
    return "every SM" if blocks == ALL_SMS else f"{blocks} SM{'s' * (blocks > 1)}"


CASES = tuple(
    Case(
        name=f"sms_{word}_{suffix}_{blocks or 'all'}",
        family="sms",
        source=source,
        destination=destination,
        engine=engine,
        pattern=pattern,
        initiator=initiator,
        description=f"{what} by {how} of {_on(blocks)}",
        blocks=blocks,
        one_path=True,
    )
    for word, source, destination, pattern, initiator, what in _PATHS
    for engine, suffix, how in _ENGINES
    for blocks in BLOCKS
)
