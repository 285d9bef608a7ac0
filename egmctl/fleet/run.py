"""Runs the command on the nodes through ClusterShell's engine: at most so many at once, each against the clock.

What is ours in its workers: a node's output goes to a file with a limit and not to memory, launchers sit in sessions of
their own (a Ctrl-C of the terminal does not reach them) and end with this process however that ends, with all that they
have started (``ProxyCommand``), and an interruption closes their standard input, which ends the command on the node in
an orderly way (``remote.py``), before anything is killed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, BinaryIO

from ClusterShell.Event import EventHandler
from ClusterShell.Task import task_self
from ClusterShell.Worker.Exec import ExecClient, ExecWorker

from egmctl.errors import EgmctlError, ExitCode
from egmctl.files import write_all
from egmctl.fleet.folder import Folder
from egmctl.fleet.judge import KILL_AFTER_S, OUTPUT_LIMIT, Ended, judge, remote_words
from egmctl.launch.program import END_S, kept
from egmctl.model.fleet import Asked, Launcher, NodeAnswer, Reach
from egmctl.signals import stopping
from egmctl.units import printable

ERRORS_KEPT = 4096
"""Bytes kept of the end of a node's standard error."""
SLACK_S = 5
"""What a command that was stopped on its node may take, beyond the time it is killed after, to be heard of."""
TICK_S = 0.2
SSH_OPTIONS = (
    # A node that vanishes is noticed after 45 s of silence.
    *("-oServerAliveInterval=15", "-oServerAliveCountMax=3"),
    # What a user's own configuration may say, and would spoil the document.
    *("-oRequestTTY=no", "-oRemoteCommand=none"),
    # Nothing is forwarded, and nobody is asked for a password.
    *("-oForwardAgent=no", "-oForwardX11=no", "-oBatchMode=yes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How commands are started on nodes."""

    launcher: Launcher
    options: tuple[str, ...]
    """More options for ssh or srun; they come first, and of an option given twice ssh takes the first."""
    fanout: int
    """Nodes in parallel."""
    connect_timeout_s: int
    timeout_s: int
    """What the command may take on a node."""


@dataclass(slots=True)
class Progress:
    """How far a run is."""

    total: int
    answers: list[NodeAnswer] = field(default_factory=list)
    under_way: list[str] = field(default_factory=list)
    stopping: bool = False


def run(
    asked: Asked, nodes: Sequence[str], launch: Launch, folder: Folder, on_tick: Callable[[Progress], None]
) -> tuple[tuple[NodeAnswer, ...], EgmctlError | None]:
    """Ask nodes, and return the answers of those that were asked: after an interruption not all of them.

    The second value is why this ended early: the folder could not be written to. It costs what nodes were sending then.

    SIGINT, SIGTERM and SIGHUP end what runs on the nodes, and then this; a second one does not wait for them.

    Parameters
    ----------
    nodes
        Those of ``asked`` that are to be asked now.
    on_tick
        Called several times a second.
    """
    interruptions: list[int] = []
    with stopping(lambda number, _frame: interruptions.append(number)):
        task = task_self()
        task.set_default("stdout_msgtree", False)
        task.set_default("stderr_msgtree", False)
        task.set_info("fanout", launch.fanout)
        fleet = _Fleet(asked, launch, folder, on_tick, interruptions, Progress(len(nodes)))
        fleet.worker = _Worker(
            ",".join(nodes),
            handler=fleet,
            # The clock on the node comes first: this one is for nodes that cannot be heard any more.
            timeout=launch.connect_timeout_s + launch.timeout_s + KILL_AFTER_S + SLACK_S,
            stderr=True,
            # Taken for a pattern (%host) by the worker: each client puts its own in its place.
            command="egmctl",
        )
        task.schedule(fleet.worker)
        task.timer(TICK_S, handler=fleet, interval=TICK_S, autoclose=True)
        try:
            task.resume()
        finally:
            for node in list(fleet.talks):
                fleet.drop(node)
    return tuple(fleet.progress.answers), fleet.failure


def launcher_words(node: str, asked: Asked, launch: Launch) -> list[str]:
    """Return the command line that asks one node by ssh or by srun (https://slurm.schedmd.com/srun.html).

    The launcher ends with this process, and what it has started ends with it. There is one srun a node: one that fails
    takes no other with it. Inside an allocation ``--overlap`` lets the step share what other steps hold; outside of one
    srun makes an allocation of its own, for which it waits the connection's time.
    """
    words, limit_s = remote_words(asked, launch.timeout_s), launch.connect_timeout_s
    if launch.launcher is Launcher.SRUN:
        own = ["--nodes=1", "--ntasks=1", f"--nodelist={node}", "--overlap", f"--immediate={limit_s}"]
        line = ["srun", *launch.options, *own, *words]
    else:
        # The node's login shell reads one line. No shell has read the options: -i ~/.ssh/key.
        options = map(os.path.expanduser, launch.options)
        line = ["ssh", *options, *SSH_OPTIONS, f"-oConnectTimeout={limit_s}", node, shlex.join(words)]
    return kept(line, grace_s=KILL_AFTER_S + SLACK_S, passes_input=True)


@dataclass(eq=False)
class _Fleet(EventHandler):  # type: ignore[misc]
    """The nodes that are being asked: what ClusterShell calls."""

    asked: Asked
    launch: Launch
    folder: Folder
    on_tick: Callable[[Progress], None]
    interruptions: list[int]
    progress: Progress
    failure: EgmctlError | None = None
    talks: dict[str, _Talk] = field(default_factory=dict)
    stop_by: float | None = None
    worker: Any = None

    def ev_pickup(self, worker: Any, node: str) -> None:  # noqa: ARG002
        try:
            self.talks[node] = _Talk(self.folder.spool(node))
        except EgmctlError as error:
            self._fail(node, error)

    def ev_timer(self, timer: Any) -> None:  # noqa: ARG002
        if self.failure is not None:
            self.worker.abort()
            return
        self.progress.under_way = list(self.talks)
        if self.interruptions and self.stop_by is None:
            self.stop_by = time.monotonic() + KILL_AFTER_S + SLACK_S
            self.progress.stopping = True
            # Start no more, and have what runs end.
            for client in self.worker._clients:
                if not client.registered:
                    client.abort()
            self.worker.set_write_eof()
        elif self.stop_by is not None and (len(self.interruptions) > 1 or time.monotonic() > self.stop_by):
            self.worker.abort()
        self.on_tick(self.progress)

    def took(self, node: str, stream: str, chunk: bytes) -> bool:
        """Keep what a node sent; return whether it may go on."""
        talk = self.talks.get(node)
        if talk is None:
            return False
        if stream == self.worker.SNAME_STDERR:
            talk.errors = (talk.errors + chunk)[-ERRORS_KEPT:]
            return True
        talk.size += len(chunk)
        talk.flooded = talk.size > OUTPUT_LIMIT
        if talk.flooded:
            return False
        return self._taken(node, partial(write_all, talk.file.fileno(), chunk))

    def _taken(self, node: str, step: Callable[[], None]) -> bool:
        """Do something with the file of what a node sends; return whether that went well, else all of it is lost."""
        try:
            step()
        except OSError as error:
            self.drop(node)
            self._fail(node, EgmctlError(f"cannot write {printable(self.folder.part(node))}: {error.strerror}"))
            return False
        return True

    def drop(self, node: str) -> None:
        """Forget what a node sent so far."""
        if (talk := self.talks.pop(node, None)) is not None:
            with contextlib.suppress(OSError):
                talk.file.close()
        self.folder.discard(node)

    def _fail(self, node: str, error: EgmctlError) -> None:
        """Take it that the folder takes no more: raised here it would tear down the engine under the other nodes."""
        self.failure = self.failure or error
        reason = f"what it sent could not be kept: {error}"
        answer = NodeAnswer(node=node, reach=Reach.LOST, exit_code=int(ExitCode.CRASHED), reason=reason)
        self.progress.answers.append(answer)

    def ended(self, node: str, code: int, out_of_time: bool) -> None:
        """Judge a node whose launcher has ended."""
        talk = self.talks.get(node)
        # A network file system tells of a full disk when a file is closed.
        if talk is None or not self._taken(node, talk.file.close):
            return
        del self.talks[node]
        ended = Ended(
            node=node,
            code=code,
            duration_s=time.monotonic() - talk.began,
            errors=talk.errors.decode(errors="replace"),
            flooded=talk.flooded,
            out_of_time=out_of_time,
            interrupted=self.stop_by is not None or self.failure is not None,
        )
        try:
            answer = judge(self.asked, self.folder, ended, self.launch.timeout_s)
            if answer.reach is Reach.INTERRUPTED and self.failure is not None:
                answer = replace(answer, reason="stopped, as the folder of results took no more")
            self.progress.answers.append(answer)
        except EgmctlError as error:
            self._fail(node, error)


@dataclass(slots=True)
class _Talk:
    """The output of a node so far."""

    file: BinaryIO
    began: float = field(default_factory=time.monotonic)
    size: int = 0
    errors: bytes = b""
    flooded: bool = False


class _Client(ExecClient):  # type: ignore[misc]
    """A launcher's process for one node, whose output the fleet keeps."""

    def _handle_read(self, sname: str) -> None:
        if not self.worker.eh.took(self.key, sname, self._read(sname)):
            self.abort()

    def _close(self, abort: bool, timeout: bool) -> None:
        if abort:
            # ClusterShell would kill the keeper, and not what it keeps.
            self.popen.terminate()
            until = time.monotonic() + END_S
            while self.popen.poll() is None and time.monotonic() < until:
                time.sleep(0.005)
        super()._close(abort, timeout)
        self.worker.eh.ended(self.key, self.popen.returncode, timeout)

    def _build_cmd(self) -> tuple[list[str], None]:
        fleet: _Fleet = self.worker.eh
        return launcher_words(self.key, fleet.asked, fleet.launch), None


class _Worker(ExecWorker):  # type: ignore[misc]
    """The launchers of all nodes."""

    SHELL_CLASS = _Client
