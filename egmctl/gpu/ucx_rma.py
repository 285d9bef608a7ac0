"""One-sided UCX: memory that another process may put to and get from. ucxx has no such calls: libucp is called itself.

ucxx has loaded libucp; the numbers and structures are those of ``ucp/api/ucp.h`` of UCX 1.21.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from egmctl.driver import breadcrumb
from egmctl.errors import DriverCallError
from egmctl.gpu.clock import ms_since

_STATUS = ctypes.c_int8
"""ucs_status_t: one byte (UCS_S_PACKED in ``ucs/type/status.h``); the rest of the register is left to chance."""
_OK, _IN_PROGRESS = 0, 1
_LAST_ERROR = -100
"""UCS_ERR_LAST: a pointer in this range is an error in place of a request (``UCS_PTR_IS_ERR``)."""
_ADDRESS, _LENGTH = 1 << 0, 1 << 1
"""UCP_MEM_MAP_PARAM_FIELD_ADDRESS and _LENGTH: the kind of the memory UCX finds out by itself."""


class _MapParameters(ctypes.Structure):
    """ucp_mem_map_params_t."""

    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("address", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("flags", ctypes.c_uint),
        ("prot", ctypes.c_uint),
        ("memory_type", ctypes.c_int),
        ("exported_memh_buffer", ctypes.c_void_p),
    )


_NO_PARAMETERS = (ctypes.c_uint64 * 32)()
"""A ucp_request_param_t whose mask is 0: bytes, no callback. It has 72 bytes."""


class RegisteredMemory:
    """Memory of this process that UCX has registered, so that another process may put to it and get from it.

    Parameters
    ----------
    context
        ucp_context_h.

    Attributes
    ----------
    key
        What the other process needs besides the address.
    stages_ms
        ``register``, ``pack`` and, when it is over, ``deregister``: milliseconds by the host's clock.

    Raises
    ------
    DriverCallError
        If UCX cannot register it. Nothing is left behind.
    """

    def __init__(self, context: int, address: int, size_bytes: int) -> None:
        library = _library()
        self._context = ctypes.c_void_p(context)
        self._handle = ctypes.c_void_p()
        self.stages_ms: dict[str, float] = {}
        parameters, handle = _MapParameters(_ADDRESS | _LENGTH, address, size_bytes), ctypes.byref(self._handle)
        started = time.perf_counter()
        _check("ucp_mem_map", lambda: library.ucp_mem_map(self._context, ctypes.byref(parameters), handle))
        self.stages_ms["register"] = ms_since(started)
        started = time.perf_counter()
        try:
            self.key = self._packed()
        except DriverCallError:
            library.ucp_mem_unmap(self._context, self._handle)
            raise
        self.stages_ms["pack"] = ms_since(started)

    def close(self) -> None:
        """End the registration."""
        started = time.perf_counter()
        _check("ucp_mem_unmap", lambda: _library().ucp_mem_unmap(self._context, self._handle))
        self.stages_ms["deregister"] = ms_since(started)

    def _packed(self) -> bytes:
        library, buffer, size = _library(), ctypes.c_void_p(), ctypes.c_size_t()
        _check(
            "ucp_rkey_pack",
            lambda: library.ucp_rkey_pack(self._context, self._handle, ctypes.byref(buffer), ctypes.byref(size)),
        )
        try:
            return ctypes.string_at(buffer, size.value)
        finally:
            library.ucp_rkey_buffer_release(buffer)


class RemoteMemory:
    """Memory that another process has registered, as this process puts to it and gets from it.

    Parameters
    ----------
    endpoint
        ucp_ep_h, to that process.
    key, address
        As that process has told them.
    """

    def __init__(self, endpoint: int, key: bytes, address: int) -> None:
        self._endpoint = ctypes.c_void_p(endpoint)
        self._key = ctypes.c_void_p()
        self._address = address
        started = time.perf_counter()
        _check(
            "ucp_ep_rkey_unpack", lambda: _library().ucp_ep_rkey_unpack(self._endpoint, key, ctypes.byref(self._key))
        )
        self.stages_ms = {"unpack": ms_since(started)}

    def put(self, offset_bytes: int, address: int, size_bytes: int) -> Request:
        """Begin to write memory of this process there; it is over once :meth:`flush` is."""
        return self._begin("ucp_put_nbx", offset_bytes, address, size_bytes)

    def get(self, offset_bytes: int, address: int, size_bytes: int) -> Request:
        """Begin to read what is there into memory of this process."""
        return self._begin("ucp_get_nbx", offset_bytes, address, size_bytes)

    def flush(self) -> Request:
        """Begin to wait until all that was put is there."""
        return _started("ucp_ep_flush_nbx", lambda: _library().ucp_ep_flush_nbx(self._endpoint, _NO_PARAMETERS))

    def close(self) -> None:
        """Give the key back; nothing that uses it may be under way (``ucp_rkey_destroy``)."""
        _library().ucp_rkey_destroy(self._key)

    def _begin(self, name: str, offset_bytes: int, address: int, size_bytes: int) -> Request:
        function, there = getattr(_library(), name), self._address + offset_bytes
        return _started(name, lambda: function(self._endpoint, address, size_bytes, there, self._key, _NO_PARAMETERS))


class Request:
    """Something under way, as :meth:`egmctl.gpu.ucx.Link.wait` takes it."""

    def __init__(self, name: str, pointer: int | None) -> None:
        self._name = name
        self._pointer = pointer
        self._status = _OK if pointer is None else _IN_PROGRESS

    @property
    def completed(self) -> bool:
        """Whether it is over; whoever asks makes UCX go on by itself."""
        if self._status == _IN_PROGRESS:
            self._status = _library().ucp_request_check_status(self._pointer)
        return self._status != _IN_PROGRESS

    def check_error(self) -> None:
        """Give it back; raise DriverCallError if it went wrong."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            _library().ucp_request_free(pointer)
        _check(self._name, lambda: self._status)


