"""The view of ``egmctl explain``: the answer with its remedy, then each failure with its causes, the gravest first."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.model.explanation import DECIDED, CauseState, Explanation, Explanations, KnownCause, Library, Severity, Word
from egmctl.model.machine import OriginKind
from egmctl.report import document as doc
from egmctl.report.document import Level, Tone, Words
from egmctl.report.views.causes import advice, finding_entry, title
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
_RUN = "run the program with 'egmctl explain -- PROGRAM'"
_NEEDS = {"root": "as root", "idle-gpus": "with the GPUs idle", "reboot": "with a reboot"}
_PLACES = {"host": "on the host", "container": "in the container", "pod": "in the pod", "job": "in the job"}


def explain_document(result: Explanations) -> doc.Document:
    """Return the document of failures and their causes: the answer, then each failure with its causes."""
    shown = () if result.checked is None else banners(result.checked)
    body = tuple(_body(result))
    return doc.Document(command="egmctl explain", subject="errors and their causes", banners=shown, body=body)


def _body(result: Explanations) -> Iterator[doc.Block]:
    leader = result.leading
    yield _verdict(result, leader)
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


def _verdict(result: Explanations, leader: Explanation | None) -> doc.Verdict:
    word = result.word
    if leader is None and word is Word.CAUSE:
        said = "; ".join(each.failure.log for each in result.explanations if each.failure.log)
        return doc.Verdict(word, Tone.PLAIN, printable(f"the driver says: {said}"))
    if leader is None:
        return doc.Verdict(word, Tone.UNKNOWN, _nothing(result), _where_to_go(result))
    first = leader.causes[0]
    if word is Word.WHICH_ERROR:
        return doc.Verdict(word, Tone.WARN, _question(result, leader), _answer_by(result, leader))
    sentence = first.cause
    if first.state in DECIDED and first.findings:
        sentence = f"{first.cause} ({title(first.findings[0])})"
    if leader.failure.log and word is Word.POSSIBLE_CAUSE:
        # Without a cause that its words name, CUDA's own log is the better answer.
        sentence = f"the driver says: {leader.failure.log}; the likeliest cause: {first.cause}"
    sentence += _ruled_out(leader) if word is Word.POSSIBLE_CAUSE else ""
    return doc.Verdict(word, Tone.PLAIN, printable(f"{sentence}{_of_a_part(result)}"), _next_step(first))


def _of_a_part(result: Explanations) -> str:
    """Return what the answer leaves out: kinds of errors, or the rest of an interrupted text; empty if nothing."""
    parts = []
    if result.left_out:
        parts.append(f"the gravest of more than {len(result.explanations)} kinds of errors")
    if result.interrupted:
        parts.append(f"interrupted after {several(result.lines or 0, 'line')}")
    return f" ({'; '.join(parts)})" if parts else ""


def _nothing(result: Explanations) -> str:
    """Return why nothing is explained, with the lines that are no fault."""
    parts = [result.nothing or ""]
    parts += [
        f"line {each.failure.line_number} is no fault: {each.meaning}"
        for each in result.explanations
        if each.severity is Severity.HARMLESS
    ]
    return "; ".join(parts)


def _where_to_go(result: Explanations) -> str:
    """Return the next step where nothing is known: what looks at the node, or asks the driver."""
    if not any(each.is_fault for each in result.explanations) and result.lines is not None:
        purposes = f" --for {','.join(result.purposes)}" if result.purposes else ""
        return (
            f"'egmctl doctor{purposes}' looks at the node itself; give more lines around the error, or "
            "'egmctl explain -- PROGRAM'"
        )
    checks = {
        cause.checks[0].partition(".")[0] for each in result.explanations for cause in each.causes if cause.checks
    }
    if checks:
        return f"run egmctl doctor --check '{','.join(f'{area}.*' for area in sorted(checks))}'"
    return f"{_RUN}, or 'egmctl doctor' for the node"


def _question(result: Explanations, leader: Explanation) -> str:
    if result.asks_for_error:
        return f"which error did {printable(leader.failure.call or '')} return? {len(result.explanations)} are known"
    calls = {call for cause in leader.causes for call in cause.calls}
    return (
        f"{leader.meaning or leader.name} ({leader.failure.number}) has other causes for each function; which one "
        f"returned it? {several(len(calls), 'function')} known"
    )


def _answer_by(result: Explanations, leader: Explanation) -> str:
    if result.asks_for_error:
        return f"egmctl explain {printable(leader.failure.call or '')} ERROR"
    return f"{_RUN}, which names the function, or give it: egmctl explain FUNCTION {leader.failure.number}"


def _ruled_out(leader: Explanation) -> str:
    """Return how many causes the checks have ruled out; empty if none."""
    number = sum(cause.state is CauseState.EXCLUDED for cause in leader.causes)
    return f" (none of {len(leader.causes)} known causes confirmed; {number} ruled out)" if number else ""


def _next_step(cause: KnownCause) -> str:
    """Return what to do about a cause: what its finding says, else the remedy of the cause."""
    if cause.state in DECIDED:
        found = next((advice(finding) for finding in cause.findings if finding.remedy), None)
        if found is not None:
            return found
    step = remedy_words(cause).removesuffix(".")
    if cause.state is CauseState.STATED or not cause.look:
        return step
    return f"check first: {cause.look}. If so: {step[0].lower()}{step[1:]}"


def remedy_words(cause: KnownCause) -> str:
    """Return what to do about a cause, with what it needs and, if it works in one place only, where."""
    needs = [_NEEDS.get(need, need) for need in cause.needs]
    places = [_PLACES[cause.works_in[0]]] if cause.works_in == ("host",) else []
    words = ", ".join((*places, *needs))
    return f"{cause.remedy.removesuffix('.')} ({words})." if words else cause.remedy


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
    if cause.look and not (is_answer and cause.state not in DECIDED):
        rows.append(("look", doc.Span(cause.look, code=True)))
    if cause.state in DECIDED and cause.findings and not brief:
        rows = [("found", title(cause.findings[0])), *rows[:1]]
        return finding_entry(
            cause.findings[0], words, word=word, tone=tone, rows=rows, fix=not is_answer, level=Level.NORMAL
        )
    rows += [] if is_answer else [("fix", remedy_words(cause))]
    rows += [("run", doc.Span(cause.run, code=True))] if cause.run else []
    excluded = cause.state is CauseState.EXCLUDED
    lacking = ", ".join(dict.fromkeys(finding.check for finding in cause.findings))
    rows += [("no data", lacking)] if lacking else []
    body = doc.KeyValues(tuple(rows), level=Level.VERBOSE if brief or excluded or cause.calls else Level.NORMAL)
    return doc.Entry(word, tone, words, id=", ".join(cause.checks) if excluded else "", body=(body,))


def _count(result: Explanations, state: CauseState) -> int:
    return sum(cause.state is state for each in result.explanations for cause in each.causes)
