"""The child process that is a command's part in its MPI job: it starts MPI and makes each call that it is asked for.

MPI has no timeouts: a process that is gone leaves the others waiting. So every call here is a non-blocking one that is
polled. When one is not over in time, all that still are there report to rank 0, which knows then who does not.
"""

from __future__ import annotations

import select
import signal
import time
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from egmctl.errors import EgmctlError, NothingToDo
from egmctl.launch import Channel

ROLL_CALL_S = 3.0
"""How long rank 0 listens for the others: they come to the same call at different times."""
MESSAGE_LIMIT = 30 << 20
"""Bytes that all ranks together give in one call: quoted as JSON they fit in one message to the command."""

_SPIN_S = 2e-3
"""How long a call is polled without a pause: two ranks that begin to measure together are this close, not closer."""
_PAUSE_MS = 1
_ALIVE = 7
"""Tag of the roll call's messages."""


def serve(parent: Channel, _arguments: dict[str, Any]) -> None:
    """Start MPI, say which rank of how many this is, and make each call that the command orders."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # They are sent to all processes of a job. The command heeds them, and this process ends with it.
        signal.signal(number, signal.SIG_IGN)
    communicator = Communicator(_initialised(), parent)
    parent.send({"rank": communicator.rank, "size": communicator.size})
    while True:
        order, _ = parent.receive()
        try:
            answer: dict[str, Any] = {"parts": communicator.make(order)}
        except Abandoned:
            continue
        except Missing as error:
            answer = {"missing": error.ranks}
        except EgmctlError as error:
            answer = {"refused": str(error)}
        parent.send(answer | {"number": order["number"]})


class Missing(Exception):
    """Ranks did not come to a call; on all ranks but 0 it is not known which."""

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__()
        self.ranks = ranks


class Abandoned(Exception):
    """The command has given the call up: it asks for another one."""


class Communicator:
    """MPI's communicator of all processes, with a deadline for each call."""

    def __init__(self, mpi: Any, parent: Channel) -> None:
        self._mpi = mpi
        self._comm = mpi.COMM_WORLD
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()
        self._order = select.poll()
        self._order.register(parent, select.POLLIN)
        # Of calls under way, and of those that were given up: MPI goes on to write into their buffers.
        self._requests: list[Any] = []

    def make(self, order: dict[str, Any]) -> list[str]:
        """Make the call that the command orders; return what each rank has given.

        Raises
        ------
        Missing, Abandoned
            It did not come to its end.
        EgmctlError
            More bytes are to come than can.
        """
        timeout_s = order["timeout_s"]
        match order["call"]:
            case "all_gather":
                return self.all_gather(order["text"].encode(), timeout_s)
            case "roll_call":
                if ranks := self.roll_call(timeout_s):
                    raise Missing(ranks)
            case "finish":
                self._wait(self._comm.Ibarrier(), timeout_s)
                self._mpi.Finalize()
            case "abort":
                self._comm.Abort(order["code"])
        return []

    def all_gather(self, data: bytes, timeout_s: float) -> list[str]:
        """Give bytes to all; return what each rank has given, as text."""
        sizes = array("i", bytes(4 * self.size))
        self._wait(self._comm.Iallgather(array("i", [len(data)]), sizes), timeout_s)
        total = sum(sizes)
        # Every rank sees the same numbers, and all refuse the same.
        if total > MESSAGE_LIMIT or min(sizes) < 0:
            raise EgmctlError(f"{total} bytes are more than {MESSAGE_LIMIT}, which all ranks together may give at once")
        received = bytearray(total)
        starts = array("i", [0, *accumulate(sizes)][:-1])
        layout = [received, (sizes, starts), self._mpi.BYTE]
        self._wait(self._comm.Iallgatherv([data, self._mpi.BYTE], layout), timeout_s)
        parts = zip(starts, sizes, strict=True)
        return [received[start : start + size].decode("utf-8", "replace") for start, size in parts]

    def roll_call(self, within_s: float) -> tuple[int, ...]:
        """Have everybody who is there report to rank 0; return there who has not, elsewhere nothing."""
        if self.rank:
            self._requests.append(self._comm.Isend([bytearray(1), self._mpi.BYTE], 0, _ALIVE))
            self._poll(self._requests[-1].Test, within_s)
            return ()
        missing = dict.fromkeys(range(1, self.size))
        requests = {rank: self._comm.Irecv([bytearray(1), self._mpi.BYTE], rank, _ALIVE) for rank in missing}
        self._requests += requests.values()

        def all_there() -> bool:
            for rank in [rank for rank in missing if requests[rank].Test()]:
                del missing[rank]
            return not missing

        self._poll(all_there, within_s)
        return tuple(missing)

    def _wait(self, request: Any, timeout_s: float) -> None:
        self._requests.append(request)
        if not self._poll(request.Test, timeout_s):
            raise Missing(self.roll_call(ROLL_CALL_S))
        self._requests.remove(request)

    def _poll(self, is_over: Callable[[], bool], timeout_s: float) -> bool:
        started = time.monotonic()
        while not is_over():
            waited = time.monotonic() - started
            if waited > timeout_s:
                return False
            if waited > _SPIN_S and self._order.poll(_PAUSE_MS):
                raise Abandoned
        return True


def _initialised() -> Any:
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        # The latter where mpi4py is there and finds no MPI library.
        reason = str(error).partition("\n")[0]
        raise NothingToDo(f"there is no mpi4py or no MPI library ({reason}): pip install 'egmctl[mpi]'") from None
    if not MPI.Is_initialized():
        MPI.Init()
    return MPI
