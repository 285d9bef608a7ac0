"""Memory and events that one process exports and another process imports."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from egmctl.dataclass import dataclass
from egmctl.driver.cuda import bindings, call
from egmctl.errors import DriverCallError
from egmctl.gpu.context import Context, ReleaseStack, Resource, timed
from egmctl.gpu.memory import (
    SPOILT_LIMIT,
    MappedMemory,
    access_from,
    create_allocation,
    create_pool,
    handle_type,
    location,
    map_allocation,
    on_gpu,
)
from egmctl.gpu.timing import Stream
from egmctl.model.task import HandleKind
from egmctl.units import round_up

HANDLE_BYTES = 64
"""The size of CUipcMemHandle, CUmemFabricHandle, CUmemPoolPtrExportData and CUipcEventHandle (cuda.h)."""

LEGACY_UNIT_BYTES = 2 << 20
"""The granularity of memory that legacy handles share: cuMemAlloc may take smaller allocations from one block, and the
handle shares the whole block (CUDA Programming Guide, chapter "Interprocess Communication")."""


class SharedMemory(MappedMemory):
    """Memory on a GPU or on a NUMA node that other processes can import.

    Parameters
    ----------
    kind
        The kind of handle.
    context
        The GPU that owns the memory; for host memory, the GPU whose context is current for the allocation. It gets
        access. Host memory from cuMemCreate is also accessible to its node's CPUs.
    size_bytes
        The size; importers map it rounded up to the granularity of the kind.
    node
        The NUMA node of host memory, which legacy handles cannot share; ``None`` for the GPU's own memory.
    others
        Further GPUs that get access to memory from cuMemCreate in this process.

    Attributes
    ----------
    parts
        The :class:`SharedPart` objects that are open.
    stages_ms
        The times of ``allocate``, of ``set-access`` (cuMemSetAccess; other calls than cuMemCreate give access at once),
        ``export`` and, at the end, ``free``: milliseconds by the host's clock.

    Raises
    ------
    DriverCallError
        A call failed; all is released.
    ValueError
        The kind is legacy, and the memory is host memory.
    """

    def __init__(
        self,
        kind: HandleKind,
        context: Context,
        size_bytes: int,
        node: int | None = None,
        others: Sequence[Context] = (),
    ) -> None:
        if kind is HandleKind.LEGACY and node is not None:
            raise ValueError("legacy handles share the memory of GPUs only")
        self.kind = kind
        # Pools of host memory give the CPUs no access by themselves.
        self.cpu_reads = node is not None and kind in (HandleKind.POSIX_FD, HandleKind.FABRIC)
        self.parts = 0
        self.stages_ms: dict[str, float] = {}
        allocate, export, _ = _BY_KIND[kind]
        with self._making(size_bytes, context) as undo:
            with timed(self.stages_ms, "allocate"):
                host = [] if node is None else [location("HOST_NUMA", node)]
                wanted = _Wanted(context, [*host, *map(on_gpu, (context, *others))], size_bytes, self.stages_ms)
                self.address, self._mapped_bytes, resource = allocate(undo, wanted)
            with timed(self.stages_ms, "export"):
                self._handle, self._fds = export(undo, resource)
        self.allocate_ms = self.stages_ms["allocate"]
        self.stages_ms["allocate"] -= self.stages_ms.get("set-access", 0)

    def offer(self) -> tuple[dict[str, Any], list[int]]:
        """Return what an importer needs: a description as JSON data, and descriptors, which :meth:`close` closes."""
        description = {
            "kind": self.kind.value,
            "size_bytes": self.size_bytes,
            "mapped_bytes": self._mapped_bytes,
            "handle": self._handle.hex(),
        }
        return description, self._fds

    def close(self) -> None:
        """Free the memory. All importers must have closed it."""
        with timed(self.stages_ms, "free"):
            super().close()


class SharedPart(MappedMemory):
    """One of several equal parts of shared memory, which importers map as a whole. The last one frees it.

    Parameters
    ----------
    index
        The number of the part, from 0.

    Attributes
    ----------
    allocate_ms
        The part's share of the time of the whole allocation.
    """

    def __init__(self, whole: SharedMemory, index: int, size_bytes: int) -> None:
        self.whole, self.size_bytes, self._offset_bytes = whole, size_bytes, index * size_bytes
        self.address = whole.address + self._offset_bytes
        self.cpu_reads = whole.cpu_reads
        self.allocate_ms = whole.allocate_ms * size_bytes / whole.size_bytes
        whole.parts += 1

    def offer(self) -> tuple[dict[str, Any], list[int]]:
        """Return :meth:`SharedMemory.offer` with the place of the part."""
        description, fds = self.whole.offer()
        return description | {"size_bytes": self.size_bytes, "offset_bytes": self._offset_bytes}, fds

    def close(self) -> None:
        """Free the whole memory if no other part is open."""
        self.whole.parts -= 1
        if not self.whole.parts:
            self.whole.close()


class ImportedMemory(MappedMemory):
    """Memory of another process, mapped for GPUs of this process.

    Parameters
    ----------
    context
        The GPU of this process that gets access.
    description, fds
        The owner's :meth:`SharedMemory.offer`. The caller may close the descriptors after the constructor returns.
    others
        CUDA's ordinals of further GPUs that get access, with the same cuMemSetAccess, as the chapter on EGM of the CUDA
        Programming Guide does for all local GPUs. They need no context (H200, driver 580). Only memory from
        cuMemCreate: legacy handles and pools give access to the importing GPU alone.

    Attributes
    ----------
    stages_ms
        The times of ``open``, ``map`` (for a legacy handle part of ``open``), ``import-access`` (cuMemSetAccess for all
        GPUs, of memory from cuMemCreate) and, at the end, ``close``: milliseconds by the host's clock.

    Raises
    ------
    DriverCallError
        A call failed; all is released. :func:`egmctl.driver.signatures.cause_of` returns the known cause.
    ValueError
        The handle has the wrong size.
    """

    def __init__(
        self, context: Context, description: dict[str, Any], fds: Sequence[int] = (), others: Sequence[int] = ()
    ) -> None:
        self.stages_ms: dict[str, float] = {}
        _, _, open_ = _BY_KIND[HandleKind(description["kind"])]
        handle = bytes.fromhex(description["handle"])
        offer = _Offer(handle, fds, description["mapped_bytes"], tuple(others), self.stages_ms)
        with self._making(int(description["size_bytes"]), context) as undo:
            self.address = open_(undo, context, offer) + description.get("offset_bytes", 0)

    def close(self) -> None:
        """Unmap the memory. Its owner keeps it."""
        with timed(self.stages_ms, "close"):
            super().close()


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The memory that an owner allocates."""

    context: Context
    places: Sequence[Any]
    """The locations that get access: first that of the memory, then the owner's GPU."""
    size_bytes: int
    stages_ms: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Offer:
    """The owner's offer, and the importer's times of its stages."""

    handle: bytes
    fds: Sequence[int]
    mapped_bytes: int
    others: Sequence[int]
    """The ordinals of further GPUs that get access."""
    stages_ms: dict[str, float]

    def opened(self, function: str, handle: bytes, *more: int) -> Any:
        """Import a shareable handle: the offer's file descriptor or, without one, a fabric handle of these bytes."""
        fabric = None if self.fds else filled(bindings().CUmemFabricHandle(), handle)
        shareable, kind = (self.fds[0], _FD) if fabric is None else (fabric.getPtr(), _FABRIC)
        with timed(self.stages_ms, "open"):
            return call(function, shareable, handle_type(kind), *more)


