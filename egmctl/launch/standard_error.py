"""The standard error of a program: passed on unchanged as it comes, a terminal remains one, and kept to be read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

COPIER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "copier.py")
KEPT_BYTES = 1 << 20
"""The number of bytes that are kept of the beginning and, twice, of the end."""
DRAIN_S = 0.5
"""The time in which the rest of the output is passed on after the program has ended. A child may keep it open."""


class StandardError:
    """A pipe, or a terminal if this process's standard error is one, for the standard error of a program.

    Parameters
    ----------
    folder
        An empty folder for what is kept.

    Raises
    ------
    OSError
        There are no descriptors or terminals left, or no process can be started.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._terminal = os.isatty(2)
        ours, self.descriptor = _terminal() if self._terminal else os.pipe()
        words = [sys.executable, "-I", "-S", COPIER, str(folder), str(KEPT_BYTES)]
        try:
            self._copier = subprocess.Popen(words, stdin=ours, start_new_session=not self._terminal)  # noqa: S603
        except OSError:
            os.close(self.descriptor)
            raise
        finally:
            if not self._terminal:
                os.close(ours)
        self._size_of = ours if self._terminal else None

    @contextlib.contextmanager
    def resized(self) -> Iterator[None]:
        """Let the program's terminal change its size with this process's, inside the block."""
        if self._size_of is None:
            yield
            return
        former = signal.signal(signal.SIGWINCH, self._resize)
        try:
            yield
        finally:
            signal.signal(signal.SIGWINCH, former)

    def _resize(self, _number: int, _frame: FrameType | None) -> None:
        if self._size_of is not None:
            _copy_size(2, self._size_of)

    def finish(self) -> bool:
        """Close this process's end after the program has ended; return whether another process still has it open."""
        self.close()
        try:
            self._copier.wait(DRAIN_S)
        except subprocess.TimeoutExpired:
            return True
        return False

    def close(self) -> None:
        """Close this process's ends. What is left is passed on all the same."""
        for descriptor in (self.descriptor, self._size_of):
            if descriptor is not None and descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self.descriptor, self._size_of = -1, None

    def parts(self) -> list[Path]:
        """Return the files with the beginning and the end, in order."""
        return sorted(
            (file for file in self._folder.iterdir() if file.name.isdecimal()), key=lambda file: int(file.name)
        )


def _terminal() -> tuple[int, int]:
    """Return both sides of a new terminal with the size of this process's, which changes no byte."""
    ours, theirs = os.openpty()
    with contextlib.suppress(OSError, termios.error):
        modes = termios.tcgetattr(theirs)
        modes[1] &= ~termios.OPOST
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, modes)
        _copy_size(2, ours)
    return ours, theirs


def _copy_size(source: int, target: int) -> None:
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)
