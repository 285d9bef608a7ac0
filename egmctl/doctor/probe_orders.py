"""The side of a probing process: it carries out the orders of active probes one by one, on small memory.

It reports failed calls. That it ended or hangs, the command finds out (:mod:`egmctl.doctor.prober`). Probes compile no
kernel and time nothing.
"""

from __future__ import annotations

import errno
import os
from contextlib import closing

from egmctl.doctor.prober import failed_call
from egmctl.driver.cuda import call, initialise
from egmctl.driver.reading import normal_bus_id
from egmctl.errors import DriverCallError
from egmctl.facts.system_calls import take_descriptor
from egmctl.gpu import pool_trials, trials
from egmctl.gpu.context import Context
from egmctl.gpu.handles import ImportedEvent, ImportedMemory, SharedEvent, SharedMemory
from egmctl.gpu.memory import HostNumaMemory
from egmctl.gpu.timing import Stream
from egmctl.launch import Channel, Message, close_all
from egmctl.model.probes import ProbeKind, ProbeOutcome, Registration
from egmctl.model.task import HandleKind


def serve(parent: Channel, _arguments: Message) -> None:
    """Initialise CUDA, report that, and carry out orders; the entry point of every probing process."""
    initialise()
    parent.send({})
    orders = Orders()
    while True:
        order, fds = parent.receive()
        given: list[int] = []
        try:
            answer = getattr(orders, order["do"])({**order, "fds": fds}) or {}
            given = answer.pop("fds", [])
        except DriverCallError as error:
            answer = {"failed": failed_call(**vars(error), detail=str(error)), "is_broken": _is_broken()}
        except trials.Corrupt as difference:
            answer = {"failed": {"outcome": ProbeOutcome.CORRUPT, "detail": str(difference)}, "is_broken": False}
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "unknown error")
            detail = f"{error.strerror} failed: {name}"
            answer = {"failed": failed_call(error.strerror, error.errno or 0, name, detail), "is_broken": False}
        close_all(fds)
        parent.send(answer, given)


OUTGOING_SEED, RETURN_SEED = 0x0E6D, 0x1E6D
"""The seeds of the patterns that the owner writes for the importer, and the importer for the owner."""

_HANDLES = {
    ProbeKind.LEGACY_IPC: HandleKind.LEGACY,
    ProbeKind.POSIX_FD: HandleKind.POSIX_FD,
    ProbeKind.POOL: HandleKind.POOL,
    ProbeKind.FABRIC: HandleKind.FABRIC,
}


class Orders:
    """The orders that a process carries out. The ``do`` of an order is the name of a method.

    An order has ``gpu``, the bus id of this process' GPU; ``kind``, ``gpus`` and ``node`` of the probe; ``visible``;
    the contents of the responses to earlier orders of the probe; and ``fds``, the descriptors of the last response.
    """

    def __init__(self) -> None:
        self._contexts: dict[str, Context] = {}
        self._exported: SharedMemory | SharedEvent | None = None

    def visible(self, _order: Message) -> Message:
        """Return the bus ids of the GPUs that are visible to CUDA in this process."""
        devices = [call("cuDeviceGet", ordinal) for ordinal in range(call("cuDeviceGetCount"))]
        names = [call("cuDeviceGetPCIBusId", 32, device) for device in devices]
        return {"visible": [normal_bus_id(name.split(b"\0", 1)[0].decode()) for name in names]}

    def open_context(self, order: Message) -> None:
        """Open the context for later orders."""
        self._context(order["gpu"])

    def try_host_memory(self, order: Message) -> None:
        """Write memory of a NUMA node on a GPU and verify it on the CPU, then the reverse."""
        context = self._context(order["gpu"])
        mapped = [self._context(bus_id) for bus_id in order["visible"]]
        with closing(HostNumaMemory(order["node"], trials.SIZE_BYTES, mapped)) as memory:
            trials.host_round_trip(context, memory, OUTGOING_SEED)

    def try_device_pool(self, order: Message) -> None:
        """Allocate memory of a NUMA node from the GPU's current pool."""
        pool_trials.current_pool(self._context(order["gpu"]), order["node"], OUTGOING_SEED)

    def try_location_pool(self, order: Message) -> None:
        """Allocate memory of a NUMA node from the pool that is set for it."""
        pool_trials.location_pool(self._context(order["gpu"]), order["node"], OUTGOING_SEED)

    def try_managed(self, order: Message) -> None:
        """Ask for the legacy handle of managed memory."""
        trials.share_managed(self._context(order["gpu"]))

    def try_peer(self, order: Message) -> None:
        """Write a peer's memory from a GPU, then read it."""
        context, peer = [self._context(bus_id) for bus_id in order["gpus"]]
        trials.peer_round_trip(context, peer, OUTGOING_SEED)

    def register(self, order: Message) -> None:
        """Export memory as a dma-buf, and register it with a NIC."""
        registration = Registration(order["registration"])
        trials.register(self._context(order["gpu"]), order["node"], order["nic"], registration)

    def export(self, order: Message) -> Message:
        """Allocate and fill memory, or record an event, and return its handle."""
        self._free()
        context = self._context(order["gpu"])
        if order["kind"] == ProbeKind.IPC_EVENT:
            self._exported = event = SharedEvent(context)
            with closing(Stream(context)) as stream:
                event.record(stream)
            return {"event": event.handle.hex()}
        handle = _HANDLES[ProbeKind(order["kind"])]
        self._exported = memory = SharedMemory(handle, context, trials.SIZE_BYTES, order["node"])
        trials.put(context, memory, OUTGOING_SEED)
        offer, fds = memory.offer()
        return {"offer": offer, "fds": fds}

    def open_exported(self, order: Message) -> None:
        """Import the memory, verify it and write a reply for the owner; or import the event and wait for it."""
        context = self._context(order["gpu"])
        if order["kind"] == ProbeKind.IPC_EVENT:
            with closing(ImportedEvent(context, bytes.fromhex(order["event"]))) as event:
                event.synchronize()
            return
        with closing(ImportedMemory(context, order["offer"], order["fds"])) as memory:
            trials.check_bytes(context, memory, OUTGOING_SEED, "read by the importer")
            trials.put(context, memory, RETURN_SEED)

    def verify(self, order: Message) -> None:
        """Verify the importer's reply in the exported memory, and free the memory or event."""
        if isinstance(self._exported, SharedMemory):
            trials.check_bytes(self._context(order["gpu"]), self._exported, RETURN_SEED, "written by the importer")
        self._free()

    def identify(self, _order: Message) -> Message:
        """Return the process id."""
        return {"pid": os.getpid()}

    def take_descriptor(self, order: Message) -> None:
        """Duplicate the other process' standard input, which every process has."""
        os.close(take_descriptor(order["pid"], 0))

    def _context(self, bus_id: str) -> Context:
        if bus_id not in self._contexts:
            self._contexts[bus_id] = Context(bus_id)
        return self._contexts[bus_id]

    def _free(self) -> None:
        exported, self._exported = self._exported, None
        if exported is not None:
            exported.close()


def _is_broken() -> bool:
    """Return whether the current context fails every further call, e.g. after an illegal access."""
    try:
        call("cuCtxSynchronize")
    except DriverCallError as error:
        return error.name != "CUDA_ERROR_INVALID_CONTEXT"
    return False
