"""What NCCL itself measures between the GPUs of a node: its plan, its bus bandwidths, and how it reached them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Annotated

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.explanation import Failure
from egmctl.model.finding import Waiver, WaiverKind
from egmctl.model.record import BusId, Plain, Share


class NcclProgram(StrEnum):
    """The programs that call NCCL. Neither is part of egmctl."""

    TORCH = "torch"
    """PyTorch (``torch.distributed``), one process per GPU."""
    NCCL_TESTS = "nccl-tests"
    """The binaries of NVIDIA's nccl-tests, one process for all GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclPlan:
    """The collectives to measure, and the program that measures them."""

    collectives: tuple[Plain, ...]
    """``all_reduce``, ``all_gather``, ``sendrecv``: the names of nccl-tests."""
    gpus: tuple[BusId, ...]
    """The GPUs, in the order of NCCL's ranks."""
    labels: tuple[Plain, ...]
    """Their labels, in the same order."""
    size_bytes: int
    """The size of a collective as nccl-tests counts it: of all_gather the gathered buffer, else each rank's buffer."""
    iterations: int
    """The number of collectives in one sample."""
    samples: int
    nvls: bool
    """Whether NCCL may use NVLink multicast (NVLS), if it wants to."""
    program: NcclProgram | None = None
    """The program; ``None`` if there is none, and for a machine that is not this node."""
    waivers: tuple[Waiver, ...] = ()
    """All reasons against the measurement; empty if it would be made."""

    def under_way(self, results: Iterable[CollectiveResult]) -> str:
        """Return the first collective without a result, which was under way when NCCL failed; else the last one."""
        made = {result.name for result in results}
        return next((name for name in self.collectives if name not in made), self.collectives[-1])


class NcclStatus(StrEnum):
    """The outcomes of NCCL's measurement."""

    OK = "ok"
    CORRUPT = "corrupt"
    """A buffer did not contain the result of its collective."""
    FAILED = "failed"
    """A rank failed, died or hung, or what it reported has not the form that it must have."""
    WAIVED = "waived"
    """It was not run because of its waivers, or it was interrupted: the results are those until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveResult:
    """The bus bandwidth of one collective."""

    name: Plain
    bus_factor: float
    """The bus bandwidth divided by size / time (nccl-tests, ``doc/PERFORMANCE.md``)."""
    bus_gb_s: float
    """The median of the samples in GB/s (1e9 bytes per second)."""
    elapsed_ms: tuple[float, ...]
    """The time of one collective in each sample: that of the slowest rank."""
    verified: bool | None
    """Whether all buffers contained the right result; ``None`` if that was not checked."""
    share: float | None = None
    """The bus bandwidth as a share of the slowest link direction (``NcclRun.slowest``); ``None`` without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowestDirection:
    """The slowest direction of a link between two of NCCL's GPUs, by the copies of the same run."""

    measurement: int
    """The index into the run's ``measurements``."""
    gb_s: float


class Ending(StrEnum):
    """The ways in which one of NCCL's processes fails."""

    RAISED = "raised"
    """Its program ended with an exception."""
    CRASHED = "crashed"
    """A signal or an exit code ended it, or its command in a job is gone."""
    TIMED_OUT = "timed-out"
    GARBLED = "garbled"
    """What it reported has not the form that it must have."""
    NO_FOLDER = "no-folder"
    """It was not started: there is no temporary folder that it can use."""


@dataclass(frozen=True, slots=True)
class NcclWarning:
    """A warning in NCCL's log, without addresses."""

    text: str
    source: Plain = ""
    """The file and line of NCCL that printed it: ``transport/p2p.cc:275``; empty if the log does not name them."""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.source, self.text)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """How one of NCCL's processes failed."""

    rank: int | None
    """The rank; ``None`` for a process of all ranks."""
    label: Plain
    """The GPU's label, or those of all."""
    how: Ending
    reason: str
    """How the process ended, as a clause."""
    warning: NcclWarning | None = None
    """The first warning of a failure in NCCL's log, or else its last one; ``None`` if it has none. Where the rank is
    not known, the logs of all ranks count."""

    @property
    def words(self) -> str:
        """How the process ended, and what NCCL warned of."""
        return self.reason if self.warning is None else f"{self.reason}; NCCL warned: {self.warning}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclRun:
    """What NCCL measured, what it chose, and how it failed."""

    plan: NcclPlan
    status: NcclStatus
    reason: str | None = None
    """One sentence for every status but ``ok``."""
    results: tuple[CollectiveResult, ...] = ()
    """The collectives that were measured, also before a failure."""
    versions: Mapping[Plain, Plain] = field(default_factory=dict)
    """The versions of the libraries: ``nccl``, ``torch``."""
    transports: Mapping[Plain, int] = field(default_factory=dict)
    """The number of connections by transport, as NCCL's log names it: ``P2P/CUMEM``, ``SHM/direct/direct``, ``NVLS``;
    the most frequent first. Empty if the log has none."""
    channels: int | None = None
    """The number of channels for collectives, from NCCL's log."""
    environment: Mapping[Plain, Annotated[str, Share.ENVIRONMENT]] = field(default_factory=dict)
    """The variables that begin with ``NCCL_`` or ``TORCH_NCCL_`` as the processes had them, and those that NCCL read
    from its configuration files."""
    slowest: SlowestDirection | None = None
    """What the bus bandwidth is set beside; ``None`` if no direction was measured or it bounds nothing."""
    not_comparable: Plain = ""
    """Why links of this run say nothing about the bus bandwidth; empty if they do, or if none was measured."""
    failures: tuple[RankFailure, ...] = ()
    """The processes that failed, the first one first."""
    known_errors: tuple[Failure, ...] = ()
    """The errors in their output that ``egmctl explain`` knows."""

    @property
    def is_interrupted(self) -> bool:
        """Whether the run was interrupted before NCCL had measured everything."""
        return any(waiver.kind is WaiverKind.INTERRUPTED for waiver in self.plan.waivers)
