"""How much memory something takes by itself: the high-water mark of a process is that of all that ran in it before."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable


def most_bytes(run: Callable[[], object]) -> int:
    """Return the most bytes that Python had at once of what was made while ``run`` ran."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
