"""The reader of nvidia-smi's tables, on what a machine with eight H200 printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nvidia_smi import parse

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
