"""A diagnosis as JUnit XML, which CI systems read."""

from __future__ import annotations

import html

from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import TOLD, Finding, Status
from egmctl.units import printable


def junit(diagnosis: Diagnosis) -> str:
    """Return JUnit XML: a finding is a test case; ``skip``, ``unknown`` and what
    another one explains are skipped ones, ``warn`` and ``note`` pass."""
    findings = diagnosis.findings
    failing = TOLD if diagnosis.strict else (Status.FAIL,)
    failures = sum(finding.status in failing and not finding.explained_by for finding in findings)
    skips = sum(finding.status in (Status.SKIP, Status.UNKNOWN) or bool(finding.explained_by) for finding in findings)
    head = f'tests="{len(findings)}" failures="{failures}" errors="0" skipped="{skips}"'
    cases = "".join(_case(finding, failing) for finding in findings)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuites {head}>\n <testsuite name="egmctl doctor" {head}>\n{cases} </testsuite>\n</testsuites>\n'
    )


def _case(finding: Finding, failing: tuple[Status, ...]) -> str:
    area = finding.check.partition(".")[0]
    place = f" [{finding.place.label}]" if finding.place.label else ""
    message = f'message="{_xml(finding.summary)}"'
    if finding.explained_by:
        by = _xml(f"explained by {', '.join(finding.explained_by)}: {finding.summary}")
        inside = f'<skipped type="explained" message="{by}"/>'
    elif finding.status in failing:
        inside = f'<failure type="{finding.status}" {message}>{_xml(_advice(finding))}</failure>'
    elif finding.status in (Status.SKIP, Status.UNKNOWN):
        inside = f'<skipped type="{finding.status}" {message}/>'
    else:
        told = f"{finding.status}: {finding.summary}{_advice(finding, before='. ')}"
        inside = f"<system-out>{_xml(told)}</system-out>"
    return f'  <testcase classname="doctor.{_xml(area)}" name="{_xml(finding.check + place)}">{inside}</testcase>\n'


def _advice(finding: Finding, before: str = "") -> str:
    remedy = finding.remedy
    if remedy is None:
        return ""
    return before + remedy.text + (f" $ {remedy.command}" if remedy.command else "")


def _xml(text: str) -> str:
    return html.escape(printable(text))
