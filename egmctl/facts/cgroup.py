"""Where a process' cgroups are as directories: what decides over its devices is asked and joined there."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from egmctl.facts.mounts import mount_points
from egmctl.facts.root import Root, Unreadable
from egmctl.model.machine import Cgroup, Reason


def cgroups(root: Root, folder: str) -> tuple[Cgroup, ...]:
    """Return the cgroups of the process whose ``/proc`` folder is given.

    Raises
    ------
    Unreadable
        If the file cannot be read.
    """
    # "5:devices:/path" is a hierarchy of version 1 with its controllers; "0::/path" is version 2.
    found = []
    for line in root.lines(f"{folder}/cgroup"):
        hierarchy, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon:
            names = tuple(controllers.split(",")) if controllers else ()
            found.append(Cgroup(version=2 if hierarchy == "0" else 1, controllers=names, path=path))
    return tuple(found)


def memory_left(root: Root) -> int | None:
    """Return how many bytes this process' cgroups still let it take; ``None`` where nothing limits it or says so.

    Page cache that the kernel would give back counts as taken, so it is rather less than what there is.
    """
    files = {2: ("memory.max", "memory.current"), 1: ("memory.limit_in_bytes", "memory.usage_in_bytes")}
    return _left(root, "/proc/self", "memory", files)


def pids_left(root: Root, folder: str) -> int:
    """Return how many more processes and threads a process' cgroups allow; -1 where none limits them.

    Parameters
    ----------
    folder
        ``/proc/self`` or that of another process.

    Raises
    ------
    Unreadable
        If it is in no cgroup that is mounted here.
    """
    try:
        device_cgroup(root, folder, 1, "pids")
    except Unreadable:
        device_cgroup(root, folder, 2)
    left = _left(root, folder, "pids", dict.fromkeys((2, 1), ("pids.max", "pids.current")))
    return -1 if left is None else left


def _left(root: Root, folder: str, controller: str, files: Mapping[int, tuple[str, str]]) -> int | None:
    left: list[int] = []
    for version, (limit, taken) in files.items():
        with suppress(Unreadable):
            for place in device_cgroup(root, folder, version, controller):
                # "max" is no limit and no number; the top one of version 2 has no such file.
                with suppress(Unreadable):
                    left.append(max(0, root.number(f"{place}/{limit}") - root.number(f"{place}/{taken}")))
    return min(left, default=None)


def device_cgroup(root: Root, folder: str, version: int, controller: str = "devices") -> tuple[str, ...]:
    """Return the directories that decide over a process' devices: from the top down to the process' own.

    Parameters
    ----------
    folder
        ``/proc/self`` or that of another process.
    version
        1 for the hierarchy with the controller, 2 for the unified one.
    controller
        What they decide over, if not devices.

    Raises
    ------
    Unreadable
        If there is none, or it is not mounted here.
    """
    kind = "a cgroup of version 2" if version == 2 else f"the {controller} controller of version 1"
    for cgroup in cgroups(root, folder):
        if cgroup.version == version and (version == 2 or controller in cgroup.controllers):
            path = cgroup.path
            break
    else:
        raise Unreadable(Reason.NOT_PRESENT, f"{folder}/cgroup: not in {kind}")
    for place, above in _mounts(root, version, controller):
        inside = path.removeprefix(above.rstrip("/"))
        # A cgroup outside of this process' cgroup namespace is shown as /../other.
        if path.startswith(above) and ".." not in path.split("/") and root.exists(place + inside):
            parts = [part for part in inside.split("/") if part]
            return tuple("/".join((place, *parts[:depth])) for depth in range(len(parts) + 1))
    raise Unreadable(Reason.NOT_PRESENT, f"/proc/self/mountinfo: {kind} is not mounted here")


def _mounts(root: Root, version: int, controller: str) -> list[tuple[str, str]]:
    """Return where such a hierarchy is mounted, and which of its cgroups is the top one there."""
    return [
        (one.path, one.top)
        for one in mount_points(root.read("/proc/self/mountinfo"))
        if (one.kind == "cgroup2" if version == 2 else one.kind == "cgroup" and controller in one.settings)
    ]
