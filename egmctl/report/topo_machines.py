"""The list of machines that ship with the tool, for ``--machine list``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from egmctl.errors import ExitCode
from egmctl.model.machine import Machine
from egmctl.report.csv_text import csv_text
from egmctl.report.exports.json import dump, envelope
from egmctl.report.table import DIM, HEADING, wrap
from egmctl.topology.platform import platform
from egmctl.units import printable

MACHINES_SCHEMA = "egmctl.machines/1"


def machines_text(machines: Sequence[Machine]) -> Text:
    """Render each machine's name, whether it was recorded or modelled, and what it is."""
    text = Text()
    for machine in machines:
        origin = machine.origin
        text.append(printable(origin.name), HEADING).append(f"  {origin.kind.value}\n")
        text.append(wrap(printable(platform(machine).line)))
        if origin.description:
            text.append(wrap(printable(origin.description)), DIM)
    return text


def machines_json(machines: Sequence[Machine]) -> str:
    """Return the list as a JSON document."""
    rows = [dict(zip(_COLUMNS, _row(machine), strict=True)) for machine in machines]
    return dump(envelope(MACHINES_SCHEMA, ExitCode.OK, {"machines": rows}, machine=None))


def machines_csv(machines: Sequence[Machine]) -> str:
    """Return the list as CSV."""
    return csv_text(_COLUMNS, (dict(zip(_COLUMNS, _row(machine), strict=True)) for machine in machines))


_COLUMNS = ("name", "origin", "platform", "description")


def _row(machine: Machine) -> tuple[str, ...]:
    return machine.origin.name, machine.origin.kind.value, platform(machine).line, machine.origin.description
