"""The short lists that commands print as JSON: runs that are kept, machines that ship, checks that there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from egmctl.model.finding import Guard
from egmctl.model.machine import OriginKind
from egmctl.model.record import Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRun:
    """A run of the bench, by its journal."""

    file: str
    """The journal's path."""
    started_at: Plain
    """UTC, ISO 8601."""
    gpus: tuple[Plain, ...]
    """``GPU0``, ``GPU1``, ..."""
    measurements: int
    """Those that the journal holds, what was under way at its end among them."""
    ok: int
    exit_code: int | None
    """Its exit code; ``None`` where it did not end."""
    ending: Plain
    """How it ended, in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """``egmctl history``: the runs of the bench on this node, the latest last."""

    SCHEMA: ClassVar[str] = "egmctl.history/1"

    runs: tuple[KeptRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedMachine:
    """A machine that ships with the tool."""

    name: Plain
    """The name that ``--machine`` takes."""
    origin: OriginKind
    platform: Plain
    """Its platform, in one line."""
    description: Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineList:
    """``--machine list``."""

    SCHEMA: ClassVar[str] = "egmctl.machines/1"

    machines: tuple[ShippedMachine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckEntry:
    """A check of the doctor."""

    id: Plain
    """Stable, ``area.what``."""
    title: Plain
    guards: tuple[Guard, ...]
    """The abilities at risk where it does not pass."""
    sections: tuple[Plain, ...]
    """Sections of the machine without which it cannot say anything."""
    why: Plain
    read: Plain
    fix: Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckList:
    """``egmctl doctor --list`` and ``--explain``."""

    SCHEMA: ClassVar[str] = "egmctl.checks/1"

    checks: tuple[CheckEntry, ...]
