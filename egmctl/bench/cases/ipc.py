"""Memory that one process makes and another one works on, one process per GPU: what training and inference really use.

What is done with shared memory is stated once: for :data:`NODE` between the processes of a node, by every kind of
handle; for :data:`JOB` between those of all nodes of an NVLink domain, by fabric handles (the others end at the node's
border). A node's cases name the one that takes the same path within one process, so that what IPC costs is seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from egmctl.bench.case import Case, End, Footprint, Processes
from egmctl.bench.cases.bandwidth import ENGINES
from egmctl.bench.cases.latency import FLAG_BYTES, LAPS, UNCACHED, random_lines, sequential
from egmctl.model.route import MemoryKind
from egmctl.model.task import Engine, HandleKind, Pattern, Quantity
from egmctl.units import MIB

MESSAGES = 500
"""Round trips of a sample that go through the kernel: 20 ms of 40 us each."""
LIFE_CYCLE_BYTES = 64 * MIB
"""The memory whose export, opening and closing is timed: large enough that the first touch shows what depends on the
size, small enough not to drown the rest."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Memory that is opened by handles of a kind."""

    handle: HandleKind
    memory: MemoryKind

    @property
    def word(self) -> str:
        """The word for it in the names of cases."""
        return f"{self.handle}_{'device' if self.memory is MemoryKind.DEVICE else 'host-numa'}".replace("-", "_")

    @property
    def counterpart(self) -> str:
        """The word for its memory in the names of cases within one process."""
        return self.memory.value.replace("-", "_")


@dataclass(frozen=True, slots=True)
class Among:
    """The processes between which memory is shared."""

    processes: Processes
    family: str
    prefix: str
    """The beginning of the names of its cases."""


NODE = Among(Processes.NODE, "ipc", "ipc_")
JOB = Among(Processes.JOB, "fabric", "")

_WAYS = tuple((engine, suffix, way) for engine, suffix in ENGINES for way in ("write", "read"))


def shared() -> Iterator[Shared]:
    """Yield what can be shared by each kind of handle: legacy handles open a GPU's memory only."""
    for handle in HandleKind:
        yield Shared(handle, MemoryKind.DEVICE)
        if handle in (HandleKind.POOL, HandleKind.POOL_FABRIC):
            yield Shared(handle, MemoryKind.HOST_NUMA_POOL)
        elif handle is not HandleKind.LEGACY:
            yield Shared(handle, MemoryKind.HOST_NUMA)


def copies(memory: Shared, among: Among) -> Iterator[Case]:
    """Yield the copies into and out of shared memory, by the process that has opened it."""
    for engine, suffix, way in _WAYS:
        writes = way == "write"
        ends = (MemoryKind.DEVICE, memory.memory) if writes else (memory.memory, MemoryKind.DEVICE)
        if memory.memory is MemoryKind.DEVICE:
            counterpart = f"device_to_device_memcpy_{way}_{suffix}"
        else:
            words = ("device", memory.counterpart) if writes else (memory.counterpart, "device")
            counterpart = f"{'_to_'.join(words)}_memcpy_{suffix}"
        yield Case(
            f"{among.prefix}{memory.word}_{way}_{suffix}",
            *(among.family, *ends, engine, End.SOURCE if writes else End.DESTINATION),
            processes=among.processes,
            handle=memory.handle,
            in_process=counterpart,
        )


def at_once(memory: Shared, among: Among, pattern: Pattern, word: str) -> Case:
    """Return what several processes do at the same time."""
    return Case(
        f"{among.prefix}{memory.word}_{word}_write_ce",
        *(among.family, MemoryKind.DEVICE, memory.memory, Engine.COPY_ENGINE, End.SOURCE),
        pattern=pattern,
        processes=among.processes,
        handle=memory.handle,
        in_process="ring_write_ce" if among is NODE else None,
    )


def latency(memory: Shared, among: Among) -> Case:
    """Return a pointer chase through shared memory, which its owner has written."""
    return Case(
        f"{among.prefix}{memory.word}_latency",
        *(among.family, memory.memory, MemoryKind.REGISTERS, Engine.CHASE, End.DESTINATION),
        quantity=Quantity.LATENCY,
        chase=random_lines(),
        footprint=UNCACHED,
        processes=among.processes,
        handle=memory.handle,
        in_process=f"{memory.counterpart}_to_device_latency_uncached",
    )


def _round_trip(
    word: str,
    engine: Engine,
    memory: MemoryKind = MemoryKind.REGISTERS,
    pattern: Pattern = Pattern.PAIR,
    in_process: str | None = None,
) -> Case:
    flag = engine is Engine.PING_PONG
    return Case(
        f"ipc_{word}_round_trip",
        *("ipc", MemoryKind.DEVICE if flag else memory, memory, engine, End.SOURCE),
        pattern=pattern,
        quantity=Quantity.LATENCY,
        chase=sequential(LAPS if flag else MESSAGES),
        footprint=Footprint(least_bytes=FLAG_BYTES),
        processes=Processes.NODE,
        handle=HandleKind.POSIX_FD if flag else None,
        in_process=in_process,
    )


def _node_cases() -> Iterator[Case]:
    # One kind after the other, so that of each memory is let go before there is any of the next kind.
    for memory in shared():
        yield from copies(memory, NODE)
        if memory.memory is MemoryKind.DEVICE:
            yield at_once(memory, NODE, Pattern.RING, "ring")
        yield latency(memory, NODE)
    both = Pattern.BOTH_DIRECTIONS
    yield _round_trip("flag_device", Engine.PING_PONG, MemoryKind.DEVICE, both, "device_to_device_ping_pong_latency")
    yield _round_trip(
        "flag_host_numa", Engine.PING_PONG, MemoryKind.HOST_NUMA, in_process="host_numa_ping_pong_latency"
    )
    yield _round_trip("event", Engine.EVENT)
    yield _round_trip("socket", Engine.SOCKET)
    for memory in shared():
        yield Case(
            f"ipc_{memory.word}_life_cycle",
            *("ipc", memory.memory, MemoryKind.REGISTERS, Engine.LIFE_CYCLE, End.DESTINATION),
            quantity=Quantity.DURATION,
            footprint=Footprint(least_bytes=LIFE_CYCLE_BYTES),
            processes=Processes.NODE,
            handle=memory.handle,
        )


def _job_cases() -> Iterator[Case]:
    device, host = (Shared(HandleKind.FABRIC, memory) for memory in (MemoryKind.DEVICE, MemoryKind.HOST_NUMA))
    yield from copies(device, JOB)
    yield from copies(host, JOB)
    for engine, suffix, way in _WAYS:
        # EGM to EGM, through the GPU of the process that issues the copy.
        yield Case(
            f"{host.word}_to_host_numa_{way}_{suffix}",
            *(JOB.family, host.memory, host.memory, engine, End.SOURCE if way == "write" else End.DESTINATION),
            processes=JOB.processes,
            handle=host.handle,
        )
    yield at_once(device, JOB, Pattern.BOTH_DIRECTIONS, "bidirectional")
    for memory in (device, host):
        yield at_once(memory, JOB, Pattern.RING, "ring")
        yield at_once(memory, JOB, Pattern.BISECT, "bisect")
        yield at_once(memory, JOB, Pattern.ONE_TO_ALL, "one_to_all")
        yield at_once(memory, JOB, Pattern.ALL_TO_ONE, "all_to_one")
    yield latency(device, JOB)
    yield latency(host, JOB)


CASES = tuple(_node_cases())
FABRIC_CASES = tuple(_job_cases())
