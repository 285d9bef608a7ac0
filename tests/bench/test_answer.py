"""What ``egmctl bench`` says first: the answer, its cause and the next step, and what fits one screen."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from egmctl.api.bench import Profiles, judge_run
from egmctl.bench.results import summarize
from egmctl.model.answer import GapKind, State
from egmctl.model.finding import Waiver, WaiverKind
from egmctl.model.measurement import GpuEvidence, Measurement, MeasurementStatus, RunReport, TaskEvidence
from egmctl.model.task import Flow, Task
from egmctl.model.verdict import Grade
from egmctl.report.document import Tone
from egmctl.report.kinds import Format
from egmctl.report.views.bench import bench_document
from egmctl.report.views.bench_matrix import Frame
from egmctl.verdict.answers import answered
from egmctl.verdict.explain import with_causes
from egmctl.verdict.judge import judge, with_verdict
from egmctl.verdict.profiles import load_profile
from tests.answers import code_of, render
from tests.answers import shown as answer
from tests.doctor.machines import patched, shipped
from tests.report.runs import run as every_case
from tests.report.texts import matrices_text
from tests.verdict.runs import BOTH, H2D, LATENCY, LOCAL, READ, RING, WRITE, busy, run, usual

H200 = load_profile("hgx-h200")


def judged(*cases: str, value: Callable[[Task, Flow], float] = usual, known: bool = True, gpus: int = 4) -> RunReport:
    made = run(*cases, value=value, gpus=gpus)
    return with_verdict(made, H200 if known else None, profile_reason="GPU name NVIDIA H200")


def ended(report: RunReport, *statuses: tuple[MeasurementStatus, str]) -> RunReport:
    """Return the report with its first measurements ended so, with these reasons."""
    lost = {"bandwidth_gb_s": None, "flows_gb_s": (), "samples": (), "known_cause": True}
    for number, (status, reason) in enumerate(statuses):
        report = patched(report, f"measurements[{number}]", status=status, reason=reason, **lost)
    return report


def evident(report: RunReport, **seen: object) -> RunReport:
    def beside(m: Measurement) -> Measurement:
        gpus = tuple(
            GpuEvidence(bus_id=flow.initiator or "", label=flow.initiator_label, **seen)  # type: ignore[arg-type]
            for flow in m.flows[:1]
        )
        return replace(m, evidence=TaskEvidence(gpus=gpus))

    return replace(report, measurements=tuple(map(beside, report.measurements)))


def shown(report: RunReport, *, brief: bool = False, verbose: int = 0) -> str:
    return str(render(report, Format.TEXT, brief=brief, verbose=verbose))


def test_a_run_that_is_as_fast_as_expected_passes_and_fits_a_screen() -> None:
    report = judged(WRITE, READ, BOTH, H2D, LOCAL, LATENCY, gpus=8)
    text = shown(report)
    first = answer(report)
    assert (first.word, first.tone) == ("PASS", Tone.GOOD)
    assert text.startswith("PASS: all 6 path classes are as fast as profile hgx-h200 expects\n")
    lines = text.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert len(matrices_text(report).splitlines()) >= 2 * len(lines)


def test_a_failed_run_says_what_the_outliers_have_in_common_and_what_was_seen_there() -> None:
    report = with_causes(evident(judged(WRITE, BOTH, LATENCY, value=busy), other_processes=(1066,)))
    verdict = answer(report)
    assert (verdict.word, verdict.tone) == ("INCOMPLETE", Tone.UNKNOWN), "slow only while others used the GPUs"
    assert str(verdict.advice).startswith("Measure again when the GPUs are idle")
    assert "measurements slow only while others used the GPUs or the host" in str(verdict.sentence)
    verdict = answer(with_causes(judged(WRITE, BOTH, LATENCY, value=busy)))
    assert (verdict.word, verdict.tone) == ("FAIL", Tone.BAD)
    assert str(verdict.sentence).startswith(
        "3 of 3 path classes are slower than expected; the outliers touch GPU0 and GPU1; nothing that was read "
    )
    text = shown(report)
    assert (text.count("\nFAIL  "), text.count("\nEXCUSED  ")) == (0, 5), "the five worst paths"
    assert "more paths are slow (-v)" in text
    assert "198.1?" in text


def test_clocks_that_were_throttled_are_the_cause_and_power_and_cooling_the_next_step() -> None:
    verdict = answer(with_causes(evident(judged(WRITE, value=busy), throttle_reasons=("hw-thermal-slowdown",))))
    assert "clocks throttled while measured: hardware thermal slowdown; explains 5 paths" in str(verdict.sentence)
    assert "fans, coolant and power supplies" in str(verdict.advice)


def test_missing_nvlinks_of_an_outlier_are_named_and_what_nothing_explains_says_so() -> None:
    report = judged(WRITE, value=busy)
    assert str(answer(with_causes(report)).sentence).endswith("; nothing that was read explains it")
    for number in (0, 1):
        report = patched(report, f"machines[0].gpus[0].nvml.nvlinks[{number}]", active=False)
    assert "GPU0: 16 of 18 NVLinks are active; explains 3 paths" in str(answer(with_causes(report)).sentence)


CORRUPT, FAILED = (
    (MeasurementStatus.CORRUPT, "3 words differ"),
    (MeasurementStatus.FAILED, "cuMemCreate: out of memory"),
)
CRASHED = (MeasurementStatus.CRASHED, "died from SIGSEGV")


@pytest.mark.parametrize(
    ("report", "word", "told"),
    [
        (replace(judged(WRITE), interrupted=True), "INTERRUPTED", "stopped with 12 of 12 measurements made"),
        (ended(judged(WRITE), (MeasurementStatus.CRASHED, "cuMemcpyAsync: Xid 79")), "BROKE", "cuMemcpyAsync: Xid 79"),
        (
            ended(judged(WRITE), (MeasurementStatus.TIMED_OUT, "60 s")),
            "BROKE",
            "1 of 12 measurements crashed, timed out or broke",
        ),
        (replace(judged(WRITE), problems=("the worker did not start",)), "BROKE", "the worker did not start"),
        (
            ended(run(WRITE), (MeasurementStatus.CORRUPT, "word 3 differs")),
            "FAIL",
            "1 of 12 measurements failed: word 3 differs",
        ),
        (patched(ended(run(WRITE), FAILED), "measurements[0]", known_cause=False), "BROKE", FAILED[1]),
        (run(WRITE), "MEASURED", "12 measurements, not judged (--no-verdict)"),
        (judged(WRITE, known=False), "NO REFERENCE", "nothing to judge them by"),
    ],
)
def test_other_answers(report: RunReport, word: str, told: str) -> None:
    verdict = answer(report)
    assert verdict.word == word
    assert told in str(verdict.sentence)
    assert shown(report, brief=True).count(f"{word}: ") == 1
    codes = {"MEASURED": 0, "NO REFERENCE": 0, "FAIL": 1, "BROKE": 4, "INTERRUPTED": 130}
    assert code_of(report) == codes[word]


@pytest.mark.parametrize("statuses", [(CORRUPT,), (FAILED, CORRUPT), (CRASHED, CORRUPT)])
def test_corrupt_data_comes_before_all_else_that_went_wrong(
    statuses: tuple[tuple[MeasurementStatus, str], ...],
) -> None:
    report = ended(judged(WRITE), *statuses)
    for interrupted in (False, True):
        told = answer(replace(report, interrupted=interrupted))
        assert told.word == "FAIL"
        assert "measurements failed: 3 words differ" in str(told.sentence)
        assert ("; INTERRUPTED: stopped with" in str(told.sentence)) is interrupted
        assert str(told.advice).startswith("drain the node")


def test_paths_that_are_too_slow_are_not_hidden_by_one_that_crashed() -> None:
    told = answer(ended(judged(WRITE, value=busy), CRASHED))
    assert told.word == "FAIL"
    assert "path classes are slower than expected" in str(told.sentence)
    assert "; BROKE: 1 of 12 measurements crashed, timed out or broke: died from SIGSEGV" in str(told.sentence)


def test_a_copy_faster_than_its_link_is_not_called_slow() -> None:
    made = run(WRITE)
    first, *others = (
        replace(m, bandwidth_gb_s=summarize([470.0 if number == 0 else 396.0]))
        for number, m in enumerate(made.measurements)
    )
    told = answered(
        with_causes(judge_run(replace(made, measurements=(first, *others)), shipped("hgx-h200x4"), Profiles((H200,))))
    ).answer
    assert (told.state, told.causes) == (State.INCOMPLETE, ())
    assert [(gap.kind, gap.measurements) for gap in told.gaps if gap.kind is GapKind.NOT_BELIEVED] == [
        (GapKind.NOT_BELIEVED, (0,))
    ]
    assert told.sentence.startswith(
        f"1 measurement not believed: {first.path}: 470 GB/s, more than the 450 of its link"
    )


def test_what_was_not_made_is_told_without_a_reference_too() -> None:
    given_up = (MeasurementStatus.WAIVED, "not run: 4 workers had failed before")
    for verdict in (judged(WRITE, known=False).verdict, None):
        told = answer(replace(ended(judged(WRITE), given_up, given_up), verdict=verdict))
        assert told.word == "INCOMPLETE", "the run gave up: what it did not measure is not known"
        assert "2 of 12 measurements were not made: not run: 4 workers had failed before" in str(told.sentence)


def test_a_profile_without_these_cases_is_named_as_the_reason() -> None:
    found = run(WRITE)
    told = answer(with_verdict(found, replace(H200, references=()), profile_reason="GPU name NVIDIA H200"))
    assert told.word == "NO REFERENCE"
    assert str(told.sentence).endswith("judge them by: profile hgx-h200 has no reference for these cases")


@pytest.mark.parametrize(
    ("kind", "next_step"),
    [
        (WaiverKind.REFUSED, "see what stops it with 'egmctl doctor'"),
        (WaiverKind.UNSUPPORTED_ENGINE, "choose other cases: 'egmctl bench --list' shows them"),
    ],
)
def test_nothing_measured_is_incomplete_and_says_why(kind: WaiverKind, next_step: str) -> None:
    report = run(WRITE)
    why = Waiver(kind=kind, reason="it needs two GPUs")
    lost = {"samples": (), "bandwidth_gb_s": None}
    verdict = answer(
        patched(report, "measurements[*]", status=MeasurementStatus.WAIVED, reason=why.reason, waivers=(why,), **lost)
    )
    assert (verdict.word, verdict.sentence) == ("INCOMPLETE", "nothing was measured: it needs two GPUs")
    assert verdict.advice == next_step


def test_the_matrices_come_with_v_behind_the_answer() -> None:
    report = judged(WRITE, value=busy)
    brief, usual_text, verbose = shown(report, brief=True), shown(report), shown(report, verbose=1)
    assert "GPU(row)" not in usual_text
    assert "GPU(row) -> GPU(column) bandwidth (GB/s)" in verbose
    assert verbose.startswith(usual_text.rpartition("\nMatrices")[0])
    assert "198.10!" in verbose, "a failed cell has a sign"
    assert len(brief.splitlines()) <= 16


def slower(m: Measurement) -> Measurement:
    """Return a measurement that every link can carry: those made by hand count up beyond each of them."""
    return m if m.bandwidth_gb_s is None else replace(m, bandwidth_gb_s=summarize([m.bandwidth_gb_s.median / 100]))


def many() -> RunReport:
    """Return a healthy run of every case but those by the number of SMs, which have a table of their own."""
    made = every_case("hgx-h200x4")
    made = replace(made, measurements=tuple(slower(m) for m in made.measurements if m.point.sms is None))
    verdict = judge(made, None, profile_reason="none")
    well = tuple(replace(one, grade=Grade.PASS) for one in verdict.classes)
    return replace(made, verdict=replace(verdict, classes=well, culprits=(), judged=()))


def test_many_path_classes_fit_a_screen_all_are_there_with_v_and_what_is_slow_always() -> None:
    report = many()
    usual_text, verbose = shown(report), shown(report, verbose=1)
    assert len(usual_text.splitlines()) <= 40
    assert re.search(r"^ and [0-9]+ more path classes, all as fast as expected \(-v\)$", usual_text, re.MULTILINE)
    assert "\n device_to_device_memcpy_write_ce " in usual_text, "what the quick suite looks at"
    for case in {m.case for m in report.measurements if m.headline is not None}:
        assert re.search(rf"^ {case}\b", verbose, re.MULTILINE), case
    assert report.verdict is not None
    *others, last = report.verdict.classes
    assert f"\n {last.case}" not in usual_text
    failed = replace(report.verdict, classes=(*others, replace(last, grade=Grade.FAIL)))
    assert re.search(rf"^ {last.case} .*!", shown(replace(report, verdict=failed)), re.MULTILINE)


def test_with_v_nothing_is_told_twice_and_no_v_is_offered() -> None:
    report = judged(WRITE, value=busy)
    states = (
        MeasurementStatus.FAILED,
        MeasurementStatus.TIMED_OUT,
        MeasurementStatus.UNSTABLE,
        MeasurementStatus.WAIVED,
    )
    numbered = enumerate(report.measurements)
    broken = tuple(replace(m, status=states[n % 4], reason=f"reason {n}") if n < 12 else m for n, m in numbered)
    report = evident(replace(report, measurements=broken), other_processes=(1066,), errors={"nvlink-replays": 3})
    brief, usual_text, verbose = shown(report, brief=True), shown(report), shown(report, verbose=1)
    for text in (usual_text, verbose):
        assert [text.count(f"\n{title}\n") for title in ("Failed or unstable", "Warnings")] == [1, 1]
        assert text.count(": reason 4\n") == 1
    assert "and 3 more reasons (-v)" in usual_text
    assert "\nSkipped\n" in verbose
    for text in (verbose, str(render(report, Format.HTML)), str(render(report, Format.MARKDOWN))):
        assert not re.search(r"\(-v\)|: -v\b", text)
    assert "Failed or unstable" not in brief


def test_a_cell_is_branded_for_its_own_value_only() -> None:
    report = judged(RING, BOTH, value=busy)
    (ring,) = [m for m in report.measurements if m.case == RING]
    frame = replace(Frame.of(report), brands={id(ring): (Tone.BAD, "!")})
    assert all(not frame.bandwidth(ring, flow).mark for flow in range(len(ring.flows)))
    assert frame.bandwidth(ring).mark == "!"


def test_names_of_the_machine_are_data() -> None:
    hostile = patched(judged(WRITE), "gpus[*]", name="[bold]\x1b[31m")
    assert bench_document(hostile).subject == "4 x [bold]\x1b[31m"
    assert "4 x [bold]\\x1b[31m" in shown(hostile)


@pytest.mark.parametrize(("mode", "words"), [("on", "on"), ("protected-pcie", "on (protected-pcie)"), ("off", "")])
def test_results_under_confidential_computing_are_marked_before_the_answer(mode: str, words: str) -> None:
    text = " ".join(shown(patched(judged(WRITE), "machines[0].driver", confidential_compute=mode), brief=True).split())
    banner = f"CONFIDENTIAL COMPUTING is {words}: copies may be encrypted; references are of GPUs without it"
    assert (banner in text) == ("CONFIDENTIAL" in text) == bool(words)
    if words:
        assert text.index(banner) < text.index("PASS")


def test_results_over_encrypted_nvlinks_are_marked_although_confidential_computing_is_off() -> None:
    for encrypted in (True, False, None):
        report = patched(judged(WRITE), "machines[0].gpus[1].nvml", nvlink_encryption=encrypted)
        assert ("NVLINK ENCRYPTION is on" in " ".join(shown(report, brief=True).split())) is (encrypted is True)
