"""UCX messages, puts and gets between two ranks: bandwidth, round trips, and the route that UCX chose."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from egmctl.bench.buffers import Buffer, Window, assign_buffers, window
from egmctl.bench.engines.round_trips import WARM_UP_LAPS
from egmctl.bench.engines.transfer import OwnBuffer
from egmctl.bench.evidence import OVER_NETWORK, network_devices, parse_protocols, path_taken
from egmctl.bench.plan.task import SAMPLE_S
from egmctl.bench.processes.collective import CollectiveStep, Item
from egmctl.bench.processes.context import WorkerContext
from egmctl.bench.results import bandwidth_sample, describe, mismatch_of, of_bandwidth, of_latency, round_trips, stages
from egmctl.errors import DriverCallError
from egmctl.gpu.context import Context, ReleaseStack
from egmctl.gpu.memory import HostNumaMemory, MappedMemory
from egmctl.gpu.pattern import Difference
from egmctl.gpu.ucx import NoUcx, RemoteMemory, UcxConnection, UcxRequest, settings, taken_for
from egmctl.model.codec import from_json, to_json
from egmctl.model.finding import WaiverKind
from egmctl.model.measurement import Measurement, Mismatch, Phase, Placement, Sample, Settings, Verification, waived
from egmctl.model.route import MemoryKind, UcxDevice, UcxPath, UcxProtocol
from egmctl.model.task import Engine, Task

IN_FLIGHT = 16
"""The number of messages in flight at the same time."""
WARM_UP_MESSAGES = 4
WARM_UP_BYTES = 256 << 20
"""The maximum size of all messages of one of the two warm-ups, unless one message is larger. TCP takes 0.5 s for it."""
MESSAGES_LIMIT = 4096
"""The maximum number of messages in one sample."""
SETTLE_S = 5.0
"""The time that messages in flight may take to end after a failure."""
_DATA, _ANSWER = 1, 2
"""The tags of messages."""


class Side:
    """This rank's part of one task. The receiver verifies every byte.

    Parameters
    ----------
    options
        The UCX configuration of the rank that issues the work.
    """

    def __init__(
        self, collective: CollectiveStep, worker: WorkerContext, task: Task, options: Mapping[str, str]
    ) -> None:
        self.task = task
        self.devices: list[str] = []
        """The issuing rank's network devices, known after :meth:`conclude`."""
        self._samples: list[Sample] = []
        self._mismatch: Mismatch | None = None
        self._seed = 0
        self._collective = collective
        self._worker = worker
        self._options = options
        self._flow = task.flows[0]
        self._sender, self._receiver = self._flow.source.rank or 0, self._flow.destination.rank or 0
        self._clock = self._flow.initiator_rank or 0
        """The rank that issues and times the work: the receiver for a get, else the sender."""
        self._me = collective.exchange.rank
        self._sends = self._me == self._sender
        self._issues = self._me == self._clock
        self._other = self._receiver if self._sends else self._sender
        self._one_sided = task.engine is not Engine.UCX
        self._link: UcxConnection | None = None
        self._held = ReleaseStack()
        self._remote: RemoteMemory | None = None
        self._destination: OwnBuffer | None = None
        self._arrays: list[Any] = []
        self._part = Window(0, 1, task.size_bytes)

    @property
    def _own(self) -> Buffer:
        """The buffer of this side."""
        ((buffers,),) = assign_buffers([self.task])
        source, destination = buffers.there
        return source if self._sends else destination

    @property
    def _memory(self) -> MappedMemory:
        return self._worker.held(self._own).memory

    @property
    def _over(self) -> bool:
        """Whether the task has ended early in all ranks."""
        return self._collective.outcomes[0] is not None

    def _everywhere(self, work: Callable[[UcxConnection], Any]) -> list[Item]:
        """Run a function in the ranks with a link; return each rank's result. If the task has ended, nothing runs."""
        link = self._link
        return self._collective.do(lambda _: None if link is None else work(link))[0]

    def connect(self) -> None:
        """Allocate memory and connect the two sides."""
        (offers,) = self._collective.do(lambda _: self._offer())
        if self._over:
            return
        missing = next((item.data["missing"] for item in offers if item.data and "missing" in item.data), None)
        if missing is not None:
            self._collective.outcomes[0] = waived(self.task, WaiverKind.UNSUPPORTED_ENGINE, missing)
            return
        self._seed = offers[self._sender].data["seed"]
        keys = self._everywhere(lambda link: self._open(link, offers))
        if self._one_sided:
            self._everywhere(lambda link: self._unpack(link, keys))

    def _offer(self) -> dict[str, Any] | None:
        """Create the link and the memory; return the link's address and the seed, or why UCX cannot be used."""
        if self._me not in (self._sender, self._receiver):
            return None
        context = self._worker.own_stream.context
        context.make_current()
        try:
            self._link = UcxConnection(self._options if self._issues else {}, one_sided=self._one_sided)
        except NoUcx as error:
            return {"missing": str(error)}
        self._make_memory(context)
        return {"address": self._link.address.hex(), "seed": self._worker.held(self._own).seed}

    def _unpack(self, link: UcxConnection, keys: Sequence[Item]) -> None:
        """Unpack the key of the other side's memory if this rank issues the work."""
        if self._issues:
            other = keys[self._other].data
            self._remote = self._held.keep(link.remote(bytes.fromhex(other["key"]), other["address"]))

    def _make_memory(self, context: Context) -> None:
        """Allocate HOST_NUMA memory with access for the GPU that UCX takes it for."""
        end = self._own.end
        if end.memory is not MemoryKind.HOST_NUMA or end.numa_node is None or self._worker.has(self._own):
            return
        other = taken_for(end.numa_node, context)
        if other is not None:
            memory = HostNumaMemory(end.numa_node, self._own.size_bytes, [context, self._worker.one_more(other)])
            self._worker.adopt(self._own, memory, self._worker.new_seed())
            context.make_current()

    def _open(self, link: UcxConnection, offers: Sequence[Item]) -> dict[str, Any] | None:
        """Connect to the other side and prepare this side's memory; for puts and gets return its key and address."""
        link.connect(bytes.fromhex(offers[self._other].data["address"]))
        held = self._worker.held(self._own)
        own = OwnBuffer(self._worker, held, self._worker.own_stream, self._seed)
        if self._sends:
            # A round trip writes both ends, so the previous task may have overwritten this source.
            held.filled_bytes = 0
            own.fill(Window(0, 1, held.memory.size_bytes))
        else:
            self._destination = own
        self._worker.own_stream.synchronize()
        if not self._one_sided:
            return None
        registered = self._held.keep(link.register(held.memory.address, held.memory.size_bytes))
        return {"key": registered.key.hex(), "address": held.memory.address}

    def warm_up(self) -> None:
        """Warm up, and choose the number of messages of a sample."""
        if self.task.chase is not None:
            # UCX prints its protocol for short messages only if a longer one was sent.
            self._exchange(Window(0, 1, self.task.size_bytes), 1)
            self._everywhere(lambda link: self._laps(link, WARM_UP_LAPS))
            return
        count = max(1, min(WARM_UP_MESSAGES, WARM_UP_BYTES // self.task.size_bytes))
        for _ in range(2):
            timed = self._exchange(window(self.task.size_bytes, count, 0), count)
        if not self._over:
            each_s = timed[self._clock].data / count
            self.task = replace(self.task, copies=max(1, min(MESSAGES_LIMIT, math.ceil(SAMPLE_S / each_s))))

    def sample(self, number: int) -> None:
        """Take one sample and verify it."""
        chase = self.task.chase
        if chase is None:
            part = window(self.task.size_bytes, self.task.copies, number)
            timed = self._exchange(part, self.task.copies)
        else:
            part = Window(0, 1, chase.stride_bytes)
            self._everywhere(lambda link: self._aim(link, part))
            timed = self._everywhere(lambda link: self._laps(link, chase.loads))
        with self._worker.stopwatch.phase(Phase.VERIFYING):
            checked = self._everywhere(lambda _link: self._check(part))
        if self._over:
            return
        taken = timed[self._clock].data
        self._samples.append(
            round_trips(taken, sum(taken) / 1e6)
            if chase
            else bandwidth_sample(self.task, taken * 1e3, [taken * 1e3], taken * 1e3)
        )
        if (wrong := checked[self._receiver].data) is not None and self._mismatch is None:
            self._mismatch = mismatch_of(Difference(*wrong), number, 0)

    def conclude(self) -> Measurement:
        """Close the link; return the measurement, which is the same in all ranks."""
        items = self._everywhere(self._ended)
        outcome = self._collective.outcomes[0]
        if outcome is not None:
            return outcome
        data = [item.data for item in items if item.data]
        first = items[self._clock].data
        self.devices = first["devices"]
        chase = self.task.chase
        path = path_taken(
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
            "placements": tuple(from_json(Placement, each) for rank_data in data for each in rank_data["placements"]),
            "verification": Verification.GPU_EVERY_SAMPLE,
            "seeds": (self._seed,),
            "stages": stages(_STAGES, [rank_data["stages_ms"] for rank_data in data]),
        }
        if chase is None:
            return of_bandwidth(task, self._samples, self._mismatch, **more)
        wrong = describe(self._mismatch, task) if self._mismatch is not None else None
        return of_latency(task, self._samples, wrong, mismatch=self._mismatch, **more)

    def _ended(self, link: UcxConnection) -> dict[str, Any]:
        """Close the link; return this rank's data as JSON."""
        version, components, devices = link.version, link.components, network_devices(link.devices)
        protocols = parse_protocols(self.close(), self._me)
        return {
            "version": version,
            "components": components,
            "devices": devices,
            "settings": settings(),
            "stages_ms": link.stages_ms,
            "protocols": [to_json(protocol) for protocol in protocols],
            "placements": [to_json(placement) for placement in self._worker.placements([self._own])],
        }

    def close(self) -> str:
        """Destroy the remote key, deregister the memory and close the link; return UCX's report."""
        self._arrays = []
        self._held.close()
        link, self._link = self._link, None
        return "" if link is None else link.close()

    def _exchange(self, part: Window, count: int) -> list[Item]:
        """Prepare all ranks, then send the messages; return each rank's item, with the seconds of the issuing rank."""
        self._everywhere(lambda link: self._aim(link, part))
        return self._everywhere(lambda link: self._pass(link, count))

    def _aim(self, link: UcxConnection, part: Window) -> None:
        """Prepare the slots of a window. Overwrite the receiver's slots, so that old data cannot pass the check."""
        end = self._flow.source if self._sends else self._flow.destination
        if self._destination is not None:
            self._destination.poison(part)
            self._destination.stream.synchronize()
        start = self._memory.address + part.offset_bytes
        self._part = part
        self._arrays = [
            link.buffer(start + slot * part.slot_bytes, part.slot_bytes, on_gpu=end.memory is MemoryKind.DEVICE)
            for slot in range(part.slots)
        ]

    def _check(self, part: Window) -> Difference | None:
        return self._destination.check(part)() if self._destination is not None else None

    def _pass(self, link: UcxConnection, count: int) -> float | None:
        """Send or receive messages; return, on the sender, the seconds until the receiver has confirmed all."""
        if self._one_sided:
            return self._pass_one_sided(link, count)
        begin = link.send if self._sends else link.receive
        started = time.perf_counter()
        _in_flight(link, [], count, lambda number: begin(self._arrays[number % len(self._arrays)], _DATA))
        link.wait(link.receive(link.word, _ANSWER) if self._sends else link.send(link.word, _ANSWER))
        return time.perf_counter() - started if self._sends else None

    def _pass_one_sided(self, link: UcxConnection, count: int) -> float | None:
        """Put or get; return, on the issuing rank, the seconds until all bytes have arrived.

        The other side only progresses UCX, which emulates operations that the transport lacks by messages.
        """
        remote = self._remote
        if remote is None:
            link.wait(link.receive(link.word, _ANSWER))
            return None
        try:
            return self._all_of(link, remote, count)
        finally:
            # Also after a failure: otherwise the other side would time out, and that would be taken for the cause.
            link.wait(link.send(link.word, _ANSWER))

    def _all_of(self, link: UcxConnection, remote: RemoteMemory, count: int) -> float:
        transfer = remote.put if self._sends else remote.get
        own, part = self._memory.address, self._part

        def begin(number: int) -> UcxRequest:
            offset = part.offset_bytes + number % part.slots * part.slot_bytes
            return transfer(offset, own + offset, part.slot_bytes)

        started = time.perf_counter()
        under_way: list[Any] = []
        try:
            _in_flight(link, under_way, count, begin)
            if self._sends:
                link.wait(remote.flush())
        except BaseException:
            self._settle(link, remote, under_way)
            raise
        return time.perf_counter() - started

    def _settle(self, link: UcxConnection, remote: RemoteMemory, under_way: Sequence[Any]) -> None:
        """After a failure, wait until no operation uses the key; if this fails too, never destroy the key."""
        try:
            flush = remote.flush()
            with suppress(DriverCallError):
                # The caller raises the original error. Here only the flush matters.
                link.wait(*under_way, flush, patience_s=SETTLE_S)
            flush.check_error()
        except DriverCallError:
            remote.in_use = True

    def _laps(self, link: UcxConnection, count: int) -> list[float] | None:
        """Send a message back and forth; return, on the sender, the nanoseconds of each round trip."""
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


def _in_flight(link: UcxConnection, under_way: list[Any], count: int, begin: Callable[[int], Any]) -> None:
    """Begin ``count`` operations, at most :data:`IN_FLIGHT` at a time, and wait for all; those begun are in a list."""
    for number in range(count):
        if len(under_way) == IN_FLIGHT:
            link.wait(under_way[0])
            del under_way[0]
        under_way.append(begin(number))
    link.wait(*under_way)


_STAGES = ("register", "pack", "unpack", "deregister")
"""The stages of registration, of both sides' memory. UCX registers the same memory again at no cost."""

BY_DEVICE_BYTES = 64 << 20
"""The minimum message size for an additional measurement over each network device."""


def measure_messages(worker: WorkerContext, tasks: Sequence[Task], settings: Settings) -> list[Measurement]:
    """Measure tasks one after the other, some also over each network device."""
    measurements = []
    for task in tasks:
        measurement, devices = _measure(worker, task, settings.samples)
        path = measurement.ucx
        if path is not None and len(devices) > 1 and _tells_devices_apart(measurement, path):
            path = replace(path, devices=tuple(_by_device(worker, task, name) for name in devices))
            measurement = replace(measurement, ucx=path)
        measurements.append(measurement)
    return measurements


def _measure(
    worker: WorkerContext, task: Task, samples: int, options: Mapping[str, str] | None = None
) -> tuple[Measurement, Sequence[str]]:
    """Return the measurement of a task and the issuing rank's network devices."""
    side = Side(CollectiveStep(worker, [task]), worker, task, options or {})
    try:
        side.connect()
        with worker.stopwatch.phase(Phase.WARM_UP):
            side.warm_up()
        with worker.stopwatch.phase(Phase.MEASURING):
            for number in range(samples):
                side.sample(number)
        return side.conclude(), side.devices
    finally:
        # After a failure, which is reported already, the link may not close.
        with suppress(DriverCallError):
            side.close()


def _tells_devices_apart(measurement: Measurement, path: UcxPath) -> bool:
    """Return whether to measure also over each network device: large messages between memory of the same kind."""
    source, destination = measurement.flows[0].source, measurement.flows[0].destination
    return (
        path.route in OVER_NETWORK
        and measurement.bandwidth_gb_s is not None
        and measurement.size_bytes >= BY_DEVICE_BYTES
        and source.memory is destination.memory
    )


def _by_device(worker: WorkerContext, task: Task, name: str) -> UcxDevice:
    """Return the result of one sample in which the issuing rank uses only one network device."""
    measurement, _ = _measure(worker, task, 1, {"NET_DEVICES": name})
    reached, path = measurement.bandwidth_gb_s, measurement.ucx
    transports = path.transports if path else ()
    return UcxDevice(name, reached.median if reached else None, measurement.reason, transports)


MEASURE = {Engine.UCX: measure_messages, Engine.UCX_PUT: measure_messages, Engine.UCX_GET: measure_messages}
