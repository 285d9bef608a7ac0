"""Device nodes as another process meets them: looked at by a child in that process' device cgroup and container.

access(2) asks for the caller, so nobody can ask it for another process. As root a child can stand beside it: it joins
the process' device cgroups, takes its root directory and its user, looks, and is gone. It opens nothing and leaves
nothing behind; the other process does not notice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from egmctl import launch
from egmctl.errors import ChildFailed
from egmctl.facts import nodes
from egmctl.facts.cgroup import cgroups, device_cgroup
from egmctl.facts.nodes import DeviceNodes
from egmctl.facts.root import Root, Unreadable
from egmctl.model.codec import from_json, to_json
from egmctl.model.machine import Cgroup, DeviceNode, Reason, Unread

_TIMEOUT_S = 5.0


def read_all(root: Root, pid: int, minors: Iterable[int]) -> DeviceNodes:
    """Look at every node as :func:`egmctl.facts.nodes.read_all` does, in the place of another process.

    Raises
    ------
    Unreadable
        Without root's rights, and where its cgroup cannot be joined.
    """
    if os.geteuid() != 0:
        raise Unreadable(Reason.NO_PERMISSION, "only root can join the cgroup of another process")
    folder = f"/proc/{pid}"
    uids, gids = (_numbers(root, folder, key) for key in ("Uid", "Gid"))
    place = {
        "cgroups": _joinable(root, folder),
        # A copied tree has no root directory of the process' own.
        "root": f"{folder}/root" if root.is_live else None,
        "uid": uids[1],
        "gid": gids[1],
        "groups": _numbers(root, folder, "Groups"),
    }
    try:
        found: Any = launch.run(
            "egmctl.facts.inside:look",
            {"directory": root.directory, "minors": list(minors)},
            timeout_s=_TIMEOUT_S,
            before="egmctl.facts.inside:enter",
            before_arguments=place,
        )
    except ChildFailed as error:
        reason = Reason.TIMED_OUT if error.how == "timed-out" else Reason.FAILED
        raise Unreadable(reason, f"{folder}: the child in its cgroup {error.how} ({error.kind})") from None
    gpus = [from_json(DeviceNode, node) for node in found["gpus"]]
    return DeviceNodes(
        gpus={int(node.path.removeprefix("/dev/nvidia")): node for node in gpus},
        control=tuple(from_json(DeviceNode, node) for node in found["control"]),
        imex_channels=None
        if found["imex_channels"] is None
        else tuple(from_json(DeviceNode, node) for node in found["imex_channels"]),
        unread={name: from_json(Unread, why) for name, why in found["unread"].items()},
    )


def enter(arguments: dict[str, Any]) -> None:
    """Stand beside the process; the launcher's hook. It is in this module so that nothing is imported afterwards."""
    for procs in arguments["cgroups"]:
        with open(procs, "w", encoding="ascii") as file:
            file.write(str(os.getpid()))
    if arguments["root"] is not None:
        os.chroot(arguments["root"])
        os.chdir("/")
    os.setgroups(arguments["groups"])
    os.setgid(arguments["gid"])
    os.setuid(arguments["uid"])


def look(_parent: launch.Channel, arguments: dict[str, Any]) -> Any:
    """Look at the device nodes; the launcher's target."""
    seen = nodes.read_all(Root(arguments["directory"]), arguments["minors"])
    return {
        "gpus": to_json(tuple(seen.gpus.values())),
        "control": to_json(seen.control),
        "imex_channels": to_json(seen.imex_channels),
        "unread": to_json(seen.unread),
    }


def _joinable(root: Root, folder: str) -> list[str]:
    """Return the files by which the process' device cgroups are joined; none where we are in the same ones."""
    if _deciding(root, folder) == _deciding(root, "/proc/self"):
        return []
    found, why = [], None
    for version in (1, 2):
        try:
            found.append(root.path(f"{device_cgroup(root, folder, version)[-1]}/cgroup.procs"))
        except Unreadable as error:
            why = error
    if not found and why is not None:
        raise why
    return found


def _deciding(root: Root, folder: str) -> list[Cgroup]:
    """Return the cgroups that decide over a process' devices."""
    return [group for group in cgroups(root, folder) if group.version == 2 or "devices" in group.controllers]


def _numbers(root: Root, folder: str, key: str) -> list[int]:
    words = root.line(f"{folder}/status", key).split()
    if not all(re.fullmatch("[0-9]{1,10}", word, re.ASCII) for word in words) or (len(words) < 2 and key != "Groups"):
        raise Unreadable(Reason.FAILED, f"{folder}/status: {key!r} is not a list of numbers")
    return [int(word) for word in words]
