"""Nodes of one kind against each other: who is out of line, in what, and who is not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egmctl.comparison import compare
from egmctl.errors import ExitCode
from egmctl.model.codec import from_json, to_json
from egmctl.model.comparison import Outcome
from egmctl.model.measurement import Measurement, MeasurementStatus, RunReport
from egmctl.saved import Saved
from tests.bench.routes import nv, over
from tests.comparison.runs import Change, changed, ended, from_gpu, on_path, run, saved, times
from tests.doctor.machines import patched
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
    assert comparison.exit_code is ExitCode.FAILED
    text = text_of(comparison)
    assert "WORSE  node16: GPU3 -> GPU1 12" in text
    assert "SAME  node[01-15]\n" in text


@pytest.mark.parametrize(
    ("factor", "where", "told"),
    [
        (0.88, on_path("GPU3 -> GPU1"), "GPU3 -> GPU1"),
        (0.88, from_gpu("GPU3"), "GPU3 -> *"),
        (0.5, lambda _: True, "all paths"),
    ],
)
def test_what_is_slow_is_told_as_one(factor: float, where: Callable[[Measurement], bool], told: str) -> None:
    comparison = compare(rack(changed(run(seed=99), times(factor, where))))
    assert [(row.node, row.where) for row in comparison.affected] == [("node16", told)]


def fewer_links(m: Measurement) -> Measurement:
    (flow,) = m.flows
    slower = times(16 / 18, on_path("GPU3 -> GPU1"))(m)
    return replace(slower, flows=(replace(flow, route=over(nv(16))),)) if slower is not m else m


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "path", "reason"),
    [
        (fewer_links, "GPU3 -> GPU1", "over NV16, not NV18"),
        (
            ended(MeasurementStatus.CORRUPT, "3 words differ", on_path("GPU0 -> GPU1")),
            *("GPU0 -> GPU1", "corrupt in node16: 3 words differ"),
        ),
    ],
)
def test_a_path_that_broke_or_lacks_links_is_named_with_its_reason(change: Change, path: str, reason: str) -> None:
    comparison = compare(rack(changed(run(seed=99), change)))
    assert {(diff.node, diff.path, diff.outcome, diff.reason) for diff in comparison.paths} == {
        ("node16", path, Outcome.WORSE, reason)
    }
    assert reason in " ".join(text_of(comparison).split())


def test_what_most_nodes_did_not_measure_is_no_reference() -> None:
    waived = ended(MeasurementStatus.WAIVED, "MIG is on", on_path("GPU0 -> GPU1"))
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
@given(order=st.permutations(range(5)), factor=st.floats(0.1, 0.9))
def test_the_order_of_the_files_does_not_matter(order: Sequence[int], factor: float) -> None:
    nodes = rack(changed(run(seed=99), times(factor, on_path("GPU3 -> GPU1"))))[-5:]
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
    def moved(value: Any, bus: str) -> Any:
        """Return a document whose bus ids are others."""
        return json.loads(json.dumps(value).replace(":00:", f":{bus}:"))

    def elsewhere(report: RunReport, bus: str) -> RunReport:
        return from_json(RunReport, moved(to_json(replace(report, machines=())), bus))

    nodes = [saved(f"node{bus}", elsewhere(run(seed=int(bus)), bus)) for bus in ("10", "20", "30")]
    comparison = compare(nodes)
    assert comparison.compared == len(run().measurements)
    assert comparison.notes == ("the files have no bus id in common: GPUs are matched by index",)


@pytest.mark.long
def test_a_driver_that_few_nodes_have_stands_beside() -> None:
    nodes = rack()
    old = run(seed=99)
    other = replace(old, machines=(patched(old.machines[0], "driver", driver_version="570.1"),))
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


def test_the_text_fits_the_page() -> None:
    bad = changed(run(seed=99), times(0.88, from_gpu("GPU3")))
    for files in (rack(bad), [saved("before", run()), saved("after", bad)]):
        assert max(map(len, text_of(compare(files)).splitlines())) <= 80