_FD, _FABRIC = "POSIX_FILE_DESCRIPTOR", "FABRIC"
_Made = tuple[int, int, Any]
"""The owner's address, the size in bytes that importers map, and the argument of the export function."""
_Exported = tuple[bytes, list[int]]
"""The bytes and the descriptors of an offer; either may be empty."""


def _allocate_legacy(undo: ReleaseStack, wanted: _Wanted) -> _Made:
    mapped_bytes = round_up(wanted.size_bytes, LEGACY_UNIT_BYTES)
    pointer = call("cuMemAlloc", mapped_bytes)
    undo.callback(call, "cuMemFree", pointer)
    return int(pointer), mapped_bytes, pointer


def _export_legacy(_undo: ReleaseStack, pointer: Any) -> _Exported:
    return bytes_of(call("cuIpcGetMemHandle", pointer)), []


def _open_legacy(undo: ReleaseStack, _context: Context, offer: _Offer) -> int:
    handle = filled(bindings().CUipcMemHandle(), offer.handle)
    with timed(offer.stages_ms, "open"):
        lazily = bindings().CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        pointer = call("cuIpcOpenMemHandle", handle, lazily)
    undo.callback(call, "cuIpcCloseMemHandle", pointer)
    return int(pointer)


def _allocate_physical(kind: str, undo: ReleaseStack, wanted: _Wanted) -> _Made:
    allocation, mapped_bytes = create_allocation(undo, wanted.places[0], wanted.size_bytes, kind)
    address = map_allocation(undo, allocation, mapped_bytes, wanted.places, wanted.stages_ms)
    return address, mapped_bytes, allocation


