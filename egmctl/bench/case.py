"""What a case is: a combination of memory, engine and pattern that has a name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from egmctl.model.measurement import Engine, MemoryKind, Pattern


class End(StrEnum):
    """One end of a transfer."""

    SOURCE = "source"
    DESTINATION = "destination"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A combination to measure wherever it makes sense: a new case is a new line in ``cases/``, not new code."""

    name: str
    """In nvbandwidth's words, so that people can compare numbers."""
    family: str
    source: MemoryKind
    destination: MemoryKind
    engine: Engine
    pattern: Pattern
    initiator: End
    """The end whose GPU issues the work."""
    description: str
    """One sentence for ``--list``."""
