"""A diagnosis as the output of a Nagios plugin: https://nagios-plugins.org/doc/guidelines.html#PLUGOUTPUT."""

from __future__ import annotations

from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import TOLD, Finding, Remedy, Status, causes
from egmctl.units import printable

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
    first = plugin_line(diagnosis.nagios_state, told, performance(diagnosis))
    return "\n".join([first, *(sentence(one.status, _named(one), one.remedy) for one in problems)]) + "\n"


def plugin_line(state: int, told: str, data: str) -> str:
    """Return the line that Nagios shows: the state, what is wrong, and performance data behind a bar."""
    return f"EGMCTL {_WORDS[state]} - {_unbarred(told)} | {data}"


def performance(diagnosis: Diagnosis) -> str:
    """Return the numbers of checks by status as performance data."""
    return " ".join(f"{status}={diagnosis.counts.get(status, 0)}" for status in Status)


def sentence(status: Status, told: str, remedy: Remedy | None) -> str:
    """Return a line on one problem, with what to do."""
    if remedy is None:
        return f"{status.upper()} {_unbarred(told)}"
    command = f" $ {remedy.command}" if remedy.command else ""
    return f"{status.upper()} {_unbarred(f'{told}. {remedy.text}{command}')}"


def _named(finding: Finding) -> str:
    place = f"{finding.place.label}: " if finding.place.label else ""
    return f"{finding.check}: {place}{finding.summary}"


def _unbarred(text: str) -> str:
    # "|" begins the performance data.
    return printable(text).replace("|", "/")