def _export_physical(kind: str, undo: ReleaseStack, allocation: Any) -> _Exported:
    return _shareable(undo, call("cuMemExportToShareableHandle", allocation, handle_type(kind), 0))


def _open_physical(undo: ReleaseStack, context: Context, offer: _Offer) -> int:
    allocation = offer.opened("cuMemImportFromShareableHandle", offer.handle)
    undo.callback(call, "cuMemRelease", allocation)
    places = [on_gpu(context), *(location("DEVICE", ordinal) for ordinal in offer.others)]
    access_ms: dict[str, float] = {}
    with timed(offer.stages_ms, "map"):
        address = map_allocation(undo, allocation, offer.mapped_bytes, places, access_ms)
    offer.stages_ms["import-access"] = access_ms["set-access"]
    offer.stages_ms["map"] -= access_ms["set-access"]
    return address


def _allocate_pool(kind: str, undo: ReleaseStack, wanted: _Wanted) -> _Made:
    """Create a pool and allocate from it. Pools that refuse are kept, so that their addresses are not reused."""
    for attempt in range(SPOILT_LIMIT + 1):
        pool = create_pool(undo, wanted.places[0], wanted.size_bytes, [wanted.context], kind)
        try:
            pointer = call("cuMemAllocFromPoolAsync", wanted.size_bytes, pool, 0)
        except DriverCallError as error:
            if error.name != "CUDA_ERROR_OUT_OF_MEMORY" or attempt == SPOILT_LIMIT:
                raise
        else:
            break
    undo.callback(_free_async, pointer)
    call("cuCtxSynchronize")
    return int(pointer), wanted.size_bytes, (pool, pointer)


def _export_pool(kind: str, undo: ReleaseStack, made: tuple[Any, Any]) -> _Exported:
    pool, pointer = made
    handle, fds = _shareable(undo, call("cuMemPoolExportToShareableHandle", pool, handle_type(kind), 0))
    return handle + bytes_of(call("cuMemPoolExportPointer", pointer)), fds


def _open_pool(undo: ReleaseStack, context: Context, offer: _Offer) -> int:
    """Import a pool and an allocation from it, whose exported pointer is the last 64 bytes of the offer's handle."""
    exported = filled(bindings().CUmemPoolPtrExportData(), offer.handle[-HANDLE_BYTES:])
    pool = offer.opened("cuMemPoolImportFromShareableHandle", offer.handle[:-HANDLE_BYTES], 0)
    undo.callback(call, "cuMemPoolDestroy", pool)
    with timed(offer.stages_ms, "map"):
        call("cuMemPoolSetAccess", pool, [access_from(on_gpu(context))], 1)
        pointer = call("cuMemPoolImportPointer", pool, exported)
    undo.callback(_free_async, pointer)
    return int(pointer)


