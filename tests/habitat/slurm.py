"""A Slurm cluster of this machine alone, for the time of some tests: munged, slurmctld and two slurmd.

Everything of it lies in one temporary folder: its configuration, its state, its key, and the ports are its own. What
``ConstrainDevices`` confines are the device nodes of a fake HGX node (``tests/doctor/real_node.py``): real ones of the
real numbers, without a driver behind them. Root only, and cgroups of version 1 only: Slurm's ``cgroup/v2`` refuses a
machine that mounts any of version 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ended, command_environment, ended
from tests.doctor.real_node import Node, hgx_node
from tests.habitat.place import CGROUPS, FORKING, PATIENCE_S, SMALL, install, program, readable_folder, wait

CPUS, MEMORY_MIB = 2, 4096
"""Of each of the nodes, which are this machine twice."""

_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)

_SLURM_CONF = """\
ClusterName=egmctl
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=1024
GresTypes=gpu
PrologFlags=Alloc,Contain
Prolog={folder}/prolog
Epilog={folder}/epilog
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SchedulerParameters=sched_min_interval=0,sched_interval=1,batch_sched_delay=0,bf_interval=1
MailProg=/bin/true
ReturnToService=0
KillWait=2
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs={cpus} RealMemory={memory} Gres=gpu:4
PartitionName=all Nodes=ALL Default=YES State=UP
"""
_CGROUP_CONF = f"""\
CgroupPlugin=cgroup/v1
CgroupMountpoint={CGROUPS}
ConstrainDevices=yes
ConstrainCores=yes
ConstrainRAMSpace=yes
"""


class Cluster:
    """A running cluster.

    Attributes
    ----------
    folder
        Its files. Jobs start there and may write into ``out``, whoever's they are.
    node
        The fake HGX node whose GPUs are the GRES of both Slurm nodes.
    names
        The names of the Slurm nodes.
    forking
        A folder with an egmctl whose children are forks, for those that start many: a ``path`` of the methods.
    """

    def __init__(self, folder: Path, node: Node, names: tuple[str, str]) -> None:
        self.folder, self.node, self.names, self.forking = folder, node, names, folder / "forking"
        self._environment = {"SLURM_CONF": f"{folder}/slurm.conf", "PATH": f"{folder}/bin:{os.environ['PATH']}"}

    def slurm(self, *command: str | Path, user: int = 0, path: Path | None = None) -> Ended:
        """Run a command of Slurm from the folder ``out``, as root or a user of this number alone.

        ``path`` is where the programs of its job are looked for first.
        """
        env = self._environment | ({"PATH": f"{path}:{os.environ['PATH']}"} if path else {})
        who = {"user": user, "group": user, "extra_groups": []} if user else {}
        return ended([*map(str, command)], env=env, cwd=self.folder / "out", timeout_s=2 * PATIENCE_S, **who)

    def documents(
        self, options: str, *words: str, user: int = 0, path: Path | None = None
    ) -> tuple[Ended, list[dict[str, Any]]]:
        """Run ``egmctl --json`` by srun on the first node; return how it ended, and the document of each task."""
        name = f"documents-{time.monotonic_ns()}"
        files = (f"--output={name}.%t.json", f"--error={name}.err")
        job = ("srun", "--quiet", f"--nodelist={self.names[0]}", *files, *options.split())
        done = self.slurm(*job, "egmctl", *words, "--json", user=user, path=path)
        texts = [path.read_text() for path in sorted((self.folder / "out").glob(f"{name}.*.json"))]
        err = (self.folder / f"out/{name}.err").read_text()
        return Ended(done.code, "", err), [json.loads(text) for text in texts if text]

    @contextlib.contextmanager
    def job(self, options: str, script: str) -> Iterator[subprocess.Popen[str]]:
        """Start a shell script by srun on the first node, and end the job when the block is left."""
        command = ["srun", f"--nodelist={self.names[0]}", "--quiet", *options.split(), "sh", "-c", script]
        environment, place = command_environment(self._environment), self.folder / "out"
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=place) as process:
            try:
                yield process
            finally:
                process.terminate()

    def state(self, name: str) -> tuple[str, str]:
        """Return a node's state as sinfo abbreviates it, and the reason that an administrator would read."""
        done = self.slurm("sinfo", "--noheader", f"--nodes={name}", "--Format=StateCompact:32,Reason:256")
        state, _, reason = done.out.strip().partition(" ")
        return state, reason.strip()

    def settle(self, name: str, state: str) -> str:
        """Wait until a node is in this state; return the reason of it."""
        wait(lambda: self.state(name)[0] == state, f"{name} is not {state}")
        return self.state(name)[1]

    def resume(self, name: str) -> None:
        """Give a node back to jobs."""
        self.slurm("scontrol", "update", f"nodename={name}", "state=resume")
        self.settle(name, "idle")

    def jobs(self) -> list[str]:
        """Return the numbers of the jobs that have not ended, their epilogs included."""
        return self.slurm("squeue", "--noheader", "--format=%A").out.split()

    def sbatch(self, *words: str | Path, path: Path) -> str:
        """Submit a batch job, wait until no job is left, and return the state and the exit code of this one."""
        number = self.slurm("sbatch", "--parsable", *words, path=path).out.strip()
        self.wait_for_jobs()
        fields = self.slurm("scontrol", "show", "job", number).out.split()
        return " ".join(field for field in fields if field.startswith(("JobState=", "ExitCode=")))

    def end_jobs(self) -> None:
        """End all jobs."""
        if jobs := self.jobs():
            self.slurm("scancel", *jobs)
        self.wait_for_jobs()

    def wait_for_jobs(self) -> None:
        """Wait until no job is left."""
        wait(lambda: not self.jobs(), "jobs do not end")

    def hook(self, name: str, script: str = "") -> None:
        """Have the slurmd of all nodes run this ``prolog`` or ``epilog`` before or after each job."""
        program(self.folder / name, script)


