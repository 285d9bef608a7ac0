"""One report, three forms: the same numbers, the same reasons."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from egmctl.bench.case import Case
from egmctl.bench.plan import Plan
from egmctl.bench.plan.cost import case_list
from egmctl.bench.plan.make import make_plan
from egmctl.bench.results import summarize
from egmctl.bench.suites import CASES, FABRIC_CASES
from egmctl.errors import ExitCode
from egmctl.facts import replay
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.model.measurement import (
    Measurement,
    Mismatch,
    RunReport,
    Sample,
    Settings,
    Status,
    Verification,
    exit_code,
    finish,
)
from egmctl.model.task import Task
from egmctl.report.exports.csv import bench_csv
from egmctl.report.exports.json import result_json
from egmctl.report.render.text import WIDTH
from egmctl.units import MIB
from tests.bench.four import FOUR
from tests.bench.reports import report
from tests.doctor.machines import shipped
from tests.report.texts import matrices_text, text_of

SETTINGS = Settings(size_bytes=512 * MIB, copies=16, samples=5, timeout_s=60)
SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "docs/schemas/bench.schema.json").read_text())
GB200, DGX = shipped("gb200-tray"), shipped("dgx-h100")


def plan_of(name: str, gpus: int) -> Plan:
    """Plan every case for the first GPUs of a modelled machine with all its NUMA nodes."""
    machine = shipped(name)
    return make_plan(machine, (machine.gpus or ())[:gpus], [0, 1], FOUR, SETTINGS)


def measured(task: Task, *values: float) -> Measurement:
    """Return a measurement of a task with samples of these bandwidths."""
    return finish(
        task,
        Status.OK,
        samples=tuple(
            Sample(bandwidth_gb_s=value, flows_gb_s=(value,), elapsed_ms=8589.934592 / value, wall_ms=22.5)
            for value in values
        ),
        bandwidth_gb_s=summarize(values),
        flows_gb_s=(summarize(values),),
        gating="kernel",
        verification=Verification.GPU_EVERY_SAMPLE,
        seeds=(1,),
        wall_s=0.25,
    )


def report_of(plan: Plan, *measurements: Measurement) -> RunReport:
    """Return a report; without measurements each task of the plan gets 100 and its number GB/s."""
    return report(
        plan, measurements or tuple(measured(planned, 100.0 + number) for number, planned in enumerate(plan.tasks))
    )


def test_the_matrices_of_an_egm_node() -> None:
    assert (
        matrices_text(report_of(plan_of("gb200-tray", 3)))
        == """\
memcpy CE HOST_NUMA(row) -> GPU(column) bandwidth (GB/s)
host_numa_to_device_memcpy_ce
EGM over C2C: NUMA0 with GPU0 GPU1, NUMA1 with GPU2
EGM over NV18>C2C: NUMA0 with GPU2, NUMA1 with GPU0 GPU1
         GPU0    GPU1    GPU2
NUMA0  100.00  101.00  102.00
NUMA1  103.00  104.00  105.00

memcpy CE HOST_NUMA(row) <- GPU(column) bandwidth (GB/s)
device_to_host_numa_memcpy_ce
EGM over C2C: NUMA0 with GPU0 GPU1, NUMA1 with GPU2
EGM over NV18>C2C: NUMA0 with GPU2, NUMA1 with GPU0 GPU1
         GPU0    GPU1    GPU2
NUMA0  106.00  107.00  108.00
NUMA1  109.00  110.00  111.00

memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
device_to_device_memcpy_write_ce
NV18
        GPU0    GPU1    GPU2
GPU0       -  112.00  113.00
GPU1  114.00       -  115.00
GPU2  116.00  117.00       -

memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)
device_to_device_memcpy_read_ce
NV18
        GPU0    GPU1    GPU2
