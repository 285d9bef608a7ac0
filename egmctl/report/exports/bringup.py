"""A node's bring-up for Prometheus, Nagios and CI: its answer, then what doctor and the bench say."""

from __future__ import annotations

from egmctl.model.bringup import Answer, Bringup, JoinedCause
from egmctl.report.document import plain
from egmctl.report.exports.junit import Suite, bench_suite, doctor_suite, document
from egmctl.report.exports.nagios import performance, plugin_line, sentence
from egmctl.report.exports.prometheus import bench_prom, doctor_prom, gauge
from egmctl.report.views.bringup import cause_words, root_of, verdict


def bringup_prom(bringup: Bringup) -> str:
    """Return the metrics: the answer has a series for each word, of which one is 1."""
    answers = [({"answer": answer.value}, float(answer is bringup.answer)) for answer in Answer]
    told = gauge("egmctl_bringup_answer", "1 for what egmctl bringup says of the node.", answers)
    run = "" if bringup.run is None else bench_prom(bringup.run)
    return told + doctor_prom(bringup.diagnosis) + run


def bringup_nagios(bringup: Bringup) -> str:
    """Return one line of state, answer and cause, with performance data; then a line a cause."""
    answered = verdict(bringup)
    told = f"{answered.word}: {plain(answered.sentence)}"
    blamed = bringup.blamed
    root = None if blamed is None else root_of(bringup, blamed)
    if root is not None:
        told = f"{answered.word}: {root.check}: {plain(answered.sentence)}"
    slow = {number for cause in bringup.causes for number in cause.slow}
    data = f"{performance(bringup.diagnosis)} slow={len(slow)}"
    lines = [plugin_line(bringup.nagios_state, told, data), *(_line(bringup, cause) for cause in bringup.causes)]
    return "\n".join(lines) + "\n"


def _line(bringup: Bringup, cause: JoinedCause) -> str:
    root = root_of(bringup, cause)
    check = "bench" if root is None else root.check
    remedy = None if root is None else root.remedy
    return sentence(cause.status, f"{check}: {cause_words(bringup, cause)}", remedy)


def bringup_junit(bringup: Bringup) -> str:
    """Return JUnit XML: a suite of doctor's findings, and one of the path classes of the bench."""
    suites: list[Suite] = [doctor_suite(bringup.diagnosis)]
    if bringup.run is not None:
        suites.append(bench_suite(bringup.run))
    return document(suites)
