"""``egmctl doctor`` as users run it: choosing, formats and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from egmctl.facts import replay as record
from egmctl.facts.process import ENVIRONMENT_KEYS
from tests.conftest import RunEgmctl
from tests.doctor.machines import patched, shipped
from tests.fake.plugin import MakeFakeNode
from tests.in_process import run

ANY = "drv.versions"
"""A check that passes on every shipped machine."""


@pytest.fixture
def mismatched(tmp_path: Path) -> Path:
    """A machine whose libraries are not of its kernel module's version."""
    path = tmp_path / "node7.json"
    path.write_text(
        record.machine_text(patched(shipped("gh200"), "driver", module_version="580.1", driver_version="570.2"))
    )
    return path


def test_a_fault_is_told_with_what_to_do_and_ends_with_1(mismatched: Path) -> None:
    done = run("doctor", "--machine", mismatched, "--check", ANY)
    assert done.code == 1
    assert "\nPROBLEMS: 1 failure\n" in done.out
    assert "\nFAIL  the kernel module is 580.1, the libraries are 570.2  [drv.versions]\n" in done.out
    assert "      fix    Reload the kernel module" in done.out


def test_a_healthy_machine_ends_with_0() -> None:
    done = run("doctor", "--machine", "gb200-tray", "--check", ANY)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("MODEL of gb200-tray, built from public documentation, not captured from hardware\nOK: ")


def test_list_and_explain() -> None:
    listed = run("doctor", "--list")
    assert listed.code == 0
    assert ANY in listed.out
    ids = [check["id"] for check in json.loads(run("doctor", "--list", "--json").out)["result"]["checks"]]
    assert [line.split()[0] for line in listed.out.splitlines()[1:] if not line.startswith(" ")] == ids
    explained = run("doctor", "--explain", ANY)
    assert explained.out.startswith(f"{ANY}: ")
    assert "Why it matters" in explained.out
    narrower = run("doctor", "--list", "--for", "rdma").out.splitlines()
    assert 0 < len(narrower) <= len(ids)


def test_forms(mismatched: Path) -> None:
    options = ("doctor", "--machine", mismatched, "--check", ANY, "-q")
    assert json.loads(run(*options, "--format", "json").out)["exit_code"] == 1
    nagios = run(*options, "--format", "nagios", "--exit-style", "nagios", "-o", mismatched.parent / "status.out")
    assert (nagios.code, (mismatched.parent / "status.out").read_text().split()[1]) == (2, "CRITICAL")
    assert f'egmctl_doctor_check{{check="{ANY}"}} 2\n' in run(*options, "--format", "prom").out
    suites = ElementTree.fromstring(run(*options, "--format", "junit").out)  # noqa: S314
    assert suites.get("failures") == "2", "the check, and the answer"


def test_several_files_at_once(tmp_path: Path, mismatched: Path) -> None:
    """The suffix of each says its format."""
    begins = {"a.json": "{", "a.html": "<!doctype html>", "a.prom": "# HELP", "a.xml": "<?xml", "a.svg": "<svg"}
    options = [word for name in begins for word in ("-o", tmp_path / name)]
    done = run("doctor", "--machine", mismatched, "--check", ANY, "-q", *options, "-o", "-")
    assert done.code == 1
    assert "      fix    Reload the kernel module" in done.out, "- is standard output, with everything"
    for name, begin in begins.items():
        assert (tmp_path / name).read_text().startswith(begin)


def test_with_a_file_the_screen_has_the_answer_and_the_files_name(tmp_path: Path) -> None:
    command = ("doctor", "--machine", "gh200", "--check", ANY, "-o", tmp_path / "a.txt")
    done = run(*command)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[1:] == ["OK: 1 check passed", f"written: {tmp_path / 'a.txt'}"]
    assert run(*command, "--force", "-q").out == ""


def test_a_file_that_cannot_be_written_keeps_the_result_from_no_other(tmp_path: Path) -> None:
    there = tmp_path / "there.json"
    there.write_text("kept")
    done = run("doctor", "--machine", "gh200", "-o", there, "-o", tmp_path / "new.html")
    assert (done.code, there.read_text()) == (2, "kept")
    assert not (tmp_path / "new.html").exists(), "refused before any work"


class TestLive:
    def test_a_fake_node_without_loading_cuda(self, egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
        node = fake_node("gb200-tray")
        done = egmctl("doctor", "--check", ANY, env=node.environment())
        assert (done.code, done.err) == (0, "")
        assert "4 FAKE NVIDIA GB200" in done.out, "NVML was asked"
        assert not [call for call in node.calls() if call.name.startswith("cu")]

    @pytest.mark.long
    def test_twice_the_same_text(self, egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
        node = fake_node("dgx-h100")
        first, second = (egmctl("doctor", env=node.environment()) for _ in range(2))
        assert first == second
        assert "Traceback" not in first.err

    def test_without_a_gpu_it_ends_with_3(self, egmctl: RunEgmctl, tmp_path: Path) -> None:
        done = egmctl("doctor", "--check", ANY, env={"EGMCTL_SYSROOT": str(tmp_path)})
        assert (done.code, done.err) == (3, "")
        assert done.out.startswith("NOT DETERMINED: there is no NVIDIA GPU on this machine")
        done = egmctl("doctor", "--check", ANY, "--format", "md", env={"EGMCTL_SYSROOT": str(tmp_path)})
        assert done.err == "egmctl: there is no NVIDIA GPU on this machine.\n"

    @pytest.mark.long
    def test_what_the_environment_holds_is_not_told(self, egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
        name = "hunter2"
        private = dict.fromkeys((*ENVIRONMENT_KEYS, "AWS_SECRET_ACCESS_KEY"), f"/home/{name}")
        del private["LD_LIBRARY_PATH"]
        node = fake_node("dgx-h100")
        for form in ("-v", "--json", "--format=junit"):
            done = egmctl("doctor", form, env=private | node.environment())
            assert name not in done.out + done.err
