"""What egmctl assumes of coherent machines, and how a node settles it: made-up counters, none measured."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from egmctl.api.bench import Bench
from egmctl.bench.plan.cost import plan_seconds
from egmctl.bench.suites import CASES
from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.runner import CHECKS
from egmctl.errors import ExitCode
from egmctl.model.evidence import EvidenceReport, EvidenceState
from egmctl.model.finding import Status, Waiver, WaiverKind
from egmctl.model.machine import Machine
from egmctl.model.measurement import BufferCost, Measurement, MeasurementStatus, Placement, RunReport
from egmctl.model.probes import ProbeKind, ProbeOutcome
from egmctl.report.kinds import Format
from egmctl.verdict.evidence import evidence, evidence_cases, questions
from egmctl.verdict.judge import with_verdict
from tests.answers import diagnose, render
from tests.conftest import ROOT, RunEgmctl
from tests.doctor.faults import healthy
from tests.doctor.machines import patched, shipped
from tests.fake.plugin import MakeFakeNode
from tests.report.runs import run
from tests.schemas import validate
from tests.verdict.owners import CASE, EACH_ITSELF, FIRST_OF_CPU, GB200, Owner, counted

MARKER = re.compile(
    r"inferred|not measured\)|\*\*Not measured\*\*|(?i:not seen on hardware)|not yet run on EGM"
    r"|No Grace machine has been measured|no public output"
)
"""How the guide marks what it has from documents and source code only."""


def plain(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("page", sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")]), ids=lambda page: page.name)
def test_each_claim_that_the_guide_marks_as_not_measured_is_a_question(page: Path) -> None:
    text = plain(page.read_text())
    name = str(page.relative_to(ROOT))
    quotes = [question.marked[name] for question in questions().values() if name in question.marked]
    assert [quote for quote in quotes if quote not in text] == []
    covered = [range(text.index(quote), text.index(quote) + len(quote)) for quote in quotes]
    unasked = [found for found in MARKER.finditer(text) if not any(found.start() in quote for quote in covered)]
    assert [text[max(0, found.start() - 60) : found.end()] for found in unasked] == []


def test_the_guide_lists_every_question() -> None:
    table = (ROOT / "docs/first-grace.md").read_text().partition("| questions |")[2]
    assert [name for name in questions() if f"`{name}`" not in table] == []


def test_questions_name_checks_and_cases_that_exist() -> None:
    assert {check for each in questions().values() for check in each.checks} <= {check.id for check in CHECKS}
    assert set(evidence_cases()) <= {case.name for case in CASES}


@pytest.mark.parametrize("name", ["gb200-nvl72", "gb300-nvl72", "gh200", "gh200x4", "dgx-h100", "hgx-b200"])
def test_it_takes_less_than_ten_minutes(name: str) -> None:
    assert plan_seconds(Bench(cases=evidence_cases()).plan(shipped(name))) < 300


def measured(owner: Owner = EACH_ITSELF, name: str = GB200, **changes: Any) -> RunReport:
    """Return a run of the cases with the counters of this owner."""
    made = run(name, cases=evidence_cases())

    def shown(each: Measurement) -> Measurement:
        labels = tuple(EACH_ITSELF)
        owned = replace(each.flows[0].source, allocated_by_label=each.flows[0].initiator_label)
        source = each if each.case == CASE else replace(each, flows=(replace(each.flows[0], source=owned),))
        seen = counted(source, owner if each.case == CASE else EACH_ITSELF, labels)
        return replace(each, evidence=seen.evidence, **changes)

    made = replace(made, measurements=tuple(map(shown, made.measurements)))
    return with_verdict(made, None)


def settled(report: RunReport | None, machine: Machine | None = None) -> EvidenceReport:
    return evidence(diagnose(machine or healthy(), EVERYTHING, CHECKS), report, not_measured="GPUs are in use")


def states(report: EvidenceReport) -> dict[str, EvidenceState]:
    return {answer.question: answer.state for answer in report.answers}


def test_a_healthy_tray_settles_the_claims_and_the_first_line_counts_them() -> None:
    report = settled(measured())
    assert {name for name, state in states(report).items() if state is not EvidenceState.SETTLED} == {
        "nvlink-counters",
        "data-direct",
        "granularity",
        "location",
    }
    assert "\n14 of 18 questions are settled: not settled: nvlink-counters," in str(render(report, Format.TEXT))


def test_a_driver_that_takes_no_pool_of_host_memory_contradicts_the_guide_and_one_that_dies_settles_nothing() -> None:
    tried = healthy()
    number = [probe.kind for probe in tried.probes or ()].index(ProbeKind.DEVICE_POOL)

    def state(**ending: Any) -> EvidenceState:
        machine = patched(tried, f"probes[{number}]", **ending)
        return states(settled(measured(), machine))["egm-device-pool"]

    refused = {"outcome": ProbeOutcome.ERROR, "call": "cuDeviceSetMemPool", "error_number": 1, "detail": "refused"}
    assert state() is EvidenceState.SETTLED
    assert state(**refused) is EvidenceState.CONTRADICTED
    assert state(outcome=ProbeOutcome.CRASHED, call="cuDeviceSetMemPool") is EvidenceState.NOT_SETTLED


def test_an_owner_that_is_another_gpu_contradicts_the_claim_and_is_named_first() -> None:
    report = settled(measured(FIRST_OF_CPU))
    answer = next(answer for answer in report.answers if answer.question == "egm-owner")
    assert answer.state is EvidenceState.CONTRADICTED
    assert (answer.observations[0].value, answer.observations[0].locations[0]) == ("the owner is GPU0", "NUMA0 by GPU1")
    # What is said of the owner and of the others holds of whoever the owner is.
    assert (states(report)["egm-own-link"], states(report)["egm-sibling"]) == (
        EvidenceState.SETTLED,
        EvidenceState.SETTLED,
    )
    assert "contradicted: egm-owner; " in plain(str(render(report, Format.TEXT)))


def test_memory_that_each_gpu_reaches_over_its_own_link_has_no_sibling_route() -> None:
    found = states(settled(measured(dict.fromkeys(EACH_ITSELF))))
    assert (found["egm-owner"], found["egm-sibling"]) == (EvidenceState.NOT_SETTLED, EvidenceState.CONTRADICTED)


def lacking(case: str, reason: str, kind: WaiverKind, paths: int) -> RunReport:
    """Return a run of which a case's first paths were not measured."""
    made = measured()
    numbers = [number for number, each in enumerate(made.measurements) if each.case == case][:paths]
    waived = partial(
        replace, status=MeasurementStatus.WAIVED, reason=reason, waivers=(Waiver(kind=kind, reason=reason),)
    )
    changed = [waived(each) if n in numbers else each for n, each in enumerate(made.measurements)]
    made = replace(made, measurements=tuple(changed))
    return with_verdict(made, None)


