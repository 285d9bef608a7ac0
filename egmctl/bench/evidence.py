"""Evidence for a measurement: link counters, clocks, temperature, errors, other processes, and UCX's transports.

The counters are read before and after the samples of a step. Meanwhile a thread reads clocks and temperature every
20 ms, which does not affect the results (``docs/measurement.md``). NVML serializes its calls, and a read of the NVLink
counters takes most of a millisecond, so the bytes are counted at the GPU that issues the work and not at its peer.
"""

from __future__ import annotations

import math
import os
import re
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from egmctl.gpu.telemetry import COUNTERS, ClockState, Telemetry, Traffic
from egmctl.model.measurement import (
    COUNTED_AT_LEAST,
    NVLINK_COUNT,
    STRAY_AT_MOST,
    GpuEvidence,
    LinkEvidence,
    LinkProof,
    counted_bytes,
)
from egmctl.model.route import Egm, LinkKind, MemoryKind, UcxPath, UcxProtocol, UcxRoute, UcxStaging
from egmctl.model.task import Flow, Quantity, Task
from egmctl.units import parse_size

PERIOD_S = 0.02
"""The interval between two readings of the clocks."""

TELLING_BYTES = 64 << 20
"""The minimum number of bytes that prove a route. Other traffic, such as launches and flags, is almost as large."""


class LinkCounters:
    """The observer of a run's GPUs, step by step.

    Parameters
    ----------
    telemetry
        The telemetry of all GPUs of the run.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self.ours = {os.getpid()}
        """The process ids of this run, which do not count as other processes."""
        self._labels: dict[str, str] = {}
        self._told_lost: set[str] = set()

    @contextmanager
    def watch(self, tasks: Sequence[Task]) -> Iterator[Watch]:
        """Observe the GPUs of a step's tasks during a ``with`` block that takes the samples."""
        self._labels |= gpu_labels(tasks)
        watch = Watch(self._telemetry, tasks, self.ours)
        over = threading.Event()
        thread = threading.Thread(target=watch.look, args=(over,), daemon=True)
        watch.begin()
        thread.start()
        try:
            yield watch
        finally:
            over.set()
            thread.join()
            watch.end()

    def new_losses(self) -> str | None:
        """Return a sentence on the GPUs that NVML has lost since the last call; ``None`` if none."""
        new = self._telemetry.lost.keys() - self._told_lost
        self._told_lost |= new
        lost = (
            f"NVML lost {self._labels.get(bus_id, bus_id)} during the bench: {reason}"
            for bus_id, reason in self._telemetry.lost.items()
            if bus_id in new
        )
        return "; ".join(lost) or None


