"""The modelled machines are what their sources say, and say what they are."""

from __future__ import annotations

import itertools

import pytest

from egmctl.facts import replay
from egmctl.model.gpu import Gpu, GpuNvml
from egmctl.model.host import NumaKind, NumaNode
from egmctl.model.machine import Machine, OriginKind
from egmctl.model.record import Reason
from egmctl.topology.links import pcie_hop
from egmctl.topology.topology import narrow_pcie
from egmctl.units import parse_kernel_list
from tests.doctor.machines import patched, shipped
from tests.invariants import broken_invariants
from tests.known import known

MODELLED = ("dgx-h100", "gb200-tray", "gb200-nvl72", "gh200", "gh200x4", "vr-nvl72")
GRACE = MODELLED[1:-1]
DERIVED = ("gb300-nvl72", "gb200-nvl72-cdmm", "gh200x2", "dgx-station-gb300", "hgx-b200")
"""Another model with what is known to differ (test_derived.py)."""


@pytest.fixture(params=replay.machine_names())
def machine(request: pytest.FixtureRequest) -> Machine:
    """Every machine that ships, recorded or modelled."""
    return shipped(request.param)


@pytest.fixture(params=GRACE)
def grace(request: pytest.FixtureRequest) -> Machine:
    """Every modelled Grace machine."""
    return shipped(request.param)


def gpus(machine: Machine) -> tuple[Gpu, ...]:
    return known(machine.gpus)


def nvml(machine: Machine) -> list[GpuNvml]:
    return [known(gpu.nvml) for gpu in gpus(machine)]


def numa_nodes(machine: Machine) -> tuple[NumaNode, ...]:
    return known(machine.host).numa_nodes or ()


def test_all_are_there_and_say_that_they_are_models() -> None:
    assert {*MODELLED, *DERIVED} <= set(replay.machine_names())
    for name in (*MODELLED, *DERIVED):
        origin = shipped(name).origin
        assert (origin.kind, origin.name) == (OriginKind.MODELLED, name)
        assert origin.description
        assert origin.sources
        assert all("https://" in source for source in origin.sources)


def test_no_model_names_a_real_part() -> None:
    for name in (*MODELLED, *DERIVED):
        assert all(gpu.uuid is None and known(gpu.nvml).serial is None for gpu in gpus(shipped(name)))


@pytest.mark.parametrize("name", [*MODELLED, *DERIVED])
def test_every_null_has_its_reason(name: str) -> None:
    # A recorded machine lacks the fields that were added after its day, and their reasons.
    assert broken_invariants(shipped(name)) == []


def test_pairs_are_complete_and_agree_both_ways(machine: Machine) -> None:
    bus_ids = [gpu.bus_id for gpu in gpus(machine)]
    if machine.origin.name == "vr-nvl72":
        assert known(machine.sections["pairs"].unread).reason is Reason.NOT_STATED
        return
    pairs = known(machine.pairs)
    assert [(p.source, p.target) for p in pairs] == list(itertools.permutations(bus_ids, 2))
    for pair in pairs:
        back = known(machine.pair(pair.target, pair.source))
        for field in ("nvlink_count", "nvlink_through", "common_ancestor", "can_access_peer"):
            assert getattr(pair, field) == getattr(back, field)


def test_nvlinks_and_pairs_count_the_same(machine: Machine) -> None:
    for pair in machine.pairs or ():
        links = [link for link in known(machine.gpu(pair.source).nvml).nvlinks or () if link.active]
        to_target = [link for link in links if link.remote_type == "switch" or link.remote_bus_id == pair.target]
        assert pair.nvlink_count == len(to_target)


def test_numa_nodes_are_of_their_kind(machine: Machine) -> None:
    for node in numa_nodes(machine):
        assert bool(parse_kernel_list(node.cpus)) == (node.kind in (NumaKind.CPU, NumaKind.CPU_ONLY))
        if node.memory_total_bytes is not None:
            assert (node.memory_total_bytes > 0) == (node.kind in (NumaKind.CPU, NumaKind.MEMORY_ONLY))


def test_every_gpu_sits_on_a_cpu_node(machine: Machine) -> None:
    nodes = {node.id: node for node in numa_nodes(machine)}
    for gpu, said in zip(gpus(machine), nvml(machine), strict=True):
        node = nodes[known(gpu.host_numa_id)]
        assert (node.kind, node.cpus) == (NumaKind.CPU, said.cpu_affinity)
        assert said.numa_node is None or nodes[said.numa_node].kind is NumaKind.MEMORY_ONLY


