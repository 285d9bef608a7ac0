"""Read this node into a :class:`Machine`: first device nodes, then files while two children query NVML and CUDA."""

from __future__ import annotations

import dataclasses
import datetime
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from typing import Any, TypeVar

from egmctl import __version__, launch
from egmctl.driver.reading import Reasons, Unreadable, read_or
from egmctl.errors import ChildFailed, UsageError
from egmctl.facts import confinement, gpus, host, inside, kernel_log, libraries, process, system
from egmctl.facts.gpus import CudaFacts, NvmlFacts
from egmctl.facts.root import Root
from egmctl.model.gpu import Gpu
from egmctl.model.host import Driver, NvSwitch, PciFunction, Process
from egmctl.model.machine import SECTION_VERSIONS, Machine, Origin, OriginKind, SectionStatus
from egmctl.model.record import Reason, Unread

T = TypeVar("T")
F = TypeVar("F", NvmlFacts, CudaFacts)
OnWait = Callable[[str], None]

LIBRARY_SECTIONS = frozenset({"gpus", "pairs", "driver"})
"""The sections that need NVML and CUDA."""


DEADLINE_S = 60.0
"""The timeout of the NVML and CUDA children, after which their values are ``timed-out``."""
RELEASE_S = 2.0
"""The time that a child has to release its library after its answer."""
WAIT_UNTOLD_S = 5.0
"""The time after which a wait for a library is reported."""


def collect(sections: Iterable[str], *, cuda: bool = True, pid: int = 0, on_wait: OnWait | None = None) -> Machine:
    """Read sections of this node.

    Parameters
    ----------
    sections
        Keys of :data:`egmctl.model.machine.SECTION_VERSIONS`. Other sections stay null with the reason ``not-asked``,
        and so does ``probes``, because nothing is probed here.
    cuda
        Whether to query CUDA. If not, libcuda is not loaded, no GPU is initialized and no job disturbed, and CUDA's
        values are ``not-asked``.
    pid
        The process to read instead of this one: its cgroups, environment, limits and, as root, its access to device
        nodes. NVML and CUDA still show this process' view. 0 is this process.
    on_wait
        The function to call, from another thread, with a sentence if a library takes long.

    Returns
    -------
    Machine
        The machine. An error in a section is stored as that section's status.

    Raises
    ------
    UsageError
        There is no such section or process, or the process ended during the reading.
    """
    with reading(sections, cuda=cuda, pid=pid, on_wait=on_wait) as machine:
        return machine()


@contextmanager
def reading(
    sections: Iterable[str], *, cuda: bool = True, pid: int = 0, on_wait: OnWait | None = None
) -> Iterator[Callable[..., Machine]]:
    """Start to read this node: two children query NVML and CUDA, which takes half a second, in the background.

    Yields a function that reads the rest, begins to end the children and returns the machine; the end of the ``with``
    block waits for their end. Call it only once. Its arguments are additional sections; sections of
    :data:`LIBRARY_SECTIONS` must be in ``sections``. The parameters and errors are those of :func:`collect`.
    """
    asked = _known(sections)
    root = Root.from_environment()
    if pid and not root.exists(f"/proc/{pid}"):
        raise UsageError(f"there is no process {pid}")
    started = _attempt(lambda: process.start_time(root, pid))
    with launch.Endings() as endings, ExitStack() as children:
        node = _Node(root, asked, children, cuda=cuda, pid=pid, on_wait=on_wait)

        def machine(*more: str) -> Machine:
            read = _machine(node, {*asked, *_known(more)})
            endings.begin(children.pop_all().close)
            if pid and _attempt(lambda: process.start_time(root, pid)) != started:
                raise UsageError(f"process {pid} ended while it was read: name one that keeps running")
            return read

        yield machine


