"""The modelled machines are what their sources say, and say what they are."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from egmctl.facts import replay
from egmctl.model.gpu import Gpu
from egmctl.model.host import NumaKind
from egmctl.model.machine import Machine, OriginKind
from egmctl.model.record import Reason
from egmctl.units import parse_kernel_list
from tests.doctor.machines import shipped
from tests.invariants import broken_invariants

ROOT = Path(__file__).resolve().parents[2]
MODELLED = ("dgx-h100", "gb200-tray", "gb200-nvl72", "gh200", "gh200x4")
GRACE = tuple(name for name in MODELLED if name != "dgx-h100")
DERIVED = ("gb300-nvl72", "gb200-nvl72-cdmm", "gh200x2", "dgx-station-gb300", "hgx-b200")
"""Another model with what is known to differ (tools/machine_models/derived.py)."""


@pytest.fixture(params=replay.names())
def machine(request: pytest.FixtureRequest) -> Machine:
    """Every machine that ships, recorded or modelled."""
    return shipped(request.param)


@pytest.fixture(params=GRACE)
def grace(request: pytest.FixtureRequest) -> Machine:
    """Every modelled Grace machine."""
    return shipped(request.param)


def gpus(machine: Machine) -> tuple[Gpu, ...]:
    assert machine.gpus is not None
    return machine.gpus


def generate(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run the generator of a checkout."""
    return subprocess.run(
        [sys.executable, str(root / "tools" / "model_machines.py"), *arguments],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


@pytest.mark.processes
def test_the_files_are_what_the_generator_writes() -> None:
    done = generate("--check")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.processes
def test_an_edited_file_is_found_and_written_anew(tmp_path: Path) -> None:
    # The package finds the profiles beside itself, so all three are copied.
    for folder in ("egmctl", "tools", "profiles"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "profiles" / "machines" / "gh200.json"
    written = file.read_text()
    file.write_text(written.replace("Neoverse-V2", "Neoverse-V9"))

    checked = generate("--check", root=tmp_path)
    assert checked.returncode == 1
    assert "gh200.json" in checked.stderr
    assert "dgx-h100" not in checked.stderr

    assert generate(root=tmp_path).returncode == 0
    assert json.loads(file.read_text()) == json.loads(written)


def test_all_are_there_and_say_that_they_are_models() -> None:
    assert {*MODELLED, *DERIVED} <= set(replay.names())
    for name in (*MODELLED, *DERIVED):
        origin = shipped(name).origin
        assert origin.kind is OriginKind.MODELLED
        assert origin.name == name
        assert origin.description
        assert origin.sources
        assert all("https://" in source for source in origin.sources)


def test_no_model_names_a_real_part() -> None:
    for name in (*MODELLED, *DERIVED):
        for gpu in gpus(shipped(name)):
            assert gpu.uuid is None
            assert gpu.nvml is not None
            assert gpu.nvml.serial is None


@pytest.mark.parametrize("name", [*MODELLED, *DERIVED])
def test_every_null_has_its_reason(name: str) -> None:
    # A recorded machine lacks the fields that were added after its day, and their reasons.
    assert broken_invariants(shipped(name)) == []


def test_pairs_are_complete_and_agree_both_ways(machine: Machine) -> None:
    bus_ids = [gpu.bus_id for gpu in gpus(machine)]
    assert machine.pairs is not None
    assert [(p.source, p.target) for p in machine.pairs] == list(itertools.permutations(bus_ids, 2))
    for pair in machine.pairs:
        back = machine.pair(pair.target, pair.source)
        assert back is not None
        assert (pair.nvlink_count, pair.nvlink_through) == (back.nvlink_count, back.nvlink_through)
        assert (pair.common_ancestor, pair.can_access_peer) == (back.common_ancestor, back.can_access_peer)


def test_nvlinks_and_pairs_count_the_same(machine: Machine) -> None:
    for pair in machine.pairs or ():
        source = machine.gpu(pair.source).nvml
        assert source is not None
        links = [link for link in source.nvlinks or () if link.active]
        to_target = [link for link in links if link.remote_type == "switch" or link.remote_bus_id == pair.target]
        assert pair.nvlink_count == len(to_target)


def test_numa_nodes_are_of_their_kind(machine: Machine) -> None:
    assert machine.host is not None
    for node in machine.host.numa_nodes or ():
        has_cpus = bool(parse_kernel_list(node.cpus))
        assert has_cpus == (node.kind in (NumaKind.CPU, NumaKind.CPU_ONLY))
        if node.memory_total_bytes is not None:
            assert (node.memory_total_bytes > 0) == (node.kind in (NumaKind.CPU, NumaKind.MEMORY_ONLY))


def test_every_gpu_sits_on_a_cpu_node(machine: Machine) -> None:
    assert machine.host is not None
    nodes = {node.id: node for node in machine.host.numa_nodes or ()}
    for gpu in gpus(machine):
        assert gpu.nvml is not None
        assert gpu.host_numa_id is not None
        node = nodes[gpu.host_numa_id]
        assert node.kind is NumaKind.CPU
        assert gpu.nvml.cpu_affinity == node.cpus
        if gpu.nvml.numa_node is not None:
            assert nodes[gpu.nvml.numa_node].kind is NumaKind.MEMORY_ONLY


def test_every_cpu_node_of_a_grace_machine_has_an_owner(grace: Machine) -> None:
    assert grace.host is not None
    cpu_nodes = [node.id for node in grace.host.numa_nodes or () if node.kind is NumaKind.CPU]
    assert {gpu.host_numa_id for gpu in gpus(grace)} == set(cpu_nodes)


def test_cuda_and_nvml_agree_on_a_grace_machine(grace: Machine) -> None:
    for gpu in gpus(grace):
        assert gpu.nvml is not None
        assert gpu.cuda is not None
        assert gpu.proc is not None
        assert gpu.cuda.attributes["NUMA_ID"] == gpu.nvml.numa_node == gpu.proc.numa_node
        assert gpu.nvml.compute_capability == (
            gpu.cuda.attributes["COMPUTE_CAPABILITY_MAJOR"],
            gpu.cuda.attributes["COMPUTE_CAPABILITY_MINOR"],
        )


def test_a_grace_machine_has_what_a_bench_needs(grace: Machine) -> None:
    for gpu in gpus(grace):
        assert gpu.nvml is not None
        assert gpu.cuda is not None
        assert gpu.nvml.egm_capable
        assert gpu.nvml.c2c_enabled
        assert gpu.nvml.memory_total_bytes
        for name in (
            "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
            "HOST_NUMA_MEMORY_POOLS_SUPPORTED",
            "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
            "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
        ):
            assert gpu.cuda.attributes[name] == 1
    assert all(pair.can_access_peer for pair in grace.pairs or ())


def test_gh200_nodes_are_those_of_numactl() -> None:
    host = shipped("gh200").host
    assert host is not None
    assert host.numa_nodes is not None
    assert host.page_size_bytes == 64 << 10
    kinds = [node.kind for node in host.numa_nodes]
    assert kinds == [NumaKind.CPU, NumaKind.MEMORY_ONLY, *[NumaKind.EMPTY] * 7]
    assert host.numa_nodes[0].distances == (10, *[80] * 8)
    assert host.numa_nodes[1].distances == (80, 10, *[255] * 7)


@pytest.mark.parametrize(
    ("name", "nodes", "own", "host_nodes", "nvlinks", "through"),
    [
        ("gh200x4", 36, [4, 12, 20, 28], [0, 1, 2, 3], 6, "direct"),
        ("gb200-tray", 34, [2, 10, 18, 26], [0, 0, 1, 1], 18, "switch"),
        ("gb200-nvl72", 34, [2, 10, 18, 26], [0, 0, 1, 1], 18, "switch"),
    ],
)
def test_four_gpu_machines_are_those_of_nvidia_smi(
    name: str, nodes: int, own: list[int], host_nodes: list[int], nvlinks: int, through: str
) -> None:
    machine = shipped(name)
    assert machine.host is not None
    assert len(machine.host.numa_nodes or ()) == nodes
    assert [gpu.nvml and gpu.nvml.numa_node for gpu in gpus(machine)] == own
    assert [gpu.host_numa_id for gpu in gpus(machine)] == host_nodes
    assert {(p.nvlink_count, p.nvlink_through) for p in machine.pairs or ()} == {(nvlinks, through)}


def test_only_the_rack_tray_is_in_an_nvlink_domain() -> None:
    for name in GRACE:
        machine = shipped(name)
        assert machine.driver is not None
        fabrics = [gpu.nvml.fabric for gpu in gpus(machine) if gpu.nvml]
        if name == "gb200-nvl72":
            assert all(f is not None and f.state == "completed" and f.clique_id is not None for f in fabrics)
            assert [node.path for node in machine.driver.imex_channels or ()] == [
                "/dev/nvidia-caps-imex-channels/channel0"
            ]
        else:
            assert fabrics == [None] * len(fabrics)


def test_what_the_part_does_not_have_is_not_supported_rather_than_not_stated() -> None:
    for gpu in gpus(shipped("dgx-h100")):
        assert gpu.nvml is not None
        assert gpu.nvml.unread["c2c_links"].reason is Reason.NOT_SUPPORTED
        assert gpu.nvml.unread["numa_node"].reason is Reason.NOT_SUPPORTED


def test_what_a_derived_model_is_another_one_says() -> None:
    names = {name: {gpu.nvml.name for gpu in gpus(shipped(name)) if gpu.nvml} for name in DERIVED}
    assert names == {
        "gb300-nvl72": {"NVIDIA GB300"},
        "gb200-nvl72-cdmm": {"NVIDIA GB200"},
        "gh200x2": {"NVIDIA GH200 120GB"},
        "dgx-station-gb300": {"NVIDIA GB300", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"},
        "hgx-b200": {"NVIDIA B200"},
    }
    assert all(gpu.nvml and gpu.nvml.numa_node is None for gpu in gpus(shipped("gb200-nvl72-cdmm")))
    assert not any(pair.can_access_peer for pair in shipped("gh200x2").pairs or ())
    assert [gpu.nvml.egm_capable for gpu in gpus(shipped("dgx-station-gb300")) if gpu.nvml] == [True, False]
    assert shipped("hgx-b200").switches == ()
