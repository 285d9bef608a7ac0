"""What tools write is what is in the repository; and it tells all that the command line and the registries have."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from egmctl.bench.suites import CASES
from egmctl.doctor.runner import CHECKS, anchor
from tests.conftest import ROOT, RunEgmctl

PAGE = (ROOT / "docs/egmctl.1").read_text()


@pytest.mark.parametrize("tool", ["bench_reference.py", "doctor_reference.py", "man_page.py"])
@pytest.mark.processes
def test_a_generated_document_is_what_its_tool_writes(tool: str) -> None:
    """If this fails: ``PYTHONPATH=. python tools/TOOL``, and look at the difference."""
    generate = [sys.executable, str(ROOT / "tools" / tool), "--check"]
    done = subprocess.run(generate, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_case_is_in_the_reference() -> None:
    reference = (ROOT / "docs/cases.md").read_text()
    assert [case.name for case in CASES if f"`{case.name}`" not in reference] == []


def test_every_check_has_a_heading_that_its_findings_link_to() -> None:
    headings = re.findall(r"^### (.+)$", (ROOT / "docs/doctor.md").read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9_ -]", "", heading.lower()) for heading in headings}
    assert {anchor(check.id) for check in CHECKS} == anchors, "docs/doctor.md: make regenerate"


@pytest.mark.parametrize("command", ["topo", "bench", "doctor", "snapshot", "show", "compare", "fleet", "docs"])
def test_every_option_is_in_the_manual_page(egmctl: RunEgmctl, command: str) -> None:
    section = PAGE.split(f'.SS "egmctl {command}"')[1].split("\n.SS ")[0].replace("\\-", "-")
    told = [word.strip(",") for word in egmctl(command, "--help").out.split() if word.startswith("--")]
    options = {option for option in told if option != "--help" and option.rstrip(".,;:)") == option}
    assert [option for option in options if option not in section] == []


def test_a_line_of_text_cannot_be_read_as_a_command_of_the_formatter() -> None:
    known = ('.\\"', ".TH", ".SH", ".SS", ".TP", ".PP", ".B", ".nh", ".ad")
    assert [line for line in PAGE.splitlines() if line[:1] in (".", "'") and line.split()[0] not in known] == []


@pytest.mark.needs("groff")
@pytest.mark.processes
def test_the_formatter_has_no_complaint() -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z", str(ROOT / "docs/egmctl.1")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
