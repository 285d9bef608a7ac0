"""Handles the signals that ask a command to stop, so that it ends its children and finishes its files.

Children sit in process groups of their own: Ctrl-C and ``kill`` reach the command alone.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], object]


@contextlib.contextmanager
def stopping(handler: Handler = signal.default_int_handler, *more: signal.Signals) -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP call a handler inside the block, in the main thread.

    A signal that this process was started to ignore (nohup) stays ignored.

    Parameters
    ----------
    handler
        A handler as :func:`signal.signal` takes it; by default all three raise KeyboardInterrupt.
    more
        Further signals that call it.
    """
    usual = {number: signal.getsignal(number) for number in (*_STOPS, *more)}
    heeded = {number: former for number, former in usual.items() if former is not signal.SIG_IGN}
    for number in heeded:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, former in heeded.items():
            signal.signal(number, former)
