"""The view that a process has of the node: mounts, cgroups, device nodes. A child reads that of another process."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from egmctl import launch
from egmctl.dataclass import dataclass
from egmctl.driver.reading import Unreadable, if_present, read_or
from egmctl.errors import ChildFailed, EgmctlError
from egmctl.facts import system
from egmctl.facts.root import OtherRoot, Overrides, Root
from egmctl.facts.system import AnyRoot, DeviceNodes
from egmctl.launch import Channel
from egmctl.model.codec import DecodeError, from_json, to_json
from egmctl.model.host import Cgroup
from egmctl.model.record import Reason, Unread

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MountPoint:
    """A mount, from one line of ``mountinfo``."""

    device: str
    """The major and minor number, e.g. ``0:25``."""
    top: str
    """The folder of the file system that is mounted there."""
    path: str
    options: tuple[str, ...]
    kind: str
    """The type of file system."""
    settings: tuple[str, ...]
    """The options of the file system, which name the controllers of a cgroup v1 hierarchy."""


def mount_points(text: str) -> Iterator[MountPoint]:
    """Yield the mounts in the text of a ``mountinfo`` file. Later mounts cover earlier ones.

    A line is ``36 35 98:0 /top /path options [optional...] - type source settings`` (proc_pid_mountinfo(5)). The text
    is split only at line feeds and spaces, which the kernel escapes in names. It does not escape all other white space
    at which Python splits, so the name of a user's FUSE mount could forge lines.
    """
    for line in text.split("\n"):
        fields = line.split(" ")
        if "-" not in fields[6:-3]:
            continue
        kind, _, settings = fields[fields.index("-", 6) + 1 :][:3]
        yield MountPoint(fields[2], fields[3], fields[4], tuple(fields[5].split(",")), kind, tuple(settings.split(",")))


def cgroups(root: Root, folder: str) -> tuple[Cgroup, ...]:
    """Return the cgroups of the process with the ``/proc`` folder ``folder``.

    Raises
    ------
    Unreadable
        The file cannot be read.
    """
    # "5:devices:/path" is a v1 hierarchy with its controllers; "0::/path" is v2.
    fields = (line.split(":", 2) for line in root.lines(f"{folder}/cgroup") if line.count(":") >= 2)
    return tuple(
        Cgroup(version=2 if hierarchy == "0" else 1, controllers=tuple(filter(None, controllers.split(","))), path=path)
        for hierarchy, controllers, path in fields
    )


def memory_left(root: Root) -> int | None:
    """Return how many bytes this process' cgroups still allow it to allocate; ``None`` if no limit is known.

    Reclaimable page cache counts as used, so the result is a lower bound.
    """
    # A limit that can be read counts, whatever those of other cgroups hide: beyond it the kernel kills.
    cgroups = read_or((), lambda: tuple(_remainders(root, "/proc/self", "memory", _MEMORY_FILES)))
    remainders = (read_or(None, remainder) for remainder in cgroups)
    return min((bytes_left for bytes_left in remainders if bytes_left is not None), default=None)


def pids_left(root: Root, folder: str) -> int:
    """Return how many more processes and threads a process' cgroups allow; -1 if there is no limit.

    Parameters
    ----------
    folder
        The ``/proc`` folder of the process.

    Raises
    ------
    Unreadable
        None of the process' cgroups is mounted here, or a file of a limit is there and cannot be read.
    """
    try:
        device_cgroup(root, folder, 1, "pids")
    except Unreadable:
        device_cgroup(root, folder, 2)
    left = _left(root, folder, "pids", dict.fromkeys((2, 1), ("pids.max", "pids.current")))
    return -1 if left is None else left


_MEMORY_FILES = {2: ("memory.max", "memory.current"), 1: ("memory.limit_in_bytes", "memory.usage_in_bytes")}
"""By the version of the cgroup, the files of the limit and of what is in use."""
_UNLIMITED = 1 << 60
"""A limit of version 1 cgroups that is larger is none: the kernel prints the largest number of whole pages."""


def cgroup_memory_limit(root: Root, folder: str) -> int:
    """Return how much memory a process' cgroups allow, in bytes; -1 if there is no limit.

    Parameters
    ----------
    folder
        The ``/proc`` folder of the process.

    Raises
    ------
    Unreadable
        None of the process' cgroups is mounted here, or a file of a limit is there and cannot be read.
    """
    files = [
        f"{place}/{name}"
        for version, (name, _) in _MEMORY_FILES.items()
        for place in _cgroups_if_mounted(root, folder, version, "memory")
    ]
    if not files:
        raise Unreadable(Reason.NOT_PRESENT, f"{folder}/cgroup: no memory cgroup is mounted here")
    limits = (limit for path in files if (limit := _limit(root, path)) is not None)
    least = min(limits, default=_UNLIMITED)
    return -1 if least >= _UNLIMITED else least


def _left(root: Root, folder: str, controller: str, files: Mapping[int, tuple[str, str]]) -> int | None:
    remainders = [remainder() for remainder in _remainders(root, folder, controller, files)]
    return min((bytes_left for bytes_left in remainders if bytes_left is not None), default=None)


def _remainders(
    root: Root, folder: str, controller: str, files: Mapping[int, tuple[str, str]]
) -> Iterator[Callable[[], int | None]]:
    """Yield a function for each cgroup of a process that reads what its limit leaves."""
    for version, (limit, taken) in files.items():
        for place in _cgroups_if_mounted(root, folder, version, controller):
            yield partial(_remainder, root, f"{place}/{limit}", f"{place}/{taken}")


def _remainder(root: Root, limit: str, taken: str) -> int | None:
    """Return what the file of a limit leaves of it; ``None`` if there is no limit."""
    most = _limit(root, limit)
    return None if most is None else max(0, most - root.number(taken))


def _cgroups_if_mounted(root: Root, folder: str, version: int, controller: str) -> tuple[str, ...]:
    return if_present((), lambda: device_cgroup(root, folder, version, controller))


def _limit(root: Root, path: str) -> int | None:
    """Return the limit in a file; ``None`` if it is ``max`` or there is none, as in the root cgroup of version 2.

    Without a limit a cgroup of version 1 has 9223372036854771712, the largest number of whole pages of 4 KiB.
    """
    text = if_present("max", lambda: root.read(path))
    return None if text == "max" or re.fullmatch("9[0-9]{18}", text, re.ASCII) else root.number(path)


def device_cgroup(root: Root, folder: str, version: int, controller: str = "devices") -> tuple[str, ...]:
    """Return the cgroup directories that control a process' devices, from the mounted root to the process' own.

    Parameters
    ----------
    folder
        The ``/proc`` folder of the process.
    version
        The cgroup version: 1 for the controller's hierarchy, 2 for the unified one.
    controller
        The controller (v1).

    Raises
    ------
    Unreadable
        The process is in no such cgroup, or the hierarchy is not mounted here.
    """
    kind = "a cgroup of version 2" if version == 2 else f"the {controller} controller of version 1"
    deciding = _deciding(root, folder, version, controller)
    if not deciding:
        raise Unreadable(Reason.NOT_PRESENT, f"{folder}/cgroup: not in {kind}")
    path = deciding[0].path
    for mount in mount_points(root.read("/proc/self/mountinfo")):
        fits = mount.kind == "cgroup2" if version == 2 else mount.kind == "cgroup" and controller in mount.settings
        inside = path.removeprefix(mount.top.rstrip("/"))
        # The path of a cgroup outside this process' cgroup namespace starts with /../.
        if fits and path.startswith(mount.top) and ".." not in path.split("/") and root.exists(mount.path + inside):
            parts = [part for part in inside.split("/") if part]
            return tuple("/".join((mount.path, *parts[:depth])) for depth in range(len(parts) + 1))
    raise Unreadable(Reason.NOT_PRESENT, f"/proc/self/mountinfo: {kind} is not mounted here")


def id_ranges(root: Root, path: str) -> tuple[tuple[int, int, int], ...]:
    """Return the ranges of a ``uid_map`` or ``gid_map`` as (first id inside, first id outside, length).

    Raises
    ------
    Unreadable
        The file cannot be read or has another format.
    """
    ranges = []
    for line in root.lines(path):
        if not (match := re.fullmatch(r" *([0-9]{1,10}) +([0-9]{1,10}) +([0-9]{1,10})", line, re.ASCII)):
            raise Unreadable(Reason.FAILED, f"{path}: not three numbers a line")
        ranges.append((int(match[1]), int(match[2]), int(match[3])))
    return tuple(ranges)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4

# linux/prctl.h
_GET_DUMPABLE, _SET_DUMPABLE, _SET_KEEPCAPS = 3, 4, 8
_CAPBSET_READ, _CAPBSET_DROP, _SET_NO_NEW_PRIVS = 23, 24, 38
_CAP_AMBIENT, _AMBIENT_CLEAR_ALL = 47, 4

_VERSION_3 = 0x20080522  # _LINUX_CAPABILITY_VERSION_3, linux/capability.h
_CAPABILITIES = 64
"""The number of bits of the kernel's capability sets, 41 of which are defined (Linux 6.18)."""


