"""What a test does to a child before it becomes the command: other users, namespaces, filters of system calls."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from egmctl.driver.reading import NUMBERS

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4

NOBODY = 65534

_SET_DUMPABLE, _SET_KEEPCAPS, _SET_SECCOMP, _CAPBSET_DROP, _SET_NO_NEW_PRIVS, _CAP_AMBIENT = (
    4,
    8,
    22,
    24,
    38,
    47,
)  # linux/prctl.h
_CAP_DAC_READ_SEARCH = 2
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000

ERRNO, KILL = 0x00050000, 0x80000000
"""What a filter does with a call: answer with an error number, or kill the process (linux/seccomp.h)."""


def become_nobody() -> None:
    """Become a user without rights, who may still read the interpreter's files, wherever they lie.

    access(2) does not count that: of a user other than root it passes over all capabilities.
    """
    _prctl(_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    _capset(1 << _CAP_DAC_READ_SEARCH)
    _prctl(_CAP_AMBIENT, 2, _CAP_DAC_READ_SEARCH)


def become(uid: int) -> None:
    """Become a user without any capability, which no execve(2) brings back: not as uid 0 either."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _capset(0)
    _prctl(_SET_NO_NEW_PRIVS, 1)


def lose_capability(bit: int) -> None:
    """Lose one capability, for what is executed next."""
    _prctl(_CAPBSET_DROP, bit)


def enter_user_namespace() -> None:
    """Become root of a user namespace that knows no other user."""
    uid, gid = os.getuid(), os.getgid()
    # Who has changed its user does not own its files in /proc.
    _prctl(_SET_DUMPABLE, 1)
    if _libc.unshare(_CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def enter_mount_namespace() -> None:
    """Get mounts of one's own, at first the same ones."""
    if _libc.unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def filter_calls(names: Iterable[str], action: int, errno: int = 0) -> None:
    """Put a seccomp filter on the calling process that takes ``action`` for these system calls."""
    numbers = NUMBERS[os.uname().machine]
    load_number, allow = _classic(0x20, 0), _classic(0x06, 0x7FFF0000)
    # jeq: to the next instruction if it is the number, else past it.
    checks = [_classic(0x15, numbers[name], 0, 1) + _classic(0x06, action | errno) for name in names]
    program = b"".join([load_number, *checks, allow])
    code = ctypes.create_string_buffer(program, len(program))
    filters = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
    _prctl(_SET_NO_NEW_PRIVS, 1)
    _prctl(_SET_SECCOMP, 2, ctypes.addressof(filters))


def _capset(bits: int) -> None:
    # struct __user_cap_header_struct, version 3, and two of effective, permitted, inheritable.
    header = struct.pack("=Ii", 0x20080522, 0)
    if _libc.capset(header, struct.pack("=6I", bits, bits, bits, 0, 0, 0)) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _classic(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return an instruction of classic BPF (struct sock_filter)."""
    return struct.pack("=HBBI", code, if_true, if_false, k)


def _prctl(option: int, *arguments: int) -> None:
    if _libc.prctl(option, *arguments, *(0,) * (4 - len(arguments))) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")
