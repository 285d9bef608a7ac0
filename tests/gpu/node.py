"""A node for promises that hold on every node: written once, they are kept by a fake one and by this machine's GPUs.

A test asks for the fixture ``node``: `make test` gives it a fake node, `make test-gpu` the real one. What only hardware
can show (rates, what other programs see) stands behind ``node.is_fake``, or in tests of GPUs alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
    settings: ClassVar[Settings]
    """With which :meth:`measure` measures."""
    large_bytes: ClassVar[int]
    """What counts as much memory there."""
    little: ClassVar[tuple[str, ...]] = ()
    """Options of a bench that a test stops: a fake node's bytes are moved by this CPU."""
    machine: Machine

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs."""
        return self.machine.gpus or ()

    def ranks(self) -> list[Rank]:
        """Return ranks on the first two GPUs."""
        return ranks_on([gpu.bus_id for gpu in self.gpus[:2]])

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

    def only_h200(self) -> None:
        """Skip the test where there are other GPUs: only of H200 is it known what they reach."""
        names = [gpu.name or "" for gpu in self.gpus[:2]]
        if not all("H200" in name for name in names):
            pytest.skip(f"no reference for {names}")

    def run_program(self, *arguments: str) -> None:
        """Run one of the programs of tests/gpu/programs.py there, and expect that it ends well."""
        variables = self.variables() | {"OPENBLAS_NUM_THREADS": "1", "HOME": os.environ.get("HOME", str(Path.home()))}
        done = ended([sys.executable, "-m", "tests.gpu.programs", *arguments], env=variables)
        assert done.code == 0, done.err

    def start_bench(self, output: Path, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a bench that a test stops, whose JSON goes to a file, and wait until it works the GPUs."""
        is_worked = self.work()
        with output.open("w") as out:
            words = egmctl_words("bench", *self.little, *arguments, "--json")
            command = subprocess.Popen(words, stdout=out, cwd=ROOT, env=command_environment(self.variables()))
        assert wait_until(is_worked, 60), "the GPUs do not work"
        return command

    @abstractmethod
    def egmctl(self, *arguments: str, env: Mapping[str, str | None] | None = None, timeout_s: float = 60) -> Ended:
        """Run the command there; on a fake node its bench moves few bytes."""

    @abstractmethod
    def variables(self) -> dict[str, str | None]:
        """Return the variables that put a process on the node."""

    @abstractmethod
    def work(self) -> Callable[[], bool]:
        """Return a function that says whether a bench that is started now works the GPUs."""

    @abstractmethod
    def children(self) -> AbstractContextManager[None]:
        """Have the children that this process starts within be on the node."""

    @abstractmethod
    def denying(self, gpu: Gpu) -> AbstractContextManager[dict[str, Any]]:
        """Return options of a child that may not use a GPU, as in a device cgroup that denies it."""

    @abstractmethod
    def has_channel(self) -> bool:
        """Say whether there is an IMEX channel."""

    @abstractmethod
    def without_channel(self) -> Machine:
        """Return the machine as it is without an IMEX channel; the test is skipped on GPUs where there is one."""

    @abstractmethod
    def channel(self) -> AbstractContextManager[None]:
        """Have IMEX channel 0 within."""

    @abstractmethod
    def no_process_left(self, *, more_mib: int = 0, wait_s: float = 0) -> AbstractContextManager[None]:
        """Expect that no process works the GPUs at the end, and that the driver has back what they had.

        Parameters
        ----------
        more_mib, wait_s
            What a GPU may have in use more than before, for the driver's own books move, and how long that may take.
        """

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
        with self.no_process_left(more_mib=more_mib, wait_s=wait_s):
            yield
        assert self.left_by_calls(dead) == []

    def left_by_calls(self, dead: Sequence[int] | None) -> list[str]:
        """Return what calls of the driver have taken and not given back, where that is known."""
        del dead
        return []

    @abstractmethod
    def used_memory_mib(self) -> list[int]:
        """Return what another program sees in use on each GPU."""

    @abstractmethod
    def free_bytes(self, numa_node: int) -> int:
        """Return what is free of a NUMA node's memory; 0 on a fake node."""


