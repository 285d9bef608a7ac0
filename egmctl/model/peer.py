"""What the nodes of an MPI job have told each other of themselves: facts that only several nodes together have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from egmctl.model.probes import Outcome
from egmctl.model.record import Plain, Share, Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPort:
    """A port of a NIC of a node."""

    nic: Plain
    number: int
    state: Plain | None = None
    """As of :class:`egmctl.model.devices.NicPort`, like the two below."""
    link_layer: Plain | None = None
    rate_gbit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One node."""

    host: Plain
    ranks: tuple[int, ...]
    tool: Plain
    """``egmctl``'s version."""
    driver_version: Plain | None = None
    clusters: tuple[Uuid, ...] = ()
    """Of its GPUs' NVLink domains, each once; none where they are in no domain of several nodes."""
    cliques: tuple[int, ...] = ()
    imex_channel: bool | None = None
    """Whether its process may use a channel; ``None`` where that was not looked at."""
    imex_daemon: Plain | None = None
    imex_domain: Plain | None = None
    ports: tuple[PeerPort, ...] | None = None
    failed: tuple[Plain, ...] = ()
    """Ids of the checks that fail on that node by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerProbe:
    """Memory of one rank that another one has opened by a fabric handle, compared, and written for the owner."""

    owner: int
    importer: int
    """Ranks."""
    hosts: tuple[Plain, Plain]
    """Of both, in this order."""
    labels: tuple[Plain, Plain]
    """``node1:GPU0``: of both."""
    host_memory: bool
    """Whether it is memory of the owner's NUMA node."""
    outcome: Outcome
    by: int | None = None
    """The rank whose side failed."""
    call: Plain | None = None
    error_number: int | None = None
    detail: Plain = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """All nodes of a job."""

    nodes: tuple[Peer, ...]
    probes: tuple[PeerProbe, ...] | None = None
    """``None`` without ``--active``."""
    problem: Annotated[str, Share.PARAMETER] = ""
    """Why the processes of the job could not talk to each other; then ``nodes`` is empty."""
