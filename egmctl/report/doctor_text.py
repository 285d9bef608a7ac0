"""``egmctl doctor`` for people: problems first, each with what to do; the rest folded; last line the counts.

Without host names and times: nodes in the same state print the same bytes, so that the outputs of many fold together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.text import Text

from egmctl.doctor.check import Check
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Confidence, Finding, Guard, Remedy, Status
from egmctl.report.origin import modelled_banner
from egmctl.report.table import BAD, DIM, HEADING, WARN, trimmed, wrap
from egmctl.units import printable

STYLES = {Status.FAIL: BAD, Status.WARN: WARN, Status.UNKNOWN: "magenta", Status.SKIP: DIM, Status.PASS: "green"}
UNKNOWNS_SHOWN = 5
"""More findings than this that could not be told are folded: of a modelled machine, documents leave much open."""

_STATUS_WIDTH = max(map(len, Status)) + 2
_INDENT = " " * _STATUS_WIDTH


def doctor_text(diagnosis: Diagnosis, *, verbose: int = 0, brief: bool = False) -> Text:
    """Render a diagnosis.

    Parameters
    ----------
    verbose
        Above 0, nothing is folded and every finding has its evidence.
    brief
        Only one line a problem, and the counts.
    """
    text = modelled_banner(diagnosis.machine)
    if not brief:
        text.append(wrap(f"Platform: {printable(diagnosis.platform)}", ""))
        if diagnosis.machine.process is not None and diagnosis.machine.process.pid:
            text.append(f"Process: {diagnosis.machine.process.pid}; what NVML says is seen from outside of it\n")
        text.append("\n")
    for status in Status:
        shown, folded = _split(diagnosis, status)
        if verbose:
            shown, folded = [finding for finding in diagnosis.findings if finding.status is status], []
        if brief and status not in (Status.FAIL, Status.WARN):
            continue
        for finding in shown:
            _finding(text, finding, verbose=verbose, brief=brief)
        if folded:
            _folded(text, status, folded)
    text.append(_last_line(diagnosis), HEADING).append("\n")
    return trimmed(text)


def checks_text(checks: Iterable[Check]) -> Text:
    """Render the list of checks: id, what each guards, and its title."""
    rows = [(check.id, check.title, _guards(check)) for check in checks]
    width = max((len(check_id) for check_id, _, _ in rows), default=0)
    text = Text()
    for check_id, title, guards in rows:
        text.append(check_id.ljust(width), HEADING).append(f"  {title}  ").append(f"[{guards}]\n", DIM)
    return text


def explain_text(check: Check) -> Text:
    """Render what there is to know of a check."""
    text = Text.assemble((check.id, HEADING), f": {check.title}\n", (f"guards {', '.join(check.guards)}\n", DIM))
    for title, body in (("Why it matters", check.why), ("How it is read", check.read), ("How to fix it", check.fix)):
        text.append(f"\n{title}\n", HEADING).append(wrap(body, "  ", "  "))
    return text


def _guards(check: Check) -> str:
    guards = [guard for guard in Guard if guard in check.guards]
    return "all" if guards == list(Guard) else ",".join(guards)


def _finding(text: Text, finding: Finding, *, verbose: int, brief: bool) -> None:
    place = f"{finding.place.label}: " if finding.place.label else ""
    words = printable(place + finding.summary)
    text.append(finding.status.value.upper().ljust(_STATUS_WIDTH), STYLES[finding.status])
    text.append(finding.check, HEADING).append("  ")
    if brief:
        text.append(words).append("\n")
        return
    text.append(_after(f"{_INDENT}{finding.check}  ", words))
    if finding.cause and (verbose or finding.status is not Status.PASS):
        sure = "" if finding.confidence is Confidence.HIGH else f" ({finding.confidence} confidence)"
        _line(text, "cause", finding.cause + sure)
    if finding.remedy is not None:
        _remedy(text, finding.remedy)
    if verbose:
        if finding.note:
            _line(text, "note", finding.note)
        for seen in finding.evidence:
            errno = f" ({seen.errno})" if seen.errno and seen.errno not in seen.value else ""
            _line(text, "seen", f"{seen.source}: {seen.value}{errno}")


def _remedy(text: Text, remedy: Remedy) -> None:
    needs = [
        word for word, needed in (("as root", remedy.needs_root), ("needs a reboot", remedy.needs_reboot)) if needed
    ]
    _line(text, "fix", remedy.text + (f" ({', '.join(needs)})" if needs else ""), "cyan")
    if remedy.command is not None:
        # Whole, on a line of its own: to be copied.
        text.append(f"{_INDENT}{'':7}$ {printable(remedy.command)}\n", HEADING)


def _line(text: Text, label: str, words: str, style: str = DIM) -> None:
    head = f"{_INDENT}{label:5}  "
    text.append(head, style).append(_after(head, printable(words), further=" " * len(head)))


def _after(head: str, words: str, further: str = _INDENT) -> str:
    """Return words as they follow ``head`` on its line, broken at the page's width."""
    return wrap(words, head, further)[len(head) :]


def _split(diagnosis: Diagnosis, status: Status) -> tuple[list[Finding], list[Finding]]:
    """Return the findings of a status that are shown one by one, and those that are folded."""
    findings = [finding for finding in diagnosis.findings if finding.status is status]
    if status in (Status.FAIL, Status.WARN):
        return findings, []
    # A check that found a problem was told already.
    verdicts = diagnosis.verdicts
    rest = [finding for finding in findings if verdicts[finding.check] is status]
    if status is not Status.UNKNOWN:
        return [], rest
    if len(rest) <= UNKNOWNS_SHOWN:
        return rest, []
    return [finding for finding in rest if finding.remedy], [finding for finding in rest if not finding.remedy]


def _folded(text: Text, status: Status, findings: Sequence[Finding]) -> None:
    checks = list(dict.fromkeys(finding.check for finding in findings))
    words = _checks(len(checks))
    if status is Status.UNKNOWN:
        words += f" (-v says why): {', '.join(checks)}"
    if status is Status.SKIP:
        words += _reasons(findings)
    text.append(status.upper().ljust(_STATUS_WIDTH), STYLES[status])
    text.append(_after(_INDENT, printable(words)))


def _reasons(findings: Sequence[Finding]) -> str:
    """Name the reasons that several checks share, or the only one."""
    reasons: dict[str, set[str]] = {}
    for finding in findings:
        reasons.setdefault(finding.summary, set()).add(finding.check)
    shared = {reason: len(ids) for reason, ids in reasons.items() if len(ids) > 1 or len(reasons) == 1}
    told = [f"{reason} ({number})" for reason, number in shared.items()]
    others = len(reasons) - len(shared)
    if others:
        told.append(f"{others} other reason{'s' * (others != 1)}")
    return f" (-v says more): {'; '.join(told)}" if shared else " (-v says why)"


def _last_line(diagnosis: Diagnosis) -> str:
    told = ", ".join(f"{number} {status}" for status, number in diagnosis.counts.items())
    return f"{_checks(sum(diagnosis.counts.values()))}: {told}"


def _checks(number: int) -> str:
    return f"{number} check{'s' * (number != 1)}"
