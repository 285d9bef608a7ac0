"""The processes that measure, as their owner sees them: one worker, one process for each GPU, or the ranks of a job."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Protocol

from egmctl.bench.processes.protocol import ENVIRONMENT, Event, Request
from egmctl.compat import StrEnum
from egmctl.errors import ChildFailed
from egmctl.launch import ChannelClosed, Child, spawn, wait_for_any

RELEASE_S = 15.0
"""How long ranks may take to come to the end of a step that another one has failed in: kernels that wait for another
GPU give up after 5 s (:data:`egmctl.gpu.chase.TIMEOUT_NS`), a gate after 10."""

WORKER = "egmctl.bench.processes.worker:run"
"""What every process that works GPUs runs."""

Message = dict[str, Any]


def start_rank(number: int, size: int, target: str = WORKER) -> Child:
    """Start the process of one rank of ``size``, which initialises CUDA and waits for the coordinator's requests.

    Parameters
    ----------
    target
        As :func:`egmctl.launch.spawn` takes it; another one only in tests.
    """
    return spawn(target, {"rank": number, "size": size}, environment=ENVIRONMENT)


class Kind(StrEnum):
    """What a message is."""

    CONTRIBUTE = "contribute"
    """The rank gives something to an exchange, and waits for what the others give."""
    DONE = "done"
    """The rank has done what the coordinator requested."""
    FAILED = "failed"
    """The rank's process is dead, killed after its time was up, or out of order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMessage:
    """What one rank sends in a round."""

    rank: int
    kind: Kind
    call: str = ""
    """Which exchange it is in: all ranks have to be in the same."""
    data: Any = None
    """What it gives; of ``DONE`` the message of the rank, of ``FAILED`` the fields of :class:`Failure`. JSON data."""
    fds: tuple[int, ...] = field(default=(), compare=False)
    """Descriptors of this process; a transport between nodes has none."""


Join = Callable[[Sequence[RankMessage]], list[RankMessage]]
"""Joins the messages of the ranks that this command has started with those of all other commands of the same run.

Every command calls it once a round, and gets the messages of all ranks in the order of their numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What became of the rank that failed first."""

    rank: int
    how: str
    """As of :class:`egmctl.errors.ChildFailed`: ``crashed``, ``timed-out`` or ``raised``."""
    reason: str
    last_call: str | None = None


class GroupFailed(ChildFailed):
    """A rank failed: the group is of no more use. ``rank`` is its number; ``name`` tells people where it is."""

    def __init__(self, failure: Failure, name: str = "") -> None:
        who = f"rank {failure.rank}{f' ({name})' if name else ''}"
        super().__init__(f"{who}: {failure.reason}", how=failure.how, last_call=failure.last_call)
        self.failure = failure
        self.rank = failure.rank


