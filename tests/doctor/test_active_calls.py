"""Every CUDA call of ``doctor --active``, failing with each of two errors: a probe that met it does not pass.

The calls are taken from a run without faults; each case is one run of the command on a fake node.
"""

from __future__ import annotations

import pytest

from egmctl.facts import replay
from tests.conftest import RunEgmctl
from tests.doctor.active import ONLY_ACTIVE, active
from tests.doctor.machines import of_two_gpus
from tests.fake.machines import with_imex_channel
from tests.fake.plugin import MakeFakeNode

pytestmark = pytest.mark.needs("cc")

ERRORS = (999, 46)
"""CUDA_ERROR_UNKNOWN and CUDA_ERROR_DEVICE_UNAVAILABLE."""
WITHOUT_RESULT = frozenset(
    (
        *("cuGetErrorName", "cuGetErrorString", "cuGetProcAddress", "cuDriverGetVersion"),
        *("cuStreamDestroy", "cuEventDestroy"),
        *("cuDeviceGetName", "cuDeviceGetUuid", "cuDeviceTotalMem", "cuDeviceGetHostAtomicCapabilities"),
    )
)
"""Calls that name errors or give back what the end of the process gives back too, and facts that no probe is about:
``test_driver_calls.py`` judges those."""


@pytest.mark.fuzz
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("name", ["hgx-h200x4", "gb200-tray"])
def test_no_probe_passes_that_met_a_failing_call(
    egmctl: RunEgmctl, fake_node: MakeFakeNode, name: str, part: int
) -> None:
    node = fake_node(with_imex_channel(of_two_gpus(replay.load_machine(name))))
    _, well = active(egmctl, node, *ONLY_ACTIVE)
    passing = {finding["check"] for finding in well if finding["status"] == "pass"}
    calls = sorted({call.name for call in node.calls() if call.name.startswith("cu")} - WITHOUT_RESULT)
    assert len(calls) > 20, "the calls were not found"
    silent = []
    for call in calls[part::4]:
        for number in ERRORS:
            code, findings = active(egmctl, node, *ONLY_ACTIVE, faults=f"{call}=error:{number}")
            if code == 0 and all(finding["status"] == "pass" for finding in findings if finding["check"] in passing):
                silent.append(f"{call}=error:{number}")
    assert silent == []
