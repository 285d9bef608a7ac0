"""Functions in machine code that CPU threads call, so that egmctl needs no compiler (docs/decisions/0021).

Beside this file are the source of each function for each architecture, ``NAME.ARCHITECTURE.S``, and the bytes that
they assemble to, ``code.json``, which ``tools/assemble.py`` writes.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
from pathlib import Path
from typing import Any

from egmctl.launch.channel import memory_file

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class MachineFunction:
    """A function in machine code, mapped into this process.

    Parameters
    ----------
    name
        The name of its source files.
    result, arguments
        The types of its result and arguments, as ctypes names them.

    Raises
    ------
    OSError
        The process cannot map code, or there is no code for this architecture.
    """

    def __init__(self, name: str, result: type[Any] | None, *arguments: type[Any]) -> None:
        self._address = _map(_code(name, platform.machine()))
        self.call = ctypes.CFUNCTYPE(result, *arguments)(self._address)
        """The function. It must not be called after :meth:`close`."""

    def close(self) -> None:
        """Unmap the code."""
        _libc.munmap(self._address, mmap.PAGESIZE)


def _code(name: str, architecture: str) -> bytes:
    codes: dict[str, str] = json.loads(Path(__file__).with_name("code.json").read_text(encoding="ascii"))
    code = codes.get(f"{name}.{architecture}")
    if code is None:
        raise OSError(f"no machine code for {architecture}")
    return bytes.fromhex(code)


def _map(code: bytes) -> int:
    """Return the address of a page that holds the code."""
    with memory_file("egmctl-code") as file:
        file.write(code.ljust(mmap.PAGESIZE, b"\0"))
        # For a file mapping, the kernel keeps the instruction caches coherent with what was written.
        address: int | None = _libc.mmap(
            None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, file.fileno(), 0
        )
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), f"mmap of code: {os.strerror(ctypes.get_errno())}")
    return address
