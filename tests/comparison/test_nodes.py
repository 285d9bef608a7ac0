"""Nodes of one kind against each other: who is out of line, in what, and who is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egmctl.comparison import compare
from egmctl.errors import ExitCode
from egmctl.model.comparison import Comparison, Outcome
from egmctl.model.measurement import Measurement, RunReport, Status
from egmctl.saved import Saved
from tests.bench.routes import nv, over
from tests.comparison.runs import changed, ended, from_gpu, on_path, run, saved, times
from tests.report.texts import text_of

RACK = [f"node{number:02}" for number in range(1, 17)]


def rack(bad: RunReport | None = None, *, spread: float = 0.001) -> list[Saved]:
    """Return 16 nodes, of which the last one may be another."""
    good = [saved(name, run(seed=seed, spread=spread)) for seed, name in enumerate(RACK)]
    return good if bad is None else [*good[:-1], saved(RACK[-1], bad)]


def test_sixteen_equal_nodes_are_the_same() -> None:
    comparison = compare(rack())
    assert (comparison.paths, comparison.words, comparison.machines) == ((), (), ())
    assert comparison.same_folded == "node[01-16]"
    assert comparison.exit_code is ExitCode.OK
    assert "\nSAME  node[01-16]\n" in text_of(comparison)


def test_one_bad_link_is_named_with_its_node() -> None:
    comparison = compare(rack(changed(run(seed=99), times(0.88, on_path("GPU3 -> GPU1")))))
    assert {(diff.node, diff.path, diff.outcome) for diff in comparison.paths} == {
        ("node16", "GPU3 -> GPU1", Outcome.WORSE)
    }
    (row,) = comparison.affected
    assert (row.node, row.where) == ("node16", "GPU3 -> GPU1")
    assert comparison.same_folded == "node[01-15]"
    assert comparison.exit_code is ExitCode.FAILED
    text = text_of(comparison)
    assert "WORSE  node16: GPU3 -> GPU1 12" in text
    assert "SAME  node[01-15]\n" in text


@pytest.mark.long
def test_a_path_that_lacks_links_is_named_with_them() -> None:
    def fewer(m: Measurement) -> Measurement:
        (flow,) = m.flows
        return replace(m, flows=(replace(flow, route=over(nv(16))),)) if m.path == "GPU3 -> GPU1" else m

    slow = changed(changed(run(seed=99), times(16 / 18, on_path("GPU3 -> GPU1"))), fewer)
    comparison = compare(rack(slow))
    assert {(diff.node, diff.path, diff.reason) for diff in comparison.paths} == {
        ("node16", "GPU3 -> GPU1", "over NV16, not NV18")
    }
    assert "over NV16, not NV18: " in text_of(comparison)


def test_one_bad_gpu_is_named_in_place_of_its_links() -> None:
    comparison = compare(rack(changed(run(seed=99), times(0.88, from_gpu("GPU3")))))
    assert [row.where for row in comparison.affected] == ["GPU3 -> *"]


def test_a_node_that_is_slow_all_over() -> None:
    comparison = compare(rack(changed(run(seed=99), times(0.5, lambda _m: True))))
    assert [(row.node, row.where) for row in comparison.affected] == [("node16", "all paths")]


@pytest.mark.long
def test_a_path_that_broke_on_one_node() -> None:
    broken = changed(run(seed=99), ended(Status.CORRUPT, "3 words differ", on_path("GPU0 -> GPU1")))
    comparison = compare(rack(broken))
    assert {(diff.node, diff.outcome, diff.reason) for diff in comparison.paths} == {
        ("node16", Outcome.WORSE, "corrupt in node16: 3 words differ")
    }


def test_what_most_nodes_did_not_measure_is_no_reference() -> None:
    waived = ended(Status.WAIVED, "MIG is on", on_path("GPU0 -> GPU1"))
    nodes = [saved(name, changed(run(seed=seed), waived)) for seed, name in enumerate(RACK[:-1])]
    assert compare([*nodes, saved("node16", run())]).paths == ()


def test_nodes_that_scatter_are_not_out_of_line() -> None:
    """Of 16 nodes whose paths differ by 3 % (standard deviation), none is out of line."""
    assert compare(rack(spread=0.03)).paths == ()


def test_three_nodes_are_enough() -> None:
    nodes = [saved(name, run(seed=seed)) for seed, name in enumerate("abc")]
    nodes[1] = saved("b", changed(run(seed=9), times(0.8, on_path("GPU0 -> GPU1"))))
    assert {(diff.node, diff.path) for diff in compare(nodes).paths} == {("b", "GPU0 -> GPU1")}


@pytest.mark.long
@settings(max_examples=5)
@given(order=st.permutations(range(16)), factor=st.floats(0.1, 0.9))
def test_the_order_of_the_files_does_not_matter(order: Sequence[int], factor: float) -> None:
    nodes = rack(changed(run(seed=99), times(factor, on_path("GPU3 -> GPU1"))))
    shuffled = [nodes[place] for place in order]
    assert compare(shuffled) == compare(nodes)


@pytest.mark.long
@settings(max_examples=5)
@given(seed=st.integers(), spread=st.floats(0, 0.1), times_=st.integers(3, 20))
def test_copies_of_one_run_are_the_same(seed: int, spread: float, times_: int) -> None:
    report = run(seed=seed, spread=spread)
    comparison = compare([saved(f"node{number}", report) for number in range(times_)])
    assert comparison.paths == ()
    assert len(comparison.same) == times_


def test_nodes_whose_bus_ids_differ_are_matched_by_index() -> None:
    def moved(report: RunReport, bus: str) -> RunReport:
        def place(bus_id: str | None) -> str | None:
            return bus_id and bus_id.replace(":00:", f":{bus}:")

        def move(m: Measurement) -> Measurement:
            flows = [
                replace(
                    flow,
                    source=replace(flow.source, bus_id=place(flow.source.bus_id)),
                    destination=replace(flow.destination, bus_id=place(flow.destination.bus_id)),
                    initiator=place(flow.initiator),
                )
                for flow in m.flows
            ]
            return replace(m, flows=tuple(flows))

        gpus = tuple(replace(gpu, bus_id=place(gpu.bus_id) or "") for gpu in report.gpus)
        return replace(changed(report, move), gpus=gpus, machines=())

    nodes = [saved(f"node{bus}", moved(run(seed=int(bus)), bus)) for bus in ("10", "20", "30")]
    comparison = compare(nodes)
    assert comparison.compared == len(run().measurements)
    assert comparison.notes == ("the files have no bus id in common: GPUs are matched by index",)


@pytest.mark.long
def test_a_driver_that_few_nodes_have_stands_beside() -> None:
    nodes = rack()
    old = run(seed=99)
    machine = old.machines[0]
    assert machine.driver is not None
    other = replace(old, machines=(replace(machine, driver=replace(machine.driver, driver_version="570.1")),))
    nodes[3:5] = [saved(name, other) for name in RACK[3:5]]
    comparison = compare(nodes)
    (diff,) = comparison.machines
    assert (diff.folded, diff.what, diff.value) == ("node[04-05]", "driver driver_version", "570.1")
    assert comparison.same_folded == "node[01-16]", "what stands beside is not out of line"


def test_a_node_that_answered_nothing_is_told() -> None:
    dead = replace(saved("node17", run()), kind=None, result=None, failure="ended with 4 without a result")
    comparison = compare([*rack(), dead])
    assert comparison.same_folded == "node[01-16]"
    assert "node17: ended with 4 without a result" in text_of(comparison)


def longest(comparison: Comparison) -> int:
    return max(map(len, text_of(comparison).splitlines()))


def test_the_text_fits_the_page() -> None:
    bad = changed(run(seed=99), times(0.88, from_gpu("GPU3")))
    assert longest(compare(rack(bad))) <= 80
    assert longest(compare([saved("before", run()), saved("after", bad)])) <= 80
