"""A fabric manager of another version than the driver does not start, and says so in its log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.runner import CHECKS
from egmctl.driver.reading import Unreadable
from egmctl.facts.root import Root
from egmctl.facts.services import FABRIC_LOG, PACKAGES, SYSTEM_LOGS, fabric_manager
from egmctl.model.finding import Status
from egmctl.model.host import FabricManager
from egmctl.model.record import Reason
from tests.answers import diagnose
from tests.doctor.machines import patched, run_one
from tests.doctor.sick import board
from tests.fake.sysroot import Tree

LINE = (
    "Nov 05 13:55:26 node1 nv-fabricmanager[104230]: fabric manager NVIDIA GPU driver interface version {} don't match "
    "with driver version {}. Please update with matching NVIDIA driver package.\n"
)
PACKAGE = "Package: {}\nStatus: install ok installed\nArchitecture: amd64\nVersion: {}-0ubuntu0.22.04.1\n\n"
OTHER = "Package: nvidia-fabricmanager-550\nStatus: deinstall ok config-files\nVersion: 550.1.1-1\n\n"


def read(tmp_path: Path, **files: str) -> FabricManager:
    tree = Tree(tmp_path)
    tree.folder("/var/log")
    paths = {"log": FABRIC_LOG, "syslog": SYSTEM_LOGS[0], "packages": PACKAGES}
    for name, text in files.items():
        tree.write(paths[name], text)
    return fabric_manager(Root(str(tmp_path)), tuple)


@pytest.mark.parametrize(
    ("files", "version", "refusal"),
    [
        ({"log": LINE.format("550.127.05", "550.120")}, None, ("550.127.05", "550.120")),
        (
            {"syslog": LINE.format("590.48.01", "580.126.09").replace("don't", "doesn't")},
            None,
            ("590.48.01", "580.126.09"),
        ),
        ({"packages": OTHER + PACKAGE.format("nvidia-fabricmanager-580", "580.173.02")}, "580.173.02", (None, None)),
        ({"packages": PACKAGE.format("nvidia-fabricmanager", "1:595.71.05"), "syslog": ""}, "595.71.05", (None, None)),
        ({"packages": OTHER + PACKAGE.format("nvidia-fabricmanager-dev-580", "580.173.02")}, None, (None, None)),
        (
            {"log": LINE.format("550.1", "550.2"), "packages": PACKAGE.format("nvidia-fabricmanager", "550.2")},
            "550.2",
            ("550.1", "550.2"),
        ),
    ],
)
def test_the_version_is_the_packages_and_a_refusal_has_both(
    tmp_path: Path, files: dict[str, str], version: str | None, refusal: tuple[str | None, str | None]
) -> None:
    facts = read(tmp_path, **files)
    assert (facts.version, (facts.refused_by, facts.refused_driver)) == (version, refusal)


@pytest.mark.parametrize(("older", "refused_by"), [("log", "590.48.01"), ("syslog", "550.1.1")])
def test_the_log_that_was_written_to_last_counts(tmp_path: Path, older: str, refused_by: str) -> None:
    files = {"log": LINE.format("550.1.1", "550.2"), "syslog": LINE.format("590.48.01", "580.126.09")}
    read(tmp_path, **files)
    path = {"log": FABRIC_LOG, "syslog": SYSTEM_LOGS[0]}[older]
    os.utime(f"{tmp_path}{path}", (1, 1))
    assert fabric_manager(Root(str(tmp_path)), tuple).refused_by == refused_by


def test_a_node_without_either_is_a_reason(tmp_path: Path) -> None:
    facts = read(tmp_path)
    assert {facts.unread[name].reason for name in ("version", "refused_by")} == {Reason.NOT_PRESENT}


def test_a_log_that_may_not_be_read_is_the_reason_though_another_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_bytes(_root: Root, path: str, *_: object, **__: object) -> bytes:
        if path == SYSTEM_LOGS[0]:
            raise Unreadable(Reason.NO_PERMISSION, f"{path}: EACCES")
        raise Unreadable(Reason.NOT_PRESENT, f"{path}: ENOENT")

    monkeypatch.setattr(Root, "read_bytes", read_bytes)
    assert read(tmp_path).unread["refused_driver"].reason is Reason.NO_PERMISSION


def test_one_that_is_not_the_drivers_is_named_with_both_versions() -> None:
    finding = run_one("fabric.manager", board("580.173.02", runs=False))
    assert finding.status is Status.FAIL
    assert finding.summary == "the fabric manager is 580.173.02, and the driver 580.178.04, so that it does not start"
    for version in ("580.178.04", None):
        same = run_one("fabric.manager", board(version, runs=False))
        assert (same.status, same.summary) == (Status.FAIL, "no fabric manager runs for this node's NVSwitches")


LOADED = "580.178.04"


@pytest.mark.parametrize(
    ("refused_driver", "summary"),
    [
        (LOADED, "the fabric manager is 580.173.02, and the driver 580.178.04, so that it does not start"),
        ("580.173.01", "no fabric manager runs for this node's NVSwitches"),
    ],
)
def test_a_refusal_of_an_earlier_driver_says_nothing_of_this_one(refused_driver: str, summary: str) -> None:
    refusal = {"version": None, "refused_by": "580.173.02", "refused_driver": refused_driver}
    stopped = patched(board(None, runs=False), "system.fabric_manager", **refusal)
    assert run_one("fabric.manager", stopped).summary == summary
    running = patched(board(None, runs=True), "system.fabric_manager", **refusal, runs_in=("host",))
    assert (run_one("fabric.manager", running).status, run_one("fabric.manager", running).note) == (Status.PASS, "")


def test_one_that_runs_is_well_and_says_that_its_package_is_another() -> None:
    machine = board("580.173.02", runs=True)
    finding = run_one("fabric.manager", patched(machine, "system.fabric_manager", runs_in=("host",)))
    assert (finding.status, "does not start again" in finding.note) == (Status.PASS, True)
    # The GPU Operator's runs in a container, with packages of its own.
    for elsewhere in (("pod",), ("elsewhere",), None):
        in_a_container = patched(machine, "system.fabric_manager", runs_in=elsewhere)
        assert run_one("fabric.manager", in_a_container).note == ""


def test_the_packages_of_a_container_are_not_the_hosts() -> None:
    inside = patched(board("580.173.02", runs=False), "process", container_signs=("/.dockerenv",))
    assert "580.173.02" not in run_one("fabric.manager", inside).summary


def test_packages_that_are_newer_than_the_loaded_driver_are_one_cause() -> None:
    """The update replaced the libraries and the fabric manager; the old module stayed loaded."""
    machine = board("590.48.01", runs=False, driver="580.126.09", library="590.48.01")
    findings = {finding.check: finding for finding in diagnose(machine, EVERYTHING, CHECKS).findings}
    assert findings["fabric.manager"].explained_by == ("drv.versions",)
