"""Close child processes while the command goes on: the driver may take 0.3 s for the end of one."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Endings:
    """Calls functions that close children, each in a thread; the end of the ``with`` block waits for all of them."""

    def __init__(self) -> None:
        self._under_way: list[threading.Event] = []
        self._errors: list[BaseException] = []

    def begin(self, close: Callable[[], object]) -> None:
        """Start to call a function that closes children, which nothing else uses any more."""
        # Not the end of the thread: after an interrupt in Thread.join, Python 3.11 takes the thread for ended.
        is_over, is_taken = threading.Event(), threading.Lock()

        def run() -> None:
            if not is_taken.acquire(blocking=False):
                return
            try:
                close()
            except BaseException as error:
                self._errors.append(error)
            finally:
                is_over.set()

        self._under_way.append(is_over)
        try:
            threading.Thread(target=run, name="egmctl-ending").start()
        except RuntimeError:
            # A limit of processes forbids the thread.
            run()
        except KeyboardInterrupt:
            # The thread may have started.
            run()
            raise

    def wait(self) -> None:
        """Wait for the end of all calls so far; raise the first exception of one."""
        while self._under_way:
            self._under_way[-1].wait()
            self._under_way.pop()
        if self._errors:
            errors, self._errors = self._errors, []
            raise errors[0]

    def __enter__(self) -> Endings:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
