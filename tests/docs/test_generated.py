"""What tools write is in the repository, and pages tell all that the command line and the registries have."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from egmctl.bench.suites import CASES
from egmctl.doctor.check import Scope
from egmctl.doctor.runner import CHECKS, DOCUMENTED, anchor
from egmctl.report import kinds
from egmctl.report.exports.prom import bringup_prom
from egmctl.report.kinds import Format
from egmctl.verdict.bringup import bringup_answer
from tests import in_process
from tests.answers import diagnose
from tests.comparison.runs import measured as measured_with_nccl
from tests.conftest import ROOT
from tests.doctor.machines import shipped
from tests.report.runs import judged, run

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
    assert {anchor(check.id) for check in DOCUMENTED} == anchors, "docs/doctor.md: make regenerate"


@pytest.mark.parametrize("command", ["topo", "bench", "doctor", "snapshot", "show", "compare", "fleet", "docs"])
def test_every_option_is_in_the_manual_page(command: str) -> None:
    section = PAGE.split(f'.SS "egmctl {command}"')[1].split("\n.SS ")[0].replace("\\-", "-")
    told = [word.strip(",") for word in in_process.run(command, "--help").out.split() if word.startswith("--")]
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


KINDS = (
    kinds.BRINGUP.formats,
    kinds.DOCTOR.formats,
    kinds.BENCH.formats,
    kinds.TOPO.formats,
    kinds.COMPARISON.formats,
    kinds.HISTORY.formats,
)
REPORTS = (ROOT / "docs/reports.md").read_text()


def test_the_table_of_forms_is_the_one_that_commands_use() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in REPORTS.splitlines() if line.startswith("|")]
    told = {row[0]: row[1:8] for row in rows if row[0] in set(Format)}
    assert set(told) == {format.value for format in Format}
    for format in Format:
        suffix, *has = told[format.value]
        assert suffix.strip("`") in ("", *(name for name, one in kinds.SUFFIXES.items() if one is format))
        assert [bool(cell) for cell in has] == [format in kind for kind in KINDS]
    assert kinds.FLEET.formats == kinds.COMPARISON.formats
    lists = (kinds.HISTORY, kinds.PROFILES, kinds.MATCH, kinds.MACHINES, kinds.CHECKS)
    assert {kind.formats for kind in lists} == {kinds.HISTORY.formats}


def test_every_metric_is_told_and_none_else() -> None:
    made = judged(run(cases=("ring_write_ce", "device_to_device_latency_sm")))
    made = replace(made, nccl=measured_with_nccl().nccl)
    text = bringup_prom(bringup_answer(diagnose(shipped("hgx-h200x4"), Scope(), CHECKS), made))
    named = set(re.findall(r"^\| `(egmctl_[a-z_]+)` \|", REPORTS, re.MULTILINE))
    assert named - {"egmctl_bench_stage_seconds"} == set(re.findall(r"^# TYPE (\S+) gauge$", text, re.MULTILINE))
