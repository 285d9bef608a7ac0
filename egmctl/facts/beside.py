"""The child that looks at another process' root directory: in its device cgroup, as its user, with no right of its own.

It changes no root directory and no namespace. What it needs, it has opened and imported before it becomes the other
user; afterwards it can load nothing, and the other user can neither trace it nor read its memory. It answers in plain
data, which its parent does not trust (``egmctl.facts.inside``).
"""

from __future__ import annotations

import errno
import os
from typing import Any

from egmctl.errors import EgmctlError
from egmctl.facts import nodes
from egmctl.facts.mounts import mount_points
from egmctl.facts.other_root import NO_OVERRIDES, OtherRoot, Overrides
from egmctl.facts.privileges import drop_capabilities, give_up
from egmctl.facts.root import Unreadable
from egmctl.launch import Channel
from egmctl.model.codec import to_json

STEPS = ("cgroup.procs", "root")
"""Steps of :func:`enter` that have no system call's name."""


class StepRefused(EgmctlError):
    """The kernel refused a step of :func:`enter`.

    Parameters
    ----------
    step
        The system call, or one of :data:`STEPS`.
    number
        Of the error; 0 where a call had no effect.
    """

    def __init__(self, step: str, number: int) -> None:
        super().__init__(f"{step}: {number}")
        self.step = step
        self.number = number


def enter(arguments: dict[str, Any]) -> None:
    """Stand beside the process; the launcher's hook.

    Parameters
    ----------
    arguments
        ``root``: the folder to look at; ``is_live``: whether it is a process' own, and no copied tree; ``cgroups``: the
        ``cgroup.procs`` to join; ``user``: ``uid``, ``gid`` and ``groups`` to take, null to keep one's own;
        ``overrides``: see :class:`egmctl.facts.other_root.Overrides`.
    """
    global _root
    for procs in arguments["cgroups"]:
        try:
            _write(procs, b"%d" % os.getpid())
        except OSError as error:
            raise StepRefused("cgroup.procs", error.errno or 0) from None
    os.chdir("/")
    try:
        root = os.open(arguments["root"], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StepRefused("root", error.errno or 0) from None
    user, overrides = arguments["user"], arguments["overrides"]
    _root = OtherRoot(root, Overrides(**overrides) if overrides else NO_OVERRIDES, is_live=arguments["is_live"])
    try:
        if user:
            give_up(user["uid"], user["gid"], user["groups"])
        else:
            drop_capabilities()
        _root.check()
    except OSError as error:
        raise StepRefused(error.strerror or "", error.errno or 0) from None


def look_at_nodes(_parent: Channel, arguments: dict[str, Any]) -> Any:
    """Look at the device nodes of the GPUs with these ``minors`` and all that are there; the launcher's target."""
    try:
        seen = nodes.read_all(_entered(), arguments["minors"])
    except Unreadable as error:
        return {"unread": to_json(error.unread)}
    return {
        "gpus": to_json(tuple(seen.gpus.values())),
        "control": to_json(seen.control),
        "imex_channels": to_json(seen.imex_channels),
        "unread": to_json(seen.unread),
    }


def look_for_files(_parent: Channel, arguments: dict[str, Any]) -> Any:
    """Say which of these ``paths`` are there; the launcher's target."""
    root = _entered()
    return [path for path in arguments["paths"] if root.exists(path)]


def look_at_file_system(_parent: Channel, arguments: dict[str, Any]) -> Any:
    """Return size and free space in bytes of the file system that ``path`` lies on; the launcher's target."""
    try:
        status = _entered().file_system(arguments["path"])
    except Unreadable as error:
        return {"unread": to_json(error.unread)}
    return [status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize]


def _write(path: str, content: bytes) -> None:
    # No text file: its codec would have to be imported.
    file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # A copied tree may have anything under this name.
        if not _is_of_cgroups(os.fstat(file).st_dev):
            raise OSError(errno.EINVAL, "not of a cgroup file system")
        os.write(file, content)
    finally:
        os.close(file)


def _is_of_cgroups(device: int) -> bool:
    file = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b"".join(iter(lambda: os.read(file, 1 << 16), b""))
    finally:
        os.close(file)
    number = f"{os.major(device)}:{os.minor(device)}"
    # UTF-8 is Python's own, and loads no codec.
    mounts = mount_points(content.decode("utf-8", "replace"))
    return any(one.device == number and one.kind in ("cgroup", "cgroup2") for one in mounts)


def _entered() -> OtherRoot:
    if _root is None:
        raise RuntimeError("enter comes first")
    return _root


_root: OtherRoot | None = None
