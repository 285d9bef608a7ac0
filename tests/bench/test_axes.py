"""``--sweep``: the cases that have an axis, their points, and the table and curves of a series."""

from __future__ import annotations

import json

import pytest

from egmctl.bench.suites import CASES, SUITES, SWEPT, select_cases
from egmctl.errors import UsageError
from egmctl.model.task import Axis, Point
from egmctl.report.document import Chart, Matrix, columns
from egmctl.report.views.bench_series import LOOKS, all_series, swept
from egmctl.units import GIB, MIB
from tests.conftest import RunEgmctl
from tests.report.runs import run
from tests.report.texts import text_of

POINTS = {
    Axis.SIZE: ("device_to_device_memcpy_write_ce", [Point(size=MIB), Point(size=64 * MIB)]),
    Axis.SMS: ("device_local_bulk", [Point(sms=1), Point(sms=16)]),
    Axis.FOOTPRINT: ("device_local_footprint", [Point(footprint=2 * MIB), Point(footprint=GIB)]),
    Axis.LOAD: ("device_to_device_latency_loaded", [Point(load=0), Point(load=8)]),
    Axis.STREAMS: ("host_numa_to_device_memcpy_ce", [Point(streams=1), Point(streams=4)]),
}


@pytest.mark.parametrize("axis", Axis)
def test_a_sweep_without_cases_takes_its_own_and_every_point_is_on_the_axis(axis: Axis) -> None:
    cases = select_cases([], sweep=axis)
    assert cases
    for case in cases:
        assert axis in case.axes
        assert axis is Axis.SIZE or all(point.at(axis) is not None for point in case.points)
        assert len(set(case.points)) == len(case.points)


@pytest.mark.parametrize("axis", Axis)
def test_any_case_that_has_the_axis_can_be_swept(axis: Axis) -> None:
    having = [case.name for case in CASES if axis in case.axes]
    assert [case.name for case in select_cases(["*"], sweep=axis)] == having
    assert {case.name for case in select_cases([], sweep=axis)} <= set(having)


def test_what_lacks_the_axis_is_refused_and_what_is_no_axis(egmctl: RunEgmctl) -> None:
    with pytest.raises(UsageError, match="--sweep load: none of the chosen cases has that axis"):
        select_cases(["device_local_copy"], sweep=Axis.LOAD)
    ended = egmctl("bench", "--dry-run", "--machine", "gh200", "--sweep", "colour")
    assert ended.code == 2
    assert "there are size, sms, footprint, load, streams" in ended.err


def test_a_suite_has_few_further_points() -> None:
    for name in SUITES:
        for case in select_cases([], [name]):
            further = [point for point in case.points if point.streams is not None]
            assert further == ([Point(streams=4)] if name in ("standard", "full", "egm") and further else [])
    assert [case.name for case in select_cases([], ["standard"]) if Point(streams=4) in case.points] == [
        *SWEPT[Axis.STREAMS]
    ]


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


def test_a_dry_run_names_each_point(egmctl: RunEgmctl) -> None:
    options = ("bench", "--dry-run", "--machine", "gb200-tray", "--sweep", "streams", "--json")
    result = json.loads(egmctl(*options).out)["result"]
    assert {m["point"]["streams"] for m in result["tasks"]} == {1, 2, 4, 8}
    assert {m["case"] for m in result["tasks"]} == set(SWEPT[Axis.STREAMS])
