"""Real runs of one node with 4 H200: ``egmctl bench --quick`` twice while it was idle, and once while another process
copied between GPU0 and GPU1, both directions in turns (``tests/data/runs``, egmctl 0.1.0, 2026-11-20; UUIDs replaced).

The nodes of a rack are made of one of them, with seeded noise as large as the spread from run to run.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from egmctl.comparison import compare
from egmctl.comparison.paths import known_spread
from egmctl.model.comparison import Comparison, Outcome
from egmctl.model.measurement import Measurement, RunReport, Summary
from egmctl.saved import Saved, load
from egmctl.verdict.profiles import load_all
from tests.conftest import ROOT
from tests.report.texts import text_of

SCHEMA = json.loads((ROOT / "docs/schemas/bench.schema.json").read_text())
RUNS = ("idle", "idle-again", "beside-traffic")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Saved]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: load(unpacked(name, folder)) for name in RUNS}


def unpacked(name: str, folder: Path) -> Path:
    path = folder / f"{name}.json"
    path.write_bytes(gzip.decompress((ROOT / f"tests/data/runs/{name}.json.gz").read_bytes()))
    return path


def compared(runs: dict[str, Saved], first: str, second: str) -> Comparison:
    pair = [runs[first], runs[second]]
    spread = known_spread([machine for one in pair for machine in one.machines], [p for p, _ in load_all()])
    return compare(pair, spread=spread)


@pytest.mark.parametrize("name", RUNS)
def test_they_fit_the_schema(name: str, tmp_path: Path) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(unpacked(name, tmp_path).read_text()))


def test_two_idle_runs_are_the_same(runs: dict[str, Saved]) -> None:
    for first, second in (("idle", "idle-again"), ("idle-again", "idle")):
        found = compared(runs, first, second)
        assert (found.compared, {path.outcome for path in found.paths}) == (74, {Outcome.SAME})


def test_traffic_beside_a_run_is_named_by_its_gpus(runs: dict[str, Saved]) -> None:
    found = compared(runs, "idle", "beside-traffic")
    worse = [path for path in found.paths if path.outcome is Outcome.WORSE]
    assert len(worse) == 25
    assert all("GPU0" in path.path or "GPU1" in path.path for path in worse)
    assert {"GPU0 -> *", "GPU1 -> *"} <= {row.where for row in found.affected}
    assert "settings differ: --allow-busy off in idle, on in beside-traffic" in " ".join(text_of(found).split())


def test_memory_of_the_host_is_not_blamed(runs: dict[str, Saved]) -> None:
    """The traffic went over NVLink only."""
    host = [path for path in compared(runs, "idle", "beside-traffic").paths if "NUMA" in path.path]
    assert {path.outcome for path in host} == {Outcome.SAME}


# --- a rack made of one run ------------------------------------------------------------------------------------------

RACK = 16


def rack(run: Saved, bad: Callable[[Measurement], float]) -> list[Saved]:
    """Return the nodes of a rack; ``bad`` is what part of its bandwidth each path of the last one reaches."""
    spread = known_spread(run.machines, [profile for profile, _ in load_all()])
    noise = random.Random(1)  # noqa: S311
    report = run.result
    assert isinstance(report, RunReport)

    def reached(measurement: Measurement, part: float) -> Measurement:
        part *= noise.gauss(1, spread(measurement).value)
        if measurement.latency_ns is not None:
            return replace(measurement, latency_ns=_times(measurement.latency_ns, 1 / part))
        assert measurement.bandwidth_gb_s is not None
        return replace(measurement, bandwidth_gb_s=_times(measurement.bandwidth_gb_s, part))

    return [
        replace(
            run,
            name=f"node{number:02}",
            result=replace(
                report,
                measurements=tuple(reached(m, bad(m) if number == RACK else 1.0) for m in report.measurements),
            ),
        )
        for number in range(1, RACK + 1)
    ]


def nodes_compared(nodes: list[Saved]) -> Comparison:
    spread = known_spread([machine for one in nodes for machine in one.machines], [p for p, _ in load_all()])
    return compare(nodes, spread=spread)


def _times(summary: Summary, factor: float) -> Summary:
    return replace(
        summary, median=summary.median * factor, min=summary.min * factor, max=summary.max * factor, p05=None, p95=None
    )


def test_a_rack_of_good_nodes_is_the_same(runs: dict[str, Saved]) -> None:
    found = nodes_compared(rack(runs["idle"], lambda _m: 1.0))
    assert (found.paths, found.same_folded) == ((), "node[01-16]")


def test_one_bad_link_is_named_with_its_node(runs: dict[str, Saved]) -> None:
    """Of 18 NVLinks two are gone between two GPUs, in one direction."""
    found = nodes_compared(rack(runs["idle"], lambda m: 16 / 18 if m.path == "GPU2 -> GPU3" else 1.0))
    assert {(one.node, one.path) for one in found.paths} == {("node16", "GPU2 -> GPU3")}
    assert {(row.node, row.where) for row in found.affected} == {("node16", "GPU2 -> GPU3")}
    assert found.same_folded == "node[01-15]"
    text = text_of(found)
    assert "WORSE  node16: GPU2 -> GPU3 1" in text
    assert "SAME  node[01-15]\n" in text


def test_one_weak_gpu_on_a_switch_is_named_with_its_direction(runs: dict[str, Saved]) -> None:
    """On a switch all that leaves a GPU takes the same links."""

    def weak(measurement: Measurement) -> float:
        flow = measurement.flows[0]
        leaves = flow.source.label == "GPU3" and flow.destination.label not in ("GPU3", "NUMA0")
        return 16 / 18 if leaves and len(measurement.flows) == 1 else 1.0

    found = nodes_compared(rack(runs["idle"], weak))
    assert {(row.node, row.where) for row in found.affected} == {("node16", "GPU3 -> *")}


def test_bandwidths_and_latencies_are_told_apart(tmp_path: Path) -> None:
    found = compare([load(unpacked("idle", tmp_path)), load(unpacked("beside-traffic", tmp_path))])
    for row in found.affected:
        assert len({found.paths[place].unit for place in row.paths}) == 1, row.where
