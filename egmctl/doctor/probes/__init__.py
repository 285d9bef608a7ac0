"""What the probing processes do: the targets of the launcher. Only these work a GPU.

Each carries out orders of the command. A call that fails is an answer; what ends or hangs the process the command sees
by itself, and it knows the order under way.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from egmctl import launch
from egmctl.doctor.check import Scope
from egmctl.doctor.situation import usable
from egmctl.driver import ids
from egmctl.driver.cuda import call, initialise
from egmctl.errors import ChildFailed, DriverCallError
from egmctl.facts.system_calls import take_descriptor
from egmctl.gpu import trials
from egmctl.gpu.context import Context
from egmctl.gpu.handles import ImportedEvent, ImportedMemory, SharedEvent, SharedMemory
from egmctl.gpu.memory import HostNumaMemory
from egmctl.gpu.timing import Stream
from egmctl.launch import Channel
from egmctl.model.machine import SECTION_VERSIONS, Machine, Outcome, Probe, SectionStatus
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


START_TIMEOUT_S = 30.0
"""cuInit takes about a second with 8 GPUs; beside a driver that resets one, much longer."""
PROBE_TIMEOUT_S = 10.0
"""One takes milliseconds."""
DEADLINE_S = 60.0
"""Of all probes together; what has not been tried by then is not run."""

SHARING: tuple[tuple[ProbeKind, bool], ...] = (
    (ProbeKind.LEGACY_IPC, False),
    (ProbeKind.POSIX_FD, False),
    (ProbeKind.POSIX_FD, True),
    (ProbeKind.POOL, False),
    (ProbeKind.POOL, True),
    (ProbeKind.FABRIC, False),
    (ProbeKind.FABRIC, True),
    (ProbeKind.IPC_EVENT, False),
    (ProbeKind.PIDFD, False),
)
"""What two processes share, and whether it is memory of a NUMA node."""

OnProbe = Callable[[float, Probe], None]
"""Is told before each probe which part of all is over, from 0 to 1, and what is tried next."""


def probed(machine: Machine, scope: Scope, kinds: Iterable[ProbeKind], on_probe: OnProbe | None = None) -> Machine:
    """Return the machine with the results of active probes of its usable GPUs in scope.

    Host memory is tried on every chosen CPU NUMA node by every GPU, peers as all ordered pairs, and what two processes
    share along a ring of the GPUs (with one GPU: between two processes on it); pools of host memory by disjoint pairs.
    """
    started = time.monotonic()
    asked = frozenset(kinds)
    gpus = [gpu.bus_id for gpu in usable(machine, scope.gpus_of(machine))]
    nodes = scope.numa_of(machine)
    results: list[Probe] = []
    if gpus and asked:
        deadline = started + DEADLINE_S
        told = _counted(len(list(plan(gpus, nodes, asked))), on_probe)
        try:
            visible = _try_alone(gpus, nodes, asked, deadline, results, told)
        except ChildFailed as error:
            results += (_failed(blank, error) for blank in plan(gpus, nodes, asked))
        else:
            results += _try_sharing(visible, nodes, asked, deadline, told)
    status = SectionStatus(version=SECTION_VERSIONS["probes"], duration_ms=round(1e3 * (time.monotonic() - started), 3))
    return replace(machine, probes=tuple(results), sections={**machine.sections, "probes": status})


def _counted(number: int, on_probe: OnProbe | None) -> Callable[[Probe], None]:
    """Return what is told of each probe before it is tried."""
    done = 0

    def told(blank: Probe) -> None:
        nonlocal done
        if on_probe is not None:
            on_probe(done / number, blank)
        done += 1

    return told


class Part:
    """A probing process of :mod:`egmctl.doctor.probes`, started at once and ready when it is first asked.

    Parameters
    ----------
    gpu
        Bus id of a partner's GPU; ``None`` for the one that works alone.
    before, before_arguments
        As for :func:`egmctl.launch.spawn`.
    """

    def __init__(
        self,
        gpu: str | None = None,
        *,
        before: str | None = None,
        before_arguments: Message | None = None,
        **more: Any,
    ) -> None:
        target = f"egmctl.doctor.probes:{'alone' if gpu is None else 'partner'}"
        self.gpu = gpu
        self._greeting: Message | None = None
        self._child = launch.spawn(
            target, {"gpu": gpu}, before=before, before_arguments=before_arguments, grace_s=0, **more
        )

    def greeting(self) -> Message:
        """Wait until the driver is initialised; return what the process says first."""
        if self._greeting is None:
            self._greeting, _ = self._child.receive(START_TIMEOUT_S)
        return self._greeting

    def ask(self, order: Message, fds: Sequence[int] = ()) -> tuple[Message, list[int]]:
        """Have an order carried out; return the answer and its descriptors, which the caller closes."""
        self.greeting()
        # Where that fails, the next line says what has become of the process.
        with contextlib.suppress(launch.ChannelClosed, TimeoutError):
            self._child.channel.send(order, fds, timeout_s=PROBE_TIMEOUT_S)
        return self._child.receive(PROBE_TIMEOUT_S)

    def close(self) -> None:
        """End the process."""
        self._child.close()


def _try_alone(
    gpus: Sequence[str],
    nodes: Sequence[int],
    asked: Collection[ProbeKind],
    deadline: float,
    results: list[Probe],
    told: Callable[[Probe], None],
) -> list[str]:
    """Append what one process finds; return the GPUs that CUDA shows."""
    with contextlib.ExitStack() as parts:

        def start() -> Part:
            return parts.enter_context(contextlib.closing(Part()))

        part = start()
        shown = part.greeting()["visible"]
        visible = [gpu for gpu in gpus if gpu in shown]
        node: int | None = None
        for blank in _alone(gpus, nodes, asked):
            told(blank)
            if blank.numa_node != node and results:
                # Drivers before r595 may crash in cuMemCreate on a node without memory or CPUs
                # (https://github.com/NVIDIA/nccl/issues/2106): what was tried on another one must not suffer.
                part.close()
                part = start()
            node = blank.numa_node
            if hidden := [gpu for gpu in blank.gpus if gpu not in visible]:
                results.append(_not_run(blank, f"CUDA does not show {' and '.join(hidden)} to this process"))
            elif time.monotonic() > deadline:
                results.append(_not_run(blank, _NO_TIME))
            else:
                order = {"kind": blank.kind, "gpus": blank.gpus, "node": blank.numa_node, "mapped": visible}
                result, is_lost = attempt(blank, blank.gpus[0], lambda part=part, order=order: part.ask(order)[0])  # type: ignore[misc]
                results.append(result or replace(blank, outcome=Outcome.OK))
                if is_lost:
                    part.close()
                    part = start()
    return visible


def _try_sharing(
    gpus: Sequence[str],
    nodes: Sequence[int],
    asked: Collection[ProbeKind],
    deadline: float,
    told: Callable[[Probe], None],
) -> Iterator[Probe]:
    """Try what is shared between processes on each GPU and on the next one."""
    blanks = list(_sharing(gpus, nodes, asked))
    if not blanks:
        return
    places = range(max(len(gpus), 2))
    with contextlib.ExitStack() as ended:
        parts: dict[int, Part] = {}

        def part(place: int) -> Part:
            if place not in parts:
                parts[place] = ended.enter_context(contextlib.closing(Part(gpus[place % len(gpus)])))
            return parts[place]

        for place in places:
            # All initialise at the same time.
            part(place)
        for place, blank in blanks:
            told(blank)
            if time.monotonic() > deadline:
                yield _not_run(blank, _NO_TIME)
                continue
            other = (place + 1) % len(places)
            result, lost = share(blank, part(place), part(other))
            yield result
            for one in (place, other):
                if parts[one] in lost:
                    parts.pop(one).close()


def share(blank: Probe, owner: Part, importer: Part) -> tuple[Probe, tuple[Part, ...]]:
    """Have one process share something with another and both compare what the other left there.

    Parameters
    ----------
    blank
        What to try; its outcome does not matter.

    Returns
    -------
    tuple
        The result, and the processes that are of no more use.
    """
    given: list[int] = []
    made: Message = {}

    def export() -> Message:
        if blank.kind is ProbeKind.PIDFD:
            answer = owner.greeting()
            made.update(pid=answer["pid"])
            return {}
        answer, fds = owner.ask({"do": "export", "kind": blank.kind, "node": blank.numa_node})
        given.extend(fds)
        made.update(answer)
        return answer

    def open_it() -> Message:
        if blank.kind is ProbeKind.PIDFD:
            # Its standard input: every process has one.
            return importer.ask({"do": "take", "pid": made["pid"], "fd": 0})[0]
        return importer.ask({"do": "import", "offer": made["offer"]}, given)[0]

    steps: list[tuple[Part, Callable[[], Message]]] = [(owner, export), (importer, open_it)]
    if blank.kind is not ProbeKind.PIDFD:
        steps.append((owner, lambda: owner.ask({"do": "verify"})[0]))
    try:
        for part, step in steps:
            result, is_lost = attempt(blank, part.gpu, step)
            if result is not None:
                return result, (part,) if is_lost else ()
    finally:
        for fd in given:
            os.close(fd)
    return replace(blank, outcome=Outcome.OK), ()


def attempt(blank: Probe, by: str | None, step: Callable[[], Message]) -> tuple[Probe | None, bool]:
    """Return how a step failed, ``None`` where it did not, and whether its process is of no more use."""
    try:
        answer = step()
    except ChildFailed as error:
        return _failed(blank, error, by), True
    if failed := answer.get("failed"):
        return _error(blank, failed, by), bool(answer.get("broken"))
    if difference := answer.get("corrupt"):
        return replace(blank, outcome=Outcome.CORRUPT, by=by, detail=difference), False
    return None, False


def _failed(blank: Probe, error: ChildFailed, by: str | None = None) -> Probe:
    """Return a probe whose process ended: by a call that failed before it was ready, in a crash, or hanging."""
    if error.how == "raised":
        return _error(blank, {**error.details, "detail": str(error)}, by)
    outcome = Outcome.TIMED_OUT if error.how == "timed-out" else Outcome.CRASHED
    return replace(blank, outcome=outcome, by=by, call=error.last_call, detail=str(error))


def _error(blank: Probe, failed: Mapping[str, Any], by: str | None) -> Probe:
    return replace(
        blank,
        outcome=Outcome.ERROR,
        by=by,
        call=failed.get("call"),
        error_number=failed.get("number"),
        error_name=failed.get("name"),
        detail=failed["detail"],
    )


def _not_run(blank: Probe, why: str) -> Probe:
    return replace(blank, outcome=Outcome.NOT_RUN, detail=why)


_NO_TIME = f"the probes before took all of {DEADLINE_S:g} s"


def plan(gpus: Sequence[str], nodes: Sequence[int], asked: Collection[ProbeKind]) -> Iterator[Probe]:
    """Return what is to be tried on these GPUs and NUMA nodes, in order, as probes that were not run."""
    yield from _alone(gpus, nodes, asked)
    for _, blank in _sharing(gpus, nodes, asked):
        yield blank


def _alone(gpus: Sequence[str], nodes: Sequence[int], asked: Collection[ProbeKind]) -> Iterator[Probe]:
    """Return what one process is to try, in order."""
    if ProbeKind.HOST_NUMA in asked:
        for node in nodes:
            yield from (_blank(ProbeKind.HOST_NUMA, gpu, node=node) for gpu in gpus)
    if ProbeKind.P2P in asked:
        yield from (_blank(ProbeKind.P2P, one, other) for one in gpus for other in gpus if one != other)


def _sharing(gpus: Sequence[str], nodes: Sequence[int], asked: Collection[ProbeKind]) -> Iterator[tuple[int, Probe]]:
    """Return what two processes are to try, and the place of the owner in the ring."""
    if not gpus:
        return
    ring = list(zip(gpus, [*gpus[1:], gpus[0]], strict=True))
    for kind, on_node in SHARING:
        if kind not in asked:
            continue
        for place, (owner, importer) in enumerate(ring):
            # H200, driver 580: a process that has imported a HOST_NUMA pool gets CUDA_ERROR_OUT_OF_MEMORY from one of
            # its own. So each process is either owner or importer of such pools.
            if kind is ProbeKind.POOL and on_node and (place % 2 or (place and place + 1 == len(ring))):
                continue
            for node in nodes if on_node else (None,):
                yield place, _blank(kind, owner, importer, node=node)


def _blank(kind: ProbeKind, *gpus: str, node: int | None = None) -> Probe:
    return Probe(kind=kind, gpus=gpus, numa_node=node, outcome=Outcome.NOT_RUN)
