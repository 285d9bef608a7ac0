"""Runs the command on the nodes through ClusterShell's engine, with a fan-out and a time limit for each node.

The workers differ from ClusterShell's. A node's output goes to a file of limited size, not to memory. Launchers run in
sessions of their own, so that Ctrl-C in the terminal does not reach them. However this process ends, they end with it,
and so does all that they have started (``ProxyCommand``). An interruption first closes their standard input, which ends
the command on the node in an orderly way (``judge.py``); only then is anything killed.
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

from egmctl.errors import EgmctlError
from egmctl.files import write_all
from egmctl.fleet.folder import Folder
from egmctl.fleet.judge import KILL_AFTER_S, OUTPUT_LIMIT, Ended, judge, remote_words
from egmctl.launch.program import END_S, kept
from egmctl.model.answer import State
from egmctl.model.fleet import Asked, Launcher, NodeResult, Reach
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


def run(
    asked: Asked, nodes: Sequence[str], launch: Launch, folder: Folder, on_tick: Callable[[Progress], None]
) -> tuple[tuple[NodeResult, ...], EgmctlError | None]:
    """Run the command on nodes, and return their answers; after an interruption, only those of nodes that started.

    The second value is the error if the folder could not be written, which ends the run and loses output under way.

    SIGINT, SIGTERM and SIGHUP end the commands on the nodes, and then the run; a second signal does not wait for them.

    Parameters
    ----------
    nodes
        The nodes of ``asked`` on which to run now.
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
            # The time limit on the node expires first; this one is for nodes that no longer respond.
            timeout=launch.connect_timeout_s + launch.timeout_s + KILL_AFTER_S + SLACK_S,
            stderr=True,
            # The worker expands it as a pattern (%host); each client replaces it by its own command.
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
class _Fleet(EventHandler):  # type: ignore[misc]
    """ClusterShell's event handler, and the state of the nodes of a run."""

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
            # Start no more launchers, and close the standard input of those that run.
            for client in self.worker._clients:
                if not client.registered:
                    client.abort()
            self.worker.set_write_eof()
        elif self.stop_by is not None and (len(self.interruptions) > 1 or time.monotonic() > self.stop_by):
            self.worker.abort()
        self.on_tick(self.progress)

    def took(self, node: str, stream: str, chunk: bytes) -> bool:
        """Store output of a node; return whether the node may send more."""
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
        """Call a step that writes a node's output file; return whether it worked. If not, the output is lost."""
        try:
            step()
        except OSError as error:
            self.drop(node)
            self._fail(node, EgmctlError(f"cannot write {printable(self.folder.part(node))}: {error.strerror}"))
            return False
        return True

    def drop(self, node: str) -> None:
        """Discard a node's output so far."""
        if (talk := self.talks.pop(node, None)) is not None:
            with contextlib.suppress(OSError):
                talk.file.close()
        self.folder.discard(node)

    def _fail(self, node: str, error: EgmctlError) -> None:
        """Record a failed write to the folder, and that the node's output is lost. Raising would stop the engine."""
        self.failure = self.failure or error
        reason = f"what it sent could not be kept: {error}"
        answer = NodeResult(node=node, reach=Reach.LOST, state=State.BROKE, reason=reason)
        self.progress.answers.append(answer)

    def ended(self, node: str, code: int, out_of_time: bool) -> None:
        """Record the answer of a node whose launcher has ended."""
        talk = self.talks.get(node)
        # A network file system may report a full disk only when a file is closed.
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
    """The launcher's process for one node, whose output goes to the :class:`_Fleet`."""

    def _handle_read(self, sname: str) -> None:
        if not self.worker.eh.took(self.key, sname, self._read(sname)):
            self.abort()

    def _close(self, abort: bool, timeout: bool) -> None:
        if abort:
            # ClusterShell would kill only the keeper process, not the launcher under it.
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
