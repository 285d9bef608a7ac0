"""A program whose one CUDA call fails: ``python failing.py NAME``; ``none`` succeeds.

It uses the bindings alone, as an application does, and nothing of egmctl.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as cuda

SIZE = 2 << 20
KINDS = cuda.CUmemAllocationHandleType
PLACES = cuda.CUmemLocationType


def call(function: Any, *arguments: Any) -> Any:
    """Call a function and return its values; end with 3 if it fails."""
    error, *values = function(*arguments)
    if error != cuda.CUresult.CUDA_SUCCESS:
        sys.exit(3)
    return values[0] if values else None


def properties(kind: Any = KINDS.CU_MEM_HANDLE_TYPE_NONE, place: Any = None, number: int = 0) -> Any:
    wanted = cuda.CUmemAllocationProp()
    wanted.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.requestedHandleTypes = kind
    wanted.location.type = PLACES.CU_MEM_LOCATION_TYPE_DEVICE if place is None else place
    wanted.location.id = number
    return wanted


def pool(kind: Any = KINDS.CU_MEM_HANDLE_TYPE_NONE, place: Any = None) -> Any:
    wanted = cuda.CUmemPoolProps()
    wanted.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.handleTypes = kind
    wanted.location.type = PLACES.CU_MEM_LOCATION_TYPE_DEVICE if place is None else place
    return call(cuda.cuMemPoolCreate, wanted)


def allocation(kind: Any = KINDS.CU_MEM_HANDLE_TYPE_NONE) -> Any:
    return call(cuda.cuMemCreate, SIZE, properties(kind), 0)


def mapped(*, access: bool) -> int:
    address = call(cuda.cuMemAddressReserve, SIZE, 0, 0, 0)
    call(cuda.cuMemMap, address, SIZE, 0, allocation(), 0)
    if access:
        descriptor = cuda.CUmemAccessDesc()
        descriptor.location = properties().location
        descriptor.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        call(cuda.cuMemSetAccess, address, SIZE, [descriptor], 1)
    return int(address)


def registered() -> int:
    """Return memory of this process that CUDA has registered."""
    address = ctypes.addressof(MEMORY) + 4096 & -4096
    call(cuda.cuMemHostRegister, address, 4096, 0)
    return address


FABRIC, FD, NONE = KINDS.CU_MEM_HANDLE_TYPE_FABRIC, KINDS.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0
HOST, NUMA = PLACES.CU_MEM_LOCATION_TYPE_HOST, PLACES.CU_MEM_LOCATION_TYPE_HOST_NUMA

MEMORY = ctypes.create_string_buffer(3 * 4096)

CALLS: dict[str, Callable[[], Any]] = {
    "cuMemCreate 1 unaligned": lambda: call(cuda.cuMemCreate, 1000, properties(), 0),
    "cuMemCreate 800": lambda: call(cuda.cuMemCreate, SIZE, properties(FABRIC), 0),
    "cuMemCreate 1 host handle": lambda: call(cuda.cuMemCreate, SIZE, properties(FD, HOST), 0),
    "cuMemCreate 1 node": lambda: call(cuda.cuMemCreate, SIZE, properties(place=NUMA, number=7), 0),
    "cuMemCreate 101": lambda: call(cuda.cuMemCreate, SIZE, properties(number=99), 0),
    "cuMemExportToShareableHandle 1": lambda: call(cuda.cuMemExportToShareableHandle, allocation(), FD, 0),
    "cuMemsetD8 1": lambda: call(cuda.cuMemsetD8, mapped(access=False), 0, SIZE),
    "cuMemAlloc 2": lambda: call(cuda.cuMemAlloc, 1 << 46),
    "cuCtxEnablePeerAccess 217": lambda: call(cuda.cuCtxEnablePeerAccess, call(cuda.cuCtxGetCurrent), 0),
    "cuDeviceSetMemPool 1": lambda: call(cuda.cuDeviceSetMemPool, 0, pool(place=NUMA)),
    "cuMemHostRegister 712": lambda: call(cuda.cuMemHostRegister, registered(), 4096, 0),
    "cuMemHostRegister 1": lambda: call(cuda.cuMemHostRegister, call(cuda.cuMemHostAlloc, 1 << 16, 0), 1 << 16, 0),
    "cuIpcGetMemHandle 1": lambda: call(cuda.cuIpcGetMemHandle, mapped(access=True)),
    "cuMemImportFromShareableHandle 80[01]": lambda: call(cuda.cuMemImportFromShareableHandle, b"\1" * 64, FABRIC),
    "cuMemImportFromShareableHandle 999": lambda: call(cuda.cuMemImportFromShareableHandle, os.open("/", 0), FD),
    "cuMemHostUnregister 713": lambda: call(cuda.cuMemHostUnregister, ctypes.addressof(MEMORY) + 4096 & -4096),
    "cuMemMap 1": lambda: call(cuda.cuMemMap, 1 << 40, SIZE, 0, allocation(), 0),
    "cuMemSetAccess 1": lambda: call(cuda.cuMemSetAccess, 1 << 40, SIZE, [cuda.CUmemAccessDesc()], 1),
    "cuDeviceGet 101": lambda: call(cuda.cuDeviceGet, 99),
    "cuMemFree 1": lambda: call(cuda.cuMemFree, 1 << 40),
    "cuModuleLoadData 200": lambda: call(cuda.cuModuleLoadData, b"no image\0"),
    "cuMemRetainAllocationHandle 1": lambda: call(cuda.cuMemRetainAllocationHandle, call(cuda.cuMemAlloc, SIZE)),
    "cuMemPoolExportToShareableHandle 1": lambda: call(cuda.cuMemPoolExportToShareableHandle, pool(), FD, 0),
    "cuMemCreate 800 host": lambda: call(cuda.cuMemCreate, SIZE, properties(FABRIC, NUMA), 0),
    "cuMemAlloc 201": lambda: (call(cuda.cuCtxSetCurrent, 0), call(cuda.cuMemAlloc, SIZE)),
    "cuIpcOpenMemHandle 1": lambda: call(cuda.cuIpcOpenMemHandle, cuda.CUipcMemHandle(), 1),
    "cuMemAddressReserve 1": lambda: call(cuda.cuMemAddressReserve, 1000, 0, 0, 0),
}
"""Calls that fail, by the call and the error that H100s with driver 580.159.04 return; 801 with an IMEX channel."""


def main(name: str) -> None:
    call(cuda.cuInit, 0)
    call(cuda.cuCtxSetCurrent, call(cuda.cuDevicePrimaryCtxRetain, call(cuda.cuDeviceGet, 0)))
    if name != "none":
        CALLS[name]()


if __name__ == "__main__":
    main(sys.argv[1])
