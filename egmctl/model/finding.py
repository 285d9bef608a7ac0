"""Findings of checks, causes of findings and measurements, and waivers."""

from __future__ import annotations

from collections.abc import Iterable

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.gpu import Gpu
from egmctl.model.record import BusId, Plain
from egmctl.model.remedy import Remedy
from egmctl.units import format_kernel_list


class Status(StrEnum):
    """The results of a check, the most severe first. "Not supported" is neither healthy nor a fault: it is ``skip``."""

    FAIL = "fail"
    """It does not work, or not as required."""
    WARN = "warn"
    """It works, but with an expected degradation that was measured or is documented."""
    UNKNOWN = "unknown"
    """It applies to this machine and is unknown; the summary says why."""
    NOTE = "note"
    """A deliberate setting disables something, which is a fault only for those who need it. The exit code is 0, with
    ``--strict`` 1."""
    ASSUMED = "assumed"
    """A model's sources do not state it, and the check passes with what a healthy node of its kind states. It was not
    read, and is counted apart from ``pass``."""
    PASS = "pass"  # noqa: S105
    SKIP = "skip"
    """It does not apply to this machine, or was not requested; the summary says why."""


TOLD = (Status.FAIL, Status.WARN, Status.NOTE)
"""The statuses that every view lists one by one, even if it folds the others."""


class Guard(StrEnum):
    """The purposes that checks protect: the values of ``--for``."""

    EGM = "egm"
    P2P = "p2p"
    IPC = "ipc"
    FABRIC = "fabric"
    RDMA = "rdma"
    PERF = "perf"


class Confidence(StrEnum):
    """The confidence in the stated cause."""

    HIGH = "high"
    """The cause was observed: an errno, a driver's answer, a comparison of bytes."""
    MEDIUM = "medium"
    """The cause was inferred from several signs."""
    LOW = "low"
    """Only a difference was observed."""


class PlaceKind(StrEnum):
    """The kinds of subjects of findings."""

    NODE = "node"
    GPU = "gpu"
    PAIR = "pair"
    """Ordered pairs of GPUs."""
    NUMA = "numa"
    NIC = "nic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The subject of a finding, or several subjects with the same verdict."""

    kind: PlaceKind
    ids: tuple[Plain, ...] = ()
    """Bus ids of GPUs, ``SOURCE>TARGET`` of pairs, numbers of NUMA nodes, names of NICs; empty for the node."""
    label: Plain = ""
    """The display label: ``GPU0-3,5``, ``NUMA 1``; empty for the node."""

    @property
    def gpus(self) -> frozenset[str] | None:
        """The bus ids of the GPUs, for pairs of both ends; ``None`` if the place is not about GPUs."""
        match self.kind:
            case PlaceKind.GPU:
                return frozenset(self.ids)
            case PlaceKind.PAIR:
                return frozenset(end for pair in self.ids for end in pair.split(">"))
            case _:
                return None

    def meets(self, other: Place) -> bool:
        """Return whether both are about some of the same GPUs, or one of them is not about GPUs."""
        return self.gpus is None or other.gpus is None or bool(self.gpus & other.gpus)


NODE = Place(kind=PlaceKind.NODE)
"""The node as a whole."""


def on_gpus(gpus: Iterable[Gpu]) -> Place:
    """Return the place of some GPUs: ``GPU0-3,5``."""
    chosen = sorted(gpus, key=lambda gpu: gpu.index)
    label = f"GPU{format_kernel_list({gpu.index for gpu in chosen})}"
    return Place(kind=PlaceKind.GPU, ids=tuple(gpu.bus_id for gpu in chosen), label=label)


def on_pairs(pairs: Iterable[tuple[Gpu, Gpu]]) -> Place:
    """Return the place of ordered pairs (accessing GPU, accessed GPU): ``GPU0>GPU1``; the label names up to 4."""
    chosen = sorted(pairs, key=lambda pair: (pair[0].index, pair[1].index))
    names = [f"GPU{source.index}>GPU{target.index}" for source, target in chosen]
    return Place(
        kind=PlaceKind.PAIR,
        ids=tuple(f"{source.bus_id}>{target.bus_id}" for source, target in chosen),
        label=", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more",
    )


def on_numa(nodes: Iterable[int]) -> Place:
    """Return the place of NUMA nodes: ``NUMA 0-1``."""
    ids = sorted(set(nodes))
    return Place(kind=PlaceKind.NUMA, ids=tuple(map(str, ids)), label=f"NUMA {format_kernel_list(ids)}")


