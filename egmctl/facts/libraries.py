"""Which CUDA libraries a process has loaded, by the files that are mapped into it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import PurePosixPath

from egmctl.driver.reading import Reasons, Unreadable
from egmctl.facts.root import Root
from egmctl.model.host import INITIAL_NAMESPACES, CudaProcesses
from egmctl.model.record import Reason
from egmctl.units import grouped

_MAPPED = re.compile(r"\s(/\S.*/lib(cuda|cudart)\.so[.0-9]*)(?: \(deleted\))?$", re.ASCII | re.MULTILINE)
_VERSION = re.compile(r"lib(?:cuda|cudart)\.so\.([0-9]{1,4}(?:\.[0-9]{1,4}){1,3})", re.ASCII)
_MOST = 64
"""The number of processes to read at most: a GPU seldom has more than a few."""


def mapped(text: str, library: str) -> PurePosixPath:
    """Return the file of a library in a process, as the kernel names it: links are followed.

    Parameters
    ----------
    text
        The process' ``/proc/PID/maps``.
    library
        ``cuda`` or ``cudart``.

    Raises
    ------
    Unreadable
        The process has not loaded it.
    """
    for path, name in _MAPPED.findall(text):
        if name == library:
            return PurePosixPath(path)
    raise Unreadable(Reason.NOT_PRESENT, f"maps: no lib{library}")


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


def cuda_processes(root: Root, pids: Iterable[int], asked: int = 0) -> tuple[CudaProcesses, ...]:
    """Return the processes that have loaded libcuda, in groups of one user and the same libraries.

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
    processes: list[tuple[tuple[int, str, str, bool], bool]] = []
    for pid in list(dict.fromkeys((*((asked,) if asked else ()), *pids)))[:_MOST]:
        # A process may have ended, or be another user's.
        with suppress(Unreadable):
            text = root.read(f"/proc/{pid}/maps")
            libcuda = mapped(text, "cuda")
            user = root.numbers(f"/proc/{pid}/status", "Uid", least=4)[1]
            processes.append(((user, str(libcuda), _file(text, "cudart"), pid == asked), pid == asked))
    users = list(dict.fromkeys(user for (user, *_), _ in processes))
    groups = grouped(processes)
    return tuple(
        _group(users.index(user), len(members), PurePosixPath(libcuda), runtime, is_asked=is_asked)
        for (user, libcuda, runtime, is_asked), members in groups.items()
    )


def _file(text: str, library: str) -> str:
    try:
        return str(mapped(text, library))
    except Unreadable:
        return ""


def _group(user: int, count: int, libcuda: PurePosixPath, runtime: str, *, is_asked: bool) -> CudaProcesses:
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
