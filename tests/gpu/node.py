"""A node for promises that hold on every node: written once, they are kept by a fake one and by this machine's GPUs.

A test asks for the fixture ``node``: `make test` gives it a fake node, `make test-gpu` the real one. What only hardware
can show (rates, what other processes see) stands behind ``node.is_fake``, or in tests of GPUs alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from egmctl.bench.case import Case
from egmctl.bench.plan.make import SECTIONS
from egmctl.bench.processes.group import Group, start_group
from egmctl.facts.collect import collect
from egmctl.facts.host import node_memory_free
from egmctl.facts.root import Root
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.model.measurement import RunReport, Settings
from egmctl.model.route import Rank
from egmctl.units import MIB
from tests import forked
from tests.bench.ipc import measure, small
from tests.command_server import SERVER
from tests.conftest import ROOT, Ended, command_environment, ended
from tests.doctor.cgroups import denying_v2
from tests.doctor.machines import patched
from tests.fake.machines import nvl4, with_access, with_imex_channel
from tests.fake.plugin import MakeFakeNode
from tests.gpu.commands import egmctl_words, minor
from tests.gpu.imex import channel_made
from tests.gpu.usage import compute_processes, is_given_back, used_memory_mib
from tests.handles.ranks import ranks_on
from tests.launch.start import is_alive, wait_until

CHANNELS = Path("/dev/nvidia-caps-imex-channels")
BUFFERS_MIB = 800
"""What the buffers of a bench take of a GPU, and no process that only reads its facts."""


class Node(ABC):
    """A node with GPUs."""

    is_fake: ClassVar[bool]
    large_bytes: ClassVar[int]
    """What counts as much memory there."""
    settings: ClassVar[Settings]
    """With which :meth:`measure` measures."""
    little: ClassVar[tuple[str, ...]]
    """Options of a bench that a test stops: a fake node's bytes are moved by this CPU."""
    machine: Machine

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs."""
        return self.machine.gpus or ()

    def ranks(self, count: int = 2) -> list[Rank]:
        """Return ranks on the first GPUs."""
        return ranks_on([gpu.bus_id for gpu in self.gpus[:count]])

    def bench(self, *arguments: str, timeout_s: float = 240, **variables: str) -> dict[str, Any]:
        """Run the bench, expect that it ends with 0, and return its result."""
        code, result = self.bench_with_code(*arguments, timeout_s=timeout_s, **variables)
        bad = [(m["case"], m["status"], m["reason"]) for m in result["measurements"] if m["status"] != "ok"]
        assert code == 0, (result["problems"], bad[:20])
        return result

    def bench_with_code(self, *arguments: str, timeout_s: float = 240, **variables: str) -> tuple[int, dict[str, Any]]:
        """Run the bench and return how it ended, and its result."""
        done = self.egmctl("bench", *arguments, "--json", env=variables, timeout_s=timeout_s)
        document = json.loads(done.out)
        assert document["result"] is not None, document["errors"]
        assert document["exit_code"] == done.code
        if self.is_fake:
            from tests.schemas import validate

            validate(document, "bench")
        return done.code, document["result"]

    def measure(
        self,
        *cases: Case,
        machine: Machine | None = None,
        gpus: int = 2,
        samples: int = 2,
        start: Callable[[int], Group] = start_group,
    ) -> RunReport:
        """Measure cases of several processes on the first GPUs, without those beside them."""
        settings = replace(self.settings, samples=samples)
        chosen = [small(case) for case in cases] if self.is_fake else cases
        with self.children():
            return measure(machine or self.machine, chosen, settings, gpus=self.gpus[:gpus], start=start)

    @abstractmethod
    def egmctl(
        self, *arguments: str | Path, env: Mapping[str, str | None] | None = None, timeout_s: float = 60
    ) -> Ended:
        """Run the command there; on a fake node its bench moves few bytes."""

    def only_h200(self) -> None:
        """Skip the test where there are other GPUs: only of H200 is it known what they reach."""
        names = [gpu.name or "" for gpu in self.gpus[:2]]
        if not all("H200" in name for name in names):
            pytest.skip(f"no reference for {names}")

    def run_program(self, *arguments: str) -> None:
        """Run one of the programs of tests/gpu/programs.py there, and expect that it ends well."""
        variables = self._variables() | {"OPENBLAS_NUM_THREADS": "1", "HOME": os.environ.get("HOME", str(Path.home()))}
        done = ended([sys.executable, "-m", "tests.gpu.programs", *arguments], env=variables)
        assert done.code == 0, done.err

    def start_bench(self, output: Path, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a bench that a test stops, whose JSON goes to a file, and wait until it works the GPUs."""
        is_worked = self._work()
        with output.open("w") as out:
            words = egmctl_words("bench", *self.little, *arguments, "--json")
            command = subprocess.Popen(words, stdout=out, cwd=ROOT, env=command_environment(self._variables()))
        assert wait_until(is_worked, 60), "the GPUs do not work"
        return command

    def _variables(self) -> dict[str, str | None]:
        return {}

    @abstractmethod
    def _work(self) -> Callable[[], bool]:
        """Return a function that says whether a bench that is started now works the GPUs."""

    @abstractmethod
    @contextmanager
    def children(self) -> Iterator[None]:
        """Have the children that this process starts within be on the node."""

    @abstractmethod
    @contextmanager
    def denying(self, gpu: Gpu) -> Iterator[dict[str, Any]]:
        """Return options of a child that may not use a GPU, as in a device cgroup that denies it."""

    @abstractmethod
    def has_channel(self) -> bool:
        """Say whether there is an IMEX channel."""

    @abstractmethod
    def without_channel(self) -> Machine:
        """Return the machine as it is without an IMEX channel; the test is skipped where it has one."""

    @abstractmethod
    @contextmanager
    def channel(self) -> Iterator[None]:
        """Have IMEX channel 0 within."""

    @abstractmethod
    @contextmanager
    def no_process_left(self, *, more_mib: int = 0, wait_s: float = 0) -> Iterator[None]:
        """Expect that no process works the GPUs at the end, and that the driver has back what they had.

        Parameters
        ----------
        more_mib, wait_s
            What a GPU may have in use more than before, for the driver's own books move, and how long that may take.
        """

    @abstractmethod
    @contextmanager
    def nothing_left(
        self, *, dead: Sequence[int] | None = None, more_mib: int = 0, wait_s: float = 0
    ) -> Iterator[None]:
        """Expect that what processes take of the GPUs within is given back at the end.

        Parameters
        ----------
        dead
            Processes that the test kills, whose memory the driver takes back; the others give back their memory.
            ``None`` where all processes are to end by themselves and give everything back.
        more_mib, wait_s
            As of :meth:`no_process_left`.
        """

    @abstractmethod
    def used_memory_mib(self) -> list[int]:
        """Return what another program sees in use on each GPU."""

    @abstractmethod
    def free_bytes(self, numa_node: int) -> int:
        """Return what is free of a NUMA node's memory."""


