"""``egmctl doctor`` as a JSON document. Schema: ``docs/schemas/doctor.schema.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from egmctl.doctor.check import Check
from egmctl.doctor.runner import Diagnosis
from egmctl.errors import ExitCode, NothingToDo
from egmctl.facts.redact import redact
from egmctl.model.codec import to_json
from egmctl.model.finding import Finding, Guard
from egmctl.model.machine import BusId, Machine
from egmctl.report.envelope import dump, envelope
from egmctl.topology.platform import platform

DOCTOR_SCHEMA = "egmctl.doctor/1"
CHECKS_SCHEMA = "egmctl.checks/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorResult:
    """The key ``result`` of the document."""

    platform: str
    """The platform in one line."""
    gpus_asked: tuple[BusId, ...] | None
    """GPUs that were named with ``--gpus``; null: none were, all count."""
    numa_asked: tuple[int, ...] | None
    """NUMA nodes that were named with ``--numa``."""
    purposes: tuple[Guard, ...]
    """What the findings are about: the words of ``--for``."""
    counts: Mapping[str, int]
    """Number of checks by status: that of a check's gravest finding."""
    findings: tuple[Finding, ...]
    """In the order of the checks."""
    strict: bool = False
    """Whether a warning is a failure."""
    machines: tuple[Machine, ...] = ()
    """The node that was checked, with pseudonyms for what is private."""


def doctor_json(diagnosis: Diagnosis) -> str:
    """Return a diagnosis as a JSON document."""
    result = DoctorResult(
        platform=platform(diagnosis.machine).line,
        gpus_asked=diagnosis.scope.gpus,
        numa_asked=diagnosis.scope.numa,
        purposes=diagnosis.scope.purposes or tuple(Guard),
        counts={status.value: number for status, number in diagnosis.counts.items()},
        findings=diagnosis.findings,
        strict=diagnosis.strict,
        machines=(redact(diagnosis.machine),),
    )
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
