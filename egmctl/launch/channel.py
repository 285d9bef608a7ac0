"""Exchange JSON messages and file descriptors between a command and its child, and call the C library for this.

The system calls go through the wrappers of the C library, so no system call number is assumed. ``memfd_create`` is
called here because ``os.memfd_create`` is missing from a Python that was built against an old glibc (uv's standalone
builds before 2026-07), even if it runs on a newer one.
"""

from __future__ import annotations

import array
import ctypes
import io
import json
import os
import select
import signal
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
_libc.memfd_create.argtypes = [ctypes.c_char_p, ctypes.c_uint]

_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_MFD_CLOEXEC = 1  # linux/memfd.h
_KEEP_SIZE_AND_PUNCH_HOLE = 1 | 2  # linux/falloc.h


def die_with(parent_pid: int) -> None:
    """Make the kernel kill this process when the thread that started it ends; exit if the parent has already died.

    The kernel sends the signal when the parent's *thread* ends, not its process (prctl(2), PR_SET_PDEATHSIG).

    Parameters
    ----------
    parent_pid
        The process that started this one. If the current parent is another one, it has died.
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
        The name that ``/proc/PID/fd`` shows.
    """
    fd = _libc.memfd_create(name.encode(), _MFD_CLOEXEC)
    if fd < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"memfd_create: {os.strerror(errno)}")
    return io.FileIO(fd, "r+")


def free_pages(file: io.FileIO, length: int) -> None:
    """Free the memory of the first ``length`` bytes of a memory file (whole pages) without changing its size."""
    _libc.fallocate(file.fileno(), _KEEP_SIZE_AND_PUNCH_HOLE, 0, length)


def close_all(fds: Iterable[int]) -> None:
    """Close file descriptors."""
    for fd in fds:
        os.close(fd)


MESSAGE_LIMIT = 64 << 20
"""The maximum size of one message in bytes of JSON."""
FD_LIMIT = 253
"""The maximum number of descriptors in one message: the kernel's SCM_MAX_FD (include/net/scm.h)."""

_HEADER = struct.Struct("<3scII")
_MAGIC = b"egm"
_CHUNK = 1 << 18

MESSAGE, RESULT, RAISED = b"m", b"r", b"x"
"""The kinds of frames: a message from the target, its return value, and a description of the exception it raised."""


class ChannelClosed(EOFError):
    """The peer has closed its end, died, or sent its last message."""


Message = dict[str, Any]
"""A message between the command and a child: JSON data."""


class MalformedMessage(ValueError):
    """The peer sent data that is not a valid message; the channel is unusable."""