class Watch:
    """The observations of the GPUs during one step."""

    def __init__(self, telemetry: Telemetry, tasks: Sequence[Task], ours: Collection[int]) -> None:
        self._telemetry = telemetry
        self.unread = telemetry.why_not
        """The reason why NVML is not used."""
        self._ours = ours
        self._tasks = tasks
        flows = [flow for task in tasks for flow in task.flows]
        self._gpus = [bus_id for bus_id in gpu_labels(tasks) if telemetry.knows(bus_id)]
        links = (link for flow in flows for link in (flow.route.first_link, _telling(flow)[0]))
        self._expected = {link for link in links if link is not None}
        # C2C has no counters: those of the other links show by exclusion whether the bytes took it.
        others_tell = LinkKind.C2C in self._expected or any(map(_of_another_gpu, flows))
        self._links = {LinkKind.NVLINK, LinkKind.PCIE} if others_tell else self._expected
        counted = {flow.initiator for flow in flows}
        if LinkKind.NVLINK in self._links:
            # Bytes that the owner of EGM memory sends to another GPU of its CPU also go over the owner's NVLinks.
            counted |= {end.allocated_by for flow in flows for end in (flow.source, flow.destination)}
        self._counted = [bus_id for bus_id in self._gpus if bus_id in counted]
        self._before: dict[str, Traffic] = {}
        self._counting = threading.Lock()
        self.traffic: dict[str, Traffic] = {}
        self._states: dict[str, list[ClockState]] = {bus_id: [] for bus_id in self._gpus}
        self._errors: dict[str, dict[str, int]] = {}
        self._process_ids: dict[str, tuple[int, ...] | None] = {}

    def begin(self) -> None:
        """Read the counters before the first sample."""
        self._before = {bus_id: self._telemetry.traffic(bus_id, self._links) for bus_id in self._counted}

    def look(self, over: threading.Event) -> None:
        """Read clocks, temperature and PCIe counters at intervals: the body of a thread."""
        while not over.wait(PERIOD_S):
            for bus_id in self._gpus:
                self._states[bus_id].append(self._telemetry.state(bus_id))
            self.count()

    def count(self) -> None:
        """Count the bytes over PCIe since the last call. The engines call this between samples.

        The thread alone is sometimes late: on H200 some steps missed exactly one wrap of the counter, 4 GiB.
        """
        for bus_id in self._counted if LinkKind.PCIE in self._links else ():
            self._count(bus_id, [LinkKind.PCIE])

    def end(self) -> None:
        """Read counters, errors and processes after the last sample."""
        for bus_id in self._counted:
            self._count(bus_id, self._links)
        for bus_id in self._gpus:
            if not self._states[bus_id]:
                self._states[bus_id].append(self._telemetry.state(bus_id))
            self._errors[bus_id] = self._telemetry.new_errors(bus_id, self._expected)
            self._process_ids[bus_id] = self._telemetry.process_ids(bus_id)

    def seen(self, own: Iterable[str]) -> tuple[GpuEvidence, ...]:
        """Return the observations of the GPUs in ``own``, those of this process."""
        return tuple(self._gpu(bus_id, label) for bus_id, label in gpu_labels(self._tasks).items() if bus_id in own)

    def _count(self, bus_id: str, links: Iterable[str]) -> None:
        """Add the increase of the counters. PCIe's must be read often enough to see every wrap."""
        with self._counting:
            now = self._telemetry.traffic(bus_id, links)
            before = self._before[bus_id]
            self.traffic[bus_id] = self.traffic.get(bus_id, Traffic()) + now.since(before)
            self._before[bus_id] = Traffic(
                {**before.sent_bytes, **now.sent_bytes}, {**before.received_bytes, **now.received_bytes}
            )

    def _gpu(self, bus_id: str, label: str) -> GpuEvidence:
        states = self._states.get(bus_id, [])
        traffic = self.traffic.get(bus_id, Traffic())
        reasons = [state.throttle_reasons for state in states if state.throttle_reasons is not None]
        pids = self._process_ids.get(bus_id)

        def known(name: str) -> list[int]:
            return [value for state in states if (value := getattr(state, name)) is not None]

        return GpuEvidence(
            bus_id=bus_id,
            label=label,
            sm_clock_mhz=min(known("sm_clock_mhz"), default=None),
            memory_clock_mhz=min(known("memory_clock_mhz"), default=None),
            throttle_reasons=tuple(sorted(set().union(*reasons) - {"idle"})) if reasons else None,
            temperature_c=max(known("temperature_c"), default=None),
            sent_bytes=traffic.sent_bytes,
            received_bytes=traffic.received_bytes,
            errors=self._errors.get(bus_id, {}),
            other_processes=None if pids is None else tuple(pid for pid in pids if pid not in self._ours),
        )


def link_evidence(task: Task, samples: int, rises: Mapping[str, Traffic]) -> LinkEvidence | None:
    """Return whether the bytes of a bandwidth took the expected link; ``None`` if counters cannot show this.

    Parameters
    ----------
    samples
        The number of samples.
    rises
        The increase of the counters, by GPU.
    """
    size_bytes = samples * task.copies * task.size_bytes
    telling = [_telling(flow) for flow in task.flows]
    links = {link for link, _ in telling if link is not None}
    if task.quantity is not Quantity.BANDWIDTH or len(links) != 1:
        return None
    (link,) = links
    expected: dict[tuple[str, bool], int] = defaultdict(int)
    for flow, (_, sent) in zip(task.flows, telling, strict=True):
        if flow.initiator is not None:
            expected[flow.initiator, sent] += size_bytes
    total = sum(expected.values())
    if total < TELLING_BYTES:
        return None
    carried = {name: _carried(expected, rises, name) for name in (LinkKind.NVLINK, LinkKind.C2C, LinkKind.PCIE)}
    link, verdict = _proof(task, link, carried, total)
    older = all(link in _way(rises, gpu, sent) for gpu, sent in expected)
    counters = link if older else NVLINK_COUNT
    fields = None if carried[link] is None else _FIELDS[counters]
    if verdict is LinkProof.REFUTED and fields == _FIELDS[NVLINK_COUNT]:
        # No GPU was seen yet on which these counters answer: that they stand still refutes nothing.
        verdict = LinkProof.UNKNOWN
    return LinkEvidence(link=link, expected_bytes=total, carried_bytes=carried[link], verdict=verdict, fields=fields)


