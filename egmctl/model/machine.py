"""The facts of a node. Every judgement is a pure function of them.

A :class:`Machine` consists of independently versioned sections. A command collects those that it needs. Because
:mod:`egmctl.model.codec` converts a machine to JSON and back, code that reads it works alike on a live and on a
recorded node.

Two rules apply to all records here:

* A value that could not be read is ``None``, and the record's ``unread`` has its name and the reason.
* The type of a string states whether it may leave the site. :data:`Plain` strings may; ``egmctl.facts.redact``
  pseudonymises all others unless the user requests full output. So a new ``str`` field is private by default.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import ClassVar, TypeVar

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.gpu import Gpu, GpuPair
from egmctl.model.host import Confinement, Driver, Host, Nic, NumaKind, NvSwitch, Process, System
from egmctl.model.kernel_log import KernelLog
from egmctl.model.probes import IsolationTrial, Peers, Probe
from egmctl.model.record import BusId, Plain, Record, Unread

MACHINE_SCHEMA = "egmctl.machine/1"
_Part = TypeVar("_Part")
_Result = TypeVar("_Result")


class OriginKind(StrEnum):
    """The sources of a machine. Every output from a machine that is not live states its source."""

    LIVE = "live"
    RECORDED = "recorded"
    """Written by ``egmctl snapshot`` on real hardware."""
    MODELLED = "modelled"
    """Built from public documents, not captured from hardware."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The source of a machine's facts."""

    kind: OriginKind
    name: Plain = ""
    """The file name without extension or an included machine's name; empty if live."""
    tool: Plain = ""
    """The tool that wrote the document: ``egmctl 0.1.0``."""
    recorded_at: Plain = ""
    """UTC, ISO 8601, to the second."""
    redacted: bool = False
    description: Plain = ""
    sources: tuple[Plain, ...] = ()
    """The public sources of each value of a modelled machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionStatus:
    """The result of reading one section."""

    version: int
    duration_ms: float | None = None
    unread: Unread | None = None
    """The reason why the whole section is missing."""


SECTION_VERSIONS: Mapping[str, int] = {
    **dict.fromkeys(("host", "gpus", "pairs", "switches", "nics", "driver"), 1),
    **dict.fromkeys(("process", "confinement", "system", "kernel_log", "probes"), 1),
}
"""The sections in the order of the document. A version increases if readers of the older version would misinterpret
it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The facts of one node. A section that was not collected is ``None``, and its status has the reason."""

    origin: Origin
    sections: Mapping[Plain, SectionStatus] = field(default_factory=dict)
    host: Host | None = None
    gpus: tuple[Gpu, ...] | None = None
    """In the order of ``index``."""
    pairs: tuple[GpuPair, ...] | None = None
    """Ordered pairs, sorted by the indices of source and target."""
    switches: tuple[NvSwitch, ...] | None = None
    nics: tuple[Nic, ...] | None = None
    """Sorted by name in natural order: mlx5_2 before mlx5_10."""
    driver: Driver | None = None
    process: Process | None = None
    confinement: Confinement | None = None
    system: System | None = None
    kernel_log: KernelLog | None = None
    probes: tuple[Probe, ...] | None = None
    """The probes of ``egmctl doctor --active``, in order. No other command creates this section."""
    isolation: tuple[IsolationTrial, ...] | None = None
    """The trials of ``egmctl doctor --isolation``, in order; no section, because no other command makes them."""
    peers: Peers | None = None
    """The nodes of the MPI job of ``egmctl doctor``; no section, because it is not about one node."""

    @property
    def cpu_nodes(self) -> tuple[int, ...]:
        """The ids of the NUMA nodes with CPUs, ascending; empty if the nodes were not read."""
        nodes = (self.host and self.host.numa_nodes) or ()
        return tuple(node.id for node in nodes if node.kind in (NumaKind.CPU, NumaKind.CPU_ONLY))

    def gpu(self, bus_id: str) -> Gpu:
        """Return the GPU with this bus id.

        Raises
        ------
        KeyError
            There is no such GPU.
        """
        return _by_bus_id(self.gpus or ())[bus_id]

    def pair(self, source: str, target: str) -> GpuPair | None:
        """Return the ordered pair with these bus ids, or ``None`` if it was not read."""
        return _by_ends(self.pairs or ()).get((source, target))


def remembered(function: Callable[[tuple[_Part, ...]], _Result]) -> Callable[[tuple[_Part, ...]], _Result]:
    """Have a function of a part of a machine remember its last result: 72 GPUs have 5,112 pairs, asked for as often."""
    last: tuple[tuple[_Part, ...], _Result] | None = None

    @functools.wraps(function)
    def result_of(part: tuple[_Part, ...]) -> _Result:
        nonlocal last
        # Read and replaced as one: another thread may ask for another machine meanwhile.
        known = last
        if known is None or known[0] is not part:
            known = last = part, function(part)
        return known[1]

    return result_of


@remembered
def _by_bus_id(gpus: tuple[Gpu, ...]) -> Mapping[str, Gpu]:
    return {gpu.bus_id: gpu for gpu in gpus}


@remembered
def _by_ends(pairs: tuple[GpuPair, ...]) -> Mapping[tuple[str, str], GpuPair]:
    return {(pair.source, pair.target): pair for pair in pairs}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTraffic:
    """The traffic of all of a GPU's links of one kind, in GB/s (1e9 bytes per second)."""

    sent_gb_s: float
    received_gb_s: float
    rate_gb_s: float | None = None
    """The rate of the links in one direction; ``None`` if unknown."""
    sent_data_gb_s: float | None = None
    """An estimate of the data in ``sent_gb_s``, if that is with protocol, as of PCIe; else ``None``."""
    received_data_gb_s: float | None = None
    """As ``sent_data_gb_s``, of ``received_gb_s``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTraffic(Record):
    """The traffic and the load of one GPU, by all processes together."""

    index: int
    """The GPU's number on the whole node: 0 is ``GPU0``."""
    bus_id: BusId
    name: Plain | None
    links: Mapping[Plain, LinkTraffic | None]
    """By kind of link: ``nvlink``, ``c2c``, ``pcie``. A kind that the GPU lacks is left out. PCIe's is that of 20 ms at
    the end of the interval, the others are averages over the interval."""
    lost: bool | None = None
    """Whether NVML calls the GPU lost, or in need of a reset: nothing of it is known then."""
    busy_percent: int | None = None
    """The share of the time in which a kernel ran, in NVML's last sample period."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSample:
    """One sample of ``egmctl watch``: the traffic of the chosen GPUs in one interval."""

    SCHEMA: ClassVar[str] = "egmctl.watch/1"

    origin: Origin
    taken_at: Plain
    """The end of the interval: UTC, ISO 8601."""
    gpus: tuple[GpuTraffic, ...]
