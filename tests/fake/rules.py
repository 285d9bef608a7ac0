"""What holds for the driver calls of every run, whatever is measured: rules over the fake driver's call log.

They stand in for a copy of the log: a change that makes other calls breaks none of them, one that times what it should
not, leaves bytes unread or gives memory back too early does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.fake.calls import Call, leaks

WAITS = {"cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cuStreamQuery", "cuEventQuery"}
WORK = {"cuLaunchKernel", "cuMemcpyAsync", "cuMemsetD32Async"}
BEHIND_A_GATE = WORK | {"cuCtxSetCurrent", "cuEventRecord", "cuStreamWaitEvent"}
"""All that may be called while a gate is closed: other calls may wait for the GPU, which waits for the gate."""
GIVEN_BACK = {
    "cuMemFree",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemUnmap",
    "cuMemHostUnregister",
    "cuIpcCloseMemHandle",
}
TAKEN = {
    "cuMemAlloc",
    "cuMemAllocManaged",
    "cuMemHostAlloc",
    "cuMemHostRegister",
    "cuMemMap",
    "cuMemAllocFromPoolAsync",
}
BY_THE_CPU = {"cuMemAllocManaged", "cuMemHostRegister"}
"""Memory that the CPU overwrites before a sample."""
IMPORTS = {"cuMemImportFromShareableHandle", "cuIpcOpenMemHandle", "cuMemPoolImportPointer"}
BROKEN_FOR_GOOD = {700, 702, 710, 714, 715, 716, 717, 718, 719}
"""Errors of CUDA after which no call on the context succeeds."""
CHANGES = re.compile(r"nvml\w*?(Set|Reset|Clear|Freeze|Inject|Modify)(?=[A-Z]|$)")
"""Names of NVML's functions that change a node."""
COPIES = {"copy_vectors", "copy_bulk"}
POISON = "3735928559"
"""What destinations are overwritten with before each sample: 0xDEADBEEF."""
UNKNOWN_SIZE = 1 << 27
"""As much as the longest import of a test."""


def broken(calls: Iterable[Call]) -> list[str]:
    """Return a sentence for each rule that the calls of a run broke, those of each process by themselves."""
    processes: dict[int, list[Call]] = {}
    for call in calls:
        processes.setdefault(call.pid, []).append(call)
    return [f"process {pid}: {fault}" for pid, made in processes.items() for fault in _process(made)] + leaks(
        call for made in processes.values() for call in made
    )


def _process(calls: list[Call]) -> Iterator[str]:
    yield from _reads_only(calls)
    cuda = [call for call in calls if call.name.startswith("cu")]
    yield from _after_a_broken_context(cuda)
    if any(call.result != 0 or call.injected or _is_impossible(call) for call in cuda):
        # A sample may have ended anywhere: what it left open is leaks' to tell.
        return
    watch = _Watch()
    for call in cuda:
        yield from watch.see(call)
    yield from watch.end()


def _is_impossible(call: Call) -> bool:
    """Say whether a time is none that there can be, as a fault plan has the driver answer."""
    return not 1e-6 < float(call.arguments.get("milliseconds", "1")) < 1e6


def _after_a_broken_context(calls: list[Call]) -> Iterator[str]:
    """Look for work after an error that ends a context; what the fault plan answers in its place ends none."""
    broken_by = None
    for call in calls:
        if broken_by is not None and call.name in WORK:
            yield f"{call.name} after {broken_by}, which broke the context"
        if call.result in BROKEN_FOR_GOOD and not call.injected:
            broken_by = f"{call.name} -> {call.result}"


def _reads_only(calls: list[Call]) -> Iterator[str]:
    names = {call.name for call in calls}
    for name in sorted(names):
        if CHANGES.match(name):
            yield f"{name} changes the node"
    if "cuDevicePrimaryCtxRetain" not in names:
        for name in sorted(names):
            if name.startswith(("cuMem", "cuStream", "cuEvent", "cuLaunch", "cuCtx")):
                yield f"it reads facts, and calls {name}"


