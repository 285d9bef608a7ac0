"""The text of every pattern, of several kinds of memory, of a sweep, and what is warned of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from egmctl.bench.plan.fabric import make_fabric_plan
from egmctl.bench.plan.placement import modelled
from egmctl.bench.results import summarize
from egmctl.bench.suites import FABRIC_CASES
from egmctl.model.measurement import (
    GpuEvidence,
    LinkEvidence,
    LinkProof,
    MeasurementStatus,
    Placement,
    RunReport,
    Stage,
    TaskEvidence,
    finish,
)
from egmctl.model.route import LinkKind
from egmctl.model.task import Axis, Point, Quantity
from egmctl.report.document import Bars, Chart, Level, Matrix, Section, body_of, columns, plain, shown
from egmctl.report.render.text import WIDTH
from egmctl.report.views.bench import bench_document
from egmctl.report.views.bench_answer import exceptions, how, route_line, warnings
from egmctl.report.views.bench_details import LOOKS, all_series, beside, life_cycles, overlay, swept
from egmctl.units import GIB, MIB
from tests.bench.plans import SETTINGS, plan_of
from tests.bench.reports import measured, report
from tests.doctor.machines import patched, shipped
from tests.fake.machines import with_imex_channel
from tests.report.runs import run
from tests.report.texts import matrices_text, text_of

WRITE = "device_to_device_memcpy_write_ce"
LIVES = ("ipc_legacy_device_life_cycle", "ipc_posix_fd_device_life_cycle", "ipc_pool_device_life_cycle")


def report_of(
    *cases: str, machine: str = "gb200-tray", gpus: int = 3, status: MeasurementStatus = MeasurementStatus.OK
) -> RunReport:
    """Return a report in which the n-th task of some cases reaches 100 + 10 n GB/s, a flow 1 more each."""
    plan = plan_of(*cases or ("*",), machine=machine, gpus=gpus, copies=16)
    tasks = [task for task in plan.tasks if task.case in cases or not cases]
    return report(plan, [measured(task, 100.0 + 10 * n, step=1.0, status=status) for n, task in enumerate(tasks)])


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (
            "device_to_device_bidirectional_memcpy_write_ce",
            """\
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
""",
        ),
        (
            "host_numa_to_device_bidirectional_memcpy_ce",
            """\
memcpy CE HOST_NUMA(row) -> GPU(column) bandwidth, both directions at once
(GB/s)
host_numa_to_device_bidirectional_memcpy_ce
EGM over C2C: NUMA0 with GPU0 GPU1, NUMA1 with GPU2
EGM over NV18>C2C: NUMA0 with GPU2, NUMA1 with GPU0 GPU1
         GPU0    GPU1    GPU2
NUMA0  100.00  110.00  120.00
NUMA1  130.00  140.00  150.00

memcpy CE HOST_NUMA(row) <- GPU(column) bandwidth, both directions at once
(GB/s)
host_numa_to_device_bidirectional_memcpy_ce
         GPU0    GPU1    GPU2
NUMA0  101.00  111.00  121.00
NUMA1  131.00  141.00  151.00

memcpy CE both directions, sum (GB/s)
host_numa_to_device_bidirectional_memcpy_ce
         GPU0    GPU1    GPU2
NUMA0  201.00  221.00  241.00
NUMA1  261.00  281.00  301.00
""",
        ),
        (
            "ring_write_ce",
            """\
memcpy CE GPU(column) bandwidth, each to the next one, all at once (GB/s)
ring_write_ce
NV18
    GPU0    GPU1    GPU2
  ->GPU1  ->GPU2  ->GPU0     sum
  100.00  101.00  102.00  303.00
""",
        ),
        *(
            (
                f"{case}_ce",
                f"""\
memcpy CE GPU(row) {arrow} GPU(column) bandwidth, {words} at once (GB/s)
{case}_ce
NV18
        GPU0    GPU1    GPU2     sum
