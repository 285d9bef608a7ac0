"""Hosts to ssh to: each an sshd in namespaces of its own (network, processes, mounts, host name) on a link of its own.

::

    with Lab(folder) as lab:
        lab.host("node01", script)
        lab.run("fleet", "doctor", "-w", "node01")

Made as root and gone when the block ends; gone too when the test's process is killed: each host's first process reads
from a pipe that this process holds, and with the first process of a process namespace the kernel ends all others.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from egmctl import __version__
from tests.conftest import ROOT, Ended, command_environment

NAMESPACES = ("unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")

SSHD = """
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
LogLevel ERROR
Subsystem sftp internal-sftp
SetEnv PATH={path} {more}
"""

USER = """
IdentityFile {folder}/user_key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
StrictHostKeyChecking yes
User root
"""

START = """
mount -t tmpfs none /run && mkdir /run/sshd && hostname {name}
read -r ready
/usr/sbin/sshd -D -e -f {config} 2>{log} &
cat
"""


SAYS_VERSION = f'[ "$1" = --version ] && echo egmctl {__version__} && exit'
_ANSWER = json.dumps(
    {
        "schema": "egmctl.doctor/1",
        "tool": f"egmctl {__version__}",
        "exit_code": 0,
        "answer": {"state": "good", "word": "OK"},
        "machine": None,
        "errors": [],
        "result": {"platform": "none", "gpus_asked": None, "numa_asked": None, "purposes": [], "counts": {}}
        | {"findings": [], "machines": []},
    }
)
ANSWERS = f"{SAYS_VERSION}; echo '{_ANSWER}'"
"""An egmctl that finds nothing wrong at once: for tests of everything around it."""


class Lab:
    """Some hosts, and the network that reaches them.

    Parameters
    ----------
    folder
        An empty folder, whose path has no spaces.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._hosts: dict[str, subprocess.Popen[bytes]] = {}
        for key in ("host_key", "user_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
            subprocess.run(command, check=True, timeout=30)
        (folder / "known_hosts").touch()
        (folder / "ssh_config").write_text(USER.format(folder=folder))
        self._hub = subprocess.Popen(("unshare", "--net", "cat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Lab:
        settle(lambda: _namespace(self._hub.pid) != _namespace(os.getpid()), "the network's namespace")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in (*self._hosts.values(), self._hub):
            process.kill()
            process.communicate()

    def host(self, name: str, script: str | None, *, listening: bool = True, environment: str = "") -> Path:
        """Add a host and return its folder.

        Parameters
        ----------
        script
            The shell script that is its ``egmctl``; ``None``: it has none.
        listening
            Whether it has an sshd, and its address at all.
        environment
            What sshd gives to sessions: ``NAME=VALUE``.
        """
        number = len(self._hosts) + 1
        here, there = f"10.77.{number}.1", f"10.77.{number}.2"
        folder = self.folder / name
        (folder / "bin").mkdir(parents=True)
        if script is not None:
            (folder / "bin" / "egmctl").write_text(f"#!/bin/sh\n{script}\n")
            (folder / "bin" / "egmctl").chmod(0o755)
        path = f"{folder / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
        config = folder / "sshd_config"
        config.write_text(SSHD.format(address=there, folder=self.folder, path=path, more=environment))
        start = START.format(name=name, config=config, log=folder / "sshd.log")
        process = subprocess.Popen(
            (*NAMESPACES, "sh", "-c", start), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0
        )
        self._hosts[name] = process
        settle(lambda: _namespace(process.pid) != _namespace(os.getpid()), f"the namespaces of {name}")
        self.ip(f"link add to{number} type veth peer name eth0 netns {process.pid}")
        self.ip(f"address add {here}/30 dev to{number}")
        self.ip(f"link set to{number} up")
        inside = ("nsenter", "-t", str(process.pid), "-n", "ip")
        commands = ["link set lo up", "link set eth0 up"]
        if listening:
            commands.insert(0, f"address add {there}/30 dev eth0")
        for words in commands:
            subprocess.run((*inside, *words.split()), check=True, timeout=30)
        with (self.folder / "ssh_config").open("a") as file:
            file.write(f"Host {name}\n  HostName {there}\n")
        key = (self.folder / "host_key.pub").read_text()
        with (self.folder / "known_hosts").open("a") as file:
            file.write(f"{there} {key}")
        if listening:
            assert process.stdin is not None
            process.stdin.write(b"ready\n")
            self._await_sshd(name)
        return folder

    def cut(self, name: str) -> None:
        """Take a host's link away."""
        self.ip(f"link set to{list(self._hosts).index(name) + 1} down")

    def _await_sshd(self, name: str) -> None:
        address = f"10.77.{list(self._hosts).index(name) + 1}.2"
        probe = ("nsenter", "-t", str(self._hub.pid), "-n", "bash", "-c", f"exec 3<>/dev/tcp/{address}/22")
        settle(lambda: subprocess.run(probe, capture_output=True, check=False).returncode == 0, f"sshd of {name}")

    def ip(self, words: str) -> None:
        """Run ip where the network's other ends are."""
        subprocess.run(("nsenter", "-t", str(self._hub.pid), "-n", "ip", *words.split()), check=True, timeout=30)

    def processes(self, name: str) -> list[str]:
        """Return the command lines of what runs on a host for someone: all but its first processes and sshd."""
        space = os.readlink(f"/proc/{self._hosts[name].pid}/ns/net")
        commands = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(entry / "ns/net") == space:
                    commands.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip())
            except OSError:
                continue
        own = ("unshare ", "sh -c \nmount", "cat", "/usr/sbin/sshd", "sshd:")
        return [line for line in commands if line and not line.startswith(own)]

    def inside(self, *words: str) -> list[str]:
        """Return the command line of a program that reaches the hosts."""
        return ["nsenter", "-t", str(self._hub.pid), "-n", *words]

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of an egmctl that reaches the hosts."""
        ssh = ["--launcher-options", f"-F {shlex.quote(str(self.folder / 'ssh_config'))}"]
        if arguments[0] == "fleet":
            arguments = (*arguments[:2], *ssh, *arguments[2:])
        return self.inside(sys.executable, "-m", "egmctl", *arguments)

    def run(self, *arguments: str) -> Ended:
        """Run egmctl where it reaches the hosts; it writes into ``results`` of the lab's folder."""
        with self.start(*arguments) as process:
            try:
                out, err = process.communicate(timeout=280)
            except BaseException:
                process.kill()
                raise
        return Ended(process.returncode, out.decode(), err.decode())

    def start(self, *arguments: str, kill_after_s: int | None = None) -> subprocess.Popen[bytes]:
        """Start egmctl where it reaches the hosts, in a process group of its own.

        Parameters
        ----------
        kill_after_s
            Seconds that a stopped command has on its node, in place of ten.
        """
        results = self.folder / "results"
        results.mkdir(exist_ok=True)
        command = self.command(*arguments)
        if kill_after_s is not None:
            command = [*self.inside(sys.executable), *patient(kill_after_s), *command[command.index("egmctl") + 1 :]]
        return subprocess.Popen(
            command,
            cwd=results,
            env=command_environment({}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )


def patient(seconds: float) -> list[str]:
    """Return the interpreter's options for an egmctl that gives stopped commands so long, and no more after it."""
    script = (
        f"from egmctl.fleet import judge, run; judge.KILL_AFTER_S = run.KILL_AFTER_S = {seconds}; run.SLACK_S = 0; "
        "from egmctl.__main__ import main; main()"
    )
    return ["-c", script]


def on(environment: Mapping[str, str | None]) -> str:
    """Return the script of a real egmctl in an environment, such as a fake node's."""
    lines = [f"unset {name}" for name, value in environment.items() if value is None]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in environment.items() if value is not None]
    lines += [f"export PYTHONPATH={shlex.quote(str(ROOT))}", f'exec {shlex.quote(sys.executable)} -m egmctl "$@"']
    return "\n".join(lines)


def _namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def settle(true: Callable[[], bool], what: str = "it", seconds: float = 60) -> None:
    """Wait until something is so."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"{what} did not come about in {seconds:g} s"
        time.sleep(0.05)