class Group:
    """Ranks that have been started, and their exchange.

    Parameters
    ----------
    members
        This command's ranks by number; the group ends them.
    join
        Reaches the ranks of other commands; without any, this command has started all ranks itself.
    """

    def __init__(self, members: Mapping[int, Child], join: Join = list) -> None:
        self._members = dict(members)
        self._join = join

    @property
    def pids(self) -> dict[int, int]:
        """The processes of this command's ranks, by number."""
        return {rank: child.pid for rank, child in self._members.items()}

    def ask(
        self,
        request: Message,
        timeout_s: float,
        on_event: Callable[[Message], None] | None = None,
    ) -> list[Message]:
        """Send a request to this command's ranks, and serve their exchanges until every rank of the run is through.

        Parameters
        ----------
        timeout_s
            Until a rank has to have said its next message.
        on_event
            Called with each message of this command's ranks that is none of the exchange's.

        Returns
        -------
        list
            The last message of every rank of the run, by number.

        Raises
        ------
        GroupFailed
            A rank died, hung or came out of step; this command's others have been released, or killed where they did
            not come to an end in :data:`RELEASE_S`.
        """
        for child in self._members.values():
            _send(child, request)
        while True:
            messages = self._join(self._listen(self._members, timeout_s, on_event))
            try:
                if (failure := _failure(messages)) is not None:
                    self._release(messages, failure, on_event)
                    raise GroupFailed(failure)
                if all(message.kind is Kind.DONE for message in messages):
                    return [message.data for message in messages]
                self._hand_on(messages, timeout_s)
            finally:
                for message in messages:
                    for fd in message.fds:
                        os.close(fd)

    def close(self) -> None:
        """End the processes."""
        with ExitStack() as ended:
            for child in self._members.values():
                # They all take the hint before the first one is waited for.
                child.channel.close()
                ended.callback(child.close)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(
        self, members: Mapping[int, Child], timeout_s: float, on_event: Callable[[Message], None] | None
    ) -> list[RankMessage]:
        """Wait for one message of each member; after a failure for the others' no longer than :data:`RELEASE_S`."""
        messages: dict[int, RankMessage] = {}
        rank_of = {child: rank for rank, child in members.items()}
        deadline = time.monotonic() + timeout_s
        while len(messages) < len(members):
            silent = [child for rank, child in members.items() if rank not in messages]
            ready = wait_for_any(silent, deadline - time.monotonic())
            # None is ready: the time is up for all that are silent.
            for child in ready or silent:
                message = _message_of(rank_of[child], child, timeout_s if ready else 0, timeout_s, on_event)
                if message is None:
                    continue
                messages[message.rank] = message
                if message.kind is Kind.FAILED:
                    deadline = min(deadline, time.monotonic() + RELEASE_S)
        return [messages[rank] for rank in members]

    def _hand_on(self, messages: Sequence[RankMessage], timeout_s: float) -> None:
        items = [{"data": message.data, "fds": len(message.fds)} for message in messages]
        fds = [fd for message in messages for fd in message.fds]
        for child in self._members.values():
            _send(child, {"do": Request.EXCHANGED, "items": items}, fds, timeout_s)

    def _release(
        self, messages: Sequence[RankMessage], failure: Failure, on_event: Callable[[Message], None] | None
    ) -> None:
        """Tell members that wait in an exchange that it is over, and wait until they have let go of everything."""
        waiting = {message.rank: self._members[message.rank] for message in messages if self._waits(message)}
        until = time.monotonic() + RELEASE_S
        while waiting and time.monotonic() < until:
            for child in waiting.values():
                _send(child, {"do": Request.ABANDON, "why": f"rank {failure.rank}: {failure.reason}"})
            said = self._listen(waiting, max(0, until - time.monotonic()), on_event)
            for message in said:
                for fd in message.fds:
                    os.close(fd)
            # One that unwinds may come to another exchange, and is told again.
            waiting = {message.rank: self._members[message.rank] for message in said if self._waits(message)}

    def _waits(self, message: RankMessage) -> bool:
        return message.kind is Kind.CONTRIBUTE and message.rank in self._members


def _message_of(
    rank: int, child: Child, patience_s: float, timeout_s: float, on_event: Callable[[Message], None] | None
) -> RankMessage | None:
    """Hear one message of a rank; return the message that it is, ``None`` for an event that is none."""
    try:
        message, fds = child.receive(patience_s)
    except ChildFailed as error:
        reason = str(error)
        if error.how == "timed-out":
            reason = f"no response for {timeout_s:g} s" + (f", it is in {error.last_call}" if error.last_call else "")
        failure = Failure(rank=rank, how=error.how, reason=reason, last_call=error.last_call)
        return RankMessage(rank=rank, kind=Kind.FAILED, data=asdict(failure))
    event = message.get("event")
    if event == Event.EXCHANGE and isinstance(message.get("call"), str):
        return RankMessage(
            rank=rank, kind=Kind.CONTRIBUTE, call=message["call"], data=message.get("data"), fds=tuple(fds)
        )
    for fd in fds:
        os.close(fd)
    if event in (Event.READY, Event.OVER, Event.DONE):
        return RankMessage(rank=rank, kind=Kind.DONE, data=message)
    if on_event is not None:
        on_event(message)
    return None


def _failure(messages: Sequence[RankMessage]) -> Failure | None:
    """Return what is to blame where the messages of a round do not fit together; the same for every command.

    A process that died explains one that hangs, and that one ranks out of step.
    """
    failed = [Failure(**message.data) for message in messages if message.kind is Kind.FAILED]
    if failed:
        return min(failed, key=lambda failure: (failure.how == "timed-out", failure.rank))
    first = messages[0]
    odd = next((message for message in messages if (message.kind, message.call) != (first.kind, first.call)), None)
    if odd is None:
        return None
    reason = f"out of step: it is {_place(odd)}, and rank {first.rank} is {_place(first)}"
    return Failure(rank=odd.rank, how="crashed", reason=reason)


def _place(message: RankMessage) -> str:
    return "through with the step" if message.kind is Kind.DONE else f"in {message.call}"


def _send(child: Child, message: Message, fds: Sequence[int] = (), timeout_s: float = RELEASE_S) -> None:
    # One that is gone or does not read is noticed, with what became of it, when its next message is waited for.
    with contextlib.suppress(ChannelClosed, TimeoutError):
        child.channel.send(message, fds, timeout_s=timeout_s)


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
