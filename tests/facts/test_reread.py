"""A node is read once more after load, in a child that waits for it: health, links, fabric, kernel log.

Each fault appears on the fake node after the first reading, as load brings it out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from egmctl.api.doctor import Doctor
from egmctl.facts.collect import collect, rereading
from egmctl.model.answer import Cause, State
from egmctl.model.bringup import Bringup
from egmctl.model.finding import Status
from egmctl.model.gpu import GpuProcess
from egmctl.model.machine import Machine
from egmctl.report.render.text import text
from egmctl.report.views.bringup import bringup_document
from egmctl.verdict.bringup import bringup_answer
from tests.doctor.machines import patched, shipped
from tests.fake.node import FakeNode

pytestmark = [pytest.mark.processes, pytest.mark.needs("cc")]

H200 = shipped("hgx-h200x4")


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    made = FakeNode(H200, tmp_path_factory.mktemp("node"))
    log = made.sysroot / "dev/kmsg"
    log.parent.mkdir(exist_ok=True)
    log.write_text("")
    for name, value in made.environment().items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    return made


def brought_up(change: Callable[[], None], monkeypatch: pytest.MonkeyPatch, plan: str = "") -> tuple[Bringup, Machine]:
    """Read the node, change it, and read it again as bringup does around its bench, then with this fault plan."""
    doctor = Doctor()
    before = collect(doctor.sections)
    first = doctor.diagnose(before)
    assert not [finding for finding in first.findings if finding.status is Status.FAIL]
    monkeypatch.setenv("EGMCTL_FAKE_FAULTS", plan)
    with rereading() as reread:
        change()
        after = reread(before)
    return bringup_answer(doctor.diagnose(after), None, before=first, not_measured="it is not tried here"), after


def failed(outcome: Bringup) -> Cause:
    """Return the one cause that failed."""
    (cause,) = [cause for cause in outcome.answer.causes if cause.status is Status.FAIL]
    return cause


def without_nine_links() -> Machine:
    machine = H200
    for link in range(9):
        machine = patched(machine, f"gpus[2].nvml.nvlinks[{link}]", active=False)
    return machine


FAULTS: dict[str, tuple[Machine, str]] = {
    "ECC errors": (patched(H200, "gpus[2].nvml", ecc_uncorrected_volatile=3), "gpu.health"),
    "a pending row remap": (patched(H200, "gpus[2].nvml", remapped_rows_pending=True), "gpu.health"),
    "9 NVLinks that are down": (without_nine_links(), "nvlink.links"),
    "a fabric that is not ready": (patched(H200, "gpus[2].nvml.fabric", state="in-progress"), "fabric.state"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_appears_under_load_is_no_go_with_its_cause(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    sick, check = FAULTS[fault]
    outcome, _ = brought_up(lambda: node.become(sick), monkeypatch)
    assert outcome.answer.state is State.BAD
    cause = failed(outcome)
    assert (cause.finding.check, cause.finding.place.label, cause.under_load) == (check, "GPU2", True)
    shown = " ".join(text(bringup_document(outcome)).plain.split())
    assert "NO-GO: GPU2" in shown
    assert "(appeared during the bench)" in shown


@pytest.mark.usefixtures("node")
def test_a_gpu_that_nvml_has_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, after = brought_up(lambda: None, monkeypatch, "nvmlDeviceGetPciInfo@3=error:15")
    cause = outcome.answer.causes[0]
    root = cause.finding
    assert (outcome.answer.state, root.check, root.place.label) == (State.BAD, "dev.count-consistency", "GPU2")
    assert "cannot open" in root.summary
    assert cause.under_load
    assert [gpu.index for gpu in after.gpus or ()] == [0, 1, 2, 3]


@pytest.mark.usefixtures("node")
def test_nvml_that_crashes_after_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, _ = brought_up(lambda: None, monkeypatch, "nvmlDeviceGetUUID=kill:11")
    assert (outcome.answer.state, outcome.answer.causes[0].finding.check) == (State.BAD, "drv.libraries")


def test_an_xid_that_is_logged_before_the_bench_watches_the_log(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between doctor's reading and the first measurement active probes run: their Xids count too."""
    bus = (H200.gpus or ())[2].bus_id.removesuffix(".0")

    def log() -> None:
        microseconds = round(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
        line = f"4,1,{microseconds},-;NVRM: Xid (PCI:{bus}): 79, GPU has fallen off the bus.\n"
        (node.sysroot / "dev/kmsg").write_text(line)

    cause = failed(brought_up(log, monkeypatch)[0])
    assert (cause.finding.check, cause.under_load) == ("kernel.xid", True)


def test_what_is_well_stays_as_it_was(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bench itself uses the GPUs: that is nobody's use of them."""
    used = (GpuProcess(pid=os.getpid(), used_memory_bytes=1 << 30),)
    outcome, after = brought_up(lambda: node.become(patched(H200, "gpus[*].nvml", processes=used)), monkeypatch)
    assert all(gpu.nvml is not None and gpu.nvml.processes == () for gpu in after.gpus or ())
    assert not [cause for cause in outcome.answer.causes if cause.under_load]
