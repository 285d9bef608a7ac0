"""Signals that ask a command to stop, heeded so that it ends its children and finishes its files on the way out.

Children sit in process groups of their own: Ctrl-C and ``kill`` reach the command alone.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


@contextlib.contextmanager
def stopping(handler: Handler = signal.default_int_handler) -> Iterator[None]:
    """Have SIGINT, SIGTERM and SIGHUP call a handler inside the block, for the main thread.

    A signal that this process was started to ignore (nohup) stays ignored.

    Parameters
    ----------
    handler
        As of :func:`signal.signal`; by default all three raise KeyboardInterrupt.
    """
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    heeded = {number: former for number, former in usual.items() if former is not signal.SIG_IGN}
    for number in heeded:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, former in heeded.items():
            signal.signal(number, former)
