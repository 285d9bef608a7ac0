"""UCX transfers between two processes: tagged messages by ucxx, and puts and gets by direct calls to libucp.

ucxx has no one-sided calls, but it loads libucp. Constants and structures are those of ``ucp/api/ucp.h`` of UCX 1.21.
"""

from __future__ import annotations

import ctypes
import importlib
import io
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from types import SimpleNamespace
from typing import Any

from egmctl.driver import breadcrumb
from egmctl.driver.cuda import call
from egmctl.driver.reading import normal_bus_id
from egmctl.errors import DriverCallError, EgmctlError
from egmctl.gpu.context import Context, ReleaseStack, timed
from egmctl.launch.channel import memory_file
from egmctl.model.route import unusable

_STATUS = ctypes.c_int8
"""The type ucs_status_t, one byte (UCS_S_PACKED in ``ucs/type/status.h``). The rest of the register is undefined."""
_OK, _IN_PROGRESS = 0, 1
_LAST_ERROR = -100
"""The lowest error, UCS_ERR_LAST. A pointer from here to -1 is an error, not a request (``UCS_PTR_IS_ERR``)."""
_ADDRESS, _LENGTH = 1 << 0, 1 << 1
"""The flags UCP_MEM_MAP_PARAM_FIELD_ADDRESS and _LENGTH. UCX detects the kind of memory by itself."""


class _MapParameters(ctypes.Structure):
    """The structure ucp_mem_map_params_t."""

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
"""A zeroed buffer as ucp_request_param_t, which has 72 bytes: the data are bytes, and there is no callback."""


class RegisteredMemory:
    """Memory of this process that is registered with UCX, so that another process can put to it and get from it.

    Parameters
    ----------
    context
        The ucp_context_h.
    stages_ms
        The dictionary for the times of ``register``, ``pack`` and, at the end, ``deregister``: milliseconds by the
        host's clock.

    Attributes
    ----------
    key
        The packed remote key, which the other process needs besides the address.

    Raises
    ------
    DriverCallError
        UCX cannot register the memory or pack the key. Nothing stays registered.
    """

    def __init__(self, context: int, address: int, size_bytes: int, stages_ms: dict[str, float]) -> None:
        self._context = ctypes.c_void_p(context)
        self._handle = ctypes.c_void_p()
        self._stages_ms = stages_ms
        parameters = _MapParameters(_ADDRESS | _LENGTH, address, size_bytes)
        with timed(stages_ms, "register"):
            _checked("ucp_mem_map", self._context, ctypes.byref(parameters), ctypes.byref(self._handle))
        buffer, size = ctypes.c_void_p(), ctypes.c_size_t()
        try:
            with timed(stages_ms, "pack"):
                _checked("ucp_rkey_pack", self._context, self._handle, ctypes.byref(buffer), ctypes.byref(size))
                self.key = ctypes.string_at(buffer, size.value)
                _library().ucp_rkey_buffer_release(buffer)
        except DriverCallError:
            _library().ucp_mem_unmap(self._context, self._handle)
            raise

    def close(self) -> None:
        """Deregister the memory."""
        with timed(self._stages_ms, "deregister"):
            _checked("ucp_mem_unmap", self._context, self._handle)


class RemoteMemory:
    """Registered memory of another process, the target of this process' puts and gets.

    Parameters
    ----------
    endpoint
        The ucp_ep_h to the other process.
    key, address
        The memory's key and its address there.
    stages_ms
        The dictionary for the time of ``unpack``: milliseconds by the host's clock.
    """

    def __init__(self, endpoint: int, key: bytes, address: int, stages_ms: dict[str, float]) -> None:
        self._endpoint = ctypes.c_void_p(endpoint)
        self._key = ctypes.c_void_p()
        self._address = address
        self.in_use = False
        """Whether a transfer that has failed may still use the key."""
        with timed(stages_ms, "unpack"):
            _checked("ucp_ep_rkey_unpack", self._endpoint, key, ctypes.byref(self._key))

    def put(self, offset_bytes: int, address: int, size_bytes: int) -> UcxRequest:
        """Start to write local memory to the remote memory. The write completes with the next :meth:`flush`."""
        return self._begin("ucp_put_nbx", offset_bytes, address, size_bytes)

    def get(self, offset_bytes: int, address: int, size_bytes: int) -> UcxRequest:
        """Start to read the remote memory into local memory."""
        return self._begin("ucp_get_nbx", offset_bytes, address, size_bytes)

    def flush(self) -> UcxRequest:
        """Start a flush, which completes when all earlier puts have."""
        return _started("ucp_ep_flush_nbx", self._endpoint, _NO_PARAMETERS)

    def close(self) -> None:
        """Destroy the key, unless a transfer may still use it (``ucp_rkey_destroy``)."""
        if not self.in_use:
            _library().ucp_rkey_destroy(self._key)

    def _begin(self, name: str, offset_bytes: int, address: int, size_bytes: int) -> UcxRequest:
        there = self._address + offset_bytes
        return _started(name, self._endpoint, address, size_bytes, there, self._key, _NO_PARAMETERS)