def on_nics(names: Iterable[str]) -> Place:
    """Return the place of NICs: ``mlx5_0, mlx5_1``."""
    ids = tuple(names)
    return Place(kind=PlaceKind.NIC, ids=ids, label=", ".join(ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One value that was read, and its source."""

    source: str
    """The file, system call or library function: ``access(/dev/nvidia0)``, ``nvmlDeviceGetP2PStatus``."""
    value: str
    errno: Plain | None = None
    """The name of the error number, e.g. ``EPERM``, if the value is an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check for one place. GPUs, NUMA nodes or NICs with the same verdict share a finding."""

    status: Status
    summary: str
    """One sentence without a full stop; for ``skip`` and ``unknown`` it says why."""
    place: Place = NODE
    evidence: tuple[Evidence, ...] = ()
    cause: str = ""
    """The cause, if it is known."""
    remedy: Remedy | None = None
    """The remedy; every ``fail`` and ``warn`` has one."""
    confidence: Confidence = Confidence.HIGH
    note: str = ""
    """Useful information that is no fault."""
    blocks: tuple[Guard, ...] = ()
    """The purposes that do not work because of this. With ``--for`` one of them the finding is a ``fail``, whatever its
    status is without it."""
    check: Plain = ""
    """The check id. The runner sets it, and the three fields below."""
    guards: tuple[Guard, ...] = ()
    docs: Plain = ""
    """The path and anchor of the documentation in this repository."""
    hardware: bool = False
    """Whether the check's definition says that what it finds may be a broken part, not a setting or what others do."""
    explains: tuple[Plain, ...] = ()
    """The ids of the checks whose faults this finding causes (``egmctl.doctor.causes``)."""
    explained_by: tuple[Plain, ...] = ()
    """The ids of the checks that found the cause of this fault. It is reported and counted only there."""

    @property
    def title(self) -> str:
        """The summary, after the place if there is one."""
        return f"{self.place.label}: {self.summary}" if self.place.label else self.summary


@dataclass(frozen=True, slots=True)
class RootCause:
    """A finding that no other finding explains, and the findings that it explains."""

    finding: Finding
    explains: tuple[Finding, ...]

    @property
    def status(self) -> Status:
        """The most severe status of all these findings."""
        return min((finding.status for finding in (self.finding, *self.explains)), key=list(Status).index)


def root_causes(findings: Iterable[Finding]) -> tuple[RootCause, ...]:
    """Return the root causes of all failures, warnings and notes, the most severe first.

    Each explained finding, including unknown ones, is listed under one root cause.
    """
    known = tuple(findings)
    roots = [finding for finding in known if finding.status in TOLD and not finding.explained_by]
    effects: dict[int, list[Finding]] = {id(root): [] for root in roots}
    for finding in known:
        explaining = [root for check in finding.explained_by for root in roots if root.check == check]
        if explaining:
            # A check may have several findings. One about the same GPUs is preferred as the explanation.
            nearest = next((root for root in explaining if root.place.meets(finding.place)), explaining[0])
            effects[id(nearest)].append(finding)
    result = (RootCause(root, tuple(effects[id(root)])) for root in roots)
    return tuple(sorted(result, key=lambda cause: list(Status).index(cause.status)))


UNEXPLAINED = "bench.unexplained"
"""The check id of the bring-up's finding on paths that are slow or broken for an unknown reason."""


OTHERS, THROTTLED = "bench.other-processes", "bench.throttled"
"""Check ids of findings of a run on GPUs that others used, and whose clocks were throttled, while it measured."""


class WaiverKind(StrEnum):
    """The kinds of reasons why something is not measured."""

    GPU_HIDDEN = "gpu-hidden"
    """CUDA_VISIBLE_DEVICES hides a GPU."""
    GPU_UNUSABLE = "gpu-unusable"
    """This process cannot use a GPU, or not all of it (``egmctl.topology.access``)."""
    GPU_BUSY = "gpu-busy"
    """Other processes use a GPU."""
    NO_PEER_ACCESS = "no-peer-access"
    """The driver refuses P2P between two GPUs."""
    NO_NVLINK = "no-nvlink"
    """A GPU has no active NVLink, the only link to GPUs of other nodes."""
    NO_ATOMICS = "no-atomics"
    """The driver does not support native atomics between two GPUs."""
    NO_NUMA_MEMORY = "no-numa-memory"
    """This process may not allocate memory on a NUMA node, or the node has none."""
    EGM_BLOCKED = "egm-blocked"
    """The EGM route to a NUMA node is blocked. Another case measures the remaining route."""
    NO_IMEX_CHANNEL = "no-imex-channel"
    """Fabric handles need an accessible IMEX channel."""
    UNSUPPORTED_MEMORY = "unsupported-memory"
    """A GPU reports that it cannot use, or share, a kind of host memory."""
    NO_PAGES = "no-pages"
    """The kernel has no, or too few free, huge pages of a kind."""
    UNSUPPORTED_HANDLE = "unsupported-handle"
    """A GPU reports that it does not support a kind of handle."""
    UNSUPPORTED_ENGINE = "unsupported-engine"
    """A GPU is too old for an engine, or a dependency of the engine is not installed."""
    NOT_INSTALLED = "not-installed"
    """No program that measures it is installed."""
    TOO_FEW_GPUS = "too-few-gpus"
    """It is measured between several GPUs, and fewer take part."""
    REFUSED = "refused"
    """The driver refused it as not supported."""
    NO_ROOM = "no-room"
    """The buffers exceed the share of free memory that they may use."""
    GIVEN_UP = "given-up"
    """The run stopped after too many failures."""
    INTERRUPTED = "interrupted"


OF_GPUS = (WaiverKind.GPU_HIDDEN, WaiverKind.GPU_UNUSABLE, WaiverKind.GPU_BUSY)
"""The kinds that exclude a whole GPU, on every path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """One reason why something is not measured."""

    kind: WaiverKind
    reason: Plain
    """One sentence."""
    gpus: tuple[BusId, ...] = ()
    """The bus ids of the GPUs that the reason is about."""
    rank: int | None = None
    """The rank of these GPUs, in a run with several ranks: GPUs of different nodes may have the same bus id."""

    @classmethod
    def about(cls, kind: WaiverKind, reason: str, *gpus: Gpu) -> Waiver:
        """Return a waiver about some GPUs."""
        return cls(kind=kind, reason=reason, gpus=tuple(gpu.bus_id for gpu in gpus))
