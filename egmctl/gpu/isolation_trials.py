"""Reads by a kernel of memory that was not shared, to the error that ends the process.

Copies show nothing here: H200, driver 580, refuses them (CUDA_ERROR_INVALID_VALUE) even where a kernel may read, and
cuMemcpyPeer needs no mapping. A kernel that is refused ends its context with CUDA_ERROR_ILLEGAL_ADDRESS (700), and the
driver logs an Xid 31. So each of these functions is the last one that a process runs: nothing is released.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

from egmctl.dataclass import dataclass
from egmctl.driver.cuda import call
from egmctl.errors import DriverCallError
from egmctl.gpu.context import Context, ReleaseStack
from egmctl.gpu.handles import LEGACY_UNIT_BYTES, ImportedMemory, bytes_of
from egmctl.gpu.memory import DeviceMemory, access_from, create_allocation, location, map_allocation, on_gpu
from egmctl.gpu.program import Kernels
from egmctl.model.task import HandleKind

SIZE_BYTES = 2 << 20
"""The size of memory from cuMemCreate: its granularity on H200."""
SMALL_BYTES = 64 << 10
"""The size of allocations that share a block of 2 MiB (H200, driver 580: four of them, made one after the other)."""
SMALL_COUNT = 4
_APART_BYTES = 1 << 30
"""Addresses that an owner reserves around its memory, so that no other process has memory of its own there."""
_VECTOR_BYTES = 16

Tell = Callable[[dict[str, int]], None]
"""Tells the command what is known before the read that may end the process."""


def closed_to(owner: Context, reader: Context, node: int | None, tell: Tell) -> dict[str, int]:
    """Read memory that is mapped for its owner alone by the reader's copy engine and then by its kernel.

    Parameters
    ----------
    node
        The NUMA node of host memory that is mapped for ``owner`` alone; ``None``: memory of ``owner``.

    Returns
    -------
    dict
        The CUresult of the kernel's read, ``kernel_result``; ``tell`` gets the results before it.
    """
    kernels, near = Kernels(reader), DeviceMemory(reader, SIZE_BYTES)
    undo = ReleaseStack()
    owner.make_current()
    place = on_gpu(owner) if node is None else location("HOST_NUMA", node)
    allocation, size = create_allocation(undo, place, SIZE_BYTES)
    address = map_allocation(undo, allocation, size, [on_gpu(owner)])
    call("cuMemsetD8", address, 1, size)
    call("cuCtxSynchronize")
    reader.make_current()
    known = {"access": int(call("cuMemGetAccess", on_gpu(reader), address))}
    # The driver copies host memory that the GPU does not map by the CPU, which does not map it either: the process
    # ends with SIGSEGV (H200, driver 580.159.04), so only a kernel tries it.
    if node is None:
        known["copy_result"] = call_result("cuMemcpyDtoD", near.address, address, _VECTOR_BYTES)
        ends = (near.address, reader.handle, address, owner.handle)
        known["peer_copy_result"] = call_result("cuMemcpyPeer", *ends, _VECTOR_BYTES)
    tell(known)
    return {"kernel_result": _read(kernels, reader, near.address, address, _VECTOR_BYTES)}


@dataclass(slots=True)
class UnsharedMemory:
    """Memory of this process, at an address where others have none; it lives as long as the process."""

    address: int


def keep(owner: Context) -> UnsharedMemory:
    """Allocate memory of a GPU and share it with nobody."""
    undo = ReleaseStack()
    owner.make_current()
    allocation, size = create_allocation(undo, on_gpu(owner), SIZE_BYTES)
    base = int(call("cuMemAddressReserve", _APART_BYTES, 0, 0, 0))
    address = base + _APART_BYTES // 2
    call("cuMemMap", address, size, 0, allocation, 0)
    call("cuMemSetAccess", address, size, [access_from(on_gpu(owner))], 1)
    call("cuMemsetD8", address, 1, size)
    call("cuCtxSynchronize")
    undo.pop_all()
    return UnsharedMemory(address)


def reach(reader: Context, address: int, tell: Tell) -> dict[str, int]:
    """Read an address of another process by this one's copy engine and kernel; as :func:`closed_to`.

    Raises
    ------
    OwnAddress
        This process has memory of its own there, so that nothing follows from reading it.
    """
    kernels, near = Kernels(reader), DeviceMemory(reader, SIZE_BYTES)
    reader.make_current()
    if _is_own(address):
        raise OwnAddress
    tell({"copy_result": call_result("cuMemcpyDtoD", near.address, address, _VECTOR_BYTES)})
    return {"kernel_result": _read(kernels, reader, near.address, address, _VECTOR_BYTES)}


class OwnAddress(Exception):
    """The address of another process is one of this process' memory too."""


