"""The CUDA libraries of the processes that use the GPUs, from their maps, which a child process reads.

To read ``/proc/PID/maps`` the kernel takes the lock of the process' memory (``mmap_lock``), which a process that hangs
in a driver call may hold: then the read does not return.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from egmctl.driver.reading import Reasons, Unreadable, read_or
from egmctl.errors import ChildFailed
from egmctl.facts.libraries import is_compat, mapped, version_of
from egmctl.facts.root import READ_LIMIT, Root
from egmctl.launch import Child
from egmctl.model.host import INITIAL_NAMESPACES, CudaProcesses
from egmctl.model.record import Reason
from egmctl.units import grouped

if TYPE_CHECKING:
    from egmctl.launch import Channel

CHILD = "egmctl.facts.cuda_processes:read"
TIMEOUT_S = 3.0
"""The time limit of the child. Our choice: a map of 1 MiB takes some tens of milliseconds."""
_MOST = 64
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
            Child(CHILD, {"root": root.directory, "pids": all_pids[:_MOST]}, grace_s=0) as child,
        ):
            child.result(TIMEOUT_S, answers.append)
    return groups_of(answers, asked), len(all_pids) - sum(not answer.get("too_long") for answer in answers)


def read(parent: Channel, arguments: dict[str, Any]) -> None:
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
