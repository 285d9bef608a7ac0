"""Results as the output of a Nagios plugin: https://nagios-plugins.org/doc/guidelines.html#PLUGOUTPUT."""

from __future__ import annotations

from collections.abc import Iterable

from egmctl.model.bringup import Bringup
from egmctl.model.finding import TOLD, Diagnosis, Finding, Status, root_causes
from egmctl.model.remedy import Remedy
from egmctl.report.views.causes import commands_of, remedy_words
from egmctl.units import printable

_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_Problem = tuple[Status, str, Remedy | None]


def doctor_nagios(diagnosis: Diagnosis) -> str:
    """Return a line with the state, the first root cause and performance data, then one line per problem."""
    roots = [cause.finding for cause in root_causes(diagnosis.findings)]
    problems = [f for status in TOLD for f in diagnosis.findings if f.status is status and not f.explained_by]
    sentence = ", ".join(f"{count} {status}" for status, count in diagnosis.counts.items() if count)
    if diagnosis.nothing is not None:
        sentence = diagnosis.nothing
    elif roots:
        sentence = _named(roots[0]) + (f" (+{len(roots) - 1} more)" if len(roots) > 1 else "")
    lines = ((finding.status, _named(finding), finding.remedy) for finding in problems)
    return _output(diagnosis.nagios_state, sentence, _performance(diagnosis), lines)


def bringup_nagios(bringup: Bringup) -> str:
    """Return a line with the state, the answer, its cause and performance data, then one line per cause."""
    from egmctl.report.document import plain
    from egmctl.report.views.bringup import cause_words, verdict

    answered = verdict(bringup)
    check = "" if bringup.blamed is None else f"{bringup.blamed.finding.check}: "
    made = () if bringup.run is None else bringup.run.measurements
    explained = {number for cause in bringup.causes for number in cause.explains}
    slow = [number for number in explained if not made[number].missed_path]
    problems = [
        (cause.status, f"{cause.finding.check}: {cause_words(bringup, cause)}", cause.finding.remedy)
        for cause in bringup.causes
    ]
    sentence = f"{answered.word}: {check}{plain(answered.sentence)}"
    return _output(bringup.nagios_state, sentence, f"{_performance(bringup.diagnosis)} slow={len(slow)}", problems)


def with_remedy(sentence: str, remedy: Remedy | None) -> str:
    """Return a sentence, followed by a remedy: its text, what it needs, and its commands with what each is for."""
    if remedy is None:
        return sentence
    commands = [f" {command.name} $ {command.text}" for command in commands_of(remedy)]
    return f"{f'{sentence}. ' if sentence else ''}{remedy_words(remedy)}{''.join(commands)}"


def _output(state: int, sentence: str, performance: str, problems: Iterable[_Problem]) -> str:
    """Return the line that Nagios shows, then one line per problem: status, sentence and remedy."""
    lines = [f"EGMCTL {_WORDS[state]} - {_unbarred(sentence)} | {performance}"]
    lines += [f"{status.upper()} {_unbarred(with_remedy(words, remedy))}" for status, words, remedy in problems]
    return "\n".join(lines) + "\n"


def _performance(diagnosis: Diagnosis) -> str:
    return " ".join(f"{status}={diagnosis.counts.get(status, 0)}" for status in Status)


def _named(finding: Finding) -> str:
    place = f"{finding.place.label}: " if finding.place.label else ""
    return f"{finding.check}: {place}{finding.summary}"


def _unbarred(text: str) -> str:
    # "|" separates the text from the performance data.
    return printable(text).replace("|", "/")
