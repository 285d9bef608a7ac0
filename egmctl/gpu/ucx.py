"""UCX through ucxx: messages between two processes, from and to memory of any kind, and UCX's report of what it did.

UCX prints which protocol and which device served which messages when an endpoint's worker is destroyed, to a file that
is chosen when the library is loaded. Here that is a file in memory.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from egmctl.driver import breadcrumb, ids
from egmctl.driver.cuda import call
from egmctl.errors import DriverCallError, EgmctlError
from egmctl.gpu.context import Context
from egmctl.gpu.ucx_rma import RegisteredMemory, RemoteMemory
from egmctl.model.ucx import unusable

PATIENCE_S = 20.0
"""How long a process waits for messages of the other one in one :meth:`Link.wait` before it gives up."""

REPORT_LIMIT = 4 << 20
"""Bytes of UCX's report that are read: it has some KiB, and whatever UCX_LOG_LEVEL adds to it."""


class NoUcx(EgmctlError):
    """UCX cannot be used here; the message says why and what to install."""

    code = "no-ucx"


class Link:
    """This process' end of a connection to one other process.

    Nothing of it listens by itself; what UCX's TCP transport needs, UCX opens: a port on each network interface that it
    is allowed to use (``UCX_NET_DEVICES``), for as long as the link is there.

    Parameters
    ----------
    options
        UCX's configuration without ``UCX_``: they come before the environment's.
    one_sided
        Memory is put and got too (:meth:`register`, :meth:`remote`).

    Raises
    ------
    NoUcx
        If ucxx is not installed or UCX cannot be loaded.
    DriverCallError
        If UCX finds no way to communicate. UCX's functions are named as CUDA's are.
    """

    def __init__(self, options: Mapping[str, str], *, one_sided: bool = False) -> None:
        self._ucx = _library()
        self._log_start = _log_size()
        features = (self._ucx.Feature.TAG, *((self._ucx.Feature.RMA,) if one_sided else ()))
        self._context = self._call(
            "ucp_init", lambda: self._ucx.UCXContext({"PROTO_INFO": "used", **options}, feature_flags=features)
        )
        self._worker = self._call("ucp_worker_create", lambda: self._ucx.UCXWorker(self._context))
        self._endpoint: Any = None
        self.address: bytes = self._worker.address.tobytes()
        """What the other process connects to."""
        self._word = (ctypes.c_ubyte * 8)()
        self.word = self.buffer(ctypes.addressof(self._word), ctypes.sizeof(self._word), on_gpu=False)
        """A few bytes of host memory, for messages that say nothing but that they came."""

    @property
    def version(self) -> str:
        """UCX's."""
        return ".".join(map(str, self._ucx.get_ucx_version()))

    @property
    def components(self) -> tuple[str, ...]:
        """The kinds of transport that UCX has found it can use: ``tcp``, ``cuda_ipc``, ``ib``."""
        lines = self._context.info.splitlines()
        return tuple(line.split(":")[-1].strip() for line in lines if line.startswith("#     component "))

    @property
    def devices(self) -> dict[str, list[str]]:
        """The devices that UCX may use, by transport: ``{"tcp": ["eth0", "lo"], "cuda_ipc": ["cuda"]}``."""
        found: dict[str, list[str]] = {}
        for line in self._context.info.splitlines():
            if line.startswith("#      resource "):
                transport, _, device = line.split()[-1].partition("/")
                found.setdefault(transport, []).append(device)
        return found

    def connect(self, address: bytes) -> None:
        """Make the way to the other process."""
        self._endpoint = self._call(
            "ucp_ep_create",
            lambda: self._ucx.UCXEndpoint.create_from_worker_address(
                self._worker,
                self._ucx.UCXAddress.create_from_buffer(address),
                # With it UCX would leave shared memory out: that does not notice when a process dies.
                endpoint_error_handling=False,
            ),
        )

    def buffer(self, address: int, size_bytes: int, *, on_gpu: bool) -> Any:
        """Return memory as :meth:`send` and :meth:`receive` take it."""
        array = importlib.import_module("ucxx._lib.arr").Array
        if on_gpu:
            return array(_DeviceBytes(address, size_bytes))
        return array((ctypes.c_ubyte * size_bytes).from_address(address))

    def register(self, address: int, size_bytes: int) -> RegisteredMemory:
        """Register memory for the other process."""
        return RegisteredMemory(int(self._context.handle), address, size_bytes)

    def remote(self, key: bytes, address: int) -> RemoteMemory:
        """Return memory that the other process has registered."""
        return RemoteMemory(int(self._endpoint.handle), key, address)

    def send(self, buffer: Any, tag: int) -> Any:
        """Begin to send; the other process receives it by the same tag."""
        return self._call("ucp_tag_send_nbx", lambda: self._endpoint.tag_send(buffer, tag=self._ucx.UCXXTag(tag)))

    def receive(self, buffer: Any, tag: int) -> Any:
        """Begin to receive."""
        return self._call("ucp_tag_recv_nbx", lambda: self._endpoint.tag_recv(buffer, tag=self._ucx.UCXXTag(tag)))

    def wait(self, *requests: Any, patience_s: float = PATIENCE_S) -> None:
        """Wait until all of these have come or gone, and give all of them back, whatever went wrong with one.

        Raises
        ------
        DriverCallError
            If one went wrong: the first; or if the time is over.
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
        failed: list[DriverCallError] = []
        for request in requests:
            try:
                self._call("ucp_request_check_status", request.check_error)
            except DriverCallError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def close(self) -> str:
        """Give everything back; return UCX's report of the protocols that it used."""
        if self._endpoint is not None:
            with suppress(Exception):
                self._endpoint.close_blocking()
        # What UCX holds goes with the last reference to it.
        self._endpoint = self._worker = self._context = None
        # The report waits in the C library's buffer.
        ctypes.CDLL(None).fflush(None)
        size = min(max(0, _log_size() - self._log_start), REPORT_LIMIT)
        return os.pread(_log_fd(), size, self._log_start).decode(errors="replace")

    def _call(self, name: str, function: Callable[[], Any]) -> Any:
        breadcrumb.enter(name)
        try:
            return function()
        except self._ucx.UCXError as error:
            raise DriverCallError(name, None, str(error) or type(error).__name__) from error
        finally:
            breadcrumb.leave()


