"""Device memory of one GPU to device memory of another, every ordered pair."""

from __future__ import annotations

from egmctl.bench.case import Case, End
from egmctl.model.measurement import Engine, MemoryKind, Pattern

CASES = (
    Case(
        name="device_to_device_memcpy_write_ce",
        family="p2p",
        source=MemoryKind.DEVICE,
        destination=MemoryKind.DEVICE,
        engine=Engine.COPY_ENGINE,
        pattern=Pattern.PAIR,
        initiator=End.SOURCE,
        description="device memory to a peer's by the source's copy engine (push), every ordered pair",
    ),
    Case(
        name="device_to_device_memcpy_read_ce",
        family="p2p",
        source=MemoryKind.DEVICE,
        destination=MemoryKind.DEVICE,
        engine=Engine.COPY_ENGINE,
        pattern=Pattern.PAIR,
        initiator=End.DESTINATION,
        description="device memory to a peer's by the destination's copy engine (pull), every ordered pair",
    ),
)
