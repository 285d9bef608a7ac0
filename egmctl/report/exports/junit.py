"""Results as JUnit XML, for CI systems."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from egmctl.model.answer import Answer, JUnit
from egmctl.model.bringup import Bringup
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import TOLD, Finding, Status
from egmctl.model.measurement import BROKEN, MeasurementStatus, RunReport
from egmctl.model.verdict import BAD_GRADES, Grade
from egmctl.report.exports.nagios import with_remedy
from egmctl.units import printable


def doctor_junit(diagnosis: Diagnosis) -> str:
    """Return JUnit XML with one test case per finding.

    ``fail`` is a failure, and so are ``warn`` and ``note`` if the diagnosis is strict. ``skip``,
    ``unknown``, ``assumed`` and findings that another one explains are skipped.
    """
    return _document(_doctor_suite(diagnosis, _answer("doctor", diagnosis.answer)))


def bench_junit(report: RunReport) -> str:
    """Return JUnit XML with one test case per class of paths and per measurement that broke.

    Classes without a reference and measurements that were waived or not judged are skipped test cases.
    """
    return _document(_bench_suite(report, _answer("bench", report.answer)))


def bringup_junit(bringup: Bringup) -> str:
    """Return JUnit XML with a suite for the answer, one for doctor's findings and, after a run, one for the bench."""
    whole = _suite("egmctl bringup", [_answer("bringup", bringup.answer)])
    parts = [_doctor_suite(bringup.diagnosis)]
    if bringup.run is not None:
        parts.append(_bench_suite(bringup.run))
    return _document(whole, *parts)


def _answer(command: str, answer: Answer) -> Element:
    """Return the first test case: it fails, or ends in an error, as the command does. What others say is beside it."""
    message = f"{answer.word}: {answer.sentence}"
    text = with_remedy("", answer.next_step)
    tag = {JUnit.PASSES: "system-out"}.get(answer.junit, answer.junit.value)
    return _case(command, "answer", tag, answer.state, message, text if tag != "system-out" else message)


def _document(*suites: Element) -> str:
    root = Element("testsuites", _counts([case for suite in suites for case in suite]))
    root.extend(suites)
    ElementTree.indent(root, " ")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _suite(name: str, cases: Sequence[Element]) -> Element:
    suite = Element("testsuite", {"name": name} | _counts(cases))
    suite.extend(cases)
    return suite


def _counts(cases: Sequence[Element]) -> dict[str, str]:
    tags = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    numbers = {name: str(sum(case.find(tag) is not None for case in cases)) for name, tag in tags.items()}
    return {"tests": str(len(cases))} | numbers


def _case(classname: str, name: str, tag: str, kind: str, message: str, text: str = "") -> Element:
    """Return a test case with ``text`` in ``system-out``, or in an element that has kind and message too."""
    case = Element("testcase", {"classname": printable(classname), "name": printable(name)})
    attributes = {} if tag == "system-out" else {"type": kind, "message": printable(message)}
    SubElement(case, tag, attributes).text = printable(text) or None
    return case


def _doctor_suite(diagnosis: Diagnosis, *first: Element) -> Element:
    failing = TOLD if diagnosis.strict else (Status.FAIL,)
    return _suite("egmctl doctor", [*first, *(_finding(finding, failing) for finding in diagnosis.findings)])


def _finding(finding: Finding, failing: tuple[Status, ...]) -> Element:
    place = f" [{finding.place.label}]" if finding.place.label else ""
    names = f"doctor.{finding.check.partition('.')[0]}", finding.check + place
    if finding.explained_by:
        by = f"explained by {', '.join(finding.explained_by)}: {finding.summary}"
        return _case(*names, "skipped", "explained", by)
    if finding.status in failing:
        return _case(*names, "failure", finding.status, finding.summary, with_remedy("", finding.remedy))
    if finding.status in (Status.SKIP, Status.UNKNOWN, Status.ASSUMED):
        return _case(*names, "skipped", finding.status, finding.summary)
    return _case(*names, "system-out", "", "", with_remedy(f"{finding.status}: {finding.summary}", finding.remedy))


def _bench_suite(report: RunReport, *first: Element) -> Element:
    verdict = report.verdict
    proven, excused = report.answer.proven, report.answer.excused
    cases = [*first]
    for path_class in () if verdict is None else verdict.classes:
        names = f"bench.{path_class.case}", path_class.path_class
        if path_class.by_speed in BAD_GRADES and proven.intersection(path_class.measurements):
            cases.append(_case(*names, "failure", path_class.grade, path_class.reason))
        elif excused.intersection(path_class.measurements):
            cases.append(_case(*names, "error", "excused", path_class.reason))
        elif path_class.grade is Grade.NO_REFERENCE:
            cases.append(_case(*names, "skipped", "no-reference", path_class.reason))
        else:
            cases.append(_case(*names, "system-out", "", "", path_class.reason))
    waived = set()
    for number, m in enumerate(report.measurements):
        names = f"bench.{m.case}", f"{m.name} {m.path}"
        if m.status in BROKEN:
            tag = "failure" if number in proven else "error"
            cases.append(_case(*names, tag, m.status, m.reason or ""))
        elif m.status is MeasurementStatus.WAIVED and (m.case, m.reason) not in waived:
            waived.add((m.case, m.reason))
            cases.append(_case(*names, "skipped", "waived", m.reason or ""))
        elif m.measured and verdict is None:
            cases.append(_case(*names, "skipped", "not-judged", "measured, not judged"))
    cases += [_case("bench", "run", "error", "broke", problem) for problem in report.problems]
    return _suite("egmctl bench", cases)
