"""A node's bring-up for Prometheus and for CI: its answer, then what doctor and the bench say."""

from __future__ import annotations

from egmctl.model.bringup import Answer, Bringup
from egmctl.model.verdict import ClassVerdict, Grade
from egmctl.report.exports.bench_prom import bench_prom
from egmctl.report.exports.junit import Suite, doctor_suite, document, escaped, suite
from egmctl.report.exports.prometheus import doctor_prom, gauge


def bringup_prom(bringup: Bringup) -> str:
    """Return the metrics: the answer has a series for each word, of which one is 1."""
    answers = [({"answer": answer.value}, float(answer is bringup.answer)) for answer in Answer]
    told = gauge("egmctl_bringup_answer", "1 for what egmctl bringup says of the node.", answers)
    run = "" if bringup.run is None else bench_prom(bringup.run)
    return told + doctor_prom(bringup.diagnosis) + run


def bringup_junit(bringup: Bringup) -> str:
    """Return JUnit XML: a suite of doctor's findings, and one of the path classes of the bench."""
    suites: list[Suite] = [doctor_suite(bringup.diagnosis)]
    verdict = bringup.run.verdict if bringup.run is not None else None
    if verdict is not None:
        failures = sum(one.grade is Grade.FAIL for one in verdict.classes)
        skips = sum(one.grade is Grade.NO_REFERENCE for one in verdict.classes)
        suites.append(
            suite("egmctl bench", len(verdict.classes), failures, skips, "".join(map(_case, verdict.classes)))
        )
    return document(suites)


def _case(one: ClassVerdict) -> str:
    message = f'message="{escaped(one.reason)}"'
    inside = {
        Grade.FAIL: f'<failure type="fail" {message}></failure>',
        Grade.NO_REFERENCE: f'<skipped type="no-reference" {message}/>',
    }.get(one.grade, f"<system-out>{escaped(one.reason)}</system-out>")
    name = f'classname="bench.{escaped(one.case)}" name="{escaped(one.path_class)}"'
    return f"  <testcase {name}>{inside}</testcase>\n"
