"""Another process' root directory and device nodes, as that process meets them: asked by a child, and not believed.

access(2) asks for the caller, so nobody can ask it for another process. As root a child can stand beside it: it joins
the process' device cgroups, takes its user, looks through a descriptor of its root directory, and is gone
(``egmctl.facts.beside``). It opens nothing and leaves nothing behind; the other process does not notice. Who wrote the
files there is a stranger: why no code of theirs can run, docs/decisions/0007-another-root.md.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from egmctl import launch
from egmctl.errors import ChildFailed
from egmctl.facts import nodes
from egmctl.facts.beside import StepRefused
from egmctl.facts.cgroup import cgroups, device_cgroup
from egmctl.facts.nodes import DeviceNodes
from egmctl.facts.root import Root, Unreadable
from egmctl.model.codec import DecodeError, from_json
from egmctl.model.machine import Cgroup, DeviceNode, Reason, Unread

_TIMEOUT_S = 5.0
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2  # include/uapi/linux/capability.h
_GPU = re.compile(r"/dev/nvidia([0-9]{1,3})", re.ASCII)
_CONTROL = re.compile(rf"/dev/nvidia(ctl|-uvm|-uvm-tools)|{nodes.CAPS}/nvidia-cap[0-9]+", re.ASCII)
_CHANNEL = re.compile(rf"{nodes.IMEX_CHANNELS}/channel[0-9]+", re.ASCII)


def read_all(root: Root, pid: int, minors: Iterable[int]) -> DeviceNodes:
    """Look at every node as :func:`egmctl.facts.nodes.read_all` does, in the place of another process.

    Raises
    ------
    Unreadable
        Without root's rights, and where its cgroup cannot be joined or its root directory not be looked at.
    """
    if os.geteuid() != 0:
        raise Unreadable(Reason.NO_PERMISSION, "only root can join the cgroup of another process")
    folder = f"/proc/{pid}"
    # A copied tree has no root directory of the process' own.
    place = f"{folder}/root" if root.is_live else root.directory
    answer = _ask(root, folder, place, "look_at_nodes", {"minors": list(minors)}, cgroups=_joinable(root, folder))
    try:
        gpus = _nodes(answer["gpus"], _GPU)
        channels = answer["imex_channels"]
        return DeviceNodes(
            gpus={int(node.path.removeprefix("/dev/nvidia")): node for node in gpus},
            control=_nodes(answer["control"], _CONTROL),
            imex_channels=None if channels is None else _nodes(channels, _CHANNEL),
            unread={str(name): from_json(Unread, why) for name, why in dict(answer["unread"]).items()},
        )
    except (KeyError, TypeError, ValueError):
        raise _not_an_answer(folder) from None


def files(root: Root, pid: int, paths: Sequence[str]) -> tuple[str, ...]:
    """Return those of ``paths`` that are there for another process.

    Raises
    ------
    Unreadable
        Where its root directory cannot be looked at.
    """
    folder = f"/proc/{pid}"
    found = _ask(root, folder, root.path(f"{folder}/root"), "look_for_files", {"paths": list(paths)})
    if not isinstance(found, list):
        raise _not_an_answer(folder)
    return tuple(path for path in paths if path in found)


def file_system(root: Root, pid: int, path: str) -> tuple[int, int]:
    """Return size and free space in bytes of the file system that ``path`` of another process lies on.

    Raises
    ------
    Unreadable
        Where nothing is there, or its root directory cannot be looked at.
    """
    folder = f"/proc/{pid}"
    match _ask(root, folder, root.path(f"{folder}/root"), "look_at_file_system", {"path": path}):
        case [int(size), int(free)]:
            return size, free
    raise _not_an_answer(folder)


def _ask(
    root: Root, folder: str, place: str, target: str, arguments: dict[str, Any], cgroups: Sequence[str] = ()
) -> Any:
    """Return what the child says that stands beside the process; as root it does so as the process' user."""
    user = overrides = None
    if os.geteuid() == 0:
        # Real, effective, saved, of the file system.
        uids, gids = (_numbers(root, f"{folder}/status", key, least=4) for key in ("Uid", "Gid"))
        user = {"uid": uids[1], "gid": gids[1], "groups": _numbers(root, f"{folder}/status", "Groups")}
        overrides = _overrides(root, folder)
    try:
        answer = launch.run(
            f"egmctl.facts.beside:{target}",
            arguments,
            timeout_s=_TIMEOUT_S,
            before="egmctl.facts.beside:enter",
            before_arguments={
                "root": place,
                "is_live": root.is_live,
                "cgroups": list(cgroups),
                "user": user,
                "overrides": overrides,
            },
            sealed=True,
        )
    except ChildFailed as error:
        raise _failed(folder, error) from None
    if isinstance(answer, dict) and answer.keys() == {"unread"}:
        try:
            why = from_json(Unread, answer["unread"])
        except DecodeError:
            raise _not_an_answer(folder) from None
        # That this user is not permitted something is no word on the right to ask.
        reason = Reason.FAILED if why.reason is Reason.NO_PERMISSION else why.reason
        raise Unreadable(reason, why.detail)
    return answer


