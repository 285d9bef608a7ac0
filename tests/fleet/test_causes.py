"""What a fleet says of a node's run: each cause once, with how much it explains, or that nothing does."""

from __future__ import annotations

from dataclasses import replace

from egmctl.fleet.folder import lines_of
from egmctl.model.fleet import GroupLine
from egmctl.model.machine import Machine
from egmctl.verdict.explain import with_causes
from egmctl.verdict.judge import judge
from tests.comparison.runs import saved
from tests.doctor.machines import shipped
from tests.verdict.runs import H2D, WRITE, run, slow_at
from tests.verdict.test_explain import PROFILE, links_down, narrow

H200 = shipped("hgx-h200x4")


def lines(machine: Machine, *slow: str) -> tuple[GroupLine, ...]:
    made = replace(run(WRITE, H2D, value=slow_at(*slow), machine=H200), machines=(machine,))
    return lines_of(saved("node1", with_causes(replace(made, verdict=judge(made, PROFILE)))))


def causes(machine: Machine, *slow: str) -> list[tuple[str, str]]:
    return [(line.key, line.value) for line in lines(machine, *slow) if line.key.startswith("cause")]


def test_what_is_slow_in_both_directions_is_one_line() -> None:
    shown = lines(H200, "GPU2")
    assert sum("GPU2 is slower than its peers" in line.value for line in shown) == 2, "one for each class of paths"
    assert len(shown) == len(set(shown))


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
    shown = [line.value for line in lines(H200, "GPU2") if line.status == "fail"]
    assert shown[0].endswith("the outliers touch GPU2; nothing that was read explains it")
    assert causes(H200, "GPU2") == []


def test_a_node_where_all_is_well_has_none() -> None:
    assert causes(H200) == []