_FIELDS = {name: f"{sent}/{received}" for fields in COUNTERS.values() for name, (sent, received, _) in fields.items()}


def _proof(
    task: Task, link: LinkKind, carried: Mapping[LinkKind, int | None], total: int
) -> tuple[LinkKind, LinkProof]:
    """Return the link that carried the bytes of a task, according to the counters, and how far they prove it."""

    def took(name: LinkKind) -> bool:
        return (carried[name] or 0) >= COUNTED_AT_LEAST * total

    counted = (LinkKind.NVLINK, LinkKind.PCIE)
    if link is LinkKind.C2C and all(map(_owner_unknown, task.flows)) and took(LinkKind.NVLINK):
        # EGM memory belongs to one GPU of its CPU, and libcuda does not say which: the other GPU goes over NVLink to it
        # (egmctl.topology.routes). So may managed memory, which UVM routes. The counters tell.
        return LinkKind.NVLINK, LinkProof.PROVEN
    if all(map(_of_another_gpu, task.flows)) and all(
        (rise := carried[name]) is not None and rise <= STRAY_AT_MOST * total for name in counted
    ):
        # It does not belong to the GPU under which it was allocated: what is left is the reader's own C2C.
        return LinkKind.C2C, LinkProof.BY_EXCLUSION
    if any(flow.route.degraded for flow in task.flows):
        # The link is not known beforehand.
        for name in counted:
            if took(name):
                return name, LinkProof.PROVEN
    if carried[link] is not None:
        return link, LinkProof.PROVEN if took(link) else LinkProof.REFUTED
    if any((rise := carried[name]) is not None and rise > STRAY_AT_MOST * total for name in carried if name != link):
        return link, LinkProof.REFUTED
    by_exclusion = link is LinkKind.C2C and all(carried[name] is not None for name in counted)
    return link, LinkProof.BY_EXCLUSION if by_exclusion else LinkProof.UNKNOWN


def _telling(flow: Flow) -> tuple[LinkKind | None, bool]:
    """Return the link of the initiator whose counters count the bytes, and whether the bytes leave the GPU over it.

    It is the first link of the route. For copies between host memories through a GPU with NVLink it is NVLink, because
    C2C on the other side has no counters. The bytes arrive over the first hop.
    """
    links = [hop.link for hop in flow.route.hops]
    if flow.through_gpu and LinkKind.NVLINK in links:
        return LinkKind.NVLINK, links.index(LinkKind.NVLINK) > 0
    return flow.route.first_link, flow.sent


def _owner_unknown(flow: Flow) -> bool:
    """Return whether a flow is between a GPU and EGM of its own CPU, or managed memory that may be EGM."""
    if flow.route.egm is Egm.YES:
        return all(hop.link is LinkKind.C2C for hop in flow.route.hops)
    return flow.route.memory is MemoryKind.MANAGED and flow.route.egm is Egm.UNKNOWN


def _of_another_gpu(flow: Flow) -> bool:
    """Return whether a flow's EGM was allocated under a GPU other than the initiator and should be behind NVLink."""
    owners = {end.allocated_by for end in (flow.source, flow.destination) if end.allocated_by is not None}
    return flow.route.egm is Egm.YES and bool(owners - {flow.initiator})


def _carried(expected: Mapping[tuple[str, bool], int], rises: Mapping[str, Traffic], link: str) -> int | None:
    """Return the increase of a link's counters, summed over all GPUs; ``None`` if one is missing."""
    increases = [counted_bytes(_way(rises, bus_id, sending), link) for bus_id, sending in expected]
    known = [increase for increase in increases if increase is not None]
    return sum(known) if len(known) == len(increases) else None


def _way(rises: Mapping[str, Traffic], bus_id: str, sending: bool) -> Mapping[str, int]:
    traffic = rises.get(bus_id, Traffic())
    return traffic.sent_bytes if sending else traffic.received_bytes


