"""Loads and writes JSON documents of results. Loading imports every kind of result, so it is not in ``machine``."""

from __future__ import annotations

from egmctl.facts import redact
from egmctl.facts import replay as record
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.explanation import Explanations
from egmctl.model.machine import Machine
from egmctl.model.measurement import RunReport
from egmctl.report.kinds import Format, render
from egmctl.saved import load as load_result
from egmctl.topology.topology import Topology
from egmctl.verdict.answers import answered

__all__ = ["load_result", "redact_run", "to_json"]


def redact_run(report: RunReport, machine: Machine | None) -> RunReport:
    """Return a run with pseudonyms for private data, and its answer with the same.

    Parameters
    ----------
    machine
        The live machine, whose private names the run's sentences may contain; ``None`` if it is not available.
    """
    return answered(redact.redact_run(report, machine))


def to_json(result: Machine | Topology | Diagnosis | Explanations | RunReport) -> str:
    """Return the JSON document of a result, with its schema, as the command's ``--json`` prints it (docs/json.md).

    :func:`load_result` reads it back. A live machine and its results contain real names and UUIDs, unless they were
    made with ``redacted``; redact a run with ``egmctl.redact_run(report, machine)``.
    """
    return record.text(result) if isinstance(result, Machine) else str(render(result, Format.JSON))