class NodeOfFakes(Node):
    """Four fake GPUs on two CPUs, with an IMEX channel."""

    is_fake = True
    settings = Settings(size_bytes=MIB, copies=2, samples=2, timeout_s=30)
    large_bytes = 4 * MIB
    little = ("--size", "1M", "--copies", "2")

    def __init__(self, make: MakeFakeNode) -> None:
        self._make = make
        self.machine = with_imex_channel(nvl4())
        self.driver = make(self.machine)
        self._drivers = [self.driver]

    def egmctl(self, *arguments: str, env: Mapping[str, str | None] | None = None, timeout_s: float = 240) -> Ended:
        environment = command_environment(self.variables() | dict(env or {}))
        done = SERVER.run(arguments, env=environment, cwd=ROOT, timeout_s=max(timeout_s, 240), little=True)
        assert "Traceback" not in done.stderr
        return Ended(done.returncode, done.stdout, done.stderr)

    def variables(self) -> dict[str, str | None]:
        return self.driver.environment() | {"EGMCTL_FAKE_COUNTERS": "1"}

    def work(self) -> Callable[[], bool]:
        self.driver.forget_calls()
        return lambda: bool(self.driver.calls("cuLaunchKernel"))

    @contextmanager
    def children(self) -> Iterator[None]:
        """Have children be forks of this process."""
        with _environment(self.driver.environment() | {"PYTHONPATH": str(ROOT)}), forked.children():
            yield

    @contextmanager
    def denying(self, gpu: Gpu) -> Iterator[dict[str, Any]]:
        """Return the environment of a node of the same memory whose driver finds the GPU's device node denied."""
        confined = self._make(with_access(self.machine, f"/dev/nvidia{minor(gpu)}", "EPERM"))
        self._drivers.append(confined)
        yield {"environment": confined.environment()}

    def has_channel(self) -> bool:
        return True

    def without_channel(self) -> Machine:
        return patched(self.machine, "driver", imex_channels=())

    def channel(self) -> AbstractContextManager[None]:
        return nullcontext()

    @contextmanager
    def no_process_left(self, *, more_mib: int = 0, wait_s: float = 0) -> Iterator[None]:
        del more_mib, wait_s
        for driver in self._drivers:
            driver.forget_calls()
        yield
        workers = {call.pid for driver in self._drivers for call in driver.calls("cuDevicePrimaryCtxRetain")}
        assert wait_until(lambda: not any(map(is_alive, workers)))

    def left_by_calls(self, dead: Sequence[int] | None) -> list[str]:
        left = [line for driver in self._drivers for line in driver.leaks()]
        if dead is None:
            return left
        others = [line for line in left if not any(line.startswith(f"process {pid}:") for pid in dead)]
        return [line for line in others if any(word in line for word in ("mapping", "allocation", "addresses"))]

    def used_memory_mib(self) -> list[int]:
        """Return nothing: each process of a fake node has books of its own."""
        return [0] * len(self.gpus)

    def free_bytes(self, numa_node: int) -> int:
        del numa_node
        return 0


class NodeOfGpus(Node):
    """This machine; every command is a process of its own."""

    is_fake = False
    settings = Settings(size_bytes=256 * MIB, copies=4, samples=2, timeout_s=30)
    large_bytes = 256 * MIB

    def __init__(self) -> None:
        self.machine = collect(SECTIONS)

    def egmctl(self, *arguments: str, env: Mapping[str, str | None] | None = None, timeout_s: float = 60) -> Ended:
        return ended(egmctl_words(*arguments), env=env, timeout_s=timeout_s)

    def variables(self) -> dict[str, str | None]:
        return {}

    def work(self) -> Callable[[], bool]:
        least_mib = max(used_memory_mib()) + BUFFERS_MIB
        return lambda: max(used_memory_mib()) >= least_mib

    def children(self) -> AbstractContextManager[None]:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return _environment({"PYTHONPATH": os.pathsep.join(paths)})

    @contextmanager
    def denying(self, gpu: Gpu) -> Iterator[dict[str, Any]]:
        _as_root()
        with denying_v2(minor(gpu)) as cgroup:
            directory = {"directory": str(cgroup.directory)}
            yield {"before": "tests.doctor.hooks:join_cgroup", "before_arguments": directory}

    def has_channel(self) -> bool:
        return CHANNELS.exists()

    def without_channel(self) -> Machine:
        if self.has_channel():
            pytest.skip("this node has IMEX channels")
        return self.machine

    def channel(self) -> AbstractContextManager[None]:
        _as_root()
        return channel_made()

    @contextmanager
    def no_process_left(self, *, more_mib: int = 0, wait_s: float = 0) -> Iterator[None]:
        """Expect that nvidia-smi shows the same memory as before, and no process."""
        before = used_memory_mib()
        yield
        given_back = wait_until(lambda: is_given_back(before, more_mib=more_mib), wait_s)
        assert given_back, (before, used_memory_mib(), compute_processes())

    def used_memory_mib(self) -> list[int]:
        return used_memory_mib()

    def free_bytes(self, numa_node: int) -> int:
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
