"""The text of every pattern, of several kinds of memory, of a sweep, and what is warned of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from egmctl.bench.plan.make import make_plan, sized
from egmctl.bench.results import summarize
from egmctl.bench.suites import CASES
from egmctl.model.measurement import (
    Evidence,
    GpuEvidence,
    LinkEvidence,
    Measurement,
    Placement,
    RunReport,
    Sample,
    Settings,
    Status,
    Verdict,
    finish,
)
from egmctl.model.route import LinkKind
from egmctl.model.task import Axis, Point, Quantity, Task
from egmctl.report.document import Chart, Matrix, columns
from egmctl.report.render.text import WIDTH
from egmctl.report.views.bench_answer import how, route_line, warnings
from egmctl.report.views.bench_series import LOOKS, all_series, swept
from egmctl.units import GIB, MIB
from tests.bench.reports import report
from tests.doctor.machines import shipped
from tests.report.runs import run
from tests.report.texts import matrices_text, text_of

SETTINGS = Settings(size_bytes=512 << 20, copies=16, samples=5, timeout_s=60)


def measured(task: Task, gb_s: float) -> Measurement:
    """Return a measurement whose flows reach ``gb_s``, and one more each."""
    flows = [gb_s + place for place in range(len(task.flows))]
    if task.quantity is Quantity.LATENCY:
        return finish(task, Status.OK, latency_ns=summarize([gb_s]))
    return finish(
        task,
        Status.OK,
        samples=(Sample(bandwidth_gb_s=sum(flows), flows_gb_s=tuple(flows), elapsed_ms=20, wall_ms=21),),
        bandwidth_gb_s=summarize([sum(flows)]),
        flows_gb_s=tuple(summarize([flow]) for flow in flows),
    )


def report_of(*cases: str, machine: str = "gb200-tray", gpus: int = 3, sizes: Sequence[int] = ()) -> RunReport:
    """Return a report in which the n-th task of some cases reaches 100 + 10 n GB/s."""
    node = shipped(machine)
    chosen = [case for case in CASES if case.name in cases or not cases]
    plan = make_plan(node, (node.gpus or ())[:gpus], [0, 1], sized(chosen, sizes) if sizes else chosen, SETTINGS)
    return report(plan, tuple(measured(planned, 100.0 + 10 * n) for n, planned in enumerate(plan.tasks)))


def matrices_of(*cases: str, **how: object) -> str:
    """Return the tables of such a report."""
    return matrices_text(report_of(*cases, **how))  # type: ignore[arg-type]


def test_both_directions_have_their_own_cells_and_a_sum() -> None:
    assert (
        matrices_of("device_to_device_bidirectional_memcpy_write_ce")
        == """\
memcpy CE GPU(row) -> GPU(column) bandwidth, both directions at once (GB/s)
device_to_device_bidirectional_memcpy_write_ce
NV18
        GPU0    GPU1    GPU2
GPU0       -  100.00  110.00
GPU1  101.00       -  120.00
GPU2  111.00  121.00       -

memcpy CE both directions, sum (GB/s)
device_to_device_bidirectional_memcpy_write_ce
        GPU1    GPU2
GPU0  201.00  221.00
GPU1       -  241.00
"""
    )


def test_both_directions_to_the_host_are_three_matrices() -> None:
    text = matrices_of("host_numa_to_device_bidirectional_memcpy_ce", gpus=2)
    assert [line for line in text.splitlines() if line.startswith(("memcpy", "NUMA0 "))] == [
        "memcpy CE HOST_NUMA(row) -> GPU(column) bandwidth, both directions at once",
        "NUMA0  100.00  110.00",
        "memcpy CE HOST_NUMA(row) <- GPU(column) bandwidth, both directions at once",
        "NUMA0  101.00  111.00",
        "memcpy CE both directions, sum (GB/s)",
        "NUMA0  201.00  221.00",
    ]


def test_a_ring_is_one_row_with_both_ends_above() -> None:
    assert (
        matrices_of("ring_write_ce")
        == """\
