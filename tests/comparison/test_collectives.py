"""What NCCL measured, in compare, CSV and Prometheus: a bus bandwidth is judged as the bandwidth of a path is."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from egmctl.bench.nccl.collectives import collective_result
from egmctl.comparison import compare
from egmctl.comparison.paths import TOLERANCE
from egmctl.model.answer import State
from egmctl.model.comparison import Comparison, Outcome
from egmctl.model.measurement import RunReport
from egmctl.model.nccl import NcclPlan, NcclProgram, NcclRun, NcclStatus
from egmctl.report.exports.csv import bench_csv
from egmctl.report.exports.prom import bench_prom
from egmctl.report.views.compare import compare_document
from tests.comparison.runs import saved
from tests.verdict.runs import WRITE
from tests.verdict.runs import run as of_links

SIZE = 1 << 30
MS = 5.7
"""The time of an ``all_reduce`` of 1 GiB between two H200: 330 GB/s."""


def measured(
    slower: float = 1.0, *, wrong: bool = False, version: str = "2.28.9", transport: str = "P2P/CUMEM", **plan: Any
) -> RunReport:
    """Return a run of links and NCCL, whose ``all_reduce`` is slower by a factor."""
    links = of_links(WRITE, gpus=2)
    gpus = links.gpus
    usual = NcclPlan(
        collectives=("all_reduce", "sendrecv"),
        gpus=tuple(gpu.bus_id for gpu in gpus),
        labels=tuple(gpu.label for gpu in gpus),
        size_bytes=SIZE,
        iterations=20,
        samples=1,
        nvls=False,
        program=NcclProgram.TORCH,
    )
    nccl = NcclRun(
        plan=replace(usual, **plan),
        status=NcclStatus.CORRUPT if wrong else NcclStatus.OK,
        reason="NCCL left wrong values in all_reduce" if wrong else None,
        results=(
            collective_result("all_reduce", 2, SIZE, [MS * slower], not wrong),
            collective_result("sendrecv", 2, SIZE, [MS], True),
        ),
        versions={"nccl": version},
        transports={transport: 48},
    )
    return replace(links, nccl=nccl)


def compared(*runs: RunReport) -> Comparison:
    return compare([saved(f"n{number}", run) for number, run in enumerate(runs)])


def of_nccl(comparison: Comparison) -> list[tuple[str, Outcome]]:
    return [(path.case, path.outcome) for path in comparison.paths if path.gpus]


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        (1.0, 1 / (1 - TOLERANCE) - 0.001, Outcome.SAME),
        (1.0, 1 / (1 - TOLERANCE) + 0.001, Outcome.WORSE),
        (1.1, 1.0, Outcome.BETTER),
    ],
)
def test_a_bus_bandwidth_is_worse_beyond_the_tolerance(before: float, after: float, outcome: Outcome) -> None:
    comparison = compared(measured(before), measured(after))
    assert of_nccl(comparison) == [("nccl_all_reduce", outcome), ("nccl_sendrecv", Outcome.SAME)]


def test_what_is_slower_is_named_with_its_gpus_and_blames_none_of_them() -> None:
    comparison = compared(measured(), measured(1.2, version="2.30.1", transport="SHM/direct/direct"))
    assert (comparison.answer.state, comparison.touches) == (State.BAD, ())
    assert comparison.answer.sentence.startswith("slower between GPU0-1: nccl_all_reduce; 4 paths compared: 1 worse")
    (row,) = comparison.affected
    assert (row.where, row.of) == ("GPU0-1", 1)
    assert row.change == pytest.approx(1 - 1 / 1.2)
    # Both numbers stand though library and transport differ: whether that made it slower is what a user asks.
    assert comparison.paths[-2].reason == "over SHM/direct/direct, not P2P/CUMEM"
    assert "NCCL: the version differs: 2.28.9 in n0, 2.30.1 in n1" in comparison.notes
    assert "NCCL all_reduce, bus bandwidth" in str(compare_document(comparison))


@pytest.mark.parametrize(
    ("plan", "note"),
    [
        ({"program": NcclProgram.NCCL_TESTS}, "NCCL: the program differs: torch in n0, nccl-tests in n1"),
        ({"nvls": True}, "NCCL: NVLS differs: NVLS off in n0, NVLS allowed in n1"),
    ],
)
def test_another_program_or_multicast_is_another_number(plan: dict[str, Any], note: str) -> None:
    comparison = compared(measured(), measured(2.0, **plan))
    assert {outcome for _, outcome in of_nccl(comparison)} == {Outcome.DIFFERENT}
    assert note in comparison.notes


def test_a_collective_that_broke_is_worse() -> None:
    wrong = measured(wrong=True)
    assert of_nccl(compared(measured(), wrong))[0] == ("nccl_all_reduce", Outcome.WORSE)
    assert of_nccl(compared(wrong, measured()))[0] == ("nccl_all_reduce", Outcome.BETTER)


def test_one_of_many_nodes_is_named() -> None:
    nodes = [measured(1 + number / 1000) for number in range(5)]
    comparison = compared(*nodes, measured(1.3))
    assert [(path.node, path.case, path.outcome) for path in comparison.paths] == [
        ("n5", "nccl_all_reduce", Outcome.WORSE)
    ]


def test_csv_has_a_row_for_each_collective() -> None:
    run = measured(wrong=True)
    rows = [row for row in csv.DictReader(io.StringIO(bench_csv(run, samples=True))) if row["nccl_name"]]
    assert [(row["case"], row["status"], row["nccl_verified"]) for row in rows] == [
        ("nccl_all_reduce", "corrupt", "false"),
        ("nccl_sendrecv", "ok", "true"),
    ]
    assert float(rows[0]["nccl_bus_gb_s"]) == pytest.approx(SIZE / MS / 1e6)
    assert (rows[0]["nccl_version"], rows[0]["nccl_transports"], rows[0]["nccl_elapsed_ms"]) == (
        "2.28.9",
        "P2P/CUMEM",
        "5.7",
    )
    assert rows[0]["size_bytes"] == str(SIZE)


def samples(text: str, name: str) -> Sequence[str]:
    return [line for line in text.splitlines() if line.startswith(f"egmctl_bench_nccl_{name}")]


def test_prometheus_has_bus_bandwidths_of_right_values() -> None:
    text = bench_prom(measured(wrong=True))
    (rate,) = samples(text, "bus_bandwidth_bytes_per_second")
    labels = f'{{collective="sendrecv",size_bytes="{SIZE}",gpus="GPU0,GPU1"}}'
    assert rate.startswith(f"egmctl_bench_nccl_bus_bandwidth_bytes_per_second{labels} 18837")
    assert [line[-1] for line in samples(text, "status")] == ["0", "1", "0", "0"], "ok, corrupt, failed, waived"
    assert samples(text, "info") == [
        'egmctl_bench_nccl_info{nccl="2.28.9",program="torch",nvls="off",transports="P2P/CUMEM"} 1'
    ]
    assert not samples(bench_prom(of_links(WRITE, gpus=2)), ""), "without the suite"
