"""The list of machines that ship with the tool, for ``--machine list``."""

from __future__ import annotations

from collections.abc import Sequence

from egmctl.errors import ExitCode
from egmctl.model.machine import Machine
from egmctl.report.document import Document, Entry, Paragraph, Tone
from egmctl.report.exports.csv_text import csv_text
from egmctl.report.exports.json import dump, envelope
from egmctl.topology.platform import platform

MACHINES_SCHEMA = "egmctl.machines/1"
_COLUMNS = ("name", "origin", "platform", "description")


def machines_document(machines: Sequence[Machine]) -> Document:
    """Return each machine's name, whether it was recorded or modelled, and what it is."""
    return Document(
        command="egmctl topo --machine list",
        subject=f"{len(machines)} machines",
        body=tuple(map(_entry, machines)),
    )


def _entry(machine: Machine) -> Entry:
    origin = machine.origin
    about = (Paragraph(words=origin.description, tone=Tone.DIM),) if origin.description else ()
    return Entry(word=origin.name, tone=Tone.STRONG, title=f"{origin.kind.value}: {platform(machine).line}", body=about)


def machines_json(machines: Sequence[Machine]) -> str:
    """Return the list as a JSON document."""
    rows = [dict(zip(_COLUMNS, _row(machine), strict=True)) for machine in machines]
    return dump(envelope(MACHINES_SCHEMA, ExitCode.OK, {"machines": rows}, machine=None))


def machines_csv(machines: Sequence[Machine]) -> str:
    """Return the list as CSV."""
    return csv_text(_COLUMNS, (dict(zip(_COLUMNS, _row(machine), strict=True)) for machine in machines))


def _row(machine: Machine) -> tuple[str, ...]:
    return machine.origin.name, machine.origin.kind.value, platform(machine).line, machine.origin.description