GPU0       -  100.00  101.00  201.00
GPU1  110.00       -  111.00  221.00
GPU2  120.00  121.00       -  241.00
""",
            )
            for case, arrow, words in (
                ("one_to_all_write", "->", "one to all others"),
                ("one_to_all_read", "->", "one to all others"),
                ("all_to_one_write", "<-", "all others to one"),
                ("all_to_one_read", "<-", "all others to one"),
            )
        ),
        (
            "host_numa_one_node_to_all_memcpy_ce",
            """\
memcpy CE HOST_NUMA(row) -> GPU(column) bandwidth, all GPUs at once (GB/s)
host_numa_one_node_to_all_memcpy_ce
EGM over C2C: NUMA0 with GPU0 GPU1, NUMA1 with GPU2
EGM over NV18>C2C: NUMA0 with GPU2, NUMA1 with GPU0 GPU1
         GPU0    GPU1    GPU2     sum
NUMA0  100.00  101.00  102.00  303.00
NUMA1  110.00  111.00  112.00  333.00
""",
        ),
        (
            "device_local_copy",
            """\
memcpy CE GPU(column) bandwidth (GB/s)
device_local_copy
local
    GPU0    GPU1    GPU2
  100.00  110.00  120.00
""",
        ),
    ],
)
def test_the_matrices_of_a_pattern_say_who_sends_what_is_at_once_and_the_sum(case: str, text: str) -> None:
    assert matrices_text(report_of(case)) == text


@pytest.mark.parametrize(
    ("copies", "words"),
    [
        ((4, 1, 8, 1, 4, 8), "copied 1 or 4 or 8 times a sample"),
        ((4, 1, 1622, 14, 4, 8), "copied 1 to 1622 times a sample"),
    ],
)
def test_many_numbers_of_copies_are_told_by_the_least_and_the_most(copies: tuple[int, ...], words: str) -> None:
    run = report_of(WRITE)
    found = tuple(replace(m, copies=n) for m, n in zip(run.measurements, copies, strict=True))
    assert how(replace(run, measurements=found))[1] == words


def test_a_soak_shows_the_path_of_each_case_that_fell_farthest_and_when() -> None:
    report = report_of("device_to_device_memcpy_write_ce", gpus=2)
    found = [
        replace(m, bandwidth_gb_s=summarize([100.0, 100.0, least]), slowest_at_s=at_s)
        for m, least, at_s in zip(report.measurements, (99.0, 60.0), (12.0, 47.4), strict=True)
    ]
    # Interrupted before its hour was over.
    how_long = replace(report.settings, duration_s=3600)
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
    waived = [finish(m, MeasurementStatus.WAIVED, reason="no peer access") for m in report.measurements]
    waived_run = replace(report, measurements=tuple(waived))
    assert matrices_text(waived_run) == ""
    assert "WAIVED  device_to_device_memcpy_write_ce, ring_write_ce: no peer access" in text_of(waived_run, verbose=1)


@pytest.mark.parametrize(("machine", "gpus"), [("gb200-tray", 4), pytest.param("dgx-h100", 8, marks=pytest.mark.long)])
def test_every_case_fits_the_page(machine: str, gpus: int) -> None:
    text = text_of(report_of(machine=machine, gpus=gpus), verbose=1)
    assert max(map(len, text.splitlines())) <= WIDTH


POINTS = {
    Axis.SIZE: ("device_to_device_memcpy_write_ce", [Point(size=MIB), Point(size=64 * MIB)]),
    Axis.SMS: ("device_local_copy_tma", [Point(sms=1), Point(sms=16)]),
    Axis.FOOTPRINT: ("device_local_footprint", [Point(footprint=2 * MIB), Point(footprint=GIB)]),
    Axis.LOAD: ("device_to_device_latency_loaded", [Point(load=0), Point(load=8)]),
    Axis.STREAMS: ("host_numa_to_device_memcpy_ce", [Point(streams=1), Point(streams=4)]),
}


@pytest.mark.parametrize("axis", Axis)
def test_every_series_is_one_table_and_a_drawing(axis: Axis) -> None:
    case, points = POINTS[axis]
    report = run(cases=(case,), gpus=2, points=points)
    assert tuple(swept(report)) == (axis,)
    said, *others, numbers = shown(all_series(report, axis), Level.NORMAL)
    assert isinstance(said, Matrix)
    assert isinstance(numbers, Section)
    small = [chart for chart in others if not isinstance(chart, Section)]
    assert all(isinstance(chart, Chart) and chart.small for chart in small)
    shares = next((section for section in others if isinstance(section, Section)), None)
    assert (shares is not None) == (axis in (Axis.SIZE, Axis.SMS, Axis.STREAMS))
    for drawn in body_of(shares) if shares else ():
        assert isinstance(drawn, Chart)
        assert (drawn.limits, drawn.steep, drawn.y) == ((("100 %", 100.0),), False, "% of the link")
    (table,) = body_of(numbers)
    assert isinstance(table, Matrix)
    assert table.rows == tuple(map(str, points))
    assert table.names == case
    assert all(column.cells for column in columns(table))
    (chart,) = overlay(report, axis)
    assert len(chart.curves) == len(said.rows)
    assert LOOKS[axis].title in text_of(report)


@pytest.mark.parametrize(("least", "heading"), [(0, "idle ns"), (4, "least load ns")])
def test_a_latency_is_called_idle_only_where_nothing_else_read(least: int, heading: str) -> None:
    report = run(cases=(POINTS[Axis.LOAD][0],), gpus=2, points=[Point(load=least), Point(load=8)])
    said, *_ = shown(all_series(report, Axis.LOAD), Level.NORMAL)
    assert isinstance(said, Matrix)
    assert (heading,) in [column.header for column in columns(said)]


def seen(run: RunReport, **evidence: Any) -> RunReport:
    """Return the run with what was seen beside its first measurement."""
    gpu = GpuEvidence(bus_id="0000:1b:00.0", label="GPU0", **evidence)
    return patched(run, "measurements[0]", evidence=TaskEvidence(gpus=(gpu,)))


def routed(*verdicts: LinkProof) -> RunReport:
    """Return a run whose measurements took the expected link, or not."""
    run = report_of(WRITE)
    for number, verdict in enumerate(verdicts):
        link = LinkEvidence(link=LinkKind.NVLINK, expected_bytes=1000, carried_bytes=7, verdict=verdict)
        run = patched(run, f"measurements[{number}]", evidence=TaskEvidence(gpus=(), route=link))
    return run


WRONG = Placement(label="NUMA0", proof="move_pages", detail="256 on node 1", right=False)


@pytest.mark.parametrize(
    ("run", "warning"),
    [
        (seen(report_of(WRITE), errors={"nvlink-replays": 3}), "nvlink-replays of GPU0 rose by 3"),
        (seen(report_of(WRITE), other_processes=(4711,)), "other processes used GPU0 meanwhile (4711)"),
        (seen(report_of(WRITE), throttle_reasons=("sw-power-cap",)), "clocks of GPU0 throttled: sw-power-cap"),
        (seen(report_of(WRITE), throttle_reasons=("applications-clocks-setting",)), None),
        (routed(LinkProof.REFUTED), "nvlink carried only 1 % of the bytes"),
        (
            patched(report_of(WRITE), "measurements[0]", placements=(WRONG,)),
            "memory of NUMA0 is elsewhere (256 on node 1)",
        ),
    ],
)
def test_what_was_seen_is_told_with_the_path_and_nothing_unusual_is_no_warning(
    run: RunReport, warning: str | None
) -> None:
    expected = [] if warning is None else [f"{warning}: {WRITE} GPU0 -> GPU1"]
    assert list(warnings(run)) == expected


def test_how_many_routes_were_shown_is_one_sentence() -> None:
    verdicts = (LinkProof.PROVEN, LinkProof.PROVEN, LinkProof.BY_EXCLUSION, LinkProof.UNKNOWN)
    assert route_line(routed(*verdicts)) == (
        "Route confirmed by link counters: 2 of 4, 1 by exclusion: no other link "
        "carried the bytes, 1 not confirmed: no counters, or ones that contradict each other."
    )
    assert route_line(report_of("ring_write_ce")) is None


def cells(grid: Matrix) -> dict[str, list[str]]:
    """Return the cells of each column."""
    return {line.header[0]: [plain(cell.text) for cell in line.cells] for line in columns(grid)}


def test_the_ratio_of_two_processes_to_one_is_path_by_path() -> None:
    first, second = report_of("ipc_posix_fd_device_write_ce", gpus=2).measurements
    grid = beside([replace(first, in_process=200.0), replace(second, in_process=110.0)])
    assert grid.rows == ("ipc_posix_fd_device_write_ce",)
    assert cells(grid) == {
        "paths": ["2"],
        "ipc": ["105.00"],
        "within": ["155.00"],
        "unit": ["GB/s"],
        "min": ["0.500"],
        "ratio": ["0.750"],
        "max": ["1.000"],
    }
    assert beside(report_of("ipc_socket_round_trip", gpus=2).measurements).rows == (), "it has nothing beside it"


def test_stages_are_in_the_order_of_the_kind_that_has_all_of_them() -> None:
    stages = {LIVES[0]: ("allocate", "open", "close"), LIVES[1]: ("allocate", "open", "map", "close")}
    found = [
        replace(m, stages=tuple(Stage(name=name, ms=summarize([0.0042])) for name in stages[m.case]))
        for m in report_of(*stages, gpus=2).measurements
    ]
    (grid,) = life_cycles(found)
    assert list(cells(grid)) == ["allocate", "open", "map", "close"]
    assert cells(grid)["map"] == ["-", "4.2"]
    assert grid.rows == ("device, legacy", "device, posix-fd")


def test_a_life_that_failed_shows_its_status() -> None:
    (grid,) = life_cycles(report_of(LIVES[2], gpus=2, status=MeasurementStatus.FAILED).measurements)
    assert cells(grid)["status"] == ["failed"]


def test_what_failed_is_told_with_its_case_since_all_kinds_take_the_same_paths() -> None:
    run = report_of(LIVES[0], LIVES[2], gpus=2, status=MeasurementStatus.CRASHED)
    found = tuple(replace(m, reason="died") for m in run.measurements[1:3])
    (told,) = exceptions(replace(run, measurements=found))
    assert told == (MeasurementStatus.CRASHED, "died", [f"{LIVES[0]} GPU0 -> GPU1", f"{LIVES[2]} GPU1 -> GPU0"])


def between_ranks(ranks: int, slow: int) -> RunReport:
    """Return a run in which every path has 700, and those of one rank 650 GB/s and 800 ns."""
    cases = [case for case in FABRIC_CASES if case.name in ("fabric_device_write_ce", "fabric_device_latency")]
    plan = make_fabric_plan(modelled(with_imex_channel(shipped("gb200-nvl72")), ranks), cases, SETTINGS)
    values = {Quantity.BANDWIDTH: 650.0, Quantity.LATENCY: 800.0}
    found = [
        measured(task, values[task.quantity] if task.flows[0].initiator_rank == slow else 700.0) for task in plan.tasks
    ]
    return replace(report(plan, found), ranks=plan.ranks)


def test_up_to_sixteen_ranks_there_are_matrices() -> None:
    text = matrices_text(between_ranks(16, 5))
    assert "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)" in text


def test_above_that_each_link_has_a_line_and_the_worst_path_is_named() -> None:
    text = text_of(between_ranks(20, 5))
    assert len(text.splitlines()) < 60
    words = " ".join(text.split())
    assert "memcpy CE GPU(row)" not in words
    for line in ("fabric_device_write_ce 60 700.0 650.0", "fabric_device_write_ce 320 700.0 650.0"):
        assert line in words
    (bars,) = [
        block
        for block in bench_document(between_ranks(20, 5)).body
        if isinstance(block, Bars) and not block.bars[0].case
    ]
    assert {bar.worst.label.split(" -> ")[0] for bar in bars.bars if not bar.less} == {"node2:GPU1"}
