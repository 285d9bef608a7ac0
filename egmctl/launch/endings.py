"""Close child processes while the command goes on: the driver may take 0.3 s for the end of one."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Endings:
    """Calls functions that close children, each in a thread; the end of the ``with`` block waits for all of them."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def begin(self, close: Callable[[], object]) -> None:
        """Start to call a function that closes children, which nothing else uses any more."""

        def run() -> None:
            try:
                close()
            except BaseException as error:
                self._errors.append(error)

        thread = threading.Thread(target=run, name="egmctl-ending")
        # Before its start, so that an interrupt there leaves no thread that nobody waits for.
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError:
            # A limit of processes forbids the thread.
            self._threads.remove(thread)
            run()

    def wait(self) -> None:
        """Wait for the end of all calls so far; raise the first exception of one."""
        while self._threads:
            if self._threads[-1].ident is not None:
                self._threads[-1].join()
            self._threads.pop()
        if self._errors:
            errors, self._errors = self._errors, []
            raise errors[0]

    def __enter__(self) -> Endings:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
