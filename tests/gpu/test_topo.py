"""``egmctl topo`` on a real node: as nvidia-smi says it, the same again from a recording, and quick."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunEgmctl
from tests.nvidia_smi import Table, parse

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def live(egmctl: RunEgmctl) -> dict[str, Any]:
    """The result of ``egmctl topo --json``."""
    done = egmctl("topo", "--json")
    assert done.code == 0, done.err
    result: dict[str, Any] = json.loads(done.out)["result"]
    return result


def nvidia_smi(*arguments: str) -> Table:
    done = subprocess.run(["nvidia-smi", "topo", *arguments], capture_output=True, text=True, check=True, timeout=60)
    return parse(done.stdout)


def test_every_cell_of_the_matrix_is_nvidia_smis(live: dict[str, Any]) -> None:
    """Where no NVLink joins two devices, nvidia-smi prints SYS for NODE on some drivers and on Grace."""
    printed = nvidia_smi("-m")
    ours = {}
    for link in live["links"]:
        ours[link["source"], link["target"]] = ours[link["target"], link["source"]] = link["symbol"]
    assert set(ours) == {ends for ends in printed.cells if ends[0] != ends[1]}
    different = {
        ends: (ours[ends], cell) for ends, cell in printed.cells.items() if ends[0] != ends[1] and ours[ends] != cell
    }
    nics = {ends for ends in different if "NIC" in "".join(ends) and set(different[ends]) == {"NODE", "SYS"}}
    print(f"{len(printed.cells)} cells compared; NODE here and SYS in nvidia-smi: {len(nics)}")  # noqa: T201
    assert {ends: cells for ends, cells in different.items() if ends not in nics} == {}


def test_the_matrix_without_nvlink(live: dict[str, Any]) -> None:
    printed = nvidia_smi("-mp")
    gpus = [link for link in live["links"] if link["target"].startswith("GPU")]
    assert {(link["source"], link["target"]): link["pci"] for link in gpus} == {
        (link["source"], link["target"]): printed.cells[link["source"], link["target"]] for link in gpus
    }


def test_affinities(live: dict[str, Any]) -> None:
    printed = nvidia_smi("-m").affinities
    for gpu in live["machines"][0]["gpus"]:
        nvml = gpu["nvml"]
        numa_id = "N/A" if nvml["numa_node"] is None else str(nvml["numa_node"])
        assert [nvml["cpu_affinity"], nvml["numa_affinity"], numa_id] == printed[f"GPU{gpu['index']}"]


@pytest.mark.parametrize(
    ("option", "index"), [("r", "read"), ("w", "write"), ("n", "nvlink"), ("a", "atomics"), ("p", "pci")]
)
def test_every_p2p_status_is_nvidia_smis(live: dict[str, Any], option: str, index: str) -> None:
    printed = nvidia_smi("-p2p", option)
    machine = live["machines"][0]
    labels = {gpu["bus_id"]: f"GPU{gpu['index']}" for gpu in machine["gpus"]}
    ours = {
        (labels[pair["source"]], labels[pair["target"]]): pair["p2p_status"][index]
        for pair in machine["pairs"]
        if pair["p2p_status"] is not None
    }
    assert ours == {ends: cell for ends, cell in printed.cells.items() if ends[0] != ends[1]}


def test_the_text_of_a_recording_is_the_live_text(egmctl: RunEgmctl, tmp_path: Path) -> None:
    recording = tmp_path / "node.json"
    assert egmctl("snapshot", "-o", recording).code == 0
    live, replayed = egmctl("topo"), egmctl("topo", "--machine", recording)
    assert (live.code, replayed.code) == (0, 0)
    assert live.out == replayed.out
    assert replayed.err == "egmctl: replaying the recorded machine node, not this node\n"


def test_it_takes_at_most_06_s_more_than_starting_the_libraries(egmctl: RunEgmctl) -> None:
    bare = "import pynvml; pynvml.nvmlInit(); from cuda.bindings import driver; driver.cuInit(0)"

    def libraries() -> None:
        subprocess.run([sys.executable, "-c", bare], check=True, timeout=60)

    def topo() -> None:
        assert egmctl("topo").code == 0

    least_bare, least_topo = quickest(libraries), quickest(topo)
    print(f"cuInit + nvmlInit {least_bare:.2f} s, egmctl topo {least_topo:.2f} s")  # noqa: T201
    assert least_topo <= least_bare + 0.6


def quickest(run: Callable[[], None]) -> float:
    """Return the seconds of the quickest of five runs."""
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
