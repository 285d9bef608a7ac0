"""Where text, exit code and formats once said different things of one run, one node or one fleet, they say one thing.

Each row was found wrong: a run that was incomplete ended with 0, a crash was a failure of the node in one command and a
gap in another. All of them are decided by ``egmctl/verdict/answers`` now, for every format at once.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace

import pytest

from egmctl.api.doctor import explain, judged
from egmctl.api.machine import topology_of
from egmctl.comparison import compare
from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.runner import CHECKS
from egmctl.errors import UsageError
from egmctl.facts.error_log import read_failures
from egmctl.fleet import session
from egmctl.model.answer import TABLE, State, worst
from egmctl.model.bringup import Bringup
from egmctl.model.comparison import Comparison
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Status
from egmctl.model.fleet import FleetReport, NodeCommand, NodeResult, Reach
from egmctl.model.machine import Machine
from egmctl.model.measurement import MeasurementStatus, RunReport
from egmctl.model.record import Command
from egmctl.verdict.answers import answered
from egmctl.verdict.bringup import bringup_answer
from egmctl.verdict.explain import with_causes
from egmctl.verdict.judge import with_verdict
from egmctl.verdict.learning import Run, learn
from egmctl.verdict.profiles import load_profile
from tests.answers import diagnose
from tests.comparison.runs import saved
from tests.doctor.machines import patched, shipped
from tests.doctor.scenes import scenes
from tests.formats import contradictions
from tests.verdict.rows import DENIED, GOOD, ROWS, WARN, Change, ended, rerouted
from tests.verdict.runs import H2D, H200, WRITE, run


@pytest.mark.parametrize("name", ROWS)
def test_a_bench_says_one_thing_in_all_formats(name: str) -> None:
    row = ROWS[name]
    made = row.run
    assert (made.answer.word, made.answer.state) == (row.bench, row.state or row.bringup), made.answer.sentence
    assert made.exit_code == TABLE[made.answer.state].exit_code
    assert contradictions(made) == []


@pytest.mark.parametrize("name", ROWS)
def test_a_bringup_says_the_worst_of_its_parts_in_all_formats(name: str) -> None:
    row = ROWS[name]
    whole = row.whole
    assert whole.answer.state is row.bringup, whole.answer.sentence
    assert whole.exit_code == TABLE[row.bringup].exit_code
    assert contradictions(whole) == []


# --- fleets and racks ------------------------------------------------------------------------------------------------


def fleet(command: Command, results: Mapping[str, Diagnosis | Bringup]) -> FleetReport:
    """Return the report of a fleet whose nodes sent these results."""
    loaded = {name: saved(name, result, command) for name, result in results.items()}
    nodes = [
        NodeResult(
            node=name,
            reach=Reach.ANSWERED,
            state=result.answer.state,
            word=result.answer.word,
            sentence=result.answer.sentence,
        )
        for name, result in results.items()
    ]
    asked = NodeCommand(command=command, nodes=tuple(results), remote_command="egmctl", version="")
    report = session.report_of(asked, nodes, "2026-11-20T22:00:00Z")
    return session.folded(report, lambda node: loaded[node.node], lambda _sentence: None)


@pytest.mark.parametrize("name", ROWS)
def test_a_fleet_says_of_a_node_what_the_node_says(name: str) -> None:
    row = ROWS[name]
    report = fleet(Command.BRINGUP, {f"node{number}": row.whole for number in range(3)})
    assert {node.state for node in report.answers} == {row.bringup}
    assert report.answer.state is row.bringup, report.answer.sentence
    assert contradictions(report) == []
    ready = 3 if row.bringup in (GOOD, WARN) else 0
    assert report.answer.sentence.startswith(f"{ready} of 3 nodes are ready"), report.answer.sentence


def of_rack(change: Change) -> Bringup:
    """Return the bring-up of a tray of a rack to whose first measurement something happens."""
    tray = shipped("gb200-nvl72")
    made = run(WRITE, machine=tray, value=lambda *_: 700.0)
    first, *rest = made.measurements
    made = with_verdict(replace(made, measurements=(change(first), *rest)), load_profile("gb200-nvl72"))
    return bringup_answer(diagnose(tray, EVERYTHING, CHECKS), with_causes(made))


@pytest.mark.parametrize(
    "change",
    [ended(MeasurementStatus.CRASHED), ended(MeasurementStatus.CORRUPT), rerouted, lambda m: m],
    ids=["crash", "corrupt", "rerouted", "well"],
)
def test_a_rack_is_no_worse_than_the_worst_of_its_trays(change: Change) -> None:
    sick, well = of_rack(change), of_rack(lambda m: m)
    report = fleet(Command.BRINGUP, {"tray1": sick, "tray2": well, "tray3": well})
    assert report.readiness is not None
    assert report.answer.state is worst([sick.answer.state, well.answer.state]), report.answer.sentence
    assert contradictions(report) == []


def test_a_fleet_of_doctors_knows_the_denied_gpu_of_a_node() -> None:
    """It was healthy, with 0, and the comparison in it said WORSE."""
    report = fleet(Command.DOCTOR, {"node1": answered_doctor(H200), "node2": answered_doctor(DENIED)})
    assert report.answer.state in (State.WARN, State.BAD), report.answer.sentence
    assert contradictions(report) == []


# --- what is learnt, and compared ------------------------------------------------------------------------------------


def compared(first: RunReport, second: RunReport) -> Comparison:
    return compare([saved("before", first, Command.BENCH), saved("after", second, Command.BENCH)])


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("well", "SAME"),
        ("112, 447, 447 in 4 attempts", "WORSE"),
        ("wrong NUMA node", "WORSE"),
        ("route refuted", "DIFFERENT"),
        ("crash", "WORSE"),
        ("GPU3 is busy", "NOT COMPARED"),
        ("interrupted", "NOT COMPARED"),
        ("slow beside others", "NOT COMPARED"),
        ("slow beside others and elsewhere", "WORSE"),
    ],
)
def test_what_is_not_believed_is_never_the_same_nor_better(name: str, word: str) -> None:
    comparison = compared(ROWS["well"].run, ROWS[name].run)
    assert comparison.answer.word == word, comparison.answer.sentence
    assert contradictions(comparison) == []


@pytest.mark.parametrize("name", ["112, 447, 447 in 4 attempts", "wrong NUMA node", "route refuted"])
def test_nor_is_it_learnt(name: str) -> None:
    row = ROWS[name]
    everywhere = replace(row, at="").run
    cases = {case for case in (WRITE, H2D) if any(m.case == case for m in everywhere.measurements)}
    try:
        learnt = {each.case for each in learn([Run(everywhere, H200, "a")], "site", "2026-11-27").references}
    except UsageError:
        learnt = set()
    assert learnt < cases


@pytest.mark.parametrize("name", ["GPU3 is busy and named", "slow beside others"])
def test_what_others_do_is_no_failure_among_the_causes_of_a_run(name: str) -> None:
    causes = ROWS[name].run.causes
    assert causes
    assert not [cause.finding.title for cause in causes if cause.state is State.BAD]


# --- doctor, topo, explain -------------------------------------------------------------------------------------------


def answered_doctor(machine: Machine, *, strict: bool = False) -> Diagnosis:
    return diagnose(machine, EVERYTHING, CHECKS, strict=strict)


def test_doctor_of_a_machine_without_data_is_not_determined() -> None:
    empty = answered_doctor(patched(H200, "", gpus=()))
    assert (empty.answer.word, empty.exit_code) == ("NOT DETERMINED", 3)
    assert contradictions(empty) == []


@pytest.mark.parametrize(
    ("passed", "unknown", "state"), [(2, 1, State.GOOD), (2, 2, State.INCOMPLETE), (1, 2, State.INCOMPLETE)]
)
def test_a_node_is_healthy_only_if_more_checks_passed_than_had_no_data(passed: int, unknown: int, state: State) -> None:
    whole = answered_doctor(H200)
    by_check = {finding.check: finding for finding in whole.findings if finding.status is Status.PASS}
    kept = [*by_check.values()][: passed + unknown]
    blind = (replace(finding, status=Status.UNKNOWN) for finding in kept[passed:])
    assert answered(replace(whole, findings=(*kept[:passed], *blind))).answer.state is state


def test_a_note_is_a_problem_with_strict_in_all_formats() -> None:
    noting = patched(H200, "gpus[3].nvml", mig_mode=True)
    lenient, strict = answered_doctor(noting), answered_doctor(noting, strict=True)
    assert (lenient.answer.state, lenient.exit_code) != (State.BAD, 1)
    assert (strict.answer.word, strict.exit_code) == ("PROBLEMS", 1)
    assert contradictions(lenient) == contradictions(strict) == []


def test_what_one_failure_explains_is_counted_once() -> None:
    """``h200-daemon-reload`` had 5 failures in text and 1 elsewhere."""
    diagnosis = answered_doctor(scenes()["h200-daemon-reload"].machine())
    causes = [cause for cause in diagnosis.answer.causes if cause.state is State.BAD]
    assert diagnosis.answer.sentence.startswith(f"{len(causes)} failure"), diagnosis.answer.sentence
    assert contradictions(diagnosis) == []


def test_topo_calls_nothing_well_that_doctor_calls_a_problem() -> None:
    machine = scenes()["h200-links-down"].machine()
    topology = topology_of(machine)
    assert answered_doctor(machine).exit_code == 1
    assert (topology.answer.state, topology.exit_code) == (State.WARN, 0)
    assert "WITH PROBLEMS" in topology.answer.word
    assert contradictions(topology) == []


def test_what_explain_does_not_know_is_no_success() -> None:
    """``cuMemCreate`` 800 was NOT DETERMINED, with 0."""
    unknown = judged(read_failures(io.BytesIO(b"all is quiet")), None)
    assert (unknown.answer.word, unknown.exit_code) == ("NOT KNOWN", 3)
    possible = explain("cuMemCreate", 800)
    assert (possible.answer.word, possible.exit_code) == ("POSSIBLE CAUSE", 0)
    assert contradictions(unknown) == contradictions(possible) == []
