"""NVIDIA's device nodes: whether they are there and whether this process may use them.

They are looked at before NVML or CUDA is loaded: as root both may create missing nodes and so hide the fault. No
node is opened, because opening ``/dev/nvidia0`` starts the GPU.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from egmctl.facts.root import Reasons, Unreadable
from egmctl.model.machine import DeviceNode, Reason, Unread
from egmctl.units import natural

CAPS = "/dev/nvidia-caps"
IMEX_CHANNELS = "/dev/nvidia-caps-imex-channels"

_KINDS = (
    (stat.S_ISCHR, "character"),
    (stat.S_ISBLK, "block"),
    (stat.S_ISDIR, "directory"),
    (stat.S_ISREG, "file"),
    (stat.S_ISFIFO, "fifo"),
    (stat.S_ISSOCK, "socket"),
)


class Place(Protocol):
    """Where nodes are looked at: a :class:`egmctl.facts.root.Root`, or the root directory of another process."""

    is_live: bool
    """Whether these are the nodes of this machine, and not a copied tree."""

    def names_if_any(self, path: str) -> list[str]:
        """See :meth:`egmctl.facts.root.Root.names_if_any`."""

    def status(self, path: str) -> os.stat_result:
        """See :meth:`egmctl.facts.root.Root.status`."""

    def access(self, path: str) -> str:
        """See :meth:`egmctl.facts.root.Root.access`; raises Unreadable where it is unknown."""

    def file_system(self, path: str) -> os.statvfs_result:
        """See :meth:`egmctl.facts.root.Root.file_system`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNodes:
    """All of them at one moment."""

    gpus: dict[int, DeviceNode]
    """By minor; a GPU's node that is missing is here with ``exists`` False."""
    control: tuple[DeviceNode, ...]
    """nvidiactl, nvidia-uvm, nvidia-uvm-tools and what is in nvidia-caps."""
    imex_channels: tuple[DeviceNode, ...] | None
    """Empty where the folder is absent."""
    unread: dict[str, Unread]
    """Folders that could not be listed, under the names of the driver's fields they would have filled:
    ``nodes.nvidia-caps``, ``imex_channels``."""


def read_all(root: Place, minors: Iterable[int]) -> DeviceNodes:
    """Look at every node.

    Parameters
    ----------
    minors
        The GPUs that the driver knows; nodes beyond these are found by their names.
    """
    why = Reasons()
    present = {
        int(match[1]) for name in root.names_if_any("/dev") if (match := re.fullmatch(r"nvidia([0-9]{1,3})", name))
    }
    caps = why.read("nodes.nvidia-caps", lambda: _listed(root, CAPS, r"nvidia-cap[0-9]+"))
    return DeviceNodes(
        gpus={minor: read(root, f"/dev/nvidia{minor}") for minor in sorted(present | set(minors))},
        control=(
            *(read(root, f"/dev/{name}") for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")),
            *(caps or ()),
        ),
        imex_channels=why.read("imex_channels", lambda: _listed(root, IMEX_CHANNELS, r"channel[0-9]+")),
        unread=why.unread,
    )


def read(root: Place, path: str) -> DeviceNode:
    """Look at one node."""
    why = Reasons()
    access = why.read("access", lambda: root.access(path))
    try:
        status = root.status(path)
    except Unreadable as error:
        reason = error.unread
        why.null("kind major minor mode uid gid nodev", reason.reason, reason.detail)
        missing = reason.reason is Reason.NOT_PRESENT
        return DeviceNode(path=path, exists=not missing, kind=None, access=access, unread=why.unread)
    kind = next((word for is_one, word in _KINDS if is_one(status.st_mode)), "unknown")
    if kind == "file" and not root.is_live:
        # In a copied tree a file stands for the node: it has the mode, and no numbers.
        kind = "character"
    device = stat.S_ISCHR(status.st_mode)
    if not device:
        why.null("major minor", Reason.NOT_PRESENT, f"{path}: not a character device")
    return DeviceNode(
        path=path,
        exists=True,
        kind=kind,
        major=os.major(status.st_rdev) if device else None,
        minor=os.minor(status.st_rdev) if device else None,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        access=access,
        nodev=why.read("nodev", lambda: bool(root.file_system(path).f_flag & os.ST_NODEV)),
        unread=why.unread,
    )


def _listed(root: Place, folder: str, pattern: str) -> tuple[DeviceNode, ...]:
    """Look at the nodes in a folder whose names fit, in the order of their numbers."""
    names = [name for name in root.names_if_any(folder) if re.fullmatch(pattern, name)]
    return tuple(read(root, f"{folder}/{name}") for name in sorted(names, key=natural))
