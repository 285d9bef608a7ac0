"""What explains that a run is worse than the reference: what holds for it and not for the others; or nothing does."""

from __future__ import annotations

from dataclasses import replace

from egmctl.comparison import compare
from egmctl.model.comparison import Comparison
from egmctl.model.machine import Machine
from egmctl.model.measurement import RunReport
from egmctl.report.kinds import Format, render
from tests.comparison.runs import saved
from tests.doctor.machines import shipped
from tests.verdict.runs import H2D, WRITE, run, slow_at
from tests.verdict.test_explain import OF_GPU2, beside, links_down, narrow

H200 = shipped("hgx-h200x4")


def measured(machine: Machine, *slow: str) -> RunReport:
    return replace(run(WRITE, H2D, value=slow_at(*slow), machine=H200), machines=(machine,))


def compared(before: RunReport, *after: RunReport) -> Comparison:
    return compare([saved(f"node{number}", one) for number, one in enumerate((before, *after))])


def told(comparison: Comparison) -> dict[tuple[str, str], set[str]]:
    return {
        (cause.node, cause.finding.check): {comparison.paths[place].path for place in cause.explains}
        for cause in comparison.causes
    }


def test_links_that_went_down_explain_the_worse_paths_of_their_gpu() -> None:
    comparison = compared(measured(H200), measured(links_down(), "GPU2"))
    assert told(comparison) == {("node1", "nvlink.links"): OF_GPU2}
    text = " ".join(str(render(comparison, Format.TEXT)).split())
    assert "CAUSE GPU2: 16 of 18 NVLinks are active [nvlink.links]" in text
    assert "explains 6 of 7 worse paths" in text
    assert "CAUSE nothing that was read explains 1 of 7 worse paths" in text


def test_what_was_so_before_does_not_explain_the_change() -> None:
    assert told(compared(measured(links_down()), measured(links_down(), "GPU2"))) == {}


def test_another_process_explains_what_it_touched() -> None:
    comparison = compared(measured(H200), beside(measured(H200, "GPU2"), "GPU2", other_processes=(1066,)))
    assert told(comparison) == {("node1", "bench.other-processes"): {*OF_GPU2, "NUMA0 -> GPU2"}}


def test_two_causes_stay_two() -> None:
    comparison = compared(measured(H200), measured(links_down(narrow(1)), "GPU1", "GPU2"))
    assert told(comparison) == {("node1", "nvlink.links"): OF_GPU2, ("node1", "pcie.link"): {"NUMA0 -> GPU1"}}


def test_of_nodes_the_one_that_is_out_of_line_has_the_cause() -> None:
    comparison = compared(measured(H200), measured(links_down(), "GPU2"), measured(H200), measured(H200))
    assert told(comparison) == {("node1", "nvlink.links"): OF_GPU2}


def test_runs_that_are_alike_have_no_cause() -> None:
    assert compared(measured(links_down()), measured(links_down())).causes == ()
