"""The command's side of the processes that measure: one worker, one process per GPU, or the ranks of an MPI job.

Each command of an MPI job drives one process. Rank 0 coordinates and supervises the run as on one node: it first sends
each request to the other commands, which pass it to their processes. Then all commands exchange the messages of their
ranks round by round.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from egmctl.bench.processes.protocol import ENVIRONMENT, Event, Request
from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.errors import ChildFailed
from egmctl.launch import ChannelClosed, Child, Message, close_all, wait_for_any
from egmctl.model.record import BusId
from egmctl.mpi.world import RanksMissing, World

RELEASE_S = 15.0
"""The time in which ranks must end a step in which another rank failed. Kernels that wait for another GPU time out
after 5 s (:data:`egmctl.gpu.chase.TIMEOUT_NS`), a gate after 10 s."""

WORKER = "egmctl.bench.processes.worker:run"
"""The target of every process that measures."""

OnEvent = Callable[[Message], None]


def start_worker(target: str = WORKER) -> Child:
    """Start the worker, which initializes CUDA while the caller plans.

    Parameters
    ----------
    target
        The target of :class:`egmctl.launch.Child`; only tests change it.
    """
    return Child(target, {}, environment=ENVIRONMENT, before=_hook(target))


def start_rank(number: int, size: int, target: str = WORKER, *, waits: bool = False) -> Child:
    """Start the process of one of ``size`` ranks, which initializes CUDA and waits for requests.

    Parameters
    ----------
    waits
        Whether it initializes CUDA only at its first request, so that it disturbs no measurement before.
    """
    arguments = {"rank": number, "size": size, **({"waits": True} if waits else {})}
    return Child(target, arguments, environment=ENVIRONMENT, before=None if waits else _hook(target))


def _hook(target: str) -> str | None:
    # Other targets, those of tests, use no driver.
    return "egmctl.driver.cuda:initialise_ahead" if target == WORKER else None


def start_group(size: int) -> Group:
    """Start the processes of ``size`` ranks, all on this node, which wait for their first request."""
    with contextlib.ExitStack() as undo:
        children = {}
        for number in range(size):
            children[number] = start_rank(number, size, waits=True)
            undo.callback(children[number].close)
        undo.pop_all()
        return Group(children)


class MessageKind(StrEnum):
    """The kinds of ranks' messages."""

    CONTRIBUTE = "contribute"
    """The rank contributes to an exchange and waits for the others."""
    DONE = "done"
    """The rank has completed the request."""
    FAILED = "failed"
    """The rank's process died, raised an exception, was killed after a timeout, or broke the protocol."""
    EVENT = "event"
    """The rank reports an event and continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMessage:
    """The message of one rank in a round."""

    rank: int
    kind: MessageKind
    call: str = ""
    """The name of the rank's exchange, which must be the same for all ranks."""
    data: Any = None
    """JSON data: a contribution, an event, or for ``FAILED`` the arguments of :class:`GroupFailed`."""
    fds: tuple[int, ...] = field(default=(), compare=False)
    """File descriptors in this process; none between nodes."""


class GroupFailed(ChildFailed):
    """A rank failed, so that the group cannot continue.

    Parameters
    ----------
    rank
        The rank that failed first.
    reason, how, last_call
        The message, without the rank, and the other parameters of :class:`ChildFailed`.
    name
        The name of the rank's GPU and node.
    """

    def __init__(self, rank: int, reason: str, how: str, last_call: str | None = None, name: str = "") -> None:
        super().__init__(f"rank {rank}{f' ({name})' if name else ''}: {reason}", how=how, last_call=last_call)
        self.rank = rank
        self.reason = reason


