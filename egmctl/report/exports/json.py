"""Results as JSON: the one envelope that every command answers in, success or failure (``docs/json.md``).

A kind of result is imported where it is written: no command loads the others'.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from egmctl import __version__
from egmctl.errors import EgmctlError, ExitCode, NothingToDo
from egmctl.facts.redact import redact
from egmctl.model.codec import to_json
from egmctl.model.machine import Machine, Origin

if TYPE_CHECKING:
    from egmctl.doctor.check import Check
    from egmctl.model.bringup import Bringup
    from egmctl.model.comparison import Comparison
    from egmctl.model.diagnosis import Diagnosis
    from egmctl.model.fleet import FleetReport
    from egmctl.model.listing import CheckList, History, MachineList
    from egmctl.model.measurement import RunReport
    from egmctl.model.profile import Matched, ProfileList
    from egmctl.topology.topology import Topology


def envelope(
    schema: str,
    exit_code: int,
    body: dict[str, Any] | None,
    *,
    machine: Machine | Origin | None,
    errors: Sequence[EgmctlError] = (),
) -> dict[str, Any]:
    """Put a command's result into the envelope.

    Parameters
    ----------
    schema
        What ``body`` is, e.g. ``"egmctl.topo/2"``.
    exit_code
        The code that the command ends with, as in ``docs/exit-codes.md``.
    body
        The result, ready for JSON; ``None`` where there is none.
    machine
        The machine it is about, or its origin: the envelope says whether that was live, recorded or modelled.
    errors
        What went wrong.
    """
    return {
        "schema": schema,
        "tool": f"egmctl {__version__}",
        "exit_code": int(exit_code),
        "machine": to_json(machine.origin if isinstance(machine, Machine) else machine),
        "errors": [error_entry(error) for error in errors],
        "result": body,
    }


def error_entry(error: EgmctlError) -> dict[str, Any]:
    """Return one entry of the envelope's ``errors``: a stable word, the sentence, and what else the error knows."""
    told = {"code", "exit_code"}
    details = {name: value for name, value in vars(error).items() if name not in told and not name.startswith("_")}
    return {"code": error.code, "message": str(error), "details": to_json(details)}


def dump(document: dict[str, Any]) -> str:
    """Write a document as JSON text: ASCII, indented, one newline at the end.

    Raises
    ------
    ValueError
        For NaN or infinity, which JSON has no number for.
    """
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def topo_json(topology: Topology) -> str:
    """Return a topology as a JSON document, with an error where no matrix could be drawn."""
    from egmctl.topology.result import TOPO_SCHEMA, topo_result

    result = topo_result(topology)
    errors = [] if result.missing is None else [NothingToDo(result.missing.sentence)]
    body = to_json(replace(result, machines=(redact(topology.machine),)))
    return dump(envelope(TOPO_SCHEMA, result.exit_code, body, machine=topology.machine, errors=errors))


def doctor_json(diagnosis: Diagnosis) -> str:
    """Return a diagnosis as a JSON document."""
    from egmctl.model.diagnosis import DOCTOR_SCHEMA

    result = replace(diagnosis, machines=(redact(diagnosis.machine),))
    errors = [] if diagnosis.nothing is None else [NothingToDo(diagnosis.nothing)]
    code = diagnosis.exit_code
    return dump(envelope(DOCTOR_SCHEMA, code, to_json(result), machine=diagnosis.machine, errors=errors))


def bringup_json(bringup: Bringup) -> str:
    """Return what a node's bring-up found as a JSON document."""
    from egmctl.model.bringup import BRINGUP_SCHEMA

    kept = replace(bringup.diagnosis, machines=(redact(bringup.machine),))
    body = to_json(replace(bringup, diagnosis=kept))
    return dump(envelope(BRINGUP_SCHEMA, bringup.exit_code, body, machine=bringup.machine))


def bench_json(report: RunReport, machine: Machine | None) -> str:
    """Return a run of the bench as a JSON document: every sample, null with the reason beside it."""
    from egmctl.model.measurement import BENCH_SCHEMA

    return dump(envelope(BENCH_SCHEMA, report.exit_code, to_json(report), machine=machine))


def compare_json(comparison: Comparison) -> str:
    """Return a comparison as a JSON document."""
    from egmctl.model.comparison import COMPARISON_SCHEMA

    return dump(envelope(COMPARISON_SCHEMA, comparison.exit_code, to_json(comparison), machine=None))


def fleet_json(report: FleetReport) -> str:
    """Return a fleet's answers as a JSON document, which is ``fleet.json`` of its folder too.

    Its ``machine`` is null: each node's own file says where its facts are from.
    """
    from egmctl.model.fleet import FLEET_SCHEMA

    return dump(envelope(FLEET_SCHEMA, report.exit_code, to_json(report), machine=None))


def history_json(history: History) -> str:
    """Return the runs that are kept as a JSON document."""
    from egmctl.model.listing import HISTORY_SCHEMA

    return dump(envelope(HISTORY_SCHEMA, ExitCode.OK, to_json(history), machine=None))


def profiles_json(profiles: ProfileList) -> str:
    """Return profiles as a JSON document."""
    from egmctl.model.profile import PROFILES_SCHEMA

    return dump(envelope(PROFILES_SCHEMA, ExitCode.OK, to_json(profiles), machine=None))


def match_json(matched: Matched) -> str:
    """Return which profile a machine is of as a JSON document."""
    from egmctl.model.profile import MATCH_SCHEMA

    code = ExitCode.OK if matched.result.profile is not None else ExitCode.NOTHING
    return dump(envelope(MATCH_SCHEMA, code, to_json(matched.result), machine=matched.origin))


def machines_json(listed: MachineList) -> str:
    """Return the list of shipped machines as a JSON document."""
    from egmctl.model.listing import MACHINES_SCHEMA

    return dump(envelope(MACHINES_SCHEMA, ExitCode.OK, to_json(listed), machine=None))


def checks_json(checks: CheckList) -> str:
    """Return the list of checks as a JSON document."""
    from egmctl.model.listing import CHECKS_SCHEMA

    return dump(envelope(CHECKS_SCHEMA, ExitCode.OK, to_json(checks), machine=None))


def check_list(checks: Iterable[Check]) -> CheckList:
    """Return what the list says of checks."""
    from egmctl.model.listing import CheckEntry, CheckList

    rows = tuple(
        CheckEntry(
            id=check.id,
            title=check.title,
            guards=check.guards,
            sections=check.sections,
            why=check.why,
            read=check.read,
            fix=check.fix,
        )
        for check in checks
    )
    return CheckList(checks=rows)
