"""Results as the output of a Nagios plugin: https://nagios-plugins.org/doc/guidelines.html#PLUGOUTPUT."""

from __future__ import annotations

from collections.abc import Iterable

from egmctl.model.answer import Answer
from egmctl.model.bringup import Bringup
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import TOLD, Finding, Status
from egmctl.model.remedy import Remedy
from egmctl.report.views.findings import commands_of
from egmctl.units import printable

_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_Problem = tuple[Status, str, Remedy | None]


def doctor_nagios(diagnosis: Diagnosis) -> str:
    """Return a line with the state, the first root cause and performance data, then one line per problem."""
    problems = [f for status in TOLD for f in diagnosis.findings if f.status is status and not f.explained_by]
    lines = ((finding.status, _named(finding), finding.remedy) for finding in problems)
    answer = diagnosis.answer
    sentence = answer.sentence
    if answer.blamed is not None:
        more = f" (+{len(answer.causes) - 1} more)" if len(answer.causes) > 1 else ""
        sentence = f"{_named(answer.blamed.finding)}{more}"
    return _output(answer, sentence, _performance(diagnosis), lines)


def bringup_nagios(bringup: Bringup) -> str:
    """Return a line with the state, the answer, its cause and performance data, then one line per cause."""
    made = () if bringup.run is None else bringup.run.measurements
    causes = bringup.answer.causes
    explained = {number for cause in causes for number in cause.measurements}
    slow = [number for number in explained if not made[number].missed_path]
    lines = ((cause.status, f"{cause.finding.check}: {cause.title}", cause.finding.remedy) for cause in causes)
    check = "" if bringup.answer.blamed is None else f"{bringup.answer.blamed.finding.check}: "
    sentence = f"{check}{bringup.answer.sentence}"
    return _output(bringup.answer, sentence, f"{_performance(bringup.diagnosis)} slow={len(slow)}", lines)


def with_remedy(sentence: str, remedy: Remedy | None) -> str:
    """Return a sentence, followed by a remedy: its text, what it needs, and its commands with what each is for."""
    if remedy is None:
        return sentence
    commands = [f" {command.name} $ {command.text}" for command in commands_of(remedy)]
    return f"{f'{sentence}. ' if sentence else ''}{remedy.words}{''.join(commands)}"


def _output(answer: Answer, sentence: str, performance: str, problems: Iterable[_Problem]) -> str:
    """Return the line that Nagios shows, then one line per problem: status, sentence and remedy."""
    words = _unbarred(f"{answer.word}: {sentence}")
    lines = [f"EGMCTL {_WORDS[answer.nagios]} - {words} | {performance}"]
    lines += [f"{status.upper()} {_unbarred(with_remedy(words, remedy))}" for status, words, remedy in problems]
    return "\n".join(lines) + "\n"


def _performance(diagnosis: Diagnosis) -> str:
    return " ".join(f"{status}={diagnosis.counts[status]}" for status in Status if status in diagnosis.counts)


def _named(finding: Finding) -> str:
    return f"{finding.check}: {finding.title}"


def _unbarred(text: str) -> str:
    # "|" separates the text from the performance data.
    return printable(text).replace("|", "/")
