"""Runs programs of the system, such as ``nvidia-imex-ctl``, within time and bounds; nothing of them stays behind."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

KEEPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "keeper.py")

END_S = 3.0
"""The keeper's time to end everything, a little more than it tries (:mod:`egmctl.launch.keeper`)."""


def kept(words: Sequence[str], *, grace_s: float, passes_input: bool) -> list[str]:
    """Return the command line under which a program ends with whoever started it, and all its descendants with it.

    Parameters
    ----------
    grace_s
        Seconds that it has to end by itself once the other end of its standard input is closed.
    passes_input
        Whether the program reads that standard input; else it has none.
    """
    # Not the interpreter's own modules of a site, nor a folder that the environment names: a bare one, which is fast.
    return [sys.executable, "-I", "-S", KEEPER, f"{grace_s:g}", "pass" if passes_input else "none", *words]


def output_of(words: Sequence[str], *, timeout_s: float, limit: int, environment: Mapping[str, str]) -> bytes:
    """Run a program and return the beginning of its standard output, at most ``limit`` bytes; its code does not matter.

    A program that writes more is ended there. Whatever it has started ends with it, with the time, and with this
    process, however that dies.

    Parameters
    ----------
    environment
        All of the program's environment.

    Raises
    ------
    OSError
        If it cannot be started.
    TimeoutError
        If it has not ended in time.
    """
    if not os.path.isfile(words[0]) or not os.access(words[0], os.X_OK):
        # As the kernel would say it: the keeper could only say it in words.
        with open(words[0], "rb"):
            raise PermissionError(13, os.strerror(13), words[0])
    process = subprocess.Popen(  # noqa: S603 (callers run fixed programs with fixed arguments)
        kept(words, grace_s=0, passes_input=False),
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None  # noqa: S101 - they are pipes
    assert process.stdout is not None  # noqa: S101
    try:
        return _read(process.stdout.fileno(), time.monotonic() + timeout_s, limit)
    finally:
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        process.stdout.close()


def _read(descriptor: int, until: float, limit: int) -> bytes:
    """Read a pipe to its end, or to the limit."""
    parts: list[bytes] = []
    room = limit
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while room > 0:
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            raise TimeoutError
        part = os.read(descriptor, min(room, 1 << 16))
        if not part:
            break
        parts.append(part)
        room -= len(part)
    return b"".join(parts)
