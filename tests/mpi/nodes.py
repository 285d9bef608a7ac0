"""Fake nodes of one NVLink domain, and egmctl as ranks of an MPI job on them."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

from egmctl.model.gpu import Fabric
from egmctl.model.host import System
from egmctl.model.machine import Machine
from tests.command_server import SERVER
from tests.conftest import Ended
from tests.doctor.machines import of_two_gpus, patched
from tests.fake.machines import nvl4, with_imex_channel
from tests.fake.node import FakeNode
from tests.mpi.jobs import launch

DOMAIN = Fabric(
    state="completed",
    status=0,
    cluster_uuid="3ac9e5a1-0b64-4f57-8e5c-5a1de7ac1b9d",
    clique_id=7,
    health_mask=0,
    health_summary="healthy",
)
QUICK = ("--suite", "fabric", "--size", "1M", "--copies", "2", "--samples", "2")
"""Small and few: what is looked at is who does what with whom."""
RANK = ("tests/mpi/rank.py",)
"""egmctl, an interpreter of its own whose children are forks of it: for a test that finds the ranks among processes."""


def in_domain(host: str, *, driver: str | None = None, clique: int = 7, channel: bool = True) -> Machine:
    """Return two Grace CPUs with two GPUs each, on a node of an NVLink domain."""
    machine = with_imex_channel(nvl4()) if channel else nvl4()
    assert machine.host is not None
    assert machine.driver is not None
    fabric = replace(DOMAIN, clique_id=clique)
    gpus = tuple(replace(gpu, nvml=gpu.nvml and replace(gpu.nvml, fabric=fabric)) for gpu in machine.gpus or ())
    channels = machine.driver.imex_channels if channel else ()
    return replace(
        machine,
        gpus=gpus,
        host=replace(machine.host, hostname=host),
        driver=replace(machine.driver, driver_version=driver or machine.driver.driver_version, imex_channels=channels),
    )


@dataclass
class Place:
    """A node, and how many ranks are on it."""

    node: FakeNode
    ranks: int
    faults: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    def signal_commands(self, number: int) -> None:
        """Send a signal to the commands that MPI has started on this node."""
        here = f"EGMCTL_FAKE_LOG={self.node.log}".encode()
        parents: dict[int, int] = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if {b"bench", b"bringup"} & {*words} and here in (process / "environ").read_bytes().split(b"\0"):
                    parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        # Their children have the same words, as forks of them (tests/mpi/rank.py).
        commands = [pid for pid, parent in parents.items() if parent not in parents]
        for pid in commands:
            os.kill(pid, number)
        assert len(commands) == self.ranks


def wait_for(condition: Callable[[], bool], job: Future[Ended]) -> None:
    """Wait for something that the job does."""
    while not condition():
        assert not job.done(), job.result()
        time.sleep(0.05)


def egmctl_under_mpi(
    places: Sequence[Place],
    *arguments: str | Path,
    options: Sequence[str] = (),
    program: Sequence[str] | None = None,
    little: bool = False,
    timeout_s: float = 280,
) -> Ended:
    """Run the command as one job over the nodes; each rank has its node's environment.

    Ranks are forks (``tests/stand_in.py``), or interpreters of their own that run ``program``: for a test that finds
    and ends them, say, or gives them other modules. ``little`` is as for ``egmctl(...)``.
    """
    start = SERVER.stand_in(little=little) if program is None else [sys.executable, *program]
    job: list[str] = []
    for place in places:
        env = place.node.environment(place.faults) | dict(place.env)
        removed = [part for name, value in env.items() if value is None for part in ("-u", name)]
        given = [f"{name}={value}" for name, value in env.items() if value is not None]
        command = [*start, *map(str, arguments)]
        if job:
            job.append(":")
        job += ["-n", str(place.ranks), "env", *removed, *given, *command]
    return launch(job, options=options, timeout_s=timeout_s)


def tray(host: str) -> Machine:
    """Return a healthy node of two GPUs."""
    return patched(of_two_gpus(in_domain(host)), "", system=System(daemons=("nvidia-imex",)))


RECOVER = ("--enable-recovery",)
"""mpirun lets the others live when a process is killed, as srun does."""
IMPATIENT = ("tests/mpi/impatient.py",)
"""egmctl, whose commands give each other up sooner."""