class Channel:
    """One end of the socket pair. Several threads may send at a time, but only one may receive."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()
        self._data = bytearray()
        self._fds: deque[int] = deque()

    def send(self, message: Message, fds: Sequence[int] = (), *, timeout_s: float | None = None) -> None:
        """Send a message and copies of file descriptors.

        Parameters
        ----------
        message
            JSON data; object keys become strings, tuples become lists.
        fds
            The descriptors to copy; the caller keeps its own open.
        timeout_s
            The time limit for a peer that does not read; ``None`` waits as long as the peer lives.

        Raises
        ------
        ChannelClosed, TimeoutError
            The peer is gone, or it does not read. A partly sent message leaves the channel unusable.
        TypeError, ValueError
            Not JSON data (NaN is not), longer than ``MESSAGE_LIMIT``, or more than ``FD_LIMIT`` descriptors.
        """
        self.send_frame(MESSAGE, message, fds, timeout_s=timeout_s)

    def answer(self, result: Any) -> None:
        """Send the result of this process' target before it returns: what it does afterwards, nobody waits for.

        What the target returns then, or raises, is not looked at.
        """
        self.send_frame(RESULT, result)

    def receive(self, timeout_s: float | None = None) -> tuple[Message, list[int]]:
        """Wait for the next message; return it and its file descriptors, which the caller closes.

        Raises
        ------
        ChannelClosed
            The peer will send no further message.
        MalformedMessage
            The peer sent data that is not a message.
        TimeoutError
            No complete message arrived within ``timeout_s``; the data received so far is kept.
        """
        if self._await_frame(timeout_s) != MESSAGE:
            raise ChannelClosed("the peer has sent its last message")
        _, message, fds = self._take_frame()
        return message, fds

    def fileno(self) -> int:
        """Return the socket's file descriptor, to poll several channels at once."""
        return self._socket.fileno()

    def has_message(self) -> bool:
        """Return whether the buffer contains a complete message, or data that is not a message."""
        try:
            return self._kind() is not None
        except MalformedMessage:
            return True

    def close(self) -> None:
        """Close this end and all received descriptors that the caller has not taken."""
        self._socket.close()
        close_all(self._fds)
        self._fds.clear()

    def send_frame(self, kind: bytes, content: Any, fds: Sequence[int] = (), *, timeout_s: float | None = None) -> None:
        """Send a frame of any kind; see `send`."""
        text = json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")
        if len(text) > MESSAGE_LIMIT:
            raise ValueError(f"a message of {len(text)} bytes is longer than the limit of {MESSAGE_LIMIT}")
        if len(fds) > FD_LIMIT:
            raise ValueError(f"{len(fds)} file descriptors are more than the limit of {FD_LIMIT}")
        rest = memoryview(_HEADER.pack(_MAGIC, kind, len(fds), len(text)) + text)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        deadline = _deadline(timeout_s)
        with self._sending:
            while rest:
                try:
                    sent = self._socket.sendmsg([rest], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    self._wait(select.POLLOUT, deadline)
                except ConnectionError:
                    raise ChannelClosed("the peer is gone") from None
                else:
                    rest, rights = rest[sent:], []

    def receive_frame(self, timeout_s: float | None = None) -> tuple[bytes, Any, list[int]]:
        """Wait for the next frame of any kind and return its kind, content and descriptors; see `receive`."""
        self._await_frame(timeout_s)
        return self._take_frame()

    def _await_frame(self, timeout_s: float | None) -> bytes:
        """Read until the buffer contains a complete frame, and return its kind."""
        deadline = _deadline(timeout_s)
        while (kind := self._kind()) is None:
            self._read(deadline)
        return kind

    def _kind(self) -> bytes | None:
        """Return the kind of the first frame in the buffer, or ``None`` if it is not complete."""
        if len(self._data) < _HEADER.size:
            return None
        magic, kind, fds, length = _HEADER.unpack_from(self._data)
        if magic != _MAGIC or kind not in (MESSAGE, RESULT, RAISED) or fds > FD_LIMIT or length > MESSAGE_LIMIT:
            raise MalformedMessage(f"not a message: {bytes(self._data[: _HEADER.size])!r}")
        return bytes(kind) if len(self._data) >= _HEADER.size + length else None

    def _take_frame(self) -> tuple[bytes, Any, list[int]]:
        _, kind, count, length = _HEADER.unpack_from(self._data)
        text = self._data[_HEADER.size : _HEADER.size + length]
        del self._data[: _HEADER.size + length]
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MalformedMessage(f"not JSON: {error}") from None
        if kind == MESSAGE and not isinstance(content, dict):
            raise MalformedMessage("a message is not an object")
        if count > len(self._fds):
            raise MalformedMessage("file descriptors are missing: this process may have too many files open")
        return kind, content, [self._fds.popleft() for _ in range(count)]

    def _read(self, deadline: float | None) -> None:
        """Wait until there is data, and read it with one call."""
        self._wait(select.POLLIN, deadline)
        try:
            data, ancillary, _, _ = self._socket.recvmsg(
                _CHUNK, socket.CMSG_SPACE(FD_LIMIT * 4), socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionError:
            data, ancillary = b"", []
        for _, _, rights in ancillary:
            fds = array.array("i")
            fds.frombytes(rights[: len(rights) // fds.itemsize * fds.itemsize])
            self._fds.extend(fds)
        if not data:
            raise ChannelClosed("the peer is gone")
        self._data += data

    def _wait(self, event: int, deadline: float | None) -> None:
        poll = select.poll()
        poll.register(self._socket, event)
        remaining = None if deadline is None else deadline - time.monotonic()
        if not poll.poll(None if remaining is None else max(remaining, 0) * 1000):
            raise TimeoutError(
                "timed out waiting for a message" if event == select.POLLIN else "the peer does not read"
            )


def _deadline(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.monotonic() + timeout_s
