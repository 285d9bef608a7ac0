"""Start a child process, receive its messages and its result, and make sure that it ends.

A child is a new interpreter in its own process group. The kernel kills it when its parent dies, and its group is killed
when the ``with`` block ends. Every failure of a child raises `ChildFailed` in the parent. The child's output never
mixes with the command's: it goes to a memory file, whose end is attached to the failure. The rationale is in
docs/decisions/0002-one-launcher.md.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from egmctl.driver.breadcrumb import Trail
from egmctl.errors import ChildFailed, ChildNotStarted, ExitCode
from egmctl.launch.channel import (
    MESSAGE,
    RESULT,
    Channel,
    ChannelClosed,
    MalformedMessage,
    close_all,
    free_pages,
    memory_file,
)
from egmctl.launch.starter import in_lasting_thread

if TYPE_CHECKING:
    from egmctl.model.codec import JsonValue

GRACE_S = 0.5
"""The default time that a child has to exit after its channel is closed."""
KILL_WAIT_S = 5.0
"""The time limit for a killed child to end. A child in an uninterruptible driver call does not end and is abandoned."""
OUTPUT_LIMIT = 1 << 20
"""The maximum size in bytes of a child's output in memory, checked once a second."""
OUTPUT_TAIL = 4096
"""The maximum size in bytes of the output in a `ChildFailed`."""

_LOOK_EVERY_S = 1.0
_CHILD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child.py")
_OWN_GROUP: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def run(
    target: str,
    arguments: dict[str, Any],
    *,
    timeout_s: float,
    on_event: Callable[[dict[str, Any]], None] | None = None,
    **options: Any,
) -> JsonValue:
    """Call ``target`` in a child process and return its result.

    Parameters
    ----------
    target, arguments, options
        The parameters of :class:`Child`.
    timeout_s
        The time limit for the result.
    on_event
        A function to call with each message before the result.

    Raises
    ------
    ChildFailed
        The child crashed or timed out, or its target raised an exception.
    """
    with Child(target, arguments, **options) as child:
        return child.result(timeout_s, on_event)


def wait_for_any(children: Collection[Child], timeout_s: float) -> list[Child]:
    """Wait until a child has sent data or exited; return these children, or ``[]`` on timeout."""
    if said := [child for child in children if child.channel.has_message()]:
        return said
    poll = select.poll()
    by_fd = {child.channel.fileno(): child for child in children}
    for fd in by_fd:
        poll.register(fd, select.POLLIN)
    return [by_fd[fd] for fd, _ in poll.poll(max(0, timeout_s) * 1000)]