class NodeOfFakes(Node):
    """Four fake GPUs on two CPUs, with an IMEX channel."""

    is_fake = True
    large_bytes = 4 * MIB
    settings = Settings(size_bytes=MIB, copies=2, samples=2, timeout_s=30)
    little = ("--size", "1M", "--copies", "2")

    def __init__(self, make: MakeFakeNode) -> None:
        self._make = make
        self.machine = with_imex_channel(nvl4())
        self.driver = make(self.machine)
        self._drivers = [self.driver]

    def egmctl(
        self, *arguments: str | Path, env: Mapping[str, str | None] | None = None, timeout_s: float = 240
    ) -> Ended:
        """Run the command in a fork of a server that has imported it."""
        environment = command_environment(self._variables() | dict(env or {}))
        words = [*map(str, arguments)]
        done = SERVER.run(words, env=environment, cwd=ROOT, timeout_s=max(timeout_s, 240), little=True)
        assert "Traceback" not in done.stderr
        return Ended(done.returncode, done.stdout, done.stderr)

    @contextmanager
    def children(self) -> Iterator[None]:
        """Put the node's variables into this process' environment, and have its children be forks of it."""
        with _environment(self.driver.environment() | {"PYTHONPATH": str(ROOT)}), forked.children():
            yield

    @contextmanager
    def denying(self, gpu: Gpu) -> Iterator[dict[str, Any]]:
        """Return the environment of a node of the same memory whose driver finds the GPU's device node denied."""
        confined = self._make(with_access(self.machine, f"/dev/nvidia{minor(gpu)}", "EPERM"))
        self._drivers.append(confined)
        yield {"environment": confined.environment()}

    def has_channel(self) -> bool:
        """Say yes."""
        return True

    def without_channel(self) -> Machine:
        """Return the same machine without its channel."""
        return patched(self.machine, "driver", imex_channels=())

    @contextmanager
    def channel(self) -> Iterator[None]:
        """Do nothing: the node has a channel."""
        yield

    def _variables(self) -> dict[str, str | None]:
        return self.driver.environment() | {"EGMCTL_FAKE_COUNTERS": "1"}

    def _work(self) -> Callable[[], bool]:
        self.driver.forget_calls()
        return lambda: bool(self.driver.calls("cuLaunchKernel"))

    @contextmanager
    def no_process_left(self, *, more_mib: int = 0, wait_s: float = 0) -> Iterator[None]:  # noqa: ARG002 - of hardware
        """Expect that no process runs on that took a context within."""
        for driver in self._drivers:
            driver.forget_calls()
        yield
        workers = {call.pid for driver in self._drivers for call in driver.calls("cuDevicePrimaryCtxRetain")}
        assert wait_until(lambda: not any(map(is_alive, workers)))

    @contextmanager
    def nothing_left(
        self, *, dead: Sequence[int] | None = None, more_mib: int = 0, wait_s: float = 0
    ) -> Iterator[None]:
        """Expect it of the calls that processes make within, and that none of them runs on."""
        with self.no_process_left(more_mib=more_mib, wait_s=wait_s):
            yield
        left = [line for driver in self._drivers for line in driver.leaks()]
        if dead is not None:
            others = [line for line in left if not any(line.startswith(f"process {pid}:") for pid in dead)]
            left = [line for line in others if any(word in line for word in ("mapping", "allocation", "addresses"))]
        assert left == []

    def used_memory_mib(self) -> list[int]:
        """Return nothing: each process of a fake node has books of its own."""
        return [0] * len(self.gpus)

    def free_bytes(self, numa_node: int) -> int:  # noqa: ARG002
        """Return nothing: the fake's memory is this machine's."""
        return 0


