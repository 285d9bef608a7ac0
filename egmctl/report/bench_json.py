"""A run of the bench as one JSON document: ``egmctl.bench/2``, every sample, null with the reason beside it."""

from __future__ import annotations

from typing import Any

from egmctl.model.codec import to_json
from egmctl.model.machine import Machine
from egmctl.model.measurement import BENCH_SCHEMA, RunReport
from egmctl.report.exports.json import dump, envelope


def bench_json(report: RunReport, machine: Machine | None) -> str:
    """Return the document's text."""
    body: dict[str, Any] = to_json(report)
    return dump(envelope(BENCH_SCHEMA, report.exit_code, body, machine=machine))
