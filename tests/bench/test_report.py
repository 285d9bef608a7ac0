"""One report, four forms: the same numbers, the same reasons."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace

import pytest

from egmctl.bench.plan import Plan
from egmctl.bench.plan.cost import case_list
from egmctl.bench.plan.make import make_plan
from egmctl.bench.suites import CASES, FABRIC_CASES
from egmctl.errors import ExitCode
from egmctl.model.measurement import Measurement, MeasurementStatus, Mismatch, RunReport, finish
from egmctl.report.exports.csv import bench_csv
from egmctl.report.exports.json import result_json
from egmctl.report.render.text import WIDTH
from tests.answers import code_of
from tests.bench.four import FOUR, NAMES
from tests.bench.plans import SETTINGS, plan_of
from tests.bench.reports import measured, report
from tests.doctor.machines import patched, shipped
from tests.report.texts import matrices_text, text_of
from tests.schemas import validate

EGM = plan_of(*NAMES, machine="gb200-tray", gpus=2)
PCIE, ONE_GPU = (plan_of(*NAMES, gpus=gpus) for gpus in (2, 1))


def report_of(plan: Plan, *measurements: Measurement) -> RunReport:
    """Return a report; without measurements each task of the plan gets 100 and its number GB/s."""
    return report(plan, measurements or [measured(task, 100.0 + number) for number, task in enumerate(plan.tasks)])


def test_the_matrices_of_an_egm_node() -> None:
    assert (
        matrices_text(report_of(plan_of(*NAMES[:1], NAMES[2], machine="gb200-tray", gpus=3)))
        == """\
memcpy CE HOST_NUMA(row) -> GPU(column) bandwidth (GB/s)
host_numa_to_device_memcpy_ce
EGM over C2C: NUMA0 with GPU0 GPU1, NUMA1 with GPU2
EGM over NV18>C2C: NUMA0 with GPU2, NUMA1 with GPU0 GPU1
         GPU0    GPU1    GPU2
NUMA0  100.00  101.00  102.00
NUMA1  103.00  104.00  105.00

memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
device_to_device_memcpy_write_ce
NV18
        GPU0    GPU1    GPU2
