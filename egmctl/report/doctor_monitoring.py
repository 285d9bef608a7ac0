"""``egmctl doctor`` for the programs that watch nodes: Nagios, Prometheus' textfile collector, JUnit readers."""

from __future__ import annotations

import html

from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Finding, Status
from egmctl.report.prometheus import gauge
from egmctl.units import printable

PROM_VALUES = {Status.PASS: 0, Status.WARN: 1, Status.FAIL: 2, Status.UNKNOWN: 3}
"""Nagios' numbers. A skipped check has no sample."""

_NAGIOS_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")


def nagios(diagnosis: Diagnosis) -> str:
    """Return the plugin output: one line of state and performance data, then a line a problem.

    https://nagios-plugins.org/doc/guidelines.html#PLUGOUTPUT
    """
    number = diagnosis.counts
    problems = [f for status in (Status.FAIL, Status.WARN) for f in diagnosis.findings if f.status is status]
    told = diagnosis.nothing or ", ".join(f"{number[status]} {status}" for status in Status)
    data = " ".join(f"{status}={number[status]}" for status in Status)
    first = f"EGMCTL {_NAGIOS_WORDS[diagnosis.nagios_state]} - {told} | {data}"
    return "\n".join([first, *(f"{finding.status.upper()} {_sentence(finding)}" for finding in problems)]) + "\n"


def prom(diagnosis: Diagnosis) -> str:
    """Return metrics for node_exporter's textfile collector."""
    worst: dict[tuple[str, str], int] = {}
    for finding in diagnosis.findings:
        if finding.status in PROM_VALUES:
            key = finding.check, finding.place.label
            worst[key] = max(worst.get(key, 0), PROM_VALUES[finding.status])
    checks = [({"check": check, "place": place}, value) for (check, place), value in worst.items()]
    counts = [({"status": status}, number) for status, number in diagnosis.counts.items()]
    meaning = "What a check of egmctl doctor says: 0 pass, 1 warn, 2 fail, 3 unknown."
    return gauge("egmctl_doctor_check", meaning, checks) + gauge(
        "egmctl_doctor_findings", "Number of findings of egmctl doctor.", counts
    )


def junit(diagnosis: Diagnosis) -> str:
    """Return JUnit XML: a finding is a test case; ``skip`` and ``unknown`` are skipped ones, ``warn`` passes."""
    findings = diagnosis.findings
    failing = (Status.FAIL, Status.WARN) if diagnosis.strict else (Status.FAIL,)
    failures = sum(finding.status in failing for finding in findings)
    skips = sum(finding.status in (Status.SKIP, Status.UNKNOWN) for finding in findings)
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
    if finding.status in failing:
        inside = f'<failure type="{finding.status}" {message}>{_xml(_advice(finding))}</failure>'
    elif finding.status in (Status.SKIP, Status.UNKNOWN):
        inside = f'<skipped type="{finding.status}" {message}/>'
    else:
        told = f"{finding.status}: {finding.summary}{_advice(finding, before='. ')}"
        inside = f"<system-out>{_xml(told)}</system-out>"
    return f'  <testcase classname="doctor.{_xml(area)}" name="{_xml(finding.check + place)}">{inside}</testcase>\n'


def _sentence(finding: Finding) -> str:
    place = f"{finding.place.label}: " if finding.place.label else ""
    # "|" begins the performance data.
    return printable(f"{finding.check}: {place}{finding.summary}{_advice(finding, before='. ')}").replace("|", "/")


def _advice(finding: Finding, before: str = "") -> str:
    remedy = finding.remedy
    if remedy is None:
        return ""
    return before + remedy.text + (f" $ {remedy.command}" if remedy.command else "")


def _xml(text: str) -> str:
    return html.escape(printable(text))
