"""Run NCCL in its processes, gather what they report, and read how it went from NCCL's own log.

A process that dies, hangs or talks nonsense ends the measurement: the others wait for it in a collective, so they are
killed after :data:`RELEASE_S`. What was measured before stays. No process and no file is left behind.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from egmctl.bench.nccl.collectives import result_of
from egmctl.bench.nccl.log import NcclLog, read_log
from egmctl.bench.nccl.plan import binaries
from egmctl.bench.nccl.table import is_complete, read_table
from egmctl.bench.nccl.torch_rank import WARM_UP
from egmctl.dataclass import dataclass
from egmctl.errors import ChildFailed, ChildNotStarted
from egmctl.facts.error_log import read_failures
from egmctl.launch import Child, close_all, wait_for_any
from egmctl.model.codec import DecodeError, from_json
from egmctl.model.finding import Waiver, WaiverKind
from egmctl.model.machine import Machine
from egmctl.model.nccl import CollectiveResult, NcclPlan, NcclProgram, NcclRun, NcclStatus, RankFailure
from egmctl.units import printable

RELEASE_S = 10.0
"""The time in which the other ranks may fail of their own, after one has failed: each then has a reason of its own."""
IMPORT_S = 180.0
"""The least time that processes have to import PyTorch, which takes a minute from a slow disk that is read first."""
END_S = 5.0
"""The time in which processes that have measured everything end by themselves."""
LOG_LIMIT = 4 << 20
"""The number of bytes that are read of each log of NCCL. Eight ranks of H200 write 300 kB each."""
TORCH, TESTS = "egmctl.bench.nccl.torch_rank:run", "egmctl.bench.nccl.tests_process:run"

_DEBUG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV"}
"""What makes NCCL log its version, variables and connections; all of it when it starts, nothing in a collective."""
_HIDDEN = {*_DEBUG, "NCCL_DEBUG_FILE"}
_INTERRUPTED = "interrupted before it was done"
_RECORDED = ("NCCL_", "TORCH_NCCL_")

Message = dict[str, Any]
Start = Callable[[int, str, dict[str, Any], Mapping[str, str | None]], Child]
"""A function of a rank, a target, its arguments and its environment that starts the rank's process."""


def start_process(_rank: int, target: str, arguments: dict[str, Any], environment: Mapping[str, str | None]) -> Child:
    """Start the process of a rank."""
    return Child(target, arguments, environment=environment)


def measure(plan: NcclPlan, machine: Machine, timeout_s: float, start: Start = start_process) -> NcclRun:
    """Measure a plan without waivers, and return how it went; waived if the plan has waivers.

    KeyboardInterrupt ends it: the result then has the collectives so far, and a waiver that it was interrupted.

    Parameters
    ----------
    machine
        The live node that the plan was made for.
    timeout_s
        The time without a message after which a process is given up.
    start
        The function that starts the processes; only tests change it.
    """
    if plan.waivers:
        return not_measured(plan, plan.waivers[0].reason)
    devices = ",".join(machine.gpu(bus_id).uuid or "" for bus_id in plan.gpus)
    is_interrupted = False
    environment = environment_of(plan, devices)
    gathering = Gathering(plan)
    with contextlib.ExitStack() as removed:
        folder = temporary_folder(removed)
        if folder is None:
            return put_together(plan, without_folder(plan), {}, environment)
        try:
            with _processes(plan, folder, environment, timeout_s, start) as children:
                members = dict(enumerate(children))
                gathering.gather(lambda limit_s: next_round(plan, members, limit_s), timeout_s)
                if not gathering.failures:
                    end(members)
        except ChildNotStarted as error:
            gathering.failures.append(failure_of(plan, None, error.how, str(error)))
        except KeyboardInterrupt:
            is_interrupted = True
        logs = {rank: read_text(log_file(folder, rank)) for rank in range(len(plan.gpus))}
    whole = put_together(plan, gathering, logs, environment)
    return _until_interrupted(whole) if is_interrupted else whole


def not_measured(plan: NcclPlan, reason: str) -> NcclRun:
    """Return the outcome of a plan that was not run."""
    return NcclRun(plan=plan, status=NcclStatus.WAIVED, reason=reason)


def interrupted(plan: NcclPlan) -> NcclRun:
    """Return the outcome of a plan whose run was interrupted before NCCL; of a waived one, that it was waived."""
    if plan.waivers:
        return not_measured(plan, plan.waivers[0].reason)
    return _until_interrupted(not_measured(plan, _INTERRUPTED))


