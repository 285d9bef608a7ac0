"""Why a measurement was not made: what stopped it and whom it is about, as whoever planned or ran it knows.

Judging reads the kind (:mod:`egmctl.verdict.explain`), people the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.compat import StrEnum
from egmctl.model.record import BusId, Plain


class WaiverKind(StrEnum):
    """What sort of thing keeps something from being measured."""

    GPU_HIDDEN = "gpu-hidden"
    """CUDA_VISIBLE_DEVICES hides a GPU."""
    GPU_UNUSABLE = "gpu-unusable"
    """This process cannot use a GPU, or not the whole of it (``egmctl.topology.access``)."""
    GPU_BUSY = "gpu-busy"
    """Others use a GPU."""
    NO_PEER_ACCESS = "no-peer-access"
    """The driver refuses P2P between two GPUs."""
    NO_NVLINK = "no-nvlink"
    """A GPU has no active NVLink, over which alone other nodes are reached."""
    NO_ATOMICS = "no-atomics"
    """The driver has no native atomics between two GPUs."""
    NO_NUMA_MEMORY = "no-numa-memory"
    """This process may have no memory of a NUMA node, or the node has none."""
    EGM_BLOCKED = "egm-blocked"
    """The EGM route to a NUMA node is blocked, and what is left is tried in another case."""
    NO_IMEX_CHANNEL = "no-imex-channel"
    """Fabric handles need an IMEX channel that this process may use."""
    UNSUPPORTED_MEMORY = "unsupported-memory"
    """A GPU reports that it cannot use a kind of host memory, or share it."""
    NO_PAGES = "no-pages"
    """The kernel has no huge pages of a kind, or too few that are free."""
    UNSUPPORTED_HANDLE = "unsupported-handle"
    """A GPU reports that it does not support a kind of handle."""
    UNSUPPORTED_ENGINE = "unsupported-engine"
    """A GPU is too old for an engine, or what the engine needs is not installed."""
    REFUSED = "refused"
    """The driver answered, when it was tried, that it has no such thing."""
    NO_ROOM = "no-room"
    """Its buffers do not fit into the part of free memory that they may take."""
    GIVEN_UP = "given-up"
    """Too much had failed before."""
    INTERRUPTED = "interrupted"


OF_GPUS = (WaiverKind.GPU_HIDDEN, WaiverKind.GPU_UNUSABLE, WaiverKind.GPU_BUSY)
"""Those that take a whole GPU away, whatever the path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """One thing that keeps something from being measured."""

    kind: WaiverKind
    reason: Plain
    """One sentence."""
    gpus: tuple[BusId, ...] = ()
    """Bus ids of the GPUs that it is about."""
    rank: int | None = None
    """The process whose GPU it is about, in a run between several: nodes have GPUs of the same bus ids."""
