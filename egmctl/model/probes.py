"""Records of doctor's active probes, and of the other nodes of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from egmctl.compat import StrEnum
from egmctl.model.record import BusId, Plain, Sentence, Share, Uuid


class ProbeKind(StrEnum):
    """The kinds of probes."""

    HOST_NUMA = "host-numa"
    """HOST_NUMA memory, mapped for all chosen GPUs: a GPU writes it and the CPU compares, then the other way round."""
    P2P = "p2p"
    """A GPU writes a peer's memory, then reads it."""
    LEGACY_IPC = "legacy-ipc"
    """Memory of a GPU by ``cuIpcGetMemHandle``."""
    POSIX_FD = "posix-fd"
    """Memory of a GPU or a NUMA node by file descriptor, as the next two."""
    POOL = "pool"
    """Memory from a pool, the pool by file descriptor."""
    FABRIC = "fabric"
    """By fabric handle, which needs an IMEX channel."""
    IPC_EVENT = "ipc-event"
    """An event of one process that another one waits for."""
    PIDFD = "pidfd"
    """A file descriptor that one process takes from the other with pidfd_getfd(2), as UCX and PyTorch do."""


class Outcome(StrEnum):
    """How a probe ended."""

    OK = "ok"
    """Every byte was as it should be."""
    ERROR = "error"
    """A call failed."""
    CORRUPT = "corrupt"
    """Every call succeeded, and bytes differ."""
    TIMED_OUT = "timed-out"
    CRASHED = "crashed"
    NOT_RUN = "not-run"
    """It could not be tried; the detail says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One probe: who took part, and how it ended."""

    kind: ProbeKind
    gpus: tuple[BusId, ...]
    """In the order of their parts: who copies and whose memory it is (P2P); owner and importer; else one GPU."""
    numa_node: int | None = None
    """Where the memory is host memory: its node."""
    outcome: Outcome
    by: BusId | None = None
    """The GPU whose side failed."""
    call: Plain | None = None
    """The call that failed, or that was under way at the end."""
    error_number: int | None = None
    """The CUresult that it returned; of PIDFD an errno."""
    error_name: Plain | None = None
    detail: Sentence = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPort:
    """A port of a NIC of a node."""

    nic: Plain
    number: int
    state: Plain | None = None
    """As of :class:`egmctl.model.host.NicPort`, like the two below."""
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
    """The NVLink domains of its GPUs, each once; none where they are in no domain of several nodes."""
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
    """The nodes of both, in this order."""
    labels: tuple[Plain, Plain]
    """``node1:GPU0``: of both."""
    host_memory: bool
    """Whether it is memory of the owner's NUMA node."""
    outcome: Outcome
    by: int | None = None
    """The rank whose side failed."""
    call: Plain | None = None
    error_number: int | None = None
    detail: Sentence = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """All nodes of a job."""

    nodes: tuple[Peer, ...]
    probes: tuple[PeerProbe, ...] | None = None
    """``None`` without ``--active``."""
    problem: Annotated[str, Share.PARAMETER] = ""
    """Why the processes of the job could not talk to each other; then ``nodes`` is empty."""
