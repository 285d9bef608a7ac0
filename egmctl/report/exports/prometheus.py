"""Results as metrics for the textfile collector of Prometheus' node_exporter."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from egmctl import __version__
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Finding, PlaceKind, Status
from egmctl.model.measurement import Endpoint, Flow, Measurement, RunReport, Summary
from egmctl.model.measurement import Status as MeasurementStatus
from egmctl.model.task import Axis
from egmctl.model.verdict import Grade
from egmctl.units import GB, counted, gpu_name, printable

Sample = tuple[Mapping[str, object], float]
"""Labels and value."""


STATES = {Status.PASS: 0, Status.NOTE: 0, Status.WARN: 1, Status.FAIL: 2, Status.UNKNOWN: 3}
"""Nagios' numbers; a note is no fault. A skipped check has no sample."""


def doctor_prom(diagnosis: Diagnosis) -> str:
    """Return the metrics of a diagnosis; which series there are does not depend on the state of any GPU."""
    findings = [finding for finding in diagnosis.findings if finding.status in STATES]
    checks = dict.fromkeys(finding.check for finding in findings)
    counts = [({"status": status}, number) for status, number in diagnosis.counts.items()]
    meaning = "0 pass, 1 warn, 2 fail, 3 unknown."
    return "".join(
        (
            gauge(
                "egmctl_doctor_check",
                f"What a check of egmctl doctor says of the node: {meaning}",
                [({"check": check}, _worst(one for one in findings if one.check == check)) for check in checks],
            ),
            gauge(
                "egmctl_doctor_gpu_check",
                f"What a check says of one GPU: what it says of the whole node, unless it names GPUs: {meaning}",
                _by_gpu(diagnosis, findings),
            ),
            gauge("egmctl_doctor_findings", "Number of checks of egmctl doctor by what they say.", counts),
        )
    )


def _by_gpu(diagnosis: Diagnosis, findings: list[Finding]) -> Iterator[Sample]:
    for check in dict.fromkeys(finding.check for finding in findings):
        those = [finding for finding in findings if finding.check == check]
        for gpu in diagnosis.machine.gpus or ():
            about = [one for one in those if _is_about(one, gpu.bus_id)]
            # A check names what it has something against: of the others it says nothing.
            value = _worst(about) if about else STATES[Status.PASS]
            yield {"check": check, "gpu": f"GPU{gpu.index}", "bus_id": gpu.bus_id}, value


def _is_about(finding: Finding, bus_id: str) -> bool:
    match finding.place.kind:
        case PlaceKind.GPU:
            return bus_id in finding.place.ids
        case PlaceKind.PAIR:
            return any(bus_id in pair.split(">") for pair in finding.place.ids)
        case PlaceKind.NODE:
            return True
        case _:
            return False


def _worst(findings: Iterable[Finding]) -> int:
    return max(STATES[finding.status] for finding in findings)


def gauge(name: str, help_text: str, samples: Iterable[Sample]) -> str:
    """Return a metric with its samples; nothing of no samples.

    Parameters
    ----------
    name
        With its unit, a base unit, at its end: ``_seconds``, ``_bytes_per_second``.
    """
    lines = [f"{name}{_labels(labels)} {_number(value)}\n" for labels, value in samples]
    if not lines:
        return ""
    return f"# HELP {name} {_help(help_text)}\n# TYPE {name} gauge\n{''.join(lines)}"


def _labels(labels: Mapping[str, object]) -> str:
    shown = (f'{name}="{_value(str(value))}"' for name, value in labels.items())
    return f"{{{','.join(shown)}}}" if labels else ""


def _value(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    return f"{value:.12g}"


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
    points = {axis.value: value for axis in Axis if axis is not Axis.SIZE and (value := m.point.at(axis)) is not None}
    return {"case": m.case, **points, "size_bytes": m.size_bytes}


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
    yield from (({"status": status.value}, counts[status]) for status in MeasurementStatus)


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
