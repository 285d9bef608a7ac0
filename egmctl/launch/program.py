"""Runs programs of the system, such as ``nvidia-imex-ctl``, within time and bounds; nothing of them stays behind."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import BinaryIO

KEEPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "keeper.py")

END_S = 3.0
"""What the keeper may take to end everything, a little more than it tries (:mod:`egmctl.launch.keeper`)."""


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


def converse(process: subprocess.Popen[bytes], feed: BinaryIO, *, timeout_s: float, limit: int) -> tuple[bytes, bytes]:
    """Feed a program, and return the beginning of its output and the end of its errors, ``limit`` bytes each at most.

    A program that writes more than that to its output is let go of there.

    Parameters
    ----------
    process
        Started as :func:`kept` says, its three standard streams pipes; it is over when this returns.
    feed
        What it reads.

    Raises
    ------
    TimeoutError
        If it is not over in time.
    """
    assert process.stdin is not None  # noqa: S101 - they are pipes
    assert process.stdout is not None  # noqa: S101
    assert process.stderr is not None  # noqa: S101
    until = time.monotonic() + timeout_s
    out, errors, rest = b"", b"", feed.read(1 << 16)
    os.set_blocking(process.stdin.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdin, selectors.EVENT_WRITE)
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stderr, selectors.EVENT_READ)
        try:
            while {process.stdout, process.stderr} & {key.fileobj for key in selector.get_map().values()}:
                ready = selector.select(max(0.0, until - time.monotonic()))
                if time.monotonic() >= until:
                    raise TimeoutError
                for key, _ in ready:
                    if key.fileobj is process.stdin:
                        try:
                            rest = rest[os.write(key.fd, rest) :] or feed.read(1 << 16)
                        except BrokenPipeError:
                            rest = b""
                        if not rest:
                            selector.unregister(process.stdin)
                            process.stdin.close()
                        continue
                    part = os.read(key.fd, 1 << 16)
                    if not part:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is process.stderr:
                        errors = (errors + part)[-limit:]
                    else:
                        out += part
                        if len(out) > limit:
                            return out[:limit], errors
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            return out, errors
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have the keeper of a program end it and all that it has started."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.terminate()
        process.wait(END_S)
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


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
