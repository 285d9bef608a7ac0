"""The driver call under way, written where the parent can read it whatever has become of the child.

A child that hangs in the driver, or is killed there, can say nothing any more. So every driver call leaves its name
in memory that parent and child share, before it is made, and takes it away after::

    breadcrumb.enter("cuMemCreate")
    try:
        ...
    finally:
        breadcrumb.leave()

Each thread has a slot of its own. Outside a child both functions do nothing. Calls do not nest.
"""

from __future__ import annotations

import functools
import itertools
import mmap
import os
import threading

SLOTS = 64
SLOT_SIZE = 64
"""Bytes of a slot: the name and zeros; one zero byte alone says that no call is under way."""
_SEPARATOR = "\x1f"
"""Between a call and what it is about (ASCII, unit separator)."""


def enter(call: str, subject: str = "") -> None:
    """Note that this thread is about to make ``call`` (a function's name; cut after 63 bytes).

    Parameters
    ----------
    subject
        The bus id of the GPU that it is about, where the caller knows it; cut as well.
    """
    if _shared is not None:
        start = _slot.start
        _shared[start : start + SLOT_SIZE] = _padded(call, subject)


def leave() -> None:
    """Note that this thread's call has returned."""
    if _shared is not None:
        _shared[_slot.start] = 0


class Trail:
    """The shared memory, as the parent holds it.

    Parameters
    ----------
    fd
        A memory file, sized here; its owner closes it.
    """

    def __init__(self, fd: int) -> None:
        os.ftruncate(fd, SLOTS * SLOT_SIZE)
        self._shared: mmap.mmap | bytes = mmap.mmap(fd, SLOTS * SLOT_SIZE)

    def calls(self) -> tuple[str, ...]:
        """Return the names of the calls under way, each once, in the order in which their threads came."""
        return tuple(dict.fromkeys(call for call, _ in self._crumbs()))

    def subjects(self) -> tuple[str, ...]:
        """Return what those calls are about, each once, as far as their callers said so."""
        return tuple(dict.fromkeys(subject for _, subject in self._crumbs() if subject))

    def _crumbs(self) -> list[tuple[str, str]]:
        data = self._shared[:]
        slots = (data[start : start + SLOT_SIZE].split(b"\0", 1)[0] for start in range(0, len(data), SLOT_SIZE))
        parts = (slot.decode("utf-8", "replace").partition(_SEPARATOR) for slot in slots if slot)
        return [(call, subject) for call, _, subject in parts]

    def close(self) -> None:
        """Let go of the memory, and keep what stands in it now."""
        if isinstance(self._shared, mmap.mmap):
            last = self._shared[:]
            self._shared.close()
            self._shared = last


def attach(fd: int) -> None:
    """Begin to write into the memory file ``fd``: called once, in the child, before its threads exist."""
    global _shared
    _shared = mmap.mmap(fd, SLOTS * SLOT_SIZE)


class _Slot(threading.local):
    """Where this thread writes. Past 64 threads in the life of a child, slots are shared."""

    def __init__(self) -> None:
        self.start = next(_threads) % SLOTS * SLOT_SIZE


@functools.cache
def _padded(call: str, subject: str) -> bytes:
    words = f"{call}{_SEPARATOR}{subject}" if subject else call
    return words.encode()[: SLOT_SIZE - 1].ljust(SLOT_SIZE, b"\0")


_shared: mmap.mmap | None = None
_threads = itertools.count()
_slot = _Slot()
