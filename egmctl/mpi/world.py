"""The ranks of an MPI job, and collective calls between them that time out if a rank is missing."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import GenericAlias
from typing import Any, NoReturn, TypeVar

from egmctl import __version__
from egmctl.dataclass import dataclass
from egmctl.errors import ChildFailed, EgmctlError, ExitCode, NothingToDo, UsageError
from egmctl.launch import ChannelClosed, Child, wait_for_any
from egmctl.model.codec import from_json, to_json
from egmctl.mpi.communicator import ROLL_CALL_S
from egmctl.units import grouped, printable, shortened

T = TypeVar("T")
Facts = TypeVar("Facts")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a rank cannot take part."""

    host: str
    reason: str
    """The error, as a sentence."""
    usage: bool
    """Whether it is a usage error."""


def read_parts(parts: Sequence[Any], parse: Callable[[Any], T]) -> list[T]:
    """Return the parsed contribution of each rank, in the order of the ranks.

    Raises
    ------
    UsageError
        ``parse`` rejects a contribution, as from another version of egmctl. The message names the rank.
    """
    values = []
    for rank, part in enumerate(parts):
        try:
            values.append(parse(part))
        except (ValueError, RecursionError):
            raise UsageError(
                f"rank {rank} does not speak as egmctl {__version__} does: install one version on all nodes"
            ) from None
    return values


def _check(refusals: Mapping[int, Refusal]) -> None:
    """Raise UsageError if any refusal is a usage error, NothingToDo if there are others; the message lists all."""
    named = [(refusal.reason, f"rank {rank} ({printable(refusal.host)})") for rank, refusal in refusals.items()]
    if refusals:
        usage = any(refusal.usage for refusal in refusals.values())
        sentences = (f"{shortened(ranks, 1)}: {reason}" for reason, ranks in grouped(named).items())
        raise (UsageError if usage else NothingToDo)("; ".join(sentences))


START_S = 60.0
"""The timeout of the initialization of MPI, in which all processes of a job wait for each other."""
PATIENCE_S = 5.0
"""The time after which :class:`World` reports a slow initialization."""
FINISH_S = 60.0
"""The timeout of the final barrier. The process of a slow rank may be in a driver call."""

_MARGIN_S = 10.0
"""The time that the child may take to answer after the timeout of the MPI call."""
_TARGET = "egmctl.mpi.communicator:serve"
_WORDS = 400
"""The maximum number of characters of MPI's output to show."""


class MpiFailed(NothingToDo):
    """MPI cannot be used: the processes of the job cannot communicate.

    Parameters
    ----------
    reason
        The reason, as a clause.
    """

    code = "no-mpi"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the processes of this job cannot talk to each other: {reason}; start them with the launcher of the MPI "
            "that mpi4py loads (its own mpirun, or srun --mpi=pmix), or give --mpi off"
        )
        self.reason = reason


class RanksMissing(EgmctlError):
    """Some ranks did not respond in a collective call.

    Parameters
    ----------
    ranks
        The missing ranks; empty if only rank 0 knows them. If this rank's own MPI process failed, only this rank.
    """

    code = "ranks-missing"

    def __init__(self, ranks: tuple[int, ...]) -> None:
        noun = "ranks" if len(ranks) > 1 else "rank"
        who = f"{noun} {', '.join(map(str, ranks))}" if ranks else "a rank"
        super().__init__(f"{who} did not answer any more")
        self.ranks = ranks


@dataclass(frozen=True, slots=True)
class Launched:
    """The launcher's description of this process."""

    rank: int
    size: int
    """The number of processes of the job, at least 2."""
    by: str
    """The launcher's name, for messages."""
    first_of_node: bool
    """Whether this process is the first one on its node."""


