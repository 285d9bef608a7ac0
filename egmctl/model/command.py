"""The commands whose results are kept: what a fleet is asked, what files are loaded from, what is compared."""

from __future__ import annotations

from egmctl.compat import StrEnum


class Command(StrEnum):
    """One that says in a JSON document what it found."""

    SNAPSHOT = "snapshot"
    TOPO = "topo"
    DOCTOR = "doctor"
    BENCH = "bench"
    BRINGUP = "bringup"
