"""Runs as they could have been: one real plan with seeded noise of a real spread, and one path or GPU made slow."""

from __future__ import annotations

import functools
import gzip
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from egmctl.bench.nccl.collectives import collective_result
from egmctl.bench.results import summarize
from egmctl.model.bringup import Bringup
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.measurement import Measurement, MeasurementStatus, RunReport
from egmctl.model.nccl import NcclPlan, NcclProgram, NcclRun, NcclStatus
from egmctl.model.record import Command
from egmctl.saved import Saved
from tests.conftest import ROOT
from tests.saved.documents import measured_report
from tests.verdict.runs import WRITE
from tests.verdict.runs import run as of_links

REAL_SPREAD = 0.001
"""Repeats of one path on an idle H200 node differ by about a thousandth (egmctl/bench/results.py)."""

Change = Callable[[Measurement], Measurement]


@functools.lru_cache(maxsize=64)
def run(machine: str = "hgx-h200x4", *, seed: int = 0, spread: float = REAL_SPREAD) -> RunReport:
    """Return a run whose paths have 250 GB/s between GPUs and 40 GB/s to the host, with noise."""
    noise = random.Random(seed)  # noqa: S311
    report = measured_report(machine)
    return changed(report, lambda m: reaching(m, _usual(m) * noise.gauss(1, spread)))


def _usual(measurement: Measurement) -> float:
    """Return a bandwidth in GB/s that NVLink, or PCIe 5.0, carries."""
    ends = (end for flow in measurement.flows for end in (flow.source, flow.destination))
    return 250 if all(end.bus_id is not None for end in ends) else 40


def saved(name: str, result: RunReport | Diagnosis | Bringup, kind: Command = Command.BENCH) -> Saved:
    """Return a result as if it had been loaded from ``name``.json."""
    return Saved(
        path=Path(f"{name}.json"),
        kind=kind,
        name=name,
        result=result,
        tool="egmctl 0.1.0",
        exit_code=int(result.exit_code),
        origin=result.machines[0].origin if result.machines else None,
    )


def changed(report: RunReport, change: Change) -> RunReport:
    """Return a run with each measurement changed."""
    return replace(report, measurements=tuple(map(change, report.measurements)))


def reaching(measurement: Measurement, gb_s: float) -> Measurement:
    """Return a measurement that reached this bandwidth."""
    summary = summarize([gb_s * 0.999, gb_s, gb_s * 1.001])
    return replace(measurement, bandwidth_gb_s=summary, flows_gb_s=(summary,))


def times(factor: float, where: Callable[[Measurement], bool]) -> Change:
    """Return the change that multiplies the bandwidth of some measurements."""

    def change(measurement: Measurement) -> Measurement:
        if not where(measurement) or measurement.bandwidth_gb_s is None:
            return measurement
        return reaching(measurement, factor * measurement.bandwidth_gb_s.median)

    return change


def ended(status: MeasurementStatus, reason: str, where: Callable[[Measurement], bool]) -> Change:
    """Return the change that makes some measurements end otherwise, without a number."""

    def change(measurement: Measurement) -> Measurement:
        if not where(measurement):
            return measurement
        return replace(measurement, status=status, reason=reason, samples=(), bandwidth_gb_s=None, flows_gb_s=())

    return change


def on_path(path: str) -> Callable[[Measurement], bool]:
    """Return whether a measurement is of a path."""
    return lambda measurement: measurement.path == path


def from_gpu(label: str) -> Callable[[Measurement], bool]:
    """Return whether bytes of a measurement leave a GPU for another one."""
    return lambda measurement: (
        measurement.flows[0].source.label == label and measurement.flows[0].destination.bus_id is not None
    )


RUNS = ("idle", "idle-again", "beside-traffic")


def unpacked(name: str, folder: Path) -> Path:
    path = folder / f"{name}.json"
    path.write_bytes(gzip.decompress((ROOT / f"tests/data/runs/{name}.json.gz").read_bytes()))
    return path


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
