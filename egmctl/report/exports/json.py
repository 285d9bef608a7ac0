"""Results as JSON: the one envelope that every command answers in, success or failure (``docs/json.md``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from egmctl import __version__
from egmctl.errors import EgmctlError, ExitCode, NothingToDo
from egmctl.facts.redact import redact
from egmctl.model.codec import to_json
from egmctl.model.machine import Machine, Origin


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


def result_json(result: Any) -> str:
    """Return any result of :mod:`egmctl.report.kinds` as a JSON document.

    The machine of a diagnosis or a topology has pseudonyms for what is private. Where nothing could be determined,
    ``errors`` says why.
    """
    machine = getattr(result, "machine", None) or next(iter(getattr(result, "machines", ())), None)
    body = result
    if hasattr(result, "diagnosis"):
        body = replace(result, diagnosis=replace(result.diagnosis, machines=(redact(result.machine),)))
    elif hasattr(result, "machine"):
        body = replace(result, machines=(redact(result.machine),))
    origin = machine if isinstance(machine, Machine) else getattr(result, "origin", None)
    nothing = getattr(result, "nothing", None)
    errors = [] if nothing is None else [NothingToDo(nothing)]
    code = getattr(result, "exit_code", ExitCode.OK)
    return dump(envelope(result.SCHEMA, code, to_json(body), machine=origin, errors=errors))
