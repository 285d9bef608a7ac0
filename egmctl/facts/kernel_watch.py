"""Watches the kernel's log while something runs: what the kernel says meanwhile belongs to the result."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from egmctl.facts.kernel_log import EVENTS_LIMIT, KMSG, event, open_kmsg, records
from egmctl.facts.root import Root, Unreadable
from egmctl.model.kernel_log import KernelEvent, KernelMessages
from egmctl.model.record import Unread


class KernelLogWatch:
    """The events from the making of this object on, one by one as they are asked for, and all of them in the end.

    Only of ``/dev/kmsg``: asking it costs a system call where there is nothing new. Where it cannot be read there are
    none, and :attr:`unread` says why.
    """

    def __init__(self, root: Root) -> None:
        self.unread: Unread | None = None
        self._descriptor: int | None = None
        self._began_s = _now_s()
        self._events: list[KernelEvent] = []
        self._left_out = 0
        self._overwritten = False
        try:
            self._descriptor = open_kmsg(root)
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            self._end(Unreadable.from_os_error(error, KMSG))
        except Unreadable as error:
            self._end(error)

    def events(self) -> Sequence[KernelEvent]:
        """Return the events since the last call, in their order."""
        if self._descriptor is None:
            return ()
        try:
            lines, overwritten = records(self._descriptor)
        except Unreadable as error:
            self._end(error)
            return ()
        self._overwritten |= overwritten
        new = [found for line in lines if (found := event(*line)) is not None]
        kept = new[: EVENTS_LIMIT - len(self._events)]
        self._events += kept
        self._left_out += len(new) - len(kept)
        return tuple(kept)

    @property
    def messages(self) -> KernelMessages:
        """What was logged until the last call of :meth:`events`."""
        return KernelMessages(
            source=KMSG,
            unread=self.unread,
            began_s=self._began_s,
            ended_s=_now_s(),
            overwritten=self._overwritten,
            events=tuple(self._events),
            left_out=self._left_out,
        )

    def close(self) -> None:
        """Let go of the log."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _end(self, error: Unreadable) -> None:
        self.unread = error.unread
        self.close()


def _now_s() -> float:
    """Return the time on the clock of the kernel's log."""
    return round(time.clock_gettime(time.CLOCK_MONOTONIC), 3)
