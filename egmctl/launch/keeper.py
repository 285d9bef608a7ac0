"""Run one program, then kill all its descendants. This file is a standalone script, not a module.

::

    python -I -S keeper.py GRACE_S INPUT PROGRAM [ARGUMENT...]

It kills them when the program has exited, when it receives SIGTERM itself, or ``GRACE_S`` seconds after the other end
of its standard input is closed; the kernel closes that end however the parent dies. It also kills processes that left
the program's group or session: it adopts orphans (PR_SET_CHILD_SUBREAPER). If INPUT is ``pass``, the program inherits
the standard input; if it is ``none``, the program reads ``/dev/null``. The exit code is the program's, or 128 plus the
number of the signal that killed it.
"""

import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
END_S = 2.0
"""The time limit for killing. Even SIGKILL does not end a process in an uninterruptible driver call."""


def main() -> int:
    """Run the program that the arguments name, and return the exit code."""
    grace_s, passes, words = float(sys.argv[1]), sys.argv[2] == "pass", sys.argv[3:]
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Ctrl-C in the terminal is for the parent only.
    if os.getpid() != os.getpgid(0):
        os.setsid()
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, _noted)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    child = os.fork()
    if child == 0:
        _become(libc, words, passes)
    code = _watch(child, awake, grace_s)
    _end_all(child)
    return 128 + signal.SIGKILL if code is None else code


def _become(libc: ctypes.CDLL, words: list[str], passes: bool) -> None:
    """Replace this child with the program (execvp)."""
    try:
        os.setsid()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        if not passes:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execvp(words[0], words)  # noqa: S606 (no shell is what is wanted)
    except OSError as error:
        os.write(2, f"{words[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


_received: list[int] = []


def _noted(number: int, _frame: object) -> None:
    _received.append(number)


def _watch(child: int, awake: int, grace_s: float) -> "int | None":
    """Wait until the program exits and return its exit code, or ``None`` if it must be killed."""
    poll = select.poll()
    poll.register(awake, select.POLLIN)
    poll.register(0, 0)
    until = None
    while signal.SIGTERM not in _received:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        if until is not None and time.monotonic() >= until:
            break
        for descriptor, events in poll.poll(None if until is None else max(0, until - time.monotonic()) * 1000 + 1):
            if descriptor == awake:
                os.read(awake, 4096)
            elif events & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
                poll.unregister(0)
                until = time.monotonic() + grace_s
    return None


def _end_all(child: int) -> None:
    """Kill all descendants, level by level: the children of a killed process become children of this one."""
    until = time.monotonic() + END_S
    _kill(-child)
    while time.monotonic() < until:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for pid in _children():
            _kill(pid)
        time.sleep(0.002)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return


def _children() -> "list[int]":
    own = str(os.getpid())
    children = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The name in parentheses may contain any character; state and parent follow the last parenthesis.
                parent = file.read().rpartition(b")")[2].split()[1]
        except (OSError, IndexError):
            continue
        if parent.decode() == own:
            children.append(int(name))
    return children


if __name__ == "__main__":
    # There is nothing to clean up, and the interpreter's exit handlers cost time.
    os._exit(main())
