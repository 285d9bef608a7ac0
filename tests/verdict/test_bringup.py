"""Whether a node can be handed over: doctor and bench joined, on machines that ship."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from egmctl.doctor.check import EVERYTHING, Scope
from egmctl.doctor.findings import failed
from egmctl.doctor.runner import CHECKS
from egmctl.model.answer import Cause, GapKind, State
from egmctl.model.bringup import Bringup
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import UNEXPLAINED, Finding, Status, on_gpus
from egmctl.model.machine import Machine
from egmctl.model.measurement import MeasurementStatus, RunReport
from egmctl.model.remedy import Remedy
from egmctl.model.task import Flow, Task
from egmctl.report.kinds import BRINGUP, Format
from egmctl.verdict.bringup import bringup_answer, identity_of
from egmctl.verdict.explain import with_causes
from egmctl.verdict.judge import judge, with_verdict
from egmctl.verdict.profiles import load_profile
from tests.answers import diagnose, render
from tests.doctor.builders import check, diagnosis
from tests.doctor.machines import patched, shipped, with_gpu_denied
from tests.doctor.scenes import scenes
from tests.golden import compare, without_counts
from tests.schemas import validate
from tests.verdict.runs import H2D, OF_GPU2, WRITE, run, slow_at, usual, with_status

GOLDEN = Path(__file__).parent / "golden"
H200 = shipped("hgx-h200x4")
GPUS = H200.gpus or ()
LINKS = failed(
    "2 of 18 NVLinks down (links 4, 11)",
    Remedy(text="Reseat the GPU or replace it.", look="nvidia-smi nvlink -s -i 2"),
    place=on_gpus(GPUS[2:3]),
)
PCIE = failed("PCIe runs x8 of x16", Remedy(text="Reseat the board."), place=on_gpus(GPUS[:1]))
WELL = diagnose(H200, EVERYTHING, CHECKS)
PROFILE = load_profile("hgx-h200")
SITE = replace(PROFILE, name="site", references=tuple(one for one in PROFILE.references if one.case == WRITE))


def healthy(machine: Machine = H200) -> Diagnosis:
    return WELL if machine is H200 else diagnose(machine, EVERYTHING, CHECKS)


def sick(*findings: tuple[str, Finding]) -> Diagnosis:
    """A healthy node but for these."""
    well = healthy()
    made = diagnosis(*(check(name, finding) for name, finding in findings), machine=H200)
    names = {name for name, _ in findings}
    rest = tuple(one for one in well.findings if one.check not in names)
    return replace(well, findings=(*made.findings, *rest))


def measured(
    *cases: str, value: Callable[[Task, Flow], float] = usual, machine: Machine = H200, known: bool = True
) -> RunReport:
    made = run(*(cases or (WRITE, H2D)), value=value, machine=machine)
    return judged(made, known=known)


def paths(found: Bringup, cause: Cause) -> set[str]:
    assert found.run is not None
    return {found.run.measurements[number].path for number in cause.measurements}


def judged(made: RunReport, *, known: bool = True) -> RunReport:
    return with_verdict(made, PROFILE if known else None, profile_reason="GPU name NVIDIA H200")


def shown(found: Bringup, width: int = 80) -> str:
    return str(render(found, Format.TEXT, width=width))


def test_a_healthy_node_that_is_fast_goes() -> None:
    found = bringup_answer(healthy(), measured())
    assert (found.answer.state, found.answer.causes, found.answer.gaps, found.exit_code) == (State.GOOD, (), (), 0)


def test_a_failed_check_alone_is_no_go() -> None:
    found = bringup_answer(sick(("pcie.link", PCIE)), measured())
    assert (found.answer.state, found.exit_code, found.answer.causes[0].measurements) == (State.BAD, 1, ())


def test_slow_paths_alone_are_no_go_and_one_cause() -> None:
    found = bringup_answer(healthy(), measured(value=slow_at("GPU2")))
    (cause,) = found.answer.causes
    assert (found.answer.state, cause.finding.check, cause.status) == (State.BAD, UNEXPLAINED, Status.FAIL)
    assert paths(found, cause) == OF_GPU2 | {"NUMA0 -> GPU2"}


def test_links_that_are_down_explain_the_slow_paths_of_their_gpu() -> None:
    found = bringup_answer(sick(("nvlink.links", LINKS)), measured(WRITE, value=slow_at("GPU2")))
    (cause,) = found.answer.causes
    assert (cause.finding.check, paths(found, cause)) == ("nvlink.links", OF_GPU2)
    text = shown(found)
    assert text.startswith(
        "NO-GO: GPU2: 2 of 18 NVLinks down (links 4, 11); explains 6 paths\nNext: Reseat the GPU or replace it\n"
    )


def test_a_cause_says_what_it_costs_and_explains_in_words_and_what_an_rma_needs() -> None:
    retrains = replace(LINKS, summary="7 retrains", status=Status.WARN)
    found = bringup_answer(sick(("nvlink.links", LINKS), ("nvlink.errors", retrains)), measured(value=slow_at("GPU2")))
    text = " ".join(shown(found).split())
    assert "costs GPU -> GPU, push, copy engine: 6 of 12 paths at 50 % of the expected 396.2 GB/s" in text
    assert "explains WARN GPU2: 7 retrains [nvlink.errors]" in text
    assert "RMA Before a reset or a reboot, run nvidia-bug-report.sh as root" in text
    assert text.index("RMA") < text.index("FAIL"), "before the first remedy, which may be a reset"
    assert "nvidia-bug-report.sh" not in shown(bringup_answer(healthy(), measured()))


@pytest.mark.parametrize(
    ("check_id", "is_part"),
    [("gpu.health", True), ("pcie.link", True), ("dev.fell-off-bus", True), ("gpu.mig", False), ("pcie.acs", False)],
)
def test_the_definition_of_a_check_says_whether_its_failure_may_be_of_a_broken_part(
    check_id: str, is_part: bool
) -> None:
    (cause,) = bringup_answer(sick((check_id, PCIE)), measured()).answer.causes
    assert (cause.finding.hardware, cause.is_broken_part) == (is_part, is_part)
    (warned,) = bringup_answer(sick((check_id, replace(PCIE, status=Status.WARN))), measured()).answer.causes
    assert not warned.is_broken_part


def test_names_and_serial_numbers_are_on_the_page_only_where_they_are_asked_for() -> None:
    machine = patched(shipped("hgx-h200x4"), "gpus[1].nvml", serial="1650123000042")
    found = bringup_answer(diagnose(machine, EVERYTHING, CHECKS), None)
    assert "1650123000042" not in str(render(found, Format.HTML))
    named = replace(found, identity=identity_of(patched(machine, "host", hostname="node17")))
    page = str(render(named, Format.HTML))
    assert "serial 1650123000042" in page
    assert "node17" in page
    assert "1650123000042" in str(render(named, Format.JSON))


def test_a_warning_that_explains_failing_paths_is_a_failure() -> None:
    found = bringup_answer(sick(("nvlink.links", replace(LINKS, status=Status.WARN))), measured(value=slow_at("GPU2")))
    assert {cause.finding.check: cause.status for cause in found.answer.causes}["nvlink.links"] is Status.FAIL


def test_two_independent_faults_stay_two() -> None:
    found = bringup_answer(sick(("pcie.link", PCIE)), measured(WRITE, value=slow_at("GPU2")))
    assert [(cause.finding.check, bool(cause.measurements)) for cause in found.answer.causes] == [
        (UNEXPLAINED, True),
        ("pcie.link", False),
    ]
    step = (
        "Next: Look for the cause of GPU0 -> GPU2 (198.1 GB/s, 396.2 expected) with 'egmctl doctor --active --gpus 0,2'"
    )
    assert f"and 1 more cause {step}" in " ".join(shown(found).split())


def test_a_denied_gpu_is_incomplete_and_named_by_its_cgroup() -> None:
    machine = with_gpu_denied(H200, 3)
    found = bringup_answer(healthy(machine), judged(run(WRITE, H2D, machine=machine, waives=True)))
    assert (found.answer.state, found.exit_code, found.answer.gaps[0].kind) == (State.INCOMPLETE, 3, GapKind.WAIVED)
    (place,) = found.answer.gaps[0].causes
    assert found.answer.causes[place].finding.check == "dev.cgroup-restricted"
    assert "not made: GPU3: " in shown(found).splitlines()[0]


def test_a_denied_gpu_is_named_above_the_summary_where_nothing_was_measured() -> None:
    lines = shown(bringup_answer(healthy(shipped("h200-cgroup-denied")), None)).partition("doctor  ")[0]
    assert "GPU3: the device cgroup denies /dev/nvidia3" in lines
    assert "NOTE" not in shown(bringup_answer(healthy(), None)).partition("doctor  ")[0]


def test_a_denied_gpu_that_was_asked_for_is_no_go() -> None:
    machine = with_gpu_denied(H200, 3)
    asked = diagnose(machine, Scope(gpus=tuple(gpu.bus_id for gpu in machine.gpus or ())), CHECKS)
    found = bringup_answer(asked, None, not_measured="as the test wants it")
    assert (found.answer.state, found.answer.causes[0].finding.check) == (State.BAD, "dev.cgroup-restricted")


def test_a_waived_measurement_that_nothing_explains_is_incomplete_with_its_own_reason() -> None:
    found = bringup_answer(healthy(), judged(with_status(run(WRITE), MeasurementStatus.WAIVED, [0])))
    (gap,) = found.answer.gaps
    assert (gap.kind, gap.measurements, gap.causes) == (GapKind.WAIVED, (0,), ())
    assert shown(found).startswith("INCOMPLETE: 1 of 12 measurements were not made: as the test wants it\n")


@pytest.mark.parametrize(
    ("report", "kind", "code"),
    [
        (replace(measured(WRITE), interrupted=True), GapKind.INTERRUPTED, 130),
        (judged(with_status(run(WRITE), MeasurementStatus.CRASHED, [1])), GapKind.BROKE, 4),
        (replace(measured(WRITE), problems=("the worker did not start",)), GapKind.BROKE, 4),
        (run(WRITE), GapKind.NO_REFERENCE, 3),
        (measured(WRITE, known=False), GapKind.NO_REFERENCE, 3),
        (None, GapKind.NOT_MEASURED, 3),
    ],
)
def test_what_is_not_known_is_a_gap(report: RunReport | None, kind: GapKind, code: int) -> None:
    found = bringup_answer(healthy(), report)
    assert ([gap.kind for gap in found.answer.gaps], found.exit_code) == ([kind], code)


def test_a_path_class_without_a_reference_is_incomplete_and_named() -> None:
    """A profile of a site that has one case of several: what it lacks is not known to be well."""
    for value, grades in ((usual, {"pass", "no-reference"}), (slower_than_peers, {"pass", "warn"})):
        made = run(WRITE, H2D, value=value)
        verdict = judge(made, SITE)
        assert {str(one.grade) for one in verdict.classes} == grades
        found = bringup_answer(healthy(), replace(made, verdict=verdict))
        (gap,) = found.answer.gaps
        assert (found.answer.state, found.exit_code, gap.kind) == (State.INCOMPLETE, 3, GapKind.NO_REFERENCE)
        assert {made.measurements[number].case for number in gap.measurements} == {H2D}
        lines = " ".join(shown(found, 200).splitlines()[:2])
        assert lines.startswith("INCOMPLETE: profile site has no reference for 4 links of GPUs: GPU0 PCIe, GPU1 PCIe, ")
        assert "egmctl profile learn" in lines


def slower_than_peers(task: Task, flow: Flow) -> float:
    """Host memory of one GPU a little slower than that of the others."""
    return usual(task, flow) * (0.75 if (task.case, flow.destination.label) == (H2D, "GPU2") else 1)


def test_a_slow_path_is_no_go_where_another_has_no_reference() -> None:
    made = run(WRITE, H2D, value=slow_at("GPU2"))
    assert bringup_answer(healthy(), with_verdict(made, SITE)).answer.state is State.BAD


@pytest.mark.parametrize("status", [MeasurementStatus.CRASHED, MeasurementStatus.TIMED_OUT, MeasurementStatus.FAILED])
def test_what_broke_for_no_known_cause_is_not_called_slow(status: MeasurementStatus) -> None:
    made = judged(with_status(run(WRITE, H2D), status, range(16)))
    found = bringup_answer(healthy(), made)
    assert (found.answer.state, found.answer.causes, found.exit_code) == (State.BROKE, (), 4)
    for result in (found, made):
        words = " ".join(str(render(result, Format.TEXT)).split())
        assert words.startswith("BROKE: 16 of 16 measurements ")
        assert "slow" not in words


def test_what_broke_is_not_counted_among_slow_path_classes() -> None:
    made = run(WRITE, H2D, value=slow_at("GPU2"))
    made = judged(
        with_status(made, MeasurementStatus.CRASHED, [n for n, m in enumerate(made.measurements) if m.case == H2D])
    )
    words = " ".join(str(render(made, Format.TEXT)).split())
    assert words.startswith("FAIL: 1 of 2 path classes are slower than expected; ")
    assert "BROKE: 4 of 16 measurements crashed, timed out or broke" in words


def test_a_machine_of_which_most_is_unknown_is_incomplete() -> None:
    found = bringup_answer(healthy(shipped("gb200-tray")), measured())
    assert [gap.kind for gap in found.answer.gaps] == [GapKind.NOT_DETERMINED]


def test_a_fault_outranks_a_gap_and_an_interrupt() -> None:
    found = bringup_answer(sick(("pcie.link", PCIE)), replace(measured(WRITE), interrupted=True))
    assert (found.answer.state, found.exit_code) == (State.BAD, 1)


@pytest.mark.parametrize("name", scenes())
def test_no_machine_takes_more_than_25_lines_and_a_fault_is_named_first(name: str) -> None:
    found = bringup_answer(healthy(scenes()[name].machine()), None, not_measured="it is recorded")
    lines = shown(found).splitlines()
    assert len(lines) <= 25, "\n".join(lines)
    assert max(map(len, lines)) <= 80 or any(" $ " in line for line in lines)
    first = next(line for line in lines if not line.startswith(("MODEL", "  ")))
    assert first.startswith(("NO-GO: ", "INCOMPLETE: "))
    assert found.answer.state is (State.BAD if found.diagnosis.answer.state is State.BAD else State.INCOMPLETE)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("bringup-go", bringup_answer(healthy(), measured())),
        (
            "bringup-no-go",
            bringup_answer(sick(("nvlink.links", LINKS), ("pcie.link", PCIE)), measured(value=slow_at("GPU2"))),
        ),
        (
            "bringup-incomplete",
            bringup_answer(healthy(), judged(with_status(run(WRITE), MeasurementStatus.WAIVED, [0, 1]))),
        ),
    ],
)
def test_text(name: str, found: Bringup) -> None:
    text = shown(found)
    assert len(text.splitlines()) <= 27
    assert f"{found.diagnosis.counts['pass']} checks passed" in text
    compare(without_counts(text), GOLDEN / f"{name}.txt")


ANSWERS = {
    Format.JSON: '"state": "bad"',
    Format.PROM: 'egmctl_answer{command="bringup",state="bad"} 1',
    Format.JUNIT: '<failure type="fail" message="2 of 18 NVLinks down',
}


@pytest.mark.parametrize("format", BRINGUP.formats)
def test_every_format_has_the_answer(format: Format) -> None:
    told = str(render(bringup_answer(sick(("nvlink.links", LINKS)), measured(value=slow_at("GPU2"))), format))
    assert ANSWERS.get(format, "NO-GO") in told
    assert "18 NVLinks down" in told or format in (Format.SVG, Format.PROM)


def test_the_page_holds_all_three_and_each_anchor_once() -> None:
    page = str(render(bringup_answer(healthy(), measured()), Format.HTML))
    ids = Counter(part.partition('"')[0] for part in page.split('id="')[1:])
    assert max(ids.values()) == 1
    assert ids.keys() >= {"doctor", "topology", "bench"}
    assert page.index('id="topology"') < page.index('id="doctor"') < page.index('id="bench"')


def test_the_document_fits_its_schema() -> None:
    for found in (bringup_answer(healthy(), measured()), bringup_answer(sick(("nvlink.links", LINKS)), None)):
        validate(json.loads(str(render(found, Format.JSON))), "bringup")


def test_nagios_first_line_names_answer_check_and_cause() -> None:
    found = bringup_answer(sick(("nvlink.links", LINKS)), measured(WRITE, value=slow_at("GPU2")))
    first, second, *_ = str(render(found, Format.NAGIOS)).splitlines()
    told = "nvlink.links: GPU2: 2 of 18 NVLinks down (links 4, 11); explains 6 paths"
    assert first.startswith(f"EGMCTL CRITICAL - NO-GO: {told} | fail=1 ")
    assert first.endswith(" slow=6")
    assert second.startswith("FAIL nvlink.links: GPU2: 2 of 18 NVLinks down (links 4, 11). Reseat")
    assert second.endswith(" $ nvidia-smi nvlink -s -i 2")


@pytest.mark.parametrize(
    ("found", "state", "told"),
    [
        (bringup_answer(healthy(), measured()), 0, "EGMCTL OK - GO: "),
        (
            bringup_answer(sick(("pcie.link", replace(PCIE, status=Status.WARN))), measured()),
            1,
            "EGMCTL WARNING - GO WITH WARNINGS: ",
        ),
        (
            bringup_answer(healthy(), None, not_measured="why"),
            3,
            "EGMCTL UNKNOWN - INCOMPLETE: nothing was measured: why | ",
        ),
    ],
)
def test_nagios_states(found: Bringup, state: int, told: str) -> None:
    assert found.answer.nagios == state
    assert str(render(found, Format.NAGIOS)).startswith(told)


def test_junit_has_what_broke_and_what_was_not_measured_without_a_verdict_too() -> None:
    run = with_status(with_status(measured(WRITE), MeasurementStatus.CRASHED, [0]), MeasurementStatus.WAIVED, [1, 2])
    shown = ElementTree.fromstring(str(render(replace(run, verdict=None), Format.JUNIT)))  # noqa: S314
    assert (shown.get("failures"), shown.get("errors"), shown.get("skipped")) == ("0", "2", "10")
    whole, crashed = shown.iter("error")
    assert (whole.get("type"), crashed.get("type")) == ("broke", "crashed")
    assert crashed.get("message") == "as the test wants it"
    slow = ElementTree.fromstring(str(render(measured(WRITE, value=slow_at("GPU2")), Format.JUNIT)))  # noqa: S314
    assert (slow.get("failures"), slow.get("tests")) == ("2", "2")


def test_a_gpu_that_mig_takes_away_and_that_was_asked_for_is_no_go() -> None:
    """MIG by itself is a warning; that what --gpus named was not measured is a failure."""
    machine = patched(H200, "gpus[3].nvml", mig_mode=True)
    made = judged(run(WRITE, H2D, machine=machine, waives=True))
    found = [
        bringup_answer(healthy(machine), with_causes(made, asked=asked)) for asked in ((), [gpu.bus_id for gpu in GPUS])
    ]
    assert [one.answer.state for one in found] == [State.INCOMPLETE, State.BAD]
    assert shown(found[1]).startswith("NO-GO: GPU3: MIG is on")
