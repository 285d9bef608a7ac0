"""The driver calls of a bench on the fake driver, without what differs from run to run: handles, pids, times.

Each process has its own part, named by what it does. A handle or an address is named after what it is and how many of
them are open (``stream2``, ``MemAlloc7+0x40``). The context that a call is made in stands before it (``@0``), in the
place of the call that sets it. NVML's answers during a run follow the clock: of those only the functions count.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.fake.calls import Call

_RANDOM = {"milliseconds", "pid", "uuid", "fd"}
"""Arguments that hold a time, or what the system chose."""
_POLLS = {"cuStreamQuery", "cuEventQuery"}
"""Calls that are made again until something has happened."""
_LONGEST = 120
"""The longest block, in calls, whose repetition is looked for."""
_UNORDERED = re.compile(r"(@\d )?(cuStreamSynchronize|cuMem(\w*Free\w*|Unmap|Release|PoolTrimTo|PoolDestroy)) ")
_GIVES_BACK = re.compile(r"(Free|Destroy|Release|Unload|Unregister|Close)")
_SIZED = {
    "cuMemAlloc",
    "cuMemAllocManaged",
    "cuMemHostAlloc",
    "cuMemAllocHost",
    "cuMemHostRegister",
    "cuMemAddressReserve",
}
_OPENED = {"cuIpcOpenMemHandle", "cuMemPoolImportPointer", "cuMemAllocFromPoolAsync", "cuMemAllocAsync"}
"""Calls that return the address of memory; for the second, how much is not in the log."""
_MUCH = 1 << 28


def by_process(calls: Iterable[Call]) -> dict[str, str]:
    """Return the lines of each process, by what it does: reads CUDA's or NVML's facts, works GPUs (one or more)."""
    found: dict[int, list[Call]] = {}
    for call in calls:
        found.setdefault(call.pid, []).append(call)
    named: dict[str, str] = {}
    for role, lines in sorted((_role(made), "\n".join(_lines(made))) for made in found.values()):
        name, copies = role, 2
        while name in named:
            name, copies = f"{role}, process {copies}", copies + 1
        named[name] = lines
    return named


def _role(calls: list[Call]) -> str:
    owned = [call.arguments["device"] for call in calls if call.name == "cuDevicePrimaryCtxRetain"]
    if owned:
        return f"works GPUs {' '.join(dict.fromkeys(owned))}"
    return "reads CUDA" if any(call.name == "cuDeviceGetCount" for call in calls) else "reads NVML"


def _lines(calls: list[Call]) -> Iterator[str]:
    cuda = [call for call in calls if call.name.startswith("cu")]
    nvml = [call.name for call in calls if not call.name.startswith("cu")]
    if not any(call.name == "cuDevicePrimaryCtxRetain" for call in cuda):
        counts = {call.name: 0 for call in calls}
        for call in calls:
            counts[call.name] += 1
        yield from (f"{name} x {count}" for name, count in counts.items())
        return
    yield from (f"sometimes: {name}" for name in sorted(set(nvml)))
    yield from _repeated(list(_polls(_in_any_order(_sequence(cuda)))))


def _sequence(calls: list[Call]) -> Iterator[str]:
    handles = Handles()
    context = ""
    for call in calls:
        if call.name == "cuCtxSetCurrent" and call.result == 0:
            context = f"@{call.arguments.get('device', '-')} "
            continue
        words = [f"{key}={handles.named(call, key)}" for key in call.arguments if key not in _RANDOM]
        result = "" if call.result == 0 else f" -> {call.result}"
        yield f"{context}{' '.join((call.name, *words))}{result}"
        context = ""


def _in_any_order(lines: Iterable[str]) -> Iterator[str]:
    """Sort what stands together and has no order: the wait for each of several streams, the end of several buffers."""
    for unordered, together in itertools.groupby(lines, key=lambda line: _UNORDERED.match(line) is not None):
        some = list(together)
        yield from sorted(some) if unordered else some


def _polls(lines: Iterable[str]) -> Iterator[str]:
    """Write what is asked again and again until something has happened once."""
    for line, again in itertools.groupby(lines):
        count = len(list(again))
        yield from [f"{line}, until it is so"] if line.split()[0] in _POLLS else [line] * count


def _repeated(lines: Sequence[str]) -> Iterator[str]:
    """Write a block of lines that follows itself once."""
    at = 0
    while at < len(lines):
        saved, period, times = 0, 1, 1
        for length in range(1, min(_LONGEST, len(lines) - at) + 1):
            count = 1
            while lines[at : at + length] == lines[at + count * length : at + (count + 1) * length]:
                count += 1
            if (count - 1) * length > saved:
                saved, period, times = (count - 1) * length, length, count
        block = lines[at : at + period]
        if times > 1 and saved > 1:
            yield f"{times} times:"
            yield from (f"| {line}" for line in _repeated(block))
        else:
            yield lines[at]
            times = period = 1
        at += times * period


@dataclass
class Handles:
    """Names for the handles and addresses of one process, in the order in which they appear."""

    names: dict[str, str] = field(default_factory=dict)
    """Of the handles that are open."""
    ranges: dict[int, tuple[int, str]] = field(default_factory=dict)
    """The size and name of the memory that begins at an address."""

    def named(self, call: Call, key: str) -> str:
        """Return an argument's value with its handle or address named; a name is free again with what had it."""
        value = call.arguments[key]
        if not re.fullmatch(r"0x[0-9a-f]{6,}", value):
            return value
        number = int(value, 16)
        if call.name in _SIZED | _OPENED and key == "address":
            size = int(call.arguments.get("size", str(_MUCH)), 0)
            self.ranges[number] = (size, self._new(call.name.removeprefix("cu")))
        ends = _GIVES_BACK.search(call.name) is not None
        for start, (size, name) in sorted(self.ranges.items(), reverse=True):
            if start <= number < start + size:
                if ends and number == start:
                    del self.ranges[start]
                return name if number == start else f"{name}+{number - start:#x}"
        if key in ("to", "from") or key.startswith("argument"):
            return value if number < 1 << 40 else "memory of the process"
        name = self.names.get(value) or self._new("event" if key in ("start", "end") else key)
        self.names[value] = name
        if ends:
            del self.names[value]
        return name

    def _new(self, kind: str) -> str:
        taken = {*self.names.values(), *(name for _, name in self.ranges.values())}
        return next(name for number in itertools.count() if (name := f"{kind}{number}") not in taken)
