"""Memory and events that one process exports and another opens."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from egmctl.driver.cuda import bindings, call
from egmctl.errors import DriverCallError
from egmctl.gpu.context import Context, ReleaseStack, ms_since
from egmctl.gpu.memory import (
    SPOILT_LIMIT,
    Granularity,
    access_from,
    create_allocation,
    create_pool,
    handle_type,
    map_allocation,
    on_gpu,
    on_node,
)
from egmctl.gpu.timing import Stream
from egmctl.model.task import HandleKind
from egmctl.units import round_up

HANDLE_BYTES = 64
"""Of CUipcMemHandle, CUmemFabricHandle and CUmemPoolPtrExportData (cuda.h)."""

LEGACY_UNIT_BYTES = 2 << 20
"""Memory that legacy handles share is whole multiples of this: cuMemAlloc may take smaller pieces from one block, and
the handle shares all of the block (CUDA Programming Guide, chapter "Interprocess Communication")."""


class SharedMemory:
    """Memory on a GPU or on a NUMA node that other processes can open.

    Parameters
    ----------
    kind
        How they open it.
    context
        The GPU that owns the memory; for host memory the one that is current when it is made. It gets access, and
        where memory is made by cuMemCreate on a NUMA node, that node's CPUs do too.
    size_bytes
        The importers map it rounded up to the granularity that the kind has.
    node
        NUMA node of host memory, which legacy handles cannot share; ``None`` for the GPU's own.

    Raises
    ------
    DriverCallError
        Nothing is left behind.
    ValueError
        Host memory by legacy handle.
    """

    pageable = False
    refused: str | None = None
    touch_ms: float | None = None
    granularity: Granularity | None = None
    own_pages = False

    def __init__(self, kind: HandleKind, context: Context, size_bytes: int, node: int | None = None) -> None:
        if kind is HandleKind.LEGACY and node is not None:
            raise ValueError("legacy handles share the memory of GPUs only")
        context.make_current()
        self._context = context
        self.kind = kind
        self.size_bytes = size_bytes
        self.stages_ms: dict[str, float] = {}
        """``allocate`` (until this process can use it), ``export`` and, when it is over, ``free``: milliseconds by the
        host's clock."""
        way = _WAYS[kind]
        with ReleaseStack() as undo:
            with _timed(self.stages_ms, "allocate"):
                made = way.allocate(undo, context, size_bytes, node)
            with _timed(self.stages_ms, "export"):
                self._handle, self._fd = way.export(undo, made)
            self._undo = undo.pop_all()
        self.address = made.address
        self._mapped_bytes = made.mapped_bytes
        self.allocate_ms = self.stages_ms["allocate"]

    def offer(self) -> tuple[dict[str, Any], list[int]]:
        """Return what another process needs: a description, JSON data, and descriptors, which stay this memory's."""
        description = {
            "kind": self.kind.value,
            "size_bytes": self.size_bytes,
            "mapped_bytes": self._mapped_bytes,
            "handle": self._handle.hex(),
        }
        return description, [] if self._fd is None else [self._fd]

    def close(self) -> None:
        """Give the memory back; those who opened it have closed it."""
        with _timed(self.stages_ms, "free"):
            self._context.make_current()
            self._undo.close()


class ImportedMemory:
    """Another process' memory, mapped for one GPU of this one.

    Parameters
    ----------
    context
        The GPU that works on it here.
    description, fds
        The owner's offer; the descriptors stay the caller's, and may be closed once this is made.

    Raises
    ------
    DriverCallError
        Nothing is left behind. :func:`egmctl.driver.signatures.cause_of` knows what it may mean.
    ValueError
        What was sent is no offer.
    """

    pageable = False
    refused: str | None = None
    touch_ms: float | None = None
    granularity: Granularity | None = None
    own_pages = False

    def __init__(self, context: Context, description: dict[str, Any], fds: Sequence[int] = ()) -> None:
        way = _WAYS[HandleKind(description["kind"])]
        offer = _Offer(bytes.fromhex(description["handle"]), next(iter(fds), None), int(description["mapped_bytes"]))
        context.make_current()
        self._context = context
        self.size_bytes = int(description["size_bytes"])
        self.stages_ms: dict[str, float] = {}
        """``open``, ``map`` (a legacy handle's is part of its ``open``) and, when it is over, ``close``: milliseconds
        by the host's clock."""
        with ReleaseStack() as undo:
            self.address = way.open(undo, context, offer, partial(_timed, self.stages_ms))
            self._undo = undo.pop_all()
        self.allocate_ms = sum(self.stages_ms.values())

    def close(self) -> None:
        """Let go of the memory; its owner keeps it."""
        with _timed(self.stages_ms, "close"):
            self._context.make_current()
            self._undo.close()


