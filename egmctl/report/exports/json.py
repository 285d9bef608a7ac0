"""Results as JSON: the envelope that every command prints, on success and on failure (``docs/json.md``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from egmctl import __version__
from egmctl.documents import encode, indented
from egmctl.errors import EgmctlError, NothingToDo
from egmctl.facts.redact import redact
from egmctl.model.answer import Answer
from egmctl.model.codec import to_json
from egmctl.model.machine import Machine, Origin


def envelope(
    schema: str,
    exit_code: int,
    body: dict[str, Any] | None,
    *,
    machine: Machine | Origin | None,
    errors: Sequence[EgmctlError] = (),
    answer: Answer | None = None,
) -> dict[str, Any]:
    """Return the envelope with a command's result.

    Parameters
    ----------
    schema
        The schema of ``body``, e.g. ``"egmctl.topo/2"``.
    exit_code
        The exit code of the command (``docs/exit-codes.md``).
    body
        The result as JSON data; ``None`` if there is none.
    machine
        The machine, or its origin. The envelope contains only the origin: live, recorded or modelled.
    errors
        The errors of the command.
    answer
        The answer of the result; ``None`` for a list, and if there is no result.
    """
    return {
        "schema": schema,
        "tool": f"egmctl {__version__}",
        "exit_code": int(exit_code),
        "answer": to_json(answer),
        "machine": to_json(machine.origin if isinstance(machine, Machine) else machine),
        "errors": [error_entry(error) for error in errors],
        "result": body,
    }


def error_entry(error: EgmctlError) -> dict[str, Any]:
    """Return an entry of the envelope's ``errors``: a stable code, the message, and the error's public attributes."""
    stated = {"code", "exit_code"}
    details = {name: value for name, value in vars(error).items() if name not in stated and not name.startswith("_")}
    return {"code": error.code, "message": str(error), "details": to_json(details)}


def dump(document: dict[str, Any], indent: int | None = 2) -> str:
    """Return a document as JSON text: ASCII, indented or (``None``) in one line, with a final newline.

    Raises
    ------
    ValueError
        The document contains NaN or infinity, which JSON cannot represent.
    """
    text = encode(document) if indent is None else indented(document, indent * " ")
    return text + "\n"


def result_json(result: Any, indent: int | None = 2) -> str:
    """Return any result of :mod:`egmctl.report.kinds` as a JSON document.

    Private values of a machine in the result are replaced by pseudonyms. If nothing could be determined, ``errors``
    contains the reason.
    """
    machine = getattr(result, "machine", None) or next(iter(getattr(result, "machines", ())), None)
    body = result
    if hasattr(result, "diagnosis"):
        body = replace(result, diagnosis=replace(result.diagnosis, machines=(redact(result.machine),)))
    elif hasattr(result, "machine"):
        body = replace(result, machines=(redact(result.machine),))
    origin = machine if isinstance(machine, Machine) else getattr(result, "origin", None)
    answer = getattr(result, "answer", None)
    nothing = None if answer is None else answer.nothing
    errors = [] if nothing is None else [NothingToDo(nothing)]
    code = 0 if answer is None else answer.exit_code
    written = {name: value for name, value in to_json(body).items() if name != "answer"}
    return dump(envelope(result.SCHEMA, code, written, machine=origin, errors=errors, answer=answer), indent)
