"""Doctor's active probes: small copies with every byte verified, in child processes that may crash or hang.

Which probes there are, in which processes they are made, and their order. A process carries out the orders of
:mod:`egmctl.doctor.probe_orders`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count

from egmctl.doctor.check import Scope
from egmctl.doctor.prober import Prober, attempt_probe, end_of
from egmctl.doctor.situation import NO_VERBS, shared_by_processes, usable
from egmctl.errors import ChildFailed
from egmctl.gpu.context import ReleaseStack
from egmctl.model.host import System
from egmctl.model.machine import SECTION_VERSIONS, Machine, SectionStatus
from egmctl.model.probes import Probe, ProbeKind, ProbeOutcome, Registration

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
        return [replace(each, detail=NO_VERBS if each.nic in closed else "") for each in probes]

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
            answer = {"failed": end_of(error)}
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
            yield from (replace(probe, **end_of(error)) for probe in probes)
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
        return attempt_probe(probe, self._processes.of(probe), self._visible)


_OF_NODES = (ProbeKind.HOST_NUMA,)
_OF_POOLS = (ProbeKind.DEVICE_POOL, ProbeKind.LOCATION_POOL)
_ALONE = (*_OF_NODES, *_OF_POOLS, ProbeKind.MANAGED_IPC, ProbeKind.P2P)
"""The kinds of probes that need only one process and come first."""
_OF_ONE_PROCESS = (*_ALONE, ProbeKind.DMA_BUF)
_ALONE_NAME = "all GPUs"
"""The process of such probes. Drivers before r595 can crash in cuMemCreate on a NUMA node without memory or CPUs
(https://github.com/NVIDIA/nccl/issues/2106): that costs one probe, and the next one gets a new process."""


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