memcpy CE GPU(column) bandwidth, each to the next one, all at once (GB/s)
ring_write_ce
NV18
    GPU0    GPU1    GPU2
  ->GPU1  ->GPU2  ->GPU0     sum
  100.00  101.00  102.00  303.00
"""
    )


@pytest.mark.parametrize(
    ("case", "arrow"),
    [
        ("one_to_all_write_ce", "->"),
        ("one_to_all_read_ce", "->"),
        ("all_to_one_write_ce", "<-"),
        ("all_to_one_read_ce", "<-"),
    ],
)
def test_the_one_gpu_is_the_row_whoever_works_and_its_sum_is_beside_it(case: str, arrow: str) -> None:
    lines = matrices_of(case).splitlines()
    assert lines[0].startswith(f"memcpy CE GPU(row) {arrow} GPU(column) bandwidth")
    assert lines[3:5] == ["        GPU0    GPU1    GPU2     sum", "GPU0       -  100.00  101.00  201.00"]


def test_all_gpus_with_one_node_have_the_sum_beside_them() -> None:
    assert "NUMA1  110.00  111.00  112.00  333.00\n" in matrices_of("host_numa_one_node_to_all_memcpy_ce")


def test_the_local_copy_is_one_row() -> None:
    assert "    GPU0    GPU1    GPU2\n  100.00  110.00  120.00\n" in matrices_of("device_local_copy")


def test_many_numbers_of_copies_are_told_by_the_least_and_the_most() -> None:
    report = report_of("device_to_device_memcpy_write_ce", gpus=3)

    def told(*copies: int) -> str:
        found = [replace(m, copies=n) for m, n in zip(report.measurements, copies, strict=True)]
        return how(replace(report, measurements=tuple(found)))[1]

    assert told(4, 1, 8, 1, 4, 8) == "copied 1 or 4 or 8 times a sample"
    assert told(4, 1, 1622, 14, 4, 8) == "copied 1 to 1622 times a sample"


def test_a_soak_shows_the_path_of_each_case_that_fell_farthest_and_when() -> None:
    report = report_of("device_to_device_memcpy_write_ce", gpus=2)
    found = [
        replace(m, bandwidth_gb_s=summarize([100.0, 100.0, least]), slowest_at_s=at_s)
        for m, least, at_s in zip(report.measurements, (99.0, 60.0), (12.0, 47.4), strict=True)
    ]
    # Interrupted before its hour was over.
    how_long = replace(SETTINGS, duration_s=3600)
    report = replace(report, settings=how_long, measurements=tuple(found), wall_s=48.2, interrupted=True)
    text = text_of(report)
    assert (
        """\
Worst of 48 s
                                               passes  median  worst          at
