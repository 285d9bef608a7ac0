"""The fake driver's call log: which driver calls a program made, with what, and what it did not give back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"(\d+) (\w+) (?:(.*) )?-> (-?\d+|\w+)( \(injected\))?")


@dataclass(frozen=True, slots=True)
class Call:
    """One call that a process made."""

    pid: int
    name: str
    """Without its version suffix: ``cuMemAlloc``, ``nvmlDeviceGetCount``."""
    arguments: Mapping[str, str]
    """The arguments that matter, and handles and addresses that the call returned, as text."""
    result: int | None
    """The code it returned; ``None`` if it did not return."""
    injected: bool
    """Whether the fault plan made this result."""
    ending: str | None = None
    """``hang``, ``exit`` or ``kill`` where the fault plan kept it from returning."""


def read_log(path: Path) -> tuple[Call, ...]:
    """Return the calls of all processes in the order in which they returned."""
    if not path.exists():
        return ()
    # What comes after the last line's end is being written right now.
    whole, _, _ = path.read_text().rpartition("\n")
    return tuple(_call(line) for line in whole.splitlines())


def leaks(calls: Iterable[Call]) -> list[str]:
    """Return a line for each resource that a process took and did not give back.

    Memory that a context owned is not a leak once the context is gone. Events, streams and modules count as leaks all
    the same: a program that is careful destroys them.
    """
    open_resources: dict[tuple[int, str, str], int] = {}
    for call in calls:
        if call.result == 0:
            _follow(open_resources, call)
    return [
        f"process {pid}: {kind} {handle}" + (f" (taken {count} times more than given back)" if count > 1 else "")
        for (pid, kind, handle), count in open_resources.items()
        if count > 0
    ]


_PAIRS: Mapping[str, tuple[str, str, int]] = {
    "cuMemAlloc": ("memory", "address", 1),
    "cuMemAllocAsync": ("memory", "address", 1),
    "cuMemAllocFromPoolAsync": ("memory", "address", 1),
    "cuMemAllocManaged": ("memory", "address", 1),
    "cuMemFree": ("memory", "address", -1),
    "cuMemFreeAsync": ("memory", "address", -1),
    "cuMemHostAlloc": ("pinned memory", "address", 1),
    "cuMemAllocHost": ("pinned memory", "address", 1),
    "cuMemFreeHost": ("pinned memory", "address", -1),
    "cuMemHostRegister": ("registered memory", "address", 1),
    "cuMemHostUnregister": ("registered memory", "address", -1),
    "cuMemCreate": ("allocation", "allocation", 1),
    "cuMemImportFromShareableHandle": ("allocation", "allocation", 1),
    "cuMemRetainAllocationHandle": ("allocation", "allocation", 1),
    "cuMemRelease": ("allocation", "allocation", -1),
    "cuMemAddressReserve": ("reserved addresses", "address", 1),
    "cuMemAddressFree": ("reserved addresses", "address", -1),
    "cuMemMap": ("mapping", "address", 1),
    "cuMemPoolCreate": ("pool", "pool", 1),
    "cuMemPoolImportFromShareableHandle": ("pool", "pool", 1),
    "cuMemPoolDestroy": ("pool", "pool", -1),
    "cuMemPoolImportPointer": ("memory", "address", 1),
    "cuIpcOpenMemHandle": ("IPC memory", "address", 1),
    "cuIpcCloseMemHandle": ("IPC memory", "address", -1),
    "cuStreamCreate": ("stream", "stream", 1),
    "cuStreamCreateWithPriority": ("stream", "stream", 1),
    "cuStreamDestroy": ("stream", "stream", -1),
    "cuEventCreate": ("event", "event", 1),
    "cuIpcOpenEventHandle": ("event", "event", 1),
    "cuEventDestroy": ("event", "event", -1),
    "cuModuleLoadData": ("module", "module", 1),
    "cuModuleLoadDataEx": ("module", "module", 1),
    "cuLibraryLoadData": ("module", "module", 1),
    "cuModuleUnload": ("module", "module", -1),
    "cuLibraryUnload": ("module", "module", -1),
    "cuDevicePrimaryCtxRetain": ("primary context of device", "device", 1),
    "cuDevicePrimaryCtxRelease": ("primary context of device", "device", -1),
    "cuCtxCreate": ("context", "context", 1),
    "cuCtxDestroy": ("context", "context", -1),
    "nvmlInit": ("use of NVML", "", 1),
    "nvmlShutdown": ("use of NVML", "", -1),
}
"""What a call takes (1) or gives back (-1), and the argument that names it."""


def _follow(open_resources: dict[tuple[int, str, str], int], call: Call) -> None:
    if call.name == "cuMemUnmap":
        # One call may take away several mappings.
        start, size = int(call.arguments["address"], 16), int(call.arguments["size"])
        for key in list(open_resources):
            if key[:2] == (call.pid, "mapping") and start <= int(key[2], 16) < start + size:
                del open_resources[key]
    elif call.name in _PAIRS:
        kind, argument, step = _PAIRS[call.name]
        handle = call.arguments.get(argument, "")
        if handle not in ("0x0", "(nil)"):
            key = call.pid, kind, handle
            open_resources[key] = open_resources.get(key, 0) + step


def _call(line: str) -> Call:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"not a line of the fake driver's log: {line!r}")
    pid, name, arguments, result, injected = match.groups()
    returned = re.fullmatch(r"-?\d+", result) is not None
    return Call(
        pid=int(pid),
        name=name,
        arguments=dict(_arguments(arguments or "")),
        result=int(result) if returned else None,
        injected=bool(injected) or not returned,
        ending=None if returned else result,
    )


def _arguments(text: str) -> Iterator[tuple[str, str]]:
    for word in text.split(" "):
        key, equals, value = word.partition("=")
        if equals:
            yield key, value
