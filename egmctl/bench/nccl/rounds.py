"""Gather what NCCL's processes report, round after round: that they have started, then one collective after the other.

A process that dies, hangs or talks nonsense ends the measurement: the others wait for it in a collective, so they are
killed after :data:`RELEASE_S`. What was measured before stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from egmctl.bench.nccl.collectives import collective_result
from egmctl.bench.nccl.table import is_complete, read_table
from egmctl.dataclass import dataclass
from egmctl.errors import ChildFailed
from egmctl.launch import Child, Message, close_all, wait_for_any
from egmctl.model.codec import DecodeError, from_json
from egmctl.model.nccl import CollectiveResult, Ending, NcclPlan, NcclProgram, RankFailure
from egmctl.units import printable

TORCH, TESTS = "egmctl.bench.nccl.torch_rank:run", "egmctl.bench.nccl.tests_process:run"
"""The targets of the processes."""
RELEASE_S = 10.0
"""The time in which the other ranks may fail of their own, after one has failed: each then has a reason of its own."""
IMPORT_S = 180.0
"""The least time that processes have to import PyTorch, which takes a minute from a slow disk that is read first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    """The message of a process that has loaded its libraries."""

    event: str
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """The message of a rank of PyTorch about one collective."""

    event: str
    collective: str
    elapsed_ms: tuple[float, ...]
    right: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """The message of the process of nccl-tests about one binary."""

    event: str
    collective: str
    exit_code: int
    output: str


@dataclass
class Round:
    """What the processes have said in one round: that they have started, or one collective."""

    messages: dict[int, Message] = field(default_factory=dict)
    """The message of each rank."""
    failures: list[RankFailure] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    """The end of the output of each process that failed."""


def next_round(plan: NcclPlan, members: Mapping[int, Child], timeout_s: float) -> Round:
    """Return the next message of each process; after a failure, those that have come.

    Parameters
    ----------
    members
        The processes by rank: all ranks, or those of this command.
    timeout_s
        The time without a message of any of them, also on a sample, after which they are given up.
    """
    said = Round()
    waiting = dict(members)
    deadline = time.monotonic() + timeout_s
    while waiting:
        ready = wait_for_any([*waiting.values()], deadline - time.monotonic())
        if not ready and said.failures:
            # They wait for the rank that failed.
            break
        if not ready and len(waiting) == len(members) > 1:
            # Each is silent in the same collective, as one of them hangs: which one is not known.
            said.failures.append(failure_of(plan, None, Ending.TIMED_OUT, f"no rank has responded for {timeout_s:g} s"))
            break
        for rank in [rank for rank, child in waiting.items() if not ready or child in ready]:
            child = waiting.pop(rank)
            try:
                message, descriptors = child.receive(timeout_s if ready else 0)
                close_all(descriptors)
                if message.get("event") != "sampled":
                    said.messages[rank] = message
                    continue
                waiting[rank] = child
                deadline = deadline if said.failures else time.monotonic() + timeout_s
            except ChildFailed as error:
                said.outputs.append(error.output)
                said.failures.append(failure_of(plan, rank, Ending(error.how), _ending(error, timeout_s)))
                deadline = min(deadline, time.monotonic() + RELEASE_S)
    return said


def failure_of(plan: NcclPlan, rank: int | None, how: Ending, reason: str) -> RankFailure:
    """Return the failure of a rank, or of a process of all ranks."""
    if plan.program is NcclProgram.NCCL_TESTS:
        rank = None
    label = ", ".join(plan.labels) if rank is None else plan.labels[rank]
    return RankFailure(rank=rank, label=label, how=how, reason=reason)


@dataclass
class RankReports:
    """What all processes have reported so far."""

    plan: NcclPlan
    results: list[CollectiveResult] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    failures: list[RankFailure] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    """The end of the output of each process that failed."""

    def gather(self, next_of_all: Callable[[float], Round], timeout_s: float) -> None:
        """Take round after round until the last collective, or until a process has failed.

        Parameters
        ----------
        next_of_all
            A function of a timeout in seconds that returns the next round of all ranks.
        """
        for name in (None, *self.plan.collectives):
            said = next_of_all(max(timeout_s, IMPORT_S) if name is None else timeout_s)
            self.failures += said.failures
            self.outputs += said.outputs
            if self.failures:
                return
            try:
                self._take(name, [said.messages[rank] for rank in sorted(said.messages)])
            except (DecodeError, ValueError) as error:
                reason = f"NCCL's processes reported nonsense: {printable(str(error)[:200])}"
                self.failures.append(failure_of(self.plan, None, Ending.GARBLED, reason))
            if self.failures:
                return

    def _take(self, name: str | None, messages: Sequence[Message]) -> None:
        """Take one message of each process: that it has started, or its part of one collective."""
        if name is None:
            for started in (from_json(_Started, message) for message in messages):
                self.versions |= started.versions
        elif self.plan.program is NcclProgram.NCCL_TESTS:
            self._take_table(name, from_json(_Ran, messages[0]))
        else:
            self._take_ranks(name, [from_json(_Measured, message) for message in messages])

    def _take_ranks(self, name: str, measured: Sequence[_Measured]) -> None:
        """Take one collective of the ranks. Each sample is as long as the slowest rank's."""
        if any((each.collective, len(each.elapsed_ms)) != (name, self.plan.samples) for each in measured):
            raise ValueError(f"not {self.plan.samples} samples of {name} from every rank")
        if any(elapsed_ms <= 0 for each in measured for elapsed_ms in each.elapsed_ms):
            raise ValueError(f"{name} took no time in a rank")
        slowest = [max(times) for times in zip(*(each.elapsed_ms for each in measured), strict=True)]
        right = all(each.right for each in measured)
        self.results.append(collective_result(name, len(measured), self.plan.size_bytes, slowest, right))

    def _take_table(self, name: str, ran: _Ran) -> None:
        """Take one collective of nccl-tests: the mean of its iterations, out of place."""
        if ran.collective != name:
            raise ValueError(f"{ran.collective} in place of {name}")
        rows = () if ran.exit_code and not is_complete(ran.output) else read_table(ran.output)
        if not rows:
            self.outputs.append(ran.output)
            reason = f"{name}_perf ended with exit code {ran.exit_code}"
            self.failures.append(failure_of(self.plan, None, Ending.CRASHED, reason))
            return
        row = rows[-1]
        # The binary rounds the size to a whole number of values for each rank.
        self.results.append(
            collective_result(name, len(self.plan.gpus), row.size_bytes, [row.time_us / 1e3], row.verified)
        )


def _ending(error: ChildFailed, timeout_s: float) -> str:
    """Return how a process failed, without the name of its target."""
    if Ending(error.how) is Ending.TIMED_OUT:
        return f"no response for {timeout_s:g} s"
    return f"its process {error.ending}" if error.ending else str(error)
