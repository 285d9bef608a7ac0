"""The state and the counters of a GPU while it is measured.

:mod:`egmctl.gpu.telemetry` reads them; code that works with them need not load NVML.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from egmctl.model.route import LinkKind

_PCIE_WRAPS = 1 << 32
"""The PCIe counters have 32 bits (seen on H200): 55 GB/s go round in 78 ms."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The counters of a GPU's links, or their rise; a link that NVML does not count is left out."""

    sent_bytes: Mapping[str, int] = field(default_factory=dict)
    received_bytes: Mapping[str, int] = field(default_factory=dict)

    def since(self, before: Traffic) -> Traffic:
        """Return the rise of each; the counter of PCIe must have wrapped at most once."""
        return Traffic(
            rise(self.sent_bytes, before.sent_bytes),
            rise(self.received_bytes, before.received_bytes),
        )

    def __add__(self, other: Traffic) -> Traffic:
        """Add the rises of two spans of time."""
        return Traffic(
            _sum(self.sent_bytes, other.sent_bytes),
            _sum(self.received_bytes, other.received_bytes),
        )


@dataclass(frozen=True, slots=True)
class State:
    """The clocks and the temperature of a GPU at a moment; ``None`` where NVML does not say."""

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    throttle_reasons: tuple[str, ...] | None
    temperature_c: int | None


def rise(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Return what counters rose by; one that was reset meanwhile is left out."""
    rises = {name: after[name] - before[name] for name in after if name in before}
    if LinkKind.PCIE in rises:
        rises[LinkKind.PCIE] %= _PCIE_WRAPS
    return {name: rise for name, rise in rises.items() if rise >= 0}


def _sum(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}
