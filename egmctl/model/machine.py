"""A node as it was seen: the facts that every judgement is a pure function of.

A :class:`Machine` is made of independently versioned sections; a command collects those it needs. It is written
to and read from JSON by :mod:`egmctl.model.codec`, so that a live node and a recorded one are the same thing to
everything that reads it.

Two rules hold for every record here:

* a value that could not be read is ``None`` and its name is in the record's ``unread`` with the reason;
* the type of a string says whether it may leave the site: :data:`Plain` may, everything else is pseudonymised by
  ``egmctl.facts.redact`` unless the user asks for all. A new ``str`` field is therefore private until someone
  decides otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from egmctl.compat import StrEnum
from egmctl.model.gpu import Gpu, Pair
from egmctl.model.host import Confinement, Driver, Host, Nic, NvSwitch, Process, System
from egmctl.model.kernel_log import KernelLog
from egmctl.model.probes import Peers, Probe
from egmctl.model.record import Plain, Unread

MACHINE_SCHEMA = "egmctl.machine/1"


class OriginKind(StrEnum):
    """Where a machine came from. Every output made from one that is not live says so."""

    LIVE = "live"
    RECORDED = "recorded"
    """Written by ``egmctl snapshot`` on real hardware."""
    MODELLED = "modelled"
    """Put together from public documents: not captured from hardware."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a machine's facts came from."""

    kind: OriginKind
    name: Plain = ""
    """File stem or shipped name; empty when live."""
    tool: Plain = ""
    """``egmctl 0.1.0``: what wrote the document."""
    recorded_at: Plain = ""
    """UTC, ISO 8601, to the second."""
    redacted: bool = False
    description: Plain = ""
    sources: tuple[Plain, ...] = ()
    """Modelled machines: the public documents each value came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionStatus:
    """How reading one section went."""

    version: int
    duration_ms: float | None = None
    unread: Unread | None = None
    """Why the whole section is missing."""


SECTION_VERSIONS: Mapping[str, int] = {
    "host": 1,
    "gpus": 1,
    "pairs": 1,
    "switches": 1,
    "nics": 1,
    "driver": 1,
    "process": 1,
    "confinement": 1,
    "system": 1,
    "kernel_log": 1,
    "probes": 1,
}
"""The sections in their order in the document. A version rises when a reader of the older one would be misled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One node's facts. A section that was not collected is ``None``, its status says why."""

    origin: Origin
    sections: Mapping[Plain, SectionStatus] = field(default_factory=dict)
    host: Host | None = None
    gpus: tuple[Gpu, ...] | None = None
    """In the order of ``index``."""
    pairs: tuple[Pair, ...] | None = None
    """Ordered pairs, by the indices of source and target."""
    switches: tuple[NvSwitch, ...] | None = None
    nics: tuple[Nic, ...] | None = None
    """In natural order of their names: mlx5_2 before mlx5_10."""
    driver: Driver | None = None
    process: Process | None = None
    confinement: Confinement | None = None
    system: System | None = None
    kernel_log: KernelLog | None = None
    probes: tuple[Probe, ...] | None = None
    """The probes of ``egmctl doctor --active``, in order; no other command makes this section."""
    peers: Peers | None = None
    """The nodes of the MPI job in which ``egmctl doctor`` ran: no section of one node."""

    def gpu(self, bus_id: str) -> Gpu:
        """Return the GPU with this bus id.

        Raises
        ------
        KeyError
            If there is none.
        """
        return {gpu.bus_id: gpu for gpu in self.gpus or ()}[bus_id]

    def pair(self, source: str, target: str) -> Pair | None:
        """Return the ordered pair of two bus ids, ``None`` where it was not read."""
        return next((p for p in self.pairs or () if (p.source, p.target) == (source, target)), None)
