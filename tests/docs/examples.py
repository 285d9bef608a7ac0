"""What the guide shows: nodes and pages."""

from __future__ import annotations

from pathlib import Path

from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.runner import CHECKS
from egmctl.model.bringup import Bringup
from egmctl.model.fleet import FleetReport, Reach
from egmctl.model.measurement import RunReport
from egmctl.model.record import Command
from egmctl.saved import load
from egmctl.verdict import profiles
from egmctl.verdict.bringup import bringup_answer
from egmctl.verdict.judge import with_verdict
from egmctl.verdict.profiles import choose
from tests.answers import diagnose
from tests.comparison.runs import unpacked
from tests.doctor.faults import OUTSIDE, healthy
from tests.doctor.machines import patched, shipped
from tests.fleet.racks import doctor, fleet

SICK = {
    "h200-off-the-bus": "egmctl: dev.fell-off-bus: GPU3: fell off the PCI bus",
    "h200-links-down": "egmctl: nvlink.links: GPU2: 16 of 18 NVLinks are active",
}
"""Machines with a fault, and how the reason of their drain begins."""


def rack() -> FleetReport:
    """Return a rack of models that are healthy, but for one with a link down, one outside, one older and one silent."""
    tray = healthy()
    machines = dict.fromkeys((f"tray{number:02}" for number in range(1, 19)), tray)
    machines["tray03"] = patched(machines["tray03"], "gpus[2].nvml.nvlinks[4]", active=False)
    machines["tray07"] = patched(machines["tray07"], "gpus[*].nvml", fabric=OUTSIDE)
    machines["tray09"] = patched(tray, "driver", driver_version="575.57.08", module_version="575.57.08")
    results = {node: doctor(machine) for node, machine in machines.items()} | {"tray12": Reach.UNREACHABLE}
    return fleet(results, Command.DOCTOR)


def judged_run(tmp_path: Path) -> RunReport:
    """Return the run of an idle node, judged by the profile that ships."""
    report = load(unpacked("idle", tmp_path)).result
    assert isinstance(report, RunReport)
    profile, reason = choose(report.machines[0], [profiles.load_profile("hgx-h200")])
    return with_verdict(report, profile, profile_reason=reason)


def bringup_of_h200(tmp_path: Path) -> Bringup:
    """Return the bring-up of recorded checks and a real run."""
    return bringup_answer(diagnose(shipped("hgx-h200x4"), EVERYTHING, CHECKS), judged_run(tmp_path))
