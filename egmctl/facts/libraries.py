"""Which CUDA libraries a process has loaded, by the files that are mapped into it."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from egmctl.driver.reading import Unreadable
from egmctl.model.record import Reason

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
