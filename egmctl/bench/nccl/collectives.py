"""The collectives that are measured, and the factors between their bandwidth and that of the busiest link. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from egmctl.dataclass import dataclass
from egmctl.model.nccl import CollectiveResult
from egmctl.units import GB


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective."""

    description: str
    """The description in ``--list``."""
    bus_factor: Callable[[int], float]
    """A function of the number of ranks that returns the bus bandwidth divided by size / time."""


COLLECTIVES: Mapping[str, Collective] = {
    "all_reduce": Collective(
        "sum of the buffers of all GPUs, in each of them: bus bandwidth of NCCL", lambda ranks: 2 * (ranks - 1) / ranks
    ),
    "all_gather": Collective(
        "the parts of all GPUs, in each of them: bus bandwidth of NCCL", lambda ranks: (ranks - 1) / ranks
    ),
    "sendrecv": Collective("each GPU to the next one, in a ring: bus bandwidth of NCCL", lambda _ranks: 1.0),
}
"""The collectives by their names in nccl-tests; the factors are those of its ``doc/PERFORMANCE.md``."""

PREFIX = "nccl_"
"""What the names of these measurements begin with for ``--case``."""


def collective_names() -> tuple[str, ...]:
    """Return the names that ``--case`` takes."""
    return tuple(f"{PREFIX}{name}" for name in COLLECTIVES)


def collective_result(
    name: str, ranks: int, size_bytes: int, elapsed_ms: Sequence[float], verified: bool | None
) -> CollectiveResult:
    """Return the result of a collective from the time of one in each sample, in milliseconds.

    Raises
    ------
    ValueError
        There is no sample, or a time is not positive.
    """
    if not elapsed_ms or min(elapsed_ms) <= 0:
        raise ValueError(f"{name}: times of {list(elapsed_ms)} ms")
    factor = COLLECTIVES[name].bus_factor(ranks)
    seconds = statistics.median(elapsed_ms) / 1e3
    return CollectiveResult(
        name=name,
        bus_factor=factor,
        bus_gb_s=factor * size_bytes / seconds / GB,
        elapsed_ms=tuple(elapsed_ms),
        verified=verified,
    )