class UcxRequest:
    """An operation in progress, for :meth:`egmctl.gpu.ucx.UcxConnection.wait`."""

    def __init__(self, name: str, pointer: int | None) -> None:
        self._name = name
        self._pointer = pointer
        self._status = _OK if pointer is None else _IN_PROGRESS

    @property
    def completed(self) -> bool:
        """Whether the operation has completed. Reading this does not progress UCX; the caller must."""
        if self._status == _IN_PROGRESS:
            self._status = _library().ucp_request_check_status(self._pointer)
        return self._status != _IN_PROGRESS

    def check_error(self) -> None:
        """Free the request; raise DriverCallError if the operation failed."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            _library().ucp_request_free(pointer)
        _check(self._name, self._status)


def _started(name: str, *arguments: Any) -> UcxRequest:
    pointer = _named(name, *arguments)
    number = ctypes.c_ssize_t(pointer or 0).value
    if _LAST_ERROR <= number < 0:
        _check(name, number)
    return UcxRequest(name, pointer)


def _checked(name: str, *arguments: Any) -> None:
    """Call a function that returns a ucs_status_t; raise DriverCallError if it is not UCS_OK."""
    _check(name, _named(name, *arguments))


def _named(name: str, *arguments: Any) -> Any:
    breadcrumb.enter(name)
    try:
        return getattr(_library(), name)(*arguments)
    finally:
        breadcrumb.leave()


def _check(name: str, status: int) -> None:
    """Raise DriverCallError with UCX's description if a ucs_status_t is not UCS_OK."""
    if status != _OK:
        words = ctypes.c_char_p(_strings().ucs_status_string(status)).value or b""
        raise DriverCallError(name, status, words.decode(errors="replace"))


_POINTER = ctypes.c_void_p
_TRANSFER = (_POINTER, (_POINTER, _POINTER, ctypes.c_size_t, ctypes.c_uint64, _POINTER, _POINTER))
_PROTOTYPES: Mapping[str, tuple[Any, tuple[Any, ...] | None]] = {
    "ucp_put_nbx": _TRANSFER,
    "ucp_get_nbx": _TRANSFER,
    "ucp_ep_flush_nbx": (_POINTER, (_POINTER, _POINTER)),
    "ucp_mem_map": (_STATUS, None),
    "ucp_mem_unmap": (_STATUS, None),
    "ucp_rkey_pack": (_STATUS, None),
    "ucp_ep_rkey_unpack": (_STATUS, None),
    "ucp_request_check_status": (_STATUS, (_POINTER,)),
    "ucp_request_free": (None, (_POINTER,)),
    "ucp_rkey_destroy": (None, None),
    "ucp_rkey_buffer_release": (None, None),
}
"""The functions' result types and, if the ctypes defaults are wrong, argument types."""