class Group:
    """The processes that carry out the command's requests together and exchange data meanwhile.

    Parameters
    ----------
    members
        This command's ranks by number, or the worker as number 0. The group ends them.
    """

    def __init__(self, members: Mapping[int, Child]) -> None:
        self._members = dict(members)

    def ask(self, request: Message, timeout_s: float, on_event: OnEvent | None = None) -> list[Message]:
        """Send a request to this command's ranks, and serve their exchanges until every rank of the run is done.

        Parameters
        ----------
        timeout_s
            The timeout of a rank's next message.
        on_event
            Called with each event that this command's ranks report.

        Returns
        -------
        list
            The last message of every rank of the run, by rank.

        Raises
        ------
        ChildFailed
            A process died, timed out or is out of step; :class:`GroupFailed` if there are several ranks. The other
            ranks of this command have released their resources, or were killed after :data:`RELEASE_S`.
        """
        self._send(request, timeout_s=max(timeout_s, RELEASE_S))
        while True:
            messages = self.join(self._listen(self._members, timeout_s, on_event), timeout_s)
            try:
                if (failure := _failure(messages)) is not None:
                    self._release(messages, failure, on_event)
                    if len(messages) == 1:
                        raise ChildFailed(failure.reason, how=failure.how, last_call=failure.last_call)
                    raise failure
                if all(message.kind is MessageKind.DONE for message in messages):
                    return [message.data for message in messages]
                items = [{"data": message.data, "fds": len(message.fds)} for message in messages]
                fds = [fd for message in messages for fd in message.fds]
                self._send({"do": Request.EXCHANGED, "items": items}, fds, timeout_s=timeout_s)
            finally:
                close_all(fd for message in messages for fd in message.fds)

    def open_contexts(self, gpus: Mapping[int, Sequence[BusId]]) -> None:
        """Have processes initialize CUDA and open the contexts of GPUs, without waiting for it.

        Parameters
        ----------
        gpus
            The GPUs of each process, by its number.
        """
        for number, child in self._members.items():
            self._send({"do": Request.OPEN, "gpus": [*gpus[number]]}, to={number: child})

    def join(self, messages: list[RankMessage], _timeout_s: float) -> list[RankMessage]:
        """Return the messages of all ranks of the run in one round: here only those of this command's ranks."""
        return messages

    def close(self) -> None:
        """End the processes."""
        with contextlib.ExitStack() as ended:
            for child in self._members.values():
                # Close all channels, so that all processes begin to end, before the wait for the first one.
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
            # A member that is gone or does not read is detected when its next message is due.
            with contextlib.suppress(ChannelClosed, TimeoutError):
                child.channel.send(message, fds, timeout_s=timeout_s)

    def _listen(self, members: Mapping[int, Child], timeout_s: float, on_event: OnEvent | None) -> list[RankMessage]:
        """Wait for a message of each member, not counting events; after a failure, at most :data:`RELEASE_S` longer."""
        messages: dict[int, RankMessage] = {}
        rank_of = {child: rank for rank, child in members.items()}
        deadline = time.monotonic() + timeout_s
        while len(messages) < len(members):
            silent = [child for rank, child in members.items() if rank not in messages]
            ready = wait_for_any(silent, deadline - time.monotonic())
            # None is ready: all that are silent have timed out.
            for child in ready or silent:
                message = _receive(rank_of[child], child, timeout_s if ready else 0, timeout_s)
                if message.kind is not MessageKind.EVENT:
                    messages[message.rank] = message
                elif on_event is not None:
                    on_event(message.data)
                if message.kind is MessageKind.FAILED:
                    deadline = min(deadline, time.monotonic() + RELEASE_S)
        return [messages[rank] for rank in members]

    def _release(self, messages: Sequence[RankMessage], failure: GroupFailed, on_event: OnEvent | None) -> None:
        """Abandon the step in members that wait in an exchange, and wait until they have released their resources."""
        until = time.monotonic() + RELEASE_S
        while waiting := {
            message.rank: self._members[message.rank]
            for message in messages
            if message.kind is MessageKind.CONTRIBUTE and message.rank in self._members
        }:
            if time.monotonic() >= until:
                return
            self._send({"do": Request.ABANDON, "why": f"rank {failure.rank}: {failure.reason}"}, to=waiting)
            # A member may enter another exchange while it unwinds; it is then sent the message again.
            messages = self._listen(waiting, max(0, until - time.monotonic()), on_event)
            close_all(fd for message in messages for fd in message.fds)


def _receive(rank: int, child: Child, patience_s: float, timeout_s: float) -> RankMessage:
    """Return the next message of a rank within ``patience_s`` seconds, the rest of its ``timeout_s``."""
    try:
        message, fds = child.receive(patience_s)
    except ChildFailed as error:
        reason = str(error)
        if error.how == "timed-out":
            reason = f"no response for {timeout_s:g} s" + (f", it is in {error.last_call}" if error.last_call else "")
        data = {"rank": rank, "reason": reason, "how": error.how, "last_call": error.last_call}
        return RankMessage(rank=rank, kind=MessageKind.FAILED, data=data)
    if message.get("event") == Event.EXCHANGE and isinstance(message.get("call"), str):
        return RankMessage(
            rank=rank, kind=MessageKind.CONTRIBUTE, call=message["call"], data=message.get("data"), fds=tuple(fds)
        )
    close_all(fds)
    is_last = message.get("event") in (Event.READY, Event.OVER, Event.DONE)
    return RankMessage(rank=rank, kind=MessageKind.DONE if is_last else MessageKind.EVENT, data=message)


def _failure(messages: Sequence[RankMessage]) -> GroupFailed | None:
    """Return the failure in a round of messages, if any; every command gets the same result.

    A process that died takes precedence over one that timed out, and that over ranks out of step, which it may explain.
    """
    failures = [GroupFailed(**message.data) for message in messages if message.kind is MessageKind.FAILED]
    if failures:
        return min(failures, key=lambda failure: (failure.how == "timed-out", failure.rank))
    first = messages[0]
    for message in messages:
        if (message.kind, message.call) != (first.kind, first.call):
            reason = f"out of step: it is {_place(message)}, and rank {first.rank} is {_place(first)}"
            return GroupFailed(message.rank, reason, "crashed")
    return None


