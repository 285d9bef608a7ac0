"""The command's view of the processes that measure: one worker, one process for each GPU, or the ranks of a job."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from egmctl.bench.processes.protocol import ENVIRONMENT, Event, Request
from egmctl.compat import StrEnum
from egmctl.errors import ChildFailed
from egmctl.launch import ChannelClosed, Child, wait_for_any

RELEASE_S = 15.0
"""Seconds that ranks may take to end a step in which another rank failed: kernels that wait for another
GPU give up after 5 s (:data:`egmctl.gpu.chase.TIMEOUT_NS`), a gate after 10."""

WORKER = "egmctl.bench.processes.worker:run"
"""The target of every process that works GPUs."""

Message = dict[str, Any]
OnEvent = Callable[[Message], None]


def start_worker(target: str = WORKER) -> Child:
    """Start the process that works all GPUs; it initialises CUDA while the caller plans.

    Parameters
    ----------
    target
        The target of :func:`egmctl.launch.Child`; only tests pass another one.
    """
    return Child(target, {}, environment=ENVIRONMENT)


def start_rank(number: int, size: int, target: str = WORKER) -> Child:
    """Start the process of one rank of ``size``, which initialises CUDA and waits for requests."""
    return Child(target, {"rank": number, "size": size}, environment=ENVIRONMENT)


def start_group(size: int, target: str = WORKER) -> Group:
    """Start the processes of ``size`` ranks, all on this node."""
    with contextlib.ExitStack() as undo:
        children = {}
        for number in range(size):
            children[number] = start_rank(number, size, target)
            undo.callback(children[number].close)
        undo.pop_all()
        return Group(children)


class Kind(StrEnum):
    """The kinds of messages."""

    CONTRIBUTE = "contribute"
    """The rank contributes to an exchange and waits for the others."""
    DONE = "done"
    """The rank has done what was requested."""
    FAILED = "failed"
    """The rank's process died, was killed after a timeout, or broke the protocol."""
    EVENT = "event"
    """The rank reports an event and continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMessage:
    """The message of one rank in a round."""

    rank: int
    kind: Kind
    call: str = ""
    """The number of the exchange that it is in; all ranks have to be in the same one."""
    data: Any = None
    """JSON data: a contribution, a message of the rank, or for ``FAILED`` the arguments of :class:`GroupFailed`."""
    fds: tuple[int, ...] = field(default=(), compare=False)
    """Descriptors of this process; none between nodes."""


Join = Callable[[Sequence[RankMessage]], list[RankMessage]]
"""Joins the messages of the ranks that this command has started with those of all other commands of the same run.

