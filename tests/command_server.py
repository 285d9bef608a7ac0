"""Processes of ``egmctl`` that start at once: a server has imported the package, and each command is a fork of it.

A command has a process, an environment, a folder and standard streams of its own, as when a shell starts it; only the
quarter of a second that Python takes to import it is spent once, not a thousand times. Its children are forks too
(tests/forked.py). What has to do with starting (imports, the interpreter's own variables) is tested with interpreters
of its own.

Where another program starts the command, as mpirun starts ranks, it starts ``tests/stand_in.py``, which asks this
server for a fork and ends as the fork ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

ROOT = Path(__file__).resolve().parent.parent
_STAND_IN = ROOT / "tests" / "stand_in.py"
_OF_THE_INTERPRETER = ("PYTHON", "LC_", "LANG", "LD_PRELOAD", "TZ")
"""Beginnings of the names of variables that are read when an interpreter starts."""
_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h


class CommandServer:
    """One server, started when it is first needed; its commands run one at a time, those of stand-ins all at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""

    def run(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        timeout_s: float,
        little: bool = False,
        cgroups: Sequence[Path] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run ``egmctl`` with these arguments, as ``subprocess.run`` would, or ``tests/little.py`` with them.

        Parameters
        ----------
        cgroups
            The directories of cgroups that the command is in from its start.

        Raises
        ------
        subprocess.TimeoutExpired
            It took longer; it has been killed.
        """
        request = {
            "arguments": list(arguments),
            "environment": dict(env),
            "folder": str(cwd),
            "little": little,
            "cgroups": [str(cgroup) for cgroup in cgroups],
        }
        with self._lock, _in_memory("out") as out, _in_memory("err") as err:
            server = self._started()
            server.settimeout(None)
            socket.send_fds(server, [json.dumps(request).encode()], [out.fileno(), err.fileno()])
            pid = json.loads(server.recv(64))
            server.settimeout(timeout_s)
            try:
                code = json.loads(server.recv(64))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                server.settimeout(None)
                server.recv(64)
                raise subprocess.TimeoutExpired(list(arguments), timeout_s, _text(out), _text(err)) from None
            except BaseException:
                # A test that is ended in the middle, by its own time limit: the answer to come is nobody's.
                os.kill(pid, signal.SIGKILL)
                server.close()
                self._socket = None
                raise
            return subprocess.CompletedProcess(list(arguments), code, _text(out), _text(err))

    def stand_in(self, *, little: bool = False) -> list[str]:
        """Return the beginning of a command line that does what ``python -m egmctl`` does, as a fork.

        Whoever ends it by a signal ends the fork; SIGSTOP stops the stand-in alone.
        """
        with self._lock:
            if not self._address:
                # An address of Linux' abstract namespace, which the kernel chooses: no file is left.
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                    listener.bind("")
                    listener.listen(64)
                    self._address = listener.getsockname().decode()
                    socket.send_fds(self._started(), [b"{}"], [listener.fileno()])
        words = [sys.executable, "-I", "-S", str(_STAND_IN), self._address.lstrip("\0")]
        return [*words, "little"] if little else [*words, "usual"]

    def close(self) -> None:
        """End the server."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait(60)

    def _started(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, __file__, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=os.environ | {"PYTHONPATH": str(ROOT)},
                    cwd=ROOT,
                )
        return self._socket


SERVER = CommandServer()
"""The one of this process and its tests, which end it."""


def fits(changes: Mapping[str, str | None]) -> bool:
    """Say whether a command with these variables may be a fork: none of them steers the interpreter itself."""
    return not any(name.startswith(_OF_THE_INTERPRETER) for name in changes if name != "PYTHONPATH")


def _in_memory(name: str) -> BinaryIO:
    """Return a new file without a place on a disk, where making two for each command takes the time of a small one."""
    return os.fdopen(os.memfd_create(name), "w+b")


def _text(file: Any) -> str:
    file.seek(0)
    content: bytes = file.read()
    return content.decode("utf-8")


def serve(own: socket.socket) -> tuple[list[str], bool]:
    """Serve until the other end is closed; return, in a process of its own, how a command was asked for."""
    while True:
        content, fds, _, _ = socket.recv_fds(own, 1 << 20, 2)
        if not content:
            sys.exit(0)
        pid = os.fork()
        if pid == 0:
            own.close()
            request = json.loads(content)
            if not request:
                return _serve_stand_ins(socket.socket(fileno=fds[0]))
            return _become(request, fds)
        for fd in fds:
            os.close(fd)
        if json.loads(content):
            own.send(json.dumps(pid).encode())
            _, status = os.waitpid(pid, 0)
            own.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())


