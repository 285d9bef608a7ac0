"""What was seen beside a measurement: the state of the GPUs, the counters of the wires, where host memory lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from egmctl.model.record import BusId, Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvidence:
    """One GPU over the time of a measurement; ``None`` where the driver does not say."""

    bus_id: BusId
    label: Plain
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle_reasons: tuple[Plain, ...] | None = None
    temperature_c: int | None = None
    sent_bytes: Mapping[Plain, int] = field(default_factory=dict)
    """By wire (``nvlink``, ``c2c``, ``pcie``): what its counter rose by."""
    received_bytes: Mapping[Plain, int] = field(default_factory=dict)
    errors: Mapping[Plain, int] = field(default_factory=dict)
    """By counter: what it rose by; only those that rose."""
    other_processes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the GPUs of a task showed while it ran."""

    gpus: tuple[GpuEvidence, ...]
    route: Plain | None = None
    """Whether the counters show the expected wire: one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where one buffer of host memory lies."""

    label: Plain
    """The buffer's end, e.g. ``NUMA1``."""
    proof: Plain
    """``move_pages``, ``MemFree`` or ``not provable``."""
    detail: Plain
    """One sentence: what was seen, or why nothing can be."""
    right: bool | None
    """Whether all of it is on its node; ``None`` where that is not provable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferCost:
    """What it cost to get one buffer, apart from every sample."""

    label: Plain
    memory: Plain
    size_bytes: int
    allocate_ms: float
    first_touch_ms: float | None = None
    """The first time that all of it was written."""