@dataclass(frozen=True, slots=True)
class _Made:
    """What the owner has made."""

    address: int
    mapped_bytes: int
    exported: Any
    """What the export takes."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """What the importer was sent."""

    handle: bytes
    fd: int | None
    mapped_bytes: int

    def bytes_into(self, structure: Any, part: int = 0, parts: int = 1) -> Any:
        """Return a structure of the bindings that shows no fields, filled with the handle, or with a part of it."""
        if len(self.handle) != parts * HANDLE_BYTES:
            raise ValueError(f"a handle of {len(self.handle)} bytes, not {parts * HANDLE_BYTES}")
        ctypes.memmove(structure.getPtr(), self.handle[part * HANDLE_BYTES :], HANDLE_BYTES)
        return structure

    def descriptor(self) -> int:
        """Return the file descriptor."""
        if self.fd is None:
            raise ValueError("an offer without its file descriptor")
        return self.fd


_Stage = Callable[[str], AbstractContextManager[None]]


class _Way(Protocol):
    """One kind of handle; each call gives ``undo`` the way back of what it did."""

    def allocate(self, undo: ReleaseStack, context: Context, size_bytes: int, node: int | None) -> _Made:
        """Make memory that this process can use."""

    def export(self, undo: ReleaseStack, made: _Made) -> tuple[bytes, int | None]:
        """Return bytes and a descriptor, either of which may be missing."""

    def open(self, undo: ReleaseStack, context: Context, offer: _Offer, stage: _Stage) -> int:
        """Open and map what another process has exported; return its address here."""


class _Legacy:
    def allocate(self, undo: ReleaseStack, _context: Context, size_bytes: int, _node: int | None) -> _Made:
        mapped_bytes = round_up(size_bytes, LEGACY_UNIT_BYTES)
        pointer = call("cuMemAlloc", mapped_bytes)
        undo.callback(call, "cuMemFree", pointer)
        return _Made(int(pointer), mapped_bytes, pointer)

    def export(self, _undo: ReleaseStack, made: _Made) -> tuple[bytes, int | None]:
        return _bytes_of(call("cuIpcGetMemHandle", made.exported)), None

    def open(self, undo: ReleaseStack, _context: Context, offer: _Offer, stage: _Stage) -> int:
        cuda = bindings()
        handle = offer.bytes_into(cuda.CUipcMemHandle())
        with stage("open"):
            pointer = call("cuIpcOpenMemHandle", handle, cuda.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        undo.callback(call, "cuIpcCloseMemHandle", pointer)
        return int(pointer)


class _Allocation:
    """Memory of cuMemCreate: by file descriptor or by fabric handle."""

    def __init__(self, handle_type_name: str) -> None:
        self._type = handle_type_name

    def allocate(self, undo: ReleaseStack, context: Context, size_bytes: int, node: int | None) -> _Made:
        place = on_gpu(context) if node is None else on_node(node)
        allocation, mapped_bytes = create_allocation(undo, place, size_bytes, self._type)
        access = [on_gpu(context)] if node is None else [on_node(node), on_gpu(context)]
        return _Made(map_allocation(undo, allocation, mapped_bytes, access), mapped_bytes, allocation)

    def export(self, undo: ReleaseStack, made: _Made) -> tuple[bytes, int | None]:
        exported = call("cuMemExportToShareableHandle", made.exported, handle_type(self._type), 0)
        if isinstance(exported, int):
            undo.callback(os.close, exported)
            return b"", exported
        return bytes(exported.data), None

    def open(self, undo: ReleaseStack, context: Context, offer: _Offer, stage: _Stage) -> int:
        fabric = offer.bytes_into(bindings().CUmemFabricHandle()) if offer.fd is None else None
        shareable = offer.descriptor() if fabric is None else fabric.getPtr()
        with stage("open"):
            allocation = call("cuMemImportFromShareableHandle", shareable, handle_type(self._type))
        undo.callback(call, "cuMemRelease", allocation)
        with stage("map"):
            return map_allocation(undo, allocation, offer.mapped_bytes, [on_gpu(context)])


class _Pool:
    """Memory from a pool; the pool goes by file descriptor or by fabric handle, before the pointer's bytes."""

    def __init__(self, handle_type_name: str) -> None:
        self._type = handle_type_name

    def allocate(self, undo: ReleaseStack, context: Context, size_bytes: int, node: int | None) -> _Made:
        place = on_gpu(context) if node is None else on_node(node)
        pool, pointer = self._first_that_works(undo, place, size_bytes, context)
        undo.callback(_free_async, pointer)
        call("cuCtxSynchronize")
        return _Made(int(pointer), size_bytes, (pool, pointer))

    def _first_that_works(self, undo: ReleaseStack, place: Any, size_bytes: int, context: Context) -> tuple[Any, Any]:
        """Return a pool and memory in it; pools that were refused memory stay meanwhile, as their addresses do."""
        for attempt in range(SPOILT_LIMIT + 1):
            pool = create_pool(undo, place, size_bytes, [context], self._type)
            try:
                return pool, call("cuMemAllocFromPoolAsync", size_bytes, pool, 0)
            except DriverCallError as error:
                if error.name != "CUDA_ERROR_OUT_OF_MEMORY" or attempt == SPOILT_LIMIT:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def export(self, undo: ReleaseStack, made: _Made) -> tuple[bytes, int | None]:
        pool, pointer = made.exported
        exported = call("cuMemPoolExportToShareableHandle", pool, handle_type(self._type), 0)
        if not isinstance(exported, int):
            return bytes(exported.data) + _bytes_of(call("cuMemPoolExportPointer", pointer)), None
        undo.callback(os.close, exported)
        return _bytes_of(call("cuMemPoolExportPointer", pointer)), exported

    def open(self, undo: ReleaseStack, context: Context, offer: _Offer, stage: _Stage) -> int:
        fabric = offer.bytes_into(bindings().CUmemFabricHandle(), 0, 2) if offer.fd is None else None
        parts = 1 if fabric is None else 2
        exported = offer.bytes_into(bindings().CUmemPoolPtrExportData(), parts - 1, parts)
        shareable = offer.descriptor() if fabric is None else fabric.getPtr()
        with stage("open"):
            pool = call("cuMemPoolImportFromShareableHandle", shareable, handle_type(self._type), 0)
        undo.callback(call, "cuMemPoolDestroy", pool)
        with stage("map"):
            call("cuMemPoolSetAccess", pool, access_from([on_gpu(context)]), 1)
            pointer = call("cuMemPoolImportPointer", pool, exported)
        undo.callback(_free_async, pointer)
        return int(pointer)


