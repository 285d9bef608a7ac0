"""Device memory of one GPU to device memory of another, and within one."""

from __future__ import annotations

from egmctl.bench.case import Case, End
from egmctl.model.measurement import Engine, MemoryKind, Pattern

_CE, _SM = "by the copy engine", "by a kernel"
_ENGINES = ((Engine.COPY_ENGINE, "ce", _CE), (Engine.SM_COPY, "sm", _SM))
_WAYS = (("write", End.SOURCE, "of the source (push)"), ("read", End.DESTINATION, "of the destination (pull)"))


def _case(
    name: str,
    pattern: Pattern,
    description: str,
    *,
    engine: Engine = Engine.COPY_ENGINE,
    initiator: End = End.SOURCE,
    source: MemoryKind = MemoryKind.DEVICE,
    destination: MemoryKind = MemoryKind.DEVICE,
    staged: bool = False,
) -> Case:
    return Case(
        name=name,
        family="p2p",
        source=source,
        destination=destination,
        engine=engine,
        pattern=pattern,
        initiator=initiator,
        description=description,
        staged=staged,
    )


_PAIRS = tuple(
    _case(
        f"device_to_device_memcpy_{way}_{suffix}",
        Pattern.PAIR,
        f"device memory to a peer's {how} {whose}, every ordered pair",
        engine=engine,
        initiator=end,
    )
    for engine, suffix, how in _ENGINES
    for way, end, whose in _WAYS
)
_BOTH = tuple(
    _case(
        f"device_to_device_bidirectional_memcpy_{way}_{suffix}",
        Pattern.BOTH_DIRECTIONS,
        f"device memory to a peer's and back at the same time, each {how} {whose}: each direction and the sum",
        engine=engine,
        initiator=end,
    )
    for engine, suffix, how in _ENGINES
    for way, end, whose in _WAYS
)
_STAGED = (
    _case(
        "device_to_device_staged_memcpy_ce",
        Pattern.PAIR,
        "device memory to another GPU's without peer access, through host memory, every ordered pair",
        staged=True,
    ),
)
"""What cuda-samples' p2pBandwidthLatencyTest calls P2P=Disabled; P2P=Enabled is the copy engine's writes above.
One flow at a time: the driver comes back from a staged copy when the one before it is done, so that what is queued for
one flow holds up the next (H100: both directions together 40 to 49 GB/s, the less the more copies; one alone 37.5)."""
_ONE_SIDED = (
    _case(
        "device_to_device_read_sm",
        Pattern.PAIR,
        "a peer's device memory, only read by a kernel, every ordered pair",
        engine=Engine.SM_READ,
        initiator=End.DESTINATION,
        destination=MemoryKind.REGISTERS,
    ),
    _case(
        "device_to_device_write_sm",
        Pattern.PAIR,
        "a peer's device memory, only written by a kernel, every ordered pair",
        engine=Engine.SM_WRITE,
        source=MemoryKind.REGISTERS,
    ),
)
_BULK = tuple(
    _case(
        f"device_to_device_bulk_{way}",
        Pattern.PAIR,
        f"device memory to a peer's by bulk copies (TMA) {whose}, every ordered pair",
        engine=Engine.BULK,
        initiator=end,
    )
    for way, end, whose in _WAYS
)
_ATOMIC = (
    _case(
        "device_to_device_atomic_add",
        Pattern.PAIR,
        "additions to every word of a peer's device memory by a kernel, every ordered pair",
        engine=Engine.ATOMIC,
        source=MemoryKind.REGISTERS,
    ),
    _case(
        "device_local_atomic_add",
        Pattern.LOCAL,
        "additions to every word of a GPU's own memory by a kernel",
        engine=Engine.ATOMIC,
        source=MemoryKind.REGISTERS,
    ),
)
_AT_ONCE = tuple(
    _case(name, pattern, f"{description} {how}", engine=engine, initiator=end)
    for engine, suffix, how in _ENGINES
    for name, pattern, end, description in (
        (f"ring_write_{suffix}", Pattern.RING, End.SOURCE, "each GPU to the next, all at the same time,"),
        (f"one_to_all_write_{suffix}", Pattern.ONE_TO_ALL, End.SOURCE, "one GPU to each other one, pushed"),
        (f"one_to_all_read_{suffix}", Pattern.ONE_TO_ALL, End.DESTINATION, "one GPU to each other one, pulled"),
        (f"all_to_one_write_{suffix}", Pattern.ALL_TO_ONE, End.SOURCE, "each other GPU to one, pushed"),
        (f"all_to_one_read_{suffix}", Pattern.ALL_TO_ONE, End.DESTINATION, "each other GPU to one, pulled"),
        (f"bisect_write_{suffix}", Pattern.BISECT, End.SOURCE, "each GPU to the one halfway around the ring,"),
        (f"all_pairs_write_{suffix}", Pattern.ALL_PAIRS, End.SOURCE, "each GPU to each other one, all at once,"),
    )
)
_LOCAL = (
    _case("device_local_copy", Pattern.LOCAL, f"device memory to the same GPU's {_CE}: the diagonal"),
    _case("device_local_copy_sm", Pattern.LOCAL, f"device memory to the same GPU's {_SM}", engine=Engine.SM_COPY),
    _case(
        "device_local_bulk", Pattern.LOCAL, "device memory to the same GPU's by bulk copies (TMA)", engine=Engine.BULK
    ),
    _case(
        "device_local_read_sm",
        Pattern.LOCAL,
        "device memory, only read by a kernel of the same GPU",
        engine=Engine.SM_READ,
        destination=MemoryKind.REGISTERS,
    ),
    _case(
        "device_local_write_sm",
        Pattern.LOCAL,
        "device memory, only written by a kernel of the same GPU",
        engine=Engine.SM_WRITE,
        source=MemoryKind.REGISTERS,
    ),
)

_POOLS = (
    _case(
        "device_default_pool_memcpy_write_ce",
        Pattern.PAIR,
        f"memory from the driver's own pool of a GPU (cuDeviceGetDefaultMemPool) to a peer's, which is opened to the "
        f"GPU meanwhile, {_CE} of the source (push), every ordered pair",
        source=MemoryKind.DEVICE_DEFAULT_POOL,
        destination=MemoryKind.DEVICE_DEFAULT_POOL,
    ),
    _case(
        "device_default_pool_local_copy",
        Pattern.LOCAL,
        f"memory from the driver's own pool of a GPU (cuDeviceGetDefaultMemPool) to the same pool {_CE}",
        source=MemoryKind.DEVICE_DEFAULT_POOL,
        destination=MemoryKind.DEVICE_DEFAULT_POOL,
    ),
)

CASES = (*_PAIRS, *_BOTH, *_STAGED, *_LOCAL, *_POOLS, *_ONE_SIDED, *_BULK, *_ATOMIC, *_AT_ONCE)