Every command calls it once a round, and gets the messages of all ranks in the order of their numbers."""


class GroupFailed(ChildFailed):
    """A rank failed, so the group cannot be used any more.

    Parameters
    ----------
    rank
        The rank that failed first.
    reason, how, last_call
        Those of :class:`ChildFailed`; ``how`` is ``crashed``, ``timed-out`` or ``raised``.
    name
        The place of the rank, in words.
    """

    def __init__(self, rank: int, reason: str, how: str, last_call: str | None = None, name: str = "") -> None:
        super().__init__(f"rank {rank}{f' ({name})' if name else ''}: {reason}", how=how, last_call=last_call)
        self.rank = rank
        self.reason = reason


class Group:
    """Processes that carry out the command's requests together, and exchange messages meanwhile.

    Parameters
    ----------
    members
        This command's ranks by number, or the one worker as number 0; the group ends them.
    join
        Joins the ranks of other commands; ``None`` if this command started all.
    """

    def __init__(self, members: Mapping[int, Child], join: Join | None = None) -> None:
        self._members = dict(members)
        self._join = join

    def ask(self, request: Message, timeout_s: float, on_event: OnEvent | None = None) -> list[Message]:
        """Send a request to this command's ranks, and serve their exchanges until every rank of the run is done.

        Parameters
        ----------
        timeout_s
            Seconds in which a rank must send its next message.
        on_event
            Called with each event that this command's ranks report.

        Returns
        -------
        list
            The last message of every rank of the run, by number.

        Raises
        ------
        ChildFailed
            A process died, hung or came out of step, where there are several :class:`GroupFailed`; this command's
            others have been released, or killed where they did not come to an end in :data:`RELEASE_S`.
        """
        self._send(request, timeout_s=max(timeout_s, RELEASE_S))
        while True:
            messages = self._listen(self._members, timeout_s, on_event)
            if self._join is not None:
                messages = self._join(messages)
            try:
                if (failure := _failure(messages)) is not None:
                    self._release(messages, failure, on_event)
                    if len(messages) == 1:
                        raise ChildFailed(failure.reason, how=failure.how, last_call=failure.last_call)
                    raise failure
                if all(message.kind is Kind.DONE for message in messages):
                    return [message.data for message in messages]
                items = [{"data": message.data, "fds": len(message.fds)} for message in messages]
                fds = [fd for message in messages for fd in message.fds]
                self._send({"do": Request.EXCHANGED, "items": items}, fds, timeout_s=timeout_s)
            finally:
                _close_descriptors(messages)

    def close(self) -> None:
        """End the processes."""
        with contextlib.ExitStack() as ended:
            for child in self._members.values():
                # They all take the hint before the first one is waited for.
                child.channel.close()
                ended.callback(child.close)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()

    def _send(
        self,
        message: Message,
        fds: Sequence[int] = (),
        *,
        to: Mapping[int, Child] | None = None,
        timeout_s: float = RELEASE_S,
    ) -> None:
        for child in (self._members if to is None else to).values():
            # One that is gone or does not read is noticed when its next message is waited for.
            with contextlib.suppress(ChannelClosed, TimeoutError):
                child.channel.send(message, fds, timeout_s=timeout_s)

    def _listen(self, members: Mapping[int, Child], timeout_s: float, on_event: OnEvent | None) -> list[RankMessage]:
        """Wait for one message of each member; after a failure wait for the others at most :data:`RELEASE_S`."""
        messages: dict[int, RankMessage] = {}
        rank_of = {child: rank for rank, child in members.items()}
        deadline = time.monotonic() + timeout_s
        while len(messages) < len(members):
            silent = [child for rank, child in members.items() if rank not in messages]
            ready = wait_for_any(silent, deadline - time.monotonic())
            # None is ready: the time is up for all that are silent.
            for child in ready or silent:
                message = _receive(rank_of[child], child, timeout_s if ready else 0, timeout_s)
                if message.kind is not Kind.EVENT:
                    messages[message.rank] = message
                elif on_event is not None:
                    on_event(message.data)
                if message.kind is Kind.FAILED:
                    deadline = min(deadline, time.monotonic() + RELEASE_S)
        return [messages[rank] for rank in members]

    def _release(self, messages: Sequence[RankMessage], failure: GroupFailed, on_event: OnEvent | None) -> None:
        """Release members that wait in an exchange, and wait until they have released everything."""
        until = time.monotonic() + RELEASE_S
        while waiting := {
            message.rank: self._members[message.rank]
            for message in messages
            if message.kind is Kind.CONTRIBUTE and message.rank in self._members
        }:
            if time.monotonic() >= until:
                return
            self._send({"do": Request.ABANDON, "why": f"rank {failure.rank}: {failure.reason}"}, to=waiting)
            # One that unwinds may come to another exchange, and is told again.
            messages = self._listen(waiting, max(0, until - time.monotonic()), on_event)
            _close_descriptors(messages)


def _receive(rank: int, child: Child, patience_s: float, timeout_s: float) -> RankMessage:
    """Return the next message of a rank, which had ``timeout_s`` for it and has ``patience_s`` left."""
    try:
        message, fds = child.receive(patience_s)
    except ChildFailed as error:
        reason = str(error)
        if error.how == "timed-out":
            reason = f"no response for {timeout_s:g} s" + (f", it is in {error.last_call}" if error.last_call else "")
        data = {"rank": rank, "reason": reason, "how": error.how, "last_call": error.last_call}
        return RankMessage(rank=rank, kind=Kind.FAILED, data=data)
    if message.get("event") == Event.EXCHANGE and isinstance(message.get("call"), str):
        return RankMessage(
            rank=rank, kind=Kind.CONTRIBUTE, call=message["call"], data=message.get("data"), fds=tuple(fds)
        )
    for fd in fds:
        os.close(fd)
    is_last = message.get("event") in (Event.READY, Event.OVER, Event.DONE)
    return RankMessage(rank=rank, kind=Kind.DONE if is_last else Kind.EVENT, data=message)


def _failure(messages: Sequence[RankMessage]) -> GroupFailed | None:
    """Return the rank to blame if the messages of a round do not fit together; every command concludes the same.

    A process that died explains one that hangs, and that one ranks out of step.
    """
    failures = [GroupFailed(**message.data) for message in messages if message.kind is Kind.FAILED]
    if failures:
        return min(failures, key=lambda failure: (failure.how == "timed-out", failure.rank))
    first = messages[0]
    for message in messages:
        if (message.kind, message.call) != (first.kind, first.call):
            reason = f"out of step: it is {_place(message)}, and rank {first.rank} is {_place(first)}"
            return GroupFailed(message.rank, reason, "crashed")
    return None


def _place(message: RankMessage) -> str:
    return "through with the step" if message.kind is Kind.DONE else f"in {message.call}"


def _close_descriptors(messages: Sequence[RankMessage]) -> None:
    for message in messages:
        for fd in message.fds:
            os.close(fd)
