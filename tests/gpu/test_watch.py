"""``egmctl watch`` beside real traffic: its rates are those that the traffic counts itself."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable

import pytest

from egmctl.facts.collect import collect
from egmctl.model.gpu import Gpu
from tests.conftest import RunEgmctl
from tests.gpu.traffic import copying

pytestmark = pytest.mark.gpu

SAMPLES = 5


OUT, IN = 0, 1
"""NVML_PCIE_UTIL_TX_BYTES and _RX_BYTES."""
ASK_NVML = """
import statistics, sys, time
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
rates = []
for _ in range(15):
    rates.append(pynvml.nvmlDeviceGetPcieThroughput(gpu, int(sys.argv[1])) * 1e3 / 1e9)
    time.sleep(0.05)
print(statistics.median(rates))
"""
"""Print the median of what NVML itself says of GPU 0's PCIe in a direction, in GB/s; NVML says KB/s over 20 ms."""


def watched(
    egmctl: RunEgmctl, kind: str, way: str, field: str, meanwhile: Callable[[], float] = lambda: 0.0
) -> tuple[dict[str, float], float, float]:
    """Return what ``watch`` says of a link of the first GPU, the copies of themselves, and ``meanwhile``: in GB/s."""
    with copying(way, seconds=20) as counted_gb_s:
        done = egmctl("watch", "--json", "--count", str(SAMPLES), "--gpus", "0")
        beside = meanwhile()
        real = counted_gb_s()
    assert (done.code, done.err) == (0, "")
    gpus = [json.loads(line)["result"]["gpus"][0] for line in done.out.splitlines()]
    assert len(gpus) == SAMPLES
    if gpus[0]["links"][kind] is None:
        pytest.skip(f"{kind}: {gpus[0]['unread'][f'links.{kind}']['detail']}")
    links = [gpu["links"][kind] for gpu in gpus]
    medians = {name: statistics.median(link[name] for link in links) for name, value in links[0].items() if value}
    print(f"{way}: {field} of {medians}; the copies {real:.1f}; beside {beside:.1f}")  # noqa: T201 - with -s: what was measured
    assert all(link[field] <= link["rate_gb_s"] for link in links if link["rate_gb_s"])
    return medians, real, beside


@pytest.mark.parametrize(("way", "sent"), [("to-host", True), ("from-host", False)])
def test_copies_to_and_from_host_memory_are_those_of_pcie_or_c2c(egmctl: RunEgmctl, way: str, sent: bool) -> None:
    gpu = (collect(("gpus",)).gpus or ())[0]
    field = "sent_gb_s" if sent else "received_gb_s"
    if gpu.nvml is not None and gpu.nvml.c2c_enabled:
        medians, real, _ = watched(egmctl, "c2c", way, field)
        assert medians[field] == pytest.approx(real, rel=0.1)
        return

    def by_nvml() -> float:
        command = [sys.executable, "-c", ASK_NVML, str(OUT if sent else IN)]
        return float(subprocess.check_output(command, text=True, timeout=60))

    medians, real, nvml_gb_s = watched(egmctl, "pcie", way, field, by_nvml)
    assert medians[field] == pytest.approx(nvml_gb_s, rel=0.03)
    assert medians["sent_data_gb_s" if sent else "received_data_gb_s"] == pytest.approx(real, rel=0.03)


def test_copies_to_another_gpu_are_those_of_nvlink(egmctl: RunEgmctl, gpus: tuple[Gpu, ...]) -> None:
    if not any(link.active for link in (gpus[0].nvml and gpus[0].nvml.nvlinks) or ()):
        pytest.skip("needs NVLink")
    medians, real, _ = watched(egmctl, "nvlink", "peer", "sent_gb_s")
    assert medians["sent_gb_s"] == pytest.approx(real, rel=0.03)


def test_everything_but_c2c_is_known_of_a_busy_gpu(egmctl: RunEgmctl) -> None:
    with copying("to-host", seconds=20):
        document = json.loads(egmctl("watch", "--json", "--once", "--gpus", "0").out)
    (gpu,) = document["result"]["gpus"]
    assert gpu["busy_percent"] is not None
    assert 256 << 20 < gpu["memory_used_bytes"] < gpu["memory_total_bytes"]
    assert [field for field in gpu.get("unread", {}) if field != "links.c2c"] == []
