"""System calls without a wrapper in Python: trials whether they are permitted, and BPF programs of device cgroups.

Trials run in child processes, because a system call filter may kill the caller, as systemd's ``SystemCallFilter`` does
(container runtimes return EPERM). The breadcrumb names the call in progress.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from collections.abc import Callable, Mapping
from typing import Any

from egmctl.driver import breadcrumb
from egmctl.driver.reading import NUMBERS, error_name
from egmctl.launch import Channel

PROBES = ("get_mempolicy", "mbind", "set_mempolicy", "pidfd_open")
"""The system calls to try, without side effects: get the policy, set the default policy for an empty page and for this
process, and open a descriptor of this process. HOST_NUMA memory needs the first two: NCCL tries them before it uses
such memory (src/misc/cudawrap.cc), and Docker's seccomp profile forbids them without CAP_SYS_NICE."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def attempt(parent: Channel, arguments: dict[str, Any]) -> None:
    """Try system calls and send each result as an event ``{"call", "answer"}``; the launcher's target.

    Parameters
    ----------
    arguments
        ``calls``: those of :data:`PROBES` to try, in this order.
    """
    for name in arguments["calls"]:
        breadcrumb.enter(name)
        parent.send({"call": name, "answer": _answer(_TRIALS[name])})
        breadcrumb.leave()


def device_programs(_parent: Channel, arguments: dict[str, Any]) -> dict[str, Any]:
    """List the BPF programs that control the devices of a v2 cgroup; the launcher's target.

    Parameters
    ----------
    arguments
        ``cgroups``: the directories from the root of the hierarchy down to the cgroup.

    Returns
    -------
    dict
        ``programs``, each with ``id``, ``name`` and ``cgroup``, the directory to which it is attached (``None``: above
        the given ones); or ``errno``.
    """
    cgroups = arguments["cgroups"]
    try:
        attached = {number: cgroup for cgroup in cgroups for number in _query(cgroup, 0)}
        in_force = _query(cgroups[-1], _QUERY_EFFECTIVE)
    except OSError as error:
        return {"errno": error.errno}
    return {"programs": [{"id": item, "name": _name(item), "cgroup": attached.get(item)} for item in in_force]}


def take_descriptor(pid: int, fd: int) -> int:
    """Duplicate another process' descriptor with pidfd_getfd(2), which needs permission to ptrace(2) that process.

    Raises
    ------
    OSError
        EPERM if Yama or a missing capability forbids it, ENOSYS before Linux 5.6.
    """
    process = system_call("pidfd_open", pid, 0)
    try:
        return system_call("pidfd_getfd", process, fd, 0)
    finally:
        os.close(process)


def _answer(trial: Callable[[], object]) -> str:
    try:
        trial()
    except OSError as error:
        return error_name(error)
    return "ok"


def system_call(name: str, *arguments: Any) -> int:
    """Make a system call of :data:`NUMBERS` and return its result; raise OSError if it fails.

    The error is ENOSYS if the number is not known for this architecture, as from a kernel without the call.
    """
    number = NUMBERS.get(os.uname().machine, {}).get(name)
    if number is None:
        raise OSError(errno.ENOSYS, name)
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result: int = _libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


def _mbind() -> None:
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        # MPOL_DEFAULT (0) without nodes does not change the page's policy.
        system_call("mbind", ctypes.addressof(ctypes.c_char.from_buffer(page)), mmap.PAGESIZE, 0, None, 0, 0)


def _pidfd_open() -> None:
    os.close(system_call("pidfd_open", os.getpid(), 0))


_TRIALS: Mapping[str, Callable[[], object]] = {
    "get_mempolicy": lambda: system_call("get_mempolicy", None, None, 0, None, 0),
    "mbind": _mbind,
    "set_mempolicy": lambda: system_call("set_mempolicy", 0, None, 0),
    "pidfd_open": _pidfd_open,
}

_PROG_GET_FD_BY_ID, _OBJ_GET_INFO_BY_FD, _PROG_QUERY = 13, 15, 16  # enum bpf_cmd, include/uapi/linux/bpf.h
_CGROUP_DEVICE = 6  # enum bpf_attach_type
_QUERY_EFFECTIVE = 1
_MOST_PROGRAMS = 64
"""The kernel's limit per cgroup (BPF_CGROUP_MAX_PROGS)."""


def _query(cgroup: str, flags: int) -> list[int]:
    numbers = (ctypes.c_uint32 * _MOST_PROGRAMS)()
    directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # target_fd, attach_type, query_flags, attach_flags, prog_ids, prog_cnt
        words = directory, _CGROUP_DEVICE, flags, 0, ctypes.addressof(numbers), _MOST_PROGRAMS
        attributes = _attributes("=IIIIQI", *words)
        system_call("bpf", _PROG_QUERY, attributes, len(attributes))
    finally:
        os.close(directory)
    (count,) = struct.unpack_from("=I", attributes, 24)
    return list(numbers[:count])


def _name(number: int) -> str | None:
    """Return the name of a BPF program; ``None`` if it cannot be read, e.g. because the program no longer exists."""
    try:
        attributes = _attributes("=I", number)
        program = system_call("bpf", _PROG_GET_FD_BY_ID, attributes, len(attributes))
    except OSError:
        return None
    # struct bpf_prog_info: the name is the 16 bytes at offset 64.
    information = ctypes.create_string_buffer(80)
    try:
        attributes = _attributes("=IIQ", program, len(information), ctypes.addressof(information))
        system_call("bpf", _OBJ_GET_INFO_BY_FD, attributes, len(attributes))
    except OSError:
        return None
    finally:
        os.close(program)
    return information.raw[64:80].split(b"\0")[0].decode("ascii", "replace")


def _attributes(form: str, *words: int) -> ctypes.Array[ctypes.c_char]:
    """Return the first 64 bytes of a union bpf_attr, with zeros after the given values as the kernel requires."""
    return ctypes.create_string_buffer(struct.pack(form, *words), 64)
