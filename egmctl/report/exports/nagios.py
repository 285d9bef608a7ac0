"""A diagnosis as the output of a Nagios plugin: https://nagios-plugins.org/doc/guidelines.html#PLUGOUTPUT."""

from __future__ import annotations

from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import TOLD, Finding, Status
from egmctl.units import printable
from egmctl.verdict.causes import causes

_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")


def nagios(diagnosis: Diagnosis) -> str:
    """Return one line of state, what is wrong by which check, and performance data; then a line a problem."""
    number = diagnosis.counts
    roots = [cause.finding for cause in causes(diagnosis.findings)]
    problems = [f for status in TOLD for f in diagnosis.findings if f.status is status and not f.explained_by]
    told = ", ".join(f"{count} {status}" for status, count in number.items() if count)
    if diagnosis.nothing is not None:
        told = diagnosis.nothing
    elif roots:
        more = f" (+{len(roots) - 1} more)" if len(roots) > 1 else ""
        told = f"{_named(roots[0])}{more}"
    data = " ".join(f"{status}={number.get(status, 0)}" for status in Status)
    first = f"EGMCTL {_WORDS[diagnosis.nagios_state]} - {told} | {data}"
    return "\n".join([first, *(f"{finding.status.upper()} {_sentence(finding)}" for finding in problems)]) + "\n"


def _named(finding: Finding) -> str:
    place = f"{finding.place.label}: " if finding.place.label else ""
    # "|" begins the performance data.
    return printable(f"{finding.check}: {place}{finding.summary}").replace("|", "/")


def _sentence(finding: Finding) -> str:
    remedy = finding.remedy
    if remedy is None:
        return _named(finding)
    command = f" $ {remedy.command}" if remedy.command else ""
    return f"{_named(finding)}. {printable(f'{remedy.text}{command}').replace('|', '/')}"
