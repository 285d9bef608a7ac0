"""The list of machines that ship with the tool, for ``--machine list``."""

from __future__ import annotations

from collections.abc import Sequence

from egmctl.model.listing import MachineList, ShippedMachine
from egmctl.model.machine import Machine
from egmctl.report.document import Document, Entry, Paragraph, Tone
from egmctl.topology.platform import platform


def machines_document(listed: MachineList) -> Document:
    """Return each machine's name, whether it was recorded or modelled, and what it is."""
    return Document(
        command="egmctl topo --machine list",
        subject=f"{len(listed.machines)} machines",
        body=tuple(map(_entry, listed.machines)),
    )


def _entry(machine: ShippedMachine) -> Entry:
    about = (Paragraph(words=machine.description, tone=Tone.DIM),) if machine.description else ()
    return Entry(word=machine.name, tone=Tone.STRONG, title=f"{machine.origin.value}: {machine.platform}", body=about)


def machine_list(machines: Sequence[Machine]) -> MachineList:
    """Return what the list says of machines."""
    return MachineList(
        machines=tuple(
            ShippedMachine(
                name=one.origin.name,
                origin=one.origin.kind,
                platform=platform(one).line,
                description=one.origin.description,
            )
            for one in machines
        )
    )