_BY_KIND: Mapping[HandleKind, tuple[Callable[..., _Made], Callable[..., _Exported], Callable[..., int]]] = {
    HandleKind.LEGACY: (_allocate_legacy, _export_legacy, _open_legacy),
    HandleKind.POSIX_FD: (partial(_allocate_physical, _FD), partial(_export_physical, _FD), _open_physical),
    HandleKind.POOL: (partial(_allocate_pool, _FD), partial(_export_pool, _FD), _open_pool),
    HandleKind.POOL_FABRIC: (partial(_allocate_pool, _FABRIC), partial(_export_pool, _FABRIC), _open_pool),
    HandleKind.FABRIC: (partial(_allocate_physical, _FABRIC), partial(_export_physical, _FABRIC), _open_physical),
}
"""The functions that allocate, export and import memory, by kind of handle."""


def _shareable(undo: ReleaseStack, exported: Any) -> _Exported:
    """Return an exported handle as bytes of a fabric handle or as a descriptor, which ``undo`` closes."""
    if isinstance(exported, int):
        undo.callback(os.close, exported)
        return b"", [exported]
    return bytes(exported.data), []


def _free_async(pointer: Any) -> None:
    call("cuMemFreeAsync", pointer, 0)
    # The driver destroys an imported pool only after its last free has completed.
    call("cuCtxSynchronize")


def bytes_of(structure: Any) -> bytes:
    """Return the bytes of a handle."""
    # The bindings expose no fields of these structures, so their raw bytes are copied.
    return ctypes.string_at(structure.getPtr(), HANDLE_BYTES)


def filled(structure: Any, handle: bytes) -> Any:
    """Copy the bytes of a handle into a structure of the bindings and return it."""
    if len(handle) != HANDLE_BYTES:
        raise ValueError(f"a handle of {len(handle)} bytes, not {HANDLE_BYTES}")
    ctypes.memmove(structure.getPtr(), handle, HANDLE_BYTES)
    return structure


class SharedEvent(Resource):
    """An event of this process that other processes can import. Importers must close it before the owner does.

    Attributes
    ----------
    handle
        The bytes of the handle, for importers.
    """

    def __init__(self, context: Context) -> None:
        cuda = bindings()
        flags = cuda.CUevent_flags
        with self._made_on(context) as undo:
            self._event = call("cuEventCreate", flags.CU_EVENT_INTERPROCESS | flags.CU_EVENT_DISABLE_TIMING)
            undo.callback(call, "cuEventDestroy", self._event)
            self.handle = bytes_of(call("cuIpcGetEventHandle", self._event))

    def record(self, stream: Stream) -> None:
        """Record the event on a stream of its GPU."""
        self._make_current()
        call("cuEventRecord", self._event, stream.handle)


class ImportedEvent(Resource):
    """An event of another process.

    Parameters
    ----------
    context
        The GPU whose streams wait for the event.
    handle
        The owner's :attr:`SharedEvent.handle`.
    """

    def __init__(self, context: Context, handle: bytes) -> None:
        structure = filled(bindings().CUipcEventHandle(), handle)
        with self._made_on(context) as undo:
            self._event = call("cuIpcOpenEventHandle", structure)
            undo.callback(call, "cuEventDestroy", self._event)

    def hold(self, stream: Stream) -> None:
        """Make work queued on a stream from now on wait for the event's latest record."""
        self._make_current()
        call("cuStreamWaitEvent", stream.handle, self._event, 0)

    def synchronize(self) -> None:
        """Block until the event's latest record has completed."""
        self._make_current()
        call("cuEventSynchronize", self._event)