GPU0       -  106.00  107.00
GPU1  108.00       -  109.00
GPU2  110.00  111.00       -
"""
    )


def test_in_a_write_the_row_sends_and_in_a_read_the_row_receives() -> None:
    run = report_of(PCIE)
    group_by = {f"{m.bandwidth_gb_s.median:.2f}": m for m in run.measurements if m.bandwidth_gb_s}
    text = matrices_text(run)
    for way, path in (("write", "GPU0 -> GPU1"), ("read", "GPU1 -> GPU0")):
        lines = text[text.index(f"memcpy_{way}_ce") :].splitlines()
        (value,) = next(line for line in lines if line.startswith("GPU0")).split()[2:]
        assert group_by[value].path == path
    assert "HOST_NUMA over PCIe, not EGM: NUMA0 with GPU0 GPU1" in text
    assert "EGM over" not in text


def test_cells_without_a_number_are_words_with_their_reasons_below() -> None:
    mismatch = Mismatch(sample=1, words=3, first_offset_bytes=64, expected="0x1", found="0xdeadbeef")
    found = [measured(task, 50.0) for task in PCIE.tasks]
    for number in (1, 3):
        found[number] = finish(PCIE.tasks[number], MeasurementStatus.WAIVED, reason="MIG is on")
    found[4] = replace(found[4], status=MeasurementStatus.CORRUPT, reason="3 words differ", mismatch=mismatch)
    found[5] = replace(found[5], status=MeasurementStatus.UNSTABLE, reason="the samples vary by 7.1 % (CV)")
    found[8] = finish(PCIE.tasks[8], MeasurementStatus.TIMED_OUT, reason="no result", last_call="cuStreamSynchronize")
    text = matrices_text(report_of(PCIE, *found))
    for line in ("NUMA0  50.00  waived", "NUMA0  corrupt  50.00*", "GPU0      -  timed-out"):
        assert line in text
    told = " ".join(text_of(report_of(PCIE, *found), verbose=1).split())
    assert told.startswith("FAIL: 1 of 12 measurements failed: 3 words differ; BROKE: 1 of 12"), "corrupt data first"
    for line in (
        "WAIVED host_numa_to_device_memcpy_ce NUMA0 -> GPU1, host_numa_to_device_memcpy_ce NUMA1 -> GPU1: MIG is on",
        "CORRUPT device_to_host_numa_memcpy_ce GPU0 -> NUMA0: 3 words differ",
        "UNSTABLE device_to_host_numa_memcpy_ce GPU1 -> NUMA0: the samples vary by",
        "12 measurements: 7 ok, 1 unstable, 1 corrupt, 2 waived, 1 timed-out",
    ):
        assert line in told


@pytest.mark.parametrize("status", [MeasurementStatus.OK, MeasurementStatus.TIMED_OUT])
def test_eight_gpus_fit_the_page_whatever_the_cells_hold(status: MeasurementStatus) -> None:
    plan = plan_of(*NAMES, "*bidirectional_memcpy_write_ce", "ring_*", "one_to_all_write_ce", "all_pairs_write_ce")
    found = [
        measured(task, 1396.4) if status is MeasurementStatus.OK else finish(task, status, reason="no result")
        for task in plan.tasks
    ]
    lines = text_of(report_of(plan, *found), verbose=1).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert any(line.startswith("GPU7 ") and line.endswith("-") for line in lines)


def test_strings_of_the_machine_are_neither_markup_nor_control_characters() -> None:
    hostile = patched(report_of(ONE_GPU), "gpus[0]", name="[bold]H100\x1b[31m")
    assert "1 x [bold]H100\\x1b[31m, driver" in text_of(hostile)
    assert "\x1b" not in bench_csv(hostile)


def test_an_interrupted_run_says_so() -> None:
    interrupted = replace(report_of(ONE_GPU), interrupted=True)
    assert text_of(interrupted).startswith("INTERRUPTED: stopped with 4 of 4 measurements made")
    assert code_of(interrupted) is ExitCode.INTERRUPTED


def test_notes_and_problems_are_told() -> None:
    broken = replace(report_of(ONE_GPU), notes=("without kernels",), problems=("cuMemRelease failed",))
    assert "\nNotes\n  cuMemRelease failed\n" in text_of(broken)
    assert "\n  without kernels\n" in text_of(broken, verbose=1)
    assert code_of(broken) is ExitCode.CRASHED


def sampled(reason: str) -> RunReport:
    """Return a run whose first task has three samples and whose others were waived."""
    first, *others = EGM.tasks
    waived = [finish(task, MeasurementStatus.WAIVED, reason=reason) for task in others]
    run = report_of(EGM, measured(first, 200.0, 210.0, 220.0), *waived)
    return replace(run, machines=(shipped("gb200-tray"),))


def test_json_has_every_sample_as_a_number_with_its_unit_in_the_key() -> None:
    document = json.loads(result_json(sampled("not here")))
    assert (document["schema"], document["exit_code"]) == ("egmctl.bench/3", 3)
    validate(document, "bench")
    assert document["result"]["settings"]["size_bytes"] == 536870912
    first, waived = document["result"]["measurements"][:2]
    summary = {"median": 210.0, "min": 200.0, "max": 220.0, "cv": pytest.approx(0.047619, abs=1e-6)}
    assert first["bandwidth_gb_s"] == {**summary, "p05": None, "p95": None}
    assert [sample["bandwidth_gb_s"] for sample in first["samples"]] == [200.0, 210.0, 220.0]
    (flow,) = first["flows"]
    assert {key: value for key, value in flow["source"].items() if value is not None} == {
        "memory": "host-numa",
        "label": "NUMA0",
        "numa_node": 0,
    }
    assert [flow["route"][key] for key in ("egm", "symbol", "memory")] == ["yes", "C2C", "host-numa"]
    assert first["counted"] == "each byte copied, once"
    assert (waived["status"], waived["reason"], waived["bandwidth_gb_s"]) == ("waived", "not here", None)


def test_csv_is_tidy_one_row_a_flow_with_its_run_and_gpu() -> None:
    rows = list(csv.DictReader(io.StringIO(bench_csv(sampled('not "here", yet')))))
    assert len(rows) == sum(len(task.flows) for task in EGM.tasks)
    assert {(row["started_at"], row["driver_version"]) for row in rows} == {("2026-11-20T12:00:00+00:00", "580.159.04")}
    assert (rows[0]["bandwidth_gb_s_median"], rows[0]["flow_route_egm"], rows[0]["status"]) == ("210.0", "yes", "ok")
    assert (rows[1]["bandwidth_gb_s_median"], rows[1]["reason"]) == ("", 'not "here", yet')
    assert rows[0]["flow_initiator_name"] == "NVIDIA GB200"


@pytest.mark.processes
def test_the_list_says_what_would_run_and_why_not() -> None:
    machine = patched(shipped("dgx-h100"), "gpus[0]", cuda=None)
    plan = plan_of(*NAMES, machine=machine, gpus=1, nodes=(0,))
    text = text_of(case_list(plan, FOUR, machine.origin))
    assert re.search(r"host_numa_to_device_memcpy_ce +0 of 1 +size, streams\n", text)
    words = " ".join(text.split())
    assert ": GPU0: CUDA was not queried " in words
    assert ": needs two GPUs " in words


@pytest.mark.parametrize("name", ["gh200x2", "gb200-nvl72", "hgx-h200x4"])
def test_the_list_of_all_cases_fits_the_page(name: str) -> None:
    machine, every = shipped(name), [*CASES, *FABRIC_CASES]
    plan = make_plan(machine, machine.gpus or (), [0], every, SETTINGS)
    text = text_of(case_list(plan, every, machine.origin), verbose=1)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert all(case.description in " ".join(text.split()) for case in every), "whole, however it is broken"


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ([], ExitCode.NOTHING),
        ([MeasurementStatus.WAIVED, MeasurementStatus.WAIVED], ExitCode.NOTHING),
        ([MeasurementStatus.WAIVED, MeasurementStatus.OK], ExitCode.NOTHING),
        ([MeasurementStatus.UNSTABLE], ExitCode.OK),
        ([MeasurementStatus.OK, MeasurementStatus.CORRUPT], ExitCode.FAILED),
        ([MeasurementStatus.CORRUPT, MeasurementStatus.CRASHED], ExitCode.FAILED),
        ([MeasurementStatus.CORRUPT, MeasurementStatus.TIMED_OUT], ExitCode.FAILED),
        ([MeasurementStatus.OK, MeasurementStatus.TIMED_OUT], ExitCode.CRASHED),
        ([MeasurementStatus.OK, MeasurementStatus.FAILED], ExitCode.CRASHED),
    ],
)
def test_the_worst_outcome_is_the_exit_code(statuses: list[MeasurementStatus], code: ExitCode) -> None:
    made = [finish(ONE_GPU.tasks[0], status) for status in statuses]
    assert code_of(report(ONE_GPU, made)) is code


def test_a_failure_with_a_known_cause_is_not_a_crash() -> None:
    made = [finish(ONE_GPU.tasks[0], MeasurementStatus.FAILED, known_cause=True)]
    assert code_of(report(ONE_GPU, made)) is ExitCode.FAILED
