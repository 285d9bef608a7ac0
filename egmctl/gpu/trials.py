"""Small copies that verify every byte, and registrations with a NIC, to check that a path works, not how fast it is.

The GPU's copy engine moves the data, and the host generates and compares the pattern. No kernel has to be compiled.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import closing
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from egmctl.driver import breadcrumb
from egmctl.driver.cuda import bindings, call
from egmctl.errors import DriverCallError, DriverLibraryMissing
from egmctl.gpu.context import Context, ReleaseStack
from egmctl.gpu.cpu_threads import words_of
from egmctl.gpu.memory import DeviceMemory, HostNumaMemory, MappedMemory
from egmctl.gpu.pattern import POISON, WORD_BYTES, pattern_words
from egmctl.model.probes import Registration

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIZE_BYTES = 2 << 20
"""The size of every buffer, the granularity of cuMemCreate on H200."""


class Corrupt(Exception):
    """The received data differ from the data sent, although every call succeeded. The message gives the location."""


def peer_round_trip(context: Context, peer: Context, seed: int) -> None:
    """Write a peer's memory from a GPU and read it, with direct access, and compare every byte.

    Raises
    ------
    Corrupt
        The data are wrong or did not arrive. Every destination is overwritten first.
    """
    context.enable_access_to(peer)
    with closing(DeviceMemory(peer, SIZE_BYTES)) as other:
        _poison(peer, other)
        put(context, other, seed)
        _compare(_to_host(peer, other), seed, "written to the peer")
        _from_host(peer, other, seed + 1)
        check_bytes(context, other, seed + 1, "read from the peer")


def host_round_trip(context: Context, memory: HostNumaMemory, seed: int) -> None:
    """Write host memory from a GPU and read it with the GPU, and compare every byte.

    Raises
    ------
    Corrupt
        The data are wrong. The message names the direction.
    """
    words = words_of(memory, SIZE_BYTES)
    words[:] = POISON
    put(context, memory, seed)
    _compare(words, seed, "written by the GPU")
    words[:] = _pattern(seed + 1)
    check_bytes(context, memory, seed + 1, "read by the GPU")


def put(context: Context, memory: MappedMemory, seed: int) -> None:
    """Write a seed's pattern to memory by a GPU, from a buffer in the GPU's own memory."""
    with closing(DeviceMemory(context, SIZE_BYTES)) as near:
        _from_host(context, near, seed)
        _copy(context, memory, near)


def check_bytes(context: Context, memory: MappedMemory, seed: int, what: str) -> None:
    """Read memory by a GPU into its own, and compare every byte with a seed's pattern.

    Raises
    ------
    Corrupt
        The data differ. The message names ``what`` and the first difference.
    """
    with closing(DeviceMemory(context, SIZE_BYTES)) as near:
        _poison(context, near)
        _copy(context, near, memory)
        _compare(_to_host(context, near), seed, what)


def share_managed(context: Context) -> None:
    """Ask for the legacy handle of managed memory.

    Raises
    ------
    DriverCallError
        A call failed; ``cuIpcGetMemHandle`` if the driver makes no handle of managed memory.
    """
    with ReleaseStack() as undo:
        context.make_current()
        attachment = bindings().CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL
        pointer = call("cuMemAllocManaged", SIZE_BYTES, attachment.value)
        undo.callback(call, "cuMemFree", pointer)
        call("cuIpcGetMemHandle", pointer)


def register(
    context: Context, node: int | None, nic: str | None, registration: Registration = Registration.DEFAULT
) -> None:
    """Export memory as a dma-buf, and register that with a NIC for remote reads and writes.

    The mapping of the dma-buf fits the function that registers it: ``ibv_reg_dmabuf_mr`` refuses the mapping over PCIe
    on GB200, which is for Data Direct (https://github.com/openucx/ucx/pull/11571).

    Parameters
    ----------
    context
        The GPU of the memory, or the one under which host memory is allocated.
    node
        The NUMA node; ``None``: the memory is the GPU's.
    nic
        The name of the NIC, e.g. ``mlx5_0``; ``None``: the memory is only exported.
    registration
        How the NIC registers it.

    Raises
    ------
    DriverCallError
        CUDA exports no dma-buf, or a call of libibverbs or libmlx5 failed; its number is then an errno.
    """
    kind = bindings().CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
    size = SIZE_BYTES
    with closing(DeviceMemory(context, size) if node is None else HostNumaMemory(node, size, [context])) as memory:
        mapping = 0 if registration is Registration.DEFAULT else _OVER_PCIE
        fd = call("cuMemGetHandleForAddressRange", memory.address, size, kind, mapping)
        try:
            if nic is not None:
                _register(fd, nic.encode(), registration)
        finally:
            os.close(fd)


_OVER_PCIE = 1
"""CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE (cuda.h of CUDA 12.8); older drivers return CUDA_ERROR_INVALID_VALUE."""
_REMOTE_ACCESS = 0b111
"""IBV_ACCESS_LOCAL_WRITE, _REMOTE_WRITE and _REMOTE_READ (infiniband/verbs.h)."""
_DATA_DIRECT = 1
"""MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT (infiniband/mlx5dv.h)."""
_UNALIGNED_BYTES = 512
"""A base that is in no page size's grid. Small allocations of cudaMalloc begin at multiples of 512 bytes."""
_SYSFS_PATH_BYTES = 4096
"""PATH_MAX."""


def _register(fd: int, nic: bytes, registration: Registration) -> None:
    base = _UNALIGNED_BYTES if registration is Registration.DATA_DIRECT_UNALIGNED else 0
    # The kernel wants the same place in the page of the region's base in the dma-buf and of its address for peers.
    begin, size, count = ctypes.c_uint64(base), ctypes.c_size_t(SIZE_BYTES - base), ctypes.c_int()
    region = begin, size, begin, fd, _REMOTE_ACCESS
    with ReleaseStack() as undo:

        def made(undone_by: str, name: str, *arguments: Any) -> ctypes.c_void_p:
            result = ctypes.c_void_p(_verb(name, *arguments))
            undo.callback(_function(undone_by), result)
            return result

        listed = made("ibv_free_device_list", "ibv_get_device_list", ctypes.byref(count))
        devices = map(ctypes.c_void_p, (ctypes.c_void_p * count.value).from_address(listed.value or 0))
        named = [each for each in devices if ctypes.string_at(_verb("ibv_get_device_name", each)) == nic]
        if not named:
            raise DriverCallError("ibv_get_device_list", errno.ENODEV, "ENODEV")
        context = made("ibv_close_device", "ibv_open_device", named[0])
        domain = made("ibv_dealloc_pd", "ibv_alloc_pd", context)
        if registration is Registration.DEFAULT:
            made("ibv_dereg_mr", "ibv_reg_dmabuf_mr", domain, *region)
        else:
            _need_data_direct(context)
            made("ibv_dereg_mr", "mlx5dv_reg_dmabuf_mr", domain, *region, _DATA_DIRECT)


def _need_data_direct(context: ctypes.c_void_p) -> None:
    """Raise DriverCallError with ENODEV if no Data Direct function belongs to a NIC."""
    name = "mlx5dv_get_data_direct_sysfs_path"
    path = ctypes.create_string_buffer(_SYSFS_PATH_BYTES)
    breadcrumb.enter(name)
    number: int = _function(name)(context, path, ctypes.c_size_t(_SYSFS_PATH_BYTES))
    breadcrumb.leave()
    if number:
        raise _failed(name, number)


def _verb(name: str, *arguments: Any) -> int:
    """Call a function of libibverbs or libmlx5 and return its pointer; raise DriverCallError if that is null."""
    function = _function(name)
    function.restype = ctypes.c_void_p
    breadcrumb.enter(name)
    result: int | None = function(*arguments)
    breadcrumb.leave()
    if not result:
        raise _failed(name, ctypes.get_errno())
    return result


def _failed(name: str, number: int) -> DriverCallError:
    return DriverCallError(name, number, _NAMES.get(number) or errno.errorcode.get(number, os.strerror(number)))


_NAMES = {524: "ENOTSUPP"}
"""The names of the kernel's own numbers, which C does not have."""


def _function(name: str) -> Any:
    library, version = "libibverbs.so.1", "of rdma-core 34 or newer"
    if name.startswith("mlx5dv_"):
        library, version = "libmlx5.so.1", "with the symbols of MLX5_1.25"
    try:
        return getattr(ctypes.CDLL(library, use_errno=True), name)
    except (OSError, AttributeError):
        raise DriverLibraryMissing(name, None, f"no {library} {version} can be loaded") from None


def _from_host(context: Context, memory: MappedMemory, seed: int) -> None:
    words = _pattern(seed).copy()
    context.make_current()
    call("cuMemcpyHtoD", memory.address, words.ctypes.data, SIZE_BYTES)


def _to_host(context: Context, memory: MappedMemory) -> NDArray[np.uint64]:
    import numpy as np

    words = np.empty(SIZE_BYTES // WORD_BYTES, dtype=np.uint64)
    context.make_current()
    call("cuMemcpyDtoH", words.ctypes.data, memory.address, SIZE_BYTES)
    return words


def _copy(context: Context, destination: MappedMemory, source: MappedMemory) -> None:
    """Copy with this GPU's copy engine and wait."""
    context.make_current()
    call("cuMemcpyAsync", destination.address, source.address, SIZE_BYTES, 0)
    call("cuCtxSynchronize")


def _poison(context: Context, memory: MappedMemory) -> None:
    context.make_current()
    call("cuMemsetD32", memory.address, POISON, SIZE_BYTES // 4)
    call("cuCtxSynchronize")


@lru_cache(maxsize=2)
def _pattern(seed: int) -> NDArray[np.uint64]:
    """Return what a seed fills a buffer with: copied to be sent, then compared with what has come back.

    The driver gets copies alone, so that whatever it does to them, the data are compared with the pattern.
    """
    words = pattern_words(seed, 0, SIZE_BYTES // WORD_BYTES)
    words.setflags(write=False)
    return words


def _compare(words: NDArray[np.uint64], seed: int, what: str) -> None:
    expected = _pattern(seed)
    (wrong,) = (words != expected).nonzero()
    if len(wrong):
        first = int(wrong[0])
        raise Corrupt(
            f"{what}: {len(wrong)} of {len(expected)} words differ, the first at offset {first * WORD_BYTES}: "
            f"expected {int(expected[first]):#018x}, found {int(words[first]):#018x}"
        )