def _become(request: dict[str, Any], fds: Sequence[int]) -> tuple[list[str], bool]:
    """Take the environment, the folder and the last standard streams of a request; return its command."""
    for cgroup in request.get("cgroups", ()):
        Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    for standard, fd in enumerate(fds, 3 - len(fds)):
        os.dup2(fd, standard)
        os.close(fd)
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [folder for folder in named if folder not in sys.path and os.path.isdir(folder)]
    if any(name.partition(".")[0] in sys.modules for folder in folders for name in os.listdir(folder)):
        # Another module in place of one that is there takes an interpreter of its own.
        program = [str(ROOT / "tests" / "little.py")] if request["little"] else ["-m", "egmctl"]
        os.execv(sys.executable, [sys.executable, *program, *request["arguments"]])  # noqa: S606
    sys.path[:0] = folders
    return request["arguments"], request["little"]


def _serve_stand_ins(listener: socket.socket) -> tuple[list[str], bool]:
    """Serve stand-ins until the server ends; return, in a process of its own, how a command was asked for."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    keepers: set[int] = set()
    while True:
        connection, _ = listener.accept()
        keeper = os.fork()
        if keeper == 0:
            listener.close()
            return _keep(connection)
        connection.close()
        keepers = {pid for pid in keepers if os.waitpid(pid, os.WNOHANG)[0] == 0} | {keeper}


def _keep(stand_in: socket.socket) -> tuple[list[str], bool]:
    """Return, in a process of its own, how a stand-in asks for a command; here, tell it how that ends.

    What signals the stand-in gets are passed on; if it is gone, the command is killed.
    """
    content, fds, _, _ = socket.recv_fds(stand_in, 1 << 20, 3)
    request = json.loads(content)
    pid = os.fork()
    if pid == 0:
        stand_in.close()
        os.setpgid(0, 0)
        os.sched_setaffinity(0, request["cpus"])
        command = _become(request, fds)
        _wait_patiently()
        # Those of the server know whether its own files can seek.
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
        return command
    for fd in fds:
        os.close(fd)
    ended: Any = os.pidfd_open(pid)
    while True:
        readable, _, _ = select.select([stand_in, ended], [], [])
        if ended in readable:
            _, status = os.waitpid(pid, 0)
            with contextlib.suppress(OSError):
                stand_in.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
            os._exit(0)
        number = stand_in.recv(64)
        os.kill(pid, json.loads(number) if number else signal.SIGKILL)
        if not number:
            os._exit(0)


def _wait_patiently() -> None:
    """Have a rank that waits for others leave them the CPUs: in tests there are more ranks than CPUs.

    On a node each rank has CPUs, and looks for messages every millisecond, at first without a pause.
    """
    from egmctl.mpi import communicator

    communicator._SPIN_S, communicator._PAUSE_MS = 0.0, 5


def _run(little: bool) -> None:
    from tests import forked
    from tests.little import measure_little

    if little:
        measure_little()
    with forked.children():
        runpy.run_module("egmctl", run_name="__main__", alter_sys=True)


def _warm_up() -> None:
    """Do once what each command would do again: read the fields of records, texts, profiles; plan and judge a run."""
    from egmctl.doctor.check import EVERYTHING
    from egmctl.doctor.runner import CHECKS, diagnose
    from egmctl.driver.messages import messages
    from egmctl.driver.signatures import signatures
    from egmctl.facts import replay
    from egmctl.facts.collect import collect
    from egmctl.facts.redact import redact
    from egmctl.verdict import profiles

    machine = replay.load_machine("gb200-tray")
    diagnose(redact(machine), EVERYTHING, CHECKS)
    replay.machine_text(machine)
    messages()
    signatures()
    profiles.all_profiles(lambda _: None)
    # Sections that no child is asked for: their patterns are compiled.
    collect(("host", "switches", "nics", "process", "confinement", "system"))
    run = str(ROOT / "tests" / "data" / "runs" / "standard-2xh200.json.gz")
    _rehearse("doctor", "--machine", "gb200-tray")
    _rehearse("bench", "--machine", "gb200-tray", "--dry-run")
    _rehearse("show", run)
    _rehearse("show", run, "--json")


def _rehearse(*words: str) -> None:
    """Run a command that measures nothing in this process, unheard; the commands that follow begin as if it had not."""
    from egmctl.cli import app, output

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        app.run_command(words)
    output.emitted = output.muted = output.relayed = False


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))
    from egmctl.cli.app import parser
    from tests import forked

    forked.import_all()
    parser()
    _warm_up()
    gc.freeze()
    sys.argv[1:], little = serve(socket.socket(fileno=int(sys.argv[1])))
    forked.end_after(lambda: _run(little))
