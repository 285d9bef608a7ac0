"""What the probing processes do: the targets of the launcher. Only these work a GPU.

Each carries out orders of the command. A call that fails is an answer; what ends or hangs the process the command sees
by itself, and it knows the order under way.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import closing
from typing import Any

from egmctl.driver import ids
from egmctl.driver.cuda import call, initialise
from egmctl.errors import DriverCallError
from egmctl.facts.system_calls import take_descriptor
from egmctl.gpu import trials
from egmctl.gpu.context import Context
from egmctl.gpu.handles import ImportedMemory, SharedMemory
from egmctl.gpu.ipc_events import ImportedEvent, SharedEvent
from egmctl.gpu.memory import HostNumaMemory
from egmctl.gpu.timing import Stream
from egmctl.launch import Channel
from egmctl.model.probes import ProbeKind
from egmctl.model.task import HandleKind

OUTGOING_SEED, RETURN_SEED = 0x0E6D, 0x1E6D
"""Of what the owner leaves for the importer, and of what the importer leaves for the owner."""

HANDLES = {
    ProbeKind.LEGACY_IPC: HandleKind.LEGACY,
    ProbeKind.POSIX_FD: HandleKind.POSIX_FD,
    ProbeKind.POOL: HandleKind.POOL,
    ProbeKind.FABRIC: HandleKind.FABRIC,
}
"""How the probes that share memory do it."""

Message = dict[str, Any]


def alone(parent: Channel, _arguments: Message) -> None:
    """Try what one process can try alone: peers and host memory.

    Says first which GPUs CUDA shows (``visible``). Orders are ``{"kind", "gpus", "node", "mapped"}``: what to try, with
    which GPUs, and on what node, whose memory is mapped for the GPUs ``mapped``.
    """
    initialise()
    parent.send({"visible": _visible()})
    contexts: dict[str, Context] = {}

    def context(bus_id: str) -> Context:
        if bus_id not in contexts:
            contexts[bus_id] = Context(bus_id)
        return contexts[bus_id]

    def try_it(order: Message) -> None:
        first, *others = [context(bus_id) for bus_id in order["gpus"]]
        if order["kind"] == ProbeKind.P2P:
            trials.peer_round_trip(first, others[0], OUTGOING_SEED)
            return
        mapped = [context(bus_id) for bus_id in order["mapped"]]
        with closing(HostNumaMemory(order["node"], trials.SIZE_BYTES, mapped)) as memory:
            trials.host_round_trip(first, memory, OUTGOING_SEED)

    while True:
        order, _ = parent.receive()
        parent.send(_answer(try_it, order))


def partner(parent: Channel, arguments: Message) -> None:
    """Be one of the processes that share memory, on the GPU ``arguments["gpu"]``.

    As the owner it carries out ``export`` (make memory, answer with its handle) and ``verify`` (compare what the
    importer has left there, free it); as the importer ``import`` (open memory, compare, leave something for the owner)
    and ``take`` (get a descriptor out of the other process). Of an event the owner exports one that it has recorded,
    and the importer waits for it.
    """
    initialise()
    one = _Partner(Context(arguments["gpu"]))
    parent.send({"pid": os.getpid()})
    while True:
        order, fds = parent.receive()
        do = {"export": one.export, "verify": one.verify, "take": one.take}.get(order["do"])
        answer = _answer(do or (lambda order, fds=fds: one.open(order, fds)), order)  # type: ignore[misc]
        for fd in fds:
            os.close(fd)
        parent.send(answer, one.to_send())


class _Partner:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._memory: SharedMemory | None = None
        self._event: SharedEvent | None = None
        self._unsent: list[int] = []

    def export(self, order: Message) -> Message:
        self._free()
        kind = ProbeKind(order["kind"])
        if kind is ProbeKind.IPC_EVENT:
            self._event = SharedEvent(self._context)
            with closing(Stream(self._context)) as stream:
                self._event.record(stream)
            return {"offer": {"event": self._event.handle.hex()}}
        self._memory = memory = SharedMemory(HANDLES[kind], self._context, trials.SIZE_BYTES, order["node"])
        trials.put(self._context, memory, OUTGOING_SEED)
        description, self._unsent = memory.offer()
        return {"offer": description}

    def to_send(self) -> list[int]:
        """Return the descriptors that go with the answer to an export."""
        fds, self._unsent = self._unsent, []
        return fds

    def verify(self, _order: Message) -> None:
        if self._memory is not None:
            trials.check(self._context, self._memory, RETURN_SEED, "written by the importer")
        self._free()

    def open(self, order: Message, fds: list[int]) -> None:
        if "event" in order["offer"]:
            with closing(ImportedEvent(self._context, bytes.fromhex(order["offer"]["event"]))) as event:
                event.synchronize()
            return
        with closing(ImportedMemory(self._context, order["offer"], fds)) as memory:
            trials.check(self._context, memory, OUTGOING_SEED, "read by the importer")
            trials.put(self._context, memory, RETURN_SEED)

    def take(self, order: Message) -> None:
        os.close(take_descriptor(order["pid"], order["fd"]))

    def _free(self) -> None:
        held = self._memory, self._event
        self._memory = self._event = None
        for shared in held:
            if shared is not None:
                shared.close()


def _answer(do: Callable[[Message], Message | None], order: Message) -> Message:
    """Carry an order out; what went wrong is the answer, and whether this process is of any more use."""
    try:
        return do(order) or {}
    except DriverCallError as error:
        failed = {"call": error.call, "number": error.number, "name": error.name, "detail": str(error)}
        return {"failed": failed, "broken": _is_broken()}
    except trials.Corrupt as difference:
        return {"corrupt": str(difference)}
    except OSError as error:
        number = error.errno or 0
        name = errno.errorcode.get(number, "unknown error")
        detail = f"{error.strerror} failed: {name}"
        return {"failed": {"call": error.strerror, "number": number, "name": name, "detail": detail}}


def _is_broken() -> bool:
    """Say whether the current context fails every further call, as after an illegal access."""
    try:
        call("cuCtxSynchronize")
    except DriverCallError as error:
        return error.name != "CUDA_ERROR_INVALID_CONTEXT"
    return False


def _visible() -> list[str]:
    """Return the bus ids of the GPUs that CUDA shows to this process."""
    devices = [call("cuDeviceGet", ordinal) for ordinal in range(call("cuDeviceGetCount"))]
    names = [call("cuDeviceGetPCIBusId", 32, device) for device in devices]
    return [ids.bus_id(name.split(b"\0", 1)[0].decode()) for name in names]
