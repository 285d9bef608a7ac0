"""Findings and facts of saved results: what appeared, what went, what is another one, and what counts as worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.text import Text

from egmctl.comparison import compare
from egmctl.comparison.facts import Subject, judge
from egmctl.errors import ExitCode
from egmctl.facts import replay
from egmctl.model.comparison import Comparison, Outcome
from egmctl.model.finding import NODE, Diagnosis, Finding, Guard, Place, Status, on_gpus, on_pairs
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.model.record import Command, Reason, Unread
from egmctl.report.exports.csv import compare_csv
from egmctl.report.kinds import Format, render
from egmctl.saved import Saved
from tests.doctor.machines import shipped
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
        platform="",
        gpus_asked=None,
        numa_asked=None,
        purposes=tuple(Guard),
        findings=findings,
        machines=(H200,),
    )


def doctors(before: Sequence[Finding], after: Sequence[Finding]) -> Comparison:
    return compare([saved("before", diagnosis(*before)), saved("after", diagnosis(*after))])


def told(comparison: Comparison) -> list[tuple[Outcome, str, str, str]]:
    return [(diff.outcome, diff.about, diff.reference, diff.value) for diff in comparison.words]


PASS, SKIP, UNKNOWN = finding(Status.PASS), finding(Status.SKIP, "not here"), finding(Status.UNKNOWN, "no permission")
WARN, FAIL = finding(Status.WARN, "slow"), finding(Status.FAIL, "broken")

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
        (PASS, UNKNOWN, Outcome.DIFFERENT),
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


def test_a_fault_of_some_gpus_where_all_was_well() -> None:
    comparison = doctors([PASS], [finding(Status.FAIL, "no access", on_gpus(GPUS[1:3]))])
    assert told(comparison) == [(Outcome.WORSE, "GPU1-2", "pass", "fail: no access")]
    assert "WORSE  GPU1-2 gpu.one: pass -> fail: no access\n" in text_of(comparison)


def test_a_fault_that_spread_to_another_gpu() -> None:
    one, two = (finding(Status.FAIL, "no access", on_gpus(gpus)) for gpus in (GPUS[:1], GPUS[:2]))
    assert told(doctors([one], [two])) == [(Outcome.WORSE, "GPU1", "pass", "fail: no access")]
    assert told(doctors([two], [one])) == [(Outcome.BETTER, "GPU1", "fail: no access", "pass")]


def test_a_fault_of_a_pair() -> None:
    comparison = doctors([PASS], [finding(Status.FAIL, "no peer access", on_pairs([(GPUS[0], GPUS[1])]))])
    assert [diff.about for diff in comparison.words] == ["GPU0>GPU1"]


def test_a_check_that_did_not_run_before_is_no_regression() -> None:
    comparison = doctors([PASS], [PASS, finding(Status.FAIL, "broken", check="gpu.two")])
    assert told(comparison) == [(Outcome.DIFFERENT, "", "not checked", "fail: broken")]


def test_of_many_nodes_those_with_the_same_fault_are_folded() -> None:
    good, bad = diagnosis(PASS), diagnosis(finding(Status.FAIL, "broken", on_gpus(GPUS[:1])))
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
    gpu = GPUS[place]
    assert gpu.nvml is not None
    other = replace(gpu, nvml=replace(gpu.nvml, **nvml))  # type: ignore[arg-type]
    return with_gpus(*GPUS[:place], other, *GPUS[place + 1 :])


def with_gpus(*gpus: Gpu) -> Machine:
    return replace(H200, gpus=gpus)


def snapshots(after: Machine, before: Machine = H200) -> Comparison:
    return compare([saved("before", before), saved("after", after)])


def test_a_machine_and_itself() -> None:
    for name in replay.names():
        machine = shipped(name)
        comparison = snapshots(machine, machine)
        assert (comparison.words, comparison.notes, comparison.exit_code) == ((), (), ExitCode.OK)
        assert comparison.compared > 100


def test_what_changes_by_the_minute_is_no_fact() -> None:
    assert snapshots(with_gpu(1, temperature_c=80, sm_clock_mhz=1980, memory_used_bytes=1 << 30)).words == ()


def test_a_link_that_is_down_is_worse() -> None:
    links = (GPUS[1].nvml and GPUS[1].nvml.nvlinks) or ()
    comparison = snapshots(with_gpu(1, nvlinks=(replace(links[0], active=False), *links[1:])))
    assert told(comparison) == [(Outcome.WORSE, "GPU1", "yes", "no")]
    assert comparison.exit_code is ExitCode.FAILED
    assert "GPU1 nvml nvlinks 0 active: yes -> no" in text_of(comparison)


def test_errors_that_rose_are_worse_and_those_that_fell_are_better() -> None:
    more = with_gpu(1, ecc_uncorrected_volatile=3)
    assert told(snapshots(more)) == [(Outcome.WORSE, "GPU1", "0", "3")]
    assert told(snapshots(H200, more)) == [(Outcome.BETTER, "GPU1", "3", "0")]


@pytest.mark.parametrize("counter", ["remote_errors", "replays_back_to_back", "failed_recoveries", "symbol_errors"])
def test_each_counter_of_errors_is_worse_where_it_rose(counter: str) -> None:
    assert judge(Subject("GPU", "GPU1", f"nvml nvlinks 0 {counter}"), "0", "4") is Outcome.WORSE
    assert judge(Subject("GPU", "GPU1", "nvml nvlinks 0 successful_recoveries"), "0", "4") is Outcome.DIFFERENT


def test_a_gpu_that_is_gone_is_one_difference() -> None:
    comparison = snapshots(with_gpus(*GPUS[:3]))
    assert ("GPU3", "present", "not there") in [(diff.about, diff.what, diff.value) for diff in comparison.words]
    assert {diff.outcome for diff in comparison.words} == {Outcome.WORSE}
    assert len(comparison.words) == 1


def test_another_vbios_is_different() -> None:
    assert told(snapshots(with_gpu(0, vbios="97.00"))) == [(Outcome.DIFFERENT, "GPU0", "96.00.A5.00.1A", "97.00")]


def test_what_could_not_be_read_is_neither_worse_nor_better() -> None:
    denied = {"recovery_action": Unread(reason=Reason.NO_PERMISSION)}
    comparison = snapshots(with_gpu(0, recovery_action=None, unread=denied), with_gpu(0, unread={}))
    assert told(comparison) == [(Outcome.DIFFERENT, "GPU0", "none", "not read (no-permission)")]


def test_a_source_that_does_not_know_a_gpu_is_one_difference() -> None:
    blind = replace(GPUS[3], nvml=None, unread={"nvml": Unread(reason=Reason.NO_PERMISSION)})
    comparison = snapshots(with_gpus(*GPUS[:3], blind))
    assert [(diff.about, diff.what, diff.reference, diff.value) for diff in comparison.words] == [
        ("GPU3", "nvml", "there", "not read (no-permission)")
    ]


def test_a_list_that_was_read_is_there_whatever_is_in_it() -> None:
    before, after = shipped("gb200-tray"), shipped("gb200-nvl72")
    words = {diff.what: (diff.reference, diff.value) for diff in snapshots(after, before).words}
    assert words["driver imex_channels"] == ("not read (not-stated)", "there")


def test_a_section_that_one_file_lacks_is_passed_over() -> None:
    assert snapshots(replace(H200, driver=None, system=None)).words == ()


def test_strings_of_a_machine_are_only_shown() -> None:
    comparison = snapshots(with_gpu(0, vbios="[bold]\x1b[31m\n\u202e"))
    for text in (text_of(comparison, verbose=2), compare_csv(comparison)):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "[bold]\\x1b[31m\\n\\u202e" in text


def test_of_what_moments_and_identities_hold_nothing_is_told_that_could_not_be_read() -> None:
    confinement = H200.confinement
    assert confinement is not None
    unread = {**confinement.unread, "namespaces.ipc": Unread(reason=Reason.NO_PERMISSION)}
    assert snapshots(replace(H200, confinement=replace(confinement, unread=unread))).words == ()


def test_only_headings_and_outcomes_are_styled() -> None:
    text = render(snapshots(with_gpu(0, vbios="97.00")), Format.TEXT)
    assert isinstance(text, Text)
    styled = {text.plain[span.start : span.end].strip() for span in text.spans}
    assert text.style == ""
    assert not any("97.00" in part for part in styled)
