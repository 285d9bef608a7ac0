"""Findings and facts of saved results: what appeared, what went, what is another one, and what counts as worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.text import Text

from egmctl.comparison import compare
from egmctl.comparison.facts import Subject
from egmctl.comparison.worth import outcome_of
from egmctl.errors import ExitCode
from egmctl.facts import replay
from egmctl.model.comparison import Comparison, Outcome
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import NODE, Finding, Guard, Place, Status, on_gpus, on_pairs
from egmctl.model.machine import Machine
from egmctl.model.record import Command, Reason, Unread
from egmctl.report.kinds import Format
from egmctl.saved import Saved
from tests.answers import render
from tests.doctor.machines import patched, shipped
from tests.report.texts import text_of

H200 = shipped("hgx-h200x4")
GPUS = H200.gpus or ()


def saved(name: str, result: Diagnosis | Machine) -> Saved:
    kind = Command.SNAPSHOT if isinstance(result, Machine) else Command.DOCTOR
    return Saved(path=Path(f"{name}.json"), kind=kind, name=name, result=result, tool="egmctl 0.1.0")


def finding(status: Status, summary: str = "", place: Place = NODE, check: str = "gpu.one") -> Finding:
    return Finding(status=status, summary=summary, check=check, place=place)


def diagnosis(*findings: Finding) -> Diagnosis:
    return Diagnosis(
        platform="", gpus_asked=None, numa_asked=None, purposes=tuple(Guard), findings=findings, machines=(H200,)
    )


def doctors(before: Sequence[Finding], after: Sequence[Finding]) -> Comparison:
    return compare([saved("before", diagnosis(*before)), saved("after", diagnosis(*after))])


def told(comparison: Comparison) -> list[tuple[Outcome, str, str, str]]:
    return [(diff.outcome, diff.about, diff.reference, diff.value) for diff in comparison.words]


PASS, SKIP, UNKNOWN = finding(Status.PASS), finding(Status.SKIP, "not here"), finding(Status.UNKNOWN, "no permission")
NOTE, WARN, FAIL = finding(Status.NOTE, "off"), finding(Status.WARN, "slow"), finding(Status.FAIL, "broken")

# --- findings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        (PASS, FAIL, Outcome.WORSE),
        (PASS, WARN, Outcome.WORSE),
        (WARN, FAIL, Outcome.WORSE),
        (UNKNOWN, FAIL, Outcome.WORSE),
        (FAIL, PASS, Outcome.BETTER),
        (FAIL, WARN, Outcome.BETTER),
        (FAIL, NOTE, Outcome.BETTER),
        (NOTE, FAIL, Outcome.WORSE),
        (PASS, UNKNOWN, Outcome.DIFFERENT),
        (UNKNOWN, PASS, Outcome.DIFFERENT),
        (PASS, NOTE, Outcome.DIFFERENT),
        (NOTE, PASS, Outcome.DIFFERENT),
        (FAIL, UNKNOWN, Outcome.DIFFERENT),
        (SKIP, FAIL, Outcome.DIFFERENT),
        (FAIL, SKIP, Outcome.DIFFERENT),
        (WARN, finding(Status.WARN, "slow in another way"), Outcome.DIFFERENT),
        (PASS, PASS, None),
        (PASS, SKIP, None),
        (SKIP, PASS, None),
        (FAIL, FAIL, None),
    ],
)
def test_what_a_change_of_a_finding_means(before: Finding, after: Finding, outcome: Outcome | None) -> None:
    comparison = doctors([before], [after])
    assert [diff.outcome for diff in comparison.words] == ([] if outcome is None else [outcome])
    assert comparison.exit_code is (ExitCode.FAILED if outcome is Outcome.WORSE else ExitCode.OK)


def on(*places: int, what: str = "no access") -> Finding:
    return finding(Status.FAIL, what, on_gpus([GPUS[place] for place in places]))


OF_PAIR = finding(Status.FAIL, "no peer access", on_pairs([(GPUS[0], GPUS[1])]))
NO_ACCESS = "fail: no access"


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ([PASS], [on(1, 2)], (Outcome.WORSE, "GPU1-2", "pass", NO_ACCESS)),
        ([on(0)], [on(0, 1)], (Outcome.WORSE, "GPU1", "pass", NO_ACCESS)),
        ([on(0, 1)], [on(0)], (Outcome.BETTER, "GPU1", NO_ACCESS, "pass")),
        ([PASS], [OF_PAIR], (Outcome.WORSE, "GPU0>GPU1", "pass", "fail: no peer access")),
        (
            [PASS],
            [PASS, finding(Status.FAIL, "broken", check="gpu.two")],
            (Outcome.DIFFERENT, "", "not checked", "fail: broken"),
        ),
    ],
    ids=["of some GPUs", "that spread", "that shrank", "of a pair", "of a check that did not run before"],
)
def test_a_fault_is_told_of_what_it_is_new_for(
    before: list[Finding], after: list[Finding], words: tuple[Outcome, str, str, str]
) -> None:
    assert told(doctors(before, after)) == [words]


def test_of_many_nodes_those_with_the_same_fault_are_folded() -> None:
    good, bad = diagnosis(PASS), diagnosis(on(0, what="broken"))
    nodes = [saved(f"node{number:02}", bad if number in (3, 4, 5, 9) else good) for number in range(1, 19)]
    comparison = compare(nodes)
    assert [(diff.folded, diff.about, diff.value) for diff in comparison.words] == [
        ("node[03-05,09]", "GPU0", "fail: broken")
    ]
    assert comparison.same_folded == "node[01-02,06-08,10-18]"
    assert comparison.exit_code is ExitCode.FAILED


# --- facts -----------------------------------------------------------------------------------------------------------


def with_gpu(place: int, **nvml: object) -> Machine:
    """Return the machine with other facts from NVML on one GPU."""
    return patched(H200, f"gpus[{place}].nvml", **nvml)


def snapshots(after: Machine, before: Machine = H200) -> Comparison:
    return compare([saved("before", before), saved("after", after)])


def test_a_machine_and_itself() -> None:
    for name in replay.machine_names():
        machine = shipped(name)
        comparison = snapshots(machine, machine)
        assert (comparison.words, comparison.notes, comparison.exit_code) == ((), (), ExitCode.OK)
        assert comparison.compared > 100


DOWN = patched(H200, "gpus[1].nvml.nvlinks[0]", active=False)
ERRORS = with_gpu(1, ecc_uncorrected_volatile=3)
DENIED = {"recovery_action": Unread(reason=Reason.NO_PERMISSION)}
NOT_KNOWN = patched(H200, "gpus[3]", nvml=None, unread={"nvml": Unread(reason=Reason.NO_PERMISSION)})
FACTS = [
    (H200, DOWN, Outcome.WORSE, "GPU1 NVLink 0 active: yes -> no"),
    (H200, ERRORS, Outcome.WORSE, "GPU1 ECC uncorrected volatile: 0 -> 3"),
    (ERRORS, H200, Outcome.BETTER, "GPU1 ECC uncorrected volatile: 3 -> 0"),
    (H200, replace(H200, gpus=GPUS[:3]), Outcome.WORSE, "GPU3 present: yes -> not there"),
    (H200, with_gpu(0, vbios="97.00"), Outcome.DIFFERENT, "GPU0 VBIOS: 96.00.A5.00.1A -> 97.00"),
    (
        *(with_gpu(0, unread={}), with_gpu(0, recovery_action=None, unread=DENIED), Outcome.DIFFERENT),
        "GPU0 recovery action: none -> not read (no-permission)",
    ),
    (H200, NOT_KNOWN, Outcome.DIFFERENT, "GPU3 NVML: there -> not read (no-permission)"),
]


@pytest.mark.parametrize(("before", "after", "outcome", "words"), FACTS, ids=[words for *_, words in FACTS])
def test_what_a_change_of_a_fact_means(before: Machine, after: Machine, outcome: Outcome, words: str) -> None:
    comparison = snapshots(after, before)
    assert [diff.outcome for diff in comparison.words] == [outcome]
    assert comparison.exit_code is (ExitCode.FAILED if outcome is Outcome.WORSE else ExitCode.OK)
    assert words in text_of(comparison)


@pytest.mark.parametrize("counter", ["remote_errors", "replays_back_to_back", "failed_recoveries", "symbol_errors"])
def test_each_counter_of_errors_is_worse_where_it_rose(counter: str) -> None:
    assert outcome_of(Subject("GPU", "GPU1", f"nvml nvlinks 0 {counter}"), "0", "4") is Outcome.WORSE
    assert outcome_of(Subject("GPU", "GPU1", "nvml nvlinks 0 successful_recoveries"), "0", "4") is Outcome.DIFFERENT


def test_a_list_that_was_read_is_there_whatever_is_in_it() -> None:
    before, after = shipped("gb200-tray"), shipped("gb200-nvl72")
    words = {diff.what: (diff.reference, diff.value) for diff in snapshots(after, before).words}
    assert words["driver imex_channels"] == ("not read (not-stated)", "there")


def test_an_identity_that_could_not_be_read_is_passed_over() -> None:
    assert H200.confinement is not None
    unread = {**H200.confinement.unread, "namespaces.ipc": Unread(reason=Reason.NO_PERMISSION)}
    assert snapshots(patched(H200, "confinement", unread=unread)).words == ()


def test_what_changes_by_the_minute_is_no_fact() -> None:
    assert snapshots(with_gpu(1, temperature_c=80, sm_clock_mhz=1980, memory_used_bytes=1 << 30)).words == ()


def test_a_section_that_one_file_lacks_is_passed_over() -> None:
    assert snapshots(patched(H200, "", driver=None, system=None)).words == ()


def test_only_headings_and_outcomes_are_styled() -> None:
    text = render(snapshots(with_gpu(0, vbios="97.00")), Format.TEXT)
    assert isinstance(text, Text)
    styled = {text.plain[span.start : span.end].strip() for span in text.spans}
    assert text.style == ""
    assert not any("97.00" in part for part in styled)
