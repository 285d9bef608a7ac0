"""Which GPU EGM memory belongs to, by counters as Graces with two GPUs would show them: made up, none measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from egmctl.bench.evidence import gpu_labels, link_evidence
from egmctl.gpu.telemetry import Traffic
from egmctl.model.codec import from_json, to_json
from egmctl.model.measurement import GpuEvidence, Measurement, MeasurementStatus, RunReport, TaskEvidence
from egmctl.model.verdict import OwnerUnknown
from egmctl.report.kinds import Format
from egmctl.topology.routes import possible_owners
from egmctl.verdict.answers import answered
from egmctl.verdict.judge import owners, with_verdict
from tests.answers import render
from tests.doctor.machines import shipped
from tests.known import known
from tests.report.runs import run

CASE = "host_numa_by_owner_to_device_memcpy_ce"
GB200 = "gb200-tray"

Owner = Mapping[str, str | None]
"""Of memory allocated under a GPU, the GPU that it belongs to; ``None``: each GPU reaches it over its own C2C."""

EACH_ITSELF: Owner = {f"GPU{n}": f"GPU{n}" for n in range(4)}
FIRST_OF_CPU: Owner = {"GPU0": "GPU0", "GPU1": "GPU0", "GPU2": "GPU2", "GPU3": "GPU2"}


def bus_id(label: str) -> str:
    return (shipped(GB200).gpus or ())[int(label[3:])].bus_id


def counted(measurement: Measurement, owner: Owner, at: tuple[str, ...]) -> Measurement:
    """Return a read with the counters of the GPUs ``at``, as they stand if memory belongs to whom ``owner`` says."""
    flow = measurement.flows[0]
    moved = len(measurement.samples) * measurement.copies * measurement.size_bytes
    rises = {bus_id(label): Traffic({"nvlink": 0, "pcie": 0}, {"nvlink": 0, "pcie": 0}) for label in at}
    whose, reader = owner[flow.source.allocated_by_label or ""], flow.initiator_label
    if whose not in (None, reader):
        for label, sent, received in ((reader, 0, moved), (str(whose), moved, 0)):
            if label in at:
                rises[bus_id(label)] = Traffic({"nvlink": sent, "pcie": 0}, {"nvlink": received, "pcie": 0})
    gpus = tuple(
        GpuEvidence(bus_id=one, label=label, sent_bytes=rises[one].sent_bytes, received_bytes=rises[one].received_bytes)
        for one, label in gpu_labels([measurement]).items()
        if one in rises
    )
    found = TaskEvidence(gpus=gpus, route=link_evidence(measurement, len(measurement.samples), rises))
    return replace(measurement, evidence=found)


def read(owner: Owner = EACH_ITSELF, at: tuple[str, ...] = tuple(EACH_ITSELF), gpus: int = 4) -> RunReport:
    made = run(GB200, cases=(CASE,), gpus=gpus)
    seen = tuple(counted(measurement, owner, at) for measurement in made.measurements)
    made = replace(made, measurements=seen)
    return with_verdict(made, None)


def told(report: RunReport) -> dict[str, str | OwnerUnknown | None]:
    return {one.allocated_by_label: one.owner_label or one.unknown for one in owners(report.measurements)}


@pytest.mark.parametrize("owner", [EACH_ITSELF, FIRST_OF_CPU], ids=["current context", "first GPU of the CPU"])
def test_the_gpu_that_needs_no_nvlink_and_sends_to_the_other_is_the_owner(owner: Owner) -> None:
    assert told(read(owner)) == owner


def test_each_gpu_of_a_cpu_is_asked_and_none_of_the_other_cpu_and_its_reads_are_named() -> None:
    report = read()
    found = owners(report.measurements)
    cpus = {node: {gpu.bus_id for gpu in possible_owners(shipped(GB200), node)} for node in (0, 1)}
    assert {(one.numa_node, one.allocated_by) for one in found} == {(node, gpu) for node in cpus for gpu in cpus[node]}
    for one in found:
        flows = [report.measurements[number].flows[0] for number in one.measurements]
        assert {flow.source.allocated_by for flow in flows} == {one.allocated_by}
        assert {flow.initiator for flow in flows} == cpus[one.numa_node]


@pytest.mark.parametrize(
    ("report", "unknown"),
    [
        (read(dict.fromkeys(EACH_ITSELF)), OwnerUnknown.OWN_LINK_EACH),
        (read(at=()), OwnerUnknown.NO_COUNTERS),
        (run("hgx-h200x4", cases=(CASE,)), OwnerUnknown.NOT_EGM),
    ],
    ids=["each over its own C2C", "no counters", "no EGM"],
)
def test_an_owner_is_unknown_for_a_reason(report: RunReport, unknown: OwnerUnknown) -> None:
    assert told(report) == dict.fromkeys(EACH_ITSELF, unknown)


def test_one_gpu_that_has_counters_can_prove_that_the_other_is_the_owner_only_with_the_others_read() -> None:
    # GPU1 received GPU0's memory over NVLink; of GPU0 nothing is known.
    found = told(read(at=("GPU1",)))
    assert (found["GPU0"], found["GPU1"]) == (OwnerUnknown.TOO_FEW, OwnerUnknown.TOO_FEW)
    # What GPU0 has sent says it, even where its own read was not measured.
    report = read()
    without = [m for m in report.measurements if m.flows[0].initiator_label == "GPU1"]
    assert {one.allocated_by_label: one.owner_label for one in owners(without)} == {"GPU0": "GPU0", "GPU1": None}


def test_counters_that_contradict_each_other_prove_nothing() -> None:
    report = read()
    crossed = next(m for m in report.measurements if m.flows[0].initiator_label != m.flows[0].source.allocated_by_label)
    assert crossed.evidence is not None
    silent = tuple(replace(gpu, sent_bytes={"nvlink": 0}) for gpu in crossed.evidence.gpus)
    changed = replace(crossed, evidence=replace(crossed.evidence, gpus=silent))
    seen = [changed if m is crossed else m for m in report.measurements]
    assert {one.unknown for one in owners(seen)} == {None, OwnerUnknown.CONTRADICTORY}


def test_what_was_not_measured_or_has_no_choice_of_gpu_concludes_nothing() -> None:
    waived = [
        replace(m, status=MeasurementStatus.WAIVED, reason="no", bandwidth_gb_s=None) for m in read().measurements
    ]
    for measurements in (waived, run(GB200, cases=("host_numa_to_device_memcpy_ce",)).measurements):
        assert owners(measurements) == ()


# --- what is shown and kept -------------------------------------------------------------------------------------------


def text(report: RunReport, verbose: int = 0) -> str:
    return " ".join(str(render(report, Format.TEXT, verbose=verbose)).split())


def test_the_owners_are_told_with_v_and_first_only_where_they_are_unexpected() -> None:
    expected, other = read(), read(FIRST_OF_CPU)
    line = f"NUMA0: memory allocated under GPU0 belongs to GPU0, by the link counters ({CASE})"
    assert line in text(expected, verbose=1)
    assert "EGM memory of NUMA" not in text(expected)
    first = text(other)
    assert "EGM memory of NUMA0 allocated under GPU1 belongs to GPU0, by the link counters" in first
    assert "allocated under GPU0 belongs" not in first


def test_an_unknown_owner_says_why() -> None:
    made = run("hgx-h200x4", cases=(CASE,))
    shown = text(with_verdict(made, None), verbose=1)
    gpus = "GPU0, GPU1, GPU2 and GPU3"
    assert f"NUMA0: memory allocated under {gpus} has an unknown owner: not EGM (no NVLink-C2C)" in shown
    assert "no counters show which link carried the bytes" in text(read(at=()), verbose=1)


def test_an_owner_changes_no_grade_and_no_exit_code() -> None:
    runs = [answered(read(owner)) for owner in (EACH_ITSELF, FIRST_OF_CPU)]
    assert len({(each.answer.state, each.exit_code) for each in runs}) == 1
    verdicts = [known(each.verdict) for each in runs]
    assert len({tuple(each.grade for each in verdict.classes) for verdict in verdicts}) == 1


def test_owners_are_in_the_document() -> None:
    report = read()
    assert from_json(RunReport, to_json(report)) == report
