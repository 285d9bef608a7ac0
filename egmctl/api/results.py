"""Loads and writes JSON documents of results. Loading imports every kind of result, so it is not in ``machine``."""

from __future__ import annotations

import os
from typing import TypeVar, overload

from egmctl.errors import UsageError
from egmctl.facts import redact
from egmctl.facts.replay import machine_text
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.explanation import Explanations
from egmctl.model.machine import Machine
from egmctl.model.measurement import RunReport
from egmctl.report.kinds import Format, render
from egmctl.saved import Digest, Result, Saved, load, load_any
from egmctl.topology.topology import Topology
from egmctl.verdict.answers import answered

__all__ = ["load_result", "redact_run", "to_json"]

R = TypeVar("R", bound=Result | Digest)


@overload
def load_result(path: str | os.PathLike[str]) -> Saved: ...
@overload
def load_result(path: str | os.PathLike[str], kind: type[R]) -> R: ...
def load_result(path: str | os.PathLike[str], kind: type[R] | None = None) -> Saved | R:
    """Load a file of ``egmctl bench``, ``doctor``, ``bringup``, ``topo`` or ``snapshot``, or the journal of a bench.

    Parameters
    ----------
    kind
        The class of the result that the file must contain, of any command: ``egmctl.RunReport``. The result itself is
        then returned; without it, a :class:`egmctl.Saved` that says what was found.

    Raises
    ------
    UsageError
        The file cannot be read, or contains no result or one of another kind. The message names the file and the
        invalid part.
    """
    if kind is None:
        return load(path)
    saved = load_any(path)
    if saved.result is None:
        raise UsageError(f"file {saved.path} holds no {kind.__name__}: {saved.failure}")
    if not isinstance(saved.result, kind):
        raise UsageError(f"file {saved.path} holds a {type(saved.result).__name__}, not a {kind.__name__}")
    return saved.result


def redact_run(report: RunReport, machine: Machine | None) -> RunReport:
    """Return a run with pseudonyms for private data, and its answer with the same.

    Parameters
    ----------
    machine
        The live machine, whose private names the run's sentences may contain; ``None`` if it is not available.
    """
    return answered(redact.redact_report(report, machine))


def to_json(result: Machine | Topology | Diagnosis | Explanations | RunReport) -> str:
    """Return the JSON document of a result, with its schema, as the command's ``--json`` prints it (docs/json.md).

    :func:`load_result` reads it back. A live machine and its results contain real names and UUIDs, unless they were
    made with ``redacted``; redact a run with ``egmctl.redact_run(report, machine)``.
    """
    return machine_text(result) if isinstance(result, Machine) else str(render(result, Format.JSON))
