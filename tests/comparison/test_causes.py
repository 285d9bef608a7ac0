"""What explains that a run is worse than the reference: what holds for it and not for the others; or nothing does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from egmctl.comparison import compare
from egmctl.model.comparison import Comparison
from egmctl.model.machine import Machine
from egmctl.model.measurement import RunReport
from egmctl.report.kinds import Format
from tests.answers import render
from tests.comparison.runs import saved
from tests.doctor.machines import shipped
from tests.verdict.narrow import beside, links_down, narrow
from tests.verdict.runs import H2D, OF_GPU2, WRITE, run, slow_at

H200 = shipped("hgx-h200x4")


def measured(machine: Machine, *slow: str) -> RunReport:
    return replace(run(WRITE, H2D, value=slow_at(*slow), machine=H200), machines=(machine,))


def compared(*runs: RunReport) -> Comparison:
    return compare([saved(f"node{number}", one) for number, one in enumerate(runs)])


def told(comparison: Comparison) -> dict[tuple[str, str], set[str]]:
    return {
        (cause.node, cause.finding.check): {comparison.paths[place].path for place in cause.explains}
        for cause in comparison.causes
    }


HEALTHY, SICK = measured(H200), measured(links_down(), "GPU2")
LINKS = {("node1", "nvlink.links"): OF_GPU2}


@pytest.mark.parametrize(
    ("runs", "causes"),
    [
        ((HEALTHY, SICK), LINKS),
        ((measured(links_down()), SICK), {}),
        ((measured(links_down()), measured(links_down())), {}),
        (
            (HEALTHY, beside(measured(H200, "GPU2"), "GPU2", other_processes=(1066,))),
            {("node1", "bench.other-processes"): {*OF_GPU2, "NUMA0 -> GPU2"}},
        ),
        (
            (HEALTHY, measured(links_down(narrow(1)), "GPU1", "GPU2")),
            LINKS | {("node1", "pcie.link"): {"NUMA0 -> GPU1"}},
        ),
        ((HEALTHY, SICK, HEALTHY, HEALTHY), LINKS),
    ],
    ids=["links went down", "they were down before", "runs that are alike", "another process", "two", "of four nodes"],
)
def test_what_holds_for_the_worse_run_alone_explains_it(
    runs: tuple[RunReport, ...], causes: dict[tuple[str, str], set[str]]
) -> None:
    assert told(compared(*runs)) == causes


def test_a_cause_is_told_with_what_it_explains_and_what_is_left() -> None:
    text = " ".join(str(render(compared(HEALTHY, SICK), Format.TEXT)).split())
    assert "CAUSE GPU2: 16 of 18 NVLinks are active [nvlink.links]" in text
    assert "explains 6 of 7 worse paths" in text
    assert "CAUSE nothing that was read explains 1 of 7 worse paths" in text