@dataclass
class _Watch:
    """What one process has open and under way."""

    open: dict[int, int] = field(default_factory=dict)
    """The size of the memory at each address."""
    not_ours: set[int] = field(default_factory=set)
    """Memory that another process or the CPU overwrites and compares."""
    imported_allocations: set[str] = field(default_factory=set)
    under_way: dict[str, list[tuple[int, tuple[int, int]]]] = field(default_factory=dict)
    """What each stream may be reading or writing, with the number of the call."""
    after: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """Which streams each stream waits for, up to which call."""
    recorded: dict[str, tuple[str, int, bool, int]] = field(default_factory=dict)
    """Of each event: its stream, in which gate's sample, whether work was queued before it, and its number."""
    gate: int = 0
    """How many gates there were; the sample of a gate ends with the first call that waits."""
    gated: set[str] = field(default_factory=set)
    """The streams that the closed gate holds; empty without one."""
    worked: dict[str, int] = field(default_factory=dict)
    """The number of the last work in this sample of each stream."""
    number: int = 0
    overwritten: list[tuple[int, int]] = field(default_factory=list)
    """Destinations that were overwritten, and not compared since."""
    zeroed: list[tuple[int, int]] = field(default_factory=list)
    warmed: set[tuple[object, ...]] = field(default_factory=set)
    ungated: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The last work of each stream that a gate could have held, and none did."""
    on_devices: set[int] = field(default_factory=set)
    peers: bool = False
    """Whether a GPU has been given access to another's memory, and has it."""

    def see(self, call: Call) -> Iterator[str]:
        self.number += 1
        yield from self._memory(call)
        yield from self._gates(call)
        if call.name in WORK:
            yield from self._work(call)
        if call.name in WAITS:
            self._waited(call)

    def end(self) -> Iterator[str]:
        yield from (f"{size} bytes at {start:#x} are never compared" for start, size in self.overwritten)

    def _memory(self, call: Call) -> Iterator[str]:
        if call.name == "cuMemImportFromShareableHandle":
            self.imported_allocations.add(call.arguments.get("allocation", ""))
        address = int(call.arguments.get("address", "0"), 0)
        if call.name in TAKEN | IMPORTS and address:
            self.open[address] = int(call.arguments.get("size", str(UNKNOWN_SIZE)), 0)
            self.not_ours.discard(address)
            self.on_devices.discard(address)
            if call.name == "cuMemAlloc":
                self.on_devices.add(address)
            if call.name in IMPORTS | BY_THE_CPU or call.arguments.get("allocation") in self.imported_allocations:
                self.not_ours.add(address)
        elif call.name in GIVEN_BACK:
            size = self.open.pop(address, 0)
            busy = [one for stream in self.under_way.values() for _, one in stream if _meet((address, size), one)]
            if busy and call.name != "cuMemFreeAsync":
                yield f"{call.name} of memory at {address:#x} that a stream is working on"
            if any(_meet((address, size), one) for one in self.overwritten):
                yield f"memory at {address:#x} is given back without being compared"
            self.overwritten = [one for one in self.overwritten if not _meet((address, size), one)]
        elif call.name in ("cuCtxEnablePeerAccess", "cuCtxDisablePeerAccess"):
            self.peers = call.name == "cuCtxEnablePeerAccess"
        elif call.name == "cuMemAddressFree" and address in self.open:
            yield f"addresses at {address:#x} are given back before what is mapped there"
        elif call.name == "cuDevicePrimaryCtxRelease" and any(self.under_way.values()):
            yield "a context is given back while its streams work"

    def _gates(self, call: Call) -> Iterator[str]:
        stream = call.arguments.get("stream", "")
        if _is_gate(call):
            self.gate += 0 if self.gated else 1
            self.worked = {} if not self.gated else self.worked
            self.gated.add(stream)
            return
        if self.gated and call.name not in BEHIND_A_GATE | WAITS:
            yield f"{call.name} while a gate is closed"
        if call.name == "cuEventRecord":
            sample = self.gate if stream in self.gated else 0
            self.recorded[call.arguments["event"]] = (stream, sample, stream in self.worked, self.number)
        elif call.name == "cuStreamWaitEvent" and call.arguments["event"] in self.recorded:
            other, sample, _, at = self.recorded[call.arguments["event"]]
            self.after.setdefault(stream, []).append((other, at))
            if self.gated and sample == self.gate:
                self.gated.add(stream)
        elif call.name == "cuEventElapsedTime":
            yield from self._timed(call)

    def _timed(self, call: Call) -> Iterator[str]:
        _, began, late, start = self.recorded[call.arguments["start"]]
        stream, ended, _, at = self.recorded[call.arguments["end"]]
        if began != ended:
            yield "a time is taken from the sample of one gate to that of another"
        elif began and late:
            yield "a time begins behind work of its own stream"
        elif began == 0 and (work := self.ungated.get(stream)) is not None and work[0] > start:
            yield f"{work[1]} is timed without a gate"
        elif began and began == self.gate and at < self.worked.get(stream, 0):
            yield "a time ends before the work of its stream"
        elif began and began == self.gate and not any(start < work < at for work in self.worked.values()):
            yield "a time is taken of nothing"

    def _work(self, call: Call) -> Iterator[str]:
        stream = call.arguments.get("stream", "")
        if _is_gate(call):
            return
        self.under_way.setdefault(stream, []).extend((self.number, one) for one in self._touched(call))
        written = _written(call)
        if self.gated:
            self.worked[stream] = self.number
            if stream not in self.gated:
                yield f"{call.name} on a stream that no gate holds, while others wait behind one"
            if written is not None and self._is_ours(written[0]):
                if call.arguments.get("kernel") == "add_ones":
                    self.overwritten += [one for one in self.zeroed if _holds(one, written)]
                if not any(_holds(one, written) for one in self.overwritten):
                    yield f"a sample writes to {written[0]:#x}, which was not overwritten before"
                if self._path(call) not in self.warmed:
                    yield f"a sample writes to {written[0]:#x} over a path that was not warmed up"
        elif written is not None:
            self.warmed.add(self._path(call))
            if self._needs_a_gate(call):
                self.ungated[stream] = self.number, call.arguments.get("kernel", call.name)
        if call.name == "cuMemsetD32Async":
            to = int(call.arguments["to"], 0), 4 * int(call.arguments["count"])
            if self._is_ours(to[0]):
                (self.overwritten if call.arguments["value"] == POISON else self.zeroed).append(to)
        elif not self.gated:
            compared = _compared(call)
            self.overwritten = [one for one in self.overwritten if compared is None or not _holds(compared, one)]

    def _needs_a_gate(self, call: Call) -> bool:
        """Say whether queueing this does not wait until it is done, as copies of the driver through the host do."""
        if call.name != "cuMemcpyAsync":
            return True
        ends = [self._start(int(call.arguments[key], 0)) for key in ("to", "from")]
        on_devices = sum(end in self.on_devices for end in ends)
        pageable = any(end is None or end in self.not_ours for end in ends)
        return not pageable and (on_devices == 1 or (on_devices == len(ends) and self.peers))

    def _path(self, call: Call) -> tuple[object, ...]:
        ends = ("to", "from") if call.name == "cuMemcpyAsync" else ("argument0", "argument1")
        memory = (self._start(int(call.arguments[end], 0)) for end in ends)
        return (call.arguments.get("kernel", call.name), *memory)

    def _start(self, address: int) -> int | None:
        return max((start for start, size in self.open.items() if start <= address < start + size), default=None)

    def _touched(self, call: Call) -> Iterator[tuple[int, int]]:
        for key, value in call.arguments.items():
            if key in ("to", "from") or key.startswith("argument"):
                address = int(value, 0)
                if address > 1 << 32:
                    yield address, int(call.arguments.get("size", "1"), 0)

    def _waited(self, call: Call) -> None:
        event = call.arguments.get("event")
        stream = self.recorded[event][0] if event in self.recorded else call.arguments.get("stream")
        for name in [stream] if stream is not None else [*self.under_way]:
            self.under_way[name] = []
            for other, at in self.after.pop(name, ()):
                self.under_way[other] = [busy for busy in self.under_way.get(other, ()) if busy[0] > at]
        self.gated = set()

    def _is_ours(self, address: int) -> bool:
        start = self._start(address)
        return start is not None and start not in self.not_ours