def gpu_labels(tasks: Iterable[Task]) -> dict[str, str]:
    """Return the labels of all GPUs of some tasks, by bus id."""
    labels: dict[str, str] = {}
    for flow in (flow for task in tasks for flow in task.flows):
        if flow.initiator is not None:
            labels[flow.initiator] = flow.initiator_label
        for end in (flow.source, flow.destination):
            if end.bus_id is not None:
                labels[end.bus_id] = end.label
            if end.allocated_by is not None and end.allocated_by_label is not None:
                labels.setdefault(end.allocated_by, end.allocated_by_label)
    return labels


_RDMA = ("rc", "dc", "ud", "gga", "srd")
"""The first parts of the names of InfiniBand and RoCE transports, e.g. of ``rc_mlx5`` (``ucx_info -d`` lists them)."""
OVER_NETWORK = (UcxRoute.GPUDIRECT_RDMA, UcxRoute.RDMA_STAGED, UcxRoute.RDMA, UcxRoute.TCP)
_CARRIERS: Mapping[UcxRoute, frozenset[str]] = {
    UcxRoute.CUDA_IPC: frozenset({"cuda_ipc"}),
    UcxRoute.TCP: frozenset({"tcp"}),
    UcxRoute.SHARED_MEMORY: frozenset({"posix", "sysv", "cma", "knem", "xpmem"}),
}
"""The transports of each route without RDMA, in order of precedence."""
_SENDING = "tagged message by ucp_tag_send*"
_GUESS = "(?)"
_COUNT = re.compile("[0-9]{1,18}", re.ASCII)
_FRAGMENTS_ON_GPU = re.compile(r"\bfrag cuda\b")
_COPIES = re.compile(r"cuda_copy|gdr_copy|copy-in|copy-out|\bfrag\b|fragmented")
"""The pattern of protocols that copy: through fragments on a GPU, if named, else through host memory."""
_UNPACKS = re.compile(r"\b(?:cuda|gdr)_copy, frag \w+$")


def parse_protocols(text: str, rank: int) -> Iterator[UcxProtocol]:
    """Yield every line of the protocol tables in UCX's report.

    Parameters
    ----------
    rank
        The rank that reports.
    """
    operation = ""
    line: UcxProtocol | None = None
    for cells in _rows(text):
        if len(cells) == 1:
            operation = cells[0]
        elif len(cells) == 4 and _COUNT.fullmatch(cells[0]):
            if line is not None:
                yield line
            count, sizes, description, transports = cells
            line = UcxProtocol(rank, operation, sizes, description, transports, int(count))
        elif len(cells) == 4 and not cells[0] and line is not None:
            # Another lane of the line above.
            line = replace(
                line,
                description=" ".join(filter(None, (line.description, cells[2]))),
                transports=", ".join(filter(None, (line.transports, cells[3]))),
            )
    if line is not None:
        yield line


def path_taken(
    task: Task,
    message_bytes: int,
    protocols: Sequence[UcxProtocol],
    version: str,
    components: Iterable[str],
    settings: Mapping[str, str],
) -> UcxPath:
    """Return the route that the messages of a task took.

    Parameters
    ----------
    message_bytes
        The size of one message.
    protocols
        The lines that both processes reported.
    """
    used = tuple(protocol for protocol in protocols if _was_used(protocol, message_bytes, _uncounted(task)))
    known = [protocol for protocol in used if not protocol.description.startswith(_GUESS)]
    by = "".join(f" {protocol.transports}" for protocol in known or used)
    transports = tuple(sorted(set(re.findall(r"\b([a-z][a-z0-9_]*/[\w:.-]+)", by))))
    names = {pair.partition("/")[0] for pair in transports}
    flow = task.flows[0]
    on_gpu = MemoryKind.DEVICE in (flow.source.memory, flow.destination.memory)
    staging = _staging(known or used, [protocol for protocol in used if protocol.rank == flow.destination.rank], on_gpu)
    if any(map(_is_rdma, names)):
        if not on_gpu:
            route = UcxRoute.RDMA
        elif staging is UcxStaging.HOST:
            route = UcxRoute.RDMA_STAGED
        else:
            route = UcxRoute.GPUDIRECT_RDMA
    else:
        route = next((route for route, carriers in _CARRIERS.items() if names & carriers), UcxRoute.UNKNOWN)
    guessed = "; the receiver's report is missing; this is what the sender expected" if used and not known else ""
    return UcxPath(
        route=route,
        staging=staging,
        verdict=_verdict(route, staging, on_gpu, transports) + guessed,
        transports=transports,
        protocols=used,
        version=version,
        components=tuple(components),
        settings=dict(settings),
    )