GPU0       -  118.00  119.00
GPU1  120.00       -  121.00
GPU2  122.00  123.00       -
"""
    )


def test_in_a_write_the_row_sends_and_in_a_read_the_row_receives() -> None:
    plan = plan_of("dgx-h100", 2)
    by_value = {m.bandwidth_gb_s.median: m for m in report_of(plan).measurements if m.bandwidth_gb_s}
    text = matrices_text(report_of(plan))
    write = text[text.index("memcpy_write_ce") :].splitlines()
    read = text[text.index("memcpy_read_ce") :].splitlines()
    in_write = by_value[float(next(line for line in write if line.startswith("GPU0")).split()[2])]
    in_read = by_value[float(next(line for line in read if line.startswith("GPU0")).split()[2])]
    assert (in_write.flows[0].source.label, in_write.flows[0].destination.label) == ("GPU0", "GPU1")
    assert (in_read.flows[0].source.label, in_read.flows[0].destination.label) == ("GPU1", "GPU0")


def test_the_same_calls_on_a_pcie_node_are_not_called_egm() -> None:
    text = matrices_text(report_of(plan_of("dgx-h100", 2)))
    assert "HOST_NUMA over PCIe, not EGM: NUMA0 with GPU0 GPU1" in text
    assert "EGM over" not in text


def test_cells_without_a_number_are_words_with_their_reasons_below() -> None:
    plan = plan_of("dgx-h100", 2)
    tasks = list(plan.tasks)
    mismatch = Mismatch(sample=1, words=3, first_offset_bytes=64, expected="0x1", found="0xdeadbeef")
    found = [measured(task, 50.0) for task in tasks]
    found[1] = finish(tasks[1], Status.WAIVED, reason="MIG is on")
    found[3] = finish(tasks[3], Status.WAIVED, reason="MIG is on")
    found[4] = replace(found[4], status=Status.CORRUPT, reason="3 words differ", mismatch=mismatch)
    found[5] = replace(found[5], status=Status.UNSTABLE, reason="the samples vary by 7.1 % (CV)")
    found[8] = finish(tasks[8], Status.TIMED_OUT, reason="no result", last_call="cuStreamSynchronize")
    text = matrices_text(report_of(plan, *found))
    assert "NUMA0  50.00  waived" in text
    assert "NUMA0  corrupt  50.00*" in text
    assert "GPU0      -  timed-out" in text
    told = " ".join(text_of(report_of(plan, *found), verbose=1).split())
    assert told.startswith("FAIL: 1 of 12 measurements failed: 3 words differ; INCOMPLETE: 1 of 12"), (
        "corrupt data first"
    )
    for line in (
        "WAIVED host_numa_to_device_memcpy_ce NUMA0 -> GPU1, host_numa_to_device_memcpy_ce NUMA1 -> GPU1: MIG is on",
        "CORRUPT device_to_host_numa_memcpy_ce GPU0 -> NUMA0: 3 words differ",
        "UNSTABLE device_to_host_numa_memcpy_ce GPU1 -> NUMA0: the samples vary by",
        "12 measurements: 7 ok, 1 unstable, 1 corrupt, 2 waived, 1 timed-out",
    ):
        assert line in told


@pytest.mark.parametrize("status", [Status.OK, Status.TIMED_OUT])
def test_eight_gpus_fit_the_page_whatever_the_cells_hold(status: Status) -> None:
    plan = plan_of("dgx-h100", 8)
    found = [measured(planned, 1396.4) for planned in plan.tasks]
    if status is not Status.OK:
        found = [finish(planned, status, reason="no result") for planned in plan.tasks]
    lines = text_of(report_of(plan, *found), verbose=1).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert any(line.startswith("GPU7 ") and line.endswith("-") for line in lines)


def test_strings_of_the_machine_are_neither_markup_nor_control_characters() -> None:
    plan = plan_of("dgx-h100", 1)
    evil = replace(plan.gpus[0], name="[bold]H100\x1b[31m")
    report = replace(report_of(plan), gpus=(evil,))
    assert "1 x [bold]H100\\x1b[31m, driver" in text_of(report)
    assert "\x1b" not in bench_csv(report)


def test_an_interrupted_run_says_so() -> None:
    report = replace(report_of(plan_of("dgx-h100", 1)), interrupted=True)
    assert text_of(report).startswith("INCOMPLETE: interrupted with 4 of 4 measurements made")
    assert report.exit_code is ExitCode.INTERRUPTED


def test_notes_and_problems_are_told() -> None:
    report = replace(report_of(plan_of("dgx-h100", 1)), notes=("without kernels",), problems=("cuMemRelease failed",))
    assert "\nNotes\n  cuMemRelease failed\n" in text_of(report)
    assert "\n  without kernels\n" in text_of(report, verbose=1)
    assert report.exit_code is ExitCode.CRASHED


def test_json_has_every_sample_as_a_number_with_its_unit_in_the_key() -> None:
    plan = plan_of("gb200-tray", 2)
    first = measured(plan.tasks[0], 200.0, 210.0, 220.0)
    rest = [finish(planned, Status.WAIVED, reason="not here") for planned in plan.tasks[1:]]
    document = json.loads(result_json(replace(report_of(plan, first, *rest), machines=(GB200,))))
    assert (document["schema"], document["exit_code"]) == ("egmctl.bench/2", 0)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    result = document["result"]
    assert result["settings"]["size_bytes"] == 536870912
    one, waived = result["measurements"][:2]
    assert one["bandwidth_gb_s"] == {
        "median": 210.0,
        "min": 200.0,
        "max": 220.0,
        "cv": pytest.approx(0.047619, abs=1e-6),
        "p05": None,
        "p95": None,
    }
    assert [sample["bandwidth_gb_s"] for sample in one["samples"]] == [200.0, 210.0, 220.0]
    (flow,) = one["flows"]
    assert flow["source"] == {
        "memory": "host-numa",
        "label": "NUMA0",
        "bus_id": None,
        "numa_node": 0,
        "rank": None,
        "handle": None,
        "allocated_by": None,
        "allocated_by_label": None,
    }
    route = flow["route"]
    assert (route["egm"], route["symbol"], route["memory"]) == ("yes", "C2C", "host-numa")
    assert one["counted"] == "each byte copied, once"
    assert (waived["status"], waived["reason"], waived["bandwidth_gb_s"]) == ("waived", "not here", None)


def test_csv_is_tidy_one_row_a_flow_with_its_run_and_gpu() -> None:
    plan = plan_of("gb200-tray", 2)
    first = measured(plan.tasks[0], 200.0, 210.0, 220.0)
    rest = [finish(planned, Status.WAIVED, reason='not "here", yet') for planned in plan.tasks[1:]]
    rows = list(csv.DictReader(io.StringIO(bench_csv(report_of(plan, first, *rest)))))
    assert len(rows) == sum(len(planned.flows) for planned in plan.tasks)
    started, driver = rows[0]["started_at"], rows[0]["driver_version"]
    assert all((row["started_at"], row["driver_version"]) == (started, driver) != ("", "") for row in rows)
    assert (rows[0]["bandwidth_gb_s_median"], rows[0]["flow_route_egm"], rows[0]["status"]) == ("210.0", "yes", "ok")
    assert (rows[1]["bandwidth_gb_s_median"], rows[1]["reason"]) == ("", 'not "here", yet')
    assert rows[0]["flow_initiator_name"] == "NVIDIA GB200"


def listed(machine: Machine, gpus: Sequence[Gpu], nodes: Sequence[int], cases: Sequence[Case], verbose: int = 0) -> str:
    return text_of(case_list(make_plan(machine, gpus, nodes, cases, SETTINGS), cases, machine.origin), verbose=verbose)


@pytest.mark.processes
def test_the_list_says_what_would_run_and_why_not() -> None:
    gpu = replace(DGX.gpus[0], cuda=None)  # type: ignore[index]
    text = listed(DGX, [gpu], [0], FOUR)
    assert re.search(r"host_numa_to_device_memcpy_ce +0 of 1 +size, streams\n", text)
    words = " ".join(text.split())
    assert ": GPU0: CUDA was not queried " in words
    assert ": needs two GPUs " in words


@pytest.mark.long
@pytest.mark.parametrize("machine", replay.names())
def test_the_list_of_all_cases_fits_the_page(machine: str) -> None:
    node = shipped(machine)
    every = [*CASES, *FABRIC_CASES]
    text = listed(node, node.gpus or (), [0], every, verbose=1)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert all(case.description in " ".join(text.split()) for case in every), "whole, however it is broken"


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ([], ExitCode.NOTHING),
        ([Status.WAIVED, Status.WAIVED], ExitCode.NOTHING),
        ([Status.WAIVED, Status.OK], ExitCode.OK),
        ([Status.UNSTABLE], ExitCode.OK),
        ([Status.OK, Status.CORRUPT], ExitCode.FAILED),
        ([Status.CORRUPT, Status.CRASHED], ExitCode.CRASHED),
        ([Status.CORRUPT, Status.TIMED_OUT], ExitCode.CRASHED),
        ([Status.OK, Status.FAILED], ExitCode.CRASHED),
    ],
)
def test_the_worst_outcome_is_the_exit_code(statuses: list[Status], code: ExitCode) -> None:
    task = plan_of("dgx-h100", 1).tasks[0]
    assert exit_code([finish(task, status) for status in statuses]) is code


def test_a_failure_with_a_known_cause_is_not_a_crash() -> None:
    task = plan_of("dgx-h100", 1).tasks[0]
    assert exit_code([finish(task, Status.FAILED, known_cause=True)]) is ExitCode.FAILED
