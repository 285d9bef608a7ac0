"""A run of the bench as metrics: medians, how measurements ended, the verdict, and when it was."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator, Sequence

from egmctl import __version__
from egmctl.model.measurement import Endpoint, Flow, Measurement, RunReport, Status, Summary
from egmctl.model.verdict import Grade
from egmctl.report.exports.prometheus import Sample, gauge
from egmctl.units import GB
from egmctl.wording import counted, gpu_name

GRADES = {Grade.PASS: 0, Grade.WARN: 1, Grade.FAIL: 2, Grade.NO_REFERENCE: 3}
"""As in ``egmctl_doctor_check``: 3 is what is unknown."""
_NS = 1e-9


def bench_prom(report: RunReport) -> str:
    """Return the metrics."""
    return "".join(
        (
            gauge(
                "egmctl_bench_bandwidth_bytes_per_second",
                "Median bandwidth of one flow, while all flows of its measurement run.",
                _flows(report),
            ),
            gauge(
                "egmctl_bench_total_bandwidth_bytes_per_second",
                "Median bandwidth of several flows together.",
                (
                    (_common(m) | {"path": m.path}, m.bandwidth_gb_s.median * GB)
                    for m in _measured(report)
                    if m.bandwidth_gb_s is not None and len(m.flows) > 1
                ),
            ),
            gauge(
                "egmctl_bench_latency_seconds",
                "Median latency: of one load, or of one round trip.",
                (
                    (_common(m) | _path(m.flows[0], m.flows), m.latency_ns.median * _NS)
                    for m in _measured(report)
                    if m.latency_ns is not None
                ),
            ),
            gauge(
                "egmctl_bench_stage_seconds",
                "Median duration of a stage of a handle's life cycle.",
                (
                    (_common(m) | _path(m.flows[0], m.flows) | {"stage": stage.name}, stage.ms.median / 1000)
                    for m in _measured(report)
                    for stage in m.stages
                ),
            ),
            gauge("egmctl_bench_measurements", "Number of measurements by how they ended.", _statuses(report)),
            *_verdict(report),
            gauge(
                "egmctl_bench_exit_code",
                "What the command ended with; 0 is fine.",
                [({}, report.exit_code)],
            ),
            gauge("egmctl_bench_duration_seconds", "How long the run took.", [({}, report.wall_s)]),
            gauge(
                "egmctl_bench_start_timestamp_seconds",
                "When the run began, seconds since 1970 UTC.",
                _began(report),
            ),
            gauge("egmctl_bench_info", "What was measured, with what: always 1.", [(_info(report), 1)]),
        )
    )


def _verdict(report: RunReport) -> Iterator[str]:
    if (verdict := report.verdict) is None:
        return
    words = "0 pass, 1 warn, 2 fail, 3 no reference"
    yield gauge(
        "egmctl_bench_verdict",
        f"The verdict of the run: {words}.",
        [({"profile": verdict.profile or ""}, GRADES[verdict.grade])],
    )
    yield gauge(
        "egmctl_bench_class_verdict",
        f"The verdict of a class of paths: {words}.",
        (({"case": one.case, "link": one.link, "class": one.path_class}, GRADES[one.grade]) for one in verdict.classes),
    )


def _flows(report: RunReport) -> Iterator[Sample]:
    for m in _measured(report):
        for flow, summary in zip(m.flows, _of_flows(m), strict=False):
            yield _common(m) | _path(flow, (flow,)), summary.median * GB


def _of_flows(m: Measurement) -> tuple[Summary, ...]:
    """Return the bandwidth of each flow; of a loaded latency none: its flow is not what the bandwidth is of."""
    if m.latency_ns is not None:
        return ()
    return m.flows_gb_s or ((m.bandwidth_gb_s,) if m.bandwidth_gb_s is not None and len(m.flows) == 1 else ())


def _measured(report: RunReport) -> Iterator[Measurement]:
    yield from (m for m in report.measurements if m.measured)


def _common(m: Measurement) -> dict[str, object]:
    return {"case": m.case, "size_bytes": m.size_bytes}


def _path(flow: Flow, flows: Sequence[Flow]) -> dict[str, object]:
    """Return the labels of a flow; of a round trip, that of the first GPU, and both as initiators."""
    return {
        "source": flow.source.label,
        "source_memory": _memory(flow.source),
        "destination": flow.destination.label,
        "destination_memory": _memory(flow.destination),
        "initiator": ",".join(dict.fromkeys(one.initiator_label for one in flows)),
        "link": flow.route.symbol,
    }


def _memory(end: Endpoint) -> str:
    return end.memory if end.handle is None else f"{end.memory}:{end.handle}"


def _statuses(report: RunReport) -> Iterator[Sample]:
    counts = Counter(m.status for m in report.measurements)
    yield from (({"status": status.value}, counts[status]) for status in Status)


def _began(report: RunReport) -> Iterator[Sample]:
    try:
        yield {}, datetime.datetime.fromisoformat(report.started_at).timestamp()
    except ValueError:
        return


def _info(report: RunReport) -> dict[str, object]:
    return {
        "gpus": counted(gpu_name(gpu.name) for gpu in report.gpus),
        "driver": report.driver_version or "",
        "version": __version__,
    }
