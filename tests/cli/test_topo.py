"""``egmctl topo`` as users run it: formats and exit codes."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from egmctl.facts import replay
from egmctl.model.machine import OriginKind
from tests.conftest import RunEgmctl
from tests.in_process import run
from tests.topology.builders import hgx


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A machine file as ``egmctl snapshot`` writes it."""
    path = tmp_path / "node7.json"
    path.write_text(replay.machine_text(hgx(2)))
    return path


def test_a_shipped_machine_as_text() -> None:
    done = run("topo", "--machine", "gb200-tray")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("MODEL of gb200-tray, built from public documentation")
    assert "NV18>C2C" in done.out


def test_a_recorded_machine_says_so_on_standard_error_only(recorded: Path) -> None:
    done = run("topo", "--machine", recorded)
    assert (done.code, done.err) == (0, "egmctl: replaying the recorded machine node7, not this node\n")
    assert "recorded" not in done.out
    assert run("topo", "--machine", recorded, "--quiet").err == ""


def test_json_and_csv_say_where_the_machine_came_from(recorded: Path) -> None:
    document = json.loads(run("topo", "--machine", recorded, "--json").out)
    assert (document["schema"], document["exit_code"]) == ("egmctl.topo/2", 0)
    assert (document["machine"]["kind"], document["machine"]["name"]) == ("recorded", "node7")
    rows = list(csv.DictReader(io.StringIO(run("topo", "--machine", recorded, "--csv").out)))
    assert {(row["origin"], row["machine"]) for row in rows} == {("recorded", "node7")}


@pytest.mark.parametrize("form", [("--json",), ("-m",), ("--csv",), ()])
@pytest.mark.parametrize(
    ("name", "code", "strict"), [("h200-links-down", 0, 1), ("gb200-outside-domain", 0, 1), ("hgx-h200x4", 0, 0)]
)
def test_the_exit_code_is_that_of_the_answer(form: tuple[str, ...], name: str, code: int, strict: int) -> None:
    assert run("topo", "--machine", name, *form).code == code
    assert run("topo", "--strict", *form, "--machine", name).code == strict


def test_gpus_and_numa_choose_rows_and_columns() -> None:
    out = run("topo", "--machine", "gb200-tray", "--gpus", "2,0", "--numa", "1", "--json").out
    result = json.loads(out)["result"]
    assert [gpu["label"] for gpu in result["gpu_states"]] == ["GPU2", "GPU0"]
    ends = [(state["bus_id"], 1) for state in result["gpu_states"]]
    assert [(route["gpu"], route["numa_node"]) for route in result["routes"]] == ends


def test_matrix_is_the_matrix_of_all_devices_their_routes_and_the_legend_alone() -> None:
    machine = ("--machine", "dgx-h100", "-q")
    whole, alone = run("topo", *machine).out, run("topo", "-m", *machine).out
    titles = ("P2P", "Notes", "Devices", "All GPU pairs", "╭")
    assert [title in whole for title in titles] == [True, False, False, True, True]
    assert not any(title in alone for title in titles)
    assert re.search(r"^NIC11 +(NODE|SYS)( +\S+){18} +X +- ", alone, re.M), "one line a device when piped"
    assert {"GPU0  PCIe        63.0  PCIe>SMP  <=63.0", "SYS   PCIe and the interconnect between NUMA nodes"} <= {
        *alone.splitlines()
    }
    assert run("topo", "-m", "--json", *machine).out == run("topo", "--json", *machine).out


def test_lines_and_bars_become_ascii_where_the_terminal_has_nothing_else(egmctl: RunEgmctl) -> None:
    done = egmctl("topo", "--machine", "gb200-tray", env={"PYTHONIOENCODING": "ascii"})
    assert done.out.isascii()
    assert ("\\u" in done.out, "+-+-----" in done.out, "  H NV18" in done.out) == (False, True, True)


def test_list_names_every_machine_and_its_origin() -> None:
    done = run("topo", "--machine", "list")
    assert (done.code, done.err) == (0, "")
    heads = [line.split() for line in done.out.splitlines() if not line.startswith(" ")]
    assert [name for name, *_ in heads] == replay.machine_names() + replay.sick()
    assert {origin for _, origin, *_ in heads} == {"modelled:", "recorded:"}
    assert run("doctor", "--machine", "list") == done
    document = json.loads(run("topo", "--machine", "list", "--json").out)
    assert [machine["name"] for machine in document["result"]["machines"]] == replay.machine_names() + replay.sick()


class TestWithoutDriver:
    """The sysroot has two NUMA nodes and nothing of NVIDIA's; the libraries are not libraries."""

    @pytest.fixture
    def bare(self, tmp_path: Path) -> dict[str, str | None]:
        nodes = tmp_path / "sys/devices/system/node"
        for number, cpus in ((0, "0-3"), (1, "4-7")):
            node = nodes / f"node{number}"
            node.mkdir(parents=True)
            (node / "cpulist").write_text(f"{cpus}\n")
            (node / "meminfo").write_text(f"Node {number} MemTotal: 1048576 kB\nNode {number} MemFree: 1 kB\n")
            (node / "distance").write_text("10 20\n")
        for name in ("online", "has_memory", "has_cpu"):
            (nodes / name).write_text("0-1\n")
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            (tmp_path / name).write_text("found before a real one, and useless")
        return {"EGMCTL_SYSROOT": str(tmp_path), "LD_LIBRARY_PATH": str(tmp_path)}

    def test_it_helps_and_ends_with_3(self, egmctl: RunEgmctl, bare: dict[str, str | None]) -> None:
        done = egmctl("topo", env=bare)
        assert done.code == 3
        assert done.out.startswith("NOT DETERMINED: there is no NVIDIA GPU on this machine\n")
        assert "NUMA 1  cpu, CPUs 4-7, 1 GiB\n" in done.out
        assert "egmctl topo --machine list" in done.out

    def test_json_and_csv_say_the_same(self, egmctl: RunEgmctl, bare: dict[str, str | None]) -> None:
        done = egmctl("topo", "--json", env=bare)
        document = json.loads(done.out)
        assert (done.code, document["exit_code"]) == (3, 3)
        error = {"code": "nothing", "message": "There is no NVIDIA GPU on this machine.", "details": {}}
        assert document["errors"] == [error]
        assert (document["result"]["numa_nodes"], document["machine"]["kind"]) == ([0, 1], OriginKind.LIVE)
        done = egmctl("topo", "--csv", env=bare)
        assert (done.code, done.out.count("\n"), done.err) == (3, 1, f"egmctl: {error['message']}\n")

    def test_asking_for_a_gpu_is_bad_input(self, egmctl: RunEgmctl, bare: dict[str, str | None]) -> None:
        done = egmctl("topo", "--gpus", "0", env=bare)
        assert (done.code, done.err) == (2, "egmctl: --gpus '0': there is no GPU 0; there is no GPU here\n")