def test_every_cpu_node_of_a_grace_machine_has_an_owner(grace: Machine) -> None:
    cpu_nodes = {node.id for node in numa_nodes(grace) if node.kind is NumaKind.CPU}
    assert {gpu.host_numa_id for gpu in gpus(grace)} == cpu_nodes


def test_a_grace_machine_has_what_a_bench_needs_and_its_sources_agree(grace: Machine) -> None:
    needed = (
        "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
        "HOST_NUMA_MEMORY_POOLS_SUPPORTED",
        "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
        "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
    )
    for gpu, said in zip(gpus(grace), nvml(grace), strict=True):
        attributes = known(gpu.cuda).attributes
        assert said.egm_capable
        assert said.c2c_enabled
        assert said.memory_total_bytes
        assert [attributes[name] for name in needed] == [1] * len(needed)
        assert attributes["NUMA_ID"] == said.numa_node == known(gpu.proc).numa_node
        assert said.compute_capability == tuple(attributes[f"COMPUTE_CAPABILITY_{part}"] for part in ("MAJOR", "MINOR"))
    assert all(pair.can_access_peer for pair in grace.pairs or ())


def test_gh200_nodes_are_those_of_numactl() -> None:
    nodes = numa_nodes(shipped("gh200"))
    assert known(shipped("gh200").host).page_size_bytes == 64 << 10
    assert [node.kind for node in nodes] == [NumaKind.CPU, NumaKind.MEMORY_ONLY, *[NumaKind.EMPTY] * 7]
    assert nodes[0].distances == (10, *[80] * 8)
    assert nodes[1].distances == (80, 10, *[255] * 7)


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
    assert len(numa_nodes(machine)) == nodes
    assert [said.numa_node for said in nvml(machine)] == own
    assert [gpu.host_numa_id for gpu in gpus(machine)] == host_nodes
    assert {(p.nvlink_count, p.nvlink_through) for p in machine.pairs or ()} == {(nvlinks, through)}


def test_only_the_rack_tray_is_in_an_nvlink_domain() -> None:
    for name in GRACE:
        fabrics = [said.fabric for said in nvml(shipped(name))]
        if name == "gb200-nvl72":
            assert all(f is not None and f.state == "completed" and f.clique_id is not None for f in fabrics)
            (channel,) = known(known(shipped(name).driver).imex_channels)
            assert channel.path == "/dev/nvidia-caps-imex-channels/channel0"
        else:
            assert fabrics == [None] * len(fabrics)


def test_what_the_part_does_not_have_is_not_supported_rather_than_not_stated() -> None:
    for said in nvml(shipped("dgx-h100")):
        assert said.unread["c2c_links"].reason is said.unread["numa_node"].reason is Reason.NOT_SUPPORTED


def test_a_vera_rubin_tray_states_no_nvlinks_and_an_idle_link_of_few_lanes_is_no_fault() -> None:
    tray = shipped("vr-nvl72")
    for gpu, said in zip(gpus(tray), nvml(tray), strict=True):
        assert {said.unread[name].reason for name in ("nvlinks", "nvlink_count", "c2c_links")} == {Reason.NOT_STATED}
        assert said.unread["power_profiles"].reason is Reason.NOT_SUPPORTED
        assert (known(said.link).width, narrow_pcie(gpu)) == (2, "")
        assert pcie_hop(gpu).nominal_gb_s == pytest.approx(64 * 16 / 8 * 242 / 256)
        assert len(known(known(said.fabric).cliques)) == 4
    slower = patched(tray, "gpus[*].nvml.link", speed_gt_s=32.0)
    assert {narrow_pcie(gpu) for gpu in gpus(slower)} == {"PCIe x2 of x16"}


def test_what_a_derived_model_is_another_one_says() -> None:
    assert {name: {said.name for said in nvml(shipped(name))} for name in DERIVED} == {
        "gb300-nvl72": {"NVIDIA GB300"},
        "gb200-nvl72-cdmm": {"NVIDIA GB200"},
        "gh200x2": {"NVIDIA GH200 120GB"},
        "dgx-station-gb300": {"NVIDIA GB300", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"},
        "hgx-b200": {"NVIDIA B200"},
    }
    assert {said.numa_node for said in nvml(shipped("gb200-nvl72-cdmm"))} == {None}
    assert not any(pair.can_access_peer for pair in shipped("gh200x2").pairs or ())
    assert [said.egm_capable for said in nvml(shipped("dgx-station-gb300"))] == [True, False]
    assert shipped("hgx-b200").switches == ()
