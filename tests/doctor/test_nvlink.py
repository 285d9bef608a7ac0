"""NVLink as Blackwell reports it: states, counters, thresholds, and a bandwidth mode for each GPU."""

from __future__ import annotations

import math
from typing import Any

import pytest

from egmctl.doctor.checks.nvlink import MAX_EFFECTIVE_BER
from egmctl.facts.nvml import ber
from egmctl.model.finding import Status
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests.doctor.faults import healthy
from tests.doctor.machines import patched, run, run_one, shipped, with_card

HGX = shipped("hgx-h200x4")


def verdicts(check: str, machine: Machine) -> set[tuple[Status, str]]:
    return {(finding.status, finding.place.label) for finding in run(check, machine)}


def counted(**changes: Any) -> Machine:
    return patched(healthy(), "gpus[2].nvml.nvlinks[7].counters", **changes)


class TestErrorRates:
    @pytest.mark.parametrize(
        ("packed", "rate"),
        [(0xFFF, 0.0), (0x10C, 1e-12), (0x20C, 2e-12), (0x30F, 3e-15), (0xF00, 15.0), (0, 0.0)],
    )
    def test_nvml_packs_mantissa_and_exponent(self, packed: int, rate: float) -> None:
        assert math.isclose(ber(packed), rate, abs_tol=1e-300)

    @pytest.mark.parametrize(
        ("changes", "status"),
        [
            ({"effective_ber": MAX_EFFECTIVE_BER}, Status.PASS),
            ({"effective_ber": 2e-12}, Status.FAIL),
            ({"failed_recoveries": 1, "recoveries": 1}, Status.FAIL),
            ({"recoveries": 3, "successful_recoveries": 3}, Status.WARN),
            ({"effective_errors": 4}, Status.PASS),
            ({"symbol_errors": 4}, Status.PASS),
            ({"integrity_errors": 1}, Status.PASS),
        ],
    )
    def test_what_each_counter_is_worth(self, changes: dict[str, Any], status: Status) -> None:
        findings = [f for f in run("nvlink.errors", counted(**changes)) if f.place.label == "GPU2"]
        if "effective_ber" in changes and status is Status.PASS:
            assert findings == []  # Like the other GPUs, which share a finding.
            return
        assert [f.status for f in findings] == [status]
        assert "link 7 of GPU2" in {evidence.source for evidence in findings[0].evidence}

    def test_forward_error_correction_at_work_is_no_error(self) -> None:
        machine = counted(fec_history=(10**12, 10**9, 10**6, 4, *[0] * 12))
        assert verdicts("nvlink.errors", machine) == {(Status.PASS, "GPU0-3")}


class TestStates:
    def test_a_link_that_sleeps_is_up(self) -> None:
        machine = patched(healthy(), "gpus[1].nvml.nvlinks[*]", active=False, link_state="sleep")
        findings = run("nvlink.links", machine)
        assert [(finding.status, finding.place.label, "asleep" in finding.note) for finding in findings] == [
            (Status.PASS, "GPU0,2-3", False),
            (Status.PASS, "GPU1", True),
        ]

    def test_one_without_traffic_is_up_and_useless(self) -> None:
        machine = patched(healthy(), "gpus[1].nvml.nvlinks[3]", link_state="active-traffic-disabled")
        assert verdicts("nvlink.links", machine) == {(Status.WARN, "GPU1"), (Status.PASS, "GPU0,2-3")}

    def test_one_that_is_active_at_no_speed_is_told(self) -> None:
        machine = patched(healthy(), "gpus[1].nvml.nvlinks[3]", speed_mb_s=0)
        assert verdicts("nvlink.links", machine) == {(Status.WARN, "GPU1"), (Status.PASS, "GPU0,2-3")}

    def test_a_c2c_link_that_is_down_hides_no_errors_of_another_gpu(self) -> None:
        machine = patched(healthy(), "gpus[0].nvml.c2c_links[0]", active=False)
        machine = patched(machine, "gpus[1].nvml.c2c_links[0]", errors=7)
        findings = verdicts("c2c.link", machine)
        assert {(Status.FAIL, "GPU0"), (Status.WARN, "GPU1"), (Status.PASS, "GPU2-3")} <= set(findings)

    def test_c2c_that_is_active_at_no_speed_is_told(self) -> None:
        machine = patched(healthy(), "gpus[1].nvml.c2c_links[0]", max_rate_mb_s=0)
        assert (Status.WARN, "GPU1") in verdicts("c2c.link", machine)

    def test_a_gpu_is_measured_by_its_own_product(self) -> None:
        station = with_card(healthy())
        station = patched(station, "gpus[4].nvml", nvlinks=(), nvlink_count=0)
        assert verdicts("nvlink.links", station) == {(Status.PASS, "GPU0-3"), (Status.SKIP, "GPU4")}


