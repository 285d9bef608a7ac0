"""A node whose device nodes and cgroups are the kernel's own: a fake one in a file tree, or this machine with its GPUs.

A device cgroup denies what its test says. The kernel's answers are real on both; on the fake node NVML and CUDA are
fake ones, which find what the kernel lets them open.
"""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from egmctl.facts.collect import collect
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from tests.conftest import Ended
from tests.doctor.cgroups import Cgroup
from tests.doctor.real_node import Node
from tests.gpu.commands import minor, started


class GuardedNode(ABC):
    """A node with two GPUs or more."""

    is_fake: ClassVar[bool]
    machine: Machine

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs."""
        return self.machine.gpus or ()

    @property
    def minors(self) -> list[int]:
        """The minor numbers of the GPUs' device nodes."""
        return [minor(gpu) for gpu in self.gpus]

    @property
    @abstractmethod
    def uvm_major(self) -> int:
        """The major number of nvidia-uvm."""

    @abstractmethod
    def run(self, *arguments: str | Path, cgroups: Sequence[Cgroup] = (), **variables: str) -> Ended:
        """Run the command in cgroups that it is in from its start."""

    @contextmanager
    def job(self, cgroup: Cgroup) -> Iterator[int]:
        """Run another process in a cgroup; return its number."""
        with subprocess.Popen(["sleep", "60"], preexec_fn=cgroup.join) as process:
            self._show(process.pid)
            try:
                yield process.pid
            finally:
                process.kill()

    @abstractmethod
    def _show(self, pid: int) -> None:
        """Let the command see the files of another process."""


class GuardedFakes(GuardedNode):
    """Four fake GPUs of an HGX board."""

    is_fake = True

    def __init__(self, node: Node) -> None:
        self._node = node
        self.machine = node.machine

    @property
    def uvm_major(self) -> int:
        """The major number of nvidia-uvm in the tree."""
        assert self.machine.driver is not None
        assert self.machine.driver.majors is not None
        return self.machine.driver.majors["nvidia-uvm"]

    def run(self, *arguments: str | Path, cgroups: Sequence[Cgroup] = (), **variables: str) -> Ended:
        """Run the command in a fork; its bench moves few bytes."""
        return self._node.ended([*map(str, arguments)], variables, cgroups=cgroups, little=True)

    def _show(self, pid: int) -> None:
        (self._node.root / f"proc/{pid}").symlink_to(f"/proc/{pid}")


class GuardedGpus(GuardedNode):
    """This machine."""

    is_fake = False

    def __init__(self) -> None:
        self.machine = collect(("gpus", "driver"))
        if len(self.gpus) < 2:
            pytest.skip("needs two GPUs")

    @property
    def uvm_major(self) -> int:
        """The major number of nvidia-uvm in /proc/devices."""
        majors = Path("/proc/devices").read_text().partition("Block devices:")[0].split("\n")
        (uvm,) = [int(line.split()[0]) for line in majors if line.split()[1:] == ["nvidia-uvm"]]
        return uvm

    def run(self, *arguments: str | Path, cgroups: Sequence[Cgroup] = (), **variables: str) -> Ended:
        """Run the command as a process of its own."""

        def before() -> None:
            for cgroup in cgroups:
                cgroup.join()

        return started(*arguments, before=before if cgroups else None, variables=variables, timeout_s=300)

    def _show(self, pid: int) -> None:
        del pid
