"""The confinement of a process: namespaces, capabilities, system call filters, limits, mounts and its device cgroup.

The values come from the process' files in ``/proc``, so they can be read for another process too, except the results of
system calls.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from egmctl import launch
from egmctl.driver.reading import NUMBERS, Reasons, Unreadable, read_or
from egmctl.errors import ChildFailed
from egmctl.facts import inside
from egmctl.facts.inside import cgroup_memory_limit, cgroups, device_cgroup, id_ranges, mount_points, pids_left
from egmctl.facts.root import Root
from egmctl.facts.system_calls import PROBES
from egmctl.model.host import Confinement, DeviceList, DeviceProgram, DeviceUnit, Mount
from egmctl.model.record import Reason, Unread

NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user")
LIMITS = {
    "as": "Max address space",
    "memlock": "Max locked memory",
    "nofile": "Max open files",
    "nproc": "Max processes",
    "stack": "Max stack size",
}

_MOUNT = re.compile(r"/|/dev|/dev/shm|(/dev|/proc/driver)/(nvidia|infiniband)[A-Za-z0-9:._/-]*")
"""The recorded mounts: those that decide which device nodes exist and which parts of the driver's folder are hidden."""
_RULE = re.compile(r"[abc] ([0-9]+|\*):([0-9]+|\*) [rwm]{1,3}", re.ASCII)
_UNIT = re.compile(r"[A-Za-z0-9@_.:\\-]{1,250}\.(service|scope|slice)", re.ASCII)
_UNIT_FOLDERS = (
    *("/run/systemd/transient", "/run/systemd/system.control", "/etc/systemd/system"),
    *("/run/systemd/system", "/usr/lib/systemd/system"),
)
"""Folders of unit files (systemd.unit(5), "Unit File Load Path")."""
_MOST_DROP_INS = 32
_SETTING = re.compile(
    r"^(DevicePolicy=[a-z]{1,20}|DeviceAllow=[A-Za-z0-9/_.*-]{1,64}(?: [rwm]{1,3})?)$", re.M | re.ASCII
)
_SECCOMP = ("none", "strict", "filter")
_SHM = "/dev/shm"  # noqa: S108 - looked at, not written to
_TIMEOUT_S = 5.0


def confinement(root: Root, pid: int = 0) -> Confinement:
    """Read the confinement of a process.

    Parameters
    ----------
    pid
        The process; 0 is this one.
    """
    folder = f"/proc/{pid or 'self'}"
    status = f"{folder}/status"
    reasons = Reasons()
    return reasons.record(
        Confinement,
        namespaces=reasons.mapping("namespaces", NAMESPACES, lambda name: _namespace(root, f"{folder}/ns/{name}")),
        pid_namespace_depth=lambda: len(root.line(status, "NSpid").split()),
        uid_map=lambda: id_ranges(root, f"{folder}/uid_map"),
        capabilities=lambda: root.numbers(status, "CapEff", 16)[0],
        seccomp=lambda: _seccomp(root, status),
        no_new_privileges=lambda: bool(root.numbers(status, "NoNewPrivs")[0]),
        limits=reasons.mapping("limits", LIMITS, lambda name: _limit(root, f"{folder}/limits", LIMITS[name])),
        pids_left=lambda: pids_left(root, folder),
        memory_limit_bytes=lambda: cgroup_memory_limit(root, folder),
        mounts=lambda: _mounts(root, f"{folder}/mountinfo"),
        **reasons.fields("shm_total_bytes shm_free_bytes", lambda: inside.file_system(root, pid, _SHM)),
        ptrace_scope=lambda: root.number("/proc/sys/kernel/yama/ptrace_scope"),
        device_rules=lambda: _rules(root, device_cgroup(root, folder, 1)[-1]),
        device_lists=_device_lists(root, folder),
        device_units=_device_units(root, folder),
        device_programs=lambda: _device_programs(root, folder),
        system_calls=lambda: _system_calls(pid, reasons),
    )


def _seccomp(root: Root, path: str) -> str:
    (mode, *_) = root.numbers(path, "Seccomp")
    if not 0 <= mode < len(_SECCOMP):
        raise Unreadable(Reason.FAILED, f"{path}: Seccomp is {mode}")
    return _SECCOMP[mode]


def _namespace(root: Root, path: str) -> int:
    # pid:[4026531836]
    if match := re.fullmatch(r"[a-z]+:\[([0-9]{1,19})\]", root.link(path), re.ASCII):
        return int(match[1])
    raise Unreadable(Reason.FAILED, f"{path}: no number in brackets")


