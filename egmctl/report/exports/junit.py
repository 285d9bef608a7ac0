"""A diagnosis and a run of the bench as JUnit XML, which CI systems read."""

from __future__ import annotations

import html
from collections.abc import Sequence

from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import TOLD, Finding, Status
from egmctl.model.measurement import BROKEN, Measurement, RunReport
from egmctl.model.measurement import Status as Ended
from egmctl.model.verdict import ClassVerdict, Grade
from egmctl.units import printable

Suite = tuple[int, int, int, str]
"""Tests, failures, skipped ones, and the element."""


def junit(diagnosis: Diagnosis) -> str:
    """Return JUnit XML: a finding is a test case; ``skip``, ``unknown`` and what
    another one explains are skipped ones, ``warn`` and ``note`` pass."""
    return document([doctor_suite(diagnosis)])


def bench_junit(report: RunReport) -> str:
    """Return JUnit XML: a class of paths is a test case, and so is each measurement that broke; what was not measured
    and what has no reference are skipped ones."""
    return document([bench_suite(report)])


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


def bench_suite(report: RunReport) -> Suite:
    """Return the verdicts of a run, and what kept it from being whole."""
    classes = () if report.verdict is None else report.verdict.classes
    broken = [m for m in report.measurements if m.status in BROKEN]
    waived = {(m.case, m.reason or ""): m for m in report.measurements if m.status is Ended.WAIVED}
    unjudged = [] if report.verdict is not None else [m for m in report.measurements if m.measured]
    problems = [*report.problems, *(["the run was interrupted"] if report.interrupted else [])]
    failing = (Grade.FAIL, Grade.WARN) if report.verdict is not None and report.verdict.strict else (Grade.FAIL,)
    cases = [
        *(_class_case(one, failing) for one in classes),
        *(
            _measured_case(m, f'<failure type="{m.status}" message="{escaped(m.reason or "")}"></failure>')
            for m in broken
        ),
        *(_measured_case(m, f'<skipped type="waived" message="{escaped(m.reason or "")}"/>') for m in waived.values()),
        *(_measured_case(m, '<skipped type="not-judged" message="measured, not judged"/>') for m in unjudged),
        *(
            f'  <testcase classname="bench" name="run"><failure type="incomplete" message="{escaped(one)}"></failure>'
            "</testcase>\n"
            for one in problems
        ),
    ]
    failures = sum(one.grade in failing for one in classes) + len(broken) + len(problems)
    skips = sum(one.grade is Grade.NO_REFERENCE for one in classes) + len(waived) + len(unjudged)
    return suite("egmctl bench", len(cases), failures, skips, "".join(cases))


def _class_case(one: ClassVerdict, failing: tuple[Grade, ...]) -> str:
    message = f'message="{escaped(one.reason)}"'
    if one.grade in failing:
        inside = f'<failure type="{one.grade}" {message}></failure>'
    elif one.grade is Grade.NO_REFERENCE:
        inside = f'<skipped type="no-reference" {message}/>'
    else:
        inside = f"<system-out>{escaped(one.reason)}</system-out>"
    name = f'classname="bench.{escaped(one.case)}" name="{escaped(one.path_class)}"'
    return f"  <testcase {name}>{inside}</testcase>\n"


def _measured_case(m: Measurement, inside: str) -> str:
    return (
        f'  <testcase classname="bench.{escaped(m.case)}" name="{escaped(f"{m.name} {m.path}")}">{inside}</testcase>\n'
    )


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
