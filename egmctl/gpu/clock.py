"""The host's clock, for what has no events of a stream."""

from __future__ import annotations

import time


def ms_since(started: float) -> float:
    """Return the milliseconds since ``started``, a time of :func:`time.perf_counter`."""
    return (time.perf_counter() - started) * 1e3
