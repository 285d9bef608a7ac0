"""The processes that use the GPUs, and which CUDA libraries a process has loaded, by the files mapped into it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from egmctl.driver.reading import Reasons, Unreadable, read_or
from egmctl.errors import ChildFailed
from egmctl.facts.root import READ_LIMIT, Root
from egmctl.launch import Child
from egmctl.model.host import INITIAL_NAMESPACES, CudaProcesses
from egmctl.model.record import Reason
from egmctl.units import grouped

if TYPE_CHECKING:
    from egmctl.launch import Channel

_MAPPED = re.compile(r"\s(/\S.*/lib(cuda|cudart)\.so[.0-9]*)(?: \(deleted\))?$", re.ASCII | re.MULTILINE)
_VERSION = re.compile(r"lib(?:cuda|cudart)\.so\.([0-9]{1,4}(?:\.[0-9]{1,4}){1,3})", re.ASCII)


def mapped(maps: bytes) -> dict[str, PurePosixPath]:
    """Return the files of ``cuda`` and ``cudart`` in a process, as the kernel names them: links are followed.

    Parameters
    ----------
    maps
        The process' ``/proc/PID/maps``.
    """
    # A process with a GPU has thousands of maps, and few of them are of these files.
    lines = b"\n".join(line for line in maps.split(b"\n") if b"/libcuda" in line).decode(errors="replace")
    files: dict[str, PurePosixPath] = {}
    for path, name in _MAPPED.findall(lines):
        files.setdefault(name, PurePosixPath(path))
    return files


def version_of(path: PurePosixPath) -> str:
    """Return the version in the name of a library's file.

    Raises
    ------
    Unreadable
        The name has none.
    """
    version = _VERSION.fullmatch(path.name)
    if version is None:
        raise Unreadable(Reason.NOT_SUPPORTED, f"maps: no version in the name {path.name}")
    return version[1]


def is_compat(path: PurePosixPath) -> bool:
    """Return whether a libcuda is of CUDA's compat package, which has a folder of that name.

    The package's libcuda has the same name as the driver's (https://docs.nvidia.com/deploy/cuda-compatibility).
    """
    return "compat" in path.parts


_READER = "egmctl.facts.libraries:read_libraries"
"""A child reads the maps: for them the kernel takes the lock of the process' memory (``mmap_lock``), which
a process that hangs in a driver call may hold, and then the read does not return."""
LIBRARIES_S = 3.0
"""The time limit of the child. Our choice: a map of 1 MiB takes some tens of milliseconds."""
_MOST_PROCESSES = 64
"""The number of processes to read at most: a GPU seldom has more than a few."""


def cuda_processes(root: Root, pids: Iterable[int], asked: int = 0) -> tuple[tuple[CudaProcesses, ...], int]:
    """Return the processes that have loaded libcuda, in groups, and the number of those that were not read.

    A group has one user, one IPC namespace and the same libraries. Not read are processes beyond the limits of number,
    bytes and time; a process that has ended, or may not be read, counts as none.

    Parameters
    ----------
    pids
        The ids that NVML states, of the host's PID namespace.
    asked
        The process of ``--pid``; 0 for none.

    Raises
    ------
    Unreadable
        This process is in a PID namespace of its own, where those ids are of others.
    """
    if root.is_live and root.link("/proc/self/ns/pid") != f"pid:[{INITIAL_NAMESPACES['pid']}]":
        raise Unreadable(Reason.NOT_SUPPORTED, "a PID namespace of its own: NVML states the host's process ids")
    all_pids = list(dict.fromkeys((asked, *pids) if asked else pids))
    answers: list[dict[str, Any]] = []
    if all_pids:
        # What the child sent before it failed or was ended counts; the processes after that were not read.
        with (
            suppress(ChildFailed),
            Child(_READER, {"root": root.directory, "pids": all_pids[:_MOST_PROCESSES]}, grace_s=0) as child,
        ):
            child.result(LIBRARIES_S, answers.append)
    return groups_of(answers, asked), len(all_pids) - sum(not answer.get("too_long") for answer in answers)


def read_libraries(parent: Channel, arguments: dict[str, Any]) -> None:
    """Send the answer for each process of ``pids`` to the parent."""
    root = Root(arguments["root"])
    for pid in arguments["pids"]:
        parent.send(process_answer(root, pid))


def process_answer(root: Root, pid: int) -> dict[str, Any]:
    """Return a process' id, user, IPC namespace and files, ``too_long`` for maps beyond the limit, else nothing."""
    try:
        maps = root.read_bytes(f"/proc/{pid}/maps", READ_LIMIT + 1)
        if len(maps) > READ_LIMIT:
            return {"too_long": True}
        files = {name: str(path) for name, path in mapped(maps).items()}
        if "cuda" not in files:
            return {}
        user = root.numbers(f"/proc/{pid}/status", "Uid", least=4)[1]
        return {"pid": pid, "user": user, "ipc": read_or("", lambda: root.link(f"/proc/{pid}/ns/ipc")), **files}
    except Unreadable:
        # It has ended, or is another user's.
        return {}


def groups_of(answers: Sequence[dict[str, Any]], asked: int = 0) -> tuple[CudaProcesses, ...]:
    """Return the groups of processes, from the answers about them."""
    processes = [answer for answer in answers if "cuda" in answer]
    users = list(dict.fromkeys((each["user"], each["ipc"]) for each in processes))
    groups = grouped(
        ((users.index((each["user"], each["ipc"])), each["cuda"], each.get("cudart"), each["pid"] == asked), each)
        for each in processes
    )
    return tuple(
        _group(user, len(members), PurePosixPath(libcuda), runtime, is_asked=is_asked)
        for (user, libcuda, runtime, is_asked), members in groups.items()
    )


def _group(user: int, count: int, libcuda: PurePosixPath, runtime: str | None, *, is_asked: bool) -> CudaProcesses:
    no_runtime = Unreadable(Reason.NOT_PRESENT, "maps: no libcudart")
    return Reasons().record(
        CudaProcesses,
        user=user,
        processes=count,
        asked=is_asked,
        libcuda_version=lambda: version_of(libcuda),
        libcuda_compat=is_compat(libcuda),
        runtime_version=(lambda: version_of(PurePosixPath(runtime))) if runtime else no_runtime,
    )
