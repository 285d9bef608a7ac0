"""CUDA contexts, plausibility checks of measured times, and resources that are released in reverse order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

from egmctl.driver.cuda import bindings, call
from egmctl.errors import DriverCallError, EgmctlError

P = ParamSpec("P")
T = TypeVar("T")


class Closable(Protocol):
    """A resource with a ``close`` method."""

    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class ReleaseStack(ExitStack):
    """An ExitStack that calls all callbacks, the latest first, and raises only the first exception.

    The first exception is that of the ``with`` block, or else that of the first callback that fails. Later exceptions
    of callbacks are dropped.
    """

    def callback(self, callback: Callable[P, T], /, *args: P.args, **kwds: P.kwargs) -> Callable[P, T]:
        """Register a function to call on exit; drop its exception if there is an earlier one."""

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

    def keep(self, resource: C) -> C:
        """Close a resource on exit, and return it."""
        self.callback(resource.close)
        return resource


LEAST_MS = 1e-5
"""The shortest plausible time of GPU work: a launch alone takes microseconds, and cuEventElapsedTime has "a resolution
of around 0.5 microseconds" (CUDA Driver API, Event Management)."""
_CLOCKS_DIFFER = 1.01
"""The largest plausible ratio of a time by a GPU's clock to the host's. Our choice; quartz clocks differ by at most
1e-4."""


def ms_since(started: float) -> float:
    """Return the milliseconds since ``started``, a value of :func:`time.perf_counter`."""
    return (time.perf_counter() - started) * 1e3


@contextmanager
def timed(stages_ms: dict[str, float], name: str) -> Iterator[None]:
    """Store the duration of the ``with`` block in ``stages_ms[name]``, unless it raises."""
    started = time.perf_counter()
    yield
    stages_ms[name] = ms_since(started)


def possible_ms(call: str, ms: float, host_ms: float = math.inf) -> float:
    """Return ``ms``, a time measured by a GPU or its driver, if it is plausible.

    Parameters
    ----------
    call
        The function that measured the time.
    host_ms
        The time by the host's clock, from before the work was queued until after it completed.

    Raises
    ------
    ImpossibleTime
        The time is NaN or infinite, below :data:`LEAST_MS`, or longer than ``host_ms``.
    """
    if LEAST_MS <= ms <= _CLOCKS_DIFFER * host_ms and ms != math.inf:
        return ms
    around = "" if host_ms == math.inf else f", and the host saw all of it take {host_ms:.3f} ms"
    raise ImpossibleTime(f"{call} said that the work took {ms:g} ms{around}: no time of it", call)


class ImpossibleTime(EgmctlError):
    """A measured time is impossible, so it gives no result. ``call`` names the function that measured it."""

    code = "impossible-time"

    def __init__(self, message: str, call: str) -> None:
        super().__init__(message)
        self.call = call


PEERS_LIMIT = 8
"""The number of peers that a context keeps: on systems without NVSwitch "each device can support a system-wide maximum
of eight peer connections" (CUDA C++ Programming Guide, "Peer-to-Peer Memory Access"); other processes count too."""


class Context:
    """The primary context of the GPU at a PCI bus id, retained until :meth:`close`.

    Parameters
    ----------
    bus_id
        The bus id, e.g. ``0000:1b:00.0``. CUDA's ordinal is looked up, because it depends on CUDA_VISIBLE_DEVICES and
        the device cgroup.

    Raises
    ------
    DriverCallError
        A call failed: ``cuDeviceGetByPCIBusId`` with CUDA_ERROR_INVALID_DEVICE if the GPU is not visible to CUDA.
    """

    def __init__(self, bus_id: str) -> None:
        self.bus_id = bus_id
        self.device = call("cuDeviceGetByPCIBusId", bus_id.encode())
        self.ordinal = int(self.device)
        self.architecture = _architecture(self.device)
        self.multiprocessors = _attribute(self.device, "MULTIPROCESSOR_COUNT")
        self.handle = call("cuDevicePrimaryCtxRetain", self.device)
        self._peers: dict[str, Context] = {}
        self._needed: set[str] = set()

    def make_current(self) -> None:
        """Make this the calling thread's current context, on which most driver calls act."""
        call("cuCtxSetCurrent", self.handle)

    def enable_access_to(self, peer: Context) -> None:
        """Enable direct access from this GPU to the memory of ``peer``. Without it copies go through host memory.

        Access that is already enabled is no error, because the process shares its primary contexts. Beyond
        :data:`PEERS_LIMIT` peers, access that the current step does not need is given back first.

        Raises
        ------
        DriverCallError
            A call failed: CUDA_ERROR_TOO_MANY_PEERS if this step, or other processes, use up what the device has.
        """
        self._needed.add(peer.bus_id)
        if peer.bus_id in self._peers:
            return
        for other in [held for held in self._peers.values() if held.bus_id not in self._needed]:
            if len(self._peers) < PEERS_LIMIT:
                break
            self.disable_access_to(other)
        self.make_current()
        try:
            call("cuCtxEnablePeerAccess", peer.handle, 0)
        except DriverCallError as error:
            if error.name != "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED":
                raise
        self._peers[peer.bus_id] = peer

    def begin_step(self) -> None:
        """Mark the access to all peers as not needed any more; it stays enabled until others need its place."""
        self._needed.clear()

    def disable_access_to(self, peer: Context) -> None:
        """Disable access to ``peer`` if :meth:`enable_access_to` was called for it."""
        if peer.bus_id in self._peers:
            self.make_current()
            call("cuCtxDisablePeerAccess", peer.handle)
            del self._peers[peer.bus_id]

    def close(self) -> None:
        """Release the primary context. With the last release the driver frees everything in it."""
        call("cuDevicePrimaryCtxRelease", self.device)


class Resource:
    """The base class of resources that are created in a GPU's context and released by :meth:`close`."""

    @contextmanager
    def _made_on(self, context: Context | None) -> Iterator[ReleaseStack]:
        """Make the GPU's context current for the ``with`` block that creates the resource.

        The callbacks that the block registers on the yielded stack release the resource: in :meth:`close`, or at once
        if the block raises.
        """
        self._context = context
        self._make_current()
        with ReleaseStack() as undo:
            yield undo
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Release the resource."""
        self._make_current()
        self._undo.close()

    def _make_current(self) -> None:
        if self._context is not None:
            self._context.make_current()


def architectures() -> set[str]:
    """Return the architectures (``sm_90``) of all GPUs visible to CUDA, without creating contexts."""
    return {_architecture(call("cuDeviceGet", number)) for number in range(call("cuDeviceGetCount"))}


def _architecture(device: Any) -> str:
    major, minor = (_attribute(device, f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
    return f"sm_{major}{minor}"


def _attribute(device: Any, name: str) -> int:
    attribute: Any = getattr(bindings().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    value: int = call("cuDeviceGetAttribute", attribute, device)
    return value
