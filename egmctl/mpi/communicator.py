"""The child process that is a command's part in its MPI job: it starts MPI and makes each call that it is asked for.

MPI has no timeouts: a process that is gone leaves the others waiting. So every call here is a non-blocking one that is
polled. When one is not over in time, all that still are there report to rank 0, which knows then who does not.
"""

from __future__ import annotations

import io
import select
import signal
import time
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from egmctl.errors import EgmctlError, NothingToDo
from egmctl.launch import Channel
from egmctl.launch.channel import memory_file

ROLL_CALL_S = 3.0
"""How long rank 0 listens for the others: they come to the same call at different times."""
MESSAGE_LIMIT = 1 << 30
"""Bytes that all ranks together give in one call: MPI counts in signed 32-bit integers."""

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
        order, fds = parent.receive()
        data = taken(fds)
        answer: dict[str, Any] = {"number": order["number"]}
        parts: list[bytes] = []
        try:
            parts = communicator.make(order, data)
        except Abandoned:
            continue
        except Missing as error:
            answer["missing"] = error.ranks
        except EgmctlError as error:
            answer["refused"] = str(error)
        with memory_of(b"".join(parts)) as file:
            parent.send(answer | {"sizes": [len(part) for part in parts]}, [file.fileno()])


def memory_of(data: bytes) -> io.FileIO:
    """Return a file in memory with these bytes: they are too many for a message."""
    file = memory_file("egmctl-mpi")
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
    return file


def taken(fds: Sequence[int]) -> bytes:
    """Return the bytes of the file that came with a message, and close it."""
    (fd,) = fds
    with open(fd, "rb") as file:
        file.seek(0)
        return file.read()


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

    def make(self, order: dict[str, Any], data: bytes) -> list[bytes]:
        """Make the call that the command orders; return what each rank has given, as far as it concerns this one.

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
                return self.gather(data, timeout_s, to_all=True)
            case "gather":
                return self.gather(data, timeout_s)
            case "broadcast":
                return [self.broadcast(data, timeout_s, order["root"])]
            case "roll_call":
                if ranks := self.roll_call(timeout_s):
                    raise Missing(ranks)
            case "finish":
                self._wait(self._comm.Ibarrier(), timeout_s)
                self._mpi.Finalize()
            case "abort":
                self._comm.Abort(order["code"])
        return []

    def gather(self, data: bytes, timeout_s: float, *, to_all: bool = False) -> list[bytes]:
        """Give bytes to rank 0, or to all; return there what each rank has given, elsewhere nothing."""
        sizes = array("i", bytes(4 * self.size))
        self._wait(self._comm.Iallgather(array("i", [len(data)]), sizes), timeout_s)
        received = bytearray(_total(sizes))
        starts = array("i", [0, *accumulate(sizes)][:-1])
        here = to_all or not self.rank
        if received:
            layout = [received, (sizes, starts), self._mpi.BYTE] if here else None
            begin = self._comm.Iallgatherv if to_all else self._comm.Igatherv
            self._wait(begin([data, self._mpi.BYTE], layout), timeout_s)
        parts = zip(starts, sizes, strict=True)
        return [bytes(received[start : start + size]) for start, size in parts] if here else []

    def broadcast(self, data: bytes, timeout_s: float, root: int) -> bytes:
        """Return what ``root`` gives; what others give is not looked at."""
        size = array("q", [len(data)])
        self._wait(self._comm.Ibcast(size, root), timeout_s)
        _total(size)
        buffer = bytearray(data) if self.rank == root else bytearray(size[0])
        self._wait(self._comm.Ibcast([buffer, self._mpi.BYTE], root), timeout_s)
        return bytes(buffer)

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