@contextmanager
def rereading() -> Iterator[Callable[[Machine], Machine]]:
    """Prepare to reread what changes under load (access, links, fabric, kernel log) with a child that waits until then.

    Yields a function that returns a machine updated from sysfs, NVML and the kernel log. Call it only once. If the log
    can no longer be read, the machine keeps the earlier one.
    """
    root = Root.from_environment()
    with ExitStack() as children:
        child = _start("egmctl.facts.nvml:read_when_asked", {"pairs": False}, children)

        def machine(before: Machine) -> Machine:
            # Access is checked first: as root, NVML may create a missing node.
            minors = [gpu.node.minor for gpu in before.gpus or () if gpu.node and gpu.node.minor is not None]
            nodes = _attempt(lambda: system.read_device_nodes(root, minors).gpus)
            known_nodes = {} if isinstance(nodes, Unread) else nodes
            if isinstance(child, launch.Child):
                # If the child is gone, the wait for its answer reports the reason.
                with suppress(launch.ChannelClosed):
                    child.channel.send({})
            functions = read_or((), lambda: gpus.nvidia_functions(root))
            pci = {function.bus_id: function for function in functions}
            now = gpus.reread(before, pci, _facts(NvmlFacts, child), known_nodes)
            log = before.kernel_log and _attempt(lambda: kernel_log.kernel_log(root))
            return now if isinstance(log, Unread) else dataclasses.replace(now, kernel_log=log)

        yield machine


def _known(sections: Iterable[str]) -> tuple[str, ...]:
    """Return the section names as a tuple.

    Raises
    ------
    UsageError
        A section does not exist.
    """
    asked = tuple(sections)
    if unknown := [name for name in asked if name not in SECTION_VERSIONS]:
        raise UsageError(f"there is no section {unknown[0]!r}; valid are {', '.join(SECTION_VERSIONS)}")
    return asked