class NodeOfGpus(Node):
    """This machine."""

    is_fake = False
    large_bytes = 256 * MIB
    settings = Settings(size_bytes=256 * MIB, copies=4, samples=2, timeout_s=30)
    little = ()

    def __init__(self) -> None:
        self.machine = collect(SECTIONS)

    def egmctl(
        self, *arguments: str | Path, env: Mapping[str, str | None] | None = None, timeout_s: float = 60
    ) -> Ended:
        """Run the command as a process of its own."""
        return ended(egmctl_words(*arguments), env=env, timeout_s=timeout_s)

    def _work(self) -> Callable[[], bool]:
        least_mib = max(used_memory_mib()) + BUFFERS_MIB
        return lambda: max(used_memory_mib()) >= least_mib

    @contextmanager
    def children(self) -> Iterator[None]:
        """Have children find the tests."""
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with _environment({"PYTHONPATH": os.pathsep.join(paths)}):
            yield

    @contextmanager
    def denying(self, gpu: Gpu) -> Iterator[dict[str, Any]]:
        """Return how to join a device cgroup, which only root can make."""
        _as_root()
        with denying_v2(minor(gpu)) as cgroup:
            directory = {"directory": str(cgroup.directory)}
            yield {"before": "tests.doctor.hooks:join_cgroup", "before_arguments": directory}

    def has_channel(self) -> bool:
        """Say whether there is the folder of channels."""
        return CHANNELS.exists()

    def without_channel(self) -> Machine:
        """Return the machine, if it has no channel."""
        if self.has_channel():
            pytest.skip("this node has IMEX channels")
        return self.machine

    @contextmanager
    def channel(self) -> Iterator[None]:
        """Make the channel's device node where there is none, which only root can."""
        _as_root()
        with channel_made():
            yield

    @contextmanager
    def no_process_left(self, *, more_mib: int = 0, wait_s: float = 0) -> Iterator[None]:
        """Expect that nvidia-smi shows the same memory as before, and no process."""
        before = used_memory_mib()
        yield
        given_back = wait_until(lambda: is_given_back(before, more_mib=more_mib), wait_s)
        assert given_back, (before, used_memory_mib(), compute_processes())

    @contextmanager
    def nothing_left(
        self,
        *,
        dead: Sequence[int] | None = None,  # noqa: ARG002 - the driver takes back what they had
        more_mib: int = 0,
        wait_s: float = 0,
    ) -> Iterator[None]:
        """Expect the same: nothing else shows what a process has of a driver."""
        with self.no_process_left(more_mib=more_mib, wait_s=wait_s):
            yield

    def used_memory_mib(self) -> list[int]:
        """Return what nvidia-smi shows."""
        return used_memory_mib()

    def free_bytes(self, numa_node: int) -> int:
        """Return MemFree."""
        return node_memory_free(Root(), numa_node)


@contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Change this process' variables within; ``None`` removes one."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            if value is None:
                patch.delenv(name, raising=False)
            else:
                patch.setenv(name, value)
        yield


def _as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("not root")
