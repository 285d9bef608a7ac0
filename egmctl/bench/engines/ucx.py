"""One rank's part in messages that UCX carries: sender with the clock, receiver that looks at every byte, or none."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from typing import Any

from egmctl.bench.buffers import Buffer, Window, assign, window
from egmctl.bench.engines.round_trips import WARM_UP_LAPS
from egmctl.bench.engines.transfer import OwnBuffer
from egmctl.bench.evidence import OVER_NETWORK, network_devices, parse, path_of
from egmctl.bench.plan.task import SAMPLE_S
from egmctl.bench.processes.collective import CollectiveStep, Item
from egmctl.bench.processes.context import WorkerContext
from egmctl.bench.results import (
    bandwidth_sample,
    describe,
    mismatch_of,
    of_bandwidth,
    of_latency,
    round_trips,
    summarize,
)
from egmctl.errors import DriverCallError
from egmctl.gpu.context import Context
from egmctl.gpu.memory import HostNumaMemory
from egmctl.gpu.pattern import Difference
from egmctl.gpu.ucx import Link, NoUcx, RegisteredMemory, RemoteMemory, settings, taken_for
from egmctl.model.codec import from_json, to_json
from egmctl.model.finding import WaiverKind
from egmctl.model.measurement import (
    Engine,
    Measurement,
    MemoryKind,
    Mismatch,
    Phase,
    Placement,
    Sample,
    Settings,
    Stage,
    Task,
    Verification,
    waived,
)
from egmctl.model.ucx import UcxDevice, UcxProtocol

IN_FLIGHT = 16
"""Messages that are under way at the same time."""
WARM_UP_MESSAGES = 4
WARM_UP_BYTES = 256 << 20
"""Before the first sample, twice: so many messages at most, and one at least; TCP takes half a second for these."""
MESSAGES_LIMIT = 4096
"""The most messages in one sample, however short they are."""
SETTLE_S = 5.0
"""How long what is under way may take to end after a failure."""
_DATA, _ANSWER = 1, 2
"""Tags."""


class Side:
    """This rank's part in one task; it may have none."""

    def __init__(
        self, collective: CollectiveStep, worker: WorkerContext, task: Task, options: Mapping[str, str]
    ) -> None:
        self.task = task
        self.devices: list[str] = []
        """The sender's network devices, once all have told what they know."""
        self.samples: list[Sample] = []
        self.mismatch: Mismatch | None = None
        self.missing: str | None = None
        """Why UCX cannot be used."""
        self.seed = 0
        self._collective = collective
        self._worker = worker
        self._options = options
        self._flow = task.flows[0]
        self._sender, self._receiver = self._flow.source.rank or 0, self._flow.destination.rank or 0
        self._clock = self._flow.initiator_rank or 0
        """The rank that issues and times the work: the receiver of a get, else the sender."""
        self._me = collective.exchange.rank
        self._sends, self._receives = self._me == self._sender, self._me == self._receiver
        self._link: Link | None = None
        self._registered: RegisteredMemory | None = None
        self._remote: RemoteMemory | None = None
        self._stages_ms: dict[str, float] = {}
        ((self._buffers,),) = assign([task])
        self._source: OwnBuffer | None = None
        self._destination: OwnBuffer | None = None
        self._arrays: list[Any] = []
        self._part = Window(0, 1, task.size_bytes)

    @property
    def _own(self) -> Buffer:
        """This side's buffer."""
        buffer = self._buffers.source if self._sends else self._buffers.destination
        if buffer is None:
            raise ValueError(f"{self.task.case}: messages go from memory to memory")
        return buffer

    def connect(self) -> None:
        """Make the memory and the link."""

        def offer(_: int) -> dict[str, Any] | None:
            if not (self._sends or self._receives):
                return None
            stream = self._worker.stream(self._collective.ranks[self._me].bus_id)
            stream.context.make_current()
            try:
                self._link = Link(self._options if self._issues else {}, one_sided=self._one_sided)
            except NoUcx as why:
                return {"missing": str(why)}
            self._make_memory(stream.context)
            return {"address": self._link.address.hex(), "seed": self._worker.held(self._own).seed}

        offers = self._collective.do(offer)[0]
        if not offers or self._collective.outcomes[0] is not None:
            return
        self.missing = next((item.data["missing"] for item in offers if item.data and "missing" in item.data), None)
        if self.missing is not None:
            return
        self.seed = offers[self._sender].data["seed"]
        self._collective.do(lambda _: self._open(offers))
        if self._one_sided:
            keys = self._collective.do(lambda _: self._register())[0]
            self._collective.do(lambda _: self._unpack(keys))

    @property
    def _one_sided(self) -> bool:
        return self.task.engine is not Engine.UCX

    @property
    def _issues(self) -> bool:
        return self._me == self._clock

    def _register(self) -> dict[str, Any] | None:
        """Register this side's memory, whichever side reaches the other's."""
        if self._link is None:
            return None
        memory = self._worker.held(self._own).memory
        self._registered = self._link.register(memory.address, memory.size_bytes)
        return {"key": self._registered.key.hex(), "address": memory.address}

    def _unpack(self, keys: Sequence[Item]) -> None:
        """Take the key to the other side's memory, if this is the one that puts or gets."""
        if self._link is None or not self._issues or self._collective.outcomes[0] is not None:
            return
        other = keys[self._receiver if self._sends else self._sender].data
        self._remote = self._link.remote(bytes.fromhex(other["key"]), other["address"])

    def _make_memory(self, context: Context) -> None:
        """Make HOST_NUMA memory so that the GPU that UCX takes it for can copy it too."""
        end = self._own.end
        if end.memory is not MemoryKind.HOST_NUMA or end.numa_node is None or self._worker.has(self._own):
            return
        other = taken_for(end.numa_node, context)
        if other is not None:
            memory = HostNumaMemory(end.numa_node, self._own.size_bytes, [context, self._worker.one_more(other)])
            self._worker.adopt(self._own, memory, self._worker.new_seed())
            context.make_current()

    def _open(self, offers: Sequence[Item]) -> None:
        if self._link is None:
            return
        self._link.connect(bytes.fromhex(offers[self._receiver if self._sends else self._sender].data["address"]))
        stream = self._worker.stream(self._collective.ranks[self._me].bus_id)
        held = self._worker.held(self._own)
        if self._sends:
            # Of a round trip both ends are written: the one that sends first may have received in the task before.
            held.filled_bytes = 0
            self._source = OwnBuffer(self._worker, held, stream, self.seed)
            self._source.fill(Window(0, 1, held.memory.size_bytes))
        else:
            self._destination = OwnBuffer(self._worker, held, stream, self.seed)
        stream.synchronize()

    def warm_up(self) -> None:
        """Move a little, and settle how many messages make a sample."""
        if self.task.chase is not None:
            # What UCX does with short messages it prints only where a longer one was sent.
            self._exchange(Window(0, 1, self.task.size_bytes), 1)
            self._collective.do(lambda _: self._laps(WARM_UP_LAPS))
            return
        count = max(1, min(WARM_UP_MESSAGES, WARM_UP_BYTES // self.task.size_bytes))
        for _ in range(2):
            timed = self._exchange(window(self.task.size_bytes, count, 0), count)
        if self._collective.outcomes[0] is None:
            each_s = timed[self._clock].data / count
            self.task = replace(self.task, copies=max(1, min(MESSAGES_LIMIT, math.ceil(SAMPLE_S / each_s))))

    def sample(self, number: int) -> None:
        """Take one sample, and look at what came of it."""
        chase = self.task.chase
        if chase is None:
            part = window(self.task.size_bytes, self.task.copies, number)
            timed = self._exchange(part, self.task.copies)
        else:
            part = Window(0, 1, chase.stride_bytes)
            self._collective.do(lambda _: self._aim(part))
            timed = self._collective.do(lambda _: self._laps(chase.loads))[0]
        with self._worker.stopwatch.phase(Phase.VERIFYING):
            checked = self._collective.do(lambda _: self._check(part))[0]
        if self._collective.outcomes[0] is not None:
            return
        taken = timed[self._clock].data
        self.samples.append(
            round_trips(taken, sum(taken) / 1e6)
            if chase
            else bandwidth_sample(self.task, taken * 1e3, [taken * 1e3], taken * 1e3)
        )
        if (wrong := checked[self._receiver].data) is not None and self.mismatch is None:
            self.mismatch = mismatch_of(Difference(*wrong), number, 0)

    def conclude(self, told: Sequence[Item]) -> Measurement:
        """Return the measurement; what each rank has told is the same everywhere."""
        data = [item.data for item in told if item.data]
        first = told[self._clock].data
        self.devices = first["devices"]
        chase = self.task.chase
        path = path_of(
            self.task,
            self.task.size_bytes if chase is None else chase.stride_bytes,
            [from_json(UcxProtocol, protocol) for rank_data in data for protocol in rank_data["protocols"]],
            first["version"],
            [name for name in first["components"] if all(name in rank_data["components"] for rank_data in data)],
            first["settings"],
        )
        route = replace(self._flow.route, ucx=path.route)
        task = replace(self.task, flows=(replace(self._flow, route=route),))
        more: dict[str, Any] = {
            "ucx": path,
            "placements": tuple(
                from_json(Placement, placement) for rank_data in data for placement in rank_data["placements"]
            ),
            "verification": Verification.GPU_EVERY_SAMPLE,
            "seeds": (self.seed,),
            "stages": _stages(data),
        }
        if chase is None:
            return of_bandwidth(task, self.samples, self.mismatch, **more)
        wrong = describe(self.mismatch, task) if self.mismatch is not None else None
        return of_latency(task, self.samples, wrong, mismatch=self.mismatch, **more)

    def told(self) -> dict[str, Any] | None:
        """End the link; return what this rank alone knows."""
        if self._link is None:
            return None
        known = {
            "version": self._link.version,
            "components": self._link.components,
            "devices": network_devices(self._link.devices),
            "settings": settings(),
        }
        report = self.close()
        return known | {
            "stages_ms": self._stages_ms,
            "protocols": [to_json(protocol) for protocol in parse(report, self._me)],
            "placements": [to_json(placement) for placement in self._worker.placements([self._own])],
        }

    def close(self) -> str:
        """Let go of the link, if it is there; return UCX's report."""
        self._arrays = []
        self._let_go()
        link, self._link = self._link, None
        return "" if link is None else link.close()

    def _let_go(self) -> None:
        """Give back what one-sided messages took, the other side's before this one's own."""
        remote, self._remote = self._remote, None
        registered, self._registered = self._registered, None
        if remote is not None:
            self._stages_ms |= remote.stages_ms
            remote.close()
        if registered is not None:
            registered.close()
            self._stages_ms |= registered.stages_ms

    def _exchange(self, part: Window, count: int) -> list[Item]:
        """Have all prepare, then move so many messages; return what each rank gives: the sender the seconds."""
        self._collective.do(lambda _: self._aim(part))
        return self._collective.do(lambda _: self._pass(count))[0]

    def _aim(self, part: Window) -> None:
        """Prepare to move the slots of a window: what is to be received there must not be there already."""
        if self._link is None:
            return
        held, end = self._worker.held(self._own), self._flow.source if self._sends else self._flow.destination
        if self._destination is not None:
            self._destination.poison(part)
            self._destination.stream.synchronize()
        start = held.memory.address + part.offset_bytes
        self._part = part
        self._arrays = [
            self._link.buffer(start + slot * part.slot_bytes, part.slot_bytes, on_gpu=end.memory is MemoryKind.DEVICE)
            for slot in range(part.slots)
        ]

    def _check(self, part: Window) -> tuple[int, ...] | None:
        difference = self._destination.check(part)() if self._destination is not None else None
        return None if difference is None else astuple(difference)

    def _pass(self, count: int) -> float | None:
        """Move messages, a few at a time; return the seconds until the receiver has said that all are there."""
        link = self._link
        if link is None:
            return None
        if self._one_sided:
            return self._pass_one_sided(link, count)
        started = time.perf_counter()
        under_way: list[Any] = []
        for number in range(count):
            if len(under_way) == IN_FLIGHT:
                link.wait(under_way.pop(0))
            begin = link.send if self._sends else link.receive
            under_way.append(begin(self._arrays[number % len(self._arrays)], _DATA))
        link.wait(*under_way)
        link.wait(link.receive(link.word, _ANSWER) if self._sends else link.send(link.word, _ANSWER))
        return time.perf_counter() - started if self._sends else None

    def _pass_one_sided(self, link: Link, count: int) -> float | None:
        """Put or get, a few at a time; return the seconds until all bytes are where they are to be.

        The other side only makes UCX go on, which does by messages what the transport cannot do by itself.
        """
        remote = self._remote
        if remote is None:
            link.wait(link.receive(link.word, _ANSWER))
            return None
        try:
            return self._all_of(link, remote, count)
        finally:
            # Also after a failure: the other side would wait in vain, and its wait be taken for the cause.
            link.wait(link.send(link.word, _ANSWER))

    def _all_of(self, link: Link, remote: RemoteMemory, count: int) -> float:
        begin = remote.put if self._sends else remote.get
        own = self._worker.held(self._own).memory.address
        started = time.perf_counter()
        under_way: list[Any] = []
        try:
            for number in range(count):
                if len(under_way) == IN_FLIGHT:
                    link.wait(under_way[0])
                    del under_way[0]
                offset = self._part.offset_bytes + number % self._part.slots * self._part.slot_bytes
                under_way.append(begin(offset, own + offset, self._part.slot_bytes))
            link.wait(*under_way)
            if self._sends:
                link.wait(remote.flush())
        except BaseException:
            self._settle(link, remote, under_way)
            raise
        return time.perf_counter() - started

    def _settle(self, link: Link, remote: RemoteMemory, under_way: Sequence[Any]) -> None:
        """After a failure, wait until nothing uses the key; where that fails, the key is left to the process' end."""
        try:
            flush = remote.flush()
            with suppress(DriverCallError):
                # What went wrong is told by whoever called: here only the flush counts.
                link.wait(*under_way, flush, patience_s=SETTLE_S)
            flush.check_error()
        except DriverCallError:
            self._remote = None

    def _laps(self, count: int) -> list[float] | None:
        """Send a message to and fro; return the nanoseconds of each round trip."""
        link = self._link
        if link is None:
            return None
        message = self._arrays[0]
        laps: list[float] = []
        for _ in range(count):
            if self._sends:
                started = time.perf_counter_ns()
                link.wait(link.send(message, _DATA))
                link.wait(link.receive(message, _ANSWER))
                laps.append(time.perf_counter_ns() - started)
            else:
                link.wait(link.receive(message, _DATA))
                link.wait(link.send(message, _ANSWER))
        return laps if self._sends else None


_STAGES = ("register", "pack", "unpack", "deregister")


def _stages(all_data: Sequence[Mapping[str, Any]]) -> tuple[Stage, ...]:
    """Return what registering cost, of both sides' memory; UCX registers what it knows already at no cost."""
    costs = (
        (name, [rank_data["stages_ms"][name] for rank_data in all_data if name in rank_data["stages_ms"]])
        for name in _STAGES
    )
    return tuple(Stage(name=name, ms=summarize(ms)) for name, ms in costs if ms)


BY_DEVICE_BYTES = 64 << 20
"""Messages from this size on are measured by each network device too."""


def measure(worker: WorkerContext, tasks: Sequence[Task], settings: Settings) -> list[Measurement]:
    """Measure tasks one after the other."""
    measurements = []
    for task in tasks:
        side, measurement = _measure(CollectiveStep(worker, [task]), worker, task, settings.samples)
        if _tells_devices_apart(measurement):
            measurement = _with_devices(worker, task, side, measurement)
        measurements.append(measurement)
    return measurements


def _measure(
    collective: CollectiveStep,
    worker: WorkerContext,
    task: Task,
    samples: int,
    options: Mapping[str, str] | None = None,
) -> tuple[Side, Measurement]:
    side = Side(collective, worker, task, options or {})
    try:
        side.connect()
        if side.missing is not None:
            return side, waived(task, WaiverKind.UNSUPPORTED_ENGINE, side.missing)
        with worker.stopwatch.phase(Phase.WARM_UP):
            side.warm_up()
        with worker.stopwatch.phase(Phase.MEASURING):
            for number in range(samples):
                side.sample(number)
        told_items = collective.do(lambda _: side.told())[0]
    finally:
        # What cannot be given back here is so after a failure that is told already.
        with suppress(DriverCallError):
            side.close()
    (outcome,) = collective.outcomes
    return side, outcome or side.conclude(told_items)


def _tells_devices_apart(measurement: Measurement) -> bool:
    """Say whether messages are measured by each network device too: large ones, between memory of one kind."""
    source, destination = measurement.flows[0].source, measurement.flows[0].destination
    return (
        measurement.ucx is not None
        and measurement.ucx.route in OVER_NETWORK
        and measurement.bandwidth_gb_s is not None
        and measurement.size_bytes >= BY_DEVICE_BYTES
        and source.memory is destination.memory
    )


def _with_devices(worker: WorkerContext, task: Task, side: Side, measurement: Measurement) -> Measurement:
    """Return a measurement with what one sample reaches by each network device of the sender alone."""
    devices = []
    for name in side.devices if len(side.devices) > 1 else ():
        _, by_it = _measure(CollectiveStep(worker, [task]), worker, task, 1, {"NET_DEVICES": name})
        reached = by_it.bandwidth_gb_s
        devices.append(
            UcxDevice(
                name=name,
                bandwidth_gb_s=reached.median if reached else None,
                reason=by_it.reason,
                transports=by_it.ucx.transports if by_it.ucx else (),
            )
        )
    assert measurement.ucx is not None  # noqa: S101 - _tells_devices_apart has seen to it
    return replace(measurement, ucx=replace(measurement.ucx, devices=tuple(devices)))


MEASURE = {Engine.UCX: measure, Engine.UCX_PUT: measure, Engine.UCX_GET: measure}