def _limit(root: Root, path: str, words: str) -> int:
    # Max locked memory         8388608              8388608              bytes
    match = re.search(rf"^{words} +(unlimited|[0-9]{{1,19}}) ", root.read(path), re.MULTILINE | re.ASCII)
    if match is None:
        raise Unreadable(Reason.NOT_PRESENT, f"{path}: no line {words!r}")
    return -1 if match[1] == "unlimited" else int(match[1])


def _mounts(root: Root, path: str) -> tuple[Mount, ...]:
    return tuple(
        Mount(path=mount.path, kind=mount.kind, options=mount.options)
        for mount in mount_points(root.read(path))
        if _MOUNT.fullmatch(mount.path)
    )


def _rules(root: Root, cgroup: str) -> tuple[str, ...]:
    return tuple(line for line in root.lines(f"{cgroup}/devices.list") if _RULE.fullmatch(line))


def _device_lists(root: Root, folder: str) -> tuple[DeviceList, ...]:
    directories = read_or((), lambda: device_cgroup(root, folder, 1))
    lists = []
    for directory in directories:
        with suppress(Unreadable):
            rules = _rules(root, directory)
            lists.append(DeviceList(cgroup=directory.removeprefix(directories[0]) or "/", rules=rules))
    return tuple(lists)


def _device_units(root: Root, folder: str) -> tuple[DeviceUnit, ...]:
    """Return the device settings in this host's files of the units in the process' cgroup paths, outermost first."""
    groups = read_or((), lambda: cgroups(root, folder))
    units = dict.fromkeys(part for group in groups for part in group.path.split("/") if _UNIT.fullmatch(part))
    return tuple(setting for unit in units for setting in _unit_settings(root, unit))


def _unit_settings(root: Root, unit: str) -> Iterator[DeviceUnit]:
    for place in _UNIT_FOLDERS:
        drop_ins = root.names_if_any(f"{place}/{unit}.d")[:_MOST_DROP_INS]
        for path in (f"{place}/{unit}", *(f"{place}/{unit}.d/{name}" for name in drop_ins if name.endswith(".conf"))):
            with suppress(Unreadable):
                settings = tuple(_SETTING.findall(root.read(path)))
                if settings:
                    yield DeviceUnit(unit=unit, file=path, settings=settings)


def _device_programs(root: Root, folder: str) -> tuple[DeviceProgram, ...]:
    _check_architecture()
    directories = [root.path(directory) for directory in device_cgroup(root, folder, 2)]
    call = "bpf(BPF_PROG_QUERY)"
    try:
        answer: Any = launch.run(
            "egmctl.facts.system_calls:device_programs", {"cgroups": directories}, timeout_s=_TIMEOUT_S
        )
    except ChildFailed as error:
        raise Unreadable(_how(error), f"{call}: the child {error.how}") from None
    if "errno" in answer:
        raise Unreadable.from_os_error(OSError(answer["errno"], ""), call)
    return tuple(_program(program, directories[0]) for program in answer["programs"])


def _program(program: dict[str, Any], top: str) -> DeviceProgram:
    name, cgroup = program["name"], program["cgroup"]
    no_name = Unreadable(Reason.NOT_PRESENT, "bpf(BPF_OBJ_GET_INFO_BY_FD)")
    no_cgroup = Unreadable(Reason.NOT_PRESENT, "attached above the cgroups that are mounted here")
    return Reasons().record(
        DeviceProgram,
        id=program["id"],
        name=no_name if name is None else name,
        cgroup=no_cgroup if cgroup is None else cgroup.removeprefix(top) or "/",
    )


def _system_calls(pid: int, reasons: Reasons) -> dict[str, str | None]:
    if pid:
        raise Unreadable(Reason.NOT_ASKED, "what they answer is known to the process itself only")
    _check_architecture()
    answers: dict[str, str | None] = {}
    while left := [name for name in PROBES if name not in answers]:
        try:
            launch.run(
                "egmctl.facts.system_calls:attempt",
                {"calls": left},
                timeout_s=_TIMEOUT_S,
                on_event=lambda event: answers.update({event["call"]: event["answer"]}),
            )
        except ChildFailed as error:
            if error.how == "crashed" and error.last_call in left:
                answers[error.last_call] = "killed"
                continue
            for name in left:
                if name not in answers:
                    answers[name] = None
                    unread = Unread(reason=_how(error), detail=f"{name}: the child {error.how}")
                    reasons.unread[f"system_calls.{name}"] = unread
    return answers


def _how(error: ChildFailed) -> Reason:
    return Reason.TIMED_OUT if error.how == "timed-out" else Reason.CRASHED


def _check_architecture() -> None:
    if os.uname().machine not in NUMBERS:
        raise Unreadable(Reason.NOT_SUPPORTED, f"no numbers of system calls for {os.uname().machine}")
