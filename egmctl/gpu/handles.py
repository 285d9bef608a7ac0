"""Memory that another process opens: by legacy IPC handle, file descriptor, pool or fabric handle.

What the owner makes has an address and what to send, bytes or a descriptor; what the importer makes of that is the same
memory at an address of its own. The importer closes first.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import ExitStack
from typing import Any

from egmctl.gpu.context import Context
from egmctl.gpu.driver import bindings, call
from egmctl.model.probes import ProbeKind

HANDLE_BYTES = 64
"""Of CUipcMemHandle, CUmemFabricHandle and CUmemPoolPtrExportData (cuda.h)."""


class SharedMemory:
    """Memory on a GPU or on a NUMA node, mapped for one GPU, with what another process needs to open it.

    Parameters
    ----------
    kind
        LEGACY_IPC, POSIX_FD, POOL or FABRIC.
    context
        The GPU that owns the memory; for host memory the one that is current when it is made.
    size_bytes
        Rounded up to the granularity where the kind has one: :attr:`size_bytes` is what the importer maps.
    node
        NUMA node of host memory, which LEGACY_IPC cannot share; ``None`` for the GPU's own.
    """

    def __init__(self, kind: ProbeKind, context: Context, size_bytes: int, node: int | None = None) -> None:
        context.make_current()
        self.context = context
        self.size_bytes = size_bytes
        self.handle = b""
        self.fd: int | None = None
        with ExitStack() as undo:
            make = {ProbeKind.LEGACY_IPC: self._make_legacy, ProbeKind.POOL: self._make_pool}.get(kind)
            if make is not None:
                make(undo, node)
            else:
                self._make_allocation(undo, _HANDLE_TYPES[kind], node)
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Give the memory back."""
        self.context.make_current()
        self._undo.close()

    def _make_legacy(self, undo: ExitStack, _node: int | None) -> None:
        pointer = call("cuMemAlloc", self.size_bytes)
        undo.callback(call, "cuMemFree", pointer)
        self.address = int(pointer)
        self.handle = _bytes_of(call("cuIpcGetMemHandle", pointer))

    def _make_allocation(self, undo: ExitStack, handle_type: str, node: int | None) -> None:
        cuda = bindings()
        kind = _handle_type(handle_type)
        properties = cuda.CUmemAllocationProp()
        properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.requestedHandleTypes = kind
        properties.location = _location(self.context, node)
        minimum = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        granularity: int = call("cuMemGetAllocationGranularity", properties, minimum)
        self.size_bytes = -(-self.size_bytes // granularity) * granularity
        allocation = call("cuMemCreate", self.size_bytes, properties, 0)
        undo.callback(call, "cuMemRelease", allocation)
        exported = call("cuMemExportToShareableHandle", allocation, kind, 0)
        if isinstance(exported, int):
            undo.callback(os.close, exported)
            self.fd = exported
        else:
            self.handle = bytes(exported.data)
        self.address = _map(undo, self.context, allocation, self.size_bytes)

    def _make_pool(self, undo: ExitStack, node: int | None) -> None:
        cuda = bindings()
        kind = _handle_type(_HANDLE_TYPES[ProbeKind.POOL])
        properties = cuda.CUmemPoolProps()
        properties.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.handleTypes = kind
        properties.location = _location(self.context, node)
        pool = call("cuMemPoolCreate", properties)
        undo.callback(call, "cuMemPoolDestroy", pool)
        call("cuMemPoolSetAccess", pool, [_access(self.context)], 1)
        exported: int = call("cuMemPoolExportToShareableHandle", pool, kind, 0)
        undo.callback(os.close, exported)
        self.fd = exported
        pointer = call("cuMemAllocFromPoolAsync", self.size_bytes, pool, 0)
        undo.callback(_free_async, pointer)
        call("cuCtxSynchronize")
        self.address = int(pointer)
        self.handle = _bytes_of(call("cuMemPoolExportPointer", pointer))


class ImportedMemory:
    """Another process' memory, mapped for one GPU of this one.

    Parameters
    ----------
    kind, size_bytes
        As the owner has made it.
    context
        The GPU that works on it here.
    handle, fd
        What the owner sent; the descriptor stays the caller's.
    """

    def __init__(self, kind: ProbeKind, context: Context, size_bytes: int, handle: bytes, fd: int | None) -> None:
        context.make_current()
        self.context = context
        self.size_bytes = size_bytes
        with ExitStack() as undo:
            if kind is ProbeKind.LEGACY_IPC:
                self.address = _open_legacy(undo, handle)
            elif kind is ProbeKind.POOL:
                self.address = _open_pool(undo, context, handle, fd)
            else:
                shareable = fd if fd is not None else _fabric_handle(handle).getPtr()
                kind_of_handle = _handle_type(_HANDLE_TYPES[kind])
                allocation = call("cuMemImportFromShareableHandle", shareable, kind_of_handle)
                undo.callback(call, "cuMemRelease", allocation)
                self.address = _map(undo, context, allocation, size_bytes)
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Let go of the memory; its owner keeps it."""
        self.context.make_current()
        self._undo.close()


_HANDLE_TYPES = {
    ProbeKind.POSIX_FD: "POSIX_FILE_DESCRIPTOR",
    ProbeKind.POOL: "POSIX_FILE_DESCRIPTOR",
    ProbeKind.FABRIC: "FABRIC",
}


def _open_legacy(undo: ExitStack, handle: bytes) -> int:
    cuda = bindings()
    ipc_handle = cuda.CUipcMemHandle()
    ctypes.memmove(ipc_handle.getPtr(), handle, HANDLE_BYTES)
    flags = cuda.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    pointer = call("cuIpcOpenMemHandle", ipc_handle, flags)
    undo.callback(call, "cuIpcCloseMemHandle", pointer)
    return int(pointer)


def _open_pool(undo: ExitStack, context: Context, handle: bytes, fd: int | None) -> int:
    cuda = bindings()
    kind = _handle_type(_HANDLE_TYPES[ProbeKind.POOL])
    pool = call("cuMemPoolImportFromShareableHandle", fd, kind, 0)
    undo.callback(call, "cuMemPoolDestroy", pool)
    call("cuMemPoolSetAccess", pool, [_access(context)], 1)
    exported = cuda.CUmemPoolPtrExportData()
    ctypes.memmove(exported.getPtr(), handle, HANDLE_BYTES)
    pointer = call("cuMemPoolImportPointer", pool, exported)
    undo.callback(_free_async, pointer)
    return int(pointer)


def _free_async(pointer: Any) -> None:
    call("cuMemFreeAsync", pointer, 0)
    # The driver gives an imported pool up only when its last free has happened.
    call("cuCtxSynchronize")


def _map(undo: ExitStack, context: Context, allocation: Any, size_bytes: int) -> int:
    pointer = call("cuMemAddressReserve", size_bytes, 0, 0, 0)
    undo.callback(call, "cuMemAddressFree", pointer, size_bytes)
    call("cuMemMap", pointer, size_bytes, 0, allocation, 0)
    undo.callback(call, "cuMemUnmap", pointer, size_bytes)
    call("cuMemSetAccess", pointer, size_bytes, [_access(context)], 1)
    return int(pointer)


def _location(context: Context, node: int | None) -> Any:
    cuda = bindings()
    location = cuda.CUmemLocation()
    kinds = cuda.CUmemLocationType
    location.type = kinds.CU_MEM_LOCATION_TYPE_DEVICE if node is None else kinds.CU_MEM_LOCATION_TYPE_HOST_NUMA
    location.id = context.ordinal if node is None else node
    return location


def _access(context: Context) -> Any:
    cuda = bindings()
    descriptor = cuda.CUmemAccessDesc()
    descriptor.location = _location(context, None)
    descriptor.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return descriptor


def _handle_type(name: str) -> Any:
    return getattr(bindings().CUmemAllocationHandleType, f"CU_MEM_HANDLE_TYPE_{name}")


def _fabric_handle(handle: bytes) -> Any:
    fabric = bindings().CUmemFabricHandle()
    fabric.data = handle
    return fabric


def _bytes_of(structure: Any) -> bytes:
    # The bindings show no fields of these structures: their bytes are taken as they lie.
    return ctypes.string_at(structure.getPtr(), HANDLE_BYTES)