def _machine(node: _Node, asked: Collection[str]) -> Machine:
    """Read the requested sections, those that need the children's answers last."""
    root, pid = node.root, node.pid
    statuses: dict[str, SectionStatus] = {}
    values: dict[str, Any] = {}

    def read(name: str, function: Callable[[], object]) -> None:
        unread: Unread | None = Unread(reason=Reason.NOT_ASKED)
        duration_ms = None
        if name in asked:
            started = time.perf_counter()
            value = _attempt(function)
            unread = value if isinstance(value, Unread) else None
            values[name] = None if unread else value
            duration_ms = round(1e3 * (time.perf_counter() - started), 3)
        statuses[name] = SectionStatus(version=SECTION_VERSIONS[name], duration_ms=duration_ms, unread=unread)

    read("host", lambda: host.host(root, pid))
    read("switches", node.switches)
    read("nics", lambda: system.nics(root))
    read("process", lambda: process.process(root, pid))
    read("confinement", lambda: confinement.confinement(root, pid))
    read("system", lambda: system.system(root))
    read("kernel_log", lambda: kernel_log.kernel_log(root))
    read("gpus", lambda: node.gpus)
    read("pairs", lambda: gpus.join_pairs(node.gpus, node.nvml, node.cuda))
    read("driver", node.driver)
    if values.get("process") is not None and values.get("gpus") is not None:
        values["process"] = _with_cuda_processes(root, values["process"], values["gpus"])
    statuses["probes"] = SectionStatus(
        version=SECTION_VERSIONS["probes"],
        unread=Unread(reason=Reason.NOT_ASKED, detail="egmctl doctor --active makes them"),
    )
    origin = Origin(
        kind=OriginKind.LIVE,
        tool=f"egmctl {__version__}",
        recorded_at=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    return Machine(origin=origin, sections={name: statuses[name] for name in SECTION_VERSIONS}, **values)


def _with_cuda_processes(root: Root, own: Process, gpus: Iterable[Gpu]) -> Process:
    """Return the process with the libraries of the processes that NVML lists, and of the process of ``--pid``."""
    reasons = Reasons()
    pids = [user.pid for gpu in gpus for user in (gpu.nvml.processes if gpu.nvml else None) or ()]
    names = "cuda_processes cuda_processes_unread"
    values = reasons.fields(names, lambda: libraries.cuda_processes(root, pids, own.pid))
    unread = {name: why for name, why in own.unread.items() if name not in values}
    return dataclasses.replace(own, **values, unread={**unread, **reasons.unread})


class _Node:
    """The values that several sections need, read once."""

    def __init__(
        self,
        root: Root,
        asked: tuple[str, ...],
        children: ExitStack,
        *,
        cuda: bool,
        pid: int,
        on_wait: OnWait | None,
    ) -> None:
        self.root, self.pid = root, pid
        self._on_wait, self._begun = on_wait, time.monotonic()
        if LIBRARY_SECTIONS.isdisjoint(asked):
            return
        # As root, NVML and CUDA may create missing device nodes, so the nodes are read first.
        self._proc = _attempt(lambda: gpus.gpus(self.root))
        known = () if isinstance(self._proc, Unread) else self._proc.values()
        minors = [gpu.minor for gpu in known if gpu.minor is not None]
        self._nodes = _attempt(
            lambda: inside.read_device_nodes_of(root, pid, minors) if pid else system.read_device_nodes(root, minors)
        )
        arguments = {"pairs": "pairs" in asked}
        cgroup = read_or(None, lambda: process.device_memory_cgroup(root, pid))
        self._nvml_child = _start("egmctl.facts.nvml:read", {**arguments, "cgroup": cgroup}, children)
        self._cuda_child = _start("egmctl.facts.cuda:read", arguments, children) if cuda else None

    @cached_property
    def nvml(self) -> NvmlFacts:
        return _facts(NvmlFacts, self._nvml_child, self._begun, self._on_wait)

    @cached_property
    def cuda(self) -> CudaFacts:
        if self._cuda_child is None:
            return CudaFacts(absent=Unread(reason=Reason.NOT_ASKED))
        return _facts(CudaFacts, self._cuda_child, self._begun, self._on_wait)

    @cached_property
    def functions(self) -> tuple[PciFunction, ...]:
        return gpus.nvidia_functions(self.root)

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        return gpus.join(
            pci=_attempt(lambda: {function.bus_id: function for function in self.functions if gpus.is_gpu(function)}),
            proc=self._proc,
            nodes=self._nodes if isinstance(self._nodes, Unread) else self._nodes.gpus,
            nvml=self.nvml,
            cuda=self.cuda,
        )

    def switches(self) -> tuple[NvSwitch, ...]:
        return tuple(NvSwitch(pci=function) for function in self.functions if not gpus.is_gpu(function))

    def driver(self) -> Driver:
        driver = gpus.with_cuda(gpus.with_nvml(gpus.driver(self.root), self.nvml), self.cuda)
        nodes = self._nodes
        if isinstance(nodes, Unread):
            return dataclasses.replace(driver, unread={**driver.unread, "nodes": nodes, "imex_channels": nodes})
        unread = {**driver.unread, **nodes.unread}
        return dataclasses.replace(driver, nodes=nodes.control, imex_channels=nodes.imex_channels, unread=unread)


def _start(target: str, arguments: dict[str, Any], children: ExitStack) -> launch.Child | ChildFailed:
    try:
        # No grace period: a child that has not answered may hang.
        return children.enter_context(launch.Child(target, arguments, grace_s=0))
    except ChildFailed as error:
        return error


def _facts(
    kind: type[F],
    child: launch.Child | ChildFailed,
    begun: float | None = None,
    on_wait: OnWait | None = None,
) -> F:
    """Return the facts that a child reads; call ``on_wait`` if that takes long.

    Parameters
    ----------
    begun
        The start time of the child's reading, by the monotonic clock; ``None`` is now.
    """
    if isinstance(child, ChildFailed):
        return gpus.library_facts(kind, child)

    def tell() -> None:
        if on_wait is not None:
            call = child.last_call()
            on_wait(
                f"waiting for {kind.LIBRARY}{f', which is in {call}' if call else ''}: GPUs without persistence mode "
                f"take long to initialise; it is given up after {DEADLINE_S:.0f} s"
            )

    waited = time.monotonic() - begun if begun is not None else 0.0
    timer = threading.Timer(max(0.0, WAIT_UNTOLD_S - waited), tell)
    timer.daemon = True
    if on_wait is not None:
        # If a process limit forbids the thread, the wait is not reported.
        with suppress(RuntimeError):
            timer.start()
    try:
        result = child.result(max(0.0, DEADLINE_S - waited))
        child.grace_s = RELEASE_S
        return gpus.library_facts(kind, result)
    except ChildFailed as error:
        return gpus.library_facts(kind, error)
    finally:
        timer.cancel()


def _attempt(function: Callable[[], T]) -> T | Unread:
    """Return a collector's value, or the reason why there is none, so that no exception ends the tool."""
    try:
        return function()
    except Unreadable as error:
        return error.unread
    except Exception as error:
        return Unread(reason=Reason.FAILED, detail=f"{type(error).__name__}: {error}")
