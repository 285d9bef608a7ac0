"""What is seen of a GPU while it is measured; :mod:`egmctl.gpu.telemetry` asks NVML for it.

It stands apart from that, so that whoever works with what was seen need not load NVML.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from egmctl.model.route import LinkKind

_PCIE_WRAPS = 1 << 32
"""The PCIe counters have 32 bits (seen on H200): 55 GB/s go round in 78 ms."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the counters of a GPU's links stand at, or rose by; a link that NVML does not count is left out."""

    sent_bytes: Mapping[str, int] = field(default_factory=dict)
    received_bytes: Mapping[str, int] = field(default_factory=dict)

    def since(self, before: Traffic) -> Traffic:
        """Return what each rose by; that of PCIe must have gone round less than once."""
        return Traffic(
            rise(self.sent_bytes, before.sent_bytes),
            rise(self.received_bytes, before.received_bytes),
        )

    def __add__(self, other: Traffic) -> Traffic:
        """Add what they rose by in two spans of time."""
        return Traffic(
            _sum(self.sent_bytes, other.sent_bytes),
            _sum(self.received_bytes, other.received_bytes),
        )


@dataclass(frozen=True, slots=True)
class State:
    """How a GPU runs at a moment; ``None`` where NVML does not say."""

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    throttle_reasons: tuple[str, ...] | None
    temperature_c: int | None


class GpuCounters(Protocol):
    """What NVML shows of the GPUs of a run."""

    why_not: str | None
    """Why nothing can be told."""
    lost: dict[str, str]
    """By the bus ids of GPUs that NVML has lost since: the call that said so, and its error."""

    def knows(self, bus_id: str) -> bool:
        """Say whether NVML lists a GPU."""

    def traffic(self, bus_id: str, links: Iterable[str]) -> Traffic:
        """Read the counters of some links of a GPU that NVML lists."""

    def new_errors(self, bus_id: str, links: Iterable[str]) -> dict[str, int]:
        """Return the counters of errors of some links that rose since they were read last, and by how much."""

    def state(self, bus_id: str) -> State:
        """Return how a GPU runs now."""

    def process_ids(self, bus_id: str) -> tuple[int, ...] | None:
        """Return the processes on a GPU, ``None`` where NVML does not say."""

    def close(self) -> None:
        """Ask nothing more."""


class NoCounters:
    """Stands for NVML where it must not be called: in a process of the bench it would crash or hang all of it.

    Parameters
    ----------
    why_not
        What NVML did when it was asked last.
    """

    def __init__(self, why_not: str) -> None:
        self.why_not: str | None = why_not
        self.lost: dict[str, str] = {}

    def knows(self, _bus_id: str) -> bool:
        """Say that NVML lists no GPU."""
        return False

    def traffic(self, _bus_id: str, _links: Iterable[str]) -> Traffic:
        """Return no counters."""
        return Traffic()

    def new_errors(self, _bus_id: str, _links: Iterable[str]) -> dict[str, int]:
        """Return no counters."""
        return {}

    def state(self, _bus_id: str) -> State:
        """Return nothing."""
        return State(None, None, None, None)

    def process_ids(self, _bus_id: str) -> tuple[int, ...] | None:
        """Return that NVML does not say."""
        return None

    def close(self) -> None:
        """Do nothing."""


def rise(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Return what counters rose by; one that was reset meanwhile is left out."""
    rises = {name: after[name] - before[name] for name in after if name in before}
    if LinkKind.PCIE in rises:
        rises[LinkKind.PCIE] %= _PCIE_WRAPS
    return {name: rise for name, rise in rises.items() if rise >= 0}


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