def _until_interrupted(nccl: NcclRun) -> NcclRun:
    """Return what was measured until the run was interrupted. Wrong values stay the outcome."""
    waiver = Waiver(kind=WaiverKind.INTERRUPTED, reason=_INTERRUPTED)
    plan = replace(nccl.plan, waivers=(*nccl.plan.waivers, waiver))
    if nccl.status is not NcclStatus.OK:
        return replace(nccl, plan=plan)
    return replace(nccl, plan=plan, status=NcclStatus.WAIVED, reason=_INTERRUPTED)


def environment_of(plan: NcclPlan, devices: str) -> dict[str, str | None]:
    """Return the changes to the environment of NCCL's processes.

    Parameters
    ----------
    devices
        The UUIDs of the GPUs that a process sees: on one node all of the plan's, as most programs start their ranks.
    """
    multicast = {} if plan.nvls else {"NCCL_NVLS_ENABLE": "0"}
    # With blocking launches no collective would be queued behind another.
    return {**_DEBUG, **multicast, "CUDA_VISIBLE_DEVICES": devices, "CUDA_LAUNCH_BLOCKING": None}


def temporary_folder(removed: contextlib.ExitStack) -> Path | None:
    """Return a new folder, which the stack removes; ``None`` if none can be made, as on a full or read-only disk."""
    try:
        return Path(removed.enter_context(tempfile.TemporaryDirectory(prefix="egmctl-nccl-")))
    except OSError:
        return None


def without_folder(plan: NcclPlan) -> Gathering:
    """Return what the processes of a plan report that cannot be started without a temporary folder."""
    reason = "no folder for its logs can be made: TMPDIR must name a folder that can be written"
    return Gathering(plan, failures=[failure_of(plan, None, "raised", reason)])


def log_file(folder: Path, rank: int) -> Path:
    """Return the file of a rank's log."""
    return folder / f"nccl.{rank}.log"


@contextlib.contextmanager
def _processes(
    plan: NcclPlan, folder: Path, environment: Mapping[str, str | None], timeout_s: float, start: Start
) -> Iterator[list[Child]]:
    """Start the processes of a plan, and end them all at the end of the block."""
    ranks = len(plan.gpus)
    arguments: list[dict[str, Any]]
    if plan.program is NcclProgram.NCCL_TESTS:
        size = str(plan.size_bytes)
        options = ["-b", size, "-e", size, "-g", str(ranks), "-n", str(plan.iterations), "-w", str(WARM_UP), "-c", "1"]
        programs = binaries()
        arguments = [{"programs": {name: programs[name] for name in plan.collectives}, "options": options}]
    else:
        arguments = [rank_arguments(plan, rank, rank, folder, timeout_s) for rank in range(ranks)]
    target = TESTS if plan.program is NcclProgram.NCCL_TESTS else TORCH
    with contextlib.ExitStack() as ended:
        children = []
        for rank, own in enumerate(arguments):
            variables = {**environment, "NCCL_DEBUG_FILE": str(log_file(folder, rank))}
            child = start(rank, target, own, variables)
            ended.callback(child.close)
            children.append(child)
        yield children
        for child in children:
            # Close all channels, so that all processes begin to end, before the wait for the first one.
            child.channel.close()


def rank_arguments(plan: NcclPlan, rank: int, device: int, folder: Path, timeout_s: float) -> dict[str, Any]:
    """Return the arguments of a rank of PyTorch that uses a CUDA device; all ranks name the same folder."""
    return {
        "rank": rank,
        "ranks": len(plan.gpus),
        "device": device,
        "store": str(folder / "store"),
        "collectives": list(plan.collectives),
        "size_bytes": plan.size_bytes,
        "iterations": plan.iterations,
        "samples": plan.samples,
        "timeout_s": timeout_s,
    }


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
            said.failures.append(failure_of(plan, None, "timed-out", f"no rank has responded for {timeout_s:g} s"))
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
                said.failures.append(failure_of(plan, rank, error.how, _ending(error, timeout_s)))
                deadline = min(deadline, time.monotonic() + RELEASE_S)
    return said


def failure_of(plan: NcclPlan, rank: int | None, how: str, reason: str) -> RankFailure:
    """Return the failure of a rank, or of a process of all ranks."""
    if plan.program is NcclProgram.NCCL_TESTS:
        rank = None
    label = ", ".join(plan.labels) if rank is None else plan.labels[rank]
    return RankFailure(rank=rank, label=label, how=how, reason=reason)


def end(members: Mapping[int, Child]) -> None:
    """Wait for processes that have measured everything; how they end does not change it."""
    deadline = time.monotonic() + END_S
    for child in members.values():
        with contextlib.suppress(ChildFailed):
            child.result(max(0.0, deadline - time.monotonic()))


