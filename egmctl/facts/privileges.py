"""Becomes another user for good: every capability is gone, and that user cannot take hold of this process."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from functools import partial

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4

# linux/prctl.h
_GET_DUMPABLE, _SET_DUMPABLE, _SET_KEEPCAPS = 3, 4, 8
_CAPBSET_READ, _CAPBSET_DROP, _SET_NO_NEW_PRIVS = 23, 24, 38
_CAP_AMBIENT, _AMBIENT_CLEAR_ALL = 47, 4

_VERSION_3 = 0x20080522  # _LINUX_CAPABILITY_VERSION_3, linux/capability.h
_CAPABILITIES = 64
"""As many as the kernel's sets have bits; it knows 41 (Linux 6.18)."""


def give_up(uid: int, gid: int, groups: Sequence[int]) -> None:
    """Take a user's ids, and keep no capability and no way to one: not as uid 0 either.

    Of uid 0 without capabilities the kernel asks what it asks of every user, but much of a system is uid 0's own. So
    this is for a process that then runs nothing but what it has loaded (``egmctl.launch.seal``).

    Raises
    ------
    OSError
        At the first step that the kernel refuses; its ``strerror`` names the step.
    """
    forget_privileges()
    for capability in range(_CAPABILITIES):
        if _libc.prctl(_CAPBSET_READ, capability, 0, 0, 0) == 1:
            _prctl("PR_CAPBSET_DROP", _CAPBSET_DROP, capability)
    # A change of user makes a process one that its new user may trace, where fs.suid_dumpable is 1. As long as it has
    # capabilities that the tracer has not, the kernel forbids that: they go last.
    _prctl("PR_SET_KEEPCAPS", _SET_KEEPCAPS, 1)
    for step, change in (
        ("setgroups", partial(os.setgroups, groups)),
        ("setresgid", partial(os.setresgid, gid, gid, gid)),
        ("setresuid", partial(os.setresuid, uid, uid, uid)),
    ):
        try:
            change()
        except OSError as error:
            raise OSError(error.errno, step) from None
    drop_capabilities()
    if (os.getresuid(), os.getresgid()) != ((uid,) * 3, (gid,) * 3):
        raise OSError(0, "setresuid")


def drop_capabilities() -> None:
    """Empty the sets of capabilities, and let no other process of this user trace this one or read its memory.

    Raises
    ------
    OSError
        As for :func:`give_up`.
    """
    forget_privileges()
    header = struct.pack("=Ii", _VERSION_3, 0)
    if _libc.capset(header, bytes(24)) != 0:
        raise OSError(ctypes.get_errno(), "capset")
    kept = ctypes.create_string_buffer(24)
    if _libc.capget(header, kept) != 0 or any(kept.raw):
        raise OSError(ctypes.get_errno(), "capget")
    if _libc.prctl(_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(0, "PR_GET_DUMPABLE")


def forget_privileges() -> None:
    """Gain nothing by execve(2) from now on, and be traced by nobody who has not the right to trace all."""
    _prctl("PR_SET_NO_NEW_PRIVS", _SET_NO_NEW_PRIVS, 1)
    _prctl("PR_SET_DUMPABLE", _SET_DUMPABLE, 0)
    _prctl("PR_CAP_AMBIENT_CLEAR_ALL", _CAP_AMBIENT, _AMBIENT_CLEAR_ALL)


def _prctl(name: str, option: int, *arguments: int) -> None:
    if _libc.prctl(option, *arguments, *(0,) * (4 - len(arguments))) != 0:
        raise OSError(ctypes.get_errno(), name)
