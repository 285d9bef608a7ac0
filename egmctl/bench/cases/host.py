"""Host memory of every kind but EGM's own, by the same paths: one table sets them beside EGM."""

from __future__ import annotations

from egmctl.bench.case import Case, End
from egmctl.model.measurement import Engine, MemoryKind, Pattern

ENGINES = ((Engine.COPY_ENGINE, "ce", "by the GPU's copy engine"), (Engine.SM_COPY, "sm", "by a kernel on the GPU"))


def copies(word: str, memory: MemoryKind, what: str, family: str) -> tuple[Case, ...]:
    """Return the cases that copy between one kind of host memory and device memory, each GPU with each NUMA node.

    Parameters
    ----------
    word
        For the names.
    what
        The memory in words.
    """
    return tuple(
        case
        for engine, suffix, how in ENGINES
        for case in (
            Case(
                name=f"{word}_to_device_memcpy_{suffix}",
                family=family,
                source=memory,
                destination=MemoryKind.DEVICE,
                engine=engine,
                pattern=Pattern.PAIR,
                initiator=End.DESTINATION,
                description=f"{what} to device memory {how}, each GPU with each NUMA node",
            ),
            Case(
                name=f"device_to_{word}_memcpy_{suffix}",
                family=family,
                source=MemoryKind.DEVICE,
                destination=memory,
                engine=engine,
                pattern=Pattern.PAIR,
                initiator=End.SOURCE,
                description=f"device memory to {what} {how}, each GPU with each NUMA node",
            ),
        )
    )


def bulk(word: str, memory: MemoryKind, what: str, family: str) -> tuple[Case, ...]:
    """Return the cases that copy by bulk copies (TMA); parameters as for :func:`copies`."""
    return (
        Case(
            name=f"{word}_to_device_bulk",
            family=family,
            source=memory,
            destination=MemoryKind.DEVICE,
            engine=Engine.BULK,
            pattern=Pattern.PAIR,
            initiator=End.DESTINATION,
            description=f"{what} to device memory by bulk copies (TMA), each GPU with each NUMA node",
        ),
        Case(
            name=f"device_to_{word}_bulk",
            family=family,
            source=MemoryKind.DEVICE,
            destination=memory,
            engine=Engine.BULK,
            pattern=Pattern.PAIR,
            initiator=End.SOURCE,
            description=f"device memory to {what} by bulk copies (TMA), each GPU with each NUMA node",
        ),
    )


def at_once(word: str, memory: MemoryKind, what: str, family: str) -> tuple[Case, ...]:
    """Return the cases that copy both ways at once, and with all GPUs at once; parameters as for :func:`copies`."""
    return tuple(
        case
        for engine, suffix, how in ENGINES
        for case in (
            Case(
                name=f"{word}_to_device_bidirectional_memcpy_{suffix}",
                family=family,
                source=memory,
                destination=MemoryKind.DEVICE,
                engine=engine,
                pattern=Pattern.BOTH_DIRECTIONS,
                initiator=End.DESTINATION,
                description=f"{what} to device memory and back at the same time {how}: each direction and the sum",
            ),
            *(
                Case(
                    name=name,
                    family=family,
                    source=source,
                    destination=destination,
                    engine=engine,
                    pattern=pattern,
                    initiator=end,
                    description=f"{ends} at the same time {how}: each and the sum",
                )
                for name, source, destination, pattern, end, ends in (
                    (
                        f"{word}_to_all_memcpy_{suffix}",
                        *(memory, MemoryKind.DEVICE, Pattern.OWN_NODE, End.DESTINATION),
                        f"{what} of each GPU's own NUMA node to every GPU",
                    ),
                    (
                        f"all_to_{word}_memcpy_{suffix}",
                        *(MemoryKind.DEVICE, memory, Pattern.OWN_NODE, End.SOURCE),
                        f"every GPU to {what} of its own NUMA node",
                    ),
                    (
                        f"{word}_to_all_bidirectional_memcpy_{suffix}",
                        *(memory, MemoryKind.DEVICE, Pattern.OWN_NODE_BOTH, End.DESTINATION),
                        f"{what} of each GPU's own NUMA node to every GPU and back",
                    ),
                    (
                        f"{word}_one_node_to_all_memcpy_{suffix}",
                        *(memory, MemoryKind.DEVICE, Pattern.ONE_NODE, End.DESTINATION),
                        f"{what} of one NUMA node to all GPUs",
                    ),
                    (
                        f"all_to_{word}_one_node_memcpy_{suffix}",
                        *(MemoryKind.DEVICE, memory, Pattern.ONE_NODE, End.SOURCE),
                        f"all GPUs to {what} of one NUMA node",
                    ),
                )
            ),
        )
    )


def one_sided(word: str, memory: MemoryKind, what: str, family: str) -> tuple[Case, ...]:
    """Return the cases that only read or only write; parameters as for :func:`copies`."""
    reading = (
        (Engine.SM_READ, f"{word}_read_sm", "a kernel on the GPU"),
        (Engine.CPU, f"{word}_read_cpu", "CPU threads"),
    )
    writing = (
        (Engine.SM_WRITE, f"{word}_write_sm", "a kernel on the GPU"),
        (Engine.ATOMIC, f"{word}_atomic_add", "a kernel on the GPU that adds to every word"),
        (Engine.CPU, f"{word}_write_cpu", "CPU threads"),
    )
    bound = " of each NUMA node: a lower bound"
    return (
        *(
            Case(
                name=name,
                family=family,
                source=memory,
                destination=MemoryKind.REGISTERS,
                engine=engine,
                pattern=Pattern.PAIR,
                initiator=End.DESTINATION,
                description=f"{what}, read by {who}" + bound * (engine is Engine.CPU),
            )
            for engine, name, who in reading
        ),
        *(
            Case(
                name=name,
                family=family,
                source=MemoryKind.REGISTERS,
                destination=memory,
                engine=engine,
                pattern=Pattern.PAIR,
                initiator=End.SOURCE,
                description=f"{what}, written by {who}" + bound * (engine is Engine.CPU),
            )
            for engine, name, who in writing
        ),
    )


_PINNED = ("host", MemoryKind.PINNED, "pinned memory (cuMemHostAlloc)", "host")

_DEFAULT_POOL = (
    "host_default_pool",
    MemoryKind.HOST_DEFAULT_POOL,
    "memory from the driver's own pool of the host (cuMemGetDefaultMemPool, CUDA 13.0)",
    "host",
)

CASES = (
    *copies(*_PINNED),
    *at_once(*_PINNED),
    *one_sided(*_PINNED),
    *(case for case in copies(*_DEFAULT_POOL) if case.engine is Engine.COPY_ENGINE),
    *copies("registered", MemoryKind.REGISTERED, "registered memory (cuMemHostRegister)", "host"),
    *copies("hugetlb", MemoryKind.HUGETLB, "registered memory of huge pages (MAP_HUGETLB)", "host"),
    *copies("thp", MemoryKind.THP, "registered memory of transparent huge pages (MADV_HUGEPAGE)", "host"),
    *copies("managed", MemoryKind.MANAGED, "managed memory on a NUMA node (cuMemAllocManaged)", "host"),
    *copies("system", MemoryKind.SYSTEM, "plain memory (malloc)", "host"),
)
