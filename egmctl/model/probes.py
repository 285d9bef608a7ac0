"""What was tried on the GPUs: results of active probes, facts like any others, which checks judge afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.compat import StrEnum
from egmctl.model.record import BusId, Plain


class ProbeKind(StrEnum):
    """What is tried."""

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
    """What it returned: a CUresult; of PIDFD an errno."""
    error_name: Plain | None = None
    detail: Plain = ""
