"""``egmctl watch`` beside real traffic: its rates are those that the traffic counts itself."""

from __future__ import annotations

import json
import statistics

import pytest

from egmctl.facts.collect import collect
from egmctl.model.gpu import Gpu
from tests.conftest import RunEgmctl
from tests.gpu.traffic import copying

pytestmark = pytest.mark.gpu

SAMPLES = 5


def watched(egmctl: RunEgmctl, kind: str, *, to_host: bool) -> tuple[float, float, float]:
    """Return what a link of the first GPU sends by ``watch`` and by the traffic itself, and its rate, in GB/s."""
    with copying(to_host=to_host, seconds=20) as counted_gb_s:
        done = egmctl("watch", "--json", "--count", str(SAMPLES), "--gpus", "0")
        real = counted_gb_s()
    assert (done.code, done.err) == (0, "")
    gpus = [json.loads(line)["result"]["gpus"][0] for line in done.out.splitlines()]
    assert len(gpus) == SAMPLES
    if gpus[0]["links"][kind] is None:
        pytest.skip(f"{kind}: {gpus[0]['unread'][f'links.{kind}']['detail']}")
    sent = statistics.median(gpu["links"][kind]["sent_gb_s"] for gpu in gpus)
    return sent, real, gpus[0]["links"][kind]["rate_gb_s"]


def test_copies_to_host_memory_are_those_of_pcie_or_c2c(egmctl: RunEgmctl) -> None:
    gpu = (collect(("gpus",)).gpus or ())[0]
    coherent = gpu.nvml is not None and gpu.nvml.c2c_enabled
    sent, real, rate = watched(egmctl, "c2c" if coherent else "pcie", to_host=True)
    assert sent == pytest.approx(real, rel=0.1)
    assert rate is None or sent < rate


def test_copies_to_another_gpu_are_those_of_nvlink(egmctl: RunEgmctl, gpus: tuple[Gpu, ...]) -> None:
    if not any(link.active for link in (gpus[0].nvml and gpus[0].nvml.nvlinks) or ()):
        pytest.skip("needs NVLink")
    sent, real, rate = watched(egmctl, "nvlink", to_host=False)
    assert sent == pytest.approx(real, rel=0.1)
    assert rate is None or sent < rate


def test_everything_but_c2c_is_known_of_a_busy_gpu(egmctl: RunEgmctl) -> None:
    with copying(to_host=True, seconds=20):
        document = json.loads(egmctl("watch", "--json", "--once", "--gpus", "0").out)
    (gpu,) = document["result"]["gpus"]
    assert gpu["busy_percent"] is not None
    assert 256 << 20 < gpu["memory_used_bytes"] < gpu["memory_total_bytes"]
    assert [field for field in gpu.get("unread", {}) if field != "links.c2c"] == []
