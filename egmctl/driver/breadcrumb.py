"""The driver call in progress, recorded in memory that parent and child share.

A child that hangs or is killed in the driver can no longer report. So the child writes the name of each driver call to
the shared memory before the call, and clears it afterwards::

    breadcrumb.enter("cuMemCreate")
    try:
        ...
    finally:
        breadcrumb.leave()

Each thread has its own slot. Outside a child both functions do nothing. Calls do not nest.
"""

from __future__ import annotations

import functools
import itertools
import mmap
import os
import threading

SLOTS = 64
SLOT_SIZE = 64
"""The size of a slot in bytes: the name, padded with zeros. A first byte of zero means that no call is in progress."""
_SEPARATOR = "\x1f"
"""The separator between a call and its subject (ASCII unit separator)."""


def enter(call: str, subject: str = "") -> None:
    """Record that this thread is about to make ``call``, a function's name (with ``subject`` cut after 63 bytes).

    Parameters
    ----------
    subject
        The bus id of the GPU that the call is about, if known.
    """
    if _shared is not None:
        start = _slot.start
        _shared[start : start + SLOT_SIZE] = _padded(call, subject)


def leave() -> None:
    """Record that this thread's call has returned."""
    if _shared is not None:
        _shared[_slot.start] = 0


class Trail:
    """The parent's mapping of the shared memory.

    Parameters
    ----------
    fd
        A memory file. The constructor sets its size; the caller closes it.
    """

    def __init__(self, fd: int) -> None:
        os.ftruncate(fd, SLOTS * SLOT_SIZE)
        self._shared: mmap.mmap | bytes = mmap.mmap(fd, SLOTS * SLOT_SIZE)

    def calls(self) -> tuple[str, ...]:
        """Return the names of the calls in progress, without duplicates, in the order of their threads' slots."""
        return tuple(dict.fromkeys(call for call, _ in self._crumbs()))

    def subjects(self) -> tuple[str, ...]:
        """Return the bus ids that the calls in progress are about, without duplicates, if their callers gave any."""
        return tuple(dict.fromkeys(subject for _, subject in self._crumbs() if subject))

    def _crumbs(self) -> list[tuple[str, str]]:
        data = self._shared[:]
        slots = (data[start : start + SLOT_SIZE].split(b"\0", 1)[0] for start in range(0, len(data), SLOT_SIZE))
        parts = (slot.decode("utf-8", "replace").partition(_SEPARATOR) for slot in slots if slot)
        return [(call, subject) for call, _, subject in parts]

    def close(self) -> None:
        """Unmap the memory and keep a copy of its current content for later calls."""
        if isinstance(self._shared, mmap.mmap):
            last = self._shared[:]
            self._shared.close()
            self._shared = last


def attach(fd: int) -> None:
    """Map the memory file ``fd`` for :func:`enter` and :func:`leave`: once, in the child, before it starts threads."""
    global _shared
    _shared = mmap.mmap(fd, SLOTS * SLOT_SIZE)


class _Slot(threading.local):
    """The offset of this thread's slot. After 64 threads in the life of a child, threads share slots."""

    def __init__(self) -> None:
        self.start = next(_threads) % SLOTS * SLOT_SIZE


@functools.cache
def _padded(call: str, subject: str) -> bytes:
    words = f"{call}{_SEPARATOR}{subject}" if subject else call
    return words.encode()[: SLOT_SIZE - 1].ljust(SLOT_SIZE, b"\0")


_shared: mmap.mmap | None = None
_threads = itertools.count()
_slot = _Slot()
