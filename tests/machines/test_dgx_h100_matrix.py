"""egmctl judges the model of a DGX H100 as nvidia-smi printed the real one, cell by cell."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from egmctl.model.gpu import Gpu
from egmctl.model.host import Nic
from egmctl.model.machine import Machine
from egmctl.topology.links import device_link
from tests.doctor.machines import shipped

Device = Gpu | Nic


@pytest.fixture(scope="module")
def machine() -> Machine:
    return shipped("dgx-h100")


@pytest.fixture(scope="module")
def printed() -> dict[str, dict[str, str]]:
    """The published matrix: row, column, cell; the affinity columns too."""
    lines = [
        line.split("\t")
        for line in (Path(__file__).parent / "dgx-h100-topo-m.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    _, *columns = lines[0]
    return {row: dict(zip(columns, cells, strict=False)) for row, *cells in lines[1:]}


def devices(machine: Machine) -> dict[str, Device]:
    """GPUs and NICs under the names of nvidia-smi's rows."""
    return {
        **{f"GPU{gpu.index}": gpu for gpu in machine.gpus or ()},
        **{f"NIC{number}": nic for number, nic in enumerate(machine.nics or ())},
    }


def test_the_nics_are_in_nvidia_smis_order(machine: Machine) -> None:
    assert [nic.name for nic in machine.nics or ()] == [f"mlx5_{number}" for number in range(12)]


def test_every_cell(machine: Machine, printed: dict[str, dict[str, str]]) -> None:
    known = devices(machine)
    assert set(printed) == set(known)
    wrong = [
        f"{row} {column}: {judged.symbol} ({judged.reason}), nvidia-smi printed {printed[row][column]}"
        for row, column in itertools.permutations(known, 2)
        if (judged := device_link(machine, known[row], known[column])).symbol != printed[row][column]
    ]
    assert wrong == []
    assert {cell for row in printed.values() for cell in row.values()} >= {"NV18", "PIX", "PXB", "NODE", "SYS"}


def test_affinities(machine: Machine, printed: dict[str, dict[str, str]]) -> None:
    for gpu in machine.gpus or ():
        row = printed[f"GPU{gpu.index}"]
        assert gpu.nvml is not None
        assert gpu.nvml.cpu_affinity == row["CPU Affinity"]
        assert gpu.nvml.numa_affinity == row["NUMA Affinity"]
        assert (gpu.nvml.numa_node is None) == (row["GPU NUMA ID"] == "N/A")
