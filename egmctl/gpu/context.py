"""One GPU as the worker holds it: its primary context, what the driver says of it, and which peers it reaches."""

from __future__ import annotations

from typing import Any

from egmctl.driver.cuda import bindings, call
from egmctl.errors import DriverCallError


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
        self.multiprocessors = self.attribute("MULTIPROCESSOR_COUNT")
        self.handle = call("cuDevicePrimaryCtxRetain", self.device)
        self._peers: set[str] = set()

    def attribute(self, name: str) -> int:
        """Return a CUdevice_attribute by its name without ``CU_DEVICE_ATTRIBUTE_``."""
        return _attribute(self.device, name)

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