def test_one_measured_path_among_several_settles_nothing_and_says_how_many_were_measured() -> None:
    report = settled(lacking("system_to_device_memcpy_ce", "GPUs are in use", WaiverKind.GPU_BUSY, 7))
    answer = next(answer for answer in report.answers if answer.question == "system-link")
    assert answer.state is EvidenceState.NOT_SETTLED
    values = [(each.value, len(each.locations)) for each in answer.observations]
    assert values[0] == ("1 of 4 observations agree: only all of them settle it", 0)
    assert values[2:] == [("GPUs are in use", 3)]
    assert states(report)["egm-own-link"] is EvidenceState.SETTLED
    text = plain(str(render(report, Format.TEXT)))
    assert "NOT SETTLED plain memory" in text
    assert "1 of 4 observations agree" in text


def test_a_path_that_was_not_measured_leaves_open_only_what_it_would_have_shown() -> None:
    first_is_near = lacking(CASE, "GPUs are in use", WaiverKind.GPU_BUSY, 1)
    found = states(settled(first_is_near))
    assert (found["egm-own-link"], found["egm-sibling"]) == (EvidenceState.NOT_SETTLED, EvidenceState.SETTLED)


def test_memory_that_the_gpus_cannot_use_leaves_no_rate_open() -> None:
    report = lacking("system_to_device_memcpy_ce", "no system memory", WaiverKind.UNSUPPORTED_MEMORY, 8)
    found = states(settled(report))
    assert (found["rates"], found["system-link"]) == (EvidenceState.SETTLED, EvidenceState.NOT_SETTLED)
    assert states(settled(lacking("system_to_device_memcpy_ce", "no", WaiverKind.NO_ROOM, 1)))["rates"] == "not-settled"


def test_pages_elsewhere_contradict_and_pages_there_settle() -> None:
    for right, state in (
        (True, EvidenceState.SETTLED),
        (False, EvidenceState.CONTRADICTED),
        (None, EvidenceState.NOT_SETTLED),
    ):
        placement = Placement(label="NUMA0", proof="move_pages", detail="where", right=right)
        assert states(settled(measured(placements=(placement,))))["location"] is state


