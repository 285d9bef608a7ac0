"""Close child processes while the command goes on: the driver may take 0.3 s for the end of one."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Endings:
    """Calls functions that close children, each in a thread; the end of the ``with`` block waits for all of them."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def begin(self, close: Callable[[], object]) -> None:
        """Start to call a function that closes children, which nothing else uses any more."""
        thread = threading.Thread(target=close, name="egmctl-ending")
        try:
            thread.start()
        except RuntimeError:
            # A limit of processes forbids the thread.
            close()
        else:
            self._threads.append(thread)

    def __enter__(self) -> Endings:
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()
