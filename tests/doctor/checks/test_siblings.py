"""A GPU that is unlike the others of its kind, and what is only noted."""

from __future__ import annotations

from typing import Any

import pytest

from egmctl.doctor.runner import CHECKS
from egmctl.model.finding import Status
from egmctl.model.gpu import GpuProcess
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests.answers import diagnose
from tests.doctor.faults import Fault, changed, healthy
from tests.doctor.machines import patched, run_one

ALIKE = {
    "ecc_mode": True,
    "memory_total_bytes": 192 << 30,
    "sm_clock_max_mhz": 2062,
    "memory_clock_max_mhz": 3996,
    "vbios": "97.00.B9.00.76",
    "inforom_image": "G548.0201.00.06",
    "board_part_number": "900-2G548-0001-000",
}
FAULTS: dict[str, Fault] = {"gpu.uniform": changed("gpus[1].nvml", ecc_mode=False)}


def well(machine: Machine) -> Machine:
    return patched(machine, "gpus[*].nvml", **ALIKE)


@pytest.mark.parametrize(
    ("changes", "status", "summary"),
    [
        ({"ecc_mode": False}, Status.WARN, "ECC is off, and on for GPU0,2-3"),
        ({"memory_total_bytes": 188 << 30}, Status.WARN, "memory is 188 GiB, and 192 GiB for GPU0,2-3"),
        ({"sm_clock_max_mhz": 1200}, Status.WARN, "maximum SM clock is 1200 MHz, and 2062 MHz for GPU0,2-3"),
        ({"power_limit_mw": 600_000}, Status.WARN, "power limit is 600 W, and 1200 W for GPU0,2-3"),
        ({"vbios": "97.00.A1"}, Status.NOTE, "VBIOS is 97.00.A1, and 97.00.B9.00.76 for GPU0,2-3"),
        ({"inforom_image": "G548.0200"}, Status.NOTE, "InfoROM is G548.0200, and G548.0201.00.06 for GPU0,2-3"),
    ],
)
def test_the_one_that_differs_is_named_with_both_values(changes: dict[str, Any], status: Status, summary: str) -> None:
    finding = run_one("gpu.uniform", patched(healthy(), "gpus[1].nvml", **changes))
    assert (finding.status, finding.summary, finding.place.label) == (status, summary, "GPU1")


def test_without_a_majority_all_are_named() -> None:
    machine = patched(patched(healthy(), "gpus[0].nvml", ecc_mode=False), "gpus[2].nvml", ecc_mode=False)
    finding = run_one("gpu.uniform", machine)
    assert finding.summary == "GPUs of one kind differ in ECC: off for GPU0,2, on for GPU1,3"
    assert finding.place.label == "GPU0-3"


def test_gpus_of_different_kinds_are_not_compared() -> None:
    machine = patched(
        patched(healthy(), "gpus[1].nvml", name="NVIDIA A100", ecc_mode=False), "gpus[1].pci", device_id=1
    )
    assert run_one("gpu.uniform", machine).status is Status.PASS


def test_what_a_kind_lacks_is_not_missed_and_what_was_not_read_is_unknown() -> None:
    def without_ecc(reason: Reason, path: str = "gpus[*].nvml") -> Machine:
        return patched(healthy(), path, ecc_mode=None, unread={"ecc_mode": Unread(reason=reason, detail="")})

    assert run_one("gpu.uniform", without_ecc(Reason.NOT_SUPPORTED)).status is Status.PASS
    assert run_one("gpu.uniform", without_ecc(Reason.FAILED)).status is Status.UNKNOWN
    assert run_one("gpu.uniform", without_ecc(Reason.FAILED, "gpus[2].nvml")).status is Status.UNKNOWN


def test_the_difference_is_the_only_fault() -> None:
    found = diagnose(FAULTS["gpu.uniform"].machine(), FAULTS["gpu.uniform"].scope, CHECKS)
    assert [finding.check for finding in found.findings if finding.status is Status.WARN] == ["gpu.uniform"]


def test_memory_under_limits_is_not_called_alike() -> None:
    finding = run_one("gpu.uniform", patched(healthy(), "gpus[*].nvml", memory_limit_bytes=8 << 30))
    assert finding.status is Status.PASS
    assert "ECC, maximum SM clock" in finding.summary


def at_work(clock_mhz: int, **changes: Any) -> Machine:
    """GPUs that all work, of which GPU1 has this SM clock."""
    busy = {"processes": (GpuProcess(pid=1, name="x"),), "throttle_reasons": (), "performance_state": 0}
    machine = patched(healthy(), "gpus[*].nvml", sm_clock_mhz=1965, **busy)
    return patched(machine, "gpus[1].nvml", sm_clock_mhz=clock_mhz, **changes)


def test_a_clock_far_below_its_busy_siblings_for_no_reason_is_noted() -> None:
    """A locked clock is none of NVML's reasons."""
    finding = run_one("gpu.uniform", at_work(1200))
    assert (finding.status, finding.place.label) == (Status.NOTE, "GPU1")
    assert "1200 MHz under load, and 1965 MHz on others" in finding.summary


@pytest.mark.parametrize(
    "machine",
    [
        at_work(1900),
        at_work(1200, throttle_reasons=("sw-power-cap",)),
        at_work(1200, throttle_reasons=("idle",)),
        at_work(1200, throttle_reasons=None),
        at_work(1200, processes=()),
        at_work(1200, processes=None),
        at_work(1200, performance_state=8),
    ],
)
def test_clocks_of_gpus_that_are_not_under_the_same_load_are_not_compared(machine: Machine) -> None:
    assert run_one("gpu.uniform", machine).status is Status.PASS
