"""What the GPUs show while they are measured: what watches them.

The counters are read before and after the samples of a step, and a thread looks at clocks and temperature meanwhile:
every 20 ms, which changes no number (``docs/measurement.md``). NVML answers one question after the other and takes most
of a millisecond for each about NVLink, so the bytes are counted at the GPU that issues the work, and not at its peer.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from egmctl.gpu.counters import GpuCounters, State, Traffic
from egmctl.model.evidence import COUNTED_AT_LEAST, STRAY_AT_MOST, GpuEvidence, LinkEvidence, Verdict
from egmctl.model.memory import MemoryKind
from egmctl.model.route import Egm, LinkKind
from egmctl.model.task import Flow, Quantity, Task

PERIOD_S = 0.02
"""Between two looks at the clocks."""

TELLING_BYTES = 64 << 20
"""Fewer bytes than this prove nothing: other traffic, such as launches and flags, is of that order of magnitude."""


class LinkCounters:
    """Watches GPUs in steps.

    Parameters
    ----------
    telemetry
        Of all GPUs of the run.
    """

    def __init__(self, telemetry: GpuCounters) -> None:
        self._telemetry = telemetry
        self.ours = {os.getpid()}
        """The processes of this run: they are not others."""
        self._labels: dict[str, str] = {}
        self._told_lost: set[str] = set()

    @contextmanager
    def watch(self, tasks: Iterable[Task]) -> Iterator[Watch]:
        """Watch the GPUs of the tasks of a step while their samples are taken."""
        tasks = tuple(tasks)
        self._labels |= gpus_of(tasks)
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
        """Say which GPUs NVML has lost since the last call; ``None`` where it has lost none."""
        new = {bus_id: why for bus_id, why in self._telemetry.lost.items() if bus_id not in self._told_lost}
        self._told_lost |= new.keys()
        told = [f"NVML lost {self._labels.get(bus_id, bus_id)} during the bench: {why}" for bus_id, why in new.items()]
        return "; ".join(told) or None


class Watch:
    """What is seen of the GPUs of one step."""

    def __init__(self, telemetry: GpuCounters, tasks: Sequence[Task], ours: Collection[int]) -> None:
        self._telemetry = telemetry
        self._ours = ours
        self._tasks = tasks
        flows = [flow for task in tasks for flow in task.flows]
        self._gpus = [bus_id for bus_id in gpus_of(tasks) if telemetry.knows(bus_id)]
        links = (link for flow in flows for link in (flow.route.first_link, _telling(flow).link))
        self._expected = {link for link in links if link is not None}
        # C2C has no counters: there those of the other kinds tell.
        others_tell = LinkKind.C2C in self._expected or any(map(_of_another_gpu, flows))
        self._links = {LinkKind.NVLINK, LinkKind.PCIE} if others_tell else self._expected
        counted = {flow.initiator for flow in flows}
        if LinkKind.NVLINK in self._links:
            # What the owner of EGM memory sends to another GPU of its CPU goes over its NVLinks too.
            counted |= {end.allocated_by for flow in flows for end in (flow.source, flow.destination)}
        self._counted = [bus_id for bus_id in self._gpus if bus_id in counted]
        self._before: dict[str, Traffic] = {}
        self._counting = threading.Lock()
        self.traffic: dict[str, Traffic] = {}
        self._states: dict[str, list[State]] = {bus_id: [] for bus_id in self._gpus}
        self._errors: dict[str, dict[str, int]] = {}
        self._process_ids: dict[str, tuple[int, ...] | None] = {}

    def begin(self) -> None:
        """Read what the counters stand at."""
        self._before = {bus_id: self._telemetry.traffic(bus_id, self._links) for bus_id in self._counted}

    def look(self, over: threading.Event) -> None:
        """Look at the GPUs now and then: the body of a thread."""
        while not over.wait(PERIOD_S):
            for bus_id in self._gpus:
                self._states[bus_id].append(self._telemetry.state(bus_id))
            self.count()

    def count(self) -> None:
        """Count what PCIe has carried since the last time; for whoever measures, between two samples.

        The thread alone looks too late now and then: on H200 some steps lacked just the 4 GiB of one more round.
        """
        for bus_id in self._counted if LinkKind.PCIE in self._links else ():
            self._count(bus_id, [LinkKind.PCIE])

    def end(self) -> None:
        """Read what the counters stand at now."""
        for bus_id in self._counted:
            self._count(bus_id, self._links)
        for bus_id in self._gpus:
            if not self._states[bus_id]:
                self._states[bus_id].append(self._telemetry.state(bus_id))
            self._errors[bus_id] = self._telemetry.new_errors(bus_id, self._expected)
            self._process_ids[bus_id] = self._telemetry.process_ids(bus_id)

    @property
    def unread(self) -> str | None:
        """Why nothing can be told."""
        return self._telemetry.why_not

    def seen(self, own: Iterable[str]) -> tuple[GpuEvidence, ...]:
        """Return what was seen of those GPUs that are this process' own."""
        return tuple(self._gpu(bus_id, label) for bus_id, label in gpus_of(self._tasks).items() if bus_id in own)

    def _count(self, bus_id: str, links: Iterable[str]) -> None:
        """Add what the counters rose by: that of PCIe often enough that it does not go round unseen."""
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
        return GpuEvidence(
            bus_id=bus_id,
            label=label,
            sm_clock_mhz=min((s.sm_clock_mhz for s in states if s.sm_clock_mhz is not None), default=None),
            memory_clock_mhz=min((s.memory_clock_mhz for s in states if s.memory_clock_mhz is not None), default=None),
            throttle_reasons=tuple(sorted({word for words in reasons for word in words} - {"idle"}))
            if reasons
            else None,
            temperature_c=max((s.temperature_c for s in states if s.temperature_c is not None), default=None),
            sent_bytes=traffic.sent_bytes,
            received_bytes=traffic.received_bytes,
            errors=self._errors.get(bus_id, {}),
            other_processes=None if pids is None else tuple(pid for pid in pids if pid not in self._ours),
        )


