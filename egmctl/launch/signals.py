"""SIGTERM and SIGHUP as exceptions, so that a command that is told to stop ends its children on the way out.

Children sit in process groups of their own: Ctrl-C and ``kill`` reach the command alone, and its unwinding blocks
end them. Python makes an exception of SIGINT only.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise KeyboardInterrupt inside the block, as SIGINT does.

    For the main thread. A signal that this process was started to ignore (nohup) stays ignored.
    """
    usual = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    heeded = {number: handler for number, handler in usual.items() if handler is not signal.SIG_IGN}
    for number in heeded:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in heeded.items():
            signal.signal(number, handler)