class Child:
    """A child process: the constructor starts it, and :meth:`close` or the end of the ``with`` block ends it.

    Any thread may create it, and any one thread at a time may use it.

    Parameters
    ----------
    target
        The function ``"package.module:function"``, called as ``function(parent: Channel, arguments)``. It can send
        messages to ``parent``; its return value is the result.
    arguments
        JSON data.
    environment
        Changes to this process' environment: a string sets a variable, ``None`` removes it.
    before, before_arguments
        A hook ``"package.module:function"``, called as ``function(before_arguments)`` before the target's module
        is imported.
    sealed
        Whether the child first imports the modules of target and hook, and then cannot import anything or print a
        traceback (`egmctl.launch.serve`). For targets that read files of other users.
    grace_s
        The time that the child has to exit before it is killed.
    inherited
        File descriptors that the child inherits, with the same numbers.

    Attributes
    ----------
    pid
        The id of the process and its group.
    grace_s
        That of the parameter; it may be changed.
    channel
        The parent's end of the channel. If it raises, call `result` or `receive` to learn why the child failed.

    Raises
    ------
    ChildNotStarted
        The system cannot start a process.
    """

    def __init__(
        self,
        target: str,
        arguments: dict[str, Any],
        *,
        environment: Mapping[str, str | None] | None = None,
        before: str | None = None,
        before_arguments: dict[str, Any] | None = None,
        sealed: bool = False,
        grace_s: float = GRACE_S,
        inherited: Sequence[int] = (),
    ) -> None:
        request = {
            "arguments": arguments,
            "before": before,
            "before_arguments": before_arguments or {},
            "sealed": sealed,
        }
        text = json.dumps(request, allow_nan=False).encode("ascii")
        self._target = target
        self.grace_s = grace_s
        self._stuck = False
        _occupy_standard_descriptors()
        with contextlib.ExitStack() as kept, contextlib.ExitStack() as given:
            try:
                our_end, child_end = socket.socketpair()
                self.channel = kept.enter_context(contextlib.closing(Channel(our_end)))
                given.enter_context(child_end)
                self._output = kept.enter_context(memory_file("egmctl-output"))
                crumbs = given.enter_context(memory_file("egmctl-breadcrumb"))
                self._trail = kept.enter_context(contextlib.closing(Trail(crumbs.fileno())))
                asked = given.enter_context(memory_file("egmctl-request"))
                asked.write(text)
                asked.seek(0)
                own = (child_end.fileno(), crumbs.fileno(), asked.fileno())
                words = [sys.executable, *_interpreter_flags(), _CHILD, target, *map(str, (os.getpid(), *own))]

                def start() -> subprocess.Popen[bytes]:
                    return subprocess.Popen(  # noqa: S603 - this interpreter and a file of this package
                        words,
                        stdin=subprocess.DEVNULL,
                        stdout=self._output,
                        stderr=self._output,
                        pass_fds=(*own, *inherited),
                        env=_environment(environment or {}),
                        **_OWN_GROUP,
                    )

                self._process = in_lasting_thread(start)
            except OSError as error:
                remedy = f"; {_RAISE[error.errno]}" if error.errno in _RAISE else ""
                raise ChildNotStarted(f"a child process cannot be started: {error}{remedy}", how="crashed") from None
            kept.pop_all()
        self.pid = self._process.pid

    def result(self, timeout_s: float, on_event: Callable[[dict[str, Any]], None] | None = None) -> JsonValue:
        """Wait for the target's return value and return it; call ``on_event`` with each message before it.

        File descriptors in these messages are closed. To get them, use `receive`.

        Raises
        ------
        ChildFailed
            The child crashed, its target raised an exception, or it timed out and was killed.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            kind, content, fds = self._frame(deadline, timeout_s)
            close_all(fds)
            if kind == RESULT:
                value: JsonValue = content
                return value
            if on_event is not None:
                on_event(content)
            if time.monotonic() > deadline:
                raise self._timed_out(timeout_s)

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], list[int]]:
        """Wait for the target's next message; return it and its file descriptors, which the caller closes.

        Raises
        ------
        ChildFailed
            As for `result`, or the target returned without a further message.
        """
        kind, content, fds = self._frame(time.monotonic() + timeout_s, timeout_s)
        if kind == RESULT:
            close_all(fds)
            ending = "returned before it was asked to"
            raise ChildFailed(f"{self._target} {ending}", how="raised", ending=ending)
        return content, fds

    def last_call(self) -> str | None:
        """Return the child's current driver calls, one per thread, or ``None``. This works even if the child hangs."""
        return ", ".join(self._trail.calls()) or None

    def kill_soon(self) -> None:
        """Kill the child's process group without waiting for its end; `close` waits, and reaps it."""
        if self._process.returncode is None and not self._stuck:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def kill(self) -> bool:
        """Kill the child's process group and return whether the child has ended.

        A process in an uninterruptible driver call does not end and is abandoned after `KILL_WAIT_S`.
        """
        if self._process.returncode is None and not self._stuck:
            self.kill_soon()
            try:
                self._process.wait(KILL_WAIT_S)
            except subprocess.TimeoutExpired:
                self._stuck = True
        return not self._stuck

    def close(self) -> None:
        """End the child: close the channel, wait ``grace_s`` for it to exit, kill its group and reap it."""
        self.channel.close()
        with contextlib.closing(self._trail), contextlib.closing(self._output):
            if self._process.returncode is not None or self._stuck:
                return
            try:
                self._wait_for_exit(self.grace_s)
            finally:
                if not self.kill():
                    warnings.warn(f"process {self.pid} ({self._target}) {_STUCK}", RuntimeWarning, stacklevel=2)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _frame(self, deadline: float, timeout_s: float) -> tuple[bytes, Any, list[int]]:
        """Wait for a message or a result and return it; raise ChildFailed for everything else."""
        exited = False
        while True:
            left = deadline - time.monotonic()
            try:
                kind, content, fds = self.channel.receive_frame(max(0, min(left, _LOOK_EVERY_S)))
            except TimeoutError:
                # A process that the child forked can keep the channel open after the child has exited.
                if exited:
                    raise self._crashed() from None
                if left <= 0:
                    raise self._timed_out(timeout_s) from None
                exited = self._exit() is not None
                self._bound_output()
            except ChannelClosed:
                raise self._crashed() from None
            except MalformedMessage as error:
                self.kill()
                raise self._ended(f"sent an invalid message: {error}", "crashed") from None
            else:
                if kind in (MESSAGE, RESULT):
                    return kind, content, fds
                close_all(fds)
                raise self._raised(content)

    def _crashed(self) -> ChildFailed:
        how = self._wait_for_exit(KILL_WAIT_S) or "closed its channel without a result"
        call = self.last_call()
        return self._ended(f"{how}{f' in {call}' if call else ''}", "crashed")

    def _timed_out(self, timeout_s: float) -> ChildFailed:
        call = self.last_call()
        message = f"{self._target}: no result within {timeout_s:g} s{f', it is in {call}' if call else ''}"
        if not self.kill():
            message += f"; process {self.pid} {_STUCK}"
        return self._failed(message, "timed-out")

    def _raised(self, content: Any) -> ChildFailed:
        match content:
            case {"kind": str(kind), "message": str(message), "own": None}:
                first_line = message.partition("\n")[0]
                return self._ended(f"raised {kind}: {first_line}", "raised", kind=kind)
            case {
                "kind": str(kind),
                "message": str(message),
                "own": {"code": str(code), "exit_code": int(exit_code), "details": dict(details)},
            } if exit_code in set(ExitCode):
                error = self._failed(message, "raised", kind=kind, details=details)
                error.code, error.exit_code = code, ExitCode(exit_code)
                return error
        self.kill()
        return self._ended("sent an invalid message: not the description of an exception", "crashed")

    def _ended(self, ending: str, how: str, **more: Any) -> ChildFailed:
        return self._failed(f"{self._target} {ending}", how, ending=ending, **more)

    def _failed(self, message: str, how: str, **more: Any) -> ChildFailed:
        subjects = ", ".join(self._trail.subjects()) or None
        output = self._output_tail()
        return ChildFailed(message, how=how, last_call=self.last_call(), last_subject=subjects, output=output, **more)

    def _output_tail(self) -> str:
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), OUTPUT_TAIL, max(0, size - OUTPUT_TAIL)).decode("utf-8", "replace")

    def _bound_output(self) -> None:
        status = os.fstat(self._output.fileno())
        if status.st_blocks * 512 > OUTPUT_LIMIT:
            free_pages(self._output, status.st_size - OUTPUT_TAIL)

    def _wait_for_exit(self, timeout_s: float) -> str | None:
        """Wait for the child's exit without reaping it; see `_exit`."""
        deadline = time.monotonic() + timeout_s
        pause = 0.001
        while (how := self._exit()) is None and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        return how

    def _exit(self) -> str | None:
        """Return how the child ended, or ``None`` while it runs.

        The child is not reaped, so that its id cannot be reused for another group before its group has been killed.
        """
        try:
            end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            # Already reaped: by `kill`, or by the kernel if this process was started with SIGCHLD ignored.
            return "ended without a result"
        if end is None:
            return None
        if end.si_code == os.CLD_EXITED:
            return f"exited with code {end.si_status} without a result"
        try:
            return f"died from {signal.Signals(end.si_status).name}"
        except ValueError:
            return f"died from signal {end.si_status}"


_RAISE = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EAGAIN: "raise the limit of processes (ulimit -u, or pids.max of the cgroup)",
    errno.ENOMEM: "free memory, or raise the limit of address space (ulimit -v)",
}
_STUCK = "was killed but does not end (it may hang in the driver) and is left behind"


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    # On 64 cores, importing numpy costs seconds of CPU time if its BLAS starts a thread per core.
    changed = {**os.environ, **_ONE_THREAD, **changes}
    return {name: value for name, value in changed.items() if value is not None}


def _interpreter_flags() -> list[str]:
    """Return this process' -E and -s, and -P (new in 3.11), which keeps this folder off the import path."""
    own = {"-P": sys.version_info >= (3, 11), "-E": sys.flags.ignore_environment, "-s": sys.flags.no_user_site}
    return [flag for flag, is_set in own.items() if is_set]


def _occupy_standard_descriptors() -> None:
    """Open ``/dev/null`` as each closed standard stream (``egmctl topo <&-``).

    Otherwise the descriptors for the child would get these numbers, and the child's own streams would replace them.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