_FD = "POSIX_FILE_DESCRIPTOR"

_WAYS: dict[HandleKind, _Way] = {
    HandleKind.LEGACY: _Legacy(),
    HandleKind.POSIX_FD: _Allocation(_FD),
    HandleKind.POOL: _Pool(_FD),
    HandleKind.POOL_FABRIC: _Pool("FABRIC"),
    HandleKind.FABRIC: _Allocation("FABRIC"),
}


def _free_async(pointer: Any) -> None:
    call("cuMemFreeAsync", pointer, 0)
    # The driver gives an imported pool up only when its last free has happened.
    call("cuCtxSynchronize")


def _bytes_of(structure: Any) -> bytes:
    # The bindings show no fields of these structures: their bytes are taken as they lie.
    return ctypes.string_at(structure.getPtr(), HANDLE_BYTES)


@contextmanager
def _timed(stages_ms: dict[str, float], name: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    stages_ms[name] = ms_since(started)


EVENT_HANDLE_BYTES = 64
"""Of CUipcEventHandle (cuda.h)."""


class SharedEvent:
    """An event of this process' GPU that other processes can open.

    Attributes
    ----------
    handle
        What they need: bytes to send.
    """

    def __init__(self, context: Context) -> None:
        cuda = bindings()
        context.make_current()
        self._context = context
        flags = cuda.CUevent_flags
        with ReleaseStack() as undo:
            self._event = call("cuEventCreate", flags.CU_EVENT_INTERPROCESS | flags.CU_EVENT_DISABLE_TIMING)
            undo.callback(call, "cuEventDestroy", self._event)
            # The bindings show no fields of this structure: its bytes are taken as they lie.
            self.handle = ctypes.string_at(call("cuIpcGetEventHandle", self._event).getPtr(), EVENT_HANDLE_BYTES)
            self._undo = undo.pop_all()

    def record(self, stream: Stream) -> None:
        """Have the event remember when a stream of its GPU comes to this place."""
        self._context.make_current()
        call("cuEventRecord", self._event, stream.handle)

    def close(self) -> None:
        """Destroy the event; those who opened it have closed it: what they did with it then would be undefined."""
        self._context.make_current()
        self._undo.close()


class ImportedEvent:
    """Another process' event.

    Parameters
    ----------
    context
        The GPU whose streams wait for it here.
    handle
        The owner's.
    """

    def __init__(self, context: Context, handle: bytes) -> None:
        if len(handle) != EVENT_HANDLE_BYTES:
            raise ValueError(f"a handle of {len(handle)} bytes, not {EVENT_HANDLE_BYTES}")
        structure = bindings().CUipcEventHandle()
        ctypes.memmove(structure.getPtr(), handle, EVENT_HANDLE_BYTES)
        context.make_current()
        self._context = context
        self._event = call("cuIpcOpenEventHandle", structure)

    def hold(self, stream: Stream) -> None:
        """Let nothing queued on a stream from now on run before the latest recording has been reached."""
        self._context.make_current()
        call("cuStreamWaitEvent", stream.handle, self._event, 0)

    def synchronize(self) -> None:
        """Wait until the latest recording has been reached."""
        self._context.make_current()
        call("cuEventSynchronize", self._event)

    def close(self) -> None:
        """Let go of the event."""
        self._context.make_current()
        call("cuEventDestroy", self._event)
