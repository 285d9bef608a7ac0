"""The platform in one line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from egmctl.model.machine import Fabric, Gpu, Machine, Platform, Reason, Unread
from egmctl.topology.platform import PlatformKind, platform
from tests.doctor.machines import patched
from tests.topology import builders
from tests.topology.builders import CLUSTER, NO_CLUSTER, gpu, grace, grace_gpu, hgx, out_of_sight


def test_single_node_single_gpu() -> None:
    verdict = platform(grace(1))
    assert verdict.kind is PlatformKind.SINGLE_GPU
    assert verdict.line == "EGM, single-node single-GPU: 1 NVIDIA GB200 on aarch64"


def test_single_node_multi_gpu() -> None:
    verdict = platform(grace(4))
    assert verdict.kind is PlatformKind.MULTI_GPU
    assert verdict.line == "EGM, single-node multi-GPU: 4 NVIDIA GB200 on aarch64"


def in_domain(**fabric: object) -> Machine:
    whole = {"state": "completed", "status": 0, "cluster_uuid": CLUSTER, "clique_id": 7} | fabric
    return builders.machine([grace_gpu(i, fabric=Fabric(**whole)) for i in range(2)], architecture="aarch64")  # type: ignore[arg-type]


def test_multi_node_nvlink_domain() -> None:
    verdict = platform(in_domain())
    assert (verdict.kind, verdict.clique_id) == (PlatformKind.MULTI_NODE, 7)
    assert verdict.line == "EGM, multi-node NVLink domain (clique 7): 2 NVIDIA GB200 on aarch64"


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


def test_clique_0_of_a_real_cluster_is_a_domain() -> None:
    assert platform(in_domain(clique_id=0)).kind is PlatformKind.MULTI_NODE


def test_x86_has_no_egm() -> None:
    verdict = platform(hgx(4))
    assert verdict.kind is PlatformKind.NO_EGM
    assert verdict.line == "no EGM: 4 NVIDIA H200 on x86_64, no NVLink-C2C"


def test_a_clear_bit_is_no_egm() -> None:
    line = platform(builders.machine([grace_gpu(0, egm=False)], architecture="aarch64")).line
    assert line == "no EGM: 1 NVIDIA GB200 on aarch64, the EGM capability bit is clear"


def test_an_old_nvml_leaves_it_unknown() -> None:
    def old(found: Gpu) -> Gpu:
        assert found.nvml is not None
        return replace(found, nvml=replace(found.nvml, unread={"capabilities": Unread(reason=Reason.DRIVER_TOO_OLD)}))

    machine = builders.machine([old(grace_gpu(i, egm=None)) for i in range(4)], architecture="aarch64")
    verdict = platform(machine)
    assert verdict.kind is PlatformKind.UNKNOWN
    assert verdict.line == "EGM unknown: 4 NVIDIA GB200 on aarch64, NVML is too old for nvmlDeviceGetCapabilities"


def test_some_gpus_without_egm_are_counted() -> None:
    machine = builders.machine([grace_gpu(0), grace_gpu(1, egm=False)], architecture="aarch64")
    assert platform(machine).line.endswith("2 NVIDIA GB200 on aarch64, EGM on 1 of 2 GPUs")


def test_a_denied_gpu_on_x86_changes_nothing() -> None:
    assert platform(builders.machine([gpu(0), out_of_sight(gpu(1))])).kind is PlatformKind.NO_EGM


def test_no_gpu() -> None:
    assert platform(builders.machine([])).line == "no EGM: no NVIDIA GPU"
