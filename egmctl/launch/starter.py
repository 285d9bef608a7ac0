"""Start processes from any thread, in one that lasts as long as this process.

The kernel kills a child when the *thread* that started it ends (prctl(2), PR_SET_PDEATHSIG), and a thread of a pool may
end at any time. The main thread starts its children itself; all others leave it to one thread that never ends. It is a
daemon thread, so that the interpreter does not wait for it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


def in_lasting_thread(start: Callable[[], T]) -> T:
    """Call a function in a thread that lasts as long as this process, and return its result or raise its exception.

    Raises
    ------
    OSError
        No thread can be started: too many, or the interpreter is about to end.
    """
    if threading.current_thread() is threading.main_thread():
        return start()
    answer: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def step() -> None:
        try:
            answer.put((start(), None))
        except BaseException as error:
            answer.put((None, error))

    _steps().put(step)
    result, error = answer.get()
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


_lock = threading.Lock()
_queue: SimpleQueue[Callable[[], Any]] | None = None


def _steps() -> SimpleQueue[Callable[[], Any]]:
    """Return the queue of the lasting thread, which is started at the first call."""
    global _queue
    with _lock:
        if _queue is None:
            queue: SimpleQueue[Callable[[], Any]] = SimpleQueue()
            thread = threading.Thread(target=_work, args=(queue,), name="egmctl-starter", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise OSError(f"no thread can be started: {error}") from error
            _queue = queue
        return _queue


def _work(queue: SimpleQueue[Callable[[], Any]]) -> None:
    while True:
        queue.get()()


def _begin_anew() -> None:
    """Forget the thread in a forked process, which has none but the one that forked."""
    global _lock, _queue
    _lock, _queue = threading.Lock(), None


os.register_at_fork(after_in_child=_begin_anew)