def give_up(user: Mapping[str, Any] | None) -> None:
    """Drop all capabilities irrevocably, and change to the ids of ``user`` if given.

    The kernel checks uid 0 without capabilities like any user, but uid 0 still owns much of a system. So the calling
    process must run only code that it has already loaded (``egmctl.launch.serve``).

    Parameters
    ----------
    user
        The ``uid``, ``gid`` and ``groups``; ``None`` keeps those of this process.

    Raises
    ------
    StepRefused
        The kernel refused a step.
    """
    _forget_privileges()
    if user is not None:
        for capability in range(_CAPABILITIES):
            if _libc.prctl(_CAPBSET_READ, capability, 0, 0, 0) == 1:
                _prctl("PR_CAPBSET_DROP", _CAPBSET_DROP, capability)
        # After the change, if fs.suid_dumpable is 1, the new user could trace this process. The kernel forbids this
        # while the process has capabilities that the tracer lacks, so they are dropped last.
        _prctl("PR_SET_KEEPCAPS", _SET_KEEPCAPS, 1)
        uids, gids = (user["uid"],) * 3, (user["gid"],) * 3
        _step("setgroups", os.setgroups, user["groups"])
        _step("setresgid", os.setresgid, *gids)
        _step("setresuid", os.setresuid, *uids)
        if (os.getresuid(), os.getresgid()) != (uids, gids):
            raise StepRefused("setresuid", 0)
        _forget_privileges()
    header = struct.pack("=Ii", _VERSION_3, 0)
    if _libc.capset(header, bytes(24)) != 0:
        raise StepRefused("capset", ctypes.get_errno())
    kept = ctypes.create_string_buffer(24)
    if _libc.capget(header, kept) != 0 or any(kept.raw):
        raise StepRefused("capget", ctypes.get_errno())
    if _libc.prctl(_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise StepRefused("PR_GET_DUMPABLE", 0)


def _forget_privileges() -> None:
    """Set no_new_privs, clear the dumpable attribute (against ptrace by others) and drop ambient capabilities."""
    _prctl("PR_SET_NO_NEW_PRIVS", _SET_NO_NEW_PRIVS, 1)
    _prctl("PR_SET_DUMPABLE", _SET_DUMPABLE, 0)
    _prctl("PR_CAP_AMBIENT_CLEAR_ALL", _CAP_AMBIENT, _AMBIENT_CLEAR_ALL)


def _prctl(name: str, option: int, *arguments: int) -> None:
    if _libc.prctl(option, *arguments, *(0,) * (4 - len(arguments))) != 0:
        raise StepRefused(name, ctypes.get_errno())


class StepRefused(EgmctlError):
    """The kernel refused a step of :func:`enter_process`.

    Parameters
    ----------
    step
        The name of the system call or prctl option, or ``cgroup.procs`` or ``root``.
    number
        The error number; 0 if the call succeeded without effect.
    """

    def __init__(self, step: str, number: int) -> None:
        super().__init__(f"{step}: {number}")
        self.step = step
        self.number = number


def _step(name: str, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function and turn an OSError into StepRefused, whose step is ``name`` or else the error's ``strerror``."""
    try:
        return function(*arguments)
    except OSError as error:
        raise StepRefused(name or error.strerror or "", error.errno or 0) from None


def enter_process(arguments: dict[str, Any]) -> None:
    """Join another process' cgroups, open its root directory and drop privileges; the launcher's hook.

    Parameters
    ----------
    arguments
        ``root``: the root directory; ``is_live``: whether it is a process' root and not a copied tree; ``cgroups``: the
        ``cgroup.procs`` to join; ``user``: see :func:`give_up`; ``overrides``: see
        :class:`egmctl.facts.root.Overrides`.
    """
    global _root
    for procs in arguments["cgroups"]:
        _step("cgroup.procs", _write, procs, b"%d" % os.getpid())
    os.chdir("/")
    root = _step("root", os.open, arguments["root"], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    _root = OtherRoot(root, Overrides(**arguments["overrides"]), is_live=arguments["is_live"])
    give_up(arguments["user"])
    _step("", _root.check)


def look(_parent: Channel, arguments: dict[str, Any]) -> Any:
    """Answer one of :data:`_QUESTIONS` about the root that :func:`enter_process` opened; the launcher's target."""
    try:
        return to_json(_QUESTIONS[arguments["question"]](_root, arguments["about"]))
    except Unreadable as error:
        return {"unread": to_json(error.unread)}


def _size_and_free(root: AnyRoot, path: str) -> tuple[int, int]:
    status = root.file_system(path)
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize


_QUESTIONS: Mapping[str, Callable[[OtherRoot, Any], object]] = {
    "nodes": system.read_device_nodes,
    "files": lambda root, paths: [path for path in paths if root.exists(path)],
    "file_system": _size_and_free,
}


def _write(path: str, content: bytes) -> None:
    # Text mode would import a codec.
    file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # In a copied tree this may be any file.
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
    # UTF-8 is built into Python and imports no codec.
    mounts = mount_points(content.decode("utf-8", "replace"))
    return any(mount.device == number and mount.kind in ("cgroup", "cgroup2") for mount in mounts)


_root: OtherRoot


_TIMEOUT_S = 5.0
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2  # include/uapi/linux/capability.h
_GPU = re.compile(r"/dev/nvidia([0-9]{1,3})", re.ASCII)
_CONTROL = re.compile(rf"/dev/nvidia(ctl|-uvm|-uvm-tools)|{system.CAPS}/nvidia-cap[0-9]+", re.ASCII)
_CHANNEL = re.compile(rf"{system.IMEX_CHANNELS}/channel[0-9]+", re.ASCII)


def read_device_nodes_of(root: Root, pid: int, minors: Iterable[int]) -> DeviceNodes:
    """Read all device nodes like :func:`egmctl.facts.system.read_device_nodes`, but as seen by another process.

    Raises
    ------
    Unreadable
        This process is not root, or it cannot join the other process' cgroups or open its root directory.
    """
    if os.geteuid() != 0:
        raise Unreadable(Reason.NO_PERMISSION, "only root can join the cgroup of another process")
    folder = f"/proc/{pid}"
    # In a copied tree the process has no root directory of its own.
    place = f"{folder}/root" if root.is_live else root.directory
    nodes = _ask(root, folder, DeviceNodes, "nodes", list(minors), place, _joinable(root, folder))
    groups = ((nodes.gpus.values(), _GPU), (nodes.control, _CONTROL), (nodes.imex_channels or (), _CHANNEL))
    if not all(paths.fullmatch(node.path) for group, paths in groups for node in group):
        raise _not_an_answer(folder)
    return replace(nodes, gpus={int(node.path.removeprefix("/dev/nvidia")): node for node in nodes.gpus.values()})


def files(root: Root, pid: int, paths: Sequence[str]) -> tuple[str, ...]:
    """Return those of ``paths`` that exist for another process.

    Raises
    ------
    Unreadable
        The process' root directory cannot be opened.
    """
    present = _ask(root, f"/proc/{pid}", tuple[str, ...], "files", list(paths))
    return tuple(path for path in paths if path in present)


def file_system(root: Root, pid: int, path: str) -> tuple[int, int]:
    """Return the size and the free space in bytes of the file system that contains ``path``.

    Parameters
    ----------
    pid
        The process whose root directory is used; 0 is this one.

    Raises
    ------
    Unreadable
        The path does not exist, or the root directory cannot be opened.
    """
    return _ask(root, f"/proc/{pid}", tuple[int, int], "file_system", path) if pid else _size_and_free(root, path)


def _ask(
    root: Root, folder: str, kind: type[T], question: str, about: object, place: str = "", cgroups: Sequence[str] = ()
) -> T:
    """Query the process' root directory in a child. If this process is root, the child has the other process' user ids.

    Parameters
    ----------
    kind
        The type of the answer.
    question, about
        The key in :data:`_QUESTIONS` and its argument.
    place
        The root directory, if not the process' own.
    cgroups
        The ``cgroup.procs`` to join.
    """
    user = None
    overrides: dict[str, Any] = {}
    if os.geteuid() == 0:
        # Real, effective, saved and file system ids.
        uids, gids = (root.numbers(f"{folder}/status", key, least=4) for key in ("Uid", "Gid"))
        user = {"uid": uids[1], "gid": gids[1], "groups": root.numbers(f"{folder}/status", "Groups", least=0)}
        overrides = _overrides(root, folder)
    before = {
        "root": place or root.path(f"{folder}/root"),
        "is_live": root.is_live,
        "cgroups": list(cgroups),
        "user": user,
        "overrides": overrides,
    }
    try:
        answer = launch.run(
            "egmctl.facts.inside:look",
            {"question": question, "about": about},
            timeout_s=_TIMEOUT_S,
            before="egmctl.facts.inside:enter_process",
            before_arguments=before,
            sealed=True,
        )
        if not isinstance(answer, dict) or answer.keys() != {"unread"}:
            return from_json(kind, answer)
        unread = from_json(Unread, answer["unread"])
    except ChildFailed as error:
        raise _failed(folder, error) from None
    except DecodeError:
        raise _not_an_answer(folder) from None
    # NO_PERMISSION of the process' user must not look like a missing right of the user of this command.
    raise Unreadable(Reason.FAILED if unread.reason is Reason.NO_PERMISSION else unread.reason, unread.detail)


def _failed(folder: str, error: ChildFailed) -> Unreadable:
    step, number = error.details.get("step"), error.details.get("number")
    if error.kind != StepRefused.__name__ or not isinstance(step, str) or not isinstance(number, int):
        reason = {"timed-out": Reason.TIMED_OUT, "crashed": Reason.CRASHED}.get(error.how, Reason.FAILED)
        return Unreadable(reason, f"{folder}: the child that stands beside it {error.how}")
    if step == "root":
        return Unreadable.from_os_error(OSError(number, ""), f"{folder}/root")
    reason = Reason.NOT_SUPPORTED if step in ("openat2", "faccessat2") else Reason.FAILED
    answer = errno.errorcode.get(number, "no effect")
    return Unreadable(reason, f"{folder}: the child cannot stand beside it: {step}: {answer}")


def _not_an_answer(folder: str) -> Unreadable:
    return Unreadable(Reason.FAILED, f"{folder}: what the child beside it says is no answer")


def _overrides(root: Root, folder: str) -> dict[str, Any]:
    """Return the fields of :class:`egmctl.facts.root.Overrides` for the process' capabilities."""
    (capabilities, *_) = root.numbers(f"{folder}/status", "CapEff", 16)
    opens, reads = (bool(capabilities >> bit & 1) for bit in (_DAC_OVERRIDE, _DAC_READ_SEARCH))
    # The ids that its user namespace maps, as seen from outside.
    uids, gids = (
        [(first, count) for _, first, count in id_ranges(root, f"{folder}/{name}")] for name in ("uid_map", "gid_map")
    )
    return {"searches": opens or reads, "opens": opens, "uids": uids, "gids": gids}


def _joinable(root: Root, folder: str) -> list[str]:
    """Return the ``cgroup.procs`` files of the process' device cgroups, except those that this process is in.

    Raises
    ------
    Unreadable
        One of the cgroups cannot be joined. The others alone would report too many devices as permitted.
    """
    files = []
    for version in (1, 2):
        if _deciding(root, folder, version) == _deciding(root, "/proc/self", version):
            continue
        try:
            files.append(root.path(f"{device_cgroup(root, folder, version)[-1]}/cgroup.procs"))
        except Unreadable as error:
            # The reason is not "not-present", because that would mean that there are no device nodes.
            raise Unreadable(Reason.FAILED, error.unread.detail) from None
    return files


def _deciding(root: Root, folder: str, version: int, controller: str = "devices") -> list[Cgroup]:
    """Return the process' cgroups of a version, for v1 only those with the controller."""
    return [
        group
        for group in cgroups(root, folder)
        if group.version == version and (version == 2 or controller in group.controllers)
    ]
