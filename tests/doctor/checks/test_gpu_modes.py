"""A power limit below the default, a power cap that holds a GPU down, and GPUs that do not accept work yet."""

from __future__ import annotations

from typing import Any

import pytest

from egmctl.doctor.checks.gpu import RESET
from egmctl.model.finding import Finding, Status
from egmctl.model.record import Reason, Unread
from tests.doctor.faults import Fault, healthy
from tests.doctor.machines import patched, run, run_one

FAULTS: dict[str, Fault] = {}


def limit(**facts: Any) -> Finding:
    return run_one("gpu.power-limit", patched(healthy(), "gpus[*].nvml", **facts))


def test_a_lower_limit_is_noted_with_both_numbers() -> None:
    finding = limit(power_limit_mw=500_000, power_limit_default_mw=700_000)
    assert (finding.status, finding.summary) == (Status.NOTE, "the power limit is 500 W, below its default of 700 W")
    assert finding.remedy is not None
    assert finding.remedy.run is None, "a choice is not undone by a command that is pasted"


@pytest.mark.parametrize(
    ("reason", "status"),
    [(Reason.FAILED, Status.UNKNOWN), (Reason.NOT_SUPPORTED, Status.SKIP), (Reason.NOT_STATED, Status.SKIP)],
)
def test_a_limit_that_was_not_read_never_passes(reason: Reason, status: Status) -> None:
    unread = {"power_limit_mw": Unread(reason=reason, detail="")}
    assert limit(power_limit_mw=None, unread=unread).status is status


@pytest.mark.parametrize(
    ("clock", "reasons", "status"),
    [
        (705, ("sw-power-cap",), Status.WARN),
        (1400, ("sw-power-cap",), Status.PASS),
        (705, ("idle",), Status.PASS),
        (None, ("sw-power-cap",), Status.PASS),
    ],
)
def test_a_power_cap_is_a_fault_only_where_it_takes_more_than_half_of_the_clock(
    clock: int | None, reasons: tuple[str, ...], status: Status
) -> None:
    facts = {"sm_clock_mhz": clock, "sm_clock_max_mhz": 1980, "throttle_reasons": reasons}
    findings = run("gpu.throttle", patched(healthy(), "gpus[2].nvml", **facts))
    assert min((finding.status for finding in findings), key=list(Status).index) is status
    assert all(finding.remedy != RESET for finding in findings)


@pytest.mark.parametrize(
    ("mode", "ready", "status"),
    [
        ("protected-pcie", False, Status.FAIL),
        ("protected-pcie", True, Status.PASS),
        ("on", False, Status.FAIL),
        ("on", True, Status.WARN),
        ("off", False, Status.PASS),
    ],
)
def test_gpus_accept_work_once_they_are_ready(mode: str, ready: bool, status: Status) -> None:
    machine = patched(healthy(), "driver", confidential_compute=mode, confidential_ready=ready)
    finding = run_one("gpu.cc-mode", machine)
    assert finding.status is status
    assert (finding.remedy is not None and finding.remedy.run == "nvidia-smi conf-compute -srs 1") is (
        status is Status.FAIL
    )


def test_a_ready_state_that_was_not_read_never_passes() -> None:
    unread = {"confidential_ready": Unread(reason=Reason.FAILED, detail="")}
    machine = patched(healthy(), "driver", confidential_compute="on", confidential_ready=None, unread=unread)
    assert run_one("gpu.cc-mode", machine).status is Status.UNKNOWN
