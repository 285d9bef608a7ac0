"""The metrics are read by Prometheus' own parser, and follow its rules of names and units."""

from __future__ import annotations

import math
import re

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from egmctl.doctor.check import Scope
from egmctl.doctor.runner import CHECKS
from egmctl.model.answer import State
from egmctl.model.measurement import MeasurementStatus
from egmctl.report.exports.prom import bench_prom, doctor_prom
from egmctl.units import printable
from tests.answers import diagnose, with_answer
from tests.doctor.machines import shipped
from tests.report.runs import HOSTILE, hostile_run, judged, run
from tests.tiers import LONG

UNITS = ("_seconds", "_bytes_per_second", "_info")
COUNTS = ("_measurements", "_verdict", "_exit_code", "_findings", "_check")


def metrics(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


@pytest.fixture(scope="module", params=["bench", pytest.param("bench of eight GPUs", marks=LONG), "hostile", "doctor"])
def text(request: pytest.FixtureRequest) -> str:
    if request.param == "doctor":
        return doctor_prom(diagnose(shipped("hgx-h200x4"), Scope(), CHECKS))
    if request.param == "hostile":
        return bench_prom(hostile_run())
    return bench_prom(judged(run("dgx-h100" if "eight" in request.param else "hgx-h200x4")))


@pytest.mark.long
def test_each_metric_has_its_help_its_type_and_a_name_with_its_unit(text: str) -> None:
    for family in metrics(text).values():
        assert family.documentation.endswith((".", "1."))
        assert family.type == "gauge"
        if family.name not in ("egmctl_answer", "egmctl_exit_code"):
            assert re.fullmatch(r"egmctl_(bench|doctor)_[a-z_]+", family.name)
            assert family.name.endswith(UNITS + COUNTS)


@pytest.mark.long
def test_no_sample_is_there_twice_and_each_is_a_number(text: str) -> None:
    found = [(one.name, *sorted(one.labels.items())) for family in metrics(text).values() for one in family.samples]
    assert found
    assert len(found) == len(set(found))
    assert not any(math.isnan(one.value) for family in metrics(text).values() for one in family.samples)


def test_there_are_no_times_and_the_last_line_ends(text: str) -> None:
    """node_exporter refuses a textfile with timestamps: https://github.com/prometheus/node_exporter#textfile-collector."""
    assert text.endswith("\n")
    assert not any(one.timestamp for family in metrics(text).values() for one in family.samples)


def test_every_median_of_a_run_is_there_in_base_units() -> None:
    made = run(cases=("device_to_device_memcpy_write_ce", "device_to_device_latency_sm", "ring_write_ce"))
    found = metrics(bench_prom(made))
    flows = [(m, flow, one) for m in made.measurements for flow, one in zip(m.flows, m.flows_gb_s, strict=False)]
    bandwidths = found["egmctl_bench_bandwidth_bytes_per_second"].samples
    assert [one.value for one in bandwidths] == [summary.median * 1e9 for _, _, summary in flows]
    first, flow = bandwidths[0].labels, made.measurements[0].flows[0]
    assert (first["case"], first["source"], first["destination"], first["link"]) == (
        made.measurements[0].case,
        flow.source.label,
        flow.destination.label,
        flow.route.symbol,
    )
    latencies = [m.latency_ns.median for m in made.measurements if m.latency_ns]
    assert [one.value for one in found["egmctl_bench_latency_seconds"].samples] == pytest.approx(
        [ns * 1e-9 for ns in latencies]
    )
    (total,) = found["egmctl_bench_total_bandwidth_bytes_per_second"].samples
    assert total.labels["case"] == "ring_write_ce"
    assert found["egmctl_bench_start_timestamp_seconds"].samples[0].value == 1795176000


def test_what_failed_is_counted_and_has_no_median() -> None:
    made = with_answer(hostile_run())
    found = metrics(bench_prom(made))
    counts = {one.labels["status"]: one.value for one in found["egmctl_bench_measurements"].samples}
    assert counts == {
        status.value: float(sum(m.status is status for m in made.measurements)) for status in MeasurementStatus
    }
    assert len(found["egmctl_bench_bandwidth_bytes_per_second"].samples) == len(made.measurements) - 2
    assert found["egmctl_exit_code"].samples[0].value == 4


def test_a_hostile_name_is_one_label() -> None:
    (info,) = metrics(bench_prom(hostile_run()))["egmctl_bench_info"].samples
    assert info.labels["gpus"] == f"4 x {printable(HOSTILE)}"
    assert info.labels["driver"] == printable(HOSTILE)


def test_the_verdict_is_a_number_as_doctors_checks_are() -> None:
    found = metrics(bench_prom(with_answer(judged(run(cases=("ring_write_ce",))))))
    states = {sample.labels["state"]: sample.value for sample in found["egmctl_answer"].samples}
    assert states == {state.value: float(state is State.BAD) for state in State}
    (one,) = found["egmctl_bench_class_verdict"].samples
    assert one.value == 2
    assert one.labels["link"] == "NV18"
