"""Device memory of one GPU to device memory of another, and within one."""

from __future__ import annotations

from egmctl.bench.case import Case, End
from egmctl.bench.cases.host import ENGINES
from egmctl.model.measurement import Engine, MemoryKind, Pattern

_DEVICE, _POOL, _REGISTERS = MemoryKind.DEVICE, MemoryKind.DEVICE_DEFAULT_POOL, MemoryKind.REGISTERS
_WAYS = (("write", End.SOURCE), ("read", End.DESTINATION))


def _case(
    name: str,
    pattern: Pattern,
    engine: Engine = Engine.COPY_ENGINE,
    initiator: End = End.SOURCE,
    *,
    source: MemoryKind = _DEVICE,
    destination: MemoryKind = _DEVICE,
    staged: bool = False,
) -> Case:
    return Case(name, "p2p", source, destination, engine, initiator, pattern=pattern, staged=staged)


CASES = (
    *(
        _case(f"device_to_device_{word}memcpy_{way}_{suffix}", pattern, engine, end)
        for pattern, word in ((Pattern.PAIR, ""), (Pattern.BOTH_DIRECTIONS, "bidirectional_"))
        for engine, suffix in ENGINES
        for way, end in _WAYS
    ),
    # What cuda-samples' p2pBandwidthLatencyTest calls P2P=Disabled; P2P=Enabled is the copy engine's writes above. One
    # flow at a time: the driver comes back from a staged copy when the one before it is done, so that what is queued
    # for one flow holds up the next (H100: both directions together 40 to 49 GB/s, the less the more copies; one alone
    # 37.5).
    _case("device_to_device_staged_memcpy_ce", Pattern.PAIR, staged=True),
    _case("device_local_copy", Pattern.LOCAL),
    _case("device_local_copy_sm", Pattern.LOCAL, Engine.SM_COPY),
    _case("device_local_bulk", Pattern.LOCAL, Engine.BULK),
    _case("device_local_read_sm", Pattern.LOCAL, Engine.SM_READ, destination=_REGISTERS),
    _case("device_local_write_sm", Pattern.LOCAL, Engine.SM_WRITE, source=_REGISTERS),
    _case("device_default_pool_memcpy_write_ce", Pattern.PAIR, source=_POOL, destination=_POOL),
    _case("device_default_pool_local_copy", Pattern.LOCAL, source=_POOL, destination=_POOL),
    _case("device_to_device_read_sm", Pattern.PAIR, Engine.SM_READ, End.DESTINATION, destination=_REGISTERS),
    _case("device_to_device_write_sm", Pattern.PAIR, Engine.SM_WRITE, source=_REGISTERS),
    *(_case(f"device_to_device_bulk_{way}", Pattern.PAIR, Engine.BULK, end) for way, end in _WAYS),
    _case("device_to_device_atomic_add", Pattern.PAIR, Engine.ATOMIC, source=_REGISTERS),
    _case("device_local_atomic_add", Pattern.LOCAL, Engine.ATOMIC, source=_REGISTERS),
    *(
        _case(f"{name}_{suffix}", pattern, engine, end)
        for engine, suffix in ENGINES
        for name, pattern, end in (
            ("ring_write", Pattern.RING, End.SOURCE),
            ("one_to_all_write", Pattern.ONE_TO_ALL, End.SOURCE),
            ("one_to_all_read", Pattern.ONE_TO_ALL, End.DESTINATION),
            ("all_to_one_write", Pattern.ALL_TO_ONE, End.SOURCE),
            ("all_to_one_read", Pattern.ALL_TO_ONE, End.DESTINATION),
            ("bisect_write", Pattern.BISECT, End.SOURCE),
            ("all_pairs_write", Pattern.ALL_PAIRS, End.SOURCE),
        )
    ),
)