def network_devices(devices: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the RDMA ports among a process' devices (by transport); if there are none, its network interfaces."""
    nics = [name for transport, names in devices.items() if _is_rdma(transport) for name in names]
    return list(dict.fromkeys(nics or devices.get("tcp", ())))


def _is_rdma(transport: str) -> bool:
    return transport.split("_")[0] in _RDMA


def _staging(known: Sequence[UcxProtocol], received: Sequence[UcxProtocol], on_gpu: bool) -> UcxStaging | None:
    """Return where bytes were staged, by the descriptions of known protocols and by how the receiver unpacks."""
    described = [protocol.description for protocol in known]
    copying = [text for text in described if _COPIES.search(text)]
    copying += [protocol.description for protocol in received if _UNPACKS.search(protocol.description)]
    if on_gpu and any(not _FRAGMENTS_ON_GPU.search(text) for text in copying):
        return UcxStaging.HOST
    return UcxStaging.GPU if any(map(_FRAGMENTS_ON_GPU.search, copying)) else None


def _verdict(route: UcxRoute, staging: UcxStaging | None, on_gpu: bool, transports: Sequence[str]) -> str:
    by = ", ".join(transports) or "no transport in its report"
    detour = {
        UcxStaging.HOST: ", copied through host memory",
        UcxStaging.GPU: ", through fragments of GPU memory",
        None: "",
    }[staging]
    not_direct = "no GPUDirect RDMA: " if on_gpu else ""
    sentences = {
        UcxRoute.GPUDIRECT_RDMA: f"GPUDirect RDMA in use: the NIC reads and writes GPU memory{detour}",
        UcxRoute.RDMA_STAGED: "no GPUDirect RDMA: RDMA staged through host memory",
        UcxRoute.RDMA: f"RDMA between host memories{detour}",
        UcxRoute.CUDA_IPC: f"CUDA IPC within the node, no NIC and no GPUDirect RDMA{detour}",
        UcxRoute.TCP: f"{not_direct}TCP{detour}",
        UcxRoute.SHARED_MEMORY: f"{not_direct}shared memory within the node{detour}",
    }
    return f"{sentences[route]} ({by})" if route in sentences else "UCX's report does not name the transport"


def _was_used(protocol: UcxProtocol, message_bytes: int, uncounted: Collection[int]) -> bool:
    """Return whether the measured messages used the protocol of a line."""
    if not protocol.transports:
        return False
    if not protocol.operation.startswith(_SENDING):
        return protocol.messages > 0
    short = protocol.rank in uncounted and protocol.operation.endswith("host memory")
    return _holds(protocol.sizes, message_bytes) and (protocol.messages > 0 or short)


def _uncounted(task: Task) -> Collection[int]:
    """Return the ranks that send from host memory, where UCX does not count the shortest messages."""
    source, destination = task.flows[0].source, task.flows[0].destination
    senders = (source, destination) if task.quantity is Quantity.LATENCY else (source,)
    return {end.rank for end in senders if end.rank is not None and end.memory is not MemoryKind.DEVICE}


def _holds(sizes: str, size: int) -> bool:
    """Return whether a range of UCX contains a size: ``8``, ``2K..64K`` or ``1M..inf``."""
    first, _, last = sizes.partition("..")
    with suppress(ValueError):
        return parse_size(first) <= size <= (math.inf if last == "inf" else parse_size(last or first))
    return False


def _rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        _, bar, rest = line.partition("|")
        if not bar or not rest.rstrip().endswith("|"):
            continue
        cells = [cell.strip() for cell in rest.rstrip()[:-1].split("|")]
        if len(cells) == 2:
            del cells[0]
        elif len(cells) == 3:
            count, _, sizes = cells[0].partition(" ")
            cells[:1] = [count, sizes.strip()]
        yield cells
