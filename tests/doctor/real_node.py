"""A node whose device nodes, process files and cgroups are the kernel's own, for tests that run as root."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from egmctl.facts import replay
from egmctl.model.finding import Status
from egmctl.model.machine import Machine
from tests.command_server import SERVER
from tests.conftest import ROOT, Ended, command_environment, ended
from tests.doctor.cgroups import GPU_MAJOR, Cgroup, mounted
from tests.fake.node import FakeNode
from tests.fake.sysroot import write_sysroot

without_driver = pytest.mark.skipif(
    Path("/proc/driver/nvidia").exists(), reason="a real NVML answers here, and knows other GPUs than the tree"
)

CONTROL, UVM_MAJOR = 255, 509
"""The minor of nvidiactl; a number as the kernel gives one to nvidia-uvm."""

Findings = dict[str, dict[str, Any]]


class Node:
    """A directory tree for ``EGMCTL_SYSROOT``, made after a machine."""

    def __init__(self, machine: Machine, directory: Path) -> None:
        self.machine = machine
        self.root = directory
        write_sysroot(machine, directory)
        self._fake = _fake_driver(machine, directory.parent / "fake")
        shutil.rmtree(directory / "proc/self")
        (directory / "proc/self").symlink_to("/proc/self")
        (directory / "sys/fs").mkdir(parents=True)
        (directory / "sys/fs/cgroup").symlink_to("/sys/fs/cgroup")
        # Where a test mounts a hierarchy that the machine does not have mounted.
        temporary = directory / tempfile.gettempdir().lstrip("/")
        temporary.parent.mkdir(parents=True, exist_ok=True)
        temporary.symlink_to(tempfile.gettempdir())
        for sign in ("/.dockerenv", "/run/systemd/container"):
            (directory / sign.lstrip("/")).unlink(missing_ok=True)

    def make_nodes(self) -> None:
        """Make the device nodes of the GPUs, nvidiactl and nvidia-uvm."""
        for minor in (*range(len(self.machine.gpus or ())), CONTROL):
            self.make_node(minor)
        majors = (self.machine.driver and self.machine.driver.majors) or {}
        self._make(self.root / "dev/nvidia-uvm", os.makedev(majors.get("nvidia-uvm", UVM_MAJOR), 0))

    def make_node(self, minor: int) -> None:
        """Make the device node of one GPU, or nvidiactl."""
        self._make(self.device(minor), os.makedev(GPU_MAJOR, minor))

    def allow_memory_of(self, nodes: str) -> None:
        """Let ``Mems_allowed_list`` name the machine's NUMA nodes; the rest stays the kernel's own."""
        own = self.root / "proc/self"
        own.unlink()
        own.mkdir()
        for name in os.listdir("/proc/self"):
            if name != "status":
                (own / name).symlink_to(f"/proc/self/{name}")
        lines = Path("/proc/self/status").read_text().splitlines()
        changed = [f"Mems_allowed_list:\t{nodes}" if line.startswith("Mems_allowed_list") else line for line in lines]
        (own / "status").write_text("\n".join(changed) + "\n")

    def _make(self, path: Path, numbers: int) -> None:
        os.mknod(path, stat.S_IFCHR, numbers)
        path.chmod(0o666)

    def device(self, minor: int) -> Path:
        return self.root / "dev" / ("nvidiactl" if minor == CONTROL else f"nvidia{minor}")

    def bus_id(self, minor: int) -> str:
        (gpu,) = [gpu for gpu in self.machine.gpus or () if gpu.proc is not None and gpu.proc.minor == minor]
        return gpu.bus_id

    def doctor(self, *arguments: str, **how: Any) -> tuple[int, Findings]:
        """Run the command as :meth:`run` does; return its exit code and the gravest finding of each check.

        NVML and CUDA are the fake ones, and find what the kernel lets them open of these device nodes.
        """
        code, out = self.run("doctor", "--json", *arguments, **how)
        return code, gravest(json.loads(out))

    def run(
        self,
        *arguments: str,
        cgroups: Sequence[Cgroup] = (),
        before: Callable[[], None] | None = None,
        faults: str = "",
        **variables: str,
    ) -> tuple[int, str]:
        """Run any command; return its exit code and standard output.

        Parameters
        ----------
        cgroups
            Those that it is in from its start.
        before
            What it does before it becomes the command, in an interpreter of its own.
        """
        if before is None:
            done = self.ended(arguments, variables, cgroups=cgroups, faults=faults)
        else:
            env = {**self.environment(faults), **variables}
            done = ended([sys.executable, "-m", "egmctl", *arguments], env=env, timeout_s=280, preexec_fn=before)
        assert done.out, done.err
        assert "Traceback" not in done.err
        return done.code, done.out

    def ended(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        *,
        cgroups: Sequence[Cgroup] = (),
        faults: str = "",
        little: bool = False,
    ) -> Ended:
        """Run any command in a fork, whose bench moves few bytes if it is to; return how it ended."""
        env = command_environment({**self.environment(faults), **variables})
        folders = [cgroup.directory for cgroup in cgroups]
        done = SERVER.run(arguments, env=env, cwd=ROOT, timeout_s=280, cgroups=folders, little=little)
        return Ended(done.returncode, done.stdout, done.stderr)

    def environment(self, faults: str = "") -> dict[str, str | None]:
        nodes = {"EGMCTL_SYSROOT": str(self.root), "EGMCTL_FAKE_NODES": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        recorded = self.machine.process.environment if self.machine.process else None
        steering = dict.fromkeys(name for name in recorded or () if name != "LD_LIBRARY_PATH")
        return {**self._fake.environment(faults), **steering, **nodes}


def _fake_driver(machine: Machine, directory: Path) -> FakeNode:
    directory.mkdir(parents=True)
    return FakeNode(machine, directory)


@contextlib.contextmanager
def hgx_node(machine: Machine | str = "hgx-h200x4") -> Iterator[Node]:
    """Make an HGX node with four GPUs, or another machine's node (by name if it ships), where every user may look.

    Its ``/dev`` is a file system of its own: how the temporary folder is mounted does not matter.
    """
    with tempfile.TemporaryDirectory(prefix="egmctl-node-") as folder:
        Path(folder).chmod(0o755)
        loaded = replay.load_machine(machine) if isinstance(machine, str) else machine
        made = Node(loaded, Path(folder) / "root")
        with mounted("tmpfs", "dev,mode=755", made.root / "dev"):
            made.make_nodes()
            yield made


def gravest(document: dict[str, Any]) -> Findings:
    """Return the gravest finding of each check of doctor's document."""
    findings: Findings = {}
    order = [status.value for status in Status]
    for finding in document["result"]["findings"]:
        known = findings.setdefault(finding["check"], finding)
        if order.index(finding["status"]) < order.index(known["status"]):
            findings[finding["check"]] = finding
    return findings


def evidence(finding: dict[str, Any]) -> dict[str, str]:
    """Return what was item, by where."""
    return {item["source"]: item["value"] for item in finding["evidence"]}
