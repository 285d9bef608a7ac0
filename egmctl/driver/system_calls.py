"""Numbers of the system calls that have no wrapper in Python or the C library."""

from __future__ import annotations

from collections.abc import Mapping

_SINCE_5_0 = {"pidfd_open": 434, "openat2": 437, "pidfd_getfd": 438, "faccessat2": 439}
"""Calls that are newer than Linux 5.0 have the same number everywhere."""

NUMBERS: Mapping[str, Mapping[str, int]] = {
    "x86_64": {"mbind": 237, "set_mempolicy": 238, "get_mempolicy": 239, "move_pages": 279, "bpf": 321, **_SINCE_5_0},
    "aarch64": {"mbind": 235, "get_mempolicy": 236, "set_mempolicy": 237, "move_pages": 239, "bpf": 280, **_SINCE_5_0},
}
"""By the architecture that uname(2) names: arch/x86/entry/syscalls/syscall_64.tbl and, for aarch64,
include/uapi/asm-generic/unistd.h. On others nothing is called."""