@contextlib.contextmanager
def slurm_cluster() -> Iterator[Cluster]:
    """Bring up a cluster, and end its daemons, jobs and cgroups when the block is left."""
    with contextlib.ExitStack() as stack:
        port = _free_ports(3)
        names = (f"egm{port}a", f"egm{port}b")
        folder = stack.enter_context(readable_folder(*(f"slurm_{name}" for name in names)))
        node = stack.enter_context(hgx_node(SMALL))
        cluster = Cluster(folder, node, names)
        _configure(cluster, port)
        install(folder, folder / "bin/egmctl", node.environment())
        cluster.forking.mkdir()
        install(folder, cluster.forking / "egmctl", node.environment(), start=FORKING)
        cluster.hook("prolog")
        cluster.hook("epilog")
        try:
            _start_daemons(cluster, stack)
        except AssertionError as error:
            logs = "".join(log.read_text()[-2000:] for log in folder.glob("*.log"))
            pytest.skip(f"Slurm does not come up here, without a job of egmctl: {error}\n{logs}")
        try:
            yield cluster
        finally:
            cluster.end_jobs()


def _configure(cluster: Cluster, port: int) -> None:
    folder, (one, other) = cluster.folder, cluster.names
    for name in ("munge", "state"):
        (folder / name).mkdir()
    for name in ("out", f"tmp-{one}", f"tmp-{other}"):
        (folder / name).mkdir()
        (folder / name).chmod(0o777)
    (folder / "munge/key").write_bytes(secrets.token_bytes(1024))
    (folder / "munge/key").chmod(0o400)
    values = {"host": socket.gethostname(), "port": port, "first": port + 1, "last": port + 2}
    text = _SLURM_CONF.format(folder=folder, nodes=f"{one},{other}", cpus=CPUS, memory=MEMORY_MIB, **values)
    (folder / "slurm.conf").write_text(text)
    gpus = range(len(cluster.node.machine.gpus or ()))
    (folder / "gres.conf").write_text("".join(f"Name=gpu File={cluster.node.device(gpu)}\n" for gpu in gpus))
    (folder / "cgroup.conf").write_text(_CGROUP_CONF)


def _start_daemons(cluster: Cluster, stack: contextlib.ExitStack) -> None:
    munge = cluster.folder / "munge"
    files = [f"--{name}-file={munge}/{name}" for name in ("key", "log", "pid", "seed")]
    _start(cluster, stack, "munged", "--foreground", "--force", f"--socket={munge}/socket", *files)
    wait((munge / "socket").is_socket, "munged does not start")
    _start(cluster, stack, "slurmctld", "-D", "-c")
    wait(lambda: "is UP" in cluster.slurm("scontrol", "ping").out, "slurmctld does not start")
    for name in cluster.names:
        _start(cluster, stack, "slurmd", "-D", "-N", name)
    for name in cluster.names:
        cluster.settle(name, "idle")


def _start(cluster: Cluster, stack: contextlib.ExitStack, *command: str) -> None:
    """Start a daemon that ends when the block is left, and when this process dies."""
    path = f"/usr/sbin:{os.environ['PATH']}"
    with open(cluster.folder / f"{command[0]}.log", "a") as log:
        process = subprocess.Popen(
            command,
            env=os.environ | {"SLURM_CONF": f"{cluster.folder}/slurm.conf", "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
        )
    stack.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports(count: int) -> int:
    """Return the first of so many ports in a row that nobody listens at, below those that the kernel hands out."""
    for first in range(17000 + os.getpid() % 1000 * 10, 32000, 10):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise RuntimeError("no free ports")