def test_a_rate_above_its_link_contradicts_it() -> None:
    made = measured()
    faster = tuple(
        replace(each, bandwidth_gb_s=replace(each.bandwidth_gb_s, median=300.0)) if each.bandwidth_gb_s else each
        for each in made.measurements
    )
    assert states(settled(replace(made, measurements=faster)))["rates"] is EvidenceState.CONTRADICTED


@pytest.mark.parametrize("status", [Status.UNKNOWN, Status.SKIP])
def test_a_question_of_several_checks_is_open_while_one_of_them_is(status: Status) -> None:
    diagnosis = diagnose(healthy(), EVERYTHING, CHECKS)
    changed = [replace(each, status=status) if each.check == "imex.domain" else each for each in diagnosis.findings]
    report = evidence(replace(diagnosis, findings=tuple(changed)), None)
    assert (states(settled(None))["imex"], states(report)["imex"]) == (EvidenceState.SETTLED, EvidenceState.NOT_SETTLED)


def test_a_nic_that_registers_gpu_memory_by_nvidia_peermem_does_not_settle_dma_buf() -> None:
    diagnosis = diagnose(healthy(), EVERYTHING, CHECKS)
    (noted, *_) = [each for each in diagnosis.findings if each.check == "rdma.dmabuf-active"]
    changed = [replace(each, status=Status.NOTE) if each is noted else each for each in diagnosis.findings]
    report = evidence(replace(diagnosis, findings=tuple(changed)), None)
    assert states(report)["dma-buf"] is EvidenceState.NOT_SETTLED


def test_dma_buf_is_open_on_a_node_without_a_nic_though_all_memory_can_be_exported() -> None:
    diagnosis = diagnose(healthy(), EVERYTHING, CHECKS)
    without = replace(diagnosis, machines=(replace(diagnosis.machine, nics=()),))
    answers = [*evidence(diagnosis, None).answers, *evidence(without, None).answers]
    states_and_words = [(each.state, each.observations[0].value) for each in answers if each.question == "dma-buf"]
    assert states_and_words[0][0] is EvidenceState.SETTLED
    assert states_and_words[1] == (EvidenceState.NOT_SETTLED, "no NIC here")


def test_a_granularity_that_is_not_known_settles_nothing() -> None:
    for size, state in ((2 << 20, EvidenceState.SETTLED), (None, EvidenceState.NOT_SETTLED)):
        cost = BufferCost(memory="host-numa", label="NUMA0", size_bytes=4 << 20, allocate_ms=1.0)
        cost = replace(cost, granularity_bytes=size, recommended_granularity_bytes=size)
        assert states(settled(measured(costs=(cost,))))["granularity"] is state


def test_without_a_coherent_gpu_or_a_bench_each_question_says_why_it_is_open() -> None:
    h200 = settled(run("hgx-h200x4", cases=evidence_cases()), shipped("hgx-h200x4"))
    reasons = {answer.question: answer.observations[0].value for answer in h200.answers if answer.state != "settled"}
    assert {name for name, reason in reasons.items() if reason == "no coherent GPU here"} == {
        name for name, question in questions().items() if not question.anywhere
    }
    assert h200.exit_code is ExitCode.OK
    busy = settled(None)
    reasons = {answer.question: answer.observations[0].value for answer in busy.answers}
    assert {name for name, reason in reasons.items() if reason == "GPUs are in use"} == {
        name for name, question in questions().items() if question.cases
    }


@pytest.mark.long
def test_one_command_makes_a_file_that_show_reads_back(
    egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path
) -> None:
    machine = patched(shipped("gb200-tray"), "host", hostname="secret-tray")
    node, file = fake_node(machine), tmp_path / "evidence.json"
    environment = {**node.environment(), "EGMCTL_FAKE_COUNTERS": "1"}
    ended = egmctl("snapshot", "--evidence", "-o", file, env=environment, little=True)
    document = json.loads(file.read_text())
    validate(document, "evidence")
    result = document["result"]
    assert (ended.code, document["schema"], "secret-tray" in file.read_text()) == (0, "egmctl.evidence/1", False)
    assert {each["case"] for each in result["run"]["measurements"]} == set(evidence_cases())
    assert result["diagnosis"]["machines"][0]["probes"]
    assert re.search(r"^[0-9]+ of [0-9]+ questions are settled: ", ended.out, re.M)
    assert egmctl("show", file).out == ended.out
    both = egmctl("snapshot", "--evidence", "--full", env=environment)
    assert (both.code, "--evidence" in both.err, "--full" in both.err) == (2, True, True)
