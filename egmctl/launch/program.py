"""Run system programs, e.g. ``nvidia-imex-ctl``, with a time limit and an output limit, and kill all descendants."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from egmctl.signals import stopping

KEEPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "keeper.py")

END_S = 3.0
"""The time limit for the keeper to exit, a little longer than its own limit (:mod:`egmctl.launch.keeper`)."""


def kept(words: Sequence[str], *, grace_s: float, passes_input: bool) -> list[str]:
    """Return the command line that runs a program so that it and all its descendants end with the caller.

    Parameters
    ----------
    grace_s
        The time in seconds that the program has to exit after the other end of its standard input is closed.
    passes_input
        Whether the program inherits the standard input; otherwise it reads ``/dev/null``.
    """
    # -I -S: no site packages and no folders from the environment, which makes the start fast.
    return [sys.executable, "-I", "-S", KEEPER, f"{grace_s:g}", "pass" if passes_input else "none", *words]


def output_of(words: Sequence[str], *, timeout_s: float, limit: int, environment: Mapping[str, str]) -> bytes:
    """Run a program and return at most the first ``limit`` bytes of its standard output; ignore its exit code.

    A program that writes more is killed. All descendants are killed when the program ends, when it times out, and when
    this process dies.

    Parameters
    ----------
    environment
        The complete environment of the program.

    Raises
    ------
    OSError
        The program cannot be started.
    TimeoutError
        The program has neither closed its output nor reached ``limit`` in time.
    """
    if not os.path.isfile(words[0]) or not os.access(words[0], os.X_OK):
        # Raise the error of the kernel here; the keeper could report it only as text.
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
    """Read a pipe until end of file or ``limit`` bytes; raise TimeoutError at the monotonic time ``until``."""
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


def run_through(words: Sequence[str], environment: Mapping[str, str], standard_error: int | None = None) -> int:
    """Run a program with this process's standard streams and return its exit code, or minus the signal that ended it.

    SIGTERM and SIGHUP are passed on. So are SIGINT and SIGQUIT, unless a terminal has sent them to the program too.

    Parameters
    ----------
    environment
        The complete environment of the program.
    standard_error
        The descriptor of its standard error; ``None``: that of this process.

    Raises
    ------
    OSError
        The program cannot be started.
    """
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if process is None:
            # The program may run before its start has returned here.
            early.append(number)
        elif number not in (signal.SIGINT, signal.SIGQUIT) or not _in_foreground():
            process.send_signal(number)

    with stopping(pass_on, signal.SIGQUIT):
        process = subprocess.Popen(list(words), env=dict(environment), stderr=standard_error)  # noqa: S603 - the user's
        for number in early:
            pass_on(number, None)
        return process.wait()


def _in_foreground() -> bool:
    """Return whether this process belongs to the foreground group of a terminal, which Ctrl-C reaches as a whole."""
    with contextlib.suppress(OSError), open("/dev/tty", "rb", buffering=0) as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False
