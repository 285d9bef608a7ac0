"""The picture of a fleet: which GPU of which node is ready, and why one is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from egmctl.cli.output import _encodable
from egmctl.model.answer import State
from egmctl.model.fleet import Condition, FleetGpu, FleetReport, NodeResult, Reach, Unready
from egmctl.model.measurement import MeasurementStatus
from egmctl.model.record import Command
from egmctl.model.remedy import Remedy
from egmctl.report.kinds import Format
from egmctl.verdict.bringup import bringup_answer
from tests.answers import render
from tests.doctor.faults import OUTSIDE, healthy
from tests.doctor.machines import of_two_gpus, patched, shipped
from tests.fleet.racks import Result, doctor, fleet
from tests.report.pages import elements, name, parse, words
from tests.report.texts import text_of
from tests.verdict.bringups import judged
from tests.verdict.narrow import explained, links_down
from tests.verdict.runs import H2D, LOCAL, WRITE, run, slow_at, with_status

H200, TRAY = shipped("hgx-h200x4"), healthy()
SLOW_LINKS = links_down()
OTHER = "9c6f5af3-53bf-49b5-a436-b66766c413c3"


def picture(report: FleetReport) -> list[str]:
    """Return the lines of the picture in text."""
    text = text_of(report)
    lines = next(paragraph for paragraph in text.split("\n\n") if "\nGPUs: " in paragraph).splitlines()
    assert max(map(len, text.splitlines())) <= 80
    return lines


RUN = judged(run(WRITE, H2D))


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (doctor(SLOW_LINKS), "b  ■■✕■  GPU2: 16 of 18 NVLinks are active"),
        (
            doctor(patched(H200, "gpus[1].nvml", persistence_mode=False)),
            "b  ■▲■■  GPU1: persistence mode is off: each first use takes seconds and drops",
        ),
        (doctor(of_two_gpus(H200)), "b  ■■··  2 GPUs fewer than on most nodes"),
        (Reach.UNREACHABLE, "b  ????  cannot be reached"),
        (Reach.TIMED_OUT, "b  ????  no answer (timed-out)"),
    ],
)
def test_each_gpu_that_is_not_ready_has_its_mark_and_its_words(result: Result | Reach, line: str) -> None:
    lines = picture(fleet({"a": doctor(H200), "b": result, "c": doctor(H200)}, Command.DOCTOR))
    assert (lines[0], lines[-2]) == (line, "2 other nodes: 8 GPUs ready")


def test_the_next_step_names_nodes_and_not_that_it_is_for_a_host() -> None:
    step = fleet({"a": doctor(H200), "b": doctor(SLOW_LINKS)}, Command.DOCTOR).answer.next_step
    assert step is not None
    assert step.text.startswith("drain b, end what uses the GPU and reset it; ")


def test_a_failure_makes_no_gpu_ready_of_which_too_little_is_known() -> None:
    sick = doctor(patched(shipped("gb200-nvl72"), "gpus[2].nvml.nvlinks[3]", active=False))
    lines = picture(fleet({"a": doctor(shipped("gb200-nvl72")), "b": sick}, Command.DOCTOR))
    assert lines[1] == "b  ??✕?  GPU0-1,3: not determined; GPU2: 17 of 18 NVLinks are active"


def test_a_gpu_is_judged_by_the_slowest_path_that_no_other_gpu_explains() -> None:
    """Twelve paths touch GPU2 and are slow; the three other GPUs at their ends stay ready."""
    slow = judged(run(WRITE, H2D, value=slow_at("GPU2")))
    lines = picture(fleet({"a": RUN, "b": slow}, Command.BENCH))
    line = "b  ■■✕■  GPU2: GPU0 -> GPU2: 198.1 GB/s, below 376.4; typical is 396.2"
    assert (lines[0], lines[-2]) == (line, "1 other node: 4 GPUs ready")


def test_a_cause_names_the_gpu_where_no_outlier_does() -> None:
    """Too few GPUs or cases say whose paths are slow; the links that are down do."""
    slow = explained(SLOW_LINKS, "GPU2")
    assert slow.verdict is not None
    slow = replace(slow, verdict=replace(slow.verdict, culprits=()))
    gpus = fleet({"a": RUN, "b": slow}, Command.BENCH).answers[1].gpus
    assert [gpu.kind for gpu in gpus] == [None, None, "fault", None]


def test_a_bringup_counts_only_the_gpus_of_the_slow_paths_as_not_ready() -> None:
    """Its cause of unexplained paths names no GPU; the run does."""
    slow = bringup_answer(doctor(H200), judged(run(WRITE, H2D, value=slow_at("GPU2"))))
    broken = bringup_answer(doctor(H200), judged(with_status(run(WRITE, LOCAL), MeasurementStatus.CORRUPT, [0])))
    report = fleet({"a": bringup_answer(doctor(H200), RUN), "b": slow, "c": broken}, Command.BRINGUP)
    kinds = ["".join(gpu.kind or "-" for gpu in answer.gpus) for answer in report.answers]
    assert kinds == ["----", "--fault-", "faultfault--"]


def test_the_page_has_a_link_for_each_node_to_what_is_known_of_it() -> None:
    outside = doctor(patched(TRAY, "gpus[*].nvml", fabric=OUTSIDE))
    report = fleet({"tray2": outside, "tray10": doctor(TRAY), "tray1": doctor(TRAY)}, Command.DOCTOR)
    page = parse(str(render(report, Format.HTML)))
    targets = {node.get("id") for node in page.iter()}
    items = [item for item in elements(page, "li") if any(name(child) == "i" for child in item.iter())]
    links = [link for item in items for link in elements(item, "a")]
    assert [words(item) for item in items] == [
        "tray1✓✓✓✓OK",
        "tray2□□□□□ outside the NVLink domain (clique 0)",
        "tray10✓✓✓✓OK",
    ]
    assert [link.get("title") for link in links] == [
        "4 GPUs ready",
        "outside the NVLink domain (clique 0)",
        "4 GPUs ready",
    ]
    assert all((link.get("href") or "").removeprefix("#") in targets for link in links)
    (key,) = (words(node) for node in elements(page, "p") if words(node).startswith("Each square is"))
    assert key == "Each square is a GPU: ✓ ready, □ outside."
    folded = [words(span) for summary in elements(page, "summary") for span in [*elements(summary, "span")][:1]]
    assert folded[-2:] == ["tray[1,10]  2 nodes", "tray2"]


def test_a_whole_rack_stands_as_it_is_with_its_switch_trays_and_the_links_that_are_left() -> None:
    results = dict.fromkeys((f"t{number:02}" for number in range(1, 19)), doctor(TRAY))
    results["t03"] = doctor(patched(TRAY, "gpus[2].nvml.nvlinks[4]", active=False))
    report = fleet(results, Command.DOCTOR)
    page = parse(str(render(report, Format.HTML)))
    above, below = (elements for elements in elements(page, "ul") if elements.get("class") == "trays")
    names = [[words(next(elements(item, "a")))[:3] for item in elements(part, "li")] for part in (above, below)]
    assert names == [[f"t{number:02}" for number in part] for part in (range(18, 8, -1), range(8, 0, -1))]
    assert "9 switch trays" in words(page)
    assert "t03✓✓17✕✓✕ GPU2: 17 of 18 NVLinks are active" in [words(item) for item in elements(below, "li")]
    assert report.answer.next_step == Remedy(text="drain t03, reset GPU2")
    # A part of a rack has no known place for its switches.
    part = fleet({node: results[node] for node in ("t01", "t02")}, Command.DOCTOR)
    assert "switch trays" not in words(parse(str(render(part, Format.HTML))))


def test_a_measured_gpu_shows_its_slowest_path_that_no_other_gpu_explains() -> None:
    slow = judged(run(WRITE, H2D, value=slow_at("GPU2")))
    gpus = fleet({"a": RUN, "b": slow}, Command.BENCH).answers[1].gpus
    assert [gpu.share is None or round(gpu.share, 2) for gpu in gpus] == [1.0, 1.0, 0.5, 1.0]


def test_nodes_of_several_domains_stand_by_domain() -> None:
    other = patched(TRAY, "gpus[*].nvml.fabric", cluster_uuid=OTHER)
    results: dict[str, Result | Reach] = {
        "a1": doctor(TRAY),
        "a2": doctor(TRAY),
        "b1": doctor(other),
        "b2": doctor(other),
        "c": Reach.LOST,
    }
    page = parse(str(render(fleet(results, Command.DOCTOR), Format.HTML)))
    heads = [words(head).partition(",")[0] for head in elements(page, "h3")][:3]
    clusters = ("00000000-0000-0000-0000-000000000072", OTHER)
    assert heads == [*(f"cluster {cluster}" for cluster in clusters), "In no known NVLink domain"]


def test_a_thousand_nodes_are_one_page_of_small_squares() -> None:
    """Those that are not ready are links with their words; text names the first nodes and the number of the others."""
    results: dict[str, Result | Reach] = {"node0000": doctor(H200)}
    results |= dict.fromkeys((f"node{number:04}" for number in range(1, 1000)), Reach.UNREACHABLE)
    report = fleet(results, Command.DOCTOR)
    page = str(render(report, Format.HTML))
    assert len(page) < 200_000
    squares = [line for line in elements(parse(page), "p") if line.get("class") == "nodes"]
    assert [len(list(line)) - 1 for line in squares] == [50] * 20
    assert sum(len(list(elements(line, "a"))) for line in squares) == 999
    assert "and 975 more nodes: the page (-o fleet.html) shows all" in picture(report)


def test_a_fleet_that_is_ready_and_one_that_was_not_judged_need_no_picture_in_text() -> None:
    assert "GPUs: " not in text_of(fleet({"a": RUN, "b": RUN}, Command.BENCH))
    assert not any(answer.gpus for answer in fleet({"a": RUN}, Command.TOPO).answers)


def test_a_terminal_that_has_only_ascii_has_a_mark_for_each_state_too() -> None:
    lines = picture(fleet({"a": doctor(H200), "b": doctor(SLOW_LINKS), "c": Reach.LOST}, Command.DOCTOR))
    assert _encodable("\n".join(lines), "ascii").splitlines() == [
        "b  ##X#  GPU2: 16 of 18 NVLinks are active",
        "c  ????  no answer (lost)",
        "1 other node: 4 GPUs ready",
        "GPUs: # ready, X fault, ? unknown",
    ]


@pytest.mark.parametrize(
    ("state", "gpus", "condition"),
    [
        (State.GOOD, (FleetGpu(), FleetGpu()), Condition.READY),
        (State.GOOD, (FleetGpu(), FleetGpu(reason="slow")), Condition.WARNING),
        (State.WARN, (FleetGpu(),), Condition.WARNING),
        (State.INCOMPLETE, (FleetGpu(reason="slow"),), Condition.UNKNOWN),
        (State.WARN, (FleetGpu(kind=Unready.OUTSIDE), FleetGpu(kind=Unready.UNKNOWN)), Condition.OUTSIDE),
        (State.BAD, (FleetGpu(kind=Unready.MISSING),), Condition.FAULT),
    ],
)
def test_the_condition_of_a_node_is_the_worst_of_its_answer_and_of_its_gpus(
    state: State, gpus: tuple[FleetGpu, ...], condition: Condition
) -> None:
    assert NodeResult(node="a", reach=Reach.ANSWERED, state=state, word="", gpus=gpus).condition is condition


def test_each_reason_why_a_gpu_is_not_ready_is_a_condition() -> None:
    assert {FleetGpu(kind=kind).condition for kind in Unready} == {*Condition} - {Condition.WARNING, Condition.READY}
