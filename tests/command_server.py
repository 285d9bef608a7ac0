"""Processes of ``egmctl`` that start at once: a server has imported the package, and each command is a fork of it.

A command has a process, an environment, a folder and standard streams of its own, as when a shell starts it; only the
quarter of a second that Python takes to import it is spent once, not a thousand times. Its children are forks too
(tests/forked.py). What has to do with starting (imports, the interpreter's own variables) is tested with interpreters
of its own.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_OF_THE_INTERPRETER = ("PYTHON", "LC_", "LANG", "LD_PRELOAD", "TZ")
"""Beginnings of the names of variables that are read when an interpreter starts."""


class CommandServer:
    """One server, started when it is first needed; its commands run one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def run(
        self, arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout_s: float, little: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run ``egmctl`` with these arguments, as ``subprocess.run`` would, or ``tests/little.py`` with them.

        Raises
        ------
        subprocess.TimeoutExpired
            It took longer; it has been killed.
        """
        request = {"arguments": list(arguments), "environment": dict(env), "folder": str(cwd), "little": little}
        with self._lock, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
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


def fits(changes: Mapping[str, str | None]) -> bool:
    """Say whether a command with these variables may be a fork: none of them steers the interpreter itself."""
    return not any(name.startswith(_OF_THE_INTERPRETER) for name in changes)


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
            os.environ.clear()
            os.environ.update(request["environment"])
            os.chdir(request["folder"])
            for fd, standard in zip(fds, (1, 2), strict=True):
                os.dup2(fd, standard)
                os.close(fd)
            arguments: list[str] = request["arguments"]
            return arguments, request["little"]
        for fd in fds:
            os.close(fd)
        own.send(json.dumps(pid).encode())
        _, status = os.waitpid(pid, 0)
        own.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())


def _run(little: bool) -> None:
    from tests import forked
    from tests.little import measure_little

    if little:
        measure_little()
    with forked.children():
        runpy.run_module("egmctl", run_name="__main__", alter_sys=True)


def _warm_up() -> None:
    """Read once what each command would read again: the fields of records, and the texts of checks and messages."""
    from egmctl.doctor.check import EVERYTHING
    from egmctl.doctor.runner import CHECKS, diagnose
    from egmctl.driver.messages import messages
    from egmctl.driver.signatures import signatures
    from egmctl.facts import replay
    from egmctl.facts.redact import redact
    from egmctl.model.codec import _reading
    from egmctl.model.measurement import RunReport

    machine = replay.load("gb200-tray")
    diagnose(redact(machine), EVERYTHING, CHECKS)
    replay.text(machine)
    _reading(RunReport)
    messages()
    signatures()


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
