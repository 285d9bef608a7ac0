"""What was seen beside a measurement: the state of the GPUs, the counters of the links, where host memory lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from egmctl.compat import StrEnum
from egmctl.model.record import BusId, Plain
from egmctl.model.route import LinkKind

COUNTED_AT_LEAST = 0.95
"""The part of the expected bytes that a link's counters must show: they are read in KiB and may lag behind."""
STRAY_AT_MOST = 0.5
"""The part of the expected bytes that another kind of link, or another GPU, may show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvidence:
    """One GPU over the time of a measurement; ``None`` where the driver does not say."""

    bus_id: BusId
    label: Plain
    sm_clock_mhz: int | None = None
    """The lowest seen, like the memory's."""
    memory_clock_mhz: int | None = None
    throttle_reasons: tuple[Plain, ...] | None = None
    """All that were seen, without ``idle``."""
    temperature_c: int | None = None
    """The highest seen."""
    sent_bytes: Mapping[Plain, int] = field(default_factory=dict)
    """By link (``nvlink``, ``pcie``): what its counter rose by. Of PCIe with protocol, of NVLink without. Counted
    where the GPU issues the work; of EGM memory that was allocated under another GPU, that one's NVLinks too."""
    received_bytes: Mapping[Plain, int] = field(default_factory=dict)
    errors: Mapping[Plain, int] = field(default_factory=dict)
    """By counter: what it rose by; only those that rose."""
    other_processes: tuple[int, ...] | None = None
    """Those that compute on the GPU, by their ids."""


class Verdict(StrEnum):
    """Whether the bytes took the expected link."""

    PROVEN = "proven"
    """The link's own counters rose by at least what was moved."""
    BY_EXCLUSION = "by-exclusion"
    """The link has no counter, and those of the other kinds did not rise by what was moved."""
    REFUTED = "refuted"
    """The link's own counters did not rise by what was moved, or those of another kind of link did."""
    UNKNOWN = "unknown"
    """There are no counters to tell by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEvidence:
    """Which link carried the bytes, by the counters of the GPUs."""

    link: LinkKind
    """The one expected at the GPUs that issue the work; of EGM memory of a GPU's own CPU, NVLink instead of C2C where
    the counters show that it belongs to the CPU's other GPU, and C2C instead of NVLink where they show it does not."""
    expected_bytes: int
    """What the samples moved over it, without retries and checks."""
    carried_bytes: int | None
    """What its counters rose by; ``None`` where it has none."""
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the GPUs of a task showed while it ran."""

    gpus: tuple[GpuEvidence, ...]
    route: LinkEvidence | None = None
    """``None`` where the bytes of a task leave no GPU, or are too few to tell."""
    unread: Plain | None = None
    """Why nothing could be told."""


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
    granularity_bytes: int | None = None
    """Of cuMemCreate memory: the minimum of cuMemGetAllocationGranularity, of which its size is a multiple. The driver
    names none for other memory."""
    recommended_granularity_bytes: int | None = None
    """The recommended one."""
    page_bytes: int | None = None
    """Of memory that the process has mapped itself, the kernel's page size (KernelPageSize in ``/proc/self/smaps``);
    ``None`` where the driver has chosen the pages."""
    huge_bytes: int | None = None
    """How much of such memory lies in transparent huge pages (AnonHugePages), once all of it is written."""