@dataclass
class Gathering:
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
                self.failures.append(failure_of(self.plan, None, "garbled", reason))
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
        self.results.append(result_of(name, len(measured), self.plan.size_bytes, slowest, right))

    def _take_table(self, name: str, ran: _Ran) -> None:
        """Take one collective of nccl-tests: the mean of its iterations, out of place."""
        if ran.collective != name:
            raise ValueError(f"{ran.collective} in place of {name}")
        rows = () if ran.exit_code and not is_complete(ran.output) else read_table(ran.output)
        if not rows:
            self.outputs.append(ran.output)
            reason = f"{name}_perf ended with exit code {ran.exit_code}"
            self.failures.append(failure_of(self.plan, None, "crashed", reason))
            return
        row = rows[-1]
        # The binary rounds the size to a whole number of values for each rank.
        self.results.append(result_of(name, len(self.plan.gpus), row.size_bytes, [row.time_us / 1e3], row.verified))


def put_together(
    plan: NcclPlan, gathering: Gathering, logs: Mapping[int, str], changes: Mapping[str, str | None]
) -> NcclRun:
    """Return the outcome from what the processes reported and what NCCL logged.

    Parameters
    ----------
    logs
        The text of each rank's log.
    changes
        The changes to this process's environment that NCCL's processes had.
    """
    log = read_log([*logs.values(), *gathering.outputs])
    environment = {**os.environ, **changes}
    own = {key: text for key, text in environment.items() if key.startswith(_RECORDED) and text is not None}
    variables = {key: text for key, text in sorted({**log.variables, **own}.items()) if key not in _HIDDEN}
    versions = {**gathering.versions, **({} if log.version is None else {"nccl": log.version})}
    failures = tuple(_with_warning(failure, logs) for failure in gathering.failures)
    wrong = [result.name for result in gathering.results if result.verified is False]
    status, reason = NcclStatus.OK, None
    if failures:
        first = failures[0]
        where = first.label if first.rank is None else f"rank {first.rank} ({first.label})"
        status, reason = NcclStatus.FAILED, f"NCCL failed in {_step(plan, gathering)}: {where}: {first.reason}"
    if wrong:
        status, reason = NcclStatus.CORRUPT, f"NCCL left wrong values in {', '.join(wrong)}"
    return NcclRun(
        plan=plan,
        status=status,
        reason=reason,
        results=tuple(gathering.results),
        versions=versions,
        transports=log.transports,
        channels=log.channels,
        environment=variables,
        failures=failures,
        known_errors=_known(log, gathering.outputs) if failures else (),
    )


def _ending(error: ChildFailed, timeout_s: float) -> str:
    """Return how a process failed, without the name of its target."""
    if error.how == "timed-out":
        return f"no response for {timeout_s:g} s"
    words = str(error)
    for target in (TORCH, TESTS):
        words = words.replace(f"{target} ", "its process ")
    return words


def _step(plan: NcclPlan, gathering: Gathering) -> str:
    """Return the collective that was under way."""
    place = min(len(gathering.results), len(plan.collectives) - 1)
    return plan.collectives[place]


def _with_warning(failure: RankFailure, logs: Mapping[int, str]) -> RankFailure:
    """Return a failure with a warning of NCCL's after it, of all ranks where its rank is not known.

    A warning need not be why the process ended: NCCL also warns of what it can do without.
    """
    texts = logs.values() if failure.rank is None else [logs.get(failure.rank, "")]
    warnings = read_log(texts).warnings
    if not warnings or failure.how == "garbled":
        return failure
    warning = next((words for words in warnings if "failure" in words), warnings[-1])
    return replace(failure, reason=f"{failure.reason}; NCCL warned: {warning}")


def _known(log: NcclLog, outputs: Sequence[str]) -> tuple[Any, ...]:
    """Return the errors in the warnings and outputs that are known, without the lines, which may name the host."""
    # As NCCL prints them: "transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'".
    lines = [" NCCL WARN ".join(warning.split(": ", 1)) for warning in log.warnings]
    text = "\n".join([*lines, *outputs])
    failures = read_failures(io.BytesIO(text.encode("utf-8", "replace"))).failures
    return tuple(replace(failure, line="", line_number=None) for failure in failures)


def read_text(path: Path) -> str:
    """Return a log, up to :data:`LOG_LIMIT`; empty if there is none."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        data = file.read(LOG_LIMIT)
        return data.decode("utf-8", "replace")
    return ""