def taken_for(node: int, own: Context) -> str | None:
    """Return the bus id of the GPU that UCX takes HOST_NUMA memory of a node for; ``None`` if it is ``own``, or none.

    UCX asks the driver where such memory lies, and reads the answer, the node's id, as the number of a CUDA device
    (1.21 and 1.22: uct_cuda_copy_detect_vmm in src/uct/cuda/cuda_copy/cuda_copy_md.c). It copies in that device's
    context; in a process that has none there it ends with SIGABRT, seen on H200.
    """
    if node == own.ordinal or node >= call("cuDeviceGetCount"):
        return None
    text: bytes = call("cuDeviceGetPCIBusId", 32, call("cuDeviceGet", node))
    return ids.bus_id(text.split(b"\0")[0].decode())


class _DeviceBytes:
    """Memory of a GPU as the CUDA array interface describes it (numba.readthedocs.io, version 3)."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def settings() -> dict[str, str]:
    """Return the variables of the environment that tell UCX what to do, without our own."""
    return {name: value for name, value in os.environ.items() if name.startswith("UCX_") and name not in _ours()}


_log: list[int] = []


def _log_fd() -> int:
    if not _log:
        _log.append(os.memfd_create("ucx"))
    return _log[0]


def _log_size() -> int:
    return os.fstat(_log_fd()).st_size


def _ours() -> dict[str, str]:
    return {
        "UCX_LOG_FILE": f"/proc/self/fd/{_log_fd()}",
        "UCX_WARN_UNUSED_ENV_VARS": "n",
        # What this process dies of is told by its end: UCX is not to catch it.
        "UCX_ERROR_SIGNALS": "",
    }


def _library() -> Any:
    """Load UCX, which reads these variables then."""
    os.environ |= _ours()
    try:
        return importlib.import_module("ucxx._lib.libucxx")
    except Exception as error:
        # Importing it loads UCX's libraries and asks NVML: more than ImportError may come of it.
        raise NoUcx(unusable(str(error) or type(error).__name__)) from error
