"""The processes that measure, as the supervisor has them: one worker, or a group of ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from egmctl.bench.processes.group import WORKER, Group, start_rank
from egmctl.bench.processes.protocol import ENVIRONMENT, Event
from egmctl.launch import ChannelClosed, Child, spawn

Message = dict[str, Any]


class WorkerPool(Protocol):
    """Processes that do what the command requests, together, and are ended by a ``with`` block."""

    def ask(
        self, request: Message, timeout_s: float, on_event: Callable[[Message], None] | None = None
    ) -> list[Message]:
        """Have a request carried out; hand on what is measured meanwhile, and return the last message of each process.

        Raises
        ------
        ChildFailed
            A process died, hung or raised: the pool is of no more use.
        """

    def __enter__(self) -> WorkerPool:
        """Return itself."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes."""


class SingleWorker:
    """The one process of most cases, which works all GPUs.

    Parameters
    ----------
    child
        Started already; the worker ends it.
    """

    def __init__(self, child: Child) -> None:
        self._child = child

    def ask(
        self, request: Message, timeout_s: float, on_event: Callable[[Message], None] | None = None
    ) -> list[Message]:
        """Have a request carried out: see :class:`WorkerPool`."""
        # A worker that is gone is noticed, with what became of it, when its answer is waited for.
        with contextlib.suppress(ChannelClosed):
            self._child.channel.send(request)
        while (message := self._child.receive(timeout_s)[0])["event"] == Event.MEASURED:
            if on_event is not None:
                on_event(message)
        return [message]

    def __enter__(self) -> SingleWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.close()


def start_worker(target: str = WORKER) -> Child:
    """Start a worker's process, which initialises CUDA while its caller finds out what to ask; close it if nothing.

    Parameters
    ----------
    target
        As :func:`egmctl.launch.spawn` takes it; another one only in tests.
    """
    return spawn(target, {}, environment=ENVIRONMENT)


def start_group(size: int, target: str = WORKER) -> Group:
    """Start the processes of ``size`` ranks, all on this node."""
    with contextlib.ExitStack() as undo:
        children = {}
        for number in range(size):
            children[number] = start_rank(number, size, target)
            undo.callback(children[number].close)
        undo.pop_all()
        return Group(children)
