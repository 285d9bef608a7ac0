"""All commands of one MPI job: collective calls with a deadline, and who is missing when one does not come to its end.

MPI has no timeouts: a process that is gone leaves the others waiting. So every call here is a non-blocking one that is
polled. When one is not over in time, all that still are there report to rank 0, which knows then who does not.
"""

from __future__ import annotations

import socket
import time
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NoReturn

from egmctl.errors import EgmctlError, ExitCode, UsageError
from egmctl.mpi.environment import Launched

ROLL_CALL_S = 3.0
"""How long rank 0 listens for the others: they come to the same call at different times."""
FINISH_S = 60.0
"""How long the slowest rank may take to end: its process may sit in a driver call."""
MESSAGE_LIMIT = 1 << 30
"""Bytes that all ranks together give in one call: MPI counts in signed 32-bit integers."""

_SPIN_S = 2e-3
"""How long a call is polled without a pause: two ranks that begin to measure together are this close, not closer."""
_PAUSE_S = 1e-3
_ALIVE = 7
"""Tag of the roll call's messages."""


class RanksMissing(EgmctlError):
    """Some ranks did not come to a call that all make.

    Parameters
    ----------
    ranks
        Who; empty where only rank 0 knows.
    """

    code = "ranks-missing"

    def __init__(self, ranks: tuple[int, ...]) -> None:
        who = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}" if ranks else "a rank"
        super().__init__(f"{who} did not answer any more")
        self.ranks = ranks


class World:
    """The job; every rank makes the same calls in the same order.

    Attributes
    ----------
    rank, size
        Of this process, and how many there are.
    host
        The name of its node.
    broken
        Whether ranks are gone, so that the job can only be ended by force.

    Raises
    ------
    UsageError
        If there is no mpi4py or no MPI for it, or that does not know the job that the launcher started.
    """

    def __init__(self, launched: Launched) -> None:
        self._mpi = _initialised()
        self._comm = self._mpi.COMM_WORLD
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()
        self.host = socket.gethostname()
        self.broken = False
        # Of calls under way, and of those that were given up: MPI goes on to write into their buffers.
        self._requests: list[Any] = []
        if self.size != launched.size:
            raise UsageError(
                f"{launched.by} has started {launched.size} processes and MPI knows {self.size}: use the launcher of "
                "the MPI that mpi4py was built with (srun --mpi=pmix), or --mpi off"
            )

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Give bytes to all; return what each rank has given.

        Raises
        ------
        RanksMissing
            If it is not over in time.
        """
        sizes = array("i", bytes(4 * self.size))
        self._wait(self._comm.Iallgather(array("i", [len(data)]), sizes), timeout_s)
        total = _total(sizes)
        if not total:
            return [b""] * self.size
        received = bytearray(total)
        layout = [received, (sizes, _starts(sizes)), self._mpi.BYTE]
        self._wait(self._comm.Iallgatherv([data, self._mpi.BYTE], layout), timeout_s)
        return _parts(received, sizes)

    def gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Give bytes to rank 0; return there what each rank has given, elsewhere nothing."""
        sizes = array("i", bytes(4 * self.size))
        self._wait(self._comm.Iallgather(array("i", [len(data)]), sizes), timeout_s)
        total = _total(sizes)
        if self.rank:
            self._wait(self._comm.Igatherv([data, self._mpi.BYTE], None), timeout_s)
            return []
        received = bytearray(total)
        layout = [received, (sizes, _starts(sizes)), self._mpi.BYTE]
        self._wait(self._comm.Igatherv([data, self._mpi.BYTE], layout), timeout_s)
        return _parts(received, sizes)

    def broadcast(self, data: bytes, timeout_s: float, root: int = 0) -> bytes:
        """Return what ``root`` gives; what others give is not looked at."""
        size = array("q", [len(data)])
        self._wait(self._comm.Ibcast(size, root), timeout_s)
        _total(size)
        buffer = bytearray(data) if self.rank == root else bytearray(size[0])
        self._wait(self._comm.Ibcast([buffer, self._mpi.BYTE], root), timeout_s)
        return bytes(buffer)

    def barrier(self, timeout_s: float) -> None:
        """Return when all have come here."""
        self._wait(self._comm.Ibarrier(), timeout_s)

    def roll_call(self, within_s: float = ROLL_CALL_S) -> tuple[int, ...]:
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

    def finish(self) -> None:
        """Leave MPI: every rank comes here; if one does not, all are ended."""
        try:
            self.barrier(FINISH_S)
        except RanksMissing:
            self.abort(ExitCode.CRASHED)
        self._mpi.Finalize()

    def abort(self, code: int) -> NoReturn:
        """End all processes of the job: some do not come to its end by themselves."""
        self._comm.Abort(code)
        raise SystemExit(code)

    def _wait(self, request: Any, timeout_s: float) -> None:
        self._requests.append(request)
        if not self._poll(request.Test, timeout_s):
            self.broken = True
            raise RanksMissing(self.roll_call())
        self._requests.remove(request)

    @staticmethod
    def _poll(is_over: Callable[[], bool], timeout_s: float) -> bool:
        started = time.monotonic()
        while not is_over():
            waited = time.monotonic() - started
            if waited > timeout_s:
                return False
            if waited > _SPIN_S:
                time.sleep(_PAUSE_S)
        return True


def _initialised() -> Any:
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        # The latter where mpi4py is there and finds no MPI library.
        why = str(error).partition("\n")[0]
        raise UsageError(
            f"a run under MPI needs mpi4py and the launcher's MPI library ({why}): pip install 'egmctl[mpi]', load "
            "that MPI, or --mpi off"
        ) from None
    if not MPI.Is_initialized():
        MPI.Init()
    return MPI


def _total(sizes: Sequence[int]) -> int:
    """Return how many bytes are to come: every rank sees the same numbers, and all refuse the same.

    Raises
    ------
    EgmctlError
        If that is more than may come at once, or a rank says less than nothing.
    """
    total = sum(sizes)
    if total > MESSAGE_LIMIT or min(sizes, default=0) < 0:
        raise EgmctlError(f"{total} bytes are more than {MESSAGE_LIMIT}, which all ranks together may give at once")
    return total


def _starts(sizes: Sequence[int]) -> array[int]:
    return array("i", [0, *accumulate(sizes)][:-1])


def _parts(received: bytearray, sizes: Sequence[int]) -> list[bytes]:
    return [bytes(received[start : start + size]) for start, size in zip(_starts(sizes), sizes, strict=True)]