class TestCounts:
    """A GPU without links is judged by its siblings, and where they have none either by its board."""

    def test_one_without_links_beside_siblings_that_have_them_fails(self) -> None:
        machine = patched(HGX, "gpus[1].nvml", nvlinks=(), nvlink_count=0)
        assert verdicts("nvlink.links", machine) == {(Status.FAIL, "GPU1"), (Status.PASS, "GPU0,2-3")}
        (finding,) = [finding for finding in run("nvlink.links", machine) if finding.status is Status.FAIL]
        assert finding.summary == "0 of 18 NVLinks are active"

    @pytest.mark.parametrize("links", [(), None])
    def test_a_board_that_has_18_and_shows_none_fails(self, links: tuple[()] | None) -> None:
        unsupported = {"nvlinks": Unread(reason=Reason.NOT_SUPPORTED)} if links is None else {}
        machine = patched(HGX, "gpus[*].nvml", nvlinks=links, nvlink_count=0, unread=unsupported)
        assert verdicts("nvlink.links", machine) == {(Status.FAIL, "GPU0-3")}

    def test_another_product_without_links_has_none(self) -> None:
        machine = patched(HGX, "gpus[*].nvml", name="NVIDIA H100 PCIe", nvlinks=(), nvlink_count=0)
        assert verdicts("nvlink.links", machine) == {(Status.SKIP, "GPU0-3")}

    @pytest.mark.parametrize(
        ("path", "change", "reason"),
        [
            ("driver", {"module_parameters": {"NvLinkDisable": "1"}}, "a module parameter disables NVLink"),
            ("driver", {"nvlink_bandwidth_mode": "off"}, "bandwidth mode is OFF"),
            ("gpus[*].nvml.fabric", {"state": "not-supported"}, "partition without NVLinks"),
            ("", {"gpus": (HGX.gpus or ())[:1]}, "one GPU, without peers"),
        ],
    )
    def test_none_where_something_takes_them_away_is_a_warning(
        self, path: str, change: dict[str, Any], reason: str
    ) -> None:
        machine = patched(HGX, path, **change)
        machine = patched(machine, "gpus[*].nvml", nvlinks=(), nvlink_count=0, virtualization="passthrough")
        (finding,) = run("nvlink.links", machine)
        assert (finding.status, reason in finding.cause) == (Status.WARN, True), finding

    @pytest.mark.parametrize(("gpus", "status"), [(1, Status.NOTE), (2, Status.FAIL)])
    def test_a_parameter_that_disables_nvlink_takes_nothing_from_one_gpu(self, gpus: int, status: Status) -> None:
        machine = patched(HGX, "driver", module_parameters={"NvLinkDisable": "1"})
        (finding,) = run("nvlink.disabled", patched(machine, "", gpus=(HGX.gpus or ())[:gpus]))
        assert finding.status is status


class TestBandwidthModes:
    @pytest.mark.parametrize(
        ("mode", "best", "status"),
        [
            ("full", True, Status.PASS),
            ("12-links", True, Status.PASS),
            ("12-links", False, Status.WARN),
            ("half", None, Status.WARN),
            ("off", False, Status.FAIL),
        ],
    )
    def test_one_mode_of_all(self, mode: str, best: bool | None, status: Status) -> None:
        machine = patched(healthy(), "gpus[*].nvml", nvlink_bandwidth_mode=mode, nvlink_bandwidth_best=best)
        assert run_one("nvlink.bw-mode", machine).status is status

    @pytest.mark.parametrize(("mode", "status"), [("full", Status.PASS), ("half", Status.WARN), ("off", Status.FAIL)])
    def test_before_blackwell_the_system_has_one(self, mode: str, status: Status) -> None:
        machine = patched(healthy(), "gpus[*].nvml", nvlink_bandwidth_mode=None)
        assert run_one("nvlink.bw-mode", patched(machine, "driver", nvlink_bandwidth_mode=mode)).status is status