class World:
    """This process' connection to the MPI job. Every rank must make the same calls in the same order.

    Parameters
    ----------
    on_wait
        The function to call if the initialization takes longer than :data:`PATIENCE_S`.

    Attributes
    ----------
    rank, size
        This process' rank and the number of ranks.
    host
        The name of this process' node.
    broken
        Whether a rank is missing, so that the job can only be aborted.

    Raises
    ------
    MpiFailed
        There is no mpi4py or MPI library, the initialization fails, or MPI and the launcher report different sizes.
    """

    def __init__(
        self, launched: Launched, on_wait: Callable[[], object] = lambda: None, start_s: float = START_S
    ) -> None:
        self.host = socket.gethostname()
        self.broken = False
        self._order = 0
        self._child = Child(_TARGET, {}, inherited=_pmi(os.environ))
        try:
            if not wait_for_any([self._child], min(PATIENCE_S, start_s)):
                on_wait()
            started = self._child.receive(start_s)[0]
        except BaseException as error:
            self._child.close()
            if isinstance(error, ChildFailed):
                raise MpiFailed(_reason(error)) from None
            raise
        self.rank: int = started["rank"]
        self.size: int = started["size"]
        if self.size != launched.size:
            self._child.close()
            raise MpiFailed(f"{launched.by} has started {launched.size} processes and MPI knows {self.size}")

    def all_gather(self, value: Any, timeout_s: float) -> list[Any]:
        """Send a JSON value to all ranks; return the value of each rank.

        Raises
        ------
        RanksMissing
            The call timed out.
        """
        return read_parts(self._call("all_gather", timeout_s, text=json.dumps(value)), json.loads)

    def gather(self, value: Any, timeout_s: float) -> dict[int, Any]:
        """Send a JSON value to rank 0; there, return the values by rank, without ranks that sent none in time.

        Missing ranks make the job :attr:`broken`. Other ranks do not wait.
        """
        texts = self._call("gather", timeout_s, text=json.dumps(value))
        self.broken = self.broken or "" in texts
        return {rank: json.loads(text) for rank, text in enumerate(texts) if text}

    def share(
        self, kind: type[T], read: Callable[[], Facts], describe: Callable[[Facts], T], timeout_s: float
    ) -> tuple[Facts, list[T]]:
        """Read this rank's facts and exchange descriptions; return the facts and each rank's description.

        Raises
        ------
        NothingToDo, UsageError
            A rank cannot read or describe its facts. Every rank raises the same error.
        RanksMissing
            Some ranks do not respond.
        """
        try:
            facts = read()
            own = to_json((describe(facts), None))
        except EgmctlError as error:
            own = to_json((None, Refusal(self.host, str(error), isinstance(error, UsageError))))
        answer: Any = GenericAlias(tuple, (kind | None, Refusal | None))
        answers = read_parts(self.all_gather(own, timeout_s), partial(from_json, answer))
        _check({rank: refusal for rank, (_, refusal) in enumerate(answers) if refusal})
        return facts, [record for record, _ in answers]

    def roll_call(self, within_s: float = ROLL_CALL_S) -> tuple[int, ...]:
        """Report to rank 0; on rank 0, return the ranks that did not report in time. Other ranks return ``()``."""
        try:
            self._call("roll_call", within_s)
        except RanksMissing as error:
            return error.ranks
        return ()

    def finish(self) -> None:
        """Finalize MPI once all ranks have called this. If a rank does not, abort the job."""
        try:
            self._call("finish", FINISH_S)
        except RanksMissing:
            self.abort(ExitCode.CRASHED)
        self._child.close()

    def abort(self, code: int) -> NoReturn:
        """Abort all processes of the job and exit with ``code``."""
        # The launcher terminates this process too, perhaps before it can exit with the code.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        with contextlib.suppress(RanksMissing):
            self._call("abort", 0, code=code)
        self._child.close()
        raise SystemExit(code)

    def _call(self, name: str, timeout_s: float, **more: Any) -> list[str]:
        """Make a call in the child and return the text of each rank.

        If an exception interrupts the wait, the child abandons the call at the next request. Late answers to earlier
        requests are discarded.
        """
        self._order += 1
        order = {"number": self._order, "call": name, "timeout_s": timeout_s, **more}
        answer: dict[str, Any] = {}
        try:
            self._child.channel.send(order, timeout_s=_MARGIN_S)
            while answer.get("number") != self._order:
                answer, _ = self._child.receive(timeout_s + ROLL_CALL_S + _MARGIN_S)
        except (ChannelClosed, TimeoutError, ChildFailed):
            self.broken = True
            raise RanksMissing((self.rank,)) from None
        if "refused" in answer:
            raise EgmctlError(answer["refused"])
        if "missing" in answer:
            self.broken = self.broken or name != "roll_call"
            raise RanksMissing(tuple(answer["missing"]))
        parts: list[str] = answer["parts"]
        return parts


def _pmi(environment: Mapping[str, str]) -> tuple[int, ...]:
    """Return the descriptor of the launcher's PMI-1 or PMI-2 connection, which the child that starts MPI inherits."""
    with contextlib.suppress(KeyError, ValueError, OSError):
        number = int(environment["PMI_FD"])
        os.fstat(number)
        return (number,)
    return ()


def _reason(error: ChildFailed) -> str:
    """Return the reason why MPI did not start, with the end of its output, as a clause."""
    if error.how == "raised":
        return str(error)
    how = str(error).replace(_TARGET, "MPI_Init", 1).removesuffix(" without a result")
    return how + (f" ({words})" if (words := _last_words(error.output)) else "")


def _last_words(output: str) -> str:
    """Return MPI's error message: the first sentence that Open MPI prints between rules, or the last three lines."""
    printed = output.partition("Fatal Python error:")[0]
    framed = re.search(r"^-{20,}\n(.+?\.)(?:\s|$)", printed, re.DOTALL | re.MULTILINE)
    lines = framed[1].splitlines() if framed else printed.strip().splitlines()[-3:]
    return " ".join(word for line in lines for word in line.split())[:_WORDS]
