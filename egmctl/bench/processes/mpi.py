"""One run by the commands of an MPI job: rank 0 coordinates, the others serve, and each has one rank's process.

Rank 0 supervises as it would on one node. Whatever it asks of its ranks it first tells the other commands, which ask
the same of theirs; then all join the messages of their ranks round by round (:mod:`egmctl.bench.processes.group`).
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
"""Extra seconds that a command may need beyond its rank to send a message: to release a rank, and to kill it."""
REPORT_S = 0.4
"""How long a command that is told to end reports to rank 0: mpirun gives it a second between SIGTERM and SIGKILL."""
IDLE_S = 600.0
"""How long a command waits for an order: between two of them rank 0 plans, writes, or waits for a person."""


class LocalRank(Group):
    """This command's part of a group: its one rank's process.

    Parameters
    ----------
    child
        The process, started already.
    target
        The target of the processes that replace failed ones; only tests pass another one.
    """

    def __init__(self, world: World, child: Child, target: str = WORKER) -> None:
        self.world = world
        self._target = target
        self._timeout_s = 0.0
        """Until a rank has to have sent its message."""
        super().__init__({world.rank: child}, self.join)

    def ask(self, request: Message, timeout_s: float, on_event: OnEvent | None = None) -> list[Message]:
        self._timeout_s = timeout_s
        return super().ask(request, timeout_s, on_event)

    def join(self, messages: Sequence[RankMessage]) -> list[RankMessage]:
        """Return the messages of all commands of the job, one of each rank."""
        (own,) = messages
        given = {"kind": own.kind, "call": own.call, "data": own.data}
        received = self.world.all_gather(given, self._timeout_s + MARGIN_S)
        return [
            RankMessage(rank=rank, kind=Kind(message["kind"]), call=message["call"], data=message["data"])
            for rank, message in enumerate(received)
        ]

    def restart(self) -> None:
        """End the process and start another one."""
        self.close()
        self._members = {self.world.rank: start_rank(self.world.rank, self.world.size, self._target)}

    def kill(self) -> None:
        """Kill the process."""
        self._members[self.world.rank].kill()


class Coordinator(LocalRank):
    """The ranks of all commands, as rank 0 drives them.

    Parameters
    ----------
    child, target
        Those of :class:`LocalRank`.
    name
        A function that returns the place of a rank, in words.

    Attributes
    ----------
    lost
        Ranks whose commands are gone, so that this job takes no more requests.
    """

    def __init__(self, world: World, child: Child, name: Callable[[int], str], target: str = WORKER) -> None:
        super().__init__(world, child, target)
        self.lost: tuple[int, ...] = ()
        self._name = name
        self._is_new = True

    def start(self) -> Coordinator:
        """Return the group of all ranks: first with the running processes, the second time with new ones."""
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
        """Tell the other commands that the run has ended; the results do not depend on their hearing it."""
        if not self.lost:
            with contextlib.suppress(GroupFailed):
                self.order(0, {"do": "finish"})

    def order(self, timeout_s: float, order: Message) -> None:
        """Tell the other commands what to do."""
        if self.lost:
            raise self.failed(self.lost)
        try:
            self.world.all_gather(order, timeout_s + MARGIN_S)
        except RanksMissing as error:
            raise self.failed(error.ranks) from None

    def failed(self, ranks: tuple[int, ...]) -> GroupFailed:
        """Note that commands are gone; return the resulting failure of a request."""
        self.lost = ranks
        gone = ", ".join(f"rank {rank} ({self._name(rank)})" for rank in ranks) or "an unknown rank"
        reason = f"the process that MPI started is gone or does not respond: {gone}"
        return GroupFailed(min(ranks, default=0), reason, "crashed")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is KeyboardInterrupt:
            # A launcher gives a second until it kills this command too.
            self.kill()
        self.close()


def serve_rank(world: World, child: Child, target: str = WORKER) -> None:
    """Carry out rank 0's orders until the last; the parameters are those of :class:`LocalRank`.

    Raises
    ------
    RanksMissing
        If the job is broken: rank 0 reports, and ends it.
    """
    member = LocalRank(world, child, target)
    try:
        while (order := world.all_gather(None, IDLE_S)[0])["do"] != "finish":
            if order["do"] == "start":
                member.restart()
                continue
            # Rank 0 knows of a failure from the same messages.
            with contextlib.suppress(GroupFailed):
                member.ask(order["request"], order["timeout_s"])
    except KeyboardInterrupt:
        # Rank 0 asks who is there, as mpirun ends all when it has lost one; a child in the driver is slow to end.
        world.roll_call(REPORT_S)
        member.kill()
        raise
    finally:
        member.close()
