"""Says in the text itself that a machine was modelled, so that no output made from one can pass for a real node's."""

from __future__ import annotations

from rich.text import Text

from egmctl.model.machine import Machine, OriginKind
from egmctl.report.table import WARN
from egmctl.units import printable


def modelled_banner(machine: Machine) -> Text:
    """Return the line that names a modelled machine; empty for a live or recorded one.

    A recorded machine's text is the live one's to the byte; that it was recorded is said on standard error.
    """
    if machine.origin.kind is not OriginKind.MODELLED:
        return Text()
    return Text(f"MODELLED from public documents, no such node was read: {printable(machine.origin.name)}\n", WARN)
