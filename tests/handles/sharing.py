"""Processes that share memory by handles, order by order: on fake nodes and on GPUs.

An owner makes memory and an event, importers open them, and the test decides who does what when.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from egmctl.driver.cuda import call, initialise
from egmctl.gpu.context import Context
from egmctl.gpu.handles import ImportedEvent, ImportedMemory, SharedEvent, SharedMemory
from egmctl.gpu.isolation_trials import call_result
from egmctl.gpu.memory import DeviceMemory, MappedMemory
from egmctl.gpu.timing import Stream
from egmctl.launch import Channel, Child, close_all
from egmctl.model.task import HandleKind

TARGET = "tests.handles.sharing:serve"
TIMEOUT_S = 60.0
SLOW_COPIES = 400
"""Copies of the whole memory before new data are written: tens of milliseconds on a GPU."""


@dataclass
class Partner:
    """A process of its own on a GPU, which carries out orders: methods of :class:`_Orders`."""

    child: Child

    def ask(self, order: str, fds: Sequence[int] = (), **arguments: Any) -> tuple[dict[str, Any], list[int]]:
        """Give an order and wait for its answer; the caller closes the descriptors."""
        self.begin(order, fds, **arguments)
        return self.end()

    def begin(self, order: str, fds: Sequence[int] = (), **arguments: Any) -> None:
        """Give an order."""
        self.child.channel.send({"order": order, "arguments": arguments}, fds, timeout_s=TIMEOUT_S)

    def end(self) -> tuple[dict[str, Any], list[int]]:
        """Wait for the answer to the order."""
        return self.child.receive(TIMEOUT_S)

    def open(self, offer: dict[str, Any], fds: Sequence[int], others: Sequence[str] = ()) -> dict[str, Any]:
        """Have memory opened; return the milliseconds of its stages."""
        answer, _ = self.ask("open", fds, offer=offer, others=others)
        return answer

    def close(self) -> None:
        """Have it free what it holds."""
        self.ask("close")


def partner(bus_id: str, **options: Any) -> Partner:
    """Start a process on a GPU."""
    return Partner(Child(TARGET, {"gpu": bus_id}, **options))


def serve(parent: Channel, arguments: dict[str, Any]) -> None:
    """Carry out orders until the test closes the channel."""
    initialise()
    orders = _Orders(Context(arguments["gpu"]))
    while True:
        message, fds = parent.receive()
        answer, given = getattr(orders, message["order"])(fds=fds, **message["arguments"]) or ({}, [])
        close_all(fds)
        parent.send(answer, given)


_Answer = tuple[dict[str, Any], list[int]]


class _Orders:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._memory: MappedMemory | None = None
        self._event: SharedEvent | ImportedEvent | None = None
        self._stream = Stream(context)
        self._more: dict[str, Context] = {}

    def free_bytes(self, fds: Sequence[int]) -> _Answer:  # noqa: ARG002
        self._context.make_current()
        return {"bytes": int(call("cuMemGetInfo")[0]), "files": len(os.listdir("/proc/self/fd"))}, []

    def make(self, fds: Sequence[int], kind: str, size_bytes: int, node: int | None = None) -> _Answer:  # noqa: ARG002
        self._memory = memory = SharedMemory(HandleKind(kind), self._context, size_bytes, node)
        return memory.offer()

    def open(self, fds: Sequence[int], offer: dict[str, Any], others: Sequence[str] = ()) -> _Answer:
        ordinals = [int(call("cuDeviceGetByPCIBusId", bus_id.encode())) for bus_id in others]
        self._memory = memory = ImportedMemory(self._context, offer, fds, ordinals)
        return memory.stages_ms, []

    def fill(self, fds: Sequence[int], byte: int, start: int = 0, size_bytes: int | None = None) -> None:  # noqa: ARG002
        assert self._memory is not None
        self._context.make_current()
        call("cuMemsetD8", self._memory.address + start, byte, size_bytes or self._memory.size_bytes)
        call("cuCtxSynchronize")

    def bytes_at(self, fds: Sequence[int], starts: Sequence[int], wait: bool = False) -> _Answer:  # noqa: ARG002
        """Copy the memory to the GPU's own, after the event if ``wait``, and return single bytes of it."""
        assert self._memory is not None
        near = DeviceMemory(self._context, self._memory.size_bytes)
        if wait:
            assert isinstance(self._event, ImportedEvent)
            self._event.hold(self._stream)
        self._context.make_current()
        call("cuMemcpyAsync", near.address, self._memory.address, self._memory.size_bytes, self._stream.handle)
        self._stream.synchronize()
        found = []
        byte = bytearray(1)
        import ctypes

        place = (ctypes.c_ubyte * 1).from_buffer(byte)
        for start in starts:
            call("cuMemcpyDtoH", ctypes.addressof(place), near.address + start, 1)
            found.append(byte[0])
        near.close()
        return {"bytes": found}, []

    def share_event(self, fds: Sequence[int]) -> _Answer:  # noqa: ARG002
        self._event = event = SharedEvent(self._context)
        return {"event": event.handle.hex()}, []

    def open_event(self, fds: Sequence[int], event: str) -> None:  # noqa: ARG002
        self._event = ImportedEvent(self._context, bytes.fromhex(event))

    def write_slowly(self, fds: Sequence[int], byte: int) -> None:  # noqa: ARG002
        """Queue work that takes long, then new data, then the event; return when all of it is queued."""
        assert self._memory is not None
        assert isinstance(self._event, SharedEvent)
        self._scratch = DeviceMemory(self._context, self._memory.size_bytes)
        self._context.make_current()
        stream = self._stream.handle
        for _ in range(SLOW_COPIES):
            call("cuMemcpyAsync", self._scratch.address, self._memory.address, self._memory.size_bytes, stream)
        call("cuMemsetD8Async", self._memory.address, byte, self._memory.size_bytes, stream)
        self._event.record(self._stream)

    def finish_writing(self, fds: Sequence[int]) -> None:  # noqa: ARG002
        self._stream.synchronize()
        self._scratch.close()

    def rates(self, fds: Sequence[int], gpus: Sequence[str], copies: int = 16) -> _Answer:  # noqa: ARG002
        """Copy the memory to each of these GPUs, one after the other and then all at once; return GB/s by the host's
        clock, which is right to a few per cent for hundreds of milliseconds."""
        import time

        assert self._memory is not None
        contexts = [self._more.setdefault(bus_id, Context(bus_id)) for bus_id in gpus]
        near = [(context, DeviceMemory(context, self._memory.size_bytes), Stream(context)) for context in contexts]

        def timed(chosen: Sequence[tuple[Context, DeviceMemory, Stream]]) -> float:
            started = time.perf_counter()
            for _ in range(copies):
                for context, to, stream in chosen:
                    context.make_current()
                    assert self._memory is not None
                    call("cuMemcpyAsync", to.address, self._memory.address, to.size_bytes, stream.handle)
            for _, _, stream in chosen:
                stream.synchronize()
            moved = copies * len(chosen) * chosen[0][1].size_bytes
            return moved / (time.perf_counter() - started) / 1e9

        timed(near)
        answer = {"alone": [timed([each]) for each in near], "at_once": timed(near)}
        for _, to, stream in near:
            to.close()
            stream.close()
        return answer, []

    def legacy_handles(self, fds: Sequence[int]) -> _Answer:  # noqa: ARG002
        """Return the CUresult of cuIpcGetMemHandle for memory of several kinds."""
        self._context.make_current()
        asked: dict[str, tuple[str, tuple[int, ...]]] = {
            "plain": ("cuMemAlloc", ()),
            "managed": ("cuMemAllocManaged", (1,)),
            "pinned": ("cuMemHostAlloc", (3,)),
        }
        results = {}
        for name, (allocate, flags) in asked.items():
            pointer = call(allocate, 2 << 20, *flags)
            results[name] = call_result("cuIpcGetMemHandle", pointer)
            call("cuMemFreeHost" if name == "pinned" else "cuMemFree", pointer)
        return results, []

    def close(self, fds: Sequence[int]) -> None:  # noqa: ARG002
        for held in (self._memory, self._event):
            if held is not None:
                held.close()
        self._memory = self._event = None
