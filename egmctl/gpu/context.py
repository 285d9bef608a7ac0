"""CUDA contexts, the host's clock, and resources that are given back in reverse order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from egmctl.driver.cuda import bindings, call
from egmctl.errors import DriverCallError, EgmctlError

P = ParamSpec("P")
T = TypeVar("T")


class ReleaseStack(ExitStack):
    """An ExitStack whose callbacks are all called, the latest first, and which raises the first failure.

    That is the failure of the ``with`` block, or of the first callback that fails; what callbacks raise after it is
    dropped.
    """

    def callback(self, callback: Callable[P, T], /, *args: P.args, **kwds: P.kwargs) -> Callable[P, T]:
        """Have something called at the end."""

        def release(
            _kind: type[BaseException] | None, earlier: BaseException | None, _trace: TracebackType | None
        ) -> bool:
            try:
                callback(*args, **kwds)
            except Exception:
                if earlier is None:
                    raise
            return False

        self.push(release)
        return callback


LEAST_MS = 1e-5
"""Less than this is no time of anything that a GPU does: a launch alone takes microseconds, and cuEventElapsedTime has
"a resolution of around 0.5 microseconds" (CUDA Driver API, Event Management)."""
_CLOCKS_DIFFER = 1.01
"""The most that a GPU's clock may run faster than the host's. Chosen: quartz clocks differ by 1e-4 at most."""


def ms_since(started: float) -> float:
    """Return the milliseconds since a moment by :func:`time.perf_counter`."""
    return (time.perf_counter() - started) * 1e3


@contextmanager
def timed(stages_ms: dict[str, float], name: str) -> Iterator[None]:
    """Note how long a ``with`` block took that did not fail."""
    started = time.perf_counter()
    yield
    stages_ms[name] = ms_since(started)


def possible_ms(call: str, ms: float, host_ms: float = math.inf) -> float:
    """Return a time that a GPU or its driver has measured, if it can be one.

    Parameters
    ----------
    call
        What has measured it.
    host_ms
        What has gone by on the host's clock, from before the work was queued until after it was done.

    Raises
    ------
    ImpossibleTime
        If it is no number, zero or negative, or more than the host's.
    """
    if LEAST_MS <= ms <= _CLOCKS_DIFFER * host_ms and ms != math.inf:
        return ms
    around = "" if host_ms == math.inf else f", and the host saw all of it take {host_ms:.3f} ms"
    raise ImpossibleTime(f"{call} said that the work took {ms:g} ms{around}: no time of it", call)


class ImpossibleTime(EgmctlError):
    """A measured time cannot be one: what was made of it would be no measurement. ``call`` has measured it."""

    code = "impossible-time"

    def __init__(self, message: str, call: str) -> None:
        super().__init__(message)
        self.call = call


class Context:
    """The primary context of the GPU at a PCI bus id, retained until :meth:`close`.

    Parameters
    ----------
    bus_id
        ``0000:1b:00.0``. CUDA's ordinal is looked up: it depends on CUDA_VISIBLE_DEVICES and the device cgroup.

    Raises
    ------
    DriverCallError
        ``cuDeviceGetByPCIBusId`` with CUDA_ERROR_INVALID_DEVICE where CUDA does not see the GPU.
    """

    def __init__(self, bus_id: str) -> None:
        self.bus_id = bus_id
        self.device = call("cuDeviceGetByPCIBusId", bus_id.encode())
        self.ordinal = int(self.device)
        self.architecture = _architecture(self.device)
        self.multiprocessors = _attribute(self.device, "MULTIPROCESSOR_COUNT")
        self.handle = call("cuDevicePrimaryCtxRetain", self.device)
        self._peers: set[str] = set()

    def make_current(self) -> None:
        """Make this the calling thread's context: most driver calls act on that one."""
        call("cuCtxSetCurrent", self.handle)

    def enable_access_to(self, peer: Context) -> None:
        """Let this GPU reach the memory of ``peer`` directly; without it a copy goes through host memory.

        Primary contexts are shared by the process, so access that is already enabled is as good as ours.
        """
        if peer.bus_id in self._peers:
            return
        self.make_current()
        try:
            call("cuCtxEnablePeerAccess", peer.handle, 0)
        except DriverCallError as error:
            if error.name != "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED":
                raise
        self._peers.add(peer.bus_id)

    def disable_access_to(self, peer: Context) -> None:
        """Take back what :meth:`enable_access_to` gave."""
        if peer.bus_id in self._peers:
            self.make_current()
            call("cuCtxDisablePeerAccess", peer.handle)
            self._peers.discard(peer.bus_id)

    def close(self) -> None:
        """Release the primary context; with the last release the driver frees everything in it."""
        call("cuDevicePrimaryCtxRelease", self.device)


class Resource:
    """The base of what is made on a GPU, and given back by :meth:`close`."""

    @contextmanager
    def _made_on(self, context: Context | None) -> Iterator[ReleaseStack]:
        """Make the GPU's context current for the block that makes the resource.

        What the block puts on the stack gives the resource back: in :meth:`close`, or at once where the block fails.
        """
        self._context = context
        self._make_current()
        with ReleaseStack() as undo:
            yield undo
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Give it back."""
        self._make_current()
        self._undo.close()

    def _make_current(self) -> None:
        if self._context is not None:
            self._context.make_current()


def architectures() -> set[str]:
    """Return the architectures, ``sm_90`` and so on, of all GPUs that CUDA sees; none of them is opened."""
    return {_architecture(call("cuDeviceGet", number)) for number in range(call("cuDeviceGetCount"))}


def _architecture(device: Any) -> str:
    major, minor = (_attribute(device, f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
    return f"sm_{major}{minor}"


def _attribute(device: Any, name: str) -> int:
    attribute: Any = getattr(bindings().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    value: int = call("cuDeviceGetAttribute", attribute, device)
    return value
