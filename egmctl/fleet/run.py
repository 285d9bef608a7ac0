"""Runs the command on the nodes, a bounded number of them at once, with a time limit for each.

A node's output goes to a file of limited size, not to memory. Launchers run in sessions of their own, so that Ctrl-C in
the terminal does not reach them. However this process ends, they end with it, and so does all that they have started
(``ProxyCommand``). An interruption first closes their standard input, which ends the command on the node in an orderly
way (``judge.py``); only then is anything killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from typing import Any, BinaryIO

from egmctl.dataclass import dataclass
from egmctl.documents import short
from egmctl.errors import EgmctlError
from egmctl.files import write_all
from egmctl.fleet.folder import Folder
from egmctl.fleet.judge import KILL_AFTER_S, OUTPUT_LIMIT, Ended, judge_node, remote_words
from egmctl.launch.program import END_S, kept
from egmctl.model.answer import State
from egmctl.model.fleet import Launcher, NodeCommand, NodeResult, Reach
from egmctl.signals import stopping
from egmctl.units import printable

ERRORS_KEPT = 4096
"""The bytes kept from the end of a node's standard error."""
SLACK_S = 5
"""Seconds after the kill of a stopped command on its node until its end must be known here."""
TICK_S = 0.2
SSH_OPTIONS = (
    # A node that vanishes is noticed after 45 s of silence.
    *("-oServerAliveInterval=15", "-oServerAliveCountMax=3"),
    # Settings that a user's own configuration may have, and that would corrupt the document.
    *("-oRequestTTY=no", "-oRemoteCommand=none"),
    # Forward nothing, and never prompt for a password.
    *("-oForwardAgent=no", "-oForwardX11=no", "-oBatchMode=yes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The settings with which commands are started on nodes."""

    launcher: Launcher
    options: tuple[str, ...]
    """More options for ssh or srun. They come first, because ssh uses the first value of an option given twice."""
    fanout: int
    """Nodes in parallel."""
    connect_timeout_s: int
    timeout_s: int
    """The time limit of the command on a node."""


@dataclass(slots=True)
class Progress:
    """The progress of a run."""

    total: int
    answers: list[NodeResult] = field(default_factory=list)
    under_way: list[str] = field(default_factory=list)
    stopping: bool = False


JsonDocument = dict[str, Any]
"""The JSON data of a node's document."""


def run_on_nodes(
    asked: NodeCommand,
    nodes: Sequence[str],
    launch: Launch,
    folder: Folder,
    taken: Callable[[NodeResult, JsonDocument | None], NodeResult],
    on_tick: Callable[[Progress], None],
) -> tuple[tuple[NodeResult, ...], EgmctlError | None]:
    """Run the command on nodes, and return their answers; after an interruption, only those of nodes that started.

    The second value is the error if the folder could not be written, which ends the run and loses output under way.

    SIGINT, SIGTERM and SIGHUP end the commands on the nodes, and then the run; a second signal does not wait for them.

    Parameters
    ----------
    nodes
        The nodes of ``asked`` on which to run now.
    taken
        Called with each answer and its document, as soon as it is there; returns the answer that counts.
    on_tick
        Called several times a second.
    """
    interruptions: list[int] = []
    fleet = _Fleet(asked, launch, folder, taken, on_tick, interruptions, Progress(len(nodes)))
    with stopping(lambda number, _frame: interruptions.append(number)):
        asyncio.run(fleet.run(nodes))
    return tuple(fleet.progress.answers), fleet.failure


def launcher_words(node: str, asked: NodeCommand, launch: Launch) -> list[str]:
    """Return the command line that runs the command on one node by ssh or srun (https://slurm.schedmd.com/srun.html).

    The launcher, and all that it has started, ends with this process. Each node has its own srun, so that a failure of
    one affects no other. Inside an allocation, ``--overlap`` lets the step share the resources of other steps. Outside,
    srun creates an allocation, for which it waits as long as for a connection.
    """
    words, limit_s = remote_words(asked, launch.timeout_s), launch.connect_timeout_s
    if launch.launcher is Launcher.SRUN:
        own = ["--nodes=1", "--ntasks=1", f"--nodelist={node}", "--overlap", f"--immediate={limit_s}"]
        line = ["srun", *launch.options, *own, *words]
    else:
        # The node's login shell parses one line. No shell has expanded the options, e.g. -i ~/.ssh/key.
        options = map(os.path.expanduser, launch.options)
        line = ["ssh", *options, *SSH_OPTIONS, f"-oConnectTimeout={limit_s}", node, shlex.join(words)]
    return kept(line, grace_s=KILL_AFTER_S + SLACK_S, passes_input=True)


@dataclass(eq=False)
class _Fleet:
    """The state of the nodes of a run."""

    asked: NodeCommand
    launch: Launch
    folder: Folder
    taken: Callable[[NodeResult, JsonDocument | None], NodeResult]
    on_tick: Callable[[Progress], None]
    interruptions: list[int]
    progress: Progress
    failure: EgmctlError | None = None
    talks: dict[str, _Talk] = field(default_factory=dict)
    stop_by: float | None = None
    standard_input: int = -1
    closes_input: int | None = None

    async def run(self, nodes: Sequence[str]) -> None:
        """Ask the nodes, as many at once as the fan-out, until all have answered or the run is stopped."""
        waiting = deque(nodes)
        # One for all, so that 200 nodes need few file descriptors. Closing its other end ends their commands.
        self.standard_input, self.closes_input = os.pipe()

        async def ask_in_turn() -> None:
            while waiting and not self.is_stopping:
                await self._ask(waiting.popleft())

        places = {asyncio.create_task(ask_in_turn()) for _ in range(min(self.launch.fanout, len(nodes)))}
        try:
            while places:
                done, places = await asyncio.wait(places, timeout=TICK_S)
                self._tick()
                for place in done:
                    place.result()
        finally:
            for node in list(self.talks):
                self.talks[node].end()
                self.drop(node)
            self._close_input()
            os.close(self.standard_input)

    @property
    def is_stopping(self) -> bool:
        """Whether no more nodes are to be asked."""
        return self.stop_by is not None or self.failure is not None

    def _tick(self) -> None:
        self.progress.under_way = list(self.talks)
        if self.interruptions and self.stop_by is None:
            self.stop_by = time.monotonic() + KILL_AFTER_S + SLACK_S
            self.progress.stopping = True
            self._close_input()
        is_late = self.stop_by is not None and (len(self.interruptions) > 1 or time.monotonic() > self.stop_by)
        if self.failure is not None or is_late:
            for talk in self.talks.values():
                talk.give_up()
        self.on_tick(self.progress)

    def _close_input(self) -> None:
        """Close the standard input of all launchers, which ends the commands on the nodes in an orderly way."""
        if self.closes_input is not None:
            os.close(self.closes_input)
            self.closes_input = None

    async def _ask(self, node: str) -> None:
        """Run the command on a node, and record the answer."""
        talk = self.begin(node)
        if talk is None:
            return
        try:
            await talk.start(launcher_words(node, self.asked, self.launch), self.standard_input)
        except OSError as error:
            talk.errors = f"the launcher cannot be started: {error.strerror}".encode()
            self.ended(node, 127)
            return
        launch = self.launch
        # The time limit on the node expires first; this one is for nodes that no longer respond.
        limit_s = launch.connect_timeout_s + launch.timeout_s + KILL_AFTER_S + SLACK_S
        over = await _within(talk.over, limit_s)
        if not talk.closed.is_set():
            # The keeper ends the launcher and all that it has started.
            talk.end()
            await _within(talk.closed, END_S)
        self.ended(node, talk.discarded(), out_of_time=not over)

    def begin(self, node: str) -> _Talk | None:
        """Return a new talk with a node; ``None`` if its output cannot be kept."""
        try:
            talk = self.talks[node] = _Talk(self, node, self.folder.spool(node))
        except EgmctlError as error:
            self._fail(node, error)
            return None
        return talk

    @contextlib.contextmanager
    def writing(self, talk: _Talk) -> Iterator[None]:
        """Do something that writes a node's output file; if that fails, the output is lost."""
        try:
            yield
        except OSError as error:
            self.drop(talk.node)
            reason = f"cannot write {printable(self.folder.part(talk.node))}: {error.strerror}"
            self._fail(talk.node, EgmctlError(reason))
            talk.give_up()

    def drop(self, node: str) -> None:
        """Discard a node's output so far."""
        if (talk := self.talks.pop(node, None)) is not None:
            with contextlib.suppress(OSError):
                talk.file.close()
        self.folder.discard(node)

    def _fail(self, node: str, error: EgmctlError) -> None:
        """Record a failed write to the folder, which ends the run, and that the node's output is lost."""
        self.failure = self.failure or error
        reason = f"what it sent could not be kept: {error}"
        answer = NodeResult(node=node, reach=Reach.LOST, state=State.BROKE, reason=reason)
        self.progress.answers.append(answer)

    def ended(self, node: str, code: int, *, out_of_time: bool = False) -> None:
        """Record the answer of a node whose launcher has ended, unless its output was lost."""
        talk = self.talks.get(node)
        if talk is None:
            return
        # A network file system may report a full disk only when a file is closed.
        with self.writing(talk):
            talk.file.close()
        if self.talks.pop(node, None) is None:
            return
        ended = Ended(
            node=node,
            code=code,
            duration_s=time.monotonic() - talk.began,
            errors=talk.errors.decode(errors="replace"),
            flooded=talk.flooded,
            out_of_time=out_of_time,
            interrupted=self.is_stopping,
        )
        try:
            answer, document = judge_node(self.asked, self.folder, ended, self.launch.timeout_s)
        except EgmctlError as error:
            self._fail(node, error)
            return
        except Exception as error:
            # What this program cannot judge must not end the commands on other nodes.
            self.folder.discard(node)
            reason = f"egmctl cannot judge its document: {type(error).__name__}: {error}"
            answer = NodeResult(node=node, reach=Reach.GARBAGE, state=State.BROKE, reason=short(printable(reason)))
            document = None
        if answer.reach is Reach.INTERRUPTED and self.failure is not None:
            answer = replace(answer, reason="stopped, as the folder of results took no more")
        self.progress.answers.append(self.taken(answer, document))


async def _within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, and return whether it came in time."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except asyncio.TimeoutError:
        return False
    return True


STANDARD_OUTPUT, STANDARD_ERROR = 1, 2


class _Talk(asyncio.SubprocessProtocol):
    """The launcher's process for one node, and its output so far."""

    def __init__(self, fleet: _Fleet, node: str, file: BinaryIO) -> None:
        self.node, self.file = node, file
        self.began = time.monotonic()
        self.size = 0
        self.errors = b""
        self.flooded = False
        self._fleet = fleet
        self._transport: asyncio.SubprocessTransport | None = None
        self.closed = asyncio.Event()
        """Set when the process has ended and its streams are closed."""
        self.over = asyncio.Event()
        """Set then too, and when the process must be waited for no longer."""

    async def start(self, words: Sequence[str], standard_input: int) -> None:
        """Start the process.

        Raises
        ------
        OSError
            It cannot be started.
        """
        await asyncio.get_running_loop().subprocess_exec(
            lambda: self,
            *words,
            stdin=standard_input,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the process."""
        assert isinstance(transport, asyncio.SubprocessTransport)  # noqa: S101 - so says asyncio
        self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Store output of the node."""
        if fd == STANDARD_ERROR:
            self.errors = (self.errors + data)[-ERRORS_KEPT:]
            return
        if self.file.closed or self.flooded:
            return
        self.size += len(data)
        self.flooded = self.size > OUTPUT_LIMIT
        if self.flooded:
            self.give_up()
            return
        with self._fleet.writing(self):
            write_all(self.file.fileno(), data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Note that the process has ended and its streams are closed."""
        self.closed.set()
        self.over.set()

    def give_up(self) -> None:
        """Wait for the process no longer."""
        self.over.set()

    def end(self) -> None:
        """Ask the keeper to end the launcher and all that it has started."""
        if self._transport is not None and self._transport.get_returncode() is None:
            with contextlib.suppress(ProcessLookupError):
                self._transport.terminate()

    def discarded(self) -> int:
        """Let go of the process, which is killed if it still runs, and return its exit code."""
        assert self._transport is not None  # noqa: S101 - it was started
        code = self._transport.get_returncode()
        self._transport.close()
        return -signal.SIGKILL if code is None else code
