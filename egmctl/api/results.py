"""Loads and writes JSON documents of results. Loading imports every kind of result, so it is not in ``machine``."""

from __future__ import annotations

from egmctl.facts import replay as record
from egmctl.facts.redact import redact_run
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.explanation import Explanations
from egmctl.model.machine import Machine
from egmctl.model.measurement import RunReport
from egmctl.report.kinds import Format, render
from egmctl.saved import load as load_result
from egmctl.topology.topology import Topology

__all__ = ["load_result", "redact_run", "to_json"]


def to_json(result: Machine | Topology | Diagnosis | Explanations | RunReport) -> str:
    """Return the JSON document of a result, with its schema, as the command's ``--json`` prints it (docs/json.md).

    :func:`load_result` reads it back. A live machine and its results contain real names and UUIDs, unless they were
    made with ``redacted``; redact a run with ``egmctl.redact_run(report, machine)``.
    """
    return record.text(result) if isinstance(result, Machine) else str(render(result, Format.JSON))