def _is_gate(call: Call) -> bool:
    return call.arguments.get("kernel") == "gate" or call.name.startswith("cuStreamWaitValue")


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[0] + other[1] and other[0] < one[0] + one[1]


def _holds(outer: tuple[int, int], inner: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and sum(inner) <= sum(outer)


def _written(call: Call) -> tuple[int, int] | None:
    """Return where a copy writes what, ``None`` if it is none."""
    if call.name == "cuMemcpyAsync":
        return int(call.arguments["to"], 0), int(call.arguments["size"], 0)
    if call.arguments.get("kernel") == "add_ones":
        words, passes, slots = (int(call.arguments[f"argument{n}"], 0) for n in (1, 2, 3))
        return int(call.arguments["argument0"], 0), 8 * words * min(passes, slots)
    if call.arguments.get("kernel") in COPIES:
        vectors, passes, slots = (int(call.arguments[f"argument{n}"], 0) for n in (2, 3, 4))
        return int(call.arguments["argument0"], 0), 16 * vectors * min(passes, slots)
    return None


def _compared(call: Call) -> tuple[int, int] | None:
    """Return the memory that a call compares or brings to where it is compared."""
    if call.name == "cuMemcpyAsync":
        return int(call.arguments["from"], 0), int(call.arguments["size"], 0)
    if call.arguments.get("kernel") == "verify_pattern":
        return int(call.arguments["argument0"], 0), 16 * int(call.arguments["argument1"], 0)
    if call.arguments.get("kernel") == "verify_counts":
        words, passes, slots = (int(call.arguments[f"argument{n}"], 0) for n in (1, 2, 3))
        return int(call.arguments["argument0"], 0), 8 * words * min(passes, slots)
    return None
