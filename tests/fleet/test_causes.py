"""What a fleet says of a node's run: each cause once, with how much it explains, or that nothing does."""

from __future__ import annotations

from dataclasses import replace

from egmctl.fleet.folding import lines_of
from egmctl.model.machine import Machine
from egmctl.verdict.explain import with_causes
from egmctl.verdict.judge import judge
from tests.comparison.runs import saved
from tests.doctor.machines import shipped
from tests.verdict.runs import H2D, WRITE, run
from tests.verdict.test_explain import PROFILE, links_down, narrow, slow_at

H200 = shipped("hgx-h200x4")


def causes(machine: Machine, *slow: str) -> list[tuple[str, str]]:
    made = replace(run(WRITE, H2D, value=slow_at(*slow), machine=H200), machines=(machine,))
    report = with_causes(replace(made, verdict=judge(made, PROFILE)))
    return [(line.key, line.value) for line in lines_of(saved("node1", report)) if line.key.startswith("cause")]


def test_each_cause_is_one_line() -> None:
    assert causes(links_down(narrow(1)), "GPU1", "GPU2") == [
        (
            "cause nvlink.links GPU2",
            "16 of 18 NVLinks are active; explains 6 of 16 measurements",
        ),
        (
            "cause pcie.link GPU1",
            "PCIe x8 of x16; explains 1 of 16 measurements",
        ),
    ]


def test_what_nothing_explains_says_so() -> None:
    assert causes(H200, "GPU2") == [("cause", "nothing that was read explains it")]


def test_a_node_where_all_is_well_has_none() -> None:
    assert causes(H200) == []