def export_one(owner: Context) -> dict[str, object]:
    """Allocate small memory, fill each allocation with its number, and export the lowest by a legacy handle.

    Returns
    -------
    dict
        ``handle``, the bytes in hexadecimal digits; ``neighbours``, the offset and the byte of each other allocation
        behind it in its block of 2 MiB; ``block_bytes``, the bytes from it to the end of the block.
    """
    owner.make_current()
    pointers = sorted((call("cuMemAlloc", SMALL_BYTES) for _ in range(SMALL_COUNT)), key=int)
    for number, pointer in enumerate(pointers, 1):
        call("cuMemsetD8", pointer, number, SMALL_BYTES)
    call("cuCtxSynchronize")
    first = int(pointers[0])
    block_bytes = LEGACY_UNIT_BYTES - first % LEGACY_UNIT_BYTES
    offsets = [(int(pointer) - first, number) for number, pointer in enumerate(pointers, 1)]
    return {
        "handle": bytes_of(call("cuIpcGetMemHandle", pointers[0])).hex(),
        "neighbours": [[offset, number] for offset, number in offsets if 0 < offset < block_bytes],
        "block_bytes": block_bytes,
    }


def look_around(
    reader: Context, handle: str, neighbours: list[tuple[int, int]], block_bytes: int, tell: Tell
) -> dict[str, int]:
    """Open a legacy handle; read what lies behind the exported memory in its block, and then what lies beyond.

    Parameters
    ----------
    handle, neighbours, block_bytes
        What :func:`export_one` has returned.
    """
    kernels, near = Kernels(reader), DeviceMemory(reader, SMALL_BYTES)
    offer = {"kind": HandleKind.LEGACY, "size_bytes": SMALL_BYTES, "mapped_bytes": SMALL_BYTES, "handle": handle}
    opened = ImportedMemory(reader, offer)
    reader.make_current()
    known = {"copy_result": call_result("cuMemcpyDtoD", near.address, opened.address + SMALL_BYTES, _VECTOR_BYTES)}
    known["disclosed"] = 0
    for offset, number in neighbours:
        if kernel_result := _read(kernels, reader, near.address, opened.address + offset, SMALL_BYTES):
            # The block is closed already: the context is gone.
            return {**known, "kernel_result": kernel_result}
        found = (ctypes.c_ubyte * SMALL_BYTES)()
        call("cuMemcpyDtoH", ctypes.addressof(found), near.address, SMALL_BYTES)
        known["disclosed"] += bytes(found) == bytes([number]) * SMALL_BYTES
    tell(known)
    beyond = opened.address + block_bytes
    if _is_own(beyond):
        return {}
    return {"kernel_result": _read(kernels, reader, near.address, beyond, _VECTOR_BYTES)}


def _is_own(address: int) -> bool:
    """Return whether this process has memory at an address: CUDA's, or any, which coherent GPUs read as the CPUs do."""
    if call_result("cuMemGetAddressRange", address) == 0:
        return True
    ranges = (line.split(" ", 1)[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)


def call_result(name: str, *arguments: object) -> int:
    """Call a function of the driver and return its CUresult, 0 for success."""
    try:
        call(name, *arguments)
    except DriverCallError as error:
        if error.number is None:
            raise
        return error.number
    return 0


def _read(kernels: Kernels, reader: Context, to: int, address: int, size_bytes: int) -> int:
    """Read memory by a kernel; return the CUresult with which it ended."""
    call("cuMemsetD8", to, 0, size_bytes)
    kernels.launch("copy_vectors", 0, 1, 32, to, address, size_bytes // _VECTOR_BYTES, 1, 1)
    reader.make_current()
    return call_result("cuCtxSynchronize")
