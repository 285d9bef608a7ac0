"""A run between more GPUs than a matrix can show: what each link gives, and who is behind."""

from __future__ import annotations

import pytest

from egmctl.bench.plan.fabric import make_fabric_plan
from egmctl.bench.plan.placement import modelled
from egmctl.bench.results import summarize
from egmctl.bench.suites import FABRIC_CASES
from egmctl.model.measurement import RunReport, Sample, Settings, Status, finish
from egmctl.model.task import Quantity
from tests.fake.machines import with_imex_channel
from tests.fake.node import load
from tests.report.texts import matrices_text

SETTINGS = Settings(size_bytes=512 << 20, copies=None, samples=1, timeout_s=60)
CASES = [case for case in FABRIC_CASES if case.name in ("fabric_device_write_ce", "fabric_device_latency")]


def report(ranks: int, slow: int) -> RunReport:
    """A run in which every path has 700, and those of one rank 650 GB/s and 800 ns."""
    of = modelled(with_imex_channel(load("gb200-nvl72")), ranks)
    plan = make_fabric_plan(of, CASES, SETTINGS)
    found = []
    for planned in plan.tasks:
        task, latency = planned, planned.quantity is Quantity.LATENCY
        odd = task.flows[0].initiator_rank == slow
        summary = summarize([(800.0 if latency else 650.0) if odd else 700.0])
        value = {"latency_ns": summary} if latency else {"bandwidth_gb_s": summary, "flows_gb_s": (summary,)}
        found.append(finish(task, Status.OK, samples=(Sample(elapsed_ms=1, wall_ms=1),), **value))
    return RunReport(
        settings=SETTINGS,
        gpus=plan.gpus,
        numa_nodes=(),
        driver_version="580.95.05",
        cuda_driver_version=13000,
        started_at="2026-01-01T00:00:00+00:00",
        wall_s=1,
        interrupted=False,
        ranks=plan.ranks,
        measurements=tuple(found),
    )


def test_up_to_sixteen_ranks_there_are_matrices() -> None:
    text = matrices_text(report(16, 5))
    assert "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)" in text
    assert "farthest behind" not in text


@pytest.mark.long
def test_above_that_each_link_has_a_line_and_the_gpu_that_is_behind_is_named() -> None:
    text = " ".join(matrices_text(report(72, 5)).split())
    assert "memcpy CE GPU(row)" not in text
    assert "NV18 216 700.00 650.00 700.00" in text
    assert "NV18 across nodes 4896 700.00 650.00 700.00" in text
    assert "farthest behind: node2:GPU1 -> node1:GPU0 650.00," in text
    assert "by the GPU that issues the work, against the median of the link: node2:GPU1 92.9 % " in text
    assert "node2:GPU1 114.3 %" in text
    assert len(matrices_text(report(72, 5)).splitlines()) < 60
