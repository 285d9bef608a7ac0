"""Results as metrics for the textfile collector of Prometheus' node_exporter."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from egmctl import __version__
from egmctl.model.answer import Answer, State
from egmctl.model.bringup import Bringup
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Finding, PlaceKind, Status
from egmctl.model.machine import TrafficSample
from egmctl.model.measurement import Measurement, MeasurementStatus, RunReport
from egmctl.model.nccl import NcclRun, NcclStatus
from egmctl.model.task import Axis, Endpoint, Flow
from egmctl.model.verdict import Grade
from egmctl.units import GB, counted, gpu_name, grouped, printable

MetricSample = tuple[Mapping[str, object], float]
"""The labels and the value of a sample."""
_STATES = {Status.PASS: 0, Status.NOTE: 0, Status.WARN: 1, Status.FAIL: 2, Status.UNKNOWN: 3, Status.ASSUMED: 3}
"""The metric values by status, numbered as in Nagios. A note is not a fault; what a model assumes was not read. A
skipped check has no sample."""
_MEANING = "0 pass, 1 warn, 2 fail, 3 unknown."
_GRADES = {Grade.PASS: 0, Grade.WARN: 1, Grade.FAIL: 2, Grade.NO_REFERENCE: 3}
_GRADE_MEANING = "0 pass, 1 warn, 2 fail, 3 no reference."
_NS = 1e-9


def doctor_prom(diagnosis: Diagnosis) -> str:
    """Return the metrics of a diagnosis. Each check has a series for every GPU, whatever the GPU's state."""
    return _answer("doctor", diagnosis.answer) + _doctor(diagnosis)


def _answer(command: str, answer: Answer) -> str:
    """Return the metrics of an answer. There is one series per possible state; that of the actual one is 1."""
    states = [({"command": command, "state": state.value}, float(state is answer.state)) for state in State]
    return _gauge("egmctl_answer", "1 for the state that the command answers.", states) + _gauge(
        "egmctl_exit_code", "What the command ended with; 0 is fine.", [({"command": command}, answer.exit_code)]
    )


def _doctor(diagnosis: Diagnosis) -> str:
    checks = grouped((finding.check, finding) for finding in diagnosis.findings if finding.status in _STATES)
    nodes = (({"check": check}, _worst(findings)) for check, findings in checks.items())
    gpus = (
        (
            {"check": check, "gpu": f"GPU{gpu.index}", "bus_id": gpu.bus_id},
            _worst(finding for finding in findings if _is_about(finding, gpu.bus_id)),
        )
        for check, findings in checks.items()
        for gpu in diagnosis.machine.gpus or ()
    )
    of_gpu = f"What a check says of one GPU: what it says of the whole node, unless it names GPUs: {_MEANING}"
    counts = (({"status": status}, number) for status, number in diagnosis.counts.items())
    return (
        _gauge("egmctl_doctor_check", f"What a check of egmctl doctor says of the node: {_MEANING}", nodes)
        + _gauge("egmctl_doctor_gpu_check", of_gpu, gpus)
        + _gauge("egmctl_doctor_findings", "Number of checks of egmctl doctor by what they say.", counts)
    )


def _is_about(finding: Finding, bus_id: str) -> bool:
    gpus = finding.place.gpus
    return finding.place.kind is PlaceKind.NODE if gpus is None else bus_id in gpus


def _worst(findings: Iterable[Finding]) -> int:
    """Return the most severe state; without findings, it is that of ``pass``."""
    return max((_STATES[finding.status] for finding in findings), default=_STATES[Status.PASS])


def bench_prom(report: RunReport) -> str:
    """Return the metrics of a run."""
    return _answer("bench", report.answer) + _bench(report)


def _bench(report: RunReport) -> str:
    measured = [m for m in report.measurements if m.measured]
    metrics = (*_rates(measured), *_by_nccl(report.nccl), *_outcome(report))
    return "".join(_gauge(f"egmctl_bench_{name}", meaning, samples) for name, meaning, samples in metrics)


