"""What a shipped model assumes: the facts that its public sources leave out, as a healthy node of its kind has them.

Nothing that was assumed passes: a check that finds nothing wrong only with these facts is ``assumed``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from egmctl import files
from egmctl.facts import replay
from egmctl.files import read_toml
from egmctl.model.finding import Finding, Status
from egmctl.model.machine import Machine, OriginKind
from egmctl.model.record import Reason


def completed(machine: Machine) -> Machine | None:
    """Return a shipped model with the facts that it assumes where its sources state none; ``None`` for all others.

    The facts are those of ``profiles/machines/assumed.toml``. A fact that a model states, or that a faulty node lost,
    stays as it is.
    """
    origin = machine.origin
    if origin.kind is not OriginKind.MODELLED or origin.name not in (*replay.machine_names(), *replay.sick()):
        return None
    document = replay.document(machine)
    _complete(document, read_toml((files.machines_dir() / "assumed.toml").read_text(encoding="utf-8")))
    return replay.decode(document, f"machine {origin.name}")


def with_assumed(stated: Sequence[Finding], healthy: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings of a check on a model, with what it finds on the completed one in place of ``unknown``.

    Parameters
    ----------
    stated, healthy
        What the check finds on the model, and on the completed one. Where it finds a fault only there, or still lacks
        data, nothing is assumed: it does not know what a healthy node has.
    """
    kept = [finding for finding in stated if finding.status is not Status.UNKNOWN]
    known = {(finding.status, finding.place, finding.summary) for finding in kept}
    new = [finding for finding in healthy if (finding.status, finding.place, finding.summary) not in known]
    if any(finding.status not in (Status.PASS, Status.SKIP) for finding in new):
        return tuple(stated)
    # No evidence: these facts were not read.
    return (*kept, *(replace(finding, status=Status.ASSUMED, evidence=()) for finding in new))


def _complete(document: dict[str, Any], assumed: dict[str, Any]) -> None:
    """Add the assumed facts to a machine's document, and the sections that it does not have."""
    for section, facts in assumed.items():
        status = document["sections"].get(section)
        if document.get(section) is not None:
            _fill(document[section], facts)
        elif _is_not_stated(status and status.get("unread")) and not _is_of_items(facts):
            document[section], document["sections"][section] = facts, {"version": 1}


def _fill(value: Any, assumed: Any) -> None:
    """Add the assumed facts to a JSON value: those of ``*`` to each item of a list."""
    if isinstance(value, list) and isinstance(assumed, dict):
        for item in value:
            _fill(item, assumed.get("*", {}))
    elif isinstance(value, dict) and isinstance(assumed, dict):
        for key in list(_missing(value, assumed)):
            value[key] = assumed[key]
            del value["unread"][key]
        for key in assumed.keys() & value.keys():
            _fill(value[key], assumed[key])


def _missing(record: dict[str, Any], assumed: dict[str, Any]) -> Iterator[str]:
    """Yield the assumed facts that a record does not state. A null without a reason is a value, and how many items a
    list has is not assumed."""
    unread = record.get("unread", {})
    for key, facts in assumed.items():
        if record.get(key) is None and _is_not_stated(unread.get(key)) and not _is_of_items(facts):
            yield key


def _is_of_items(facts: Any) -> bool:
    return isinstance(facts, dict) and "*" in facts


def _is_not_stated(unread: dict[str, Any] | None) -> bool:
    return unread is not None and unread.get("reason") == Reason.NOT_STATED
