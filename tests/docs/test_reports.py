"""docs/reports.md names the formats and metrics that there are, and shows pictures that the command drew."""

from __future__ import annotations

import re

from egmctl.doctor.check import Scope
from egmctl.doctor.runner import CHECKS, diagnose
from egmctl.report import kinds
from egmctl.report import kinds as formats
from egmctl.report.exports.prom import bringup_prom
from egmctl.report.kinds import Format
from egmctl.verdict.bringup import bringup
from tests.conftest import ROOT
from tests.doctor.machines import shipped
from tests.report.runs import judged, run

KINDS = (
    kinds.BRINGUP.formats,
    kinds.DOCTOR.formats,
    kinds.BENCH.formats,
    kinds.TOPO.formats,
    kinds.COMPARISON.formats,
    kinds.HISTORY.formats,
)
DOCUMENT = (ROOT / "docs/reports.md").read_text()


def test_the_table_of_forms_is_the_one_that_commands_use() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in DOCUMENT.splitlines() if line.startswith("|")]
    told = {row[0]: row[1:8] for row in rows if row[0] in set(Format)}
    assert set(told) == {format.value for format in Format}
    for format in Format:
        suffix, *has = told[format.value]
        assert suffix.strip("`") in ("", *(name for name, one in formats.SUFFIXES.items() if one is format))
        assert [bool(cell) for cell in has] == [format in kind for kind in KINDS]
    assert kinds.FLEET.formats == kinds.COMPARISON.formats
    lists = (kinds.HISTORY, kinds.PROFILES, kinds.MATCH, kinds.MACHINES, kinds.CHECKS)
    assert {kind.formats for kind in lists} == {kinds.HISTORY.formats}


def test_every_metric_is_told_and_none_else() -> None:
    made = judged(run(cases=("ring_write_ce", "device_to_device_latency_sm")))
    text = bringup_prom(bringup(diagnose(shipped("hgx-h200x4"), Scope(), CHECKS), made))
    named = set(re.findall(r"^\| `(egmctl_[a-z_]+)` \|", DOCUMENT, re.MULTILINE))
    assert named - {"egmctl_bench_stage_seconds"} == set(re.findall(r"^# TYPE (\S+) gauge$", text, re.MULTILINE))
