"""The view of ``egmctl explain``: the answer with its remedy, then each failure with its causes, the gravest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from egmctl.model.explanation import DECIDED, CauseState, Explanation, Explanations, KnownCause, Library, Severity
from egmctl.model.machine import OriginKind
from egmctl.report import document as doc
from egmctl.report.document import Level, Tone, Words
from egmctl.report.views.findings import commands_of, finding_entry, verdict
from egmctl.report.views.machine import banners
from egmctl.units import listed, printable, several

_MANY = 3
"""The number of failures up to which each cause is shown with how to see and fix it without ``-v``."""
_STATES = {
    CauseState.STATED: ("STATED", Tone.BAD),
    CauseState.HOLDS: ("HERE", Tone.BAD),
    CauseState.LIKELY: ("LIKELY", Tone.WARN),
    CauseState.UNKNOWN: ("POSSIBLE", Tone.UNKNOWN),
    CauseState.EXCLUDED: ("NOT HERE", Tone.DIM),
}


def explain_document(result: Explanations) -> doc.Document:
    """Return the document of failures and their causes: the answer, then each failure with its causes."""
    shown = () if result.checked is None else banners(result.checked)
    body = tuple(_body(result))
    return doc.Document(command="egmctl explain", subject="errors and their causes", banners=shown, body=body)


def _body(result: Explanations) -> Iterator[doc.DocumentBlock]:
    leader = result.leading
    # Naming a cause is neither good nor bad, so the tone is neutral.
    yield replace(verdict(result.answer), tone=Tone.PLAIN)
    brief = len(result.explanations) > _MANY
    ordered = [each for each in result.explanations if each is leader]
    ordered += [each for each in result.explanations if each is not leader]
    shown: set[str] = set()
    for each in ordered:
        yield doc.Paragraph(_failure_words(each), level=Level.SUMMARY)
        yield doc.KeyValues(tuple(_lines(each)))
        for cause in each.causes:
            is_answer = each is leader and cause is each.causes[0]
            known = cause.cause in shown or (brief and each is not leader and cause.state not in DECIDED)
            if each.severity is Severity.HARMLESS:
                yield _harmless_entry(cause)
                continue
            yield _cause_entry(cause, brief=known, is_answer=is_answer)
        yield doc.KeyValues(tuple(("source", source) for source in each.sources), level=Level.VERBOSE)
        shown.update(cause.cause for cause in each.causes)
    if result.left_out:
        left_out = f"{several(result.left_out, 'line')} with further kinds of errors, none of them graver, left out"
        yield doc.Paragraph(left_out, tone=Tone.WARN)
    if any(each.sources for each in result.explanations):
        yield doc.Hint(f"-v shows the sources{', and how to see and fix each cause' if brief else ''}")
    if _count(result, CauseState.EXCLUDED) and result.checked is not None and result.checked.kind is OriginKind.LIVE:
        yield doc.Paragraph("Access and limits are those of this process, or of --pid PID; another may have others.")


def _failure_words(each: Explanation) -> Words:
    failure = each.failure
    call = f"{printable(failure.call)}: " if failure.call else ""
    has_number = failure.library in (Library.CUDA, Library.NVML) and failure.number is not None
    number = f" ({failure.number})" if has_number else ""
    if failure.library is Library.MESSAGE and failure.number is not None:
        number = f", SXid {failure.number}"
    number += "".join(f", {device}" for device in failure.devices)
    further = "".join(f", {words}" for words in (each.runtime_name, each.meaning) if words not in ("", each.name))
    if failure.library is Library.MESSAGE:
        further = f": {each.meaning}"
    return doc.Span(f"{call}{each.name or 'any error'}{number}", Tone.STRONG), further


def _lines(each: Explanation) -> Iterator[tuple[str, str]]:
    failure = each.failure
    times = f", {failure.count} times" if failure.count > 1 else ""
    if failure.line:
        place = "text" if failure.line_number is None else f"line {failure.line_number}"
        yield f"{place}{times}", printable(failure.line)
    if failure.log:
        yield "driver", printable(failure.log)


def _cause_entry(cause: KnownCause, *, brief: bool, is_answer: bool) -> doc.Entry:
    word, tone = _STATES[cause.state]
    words = f"from {listed(cause.calls, 'or')}: {cause.cause}" if cause.calls else cause.cause
    rows: list[tuple[str, Words]] = [("see", cause.see)] if cause.see else []
    alternative: list[tuple[str, Words]] = [("or", cause.alternative)] if cause.alternative else []
    if cause.state in DECIDED and cause.findings and not brief:
        rows = [("found", cause.findings[0].title), *rows, *alternative]
        return finding_entry(
            cause.findings[0], words, word=word, tone=tone, rows=rows, fix=not is_answer, level=Level.NORMAL
        )
    rows += [] if is_answer else [("fix", cause.remedy.words)]
    rows += alternative
    excluded = cause.state is CauseState.EXCLUDED
    lacking = ", ".join(dict.fromkeys(finding.check for finding in cause.findings))
    rows += [("no data", lacking)] if lacking else []
    level = Level.VERBOSE if brief or excluded or cause.calls else Level.NORMAL
    # The answer itself says what to look at.
    says_look = is_answer and cause.state not in DECIDED and cause.confirmable
    shown = replace(cause.remedy, look=None) if says_look else cause.remedy
    commands = [replace(command, level=level) for command in commands_of(shown)]
    body: tuple[doc.DocumentBlock, ...] = (doc.KeyValues(tuple(rows), level=level), *commands)
    return doc.Entry(word, tone, words, id=", ".join(cause.checks) if excluded else "", body=body)


def _harmless_entry(cause: KnownCause) -> doc.Entry:
    """Return the entry of a line that is no fault: nothing holds here, and nothing has to be fixed."""
    rows = doc.KeyValues((("note", cause.remedy.words),))
    return doc.Entry("NO FAULT", Tone.DIM, cause.cause, body=(rows, *commands_of(cause.remedy)))


def _count(result: Explanations, state: CauseState) -> int:
    return sum(cause.state is state for each in result.explanations for cause in each.causes)
