"""A diagnosis as JUnit XML, which CI systems read."""

from __future__ import annotations

import html
from collections.abc import Sequence

from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import TOLD, Finding, Status
from egmctl.units import printable

Suite = tuple[int, int, int, str]
"""Tests, failures, skipped ones, and the element."""


def junit(diagnosis: Diagnosis) -> str:
    """Return JUnit XML: a finding is a test case; ``skip``, ``unknown`` and what
    another one explains are skipped ones, ``warn`` and ``note`` pass."""
    return document([doctor_suite(diagnosis)])


def document(suites: Sequence[Suite]) -> str:
    """Return whole JUnit XML."""
    tests, failures, skips = sum(s[0] for s in suites), sum(s[1] for s in suites), sum(s[2] for s in suites)
    head = f'tests="{tests}" failures="{failures}" errors="0" skipped="{skips}"'
    body = "".join(suite[3] for suite in suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites {head}>\n{body}</testsuites>\n'


def suite(name: str, tests: int, failures: int, skips: int, cases: str) -> Suite:
    """Return a suite of test cases."""
    head = f'tests="{tests}" failures="{failures}" errors="0" skipped="{skips}"'
    return tests, failures, skips, f' <testsuite name="{name}" {head}>\n{cases} </testsuite>\n'


def doctor_suite(diagnosis: Diagnosis) -> Suite:
    """Return the findings of a diagnosis."""
    findings = diagnosis.findings
    failing = TOLD if diagnosis.strict else (Status.FAIL,)
    failures = sum(finding.status in failing and not finding.explained_by for finding in findings)
    skips = sum(finding.status in (Status.SKIP, Status.UNKNOWN) or bool(finding.explained_by) for finding in findings)
    cases = "".join(_case(finding, failing) for finding in findings)
    return suite("egmctl doctor", len(findings), failures, skips, cases)


def _case(finding: Finding, failing: tuple[Status, ...]) -> str:
    area = finding.check.partition(".")[0]
    place = f" [{finding.place.label}]" if finding.place.label else ""
    message = f'message="{escaped(finding.summary)}"'
    if finding.explained_by:
        by = escaped(f"explained by {', '.join(finding.explained_by)}: {finding.summary}")
        inside = f'<skipped type="explained" message="{by}"/>'
    elif finding.status in failing:
        inside = f'<failure type="{finding.status}" {message}>{escaped(_advice(finding))}</failure>'
    elif finding.status in (Status.SKIP, Status.UNKNOWN):
        inside = f'<skipped type="{finding.status}" {message}/>'
    else:
        told = f"{finding.status}: {finding.summary}{_advice(finding, before='. ')}"
        inside = f"<system-out>{escaped(told)}</system-out>"
    return (
        f'  <testcase classname="doctor.{escaped(area)}" name="{escaped(finding.check + place)}">{inside}</testcase>\n'
    )


def _advice(finding: Finding, before: str = "") -> str:
    remedy = finding.remedy
    if remedy is None:
        return ""
    return before + remedy.text + (f" $ {remedy.command}" if remedy.command else "")


def escaped(text: str) -> str:
    """Return a text as XML holds it."""
    return html.escape(printable(text))
