"""Doctor's active probes: small copies with every byte verified, in child processes that may crash or hang.

A process carries out orders one by one (:func:`serve`). It reports failed calls; the command detects that the process
ended or hangs. Probes compile no kernel and time nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import count
from typing import Any

from egmctl import launch
from egmctl.doctor.check import Scope
from egmctl.doctor.situation import NO_VERBS, shared_by_processes, usable
from egmctl.driver.cuda import call, initialise
from egmctl.driver.reading import normal_bus_id
from egmctl.errors import ChildFailed, DriverCallError
from egmctl.facts.system_calls import take_descriptor
from egmctl.gpu import pool_trials, trials
from egmctl.gpu.context import Context, ReleaseStack
from egmctl.gpu.handles import ImportedEvent, ImportedMemory, SharedEvent, SharedMemory
from egmctl.gpu.memory import HostNumaMemory
from egmctl.gpu.timing import Stream
from egmctl.launch import Channel, Message, close_all
from egmctl.model.host import System
from egmctl.model.machine import SECTION_VERSIONS, Machine, SectionStatus
from egmctl.model.probes import Probe, ProbeKind, ProbeOutcome, Registration
from egmctl.model.task import HandleKind

# --- the command's side ----------------------------------------------------------------------------------------------

START_TIMEOUT_S = 30.0
"""The timeout for starting CUDA, which takes about a second with 8 GPUs, much longer while the driver resets one."""
PROBE_TIMEOUT_S = 10.0
"""The timeout for an order, which takes milliseconds."""
DEADLINE_S = 60.0
"""The timeout for all probes together; later ones are not run."""

OnProbe = Callable[[float, Probe], None]
"""A callback before each probe; the arguments are the completed fraction, from 0 to 1, and the probe."""
_Plan = Callable[[Sequence[str]], list[Probe]]


def probed(
    machine: Machine,
    scope: Scope,
    kinds: Iterable[ProbeKind],
    on_probe: OnProbe | None = None,
    waiting: Sequence[Prober] = (),
) -> Machine:
    """Run active probes on the usable GPUs in scope, and return the machine with the results.

    Parameters
    ----------
    waiting
        Processes that were started ahead (:func:`started`). They are killed when no probe needs them, but the caller
        waits for their ends.
    """
    started = time.monotonic()
    gpus = [gpu.bus_id for gpu in usable(machine, scope.gpus_of(machine))]
    nics = tuple(nic.name for nic in machine.nics or ()) or (None,)
    system = machine.system or System()
    # Which NIC a Data Direct function belongs to is libmlx5's answer, so that each NIC of its vendor is asked.
    data_direct_vendors = {function.vendor_id for function in system.data_direct or ()}
    data_direct_nics = tuple(
        nic.name for nic in machine.nics or () if nic.pci and nic.pci.vendor_id in data_direct_vendors
    )
    verbs = system.verbs or ()
    # libibverbs waits 5 s for each device that it cannot open (open_cdev_robust, util/open_cdev.c of rdma-core).
    closed = {device.nic for device in verbs if device.nic and device.node.access not in ("ok", None)}
    nodes, wanted = scope.numa_of(machine), frozenset(kinds)

    def planned(chosen: Sequence[str]) -> list[Probe]:
        probes = plan(chosen, nodes, wanted, nics, data_direct_nics)
        return [replace(each, detail=NO_VERBS * (each.nic in closed)) for each in probes]

    at_once = shared_by_processes(usable(machine, scope.gpus_of(machine)))
    on_probe = on_probe or (lambda _part, _probe: None)
    results = tuple(_results(gpus, planned, on_probe, deque(waiting), at_once=at_once))
    status = SectionStatus(version=SECTION_VERSIONS["probes"], duration_ms=round(1e3 * (time.monotonic() - started), 3))
    return replace(machine, probes=results, sections={**machine.sections, "probes": status})


@contextlib.contextmanager
def started(gpus: int, kinds: Collection[ProbeKind]) -> Iterator[list[Prober]]:
    """Start as many processes as probes of these kinds need on so many GPUs; they initialise CUDA in the background.

    Starting takes as long as reading the node, so both happen at the same time. The processes end with the block.
    """
    probers: list[Prober] = []
    needed = 0
    if gpus and any(kind in _OF_ONE_PROCESS for kind in kinds):
        needed += 1
    if gpus and any(kind not in _OF_ONE_PROCESS for kind in kinds):
        # Two processes share a single GPU.
        needed += max(2, gpus)
    with ReleaseStack() as cleanup:
        # The start of a process is work of a CPU: more processes than CPUs would only delay the reading.
        for _ in range(min(needed, len(os.sched_getaffinity(0)))):
            try:
                probers.append(cleanup.keep(Prober()))
            except ChildFailed:
                # Whoever needs another process starts it, and says why that fails.
                break
        for prober in probers:
            # At the end all are killed before the first one is waited for.
            cleanup.callback(prober.kill_soon)
        yield probers


def plan(
    gpus: Sequence[str],
    nodes: Sequence[int],
    kinds: Collection[ProbeKind],
    nics: Sequence[str | None] = (None,),
    data_direct_nics: Sequence[str] = (),
) -> list[Probe]:
    """Return the probes of these kinds in their order, as not run.

    Every GPU accesses host memory on every node, and every other GPU's memory. Processes share memory along a ring of
    the GPUs; with one GPU, two processes use it. Each NIC registers the memory of each GPU and node, last, as one that
    hangs uses up the time of the probes after it. NICs that may have a Data Direct function then register GPU memory
    through that: host memory has no mapping over PCIe.
    """
    ring = list(zip(gpus, [*gpus[1:], *gpus[:1]], strict=True))
    # H200, driver 580: a process that has imported a HOST_NUMA pool gets CUDA_ERROR_OUT_OF_MEMORY if it allocates
    # from one of its own. So each process either owns or imports such pools.
    disjoint = ring[: len(ring) - (len(ring) > 1 and len(ring) % 2) : 2]
    shared: list[tuple[ProbeKind, Sequence[tuple[str, str]], Sequence[int | None]]] = [
        (ProbeKind.LEGACY_IPC, ring, [None]),
        (ProbeKind.POSIX_FD, ring, [None]),
        (ProbeKind.POSIX_FD, ring, nodes),
        (ProbeKind.POOL, ring, [None]),
        (ProbeKind.POOL, disjoint, nodes),
        (ProbeKind.FABRIC, ring, [None]),
        (ProbeKind.FABRIC, ring, nodes),
        (ProbeKind.IPC_EVENT, ring, [None]),
        (ProbeKind.PIDFD, ring, [None]),
    ]
    probes = [
        *(_blank(kind, (gpu,), node) for kind in (*_OF_NODES, *_OF_POOLS) for node in nodes for gpu in gpus),
        *(_blank(ProbeKind.MANAGED_IPC, (gpu,)) for gpu in gpus),
        *(_blank(ProbeKind.P2P, (gpu, peer)) for gpu in gpus for peer in gpus if gpu != peer),
        *(_blank(kind, ends, node) for kind, pairs, locations in shared for ends in pairs for node in locations),
        *(_blank(ProbeKind.DMA_BUF, (gpu,), node, nic) for node in (None, *nodes) for gpu in gpus for nic in nics),
        *(
            replace(_blank(ProbeKind.DMA_BUF, (gpu,), nic=nic), registration=registration)
            for gpu in gpus
            for nic in data_direct_nics
            for registration in (Registration.DATA_DIRECT, Registration.DATA_DIRECT_UNALIGNED)
        ),
    ]
    return [probe for probe in probes if probe.kind in kinds]


def _blank(kind: ProbeKind, gpus: tuple[str, ...], node: int | None = None, nic: str | None = None) -> Probe:
    return Probe(kind=kind, gpus=gpus, numa_node=node, nic=nic, outcome=ProbeOutcome.NOT_RUN)


def _results(
    gpus: Sequence[str], planned: _Plan, on_probe: OnProbe, waiting: deque[Prober], *, at_once: bool
) -> Iterator[Probe]:
    """Yield the probes with their outcomes.

    Parameters
    ----------
    waiting
        Processes without a task. Those that are used leave it.
    at_once
        Whether a GPU may have contexts of several processes, so that they are opened and ended at the same time.
    """
    deadline = time.monotonic() + DEADLINE_S
    probes = planned(gpus)
    if not probes:
        return
    with ReleaseStack() as cleanup:
        processes = _Processes(waiting, cleanup, at_once=at_once)
        try:
            processes.start(probes)
            answer, _ = processes.of(probes[0])[0].ask({"do": "visible"})
        except ChildFailed as error:
            answer = {"failed": _end(error)}
        if failed := answer.get("failed"):
            yield from (replace(probe, **failed) for probe in probes)
            return
        visible = [gpu for gpu in gpus if gpu in answer["visible"]]
        alone = [probe for probe in probes if probe.kind in _ALONE]
        last = [probe for probe in probes if probe.kind is ProbeKind.DMA_BUF]
        probes = alone + [probe for probe in planned(visible) if probe.kind not in _OF_ONE_PROCESS] + last
        # CUDA may hide one of two GPUs: two processes on the other then share its memory.
        try:
            processes.start(probes)
        except ChildFailed as error:
            yield from (replace(probe, **_end(error)) for probe in probes)
            return
        for surplus in waiting:
            surplus.kill_soon()
        if at_once:
            processes.open_contexts(probes, visible)
        turns = _Turns(probes, processes, visible, deadline, on_probe)
        if at_once:
            yield from turns.in_parallel()
        else:
            yield from turns.one_by_one()


class _Turns:
    """Makes probes in their order.

    Parameters
    ----------
    visible
        The bus ids of the GPUs that CUDA shows.
    deadline
        The time by :func:`time.monotonic` after which no probe begins.
    """

    def __init__(
        self,
        probes: Sequence[Probe],
        processes: _Processes,
        visible: Sequence[str],
        deadline: float,
        on_probe: OnProbe,
    ) -> None:
        self._probes = probes
        self._processes = processes
        self._visible = visible
        self._deadline = deadline
        self._on_probe = on_probe
        self._begun = count()
        self._saying = threading.Lock()
        self._is_over = threading.Event()

    def one_by_one(self) -> list[Probe]:
        """Return all probes with their outcomes."""
        return self._made(self._probes)

    def in_parallel(self) -> list[Probe]:
        """Return all probes with their outcomes; those of one process are made beside those of two.

        They use different processes, so that neither waits for the other.
        """
        of_one = [probe for probe in self._probes if probe.kind in _OF_ONE_PROCESS]
        of_two = [probe for probe in self._probes if probe.kind not in _OF_ONE_PROCESS]
        with ThreadPoolExecutor(1, thread_name_prefix="probes") as threads:
            try:
                try:
                    beside = threads.submit(self._made, of_one)
                except RuntimeError:
                    # A limit of processes forbids the thread.
                    return self.one_by_one()
                made_by_two = iter(self._made(of_two))
                made_by_one = iter(beside.result())
            except BaseException:
                # The thread ends when its processes do.
                self._is_over.set()
                self._processes.kill()
                raise
        return [next(made_by_one if probe.kind in _OF_ONE_PROCESS else made_by_two) for probe in self._probes]

    def _made(self, probes: Sequence[Probe]) -> list[Probe]:
        made = []
        for number, probe in enumerate(probes):
            if self._is_over.is_set():
                break
            with self._saying:
                self._on_probe(next(self._begun) / len(self._probes), probe)
            made.append(self._outcome(probe))
            self._processes.end_unneeded(probe, probes[number + 1 :])
        return made

    def _outcome(self, probe: Probe) -> Probe:
        if probe.detail:
            return probe
        if hidden := [gpu for gpu in probe.gpus if gpu not in self._visible]:
            return replace(probe, detail=f"CUDA does not show {' and '.join(hidden)} to this process")
        if time.monotonic() > self._deadline:
            return replace(probe, detail=f"the probes before took all of {DEADLINE_S:g} s")
        return attempt(probe, self._processes.of(probe), self._visible)


_OF_NODES = (ProbeKind.HOST_NUMA,)
_OF_POOLS = (ProbeKind.DEVICE_POOL, ProbeKind.LOCATION_POOL)
_ALONE = (*_OF_NODES, *_OF_POOLS, ProbeKind.MANAGED_IPC, ProbeKind.P2P)
"""The kinds of probes that need only one process and come first."""
_OF_ONE_PROCESS = (*_ALONE, ProbeKind.DMA_BUF)
_ALONE_NAME = "all GPUs"
"""The process of such probes. Drivers before r595 can crash in cuMemCreate on a NUMA node without memory or CPUs
(https://github.com/NVIDIA/nccl/issues/2106): that costs one probe, and the next one gets a new process."""


def attempt(probe: Probe, processes: Sequence[Prober], visible: Sequence[str] = ()) -> Probe:
    """Run a probe and return it with its outcome.

    Parameters
    ----------
    processes
        The process, or those of the owner and the importer.
    visible
        The GPUs for which host memory is mapped.
    """
    steps = _STEPS.get(probe.kind, ("export", "open_exported", "verify"))
    message: Message = {"kind": probe.kind, "gpus": probe.gpus, "node": probe.numa_node, "nic": probe.nic}
    message |= {"visible": list(visible), "registration": probe.registration}
    fds: list[int] = []
    for number, step in enumerate(steps):
        # The owner and the importer take turns.
        gpu = probe.gpus[number % 2]
        answer, received = processes[number % 2].ask({**message, "do": step, "gpu": gpu}, fds)
        close_all(fds)
        if failed := answer.get("failed"):
            return replace(probe, by=gpu, **failed)
        message |= answer
        fds = received
    return replace(probe, outcome=ProbeOutcome.OK)


_STEPS = {
    ProbeKind.HOST_NUMA: ("try_host_memory",),
    ProbeKind.DEVICE_POOL: ("try_device_pool",),
    ProbeKind.LOCATION_POOL: ("try_location_pool",),
    ProbeKind.MANAGED_IPC: ("try_managed",),
    ProbeKind.P2P: ("try_peer",),
    ProbeKind.DMA_BUF: ("register",),
    ProbeKind.PIDFD: ("identify", "take_descriptor"),
}
"""The orders of a probe (:class:`_Orders`), by kind. All other kinds share memory or an event."""


class Prober:
    """A probing process. The constructor starts it without waiting for CUDA; :meth:`ask` restarts it if it is lost.

    Parameters
    ----------
    options
        The options of :class:`egmctl.launch.Child`.

    Attributes
    ----------
    is_lost
        Whether the process ended or hangs, or its context fails every call. The next order goes to a new process.

    Raises
    ------
    ChildFailed
        The process cannot be started.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._is_ended = False
        self._start()

    def _start(self) -> None:
        self._child = launch.Child("egmctl.doctor.probes:serve", {}, grace_s=0, **self._options)
        self._answers_due = 1
        self.is_lost = False
        if self._is_ended:
            # Another thread ended it while it was started again.
            self._child.kill_soon()

    def open_context(self, gpu: str) -> None:
        """Tell the process to open a context, without waiting."""
        self._send({"do": "open_context", "gpu": gpu}, ())
        self._answers_due += 1

    def ask(self, order: Message, fds: Sequence[int] = ()) -> tuple[Message, list[int]]:
        """Send an order and return the response and its descriptors, which the caller closes.

        If the order failed, ``failed`` in the response has the outcome as fields of a :class:`Probe`.
        """
        try:
            if self.is_lost:
                self._start()
            while self._answers_due:
                self._child.receive(START_TIMEOUT_S)
                self._answers_due -= 1
            self._send(order, fds)
            answer, received = self._child.receive(PROBE_TIMEOUT_S)
        except ChildFailed as error:
            self._lose()
            return {"failed": _end(error)}, []
        if "failed" in answer:
            answer["failed"]["outcome"] = ProbeOutcome(answer["failed"]["outcome"])
            if answer["is_broken"]:
                self._lose()
        return answer, received

    def _lose(self) -> None:
        self.is_lost = True
        self.close()

    def kill_soon(self) -> None:
        """Kill the process for good without waiting for its end: :meth:`close` waits. Any thread may call it."""
        self._is_ended = True
        self._child.kill_soon()

    def close(self) -> None:
        """End the process."""
        self._child.close()

    def _send(self, order: Message, fds: Sequence[int]) -> None:
        # If the process is gone, the next receive reports why.
        with contextlib.suppress(launch.ChannelClosed, TimeoutError):
            self._child.channel.send(order, fds, timeout_s=PROBE_TIMEOUT_S)


def _end(error: ChildFailed) -> Message:
    """Return the fields of a probe whose process failed to start, crashed or timed out."""
    if error.how == "raised":
        return _failed_call(**error.details, detail=str(error))
    outcome = ProbeOutcome.TIMED_OUT if error.how == "timed-out" else ProbeOutcome.CRASHED
    return {"outcome": outcome, "call": error.last_call, "detail": str(error)}


class _Processes:
    """The probing processes by name, each used by all probes that need it.

    Parameters
    ----------
    waiting
        Processes that have been started already.
    cleanup
        What ends the processes that are started here.
    at_once
        See :func:`_results`.
    """

    def __init__(self, waiting: deque[Prober], cleanup: ReleaseStack, *, at_once: bool) -> None:
        self._waiting = waiting
        self._cleanup = cleanup
        self._at_once = at_once
        self._running: dict[str, Prober] = {}

    def of(self, probe: Probe) -> list[Prober]:
        """Return the process of a probe, or those of the owner and the importer."""
        return [self._running[name] for name in self._names(probe)]

    def start(self, probes: Iterable[Probe]) -> None:
        """Start the processes that probes need and that do not run yet.

        Raises
        ------
        ChildFailed
            The system cannot start a process.
        """
        for name in (name for probe in probes for name in self._names(probe)):
            if name not in self._running:
                if self._waiting:
                    # Whoever started it waits for its end.
                    self._running[name] = self._waiting.popleft()
                else:
                    self._running[name] = self._cleanup.keep(Prober())

    def open_contexts(self, probes: Iterable[Probe], visible: Sequence[str]) -> None:
        """Have each process open the contexts of its first probe, all processes at the same time."""
        begun: set[str] = set()
        for probe in probes:
            for place, name in enumerate(self._names(probe)):
                if name in begun:
                    continue
                begun.add(name)
                for gpu in visible if name == _ALONE_NAME else probe.gpus[place : place + 1]:
                    self._running[name].open_context(gpu)

    def end_unneeded(self, probe: Probe, later: Sequence[Probe]) -> None:
        """End the processes of a probe that no later probe needs, to free their contexts.

        A process with contexts takes tenths of a second to end. Unless others wait for its contexts to go, all are
        waited for together, at the end.
        """
        needed = {name for each in later for name in self._names(each)}
        for name in self._names(probe):
            if name not in needed:
                process = self._running[name]
                if self._at_once:
                    process.kill_soon()
                else:
                    process.close()

    def kill(self) -> None:
        """Kill all processes without waiting for their ends."""
        for process in list(self._running.values()):
            process.kill_soon()

    def _names(self, probe: Probe) -> list[str]:
        """Return the names of the processes that a probe needs: one, or those of the owner and the importer."""
        if probe.kind in _ALONE:
            return [_ALONE_NAME]
        if probe.kind is ProbeKind.DMA_BUF:
            # In between, where a GPU may have contexts of one process only, those of two processes need the GPUs.
            return [_ALONE_NAME if self._at_once else "registration"]
        owner, importer = probe.gpus
        return [owner, importer if importer != owner else "the other process on the GPU"]


# --- the process -----------------------------------------------------------------------------------------------------

OUTGOING_SEED, RETURN_SEED = 0x0E6D, 0x1E6D
"""The seeds of the patterns that the owner writes for the importer, and the importer for the owner."""

_HANDLES = {
    ProbeKind.LEGACY_IPC: HandleKind.LEGACY,
    ProbeKind.POSIX_FD: HandleKind.POSIX_FD,
    ProbeKind.POOL: HandleKind.POOL,
    ProbeKind.FABRIC: HandleKind.FABRIC,
}


def serve(parent: Channel, _arguments: Message) -> None:
    """Initialise CUDA, report that, and carry out orders; the entry point of every probing process."""
    initialise()
    parent.send({})
    orders = _Orders()
    while True:
        order, fds = parent.receive()
        given: list[int] = []
        try:
            answer = getattr(orders, order["do"])({**order, "fds": fds}) or {}
            given = answer.pop("fds", [])
        except DriverCallError as error:
            answer = {"failed": _failed_call(**vars(error), detail=str(error)), "is_broken": _is_broken()}
        except trials.Corrupt as difference:
            answer = {"failed": {"outcome": ProbeOutcome.CORRUPT, "detail": str(difference)}, "is_broken": False}
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "unknown error")
            detail = f"{error.strerror} failed: {name}"
            answer = {"failed": _failed_call(error.strerror, error.errno or 0, name, detail), "is_broken": False}
        close_all(fds)
        parent.send(answer, given)


class _Orders:
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
            trials.check(context, memory, OUTGOING_SEED, "read by the importer")
            trials.put(context, memory, RETURN_SEED)

    def verify(self, order: Message) -> None:
        """Verify the importer's reply in the exported memory, and free the memory or event."""
        if isinstance(self._exported, SharedMemory):
            trials.check(self._context(order["gpu"]), self._exported, RETURN_SEED, "written by the importer")
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


def _failed_call(
    call: str | None = None, number: int | None = None, name: str | None = None, detail: str = "", **_more: Any
) -> Message:
    """Return the fields of a probe whose call failed with a CUresult or an errno."""
    return {"outcome": ProbeOutcome.ERROR, "call": call, "error_number": number, "error_name": name, "detail": detail}


def _is_broken() -> bool:
    """Return whether the current context fails every further call, e.g. after an illegal access."""
    try:
        call("cuCtxSynchronize")
    except DriverCallError as error:
        return error.name != "CUDA_ERROR_INVALID_CONTEXT"
    return False
