"""A run of the bench as CSV: tidy, one row per flow, empty where there is no value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from egmctl.model.measurement import Flow, Measurement, RunReport, Summary
from egmctl.model.verdict import Judgement, Yardstick
from egmctl.report.exports.csv_text import csv_text

COLUMNS = (
    "case",
    "family",
    "quantity",
    "flow",
    "source",
    "source_memory",
    "destination",
    "destination_memory",
    "initiator",
    "initiator_bus_id",
    "initiator_name",
    "engine",
    "pattern",
    "link",
    "egm",
    "size_bytes",
    "copies",
    "streams",
    "blocks",
    "samples",
    "unit",
    "median",
    "min",
    "max",
    "cv",
    "counted",
    "concurrent",
    "gating",
    "verification",
    "status",
    "reason",
    "verdict_profile",
    "verdict_link",
    "verdict_peers",
    "typical",
    "source_rank",
    "destination_rank",
    "initiator_rank",
    "handle",
    "in_process",
    "stage",
)
"""The columns, in order. New ones are added at the end."""


def bench_csv(report: RunReport) -> str:
    """Return the table's text.

    A row for each flow and, where there are several, one for all of them (``total``); of a life cycle, for each stage.
    """
    names = {gpu.bus_id: gpu.name for gpu in report.gpus}
    return csv_text(COLUMNS, _rows(report, names))


def _rows(report: RunReport, names: Mapping[str, str | None]) -> Iterator[dict[str, object]]:
    judged = {one.measurement: one.judgements for one in (report.verdict.judged if report.verdict else ())}
    for number, measurement in enumerate(report.measurements):
        verdict = _verdict(judged.get(number, ()))
        if len(measurement.flows) > 1:
            yield _row(measurement, "total", measurement.timed) | verdict
        for place, flow in enumerate(measurement.flows):
            summary = measurement.flows_gb_s[place] if measurement.flows_gb_s else measurement.latency_ns
            row = _row(measurement, str(place), summary) | _flow(flow, names.get(flow.initiator or ""))
            for stage in measurement.stages:
                yield row | _summary(stage.ms, "ms") | {"stage": stage.name} | verdict
            if not measurement.stages:
                yield row | verdict


def _verdict(judgements: Sequence[Judgement]) -> dict[str, object]:
    """Return what was judged of the whole measurement, in each of its rows."""
    columns: dict[str, object] = {f"verdict_{one.yardstick}": one.grade for one in judgements}
    typical = next((one.expected for one in judgements if one.yardstick is Yardstick.PROFILE), None)
    return columns | {"typical": typical}


def _row(measurement: Measurement, flow: str, summary: Summary | None) -> dict[str, object]:
    return {
        "case": measurement.case,
        "family": measurement.family,
        "quantity": measurement.quantity,
        "flow": flow,
        "engine": measurement.engine,
        "pattern": measurement.pattern,
        "size_bytes": measurement.size_bytes,
        "copies": measurement.copies,
        "streams": measurement.streams,
        "blocks": measurement.blocks,
        "samples": len(measurement.samples),
        **_summary(summary, measurement.quantity.unit),
        "in_process": measurement.in_process,
        "counted": measurement.counted,
        "concurrent": measurement.concurrent,
        "gating": measurement.gating,
        "verification": measurement.verification,
        "status": measurement.status,
        "reason": measurement.reason,
    }


def _summary(summary: Summary | None, unit: str) -> dict[str, object]:
    return {
        "unit": unit,
        "median": summary and summary.median,
        "min": summary and summary.min,
        "max": summary and summary.max,
        "cv": summary and summary.cv,
    }


def _flow(flow: Flow, name: str | None) -> dict[str, object]:
    return {
        "source": flow.source.label,
        "source_memory": flow.source.memory,
        "destination": flow.destination.label,
        "destination_memory": flow.destination.memory,
        "initiator": flow.initiator_label,
        "initiator_bus_id": flow.initiator,
        "initiator_name": name,
        "link": flow.route.symbol,
        "egm": flow.route.egm,
        "source_rank": flow.source.rank,
        "destination_rank": flow.destination.rank,
        "initiator_rank": flow.initiator_rank,
        "handle": next((end.handle for end in (flow.source, flow.destination) if end.handle is not None), None),
    }
