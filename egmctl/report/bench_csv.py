"""A run of the bench as CSV: tidy, one row a measurement, empty where there is no value."""

from __future__ import annotations

import csv
import io

from egmctl.model.measurement import Measurement, RunReport
from egmctl.units import printable

COLUMNS = (
    "case",
    "source",
    "source_memory",
    "destination",
    "destination_memory",
    "initiator",
    "initiator_bus_id",
    "initiator_name",
    "engine",
    "pattern",
    "wire",
    "egm",
    "size_bytes",
    "copies",
    "samples",
    "median_gb_s",
    "min_gb_s",
    "max_gb_s",
    "cv",
    "counted",
    "gating",
    "verification",
    "status",
    "reason",
)
"""The columns, in order. New ones are added at the end."""


def bench_csv(report: RunReport) -> str:
    """Return the table's text."""
    names = {gpu.bus_id: gpu.name for gpu in report.gpus}
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for measurement in report.measurements:
        writer.writerow(_row(measurement, names.get(measurement.initiator)))
    return text.getvalue()


def _row(measurement: Measurement, name: str | None) -> dict[str, object]:
    bandwidth = measurement.bandwidth_gb_s
    return {
        "case": measurement.case,
        "source": measurement.source.label,
        "source_memory": measurement.source.memory,
        "destination": measurement.destination.label,
        "destination_memory": measurement.destination.memory,
        "initiator": measurement.initiator_label,
        "initiator_bus_id": measurement.initiator,
        "initiator_name": printable(name or ""),
        "engine": measurement.engine,
        "pattern": measurement.pattern,
        "wire": printable(measurement.wire),
        "egm": "" if measurement.egm is None else str(measurement.egm).lower(),
        "size_bytes": measurement.size_bytes,
        "copies": measurement.copies,
        "samples": len(measurement.samples),
        "median_gb_s": bandwidth and bandwidth.median,
        "min_gb_s": bandwidth and bandwidth.min,
        "max_gb_s": bandwidth and bandwidth.max,
        "cv": bandwidth and bandwidth.cv,
        "counted": measurement.counted,
        "gating": measurement.gating,
        "verification": measurement.verification,
        "status": measurement.status,
        "reason": printable(measurement.reason or ""),
    }
