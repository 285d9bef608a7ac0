"""``egmctl doctor`` as a JSON document. Schema: ``docs/schemas/doctor.schema.json``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from egmctl.doctor.check import Check
from egmctl.errors import ExitCode, NothingToDo
from egmctl.facts.redact import redact
from egmctl.model.codec import to_json
from egmctl.model.diagnosis import DOCTOR_SCHEMA, Diagnosis
from egmctl.report.envelope import dump, envelope

CHECKS_SCHEMA = "egmctl.checks/1"


def doctor_json(diagnosis: Diagnosis) -> str:
    """Return a diagnosis as a JSON document."""
    result = replace(diagnosis, machines=(redact(diagnosis.machine),))
    errors = [] if diagnosis.nothing is None else [NothingToDo(diagnosis.nothing)]
    code = diagnosis.exit_code
    return dump(envelope(DOCTOR_SCHEMA, code, to_json(result), machine=diagnosis.machine, errors=errors))


def checks_json(checks: Iterable[Check]) -> str:
    """Return the list of checks as a JSON document."""
    rows = [
        {
            "id": check.id,
            "title": check.title,
            "guards": list(check.guards),
            "sections": list(check.sections),
            "why": check.why,
            "read": check.read,
            "fix": check.fix,
        }
        for check in checks
    ]
    return dump(envelope(CHECKS_SCHEMA, ExitCode.OK, to_json({"checks": rows}), machine=None))
