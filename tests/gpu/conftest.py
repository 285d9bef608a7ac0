"""On GPUs every command is a process of its own, started as a user starts it, by whatever Python is there.

What holds on fake nodes too has the fixture ``node``, and runs on both.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from egmctl.facts.collect import collect
from egmctl.facts.host import node_memory_free
from egmctl.facts.root import Root
from egmctl.model.gpu import Gpu
from tests.conftest import ROOT, Ended, RunEgmctl, ended
from tests.doctor.real_node import hgx_node, without_driver
from tests.gpu.guarded import GuardedFakes, GuardedGpus, GuardedNode
from tests.gpu.imex import channel_made
from tests.gpu.node import Node, NodeOfFakes, NodeOfGpus


@pytest.fixture(scope="session")
def egmctl() -> RunEgmctl:
    """Run ``egmctl``; the keywords are those of the fixture that it stands in for."""

    def run(
        *arguments: str | Path, env: Mapping[str, str | None] | None = None, cwd: Path = ROOT, timeout_s: float = 60
    ) -> Ended:
        return ended([sys.executable, "-m", "egmctl", *map(str, arguments)], env=env, cwd=cwd, timeout_s=timeout_s)

    return run


FAKE = {
    "node": [pytest.mark.processes],
    "guarded": [pytest.mark.processes, pytest.mark.needs("mount", "cc"), without_driver],
}
"""The fixtures for nodes of both kinds, and the marks of what is fake."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have tests of ``node`` and ``guarded`` run on a fake node and on GPUs; those marked ``gpu`` on GPUs alone."""
    gpus = pytest.param("gpus", marks=pytest.mark.gpu)
    on_gpus_alone = metafunc.definition.get_closest_marker("gpu") is not None
    for name, marks in FAKE.items():
        if name in metafunc.fixturenames:
            fake = pytest.param("fake", marks=marks)
            metafunc.parametrize(name, [gpus] if on_gpus_alone else [fake, gpus], indirect=True, scope="module")


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest) -> Node:
    """Return a fake node in `make test`, and this machine with its GPUs in `make test-gpu`."""
    if request.param == "gpus":
        return NodeOfGpus()
    return NodeOfFakes(request.getfixturevalue("fake_node"))


@pytest.fixture(scope="module")
def guarded(request: pytest.FixtureRequest) -> Iterator[GuardedNode]:
    """Yield a node with the kernel's own device nodes and cgroups, which only root can make."""
    if request.param == "gpus":
        yield GuardedGpus()
        return
    with hgx_node() as node:
        yield GuardedFakes(node)


@pytest.fixture(scope="module")
def two_gpus(node: Node) -> None:
    """Skip the test on a node with fewer GPUs."""
    if len(node.gpus) < 2:
        pytest.skip("needs two GPUs")


@pytest.fixture
def imex_channel() -> Iterator[None]:
    """Have IMEX channel 0 on this machine."""
    with channel_made():
        yield


@pytest.fixture(scope="session")
def gpus() -> tuple[Gpu, ...]:
    """Return the node's GPUs, two or more."""
    found = collect(("gpus",)).gpus or ()
    if len(found) < 2:
        pytest.skip("needs two GPUs")
    return found


ROOM_GIB = 8
"""What must be free on NUMA node 0 so that the plan waives nothing: each of two ranks may take half of its share."""
USE_MEMORY = """
import mmap, sys
held = []
for _ in range(4 * int(sys.argv[1])):
    held.append(mmap.mmap(-1, 256 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    for offset in range(0, 256 << 20, mmap.PAGESIZE):
        held[-1][offset] = 1
"""
"""Take so many GiB, write each page, and end."""


@pytest.fixture(scope="module")
def room() -> None:
    """Have memory free on the node: a virtual machine may get its memory as it is used, and plans go by MemFree."""
    if node_memory_free(Root(), 0) < ROOM_GIB << 30:
        subprocess.run([sys.executable, "-c", USE_MEMORY, str(ROOM_GIB)], check=True, timeout=120)
    free_bytes = node_memory_free(Root(), 0)
    if free_bytes < ROOM_GIB << 30:
        pytest.skip(f"NUMA node 0 has {free_bytes >> 20} MiB free, and the ranks need {ROOM_GIB} GiB")
