"""Clocks: the host's, and what a GPU's may say beside it."""

from __future__ import annotations

import math
import time

from egmctl.errors import EgmctlError

LEAST_MS = 1e-5
"""Less than this is no time of anything that a GPU does: a launch alone takes microseconds, and cuEventElapsedTime has
"a resolution of around 0.5 microseconds" (CUDA Driver API, Event Management)."""
_CLOCKS_DIFFER = 1.01
"""How much faster a GPU's clock may run than the host's. Chosen: quartz clocks differ by a ten-thousandth at most."""


def ms_since(started: float) -> float:
    """Return the milliseconds since a moment by :func:`time.perf_counter`."""
    return (time.perf_counter() - started) * 1e3


def possible_ms(call: str, ms: float, host_ms: float = math.inf) -> float:
    """Return a time that a GPU or its driver has measured, if it can be one.

    Parameters
    ----------
    call
        What has measured it.
    host_ms
        What has gone by on the host's clock, from before the work was queued until after it was done.

    Raises
    ------
    ImpossibleTime
        If it is no number, zero or negative, or more than the host's.
    """
    if LEAST_MS <= ms <= _CLOCKS_DIFFER * host_ms and ms != math.inf:
        return ms
    around = "" if host_ms == math.inf else f", and the host saw all of it take {host_ms:.3f} ms"
    raise ImpossibleTime(f"{call} said that the work took {ms:g} ms{around}: no time of it", call)


class ImpossibleTime(EgmctlError):
    """A measured time cannot be one: what was made of it would be no measurement. ``call`` has measured it."""

    code = "impossible-time"

    def __init__(self, message: str, call: str) -> None:
        super().__init__(message)
        self.call = call
