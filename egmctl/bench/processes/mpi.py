"""A run by all commands of an MPI job: rank 0 coordinates, the others serve, and each command drives one process.

Rank 0 supervises the run as on one node. It first sends each request to the other commands, which pass it to their
processes. Then all commands exchange the messages of their ranks round by round (:mod:`egmctl.bench.processes.group`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from egmctl.bench.processes.group import (
    RELEASE_S,
    WORKER,
    Group,
    GroupFailed,
    Kind,
    Message,
    OnEvent,
    RankMessage,
    start_rank,
)
from egmctl.launch import Child
from egmctl.mpi.world import RanksMissing, World

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
    target
        The target of processes that replace a failed one; only tests change it.
    """

    def __init__(self, world: World, child: Child, target: str = WORKER) -> None:
        self.world = world
        self._target = target
        self._timeout_s = 0.0
        """The timeout of a rank's message."""
        super().__init__({world.rank: child}, self.join)

    def ask(self, request: Message, timeout_s: float, on_event: OnEvent | None = None) -> list[Message]:
        self._timeout_s = timeout_s
        return super().ask(request, timeout_s, on_event)

    def join(self, messages: Sequence[RankMessage]) -> list[RankMessage]:
        """Exchange this rank's message; return the messages of all ranks of the job."""
        (own,) = messages
        given = {"kind": own.kind, "call": own.call, "data": own.data}
        received = self.world.all_gather(given, self._timeout_s + MARGIN_S)
        return [
            RankMessage(rank=rank, kind=Kind(message["kind"]), call=message["call"], data=message["data"])
            for rank, message in enumerate(received)
        ]

    def restart(self) -> None:
        """End the process and start a new one."""
        self.close()
        self._members = {self.world.rank: start_rank(self.world.rank, self.world.size, self._target)}

    def kill(self) -> None:
        """Kill the process."""
        self._members[self.world.rank].kill()


class Coordinator(LocalRank):
    """The ranks of all commands, driven by rank 0.

    Parameters
    ----------
    child, target
        See :class:`LocalRank`.
    name
        A function that returns the name of a rank's GPU and node.

    Attributes
    ----------
    lost
        The ranks whose commands are gone. With any, the job accepts no more requests.
    """

    def __init__(self, world: World, child: Child, name: Callable[[int], str], target: str = WORKER) -> None:
        super().__init__(world, child, target)
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


def serve_rank(world: World, child: Child, target: str = WORKER) -> None:
    """Carry out rank 0's orders until it finishes; for the parameters see :class:`LocalRank`.

    Raises
    ------
    RanksMissing
        Some commands are gone. Rank 0 reports this and ends the job.
    """
    member = LocalRank(world, child, target)
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
