"""Results as JSON: the one envelope that every command answers in, success or failure (``docs/json.md``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from egmctl import __version__
from egmctl.errors import EgmctlError, ExitCode, NothingToDo
from egmctl.facts.redact import redact
from egmctl.model.codec import to_json
from egmctl.model.machine import Machine, Origin

if TYPE_CHECKING:
    from egmctl.model.bringup import Bringup
    from egmctl.model.comparison import Comparison
    from egmctl.model.diagnosis import Diagnosis
    from egmctl.model.fleet import FleetReport
    from egmctl.model.listing import CheckList, History, MachineList
    from egmctl.model.measurement import RunReport
    from egmctl.model.planned import CaseList, JobCost, PlanReport
    from egmctl.model.profile import MatchResult, ProfileList
    from egmctl.topology.topology import Topology

    Lists = History | ProfileList | MachineList | CheckList | CaseList
    Plain = Comparison | FleetReport | MatchResult | Lists | PlanReport | JobCost


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
    stated = {"code", "exit_code"}
    details = {name: value for name, value in vars(error).items() if name not in stated and not name.startswith("_")}
    return {"code": error.code, "message": str(error), "details": to_json(details)}


def dump(document: dict[str, Any]) -> str:
    """Write a document as JSON text: ASCII, indented, one newline at the end.

    Raises
    ------
    ValueError
        For NaN or infinity, which JSON has no number for.
    """
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def node_json(result: Topology | Diagnosis) -> str:
    """Return what was judged of a machine as a JSON document, with an error where nothing could be."""
    body = to_json(replace(result, machines=(redact(result.machine),)))
    errors = [] if result.nothing is None else [NothingToDo(result.nothing)]
    return dump(envelope(result.SCHEMA, result.exit_code, body, machine=result.machine, errors=errors))


def bringup_json(bringup: Bringup) -> str:
    """Return a node's bring-up as a JSON document."""
    diagnosis = replace(bringup.diagnosis, machines=(redact(bringup.machine),))
    body = to_json(replace(bringup, diagnosis=diagnosis))
    return dump(envelope(bringup.SCHEMA, bringup.exit_code, body, machine=bringup.machine))


def bench_json(report: RunReport) -> str:
    """Return a run of the bench as a JSON document: every sample, null with the reason beside it."""
    machine = next(iter(report.machines), None)
    return dump(envelope(report.SCHEMA, report.exit_code, to_json(report), machine=machine))


def plain_json(result: Plain) -> str:
    """Return a result that holds no machine as a JSON document; the envelope's ``machine`` is its origin, or null."""
    code = getattr(result, "exit_code", ExitCode.OK)
    return dump(envelope(result.SCHEMA, code, to_json(result), machine=getattr(result, "origin", None)))