def route(task: Task, samples: int, rises: Mapping[str, Traffic]) -> LinkEvidence | None:
    """Say whether the bytes of a bandwidth took the expected link.

    Parameters
    ----------
    samples
        How many were taken.
    rises
        For each GPU that has counters, what these rose by.
    """
    size_bytes = samples * task.copies * task.size_bytes
    telling = [_telling(flow) for flow in task.flows]
    links = {one.link for one in telling if one.link is not None}
    if task.quantity is not Quantity.BANDWIDTH or len(links) != 1:
        return None
    (link,) = links
    expected: dict[tuple[str, bool], int] = defaultdict(int)
    for flow, one in zip(task.flows, telling, strict=True):
        if flow.initiator is not None:
            expected[flow.initiator, one.sent] += size_bytes
    total = sum(expected.values())
    if total < TELLING_BYTES:
        return None
    carried = {name: _carried(expected, rises, name) for name in (LinkKind.NVLINK, LinkKind.C2C, LinkKind.PCIE)}
    others = [carried[name] for name in carried if name != link]
    own = carried[link]
    if (
        link is LinkKind.C2C
        and (_is_egm(task) or _by_uvm(task))
        and (carried[LinkKind.NVLINK] or 0) >= COUNTED_AT_LEAST * total
    ):
        # EGM memory belongs to one GPU of its CPU, and libcuda does not say which: the other GPU goes over NVLink to it
        # (egmctl.topology.routes). So may managed memory, which UVM routes. The counters tell.
        nvlink = LinkKind.NVLINK
        return LinkEvidence(link=nvlink, expected_bytes=total, carried_bytes=carried[nvlink], verdict=Verdict.PROVEN)
    if all(map(_of_another_gpu, task.flows)) and all(
        (rise := carried[name]) is not None and rise <= STRAY_AT_MOST * total
        for name in (LinkKind.NVLINK, LinkKind.PCIE)
    ):
        # It does not belong to the GPU under which it was allocated: what is left is the reader's own C2C.
        return LinkEvidence(
            link=LinkKind.C2C, expected_bytes=total, carried_bytes=carried[LinkKind.C2C], verdict=Verdict.BY_EXCLUSION
        )
    if _is_degraded(task):
        # Nobody knows beforehand over which link it goes: the counters tell.
        for name in (LinkKind.NVLINK, LinkKind.PCIE):
            if (carried[name] or 0) >= COUNTED_AT_LEAST * total:
                return LinkEvidence(
                    link=name, expected_bytes=total, carried_bytes=carried[name], verdict=Verdict.PROVEN
                )
    if own is not None:
        verdict = Verdict.PROVEN if own >= COUNTED_AT_LEAST * total else Verdict.REFUTED
    elif any(other is not None and other > STRAY_AT_MOST * total for other in others):
        verdict = Verdict.REFUTED
    elif link is LinkKind.C2C and all(carried[name] is not None for name in (LinkKind.NVLINK, LinkKind.PCIE)):
        verdict = Verdict.BY_EXCLUSION
    else:
        verdict = Verdict.UNKNOWN
    return LinkEvidence(link=link, expected_bytes=total, carried_bytes=own, verdict=verdict)


