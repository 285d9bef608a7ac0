"""A rack of 18 model trays: what a fleet says of the NVLink domain, in process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from egmctl.model.answer import State
from egmctl.model.codec import from_json, to_json
from egmctl.model.comparison import Outcome
from egmctl.model.fleet import FleetReport, Reach
from egmctl.model.machine import Machine
from egmctl.model.record import Command
from egmctl.report.exports.json import result_json
from tests.doctor.faults import OUTSIDE
from tests.doctor.machines import of_two_gpus, patched, shipped
from tests.doctor.sick import with_cluster
from tests.fleet.conftest import TRAYS, WELL, Ask, Faults
from tests.report.texts import text_of
from tests.schemas import validate

OTHER_RACK = "9c6f5af3-53bf-49b5-a436-b66766c413c3"


def with_gpus(gpus: str = "*", **fabric: Any) -> Machine:
    """A tray on which the fabric of some GPUs differs; outside the domain if nothing else is said."""
    machine: Machine = patched(WELL, f"gpus[{gpus}].nvml.fabric", **fabric)
    return machine if fabric else patched(WELL, f"gpus[{gpus}].nvml", fabric=OUTSIDE)


OUT, SLOW = with_gpus(), patched(WELL, "gpus[2].nvml.nvlinks[4]", active=False)
WARNED = patched(WELL, "gpus[*].nvml", persistence_mode=False)


THREE: Faults = {"tray07": OUT, "tray12": Reach.UNREACHABLE, "tray03": SLOW}


def first(report: FleetReport) -> str:
    """Return the answer as one line."""
    return f"{report.answer.word}: {report.answer.sentence}"


@pytest.mark.parametrize("arguments", [(), ("--expect", "domain-gpus=72"), ("--expect", "domain")])
def test_three_faults_are_named_in_the_first_lines_with_the_gpus_they_cost(
    rack: Ask, arguments: tuple[str, ...]
) -> None:
    report = rack(THREE, *arguments)
    lines = text_of(report).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("NO-GO"))
    assert lines[start : start + 3] == [
        "NO-GO: 63 of 72 GPUs are ready, 5 are not, 4 are unknown: tray07 is outside the",
        "  NVLink domain (clique 0), GPU2 of tray03: 17 of 18 NVLinks are active, tray12",
        "  cannot be reached (4 GPUs assumed)",
    ]
    wrong = {answer.node for answer in report.answers if answer.state is State.BAD}
    assert wrong == ({"tray03", "tray07"} if arguments else {"tray03"})
    validate(json.loads(result_json(report)), "fleet")


@pytest.mark.parametrize(
    ("faults", "expect", "answer", "words"),
    [
        ({}, "", State.GOOD, "GO: 24 of 24 GPUs are ready in 1 NVLink domain"),
        ({}, "domain-gpus=24", State.GOOD, "GO: 24 of 24 GPUs are ready in 1 NVLink domain"),
        ({}, "domain-gpus=28", State.BAD, "NO-GO: 24 of 28 GPUs are ready: these nodes have 24"),
        ({"tray02": Reach.LOST}, "", State.BROKE, "tray02 gave no answer (lost) (4 GPUs assumed)"),
        ({"tray02": with_gpus("3")}, "", State.BAD, "23 of 24 GPUs are ready, 1 is not: GPU3 of tray02 is outside the"),
        ({"tray02": with_gpus(clique_id=4)}, "", State.INCOMPLETE, "tray02 is outside the NVLink domain (clique 4)"),
        (
            dict.fromkeys(("tray02", "tray03"), with_gpus(clique_id=4)),
            "",
            State.INCOMPLETE,
            "16 of 24 GPUs are ready, 8 are not: tray[02-03] are outside the NVLink domain (clique 4)",
        ),
        ({"tray02": with_gpus(cluster_uuid=OTHER_RACK)}, "", State.INCOMPLETE, "tray02 is outside the NVLink domain"),
        (
            dict.fromkeys(TRAYS[3:], with_gpus(cluster_uuid=OTHER_RACK)),
            "",
            State.GOOD,
            "24 of 24 GPUs are ready in 2 NVLink domains",
        ),
        (
            dict.fromkeys(TRAYS[4:], with_gpus(cluster_uuid=OTHER_RACK)),
            "domain-gpus=16",
            State.BAD,
            "16 of 16 GPUs are ready, 8 are not: tray[05-06] are outside the NVLink domain (clique 1), these nodes",
        ),
        (
            {"tray02": of_two_gpus(WELL)},
            "",
            State.BAD,
            "22 of 24 GPUs are ready, 2 are not: tray02: 2 GPUs fewer than on most",
        ),
        (
            {"tray02": patched(WELL, "gpus[1].nvml", fabric=None)},
            "",
            State.BAD,
            "4 are unknown: tray02: not determined; tray02: GPU1 fabric.domain: warn: outside the NVLink domain",
        ),
        ({"tray02": WARNED}, "", State.BAD, "24 of 24 GPUs are ready"),
        ({"tray02": shipped("hgx-h200x4")}, "", State.WARN, "20 of 20 GPUs are ready in 1 NVLink domain"),
        (dict.fromkeys(TRAYS[2:], shipped("hgx-b200")), "", State.WARN, "8 of 8 GPUs are ready in 1 NVLink domain"),
    ],
)
def test_each_gpu_that_is_not_ready_has_its_reason(
    rack: Ask, faults: Faults, expect: str, answer: State, words: str
) -> None:
    options = ("--expect", expect) if expect else ()
    report = rack(faults, *options, nodes=TRAYS[:6])
    assert report.readiness is not None
    assert (report.answer.state, words in first(report)) == (answer, True), first(report)


def test_a_bringup_says_go_and_what_was_not_measured_is_not_ready(rack: Ask) -> None:
    report = rack({"tray02": OUT}, command=Command.BRINGUP, nodes=TRAYS[:3])
    outside = "tray02 is outside the NVLink domain (clique 0)"
    assert (
        first(report)
        == f"INCOMPLETE: 0 of 12 GPUs are ready, 4 are not, 8 are unknown: {outside}, tray[01,03]: not determined"
    )


def test_a_warning_costs_gpus_where_it_counts_as_a_failure(rack: Ask) -> None:
    """With --strict the warning is the reason, not that nothing was determined."""
    report = rack({"tray02": WARNED}, "--strict", nodes=TRAYS[:3])
    assert "tray02: persistence mode is off" in first(report)


CLUSTERS = patched(with_cluster(), "gpus[*].nvml.fabric", clique_id=3)


@pytest.mark.parametrize("machine", [shipped("hgx-h200x4"), shipped("gb200-tray"), with_cluster(), CLUSTERS])
def test_nodes_that_belong_to_no_rack_have_no_such_line(rack: Ask, machine: Machine) -> None:
    """HGX boards may have a cluster UUID of their own (meta-pytorch/torchcomms, issue 1315)."""
    report = rack(dict.fromkeys(TRAYS, machine), nodes=TRAYS[:3])
    assert report.readiness is None


def test_a_node_that_deviates_from_most_nodes_is_never_called_better(rack: Ask) -> None:
    """All other trays warn of persistence mode; the one that fell out of the domain does not."""
    report = rack(dict.fromkeys(TRAYS, WARNED) | {"tray02": OUT}, nodes=TRAYS[:3])
    assert report.comparison is not None
    differences = [*report.comparison.words, *report.comparison.machines]
    outcomes = {item.outcome for item in differences if "tray02" in item.nodes}
    assert outcomes == {Outcome.WORSE, Outcome.DIFFERENT}


def test_nodes_of_one_domain_are_a_group(rack: Ask) -> None:
    report = rack({"tray02": with_gpus(clique_id=4)}, nodes=TRAYS[:3])
    assert [group.folded for group in report.groups] == ["tray[01,03]", "tray02"]
    lines = [line.value for group in report.groups for line in group.lines if line.key == "NVLink domain"]
    assert [line.rpartition(", ")[2] for line in lines] == ["clique 1", "clique 4"]


def test_nodes_with_equal_lines_keep_the_commands_of_their_own_devices(rack: Ask) -> None:
    """Their lines are equal, and a command that names a device is of one node."""
    first = patched(WELL, "gpus[2].nvml.nvlinks[3]", active=False)
    moved = json.dumps(to_json(first)).replace("0018:01:00.0", "0018:02:00.0")
    second = from_json(Machine, json.loads(moved))
    report = rack({"tray01": first, "tray02": second}, nodes=("tray01", "tray02", "tray03"))
    of_both = [group for group in report.groups if {"tray01", "tray02"} <= {*group.nodes}]
    remedies = [line.remedy for group in of_both for line in group.lines if line.check == "nvlink.links"]
    assert remedies
    assert "0018:01:00.0" not in str(remedies)