device_to_device_memcpy_write_ce GPU1 -> GPU0       1  100.00  60.00  GB/s  47 s
"""
        in text
    )


def test_a_case_that_is_waived_everywhere_has_no_matrix_but_its_reason() -> None:
    report = report_of("device_to_device_memcpy_write_ce", "ring_write_ce", gpus=2)
    waived = [finish(m, Status.WAIVED, reason="no peer access") for m in report.measurements]
    waived_run = replace(report, measurements=tuple(waived))
    assert matrices_text(waived_run) == ""
    assert "WAIVED  device_to_device_memcpy_write_ce, ring_write_ce: no peer access" in text_of(waived_run, verbose=1)


@pytest.mark.parametrize(
    ("machine", "gpus"),
    [("gb200-tray", 2), *(pytest.param(name, 8, marks=pytest.mark.long) for name in ("gb200-tray", "dgx-h100"))],
)
def test_every_case_fits_the_page(machine: str, gpus: int) -> None:
    text = text_of(report_of(machine=machine, gpus=gpus), verbose=1)
    assert max(map(len, text.splitlines())) <= WIDTH


POINTS = {
    Axis.SIZE: ("device_to_device_memcpy_write_ce", [Point(size=MIB), Point(size=64 * MIB)]),
    Axis.SMS: ("device_local_bulk", [Point(sms=1), Point(sms=16)]),
    Axis.FOOTPRINT: ("device_local_footprint", [Point(footprint=2 * MIB), Point(footprint=GIB)]),
    Axis.LOAD: ("device_to_device_latency_loaded", [Point(load=0), Point(load=8)]),
    Axis.STREAMS: ("host_numa_to_device_memcpy_ce", [Point(streams=1), Point(streams=4)]),
}


@pytest.mark.parametrize("axis", Axis)
def test_every_series_is_one_table_and_a_drawing(axis: Axis) -> None:
    case, points = POINTS[axis]
    report = run(cases=(case,), gpus=2, points=points)
    assert tuple(swept(report)) == (axis,)
    table, *charts = all_series(report, axis)
    assert isinstance(table, Matrix)
    assert table.rows == tuple(map(str, points))
    assert table.names == case
    assert all(column.cells for column in columns(table))
    assert charts
    assert all(isinstance(chart, Chart) and chart.curves for chart in charts)
    assert LOOKS[axis].title in text_of(report)


class TestWarnings:
    def report(self, **seen: object) -> RunReport:
        """Return a report with one measurement beside which this was seen."""
        report = report_of("device_to_device_memcpy_write_ce", gpus=2)
        gpu = GpuEvidence(bus_id="0000:1b:00.0", label="GPU0", **seen)  # type: ignore[arg-type]
        first, *others = report.measurements
        return replace(report, measurements=(replace(first, evidence=Evidence(gpus=(gpu,))), *others))

    def routed(self, *verdicts: Verdict) -> RunReport:
        """Return a report whose measurements took the expected link, or not."""
        report = report_of("device_to_device_memcpy_write_ce", gpus=3)
        found = [
            replace(m, evidence=Evidence(gpus=(), route=route))
            for m, verdict in zip(report.measurements, verdicts, strict=False)
            for route in [LinkEvidence(link=LinkKind.NVLINK, expected_bytes=1000, carried_bytes=7, verdict=verdict)]
        ]
        return replace(report, measurements=tuple(found))

    @pytest.mark.parametrize(
        ("seen", "told"),
        [
            ({"errors": {"nvlink-replays": 3}}, "nvlink-replays of GPU0 rose by 3"),
            ({"other_processes": (4711,)}, "other processes used GPU0 meanwhile (4711)"),
            ({"throttle_reasons": ("sw-power-cap",)}, "clocks of GPU0 throttled: sw-power-cap"),
        ],
    )
    def test_what_was_seen_is_told_with_the_path(self, seen: dict[str, object], told: str) -> None:
        where = "device_to_device_memcpy_write_ce GPU0 -> GPU1"
        assert list(warnings(self.report(**seen))) == [f"{told}: {where}"]

    def test_nothing_unusual_is_no_warning(self) -> None:
        calm = {"errors": {}, "other_processes": (), "throttle_reasons": ("applications-clocks-setting",)}
        assert list(warnings(self.report(**calm))) == []

    def test_another_route_is_a_warning(self) -> None:
        (warning,) = warnings(self.routed(Verdict.REFUTED))
        assert warning.startswith("nvlink carried only 1 % of the bytes: ")

    def test_memory_on_another_node_is_a_warning(self) -> None:
        report = report_of("host_numa_to_device_memcpy_ce", gpus=1)
        wrong = Placement(label="NUMA0", proof="move_pages", detail="256 on node 1", right=False)
        first, *others = report.measurements
        report = replace(report, measurements=(replace(first, placements=(wrong,)), *others))
        (warning,) = warnings(report)
        assert warning.startswith("memory of NUMA0 is elsewhere (256 on node 1): ")

    def test_how_many_routes_were_shown_is_one_sentence(self) -> None:
        verdicts = (Verdict.PROVEN, Verdict.PROVEN, Verdict.BY_EXCLUSION, Verdict.UNKNOWN)
        assert route_line(self.routed(*verdicts)) == (
            "Route confirmed by link counters: 2 of 4, 1 by exclusion: no other link "
            "carried the bytes, 1 not confirmed: there are no counters."
        )
        assert route_line(report_of("ring_write_ce")) is None
