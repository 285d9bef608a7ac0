"""The platform in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

import egmctl.topology.platform as platform_module
from egmctl.files import read_toml
from egmctl.model.gpu import Fabric, Gpu, Platform
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from egmctl.topology.platform import PlatformKind, cpu_memory_rate, gpu_memory_rate, platform
from tests.doctor.machines import patched, shipped
from tests.topology import builders
from tests.topology.builders import CLUSTER, NO_CLUSTER, gpu, grace, grace_gpu, hgx, out_of_sight


def in_domain(**fabric: object) -> Machine:
    whole = {"state": "completed", "status": 0, "cluster_uuid": CLUSTER, "clique_id": 7} | fabric
    return builders.machine([grace_gpu(i, fabric=Fabric(**whole)) for i in range(2)], architecture="aarch64")  # type: ignore[arg-type]


def on_arm(*gpus: Gpu) -> Machine:
    return builders.machine(list(gpus), architecture="aarch64")


def too_old(index: int) -> Gpu:
    return patched(grace_gpu(index, egm=None), "nvml", unread={"capabilities": Unread(reason=Reason.DRIVER_TOO_OLD)})


LINES = {
    "EGM, single-node single-GPU: 1 NVIDIA GB200 on aarch64": (grace(1), PlatformKind.SINGLE_GPU),
    "EGM, single-node multi-GPU: 4 NVIDIA GB200 on aarch64": (grace(4), PlatformKind.MULTI_GPU),
    "EGM, multi-node NVLink domain (clique 7): 2 NVIDIA GB200 on aarch64": (in_domain(), PlatformKind.MULTI_NODE),
    # Clique 0 is no partition of the rack (Azure/azhpc-images, 506).
    "EGM, single-node multi-GPU: 2 NVIDIA GB200 on aarch64": (in_domain(clique_id=0), PlatformKind.MULTI_GPU),
    "no EGM: 4 NVIDIA H200 on x86_64, no NVLink-C2C": (hgx(4), PlatformKind.NO_EGM),
    "no EGM: 1 NVIDIA H200 and 1 GPU of unknown name on x86_64, no NVLink-C2C": (
        builders.machine([gpu(0), out_of_sight(gpu(1))]),
        PlatformKind.NO_EGM,
    ),
    "no EGM: 1 NVIDIA GB200 on aarch64, the EGM capability bit is clear": (
        on_arm(grace_gpu(0, egm=False)),
        PlatformKind.NO_EGM,
    ),
    "EGM unknown: 2 NVIDIA GB200 on aarch64, NVML is too old for nvmlDeviceGetCapabilities": (
        on_arm(too_old(0), too_old(1)),
        PlatformKind.UNKNOWN,
    ),
    "EGM, single-node multi-GPU: 2 NVIDIA GB200 on aarch64, EGM on 1 of 2 GPUs": (
        on_arm(grace_gpu(0), grace_gpu(1, egm=False)),
        PlatformKind.MULTI_GPU,
    ),
    "no EGM: no NVIDIA GPU": (builders.machine([]), PlatformKind.NO_EGM),
}


@pytest.mark.parametrize("line", LINES)
def test_each_platform_has_its_line(line: str) -> None:
    machine, kind = LINES[line]
    verdict = platform(machine)
    assert (verdict.line, verdict.kind) == (line, kind)


@pytest.mark.parametrize("fabric", [{"cluster_uuid": NO_CLUSTER}, {"cluster_uuid": None}, {"state": "in-progress"}])
def test_a_fabric_of_one_node_or_not_ready_is_no_domain(fabric: dict[str, object]) -> None:
    assert platform(in_domain(**fabric)).kind is PlatformKind.MULTI_GPU


def test_a_cluster_uuid_alone_makes_no_domain_of_boards_without_c2c() -> None:
    """HGX H100 boards show one too: https://github.com/meta-pytorch/torchcomms, issue 1315."""
    board = builders.machine([hopper(i) for i in range(2)], architecture="x86_64")
    assert platform(board).clique_id is None
    in_a_rack = patched(board, "gpus[*].nvml", platform=Platform(slot=24, tray=14))
    assert platform(in_a_rack).clique_id == 7


def hopper(index: int) -> Gpu:
    return gpu(index, fabric=Fabric(state="completed", status=0, cluster_uuid=CLUSTER, clique_id=7))


@pytest.mark.parametrize(
    ("model", "gib", "name", "rate"),
    [
        ("gh200", 478, None, 384),
        ("gh200", 117, "NVIDIA GH200 120GB", 512),
        ("gh200", 232, "NVIDIA GH200 144G HBM3e", 512),
        ("gh200", None, "NVIDIA GH200 120GB", 512),
        ("gh200", None, "NVIDIA GH200 144G HBM3e", None),
        ("gh200", 300, None, None),
        ("gh200", 117, "NVIDIA GB10", None),
        ("dgx-station-gb300", 478, None, 396),
        ("gb300-nvl72", 478, None, 384),
        ("hgx-h200x4", 478, None, None),
        ("vr-nvl72", 1500, None, 1200),
    ],
)
def test_the_rate_of_a_cpus_memory_is_that_of_its_module_and_capacity_or_unknown(
    model: str, gib: int | None, name: str | None, rate: float | None
) -> None:
    size = None if gib is None else gib << 30
    machine = patched(shipped(model), "host.numa_nodes[0]", memory_total_bytes=size)
    if name is not None:
        machine = patched(machine, "gpus[0].nvml", name=name)
    known = cpu_memory_rate(machine, 0)
    assert (known and known.gb_s) == rate


@pytest.mark.parametrize(
    ("model", "rate"),
    [("hgx-h200x4", 4800), ("dgx-h100", 3350), ("gh200", 4000), ("hgx-b200", 8000), ("gb200-tray", 8000)],
)
def test_the_rate_of_a_gpus_memory_is_that_of_its_product_or_unknown(model: str, rate: float) -> None:
    gpu = (shipped(model).gpus or ())[0]
    known = gpu_memory_rate(gpu)
    assert known is not None
    assert known.gb_s == rate
    assert gpu_memory_rate(patched(gpu, "nvml", name="NVIDIA RTX 0000")) is None


def test_a_product_without_a_name_is_known_by_its_pci_id() -> None:
    rubin = (shipped("vr-nvl72").gpus or ())[0]
    known = gpu_memory_rate(rubin)
    assert known is not None
    assert (known.name, known.gb_s) == ("HBM4", 22000)
    assert gpu_memory_rate(patched(rubin, "pci", device_id=0x2941)) is None


def test_every_published_rate_names_its_publication() -> None:
    tables = read_toml(Path(platform_module.__file__).with_name("published.toml").read_text(encoding="utf-8"))
    entries = [entry for part in tables.values() for entry in part]
    assert len(entries) > 10
    assert all("https://" in entry["source"] and entry["gb_s"] > 0 for entry in entries)
