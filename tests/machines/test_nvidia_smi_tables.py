"""Tables that nvidia-smi printed: of a machine with eight H200, and of a DGX H100, whose model is judged as it says."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from egmctl.model.gpu import Gpu
from egmctl.model.host import Nic
from egmctl.model.machine import Machine
from egmctl.topology.links import device_link
from tests.doctor.machines import shipped
from tests.known import known
from tests.nvidia_smi import Table, parse

DATA = Path(__file__).resolve().parents[1] / "data" / "hgx-h200x8"
GPUS = [f"GPU{i}" for i in range(8)]


@pytest.mark.parametrize(("name", "symbol"), [("m", "NV18"), ("mp", "PHB"), ("p2p-r", "OK"), ("p2p-n", "OK")])
def test_recorded_tables(name: str, symbol: str) -> None:
    table = parse((DATA / f"nvidia-smi-topo-{name}.txt").read_text())
    assert table.labels == GPUS
    assert len(table.cells) == 64
    for (row, column), cell in table.cells.items():
        assert cell == ("X" if row == column else symbol)


def test_affinities() -> None:
    table = parse((DATA / "nvidia-smi-topo-m.txt").read_text())
    assert table.affinities == {gpu: ["0-127", "0", "N/A"] for gpu in GPUS}


def test_an_underlined_header_and_nics() -> None:
    printed = (
        "\t\x1b[4mGPU0\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
        "GPU0\t X \tPXB\t0-55,112-167\t0\t\tN/A\n"
        "NIC0\tPXB\t X \t\t\t\t\n"
        "\n"
        "Legend:\n"
    )
    table = parse(printed)
    assert table.cells == {
        ("GPU0", "GPU0"): "X",
        ("GPU0", "NIC0"): "PXB",
        ("NIC0", "GPU0"): "PXB",
        ("NIC0", "NIC0"): "X",
    }
    assert table.affinities == {"GPU0": ["0-55,112-167", "0", "N/A"], "NIC0": []}


# --- the model of a DGX H100 -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dgx() -> Machine:
    return shipped("dgx-h100")


@pytest.fixture(scope="module")
def printed() -> Table:
    """The published matrix."""
    lines = (Path(__file__).parent / "dgx-h100-topo-m.txt").read_text().splitlines()
    return parse("\n".join(line for line in lines if not line.startswith("#")))


def test_the_nics_are_in_nvidia_smis_order(dgx: Machine) -> None:
    assert [nic.name for nic in known(dgx.nics)] == [f"mlx5_{number}" for number in range(12)]


def test_every_cell(dgx: Machine, printed: Table) -> None:
    devices: dict[str, Gpu | Nic] = {f"GPU{gpu.index}": gpu for gpu in known(dgx.gpus)}
    devices |= {f"NIC{number}": nic for number, nic in enumerate(known(dgx.nics))}
    assert printed.labels == list(devices)
    wrong = [
        f"{row} {column}: {judged.symbol} ({judged.reason}), nvidia-smi printed {printed.cells[row, column]}"
        for row, column in itertools.permutations(devices, 2)
        if (judged := device_link(dgx, devices[row], devices[column])).symbol != printed.cells[row, column]
    ]
    assert wrong == []
    assert {*printed.cells.values()} >= {"NV18", "PIX", "PXB", "NODE", "SYS"}


def test_affinities_of_the_model(dgx: Machine, printed: Table) -> None:
    for gpu in known(dgx.gpus):
        nvml = known(gpu.nvml)
        cpus, numa, own = printed.affinities[f"GPU{gpu.index}"]
        assert (nvml.cpu_affinity, nvml.numa_affinity, nvml.numa_node is None) == (cpus, numa, own == "N/A")
