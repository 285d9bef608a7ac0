"""``bench --suite egm_shared`` on real GPUs: verified, as fast as within one process, nothing left."""

from __future__ import annotations

import json
from typing import Any

import pytest

from egmctl.bench.engines.life_cycle import STAGES
from tests.conftest import RunEgmctl
from tests.gpu.test_bench import used_memory_mib
from tests.gpu.test_ipc import of, wrong

pytestmark = pytest.mark.gpu

ALONE = tuple(f"egm_shared_{way}_{by}" for way in ("read", "write") for by in ("ce", "sm"))
AT_ONCE = tuple(name.replace("shared", "shared_all") for name in ALONE)
LIVES_LEFT = 8
"""MiB that a GPU may have in use more than before: the driver's own."""


def measured(egmctl: RunEgmctl, *arguments: str) -> dict[str, Any]:
    """Return the result of a run that measures and leaves nothing."""
    before = used_memory_mib()
    ended = egmctl("bench", "--no-verdict", "--json", *arguments, timeout_s=300)
    result: dict[str, Any] = json.loads(ended.out)["result"]
    assert ended.code == (3 if any(m["status"] == "waived" for m in result["measurements"]) else 0), wrong(result)
    assert result["problems"] == []
    assert all(now <= then + LIVES_LEFT for now, then in zip(used_memory_mib(), before, strict=True))
    return result


def check(result: dict[str, Any], name: str) -> None:
    """Expect that every byte of a case was verified, at the speed of one process (host paths drift by up to 4 %)."""
    for m in of(result, name):
        assert m["status"] in ("ok", "unstable"), m
        assert m["verification"] == "gpu-every-sample"
        assert m["bandwidth_gb_s"]["median"] == pytest.approx(m["in_process"], rel=0.15), (name, m["in_process"])


def test_one_gpu_imports_what_a_process_beside_it_exports(egmctl: RunEgmctl) -> None:
    result = measured(egmctl, "--suite", "egm_shared", "--gpus", "0")
    assert [rank["label"] for rank in result["ranks"]] == ["GPU0", "GPU0"]
    for name in ALONE:
        assert of(result, name)
        check(result, name)
    for life in of(result, "egm_shared_life_cycle"):
        assert [stage["name"] for stage in life["stages"]] == list(STAGES)


@pytest.mark.usefixtures("gpus")
def test_two_gpus_share_one_allocation_alone_and_at_once(egmctl: RunEgmctl) -> None:
    result = measured(egmctl, "--suite", "egm_shared", "--gpus", "0-1")
    nodes = len(result["numa_nodes"])
    for name in (*ALONE, *AT_ONCE):
        assert len(of(result, name)) == nodes * (1 if name in AT_ONCE else 2)
    for name in ALONE:
        check(result, name)
    for name in AT_ONCE:
        for m in of(result, name):
            assert m["status"] in ("ok", "unstable"), m
            assert len(m["flows_gb_s"]) == 2


def test_a_sweep_of_egm_up_to_eight_gib_measures_every_size_that_fits(egmctl: RunEgmctl) -> None:
    cases = ("--case", "host_numa_to_device_memcpy_??", "--case", "host_numa_read_sm")
    result = measured(egmctl, "--sweep", "size", "--size", "8G", "--samples", "2", "--gpus", "0", *cases)
    for m in result["measurements"]:
        assert m["status"] in ("ok", "unstable") or m["waivers"][0]["kind"] == "no-room", m
