"""A node's clock, as a process of another node finds it: set before a rank's modules are imported."""

from __future__ import annotations

import time
from typing import Any


def put_ahead(arguments: dict[str, Any]) -> None:
    """Put the clock that nodes count from their boot ahead by so many ``seconds``."""
    counter, monotonic, seconds = time.perf_counter, time.monotonic, arguments["seconds"]
    vars(time)["perf_counter"] = lambda: counter() + seconds
    vars(time)["monotonic"] = lambda: monotonic() + seconds
