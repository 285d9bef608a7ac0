"""Findings of checks and what explains them, why measurements were not made, and the diagnosis that doctor makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from egmctl.compat import StrEnum
from egmctl.errors import ExitCode
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.model.record import BusId, Plain
from egmctl.units import format_kernel_list


class Status(StrEnum):
    """The answers of a check, the gravest first. "Not supported" is neither healthy nor a fault: it is ``skip``."""

    FAIL = "fail"
    """It does not work, or not as asked for."""
    WARN = "warn"
    """It works, and harm that was measured or documented is to be expected."""
    UNKNOWN = "unknown"
    """It concerns this machine and is unknown; the summary says why."""
    NOTE = "note"
    """It is as somebody set it up, and something does not work because of that: no fault for who does not need it.
    Exit code 0, with ``--strict`` 1."""
    PASS = "pass"  # noqa: S105
    SKIP = "skip"
    """It does not concern this machine, or was not asked for; the summary says why."""


TOLD = (Status.FAIL, Status.WARN, Status.NOTE)
"""What every view shows one by one, whatever else it folds."""


class Guard(StrEnum):
    """Things that checks guard: the words of ``--for``."""

    EGM = "egm"
    P2P = "p2p"
    IPC = "ipc"
    FABRIC = "fabric"
    RDMA = "rdma"
    PERF = "perf"


class Confidence(StrEnum):
    """How sure the stated cause is."""

    HIGH = "high"
    """Observed: an errno, a driver's answer, a comparison of bytes."""
    MEDIUM = "medium"
    """Inferred from several signs."""
    LOW = "low"
    """Only that something differs was seen."""


class PlaceKind(StrEnum):
    """The sorts of things that findings are about."""

    NODE = "node"
    GPU = "gpu"
    PAIR = "pair"
    """Ordered pairs of GPUs."""
    NUMA = "numa"
    NIC = "nic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The thing, or the several things with the same verdict, that a finding is about."""

    kind: PlaceKind
    ids: tuple[Plain, ...] = ()
    """Bus ids of GPUs, ``SOURCE>TARGET`` of pairs, numbers of NUMA nodes, names of NICs; empty for the node."""
    label: Plain = ""
    """For people: ``GPU0-3,5``, ``NUMA 1``; empty for the node."""

    @property
    def gpus(self) -> frozenset[str] | None:
        """Bus ids of the GPUs, of pairs those of both ends; ``None`` for what is not about GPUs."""
        match self.kind:
            case PlaceKind.GPU:
                return frozenset(self.ids)
            case PlaceKind.PAIR:
                return frozenset(end for pair in self.ids for end in pair.split(">"))
            case _:
                return None

    def meets(self, other: Place) -> bool:
        """Say whether both are about some of the same GPUs, or one of them is not about GPUs."""
        return self.gpus is None or other.gpus is None or bool(self.gpus & other.gpus)


NODE = Place(kind=PlaceKind.NODE)
"""The node as a whole."""


def on_gpus(gpus: Iterable[Gpu]) -> Place:
    """Return the place of some GPUs: ``GPU0-3,5``."""
    chosen = sorted(gpus, key=lambda gpu: gpu.index)
    label = f"GPU{format_kernel_list({gpu.index for gpu in chosen})}"
    return Place(kind=PlaceKind.GPU, ids=tuple(gpu.bus_id for gpu in chosen), label=label)


def on_pairs(pairs: Iterable[tuple[Gpu, Gpu]]) -> Place:
    """Return the place of ordered pairs (who accesses, whose memory): ``GPU0>GPU1``, or how many they are."""
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
    """One thing that was read, and what it said."""

    source: str
    """The file, system call or library function: ``access(/dev/nvidia0)``, ``nvmlDeviceGetP2PStatus``."""
    value: str
    errno: Plain | None = None
    """The name of the error number, where that is what was read: ``EPERM``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Something that a person can do. The tool itself changes nothing."""

    text: str
    """One sentence."""
    command: str | None = None
    """A command that may be pasted as it is; ``None`` where there is none that is safe to give."""
    needs_root: bool = False
    needs_reboot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check's word on one place. Things of a kind with the same verdict share a finding."""

    status: Status
    summary: str
    """One sentence without a full stop, also for ``skip`` and ``unknown``: then it says why."""
    place: Place = NODE
    evidence: tuple[Evidence, ...] = ()
    cause: str = ""
    """Why it is so, if that is known."""
    remedy: Remedy | None = None
    """What to do; every ``fail`` and ``warn`` has it."""
    confidence: Confidence = Confidence.HIGH
    note: str = ""
    """What is worth knowing though it is no fault."""
    check: Plain = ""
    """Id of the check: set by the runner, like the two below."""
    guards: tuple[Guard, ...] = ()
    docs: Plain = ""
    """Where more is written, as path and anchor in this repository."""
    explains: tuple[Plain, ...] = ()
    """Ids of the checks whose faults are this one's doing (``egmctl.doctor.causes``)."""
    explained_by: tuple[Plain, ...] = ()
    """Ids of the checks that found the cause of this fault: it is told there, and counts there only."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A finding that no other explains, and those that it does."""

    finding: Finding
    explains: tuple[Finding, ...]

    @property
    def status(self) -> Status:
        """The gravest of them all."""
        return min((finding.status for finding in (self.finding, *self.explains)), key=list(Status).index)


