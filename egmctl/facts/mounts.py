"""The mounts of a process, of which others may have named some: ``/proc/PID/mountinfo`` in its one reading."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MountPoint:
    """One line."""

    device: str
    """Major and minor: ``0:25``."""
    top: str
    """Which folder of its file system is the top one there."""
    path: str
    options: tuple[str, ...]
    kind: str
    """The type of file system."""
    settings: tuple[str, ...]
    """Options of the file system itself: of a cgroup hierarchy of version 1 its controllers."""


def mount_points(text: str) -> Iterator[MountPoint]:
    """Yield the mounts of a ``mountinfo``, those of later lines over those of earlier ones.

    ``36 35 98:0 /top /path options [optional...] - type source settings`` (proc_pid_mountinfo(5)). The kernel escapes
    spaces and line feeds in names, and no other white space that Python would split at: a user's FUSE mount could
    bring lines of its own.
    """
    for line in text.split("\n"):
        fields = line.split(" ")
        if "-" not in fields[6:-3]:
            continue
        kind, _, settings = fields[fields.index("-", 6) + 1 :][:3]
        yield MountPoint(fields[2], fields[3], fields[4], tuple(fields[5].split(",")), kind, tuple(settings.split(",")))