_Metric = tuple[str, str, Iterable[MetricSample]]
"""The suffix of a metric's name, its help text, and its samples."""


def _rates(measured: Sequence[Measurement]) -> Iterator[_Metric]:
    meaning = "Median bandwidth of one flow, while all flows of its measurement run."
    yield "bandwidth_bytes_per_second", meaning, _flows(measured)
    together = [(m, m.bandwidth_gb_s) for m in measured if m.bandwidth_gb_s is not None and len(m.flows) > 1]
    totals = ((_common(m) | {"path": m.path}, summary.median * GB) for m, summary in together)
    yield "total_bandwidth_bytes_per_second", "Median bandwidth of several flows together.", totals
    latencies = ((_path(m, m.flows), m.latency_ns.median * _NS) for m in measured if m.latency_ns is not None)
    yield "latency_seconds", "Median latency: of one load, or of one round trip.", latencies
    stages = ((m, stage) for m in measured for stage in m.stages)
    durations = ((_path(m, m.flows) | {"stage": stage.name}, stage.ms.median / 1000) for m, stage in stages)
    yield "stage_seconds", "Median duration of a stage of a handle's life cycle.", durations


def _by_nccl(nccl: NcclRun | None) -> Iterator[_Metric]:
    if nccl is None:
        return
    size_bytes, gpus = nccl.plan.size_bytes, ",".join(nccl.plan.labels)
    # Wrong values have no bandwidth, as a path with corrupt data has none.
    right = [result for result in nccl.results if result.verified is not False]
    rates = (
        ({"collective": result.name, "size_bytes": size_bytes, "gpus": gpus}, result.bus_gb_s * GB) for result in right
    )
    meaning = "Bus bandwidth of a collective of NCCL, as nccl-tests counts it."
    yield "nccl_bus_bandwidth_bytes_per_second", meaning, rates
    statuses = (({"status": status.value}, float(status is nccl.status)) for status in NcclStatus)
    yield "nccl_status", "1 for how NCCL's measurement ended.", statuses
    program = "" if nccl.plan.program is None else nccl.plan.program.value
    info = {
        "nccl": nccl.versions.get("nccl", ""),
        "program": program,
        "nvls": "allowed" if nccl.plan.nvls else "off",
        "transports": ",".join(sorted(nccl.transports)),
    }
    yield "nccl_info", "What NCCL was, and the transports that it chose: always 1.", [(info, 1)]


def _outcome(report: RunReport) -> Iterator[_Metric]:
    counts = Counter(m.status for m in report.measurements)
    statuses = (({"status": status.value}, counts[status]) for status in MeasurementStatus)
    yield "measurements", "Number of measurements by how they ended.", statuses
    if (verdict := report.verdict) is not None:
        classes = (
            ({"case": judged.case, "link": judged.link, "class": judged.path_class}, _GRADES[judged.grade])
            for judged in verdict.classes
        )
        yield "class_verdict", f"The verdict of a class of paths: {_GRADE_MEANING}", classes
    yield "duration_seconds", "How long the run took.", [({}, report.wall_s)]
    yield "start_timestamp_seconds", "When the run began, seconds since 1970 UTC.", _began(report)
    gpus = counted(gpu_name(gpu.name) for gpu in report.gpus)
    info = {"gpus": gpus, "driver": report.driver_version or "", "version": __version__}
    yield "info", "What was measured, with what: always 1.", [(info, 1)]


def bringup_prom(bringup: Bringup) -> str:
    """Return the metrics of a bring-up: its answer, and those of doctor and of the bench without their answers."""
    run = "" if bringup.run is None else _bench(bringup.run)
    return _answer("bringup", bringup.answer) + _doctor(bringup.diagnosis) + run


