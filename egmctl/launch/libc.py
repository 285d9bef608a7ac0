"""The three calls into the C library that the launcher needs and Python does not reliably offer.

ctypes is allowed in this room for these alone. All go through the C library's own wrappers, so no system call
number is assumed; ``memfd_create`` is called here because ``os.memfd_create`` is missing from Pythons that were
built against an old glibc (uv's standalone builds before 2026-07), whatever glibc they run on.
"""

from __future__ import annotations

import ctypes
import io
import os
import signal

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
_libc.memfd_create.argtypes = [ctypes.c_char_p, ctypes.c_uint]

_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_MFD_CLOEXEC = 1  # linux/memfd.h
_KEEP_SIZE_AND_PUNCH_HOLE = 1 | 2  # linux/falloc.h


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; end now if that has happened.

    The signal follows the parent's *thread*, not its process (prctl(2), PR_SET_PDEATHSIG).

    Parameters
    ----------
    parent_pid
        Who started this process. Another parent means that the starter died before the request was made.
    """
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os._exit(1)


def memory_file(name: str) -> io.FileIO:
    """Return an empty file that exists only in memory; its descriptor is closed on exec.

    Parameters
    ----------
    name
        Shown under ``/proc/PID/fd``.
    """
    fd = _libc.memfd_create(name.encode(), _MFD_CLOEXEC)
    if fd < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"memfd_create: {os.strerror(errno)}")
    return io.FileIO(fd, "r+")


def forget(file: io.FileIO, length: int) -> None:
    """Give back the memory of the first ``length`` bytes of a memory file (whole pages); nothing after them moves."""
    _libc.fallocate(file.fileno(), _KEEP_SIZE_AND_PUNCH_HOLE, 0, length)
