"""Says in the output itself that a machine was modelled or recorded, so that none can pass for a live node's."""

from __future__ import annotations

from rich.text import Text

from egmctl.model.comparison import Comparison
from egmctl.model.gpu import FAKE
from egmctl.model.machine import Machine, Origin, OriginKind
from egmctl.report.table import WARN
from egmctl.units import printable

_MODELLED = "from public documents, no such node was read"


def modelled_banner(machine: Machine) -> Text:
    """Return the line that names a modelled machine; empty for a live or recorded one.

    A recorded machine's text is the live one's to the byte; that it was recorded is said on standard error.
    """
    text = Text()
    if machine.origin.kind is OriginKind.MODELLED:
        # Appended: a style of the text itself would colour all that is appended to it.
        text.append(f"MODELLED {_MODELLED}: {printable(machine.origin.name)}\n", WARN)
    return text


def origin_banner(origin: Origin) -> str | None:
    """Say where a machine's facts came from, if that is not the live node."""
    if origin.kind is OriginKind.MODELLED:
        return f"Modelled {_MODELLED}: {origin.name}"
    if origin.kind is OriginKind.RECORDED:
        when = f" at {origin.recorded_at}" if origin.recorded_at else ""
        return f"Recorded{when}, this is not the live node: {origin.name}"
    return None


def compared_banners(comparison: Comparison) -> list[str]:
    """Say which of the files that are compared are of no hardware, in the words that every form has."""
    nodes = comparison.nodes
    told = {
        f"MODELLED {_MODELLED}": [node.name for node in nodes if node.modelled],
        FAKE: [node.name for node in nodes if node.fake],
    }
    return [
        f"{words}: {comparison.folded if len(names) == len(nodes) else ', '.join(names)}"
        for words, names in told.items()
        if names
    ]