@cache
def _library() -> Any:
    # RTLD_NOLOAD selects the library that ucxx has loaded, not another one on the system.
    library = ctypes.CDLL("libucp.so.0", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    for name, (returned, taken) in _PROTOTYPES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = returned, taken
    return library


@cache
def _strings() -> Any:
    library = ctypes.CDLL("libucs.so.0", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    library.ucs_status_string.restype = ctypes.c_void_p
    library.ucs_status_string.argtypes = (_STATUS,)
    return library


PATIENCE_S = 20.0
"""The default timeout of :meth:`UcxConnection.wait`."""

REPORT_LIMIT = 4 << 20
"""The maximum number of bytes read of UCX's report, which has some KiB plus what UCX_LOG_LEVEL adds."""


class NoUcx(EgmctlError):
    """UCX is unusable. The message gives the reason and what to install."""

    code = "no-ucx"


class UcxConnection:
    """This process' end of a UCX connection to one other process.

    The link itself opens no port. For its TCP transport UCX listens on a port of each network interface that it may use
    (``UCX_NET_DEVICES``) until the link is closed.

    Parameters
    ----------
    options
        UCX configuration variables without ``UCX_``, which override the environment's.
    one_sided
        Whether to enable puts and gets (:meth:`register`, :meth:`remote`).

    Raises
    ------
    NoUcx
        ucxx is not installed or UCX cannot be loaded.
    DriverCallError
        A UCX call failed, e.g. because no transport is usable. The exception names the UCX function.
    """

    def __init__(self, options: Mapping[str, str], *, one_sided: bool = False) -> None:
        self._ucx = _ucx_library()
        self._log_start = _log_size()
        features = [self._ucx.Feature.TAG]
        if one_sided:
            features.append(self._ucx.Feature.RMA)
        self._context = self._call(
            "ucp_init", lambda: self._ucx.UCXContext({"PROTO_INFO": "used", **options}, feature_flags=tuple(features))
        )
        self._worker = self._call("ucp_worker_create", lambda: self._ucx.UCXWorker(self._context))
        self._endpoint: Any = None
        self.address: bytes = self._worker.address.tobytes()
        """The worker address to which the other process connects."""
        self._word = (ctypes.c_ubyte * 8)()
        self.word = self.buffer(ctypes.addressof(self._word), ctypes.sizeof(self._word), on_gpu=False)
        """A buffer of 8 bytes of host memory, for messages without content."""
        self.stages_ms: dict[str, float] = {}
        """The milliseconds by the host's clock that each stage of memory registration took in this process."""

    @property
    def version(self) -> str:
        """The version of UCX."""
        return ".".join(map(str, self._ucx.get_ucx_version()))

    @property
    def components(self) -> tuple[str, ...]:
        """The transport components that UCX can use, e.g. ``tcp``, ``cuda_ipc``, ``ib``."""
        return tuple(line.split(":")[-1].strip() for line in self._described("component"))

    @property
    def devices(self) -> dict[str, list[str]]:
        """The devices that UCX can use, by transport, e.g. ``{"tcp": ["eth0", "lo"], "cuda_ipc": ["cuda"]}``."""
        devices: dict[str, list[str]] = {}
        for line in self._described("resource"):
            transport, _, device = line.split()[-1].partition("/")
            devices.setdefault(transport, []).append(device)
        return devices

    def _described(self, kind: str) -> list[str]:
        return [line for line in self._context.info.splitlines() if line.split()[:2] == ["#", kind]]

    def connect(self, address: bytes) -> None:
        """Create the endpoint to the other process' worker."""
        self._endpoint = self._call(
            "ucp_ep_create",
            lambda: self._ucx.UCXEndpoint.create_from_worker_address(
                self._worker,
                self._ucx.UCXAddress.create_from_buffer(address),
                # With error handling UCX would not use shared memory, which cannot detect that a process died.
                endpoint_error_handling=False,
            ),
        )

    def buffer(self, address: int, size_bytes: int, *, on_gpu: bool) -> Any:
        """Return a buffer for :meth:`send` and :meth:`receive` that refers to this memory."""
        array = importlib.import_module("ucxx._lib.arr").Array
        if on_gpu:
            # The CUDA array interface (numba.readthedocs.io, version 3).
            described = {"shape": (size_bytes,), "typestr": "|u1", "data": (address, False), "version": 3}
            return array(SimpleNamespace(__cuda_array_interface__=described))
        return array((ctypes.c_ubyte * size_bytes).from_address(address))

    def register(self, address: int, size_bytes: int) -> RegisteredMemory:
        """Register local memory for puts and gets by the other process."""
        return RegisteredMemory(int(self._context.handle), address, size_bytes, self.stages_ms)

    def remote(self, key: bytes, address: int) -> RemoteMemory:
        """Return the other process' registered memory, for puts and gets."""
        return RemoteMemory(int(self._endpoint.handle), key, address, self.stages_ms)

    def send(self, buffer: Any, tag: int) -> Any:
        """Start to send a buffer, which the other process receives by the same tag; return the request."""
        return self._call("ucp_tag_send_nbx", lambda: self._endpoint.tag_send(buffer, tag=self._ucx.UCXXTag(tag)))

    def receive(self, buffer: Any, tag: int) -> Any:
        """Start to receive into a buffer the message with this tag; return the request."""
        return self._call("ucp_tag_recv_nbx", lambda: self._endpoint.tag_recv(buffer, tag=self._ucx.UCXXTag(tag)))

    def wait(self, *requests: Any, patience_s: float = PATIENCE_S) -> None:
        """Progress UCX until all requests have completed, and free all of them even if one failed.

        Raises
        ------
        DriverCallError
            A request failed (the first one is reported), or the wait timed out; then no request is freed.
        """
        deadline = time.monotonic() + patience_s
        breadcrumb.enter("ucp_worker_progress")
        try:
            while not all(request.completed for request in requests):
                self._worker.progress()
                if time.monotonic() > deadline:
                    raise DriverCallError(
                        "ucp_worker_progress", None, f"no message from the other process for {patience_s:g} s"
                    )
        finally:
            breadcrumb.leave()
        with ReleaseStack() as results:
            for request in reversed(requests):
                results.callback(self._call, "ucp_request_check_status", request.check_error)

    def close(self) -> str:
        """Close the connection and return UCX's report of the protocols that it used."""
        if self._endpoint is not None:
            with suppress(Exception):
                self._endpoint.close_blocking()
        # UCX frees its resources with the last reference to them.
        self._endpoint = self._worker = self._context = None
        # Flush the report out of the C library's buffer.
        ctypes.CDLL(None).fflush(None)
        size = min(max(0, _log_size() - self._log_start), REPORT_LIMIT)
        return os.pread(_log().fileno(), size, self._log_start).decode(errors="replace")

    def _call(self, name: str, function: Callable[[], Any]) -> Any:
        breadcrumb.enter(name)
        try:
            return function()
        except self._ucx.UCXError as error:
            raise DriverCallError(name, None, str(error) or type(error).__name__) from error
        finally:
            breadcrumb.leave()


def taken_for(node: int, own: Context) -> str | None:
    """Return the bus id of the GPU that UCX mistakes HOST_NUMA memory of a node for; ``None`` if it is ``own`` or none.

    UCX asks the driver for the location of such memory and interprets the node's id as a CUDA device number (1.21 and
    1.22: uct_cuda_copy_detect_vmm in src/uct/cuda/cuda_copy/cuda_copy_md.c). It copies in that device's context. If the
    process has no context there, UCX aborts with SIGABRT (measured on H200).
    """
    if node == own.ordinal or node >= call("cuDeviceGetCount"):
        return None
    text: bytes = call("cuDeviceGetPCIBusId", 32, call("cuDeviceGet", node))
    return normal_bus_id(text.split(b"\0")[0].decode())


def settings() -> dict[str, str]:
    """Return the environment's ``UCX_`` variables, without those that this module sets."""
    return {name: value for name, value in os.environ.items() if name.startswith("UCX_") and name not in _ours()}


@cache
def _log() -> io.FileIO:
    return memory_file("ucx")


def _log_size() -> int:
    return os.fstat(_log().fileno()).st_size


def _ours() -> dict[str, str]:
    return {
        "UCX_LOG_FILE": f"/proc/self/fd/{_log().fileno()}",
        "UCX_WARN_UNUSED_ENV_VARS": "n",
        # UCX must not catch fatal signals: the parent reads them from the exit status.
        "UCX_ERROR_SIGNALS": "",
    }


def _ucx_library() -> Any:
    """Load UCX with our environment variables and return ucxx's module ``libucxx``."""
    os.environ |= _ours()
    try:
        return importlib.import_module("ucxx._lib.libucxx")
    except Exception as error:
        # The import loads UCX's libraries and calls NVML, so it may raise more than ImportError.
        raise NoUcx(unusable(str(error) or type(error).__name__)) from error
