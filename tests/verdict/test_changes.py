"""What changed while a run measured its node, and that it is the first cause of what failed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from egmctl.model.change import ChangeKind
from egmctl.model.finding import Status, Waiver, WaiverKind
from egmctl.model.machine import Machine
from egmctl.model.measurement import MeasurementStatus, RunReport
from egmctl.verdict.explain import CHANGED, with_causes
from egmctl.verdict.judge import with_verdict
from egmctl.verdict.profiles import load_profile
from egmctl.verdict.trust import changes
from tests.doctor.machines import patched, shipped, with_gpu_denied
from tests.verdict.runs import H2D, H200, WRITE, run, with_status

FABRIC = shipped("hgx-h200x4")


def with_gpu1(**values: Any) -> Machine:
    return patched(H200, "gpus[1].nvml", **values)


def denied() -> Machine:
    return patched(H200, "gpus[1].node", access="EPERM")


@pytest.mark.parametrize(
    ("after", "kind", "words"),
    [
        (denied(), ChangeKind.ACCESS, "cgroup"),
        (patched(H200, "gpus[1]", nvml=None), ChangeKind.LOST, ""),
        (patched(H200, "gpus[1].nvml.fabric", state="in-progress"), ChangeKind.FABRIC, "in-progress"),
        (patched(H200, "gpus[1].nvml.nvlinks[3]", active=False), ChangeKind.NVLINKS, "17 active"),
        (patched(H200, "gpus[1].pci.link", width=8), ChangeKind.PCIE, "x8"),
    ],
    ids=lambda value: value.value if isinstance(value, ChangeKind) else "",
)
def test_what_got_worse_on_a_gpu_is_named(after: Machine, kind: ChangeKind, words: str) -> None:
    (change,) = changes(H200, after)
    assert (change.kind, change.label) == (kind, "GPU1")
    assert words in change.after


@pytest.mark.parametrize(
    "after",
    [
        H200,
        patched(H200, "gpus[1].pci.link", speed_gt_s=2.5),
        with_gpu1(nvlinks=None),
        with_gpu1(fabric=None),
        patched(H200, "gpus[1].pci", link=None),
    ],
    ids=["nothing", "an idle link", "links not read", "fabric not read", "PCIe not read"],
)
def test_what_did_not_change_or_was_not_read_is_none(after: Machine) -> None:
    assert changes(H200, after) == ()


def test_a_fault_that_was_there_before_is_no_change() -> None:
    assert changes(denied(), denied()) == ()


def test_a_gpu_that_is_denied_during_a_run_is_the_first_cause_of_what_failed() -> None:
    made = run(WRITE, H2D)
    failed = [number for number, m in enumerate(made.measurements) if "GPU1" in m.path]
    broke = with_status(made, MeasurementStatus.FAILED, failed)
    broke = with_verdict(replace(broke, changes=changes(H200, denied())), load_profile("hgx-h200"))
    first = with_causes(broke, denied()).causes[0]
    assert first.finding.check == CHANGED
    assert set(first.measurements) == set(failed)
    assert first.finding.place.label == "GPU1"
    assert first.status is Status.WARN, "a GPU that somebody took away is not broken"


def test_a_gpu_that_is_denied_during_a_run_is_one_cause_with_all_that_follows() -> None:
    """On 2 x H200, a worker that started after the denial saw neither GPU."""
    planned = run(WRITE, H2D)
    of_gpu1 = [number for number, m in enumerate(planned.measurements) if "GPU1" in m.path]
    of_gpu0 = next(n for n, m in enumerate(planned.measurements) if "GPU0" in m.path and n not in of_gpu1)
    stopped = with_waivers(planned, {number: unusable(H200, 1) for number in of_gpu1} | {of_gpu0: unusable(H200, 0)})
    stopped = replace(stopped, changes=changes(H200, denied()))
    (cause,) = with_causes(stopped, with_gpu_denied(H200, 1)).causes
    assert cause.finding.check == CHANGED
    assert set(cause.measurements) == {of_gpu0, *of_gpu1}
    assert "dev.cgroup-restricted" in cause.finding.explains


def unusable(machine: Machine, index: int) -> Waiver:
    return Waiver.about(WaiverKind.GPU_UNUSABLE, "CUDA does not see it", (machine.gpus or ())[index])


def with_waivers(report: RunReport, waivers: dict[int, Waiver]) -> RunReport:
    measurements = tuple(
        replace(m, status=MeasurementStatus.WAIVED, reason=waivers[n].reason, waivers=(waivers[n],))
        if n in waivers
        else m
        for n, m in enumerate(report.measurements)
    )
    return replace(report, measurements=measurements)


def test_a_gpu_that_falls_off_during_a_run_is_a_fault() -> None:
    lost = patched(H200, "gpus[1]", nvml=None)
    made = run(WRITE)
    failed = [number for number, m in enumerate(made.measurements) if "GPU1" in m.path]
    broke = with_status(made, MeasurementStatus.FAILED, failed)
    broke = with_verdict(replace(broke, changes=changes(H200, lost)), load_profile("hgx-h200"))
    first = with_causes(broke, lost).causes[0]
    assert (first.finding.check, first.status) == (CHANGED, Status.FAIL)