def _started(name: str, begin: Callable[[], int | None]) -> Request:
    breadcrumb.enter(name)
    try:
        pointer = begin()
    finally:
        breadcrumb.leave()
    number = ctypes.c_ssize_t(pointer or 0).value
    if _LAST_ERROR <= number < 0:
        _check(name, lambda: number)
    return Request(name, pointer)


def _check(name: str, function: Callable[[], int]) -> None:
    """Call what returns a ucs_status_t; raise DriverCallError, with UCX's own words, if that is no success."""
    breadcrumb.enter(name)
    try:
        status = function()
    finally:
        breadcrumb.leave()
    if status != _OK:
        words = ctypes.c_char_p(_strings().ucs_status_string(status)).value or b""
        raise DriverCallError(name, status, words.decode(errors="replace"))


@cache
def _library() -> Any:
    # The one that ucxx has loaded, and no other that the system may have.
    library = ctypes.CDLL("libucp.so.0", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    for name in ("ucp_put_nbx", "ucp_get_nbx"):
        function = getattr(library, name)
        function.restype = ctypes.c_void_p
        function.argtypes = (
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p),
        )
    library.ucp_ep_flush_nbx.restype = ctypes.c_void_p
    library.ucp_ep_flush_nbx.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    for name in (*("ucp_mem_map", "ucp_mem_unmap", "ucp_rkey_pack", "ucp_ep_rkey_unpack", "ucp_request_check_status"),):
        getattr(library, name).restype = _STATUS
    library.ucp_request_check_status.argtypes = (ctypes.c_void_p,)
    library.ucp_request_free.argtypes = (ctypes.c_void_p,)
    library.ucp_request_free.restype = None
    library.ucp_rkey_destroy.restype = None
    library.ucp_rkey_buffer_release.restype = None
    return library


@cache
def _strings() -> Any:
    library = ctypes.CDLL("libucs.so.0", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    library.ucs_status_string.restype = ctypes.c_void_p
    library.ucs_status_string.argtypes = (_STATUS,)
    return library