def watch_prom(sample: TrafficSample) -> str:
    """Return the metrics of a sample of traffic. What could not be read has no series."""
    gpus = [(gpu, {"gpu": f"GPU{gpu.index}", "bus_id": gpu.bus_id}) for gpu in sample.gpus]
    links = [(labels | {"link": kind}, link) for gpu, labels in gpus for kind, link in gpu.links.items() if link]
    rates = [
        (labels | {"direction": way}, rate * GB)
        for labels, link in links
        for way, rate in (("sent", link.sent_gb_s), ("received", link.received_gb_s))
    ]
    most = [(labels, link.rate_gb_s * GB) for labels, link in links if link.rate_gb_s is not None]
    busy = [(labels, gpu.busy_percent / 100) for gpu, labels in gpus if gpu.busy_percent is not None]
    used = [(labels, gpu.memory_used_bytes) for gpu, labels in gpus if gpu.memory_used_bytes is not None]
    total = [(labels, gpu.memory_total_bytes) for gpu, labels in gpus if gpu.memory_total_bytes is not None]
    lost = [(labels, float(gpu.lost)) for gpu, labels in gpus if gpu.lost is not None]
    traffic = (
        "Traffic of a GPU's links of one kind, of all processes: an average over the interval; of PCIe over 20 ms."
    )
    return (
        _gauge("egmctl_watch_link_bytes_per_second", traffic, rates)
        + _gauge("egmctl_watch_link_rate_bytes_per_second", "The links' nominal rate in one direction.", most)
        + _gauge("egmctl_watch_gpu_busy_ratio", "The part of the time in which a kernel ran.", busy)
        + _gauge("egmctl_watch_gpu_memory_used_bytes", "The GPU's memory in use.", used)
        + _gauge("egmctl_watch_gpu_memory_bytes", "The GPU's memory.", total)
        + _gauge("egmctl_watch_gpu_lost", "Whether the driver has lost the GPU or wants it reset.", lost)
    )


def _flows(measured: Iterable[Measurement]) -> Iterator[MetricSample]:
    for m in measured:
        # The bandwidth of a loaded latency is that of the load and not of its flow.
        alone = (m.bandwidth_gb_s,) if m.bandwidth_gb_s is not None and len(m.flows) == 1 else ()
        summaries = (m.flows_gb_s or alone) if m.latency_ns is None else ()
        for flow, summary in zip(m.flows, summaries, strict=False):
            yield _path(m, (flow,)), summary.median * GB


def _common(m: Measurement) -> dict[str, object]:
    points = {axis.value: value for axis in Axis if axis is not Axis.SIZE and (value := m.point.at(axis)) is not None}
    return {"case": m.case, **points, "size_bytes": m.size_bytes}


def _path(m: Measurement, flows: Sequence[Flow]) -> dict[str, object]:
    """Return the labels of the first flow, with the initiators of all; a round trip has two flows."""
    flow = flows[0]
    return _common(m) | {
        "source": flow.source.label,
        "source_memory": _memory(flow.source),
        "destination": flow.destination.label,
        "destination_memory": _memory(flow.destination),
        "initiator": ",".join(dict.fromkeys(each.initiator_label for each in flows)),
        "link": flow.route.symbol,
    }


def _memory(end: Endpoint) -> str:
    return end.memory if end.handle is None else f"{end.memory}:{end.handle}"


def _began(report: RunReport) -> Iterator[MetricSample]:
    try:
        yield {}, datetime.datetime.fromisoformat(report.started_at).timestamp()
    except ValueError:
        return


def _gauge(name: str, meaning: str, samples: Iterable[MetricSample]) -> str:
    """Return a metric with its samples, or an empty string if it has none.

    Parameters
    ----------
    name
        The metric's name, which ends in its base unit: ``_seconds``, ``_bytes_per_second``.
    """
    lines = [f"{name}{_labels(labels)} {value:.12g}\n" for labels, value in samples]
    return f"# HELP {name} {meaning}\n# TYPE {name} gauge\n{''.join(lines)}" if lines else ""


def _labels(labels: Mapping[str, object]) -> str:
    shown = (f'{name}="{_value(str(value))}"' for name, value in labels.items())
    return f"{{{','.join(shown)}}}" if labels else ""


def _value(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')
