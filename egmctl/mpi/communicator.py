"""The child process of a command that is a rank of an MPI job: it initializes MPI and makes the command's MPI calls.

MPI has no timeouts, so a missing process would block the others forever. Every call here is therefore nonblocking and
polled. If a call times out, all remaining ranks report to rank 0, which then knows the missing ones.
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
"""The time that rank 0 waits for the other ranks' reports, because ranks reach the same call at different times."""
MESSAGE_LIMIT = 30 << 20
"""The maximum number of bytes that all ranks together contribute to one call. As JSON they fit in one message to the
command."""

_SPIN_S = 2e-3
"""The time that a call is polled without pauses. Ranks that arrive within it start a measurement together; later polls
are a pause apart."""
_PAUSE_MS = 1
_ALIVE, _GIVEN = 7, 8
"""The tags of the messages of a roll call and of a gathering at rank 0."""


def serve(parent: Channel, _arguments: dict[str, Any]) -> None:
    """Initialize MPI, send the rank and the job's size to the command, and make the calls that it requests, forever."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # All processes of a job get these signals. The command handles them, and this process ends with it.
        signal.signal(number, signal.SIG_IGN)
    communicator = Communicator(_initialised(), parent)
    parent.send({"rank": communicator.rank, "size": communicator.size})
    while True:
        order, _ = parent.receive()
        try:
            answer: dict[str, Any] = {"parts": communicator.make(order)}
        except CallAbandoned:
            continue
        except CallTimedOut as error:
            answer = {"missing": error.ranks}
        except EgmctlError as error:
            answer = {"refused": str(error)}
        parent.send(answer | {"number": order["number"]})


class CallTimedOut(Exception):
    """A call timed out because ranks are missing. ``ranks`` is empty on all ranks but 0, where it names them."""

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__()
        self.ranks = ranks


class CallAbandoned(Exception):
    """The command abandoned the call: its request for another one has arrived."""


class Communicator:
    """The communicator MPI_COMM_WORLD with a timeout for each call, which a new request of the command abandons."""

    def __init__(self, mpi: Any, parent: Channel) -> None:
        self._mpi = mpi
        self._comm = mpi.COMM_WORLD
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()
        self._order = select.poll()
        self._order.register(parent, select.POLLIN)
        # The requests of current and abandoned calls: MPI still writes to the buffers of the latter.
        self._requests: list[Any] = []
        self._given: dict[int, tuple[bytearray, Any]] = {}
        """On rank 0, what other ranks have sent to :meth:`gather`, also to an abandoned call, and the requests."""

    def make(self, order: dict[str, Any]) -> list[str]:
        """Make the call that the command requests; return each rank's contribution (``all_gather`` only).

        Raises
        ------
        CallTimedOut, CallAbandoned
            The call did not complete.
        EgmctlError
            The contributions exceed :data:`MESSAGE_LIMIT`.
        """
        timeout_s = order["timeout_s"]
        match order["call"]:
            case "all_gather":
                return self.all_gather(order["text"].encode(), timeout_s)
            case "gather":
                return self.gather(order["text"].encode(), timeout_s)
            case "roll_call":
                if ranks := self.roll_call(timeout_s):
                    raise CallTimedOut(ranks)
            case "finish":
                self._wait(self._comm.Ibarrier(), timeout_s)
                self._mpi.Finalize()
            case "abort":
                self._comm.Abort(order["code"])
        return []

    def all_gather(self, data: bytes, timeout_s: float) -> list[str]:
        """Send bytes to all ranks; return each rank's bytes, decoded as UTF-8."""
        sizes = array("i", bytes(4 * self.size))
        self._wait(self._comm.Iallgather(array("i", [len(data)]), sizes), timeout_s)
        total = sum(sizes)
        # All ranks see the same sizes, so all of them raise.
        if total > MESSAGE_LIMIT or min(sizes) < 0:
            raise EgmctlError(f"{total} bytes are more than {MESSAGE_LIMIT}, which all ranks together may give at once")
        received = bytearray(total)
        starts = array("i", [0, *accumulate(sizes)][:-1])
        layout = [received, (sizes, starts), self._mpi.BYTE]
        self._wait(self._comm.Iallgatherv([data, self._mpi.BYTE], layout), timeout_s)
        parts = zip(starts, sizes, strict=True)
        return [received[start : start + size].decode("utf-8", "replace") for start, size in parts]

    def gather(self, data: bytes, timeout_s: float) -> list[str]:
        """Send bytes to rank 0; there, return each rank's bytes, empty for ranks that sent none in time.

        Other ranks do not wait until rank 0 has received theirs. A rank may only call it again in place of an abandoned
        call.
        """
        if self.rank:
            self._requests.append(self._comm.Isend([data, self._mpi.BYTE], 0, _GIVEN))
            return []
        status = self._mpi.Status()

        def all_there() -> bool:
            while self._comm.Iprobe(self._mpi.ANY_SOURCE, _GIVEN, status):
                part, rank = bytearray(status.Get_count(self._mpi.BYTE)), status.Get_source()
                self._given[rank] = part, self._comm.Irecv([part, self._mpi.BYTE], rank, _GIVEN)
            return [bool(request.Test()) for _, request in self._given.values()].count(True) == self.size - 1

        self._poll(all_there, timeout_s)
        parts = {rank: part for rank, (part, request) in self._given.items() if request.Test()} | {0: data}
        if sum(map(len, parts.values())) > MESSAGE_LIMIT:
            raise EgmctlError(f"the ranks gave more than {MESSAGE_LIMIT} bytes, which rank 0 may gather at once")
        return [parts.get(rank, b"").decode("utf-8", "replace") for rank in range(self.size)]

    def roll_call(self, within_s: float) -> tuple[int, ...]:
        """Report to rank 0; on rank 0, return the ranks that did not report in time. Other ranks return ``()``."""
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
            raise CallTimedOut(self.roll_call(ROLL_CALL_S))
        self._requests.remove(request)

    def _poll(self, is_over: Callable[[], bool], timeout_s: float) -> bool:
        started = time.monotonic()
        while not is_over():
            waited = time.monotonic() - started
            if waited > timeout_s:
                return False
            if waited > _SPIN_S and self._order.poll(_PAUSE_MS):
                raise CallAbandoned
        return True


def _initialised() -> Any:
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        # mpi4py raises RuntimeError if it finds no MPI library.
        reason = str(error).partition("\n")[0]
        raise NothingToDo(f"there is no mpi4py or no MPI library ({reason}): pip install 'egmctl[mpi]'") from None
    if not MPI.Is_initialized():
        MPI.Init()
    return MPI