def _place(message: RankMessage) -> str:
    return "through with the step" if message.kind is MessageKind.DONE else f"in {message.call}"


MARGIN_S = RELEASE_S + 10.0
"""The additional timeout of a command over that of its rank, to release a rank or to kill it."""
REPORT_S = 0.4
"""The timeout for an interrupted command's report to rank 0: mpirun sends SIGKILL 1 s after SIGTERM."""
IDLE_S = 600.0
"""The time that a command waits for an order. Between orders rank 0 plans, writes, or waits for the user."""


class LocalRank(Group):
    """This command's part of a group: the process of its rank.

    Parameters
    ----------
    child
        The running process.
    """

    def __init__(self, world: World, child: Child) -> None:
        self.world = world
        super().__init__({world.rank: child})

    def join(self, messages: list[RankMessage], timeout_s: float) -> list[RankMessage]:
        """Exchange this rank's message; return the messages of all ranks of the job."""
        (own,) = messages
        given = {"kind": own.kind, "call": own.call, "data": own.data}
        received = self.world.all_gather(given, timeout_s + MARGIN_S)
        return [
            RankMessage(rank=rank, kind=MessageKind(message["kind"]), call=message["call"], data=message["data"])
            for rank, message in enumerate(received)
        ]

    def restart(self) -> None:
        """End the process and start a new one."""
        self.close()
        self._members = {self.world.rank: start_rank(self.world.rank, self.world.size)}

    def kill(self) -> None:
        """Kill the process."""
        self._members[self.world.rank].kill()


class Coordinator(LocalRank):
    """The ranks of all commands, driven by rank 0.

    Parameters
    ----------
    child
        See :class:`LocalRank`.
    name
        A function that returns the name of a rank's GPU and node.

    Attributes
    ----------
    lost
        The ranks whose commands are gone. With any, the job accepts no more requests.
    """

    def __init__(self, world: World, child: Child, name: Callable[[int], str]) -> None:
        super().__init__(world, child)
        self.lost: tuple[int, ...] = ()
        self._name = name
        self._is_new = True

    def start(self) -> Coordinator:
        """Return the group of all ranks: on the first call with the running processes, later with new ones."""
        if not self._is_new:
            self.order(0, {"do": "start"})
            self.restart()
        self._is_new = False
        return self

    def ask(self, request: Message, timeout_s: float, on_event: OnEvent | None = None) -> list[Message]:
        self.order(timeout_s, {"do": "ask", "request": request, "timeout_s": timeout_s})
        try:
            return super().ask(request, timeout_s, on_event)
        except GroupFailed as error:
            name = self._name(error.rank)
            raise GroupFailed(error.rank, error.reason, error.how, error.last_call, name) from None
        except RanksMissing as error:
            raise self.failed(error.ranks) from None

    def finish(self) -> None:
        """Send the other commands the order to finish. The results do not depend on its arrival."""
        if not self.lost:
            with contextlib.suppress(GroupFailed):
                self.order(0, {"do": "finish"})

    def order(self, timeout_s: float, order: Message) -> None:
        """Send an order to the other commands."""
        if self.lost:
            raise self.failed(self.lost)
        try:
            self.world.all_gather(order, timeout_s + MARGIN_S)
        except RanksMissing as error:
            raise self.failed(error.ranks) from None

    def failed(self, ranks: tuple[int, ...]) -> GroupFailed:
        """Record that commands are gone; return the exception for the request."""
        self.lost = ranks
        gone = ", ".join(f"rank {rank} ({self._name(rank)})" for rank in ranks) or "an unknown rank"
        reason = f"the process that MPI started is gone or does not respond: {gone}"
        return GroupFailed(min(ranks, default=0), reason, "crashed")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is KeyboardInterrupt:
            # The launcher kills this command after a second.
            self.kill()
        self.close()


def serve_rank(world: World, child: Child) -> None:
    """Carry out rank 0's orders until it finishes; for the parameters see :class:`LocalRank`.

    Raises
    ------
    RanksMissing
        Some commands are gone. Rank 0 reports this and ends the job.
    """
    member = LocalRank(world, child)
    try:
        while (order := world.all_gather(None, IDLE_S)[0])["do"] != "finish":
            if order["do"] == "start":
                member.restart()
                continue
            # Rank 0 sees the failure in the same messages.
            with contextlib.suppress(GroupFailed):
                member.ask(order["request"], order["timeout_s"])
    except KeyboardInterrupt:
        # mpirun interrupts all commands when it has lost one, and rank 0 then calls the roll. The report comes before
        # the end of the child, which may be slow in a driver call.
        world.roll_call(REPORT_S)
        member.kill()
        raise
    finally:
        member.close()
