"""Calls of the fake driver's memory, by the bindings."""

from __future__ import annotations

import ctypes
from typing import Any

from tests.fake.process import code, cu

MIB = 1 << 20
DEVICE, HOST, HOST_NUMA, HOST_NUMA_CURRENT = 1, 2, 3, 4
NONE, POSIX_FD, FABRIC = 0, 1, 8
READ_WRITE = 3


def properties(location: int, identity: int, handle_types: int = NONE) -> Any:
    from cuda.bindings import driver

    wanted = driver.CUmemAllocationProp()
    wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location = place(location, identity)
    wanted.requestedHandleTypes = driver.CUmemAllocationHandleType(handle_types)
    return wanted


def pool_properties(location: int, identity: int, handle_types: int = NONE) -> Any:
    from cuda.bindings import driver

    wanted = driver.CUmemPoolProps()
    wanted.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location = place(location, identity)
    wanted.handleTypes = driver.CUmemAllocationHandleType(handle_types)
    return wanted


def access(location: int, identity: int, flags: int = READ_WRITE) -> Any:
    from cuda.bindings import driver

    descriptor = driver.CUmemAccessDesc()
    descriptor.location = place(location, identity)
    descriptor.flags = driver.CUmemAccess_flags(flags)
    return descriptor


def place(location: int, identity: int) -> Any:
    from cuda.bindings import driver

    made = driver.CUmemLocation()
    made.type, made.id = driver.CUmemLocationType(location), identity
    return made


def mapped(location: int, identity: int, size: int, *descriptors: Any) -> int:
    """Make memory, map it, give access; return its address."""
    handle = cu("cuMemCreate", size, properties(location, identity), 0)
    address = cu("cuMemAddressReserve", size, 0, 0, 0)
    cu("cuMemMap", address, size, 0, handle, 0)
    cu("cuMemRelease", handle)
    if descriptors:
        cu("cuMemSetAccess", address, size, list(descriptors), len(descriptors))
    return int(address)


def launch(name: str, *arguments: int) -> int:
    """Launch a kernel with 8-byte arguments, wait for it, and return the first error."""
    module = cu("cuModuleLoadData", b"any bytes")
    function = cu("cuModuleGetFunction", module, name.encode())
    kinds = (ctypes.c_uint64,) * len(arguments)
    return code("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, 0, (arguments, kinds), 0) or code("cuCtxSynchronize")
