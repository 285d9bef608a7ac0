"""Tables of measurements by several processes: the ratio, the stages, and what cannot be shown as a number."""

from __future__ import annotations

from dataclasses import replace

from egmctl.bench.plan import Plan
from egmctl.bench.plan.make import make_plan
from egmctl.bench.results import summarize
from egmctl.bench.suites import select_cases
from egmctl.model.measurement import Measurement, RunReport, Settings, Stage, Status, finish
from egmctl.model.task import Quantity
from egmctl.report.document import Matrix, columns, plain
from egmctl.report.views.bench_answer import exceptions
from egmctl.report.views.bench_details import beside, life_cycles
from tests.bench.reports import report
from tests.doctor.machines import shipped

MACHINE = shipped("gb200-tray")


def plan_of(*names: str) -> Plan:
    settings = Settings(size_bytes=1 << 26, copies=1, samples=3, timeout_s=60)
    return make_plan(MACHINE, (MACHINE.gpus or ())[:2], [0], select_cases(names), settings)


def report_of(*measurements: Measurement) -> RunReport:
    """Return the report of a run that found these."""
    return report(plan_of(*(m.case for m in measurements)), measurements)


def measured(*names: str, value: float = 100.0, status: Status = Status.OK) -> list[Measurement]:
    """Return a measurement for each task of cases on two GPUs: so many GB/s or ns."""
    summary = summarize([value])
    return [
        finish(
            planned,
            status,
            bandwidth_gb_s=summary if planned.quantity is Quantity.BANDWIDTH else None,
            flows_gb_s=(summary,) * len(planned.flows) if planned.quantity is Quantity.BANDWIDTH else (),
            latency_ns=summary if planned.quantity is Quantity.LATENCY else None,
        )
        for planned in plan_of(*names).tasks
        if planned.case in names
    ]


def column(grid: Matrix, name: str) -> list[str]:
    """Return the cells of a column."""
    return [plain(cell.text) for line in columns(grid) if line.header == (name,) for cell in line.cells]


def test_the_ratio_is_path_by_path() -> None:
    one, other = measured("ipc_posix_fd_device_write_ce")
    grid = beside([replace(one, in_process=100.0), replace(other, in_process=200.0)])
    assert grid.rows == ("ipc_posix_fd_device_write_ce",)
    assert (column(grid, "min"), column(grid, "ratio"), column(grid, "max")) == (["0.500"], ["0.750"], ["1.000"])
    assert column(grid, "unit") == ["GB/s"]
    assert (column(grid, "ipc"), column(grid, "within")) == (["100.00"], ["150.00"])


def test_what_has_nothing_beside_it_is_not_in_the_table() -> None:
    assert beside(measured("ipc_socket_round_trip")).rows == ()


def test_stages_are_in_the_order_of_the_kind_that_has_all_of_them() -> None:
    names = ("ipc_legacy_device_life_cycle", "ipc_posix_fd_device_life_cycle")
    stages = {names[0]: ("allocate", "open", "close"), names[1]: ("allocate", "open", "map", "close")}
    found = [
        replace(m, stages=tuple(Stage(name=name, ms=summarize([0.0042])) for name in stages[m.case]))
        for m in measured(*names)
    ]
    (grid,) = life_cycles(found)
    assert [line.header for line in columns(grid)] == [("allocate",), ("open",), ("map",), ("close",)]
    assert column(grid, "map") == ["-", "4.2"]
    assert grid.rows == ("device, legacy", "device, posix-fd")


def test_a_life_that_failed_shows_its_status() -> None:
    name = "ipc_pool_device_life_cycle"
    (grid,) = life_cycles(measured(name, status=Status.FAILED))
    assert column(grid, "status") == ["failed"]


def test_what_failed_is_told_with_its_case_since_all_kinds_take_the_same_paths() -> None:
    one, other = measured("ipc_legacy_device_life_cycle", "ipc_pool_device_life_cycle", status=Status.CRASHED)[1:3]
    (told,) = exceptions(report_of(replace(one, reason="died"), replace(other, reason="died")))
    names = ["ipc_legacy_device_life_cycle GPU0 -> GPU1", "ipc_pool_device_life_cycle GPU1 -> GPU0"]
    assert told == (Status.CRASHED, "died", names)