def root_causes(findings: Iterable[Finding]) -> tuple[Cause, ...]:
    """Return the root causes of all failures, warnings and notes, the gravest first; each finding is in one of them.

    What could not be determined is among what they explain.
    """
    known = tuple(findings)
    roots = [finding for finding in known if finding.status in TOLD and not finding.explained_by]
    effects: dict[int, list[Finding]] = {id(root): [] for root in roots}
    for finding in known:
        explaining = [root for check in finding.explained_by for root in roots if root.check == check]
        if explaining:
            # A check may have found several: the one of the same GPUs explains it.
            nearest = next((root for root in explaining if root.place.meets(finding.place)), explaining[0])
            effects[id(nearest)].append(finding)
    result = (Cause(root, tuple(effects[id(root)])) for root in roots)
    return tuple(sorted(result, key=lambda cause: list(Status).index(cause.status)))


UNEXPLAINED = "bench.unexplained"
"""The id of the finding on paths of a node that is brought up that are slow or broke for no known cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCause:
    """A cause, and the measurements that it explains, of a run or of a node that is brought up.

    What no cause of a run explains stays without one: nothing is guessed.
    """

    status: Status
    """As grave as the gravest thing that it explains."""
    finding: Finding
    """What was found: by one of doctor's checks, with the checks that it explains in ``finding.explains``, or while
    the run went on, by one of the ids in :mod:`egmctl.verdict.explain`."""
    explains: tuple[int, ...]
    """Places in ``RunReport.measurements``: what is slow, broke or was not measured because of it."""
    asked: Plain = ""
    """The GPUs that the user named and of which nothing was measured because of it, ``GPU2-3``: that is a failure."""
    node: Plain = ""
    """Which node of a run over several it was found on, as its GPUs' labels begin: ``node1``."""
    under_load: bool = False
    """Whether it appeared while the bench of a bring-up ran, and was not there before."""

    @property
    def by_run(self) -> bool:
        """Whether the run itself showed it, and none of doctor's checks."""
        return self.finding.check.startswith("bench.")


class WaiverKind(StrEnum):
    """The sorts of things that keep something from being measured."""

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

    @classmethod
    def about(cls, kind: WaiverKind, reason: str, *gpus: Gpu) -> Waiver:
        """Return a waiver that is about some GPUs."""
        return cls(kind=kind, reason=reason, gpus=tuple(gpu.bus_id for gpu in gpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The checks' words on a machine: the key ``result`` of the document."""

    SCHEMA: ClassVar[str] = "egmctl.doctor/1"

    platform: str
    """The platform in one line."""
    gpus_asked: tuple[BusId, ...] | None
    """GPUs that were named with ``--gpus``; null: none were, all count."""
    numa_asked: tuple[int, ...] | None
    """NUMA nodes that were named with ``--numa``."""
    purposes: tuple[Guard, ...]
    """What the findings are about: the words of ``--for``."""
    counts: Mapping[str, int] = field(init=False)
    """Number of checks by status: that of a check's gravest finding; ``explained`` are those whose faults another
    check's finding explains."""
    findings: tuple[Finding, ...]
    """In the order of the checks."""
    strict: bool = False
    """Whether a warning or a note is a failure."""
    machines: tuple[Machine, ...] = ()
    """The node that was checked, with pseudonyms for what is private."""

    def __post_init__(self) -> None:
        statuses = list(self.verdicts.values())
        counts = {status.value: statuses.count(status) for status in Status}
        if explained := len({finding.check for finding in self.findings}) - len(statuses):
            counts["explained"] = explained
        object.__setattr__(self, "counts", counts)

    @property
    def machine(self) -> Machine:
        """The node that was checked.

        Raises
        ------
        IndexError
            If the document is of a version that kept none.
        """
        return self.machines[0]

    @property
    def verdicts(self) -> Mapping[str, Status]:
        """The status of each check: that of its gravest finding."""
        return verdicts(self.findings)

    @property
    def failures(self) -> tuple[str, ...]:
        """The ids of the checks that found a fault."""
        faults = (Status.FAIL, Status.WARN, Status.NOTE) if self.strict else (Status.FAIL,)
        return tuple(check for check, status in self.verdicts.items() if status in faults)

    @property
    def failed(self) -> bool:
        """Whether there is a fault."""
        return bool(self.failures)

    @property
    def nothing(self) -> str | None:
        """Why nothing could be determined, as a sentence; ``None`` where something was."""
        if self.failed:
            return None
        if not self.machine.gpus:
            return "There is no NVIDIA GPU on this machine."
        if not any(self.counts.get(status) for status in (Status.PASS, Status.NOTE, Status.WARN)):
            return "No check could determine anything here."
        return None

    @property
    def undetermined(self) -> bool:
        """Whether too little is known for "no fault" to mean "healthy": nothing, or less than what could not be read.

        A warning does not outweigh what is unknown, and a failure stands whatever else is.
        """
        if self.failed:
            return False
        return self.nothing is not None or self.mostly_unknown

    @property
    def mostly_unknown(self) -> bool:
        """Whether as many checks could not tell anything as passed."""
        unknown = self.counts.get(Status.UNKNOWN, 0)
        return unknown > 0 and unknown >= self.counts.get(Status.PASS, 0)

    @property
    def exit_code(self) -> ExitCode:
        """The command's exit code (``docs/exit-codes.md``)."""
        if self.failed:
            return ExitCode.FAILED
        return ExitCode.NOTHING if self.undetermined else ExitCode.OK

    @property
    def nagios_state(self) -> int:
        """0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN (https://nagios-plugins.org/doc/guidelines.html#AEN78)."""
        if self.failed:
            return 2
        if self.undetermined:
            return 3
        return 1 if self.counts[Status.WARN] else 0


def verdicts(findings: Iterable[Finding]) -> Mapping[str, Status]:
    """Return the status of each check: that of its gravest finding, without those that another check explains."""
    gravity = list(Status)
    worst: dict[str, Status] = {}
    for finding in findings:
        if finding.explained_by:
            continue
        worst[finding.check] = min(worst.get(finding.check, Status.SKIP), finding.status, key=gravity.index)
    return worst
