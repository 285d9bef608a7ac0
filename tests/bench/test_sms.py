"""Bandwidth against the number of SMs: what is planned and launched, what is found wrong, and what is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from egmctl.bench.case import BY_SMS
from egmctl.bench.plan import Plan
from egmctl.bench.plan.make import make_plan
from egmctl.bench.results import summarize
from egmctl.bench.suites import SUITES, SWEPT, select_cases
from egmctl.model.answer import State
from egmctl.model.machine import Machine
from egmctl.model.measurement import Measurement, MeasurementStatus, RunReport, Settings
from egmctl.model.task import Axis
from egmctl.report.document import Level, Matrix, Section, body_of, columns, plain, shown
from egmctl.report.render.figures import HEIGHT, plot
from egmctl.report.views.bench import bench_document
from egmctl.report.views.bench_details import ENOUGH, enough, overlay
from egmctl.units import MIB
from egmctl.verdict.answers.run import of_run
from egmctl.verdict.judge import judge, with_verdict
from egmctl.verdict.yardsticks import not_judged
from tests.bench.conftest import FEW, Bench
from tests.bench.plans import with_attributes
from tests.doctor.machines import patched, shipped
from tests.report.pages import elements, words
from tests.report.runs import run

H200 = shipped("hgx-h200x4")
SETTINGS = Settings(size_bytes=512 * MIB, copies=None, samples=3, timeout_s=60)
NAMES = SWEPT[Axis.SMS]
WRITES = ("device_to_device_memcpy_write_sm",)


def with_sms(machine: Machine, count: int | None) -> Machine:
    """Return a machine whose GPUs say how many SMs they have."""
    if count is None:
        return patched(machine, "gpus[*].cuda", attributes={})
    return with_attributes(machine, MULTIPROCESSOR_COUNT=count)


def plan_of(machine: Machine, names: Sequence[str] = NAMES) -> Plan:
    return make_plan(machine, machine.gpus or (), [0], select_cases(names, sweep=Axis.SMS), SETTINGS)


class TestPlan:
    def test_each_path_and_engine_is_measured_by_so_many_blocks_and_by_one_on_every_sm(self) -> None:
        blocks: dict[tuple[str, str], list[int | None]] = {}
        for planned in plan_of(with_sms(H200, 132)).tasks:
            assert planned.waiver is None
            key = f"{planned.path} by {planned.flows[0].initiator_label}", planned.engine.value
            blocks.setdefault(key, []).append(planned.point.sms)
        paths = ("GPU0 -> GPU1", "GPU1 -> GPU0", "NUMA0 -> GPU0", "GPU0 -> NUMA0", "GPU0 -> GPU0")
        assert set(blocks) == {(f"{path} by GPU0", engine) for path in paths for engine in ("sm-copy", "bulk")}
        assert all(found == [1, 2, 4, 8, 16, 32, 64, 132] for found in blocks.values())

    def test_a_gpu_with_fewer_sms_is_not_given_more_blocks(self) -> None:
        planned = plan_of(with_sms(H200, 48), WRITES).tasks
        assert [one.point.sms for one in planned if one.waiver is None] == [1, 2, 4, 8, 16, 32, 48]
        assert [one.waiver for one in planned if one.waiver is not None] == ["GPU0 has 48 multiprocessors"]

    def test_where_nobody_says_how_many_sms_there_are_that_is_left_to_the_run(self) -> None:
        tasks = list(plan_of(with_sms(H200, None), WRITES).tasks)
        assert [task.point for task in tasks] == list(BY_SMS)

    def test_few_sms_get_few_copies_so_that_no_sample_takes_seconds(self) -> None:
        tasks = list(plan_of(with_sms(H200, 132)).tasks)
        local = [task.copies for task in tasks if task.case == "device_local_copy_tma"]
        assert local == [1, 2, 4, 8, 16, 32, 64, 64]

    def test_no_quick_or_standard_run_has_them(self) -> None:
        swept = [
            name for name in SUITES if any(point.sms for case in select_cases([], [name]) for point in case.points)
        ]
        assert swept == ["full", "sms"]
        for options in ({"suites": ["sms"]}, {"sweep": Axis.SMS}):
            cases = select_cases([], **options)
            assert {case.name for case in cases} == set(NAMES)
            assert all(case.points == BY_SMS for case in cases)


class TestRun:
    def test_the_kernels_get_so_many_blocks_and_every_byte_is_looked_at(self, bench: Bench) -> None:
        found = bench("bench", "--numa", "1", "--gpus", "0-1", *FEW, "--sweep", "sms", "--case", "device*write*")
        assert found.code == 0, found.reasons()
        assert {m["verification"] for m in found.measurements} == {"gpu-every-sample"}
        grids = {
            (call.arguments["kernel"], call.arguments["grid"])
            for call in found.worker_calls()
            if call.name == "cuLaunchKernel" and call.arguments["kernel"].startswith("copy_")
        }
        assert grids == {
            (kernel, f"{count},1,1")
            for kernel in ("copy_vectors", "copy_bulk")
            for count in (1, 2, 4, 8, 16, 32, 64, 132)
        }
        assert [m["point"]["sms"] for m in found.measurements] == 2 * [1, 2, 4, 8, 16, 32, 64, 132]
        assert found.node.leaks() == []


def measured(at: Mapping[float, float]) -> RunReport:
    """Return a run on an H200 in which so many SMs reached so many GB/s."""
    made = run(cases=WRITES, node=with_sms(H200, 132), points=BY_SMS)
    return replace(made, measurements=tuple(_reached(m, at[m.point.sms or 0]) for m in made.measurements))


def _reached(measurement: Measurement, gb_s: float) -> Measurement:
    return replace(measurement, bandwidth_gb_s=summarize([gb_s]), flows_gb_s=(summarize([gb_s]),))


SEEN: Mapping[float, float] = {1: 23.0, 2: 46.0, 4: 92.0, 8: 184.0, 16: 360.0, 32: 369.0, 64: 369.5, 132: 369.4}


class TestView:
    def test_it_says_how_few_come_close_to_the_most(self) -> None:
        assert enough(SEEN) == 16
        assert enough({}) is None

    @given(st.dictionaries(st.integers(1, 200), st.floats(0.1, 5000), min_size=1))
    def test_fewer_than_enough_never_are(self, gb_s: dict[float, float]) -> None:
        found = enough(gb_s)
        assert found is not None
        most = max(gb_s.values())
        assert gb_s[found] >= ENOUGH * most
        assert all(value < ENOUGH * most for sms, value in gb_s.items() if sms < found)

    def test_a_table_and_a_chart_with_the_link_as_a_line(self) -> None:
        report = measured(SEEN)
        (section,) = [
            block
            for block in shown(bench_document(report).body, Level.NORMAL)
            if isinstance(block, Section) and block.title == "Bandwidth by number of SMs"
        ]
        said, shares, numbers = body_of(section)
        assert isinstance(said, Matrix)
        assert [plain(column.cells[0].text) for column in columns(said)] == ["369.50", "82 %", "16 SMs", "16 SMs"]
        assert isinstance(shares, Section)
        assert isinstance(numbers, Section)
        (table,) = body_of(numbers)
        (chart,) = overlay(report, Axis.SMS)
        assert isinstance(table, Matrix)
        assert table.rows == ("1 SM", *(f"{sms} SMs" for sms in list(SEEN)[1:]))
        (column,) = columns(table)
        assert column.header == ("GPU", "-> GPU", "push", "kernel")
        assert [cell.text for cell in column.cells] == [f"{value:.2f}" for value in SEEN.values()]
        assert [point.x for point in chart.curves[0][1]] == sorted(SEEN)
        hop = report.measurements[0].flows[0].route.slowest
        limit = (hop and hop.nominal_gb_s) or 0.0
        assert chart.limits == ((f"NV18 {limit:.0f} GB/s", limit),)
        drawn = plot(chart)
        (line,) = [one for one in elements(drawn, "line") if one.get("class") == "limit"]
        (ring,) = [one for one in elements(drawn, "circle") if "ring" in one.get("class", "")]
        marks = [one for one in elements(drawn, "circle") if one is not ring]
        assert ring.get("cx") == marks[3 + 1].get("cx"), "16 SMs reach half of the best"
        highest = min(float(one.get("cy", "")) for one in marks)
        assert 0 < float(line.get("y1", "")) < highest < HEIGHT
        assert words(next(iter(elements(drawn, "desc")))) == "369.4 GB/s GPU \u2192 GPU, push, kernel"

    def test_what_few_sms_reach_is_no_fault_of_the_link(self) -> None:
        report = measured(SEEN)
        assert all(not_judged(m) for m in report.measurements)
        assert judge(report, None).classes == ()
        broken = replace(report.measurements[0], status=MeasurementStatus.CORRUPT, reason="wrong")
        assert of_run(with_verdict(replace(report, measurements=(broken,)), None)).state is State.BAD