class _Telling(NamedTuple):
    """The link of the initiator whose counters tell, and whether the bytes leave the GPU over it."""

    link: LinkKind | None
    sent: bool


def _telling(flow: Flow) -> _Telling:
    """Return the first link, or NVLink where a GPU carries bytes between host memory over it.

    C2C, which is at its other side, has no counters. Through a GPU, bytes come in over the first hop.
    """
    links = [hop.link for hop in flow.route.hops]
    if flow.through_gpu and LinkKind.NVLINK in links:
        return _Telling(LinkKind.NVLINK, links.index(LinkKind.NVLINK) > 0)
    return _Telling(flow.route.first_link, flow.sent)


def _is_egm(task: Task) -> bool:
    """Say whether all flows are between a GPU and EGM of its own CPU, or within that."""
    return all(
        flow.route.egm is Egm.YES and all(hop.link is LinkKind.C2C for hop in flow.route.hops) for flow in task.flows
    )


def _by_uvm(task: Task) -> bool:
    """Say whether all flows are between a GPU and managed memory that may be EGM."""
    return all(flow.route.memory is MemoryKind.MANAGED and flow.route.egm is Egm.UNKNOWN for flow in task.flows)


def _of_another_gpu(flow: Flow) -> bool:
    """Say whether a flow is expected to cross NVLink to another GPU of the CPU, under which its EGM was allocated."""
    owners = {end.allocated_by for end in (flow.source, flow.destination) if end.allocated_by is not None}
    return flow.route.egm is Egm.YES and bool(owners - {flow.initiator})


def _is_degraded(task: Task) -> bool:
    return any(flow.route.degraded for flow in task.flows)


def _carried(expected: Mapping[tuple[str, bool], int], rises: Mapping[str, Traffic], link: str) -> int | None:
    """Return what a link's counters rose by at all GPUs; ``None`` if one has no counter."""
    total = 0
    for bus_id, sending in expected:
        traffic = rises.get(bus_id, Traffic())
        rise = (traffic.sent_bytes if sending else traffic.received_bytes).get(link)
        if rise is None:
            return None
        total += rise
    return total


def gpus_of(tasks: Iterable[Task]) -> dict[str, str]:
    """Return the GPUs that take part in tasks, with their labels."""
    found: dict[str, str] = {}
    for flow in (flow for task in tasks for flow in task.flows):
        if flow.initiator is not None:
            found[flow.initiator] = flow.initiator_label
        for end in (flow.source, flow.destination):
            if end.bus_id is not None:
                found[end.bus_id] = end.label
            if end.allocated_by is not None and end.allocated_by_label is not None:
                found.setdefault(end.allocated_by, end.allocated_by_label)
    return found
