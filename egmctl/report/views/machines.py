"""The list of machines that ship with the tool, for ``--machine list``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from egmctl.errors import ExitCode
from egmctl.model.codec import to_json
from egmctl.model.listing import MACHINES_SCHEMA, MachineList, ShippedMachine
from egmctl.model.machine import Machine
from egmctl.report.document import Document, Entry, Paragraph, Tone
from egmctl.report.exports.csv_text import csv_text
from egmctl.report.exports.json import dump, envelope
from egmctl.topology.platform import platform


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
    body = to_json(MachineList(machines=tuple(map(_row, machines))))
    return dump(envelope(MACHINES_SCHEMA, ExitCode.OK, body, machine=None))


def machines_csv(machines: Sequence[Machine]) -> str:
    """Return the list as CSV."""
    columns = tuple(field.name for field in fields(ShippedMachine))
    return csv_text(columns, (to_json(_row(machine)) for machine in machines))


def _row(machine: Machine) -> ShippedMachine:
    origin = machine.origin
    return ShippedMachine(
        name=origin.name, origin=origin.kind, platform=platform(machine).line, description=origin.description
    )