def _failed(folder: str, error: ChildFailed) -> Unreadable:
    step, number = error.details.get("step"), error.details.get("number")
    if error.kind != StepRefused.__name__ or not isinstance(step, str) or not isinstance(number, int):
        reason = {"timed-out": Reason.TIMED_OUT, "crashed": Reason.CRASHED}.get(error.how, Reason.FAILED)
        return Unreadable(reason, f"{folder}: the child that stands beside it {error.how}")
    name = errno.errorcode.get(number, "no effect")
    if step == "root":
        return Unreadable.from_os_error(OSError(number, ""), f"{folder}/root")
    if step in ("openat2", "faccessat2"):
        return Unreadable(Reason.NOT_SUPPORTED, f"{folder}/root is not looked at without {step}, which answers {name}")
    return Unreadable(Reason.FAILED, f"{folder}: the child cannot stand beside it: {step}: {name}")


def _not_an_answer(folder: str) -> Unreadable:
    return Unreadable(Reason.FAILED, f"{folder}: what the child beside it says is no answer")


def _nodes(answer: Any, paths: re.Pattern[str]) -> tuple[DeviceNode, ...]:
    """Return device nodes whose paths are of the one kind that they can have.

    Raises
    ------
    ValueError, TypeError
        If it is anything else.
    """
    found = tuple(from_json(DeviceNode, node) for node in answer)
    if not all(paths.fullmatch(node.path) for node in found):
        raise ValueError("not the path of a node")
    return found


def _overrides(root: Root, folder: str) -> dict[str, Any]:
    """Return what the process' capabilities may pass over; see :class:`egmctl.facts.other_root.Overrides`."""
    text = root.line(f"{folder}/status", "CapEff")
    if not re.fullmatch("[0-9a-f]{1,16}", text, re.ASCII):
        raise Unreadable(Reason.FAILED, f"{folder}/status: 'CapEff' is not a number")
    opens, reads = (bool(int(text, 16) >> bit & 1) for bit in (_DAC_OVERRIDE, _DAC_READ_SEARCH))
    return {
        "searches": opens or reads,
        "opens": opens,
        "uids": _known(root, f"{folder}/uid_map"),
        "gids": _known(root, f"{folder}/gid_map"),
    }


def _known(root: Root, path: str) -> list[tuple[int, int]]:
    """Return the ids outside of a user namespace that it knows: (first, how many)."""
    found = []
    for line in root.lines(path):
        words = line.split()
        if len(words) != 3 or not all(re.fullmatch("[0-9]{1,10}", word, re.ASCII) for word in words):
            raise Unreadable(Reason.FAILED, f"{path}: not three numbers a line")
        found.append((int(words[1]), int(words[2])))
    return found


def _joinable(root: Root, folder: str) -> list[str]:
    """Return the files by which the process' device cgroups are joined; none where we are in the same ones.

    Raises
    ------
    Unreadable
        If one that is not ours cannot be joined: the others alone would say too much is allowed.
    """
    found = []
    for version in (1, 2):
        if _deciding(root, folder, version) != _deciding(root, "/proc/self", version):
            try:
                procs = root.path(f"{device_cgroup(root, folder, version)[-1]}/cgroup.procs")
            except Unreadable as error:
                # Not "not-present": that a cgroup cannot be joined does not mean that there are no nodes.
                raise Unreadable(Reason.FAILED, error.unread.detail) from None
            found.append(procs)
    return found


def _deciding(root: Root, folder: str, version: int) -> list[Cgroup]:
    """Return the cgroups of a version that decide over a process' devices."""
    return [
        group
        for group in cgroups(root, folder)
        if group.version == version and (version == 2 or "devices" in group.controllers)
    ]


def _numbers(root: Root, path: str, key: str, *, least: int = 0) -> list[int]:
    words = root.line(path, key).split()
    if not all(re.fullmatch("[0-9]{1,10}", word, re.ASCII) for word in words) or len(words) < least:
        raise Unreadable(Reason.FAILED, f"{path}: {key!r} is not a list of numbers")
    return [int(word) for word in words]
