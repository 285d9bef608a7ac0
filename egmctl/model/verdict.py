"""Whether what was measured is what it should be: three independent judgements on each measurement, and their sum.

Made by ``egmctl.verdict`` from a report, its machine and a profile; views only show it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from egmctl.compat import StrEnum
from egmctl.model.record import BusId, Plain
from egmctl.model.task import USUAL, Point, named


class Grade(StrEnum):
    """How a judgement ended, the gravest first."""

    FAIL = "fail"
    WARN = "warn"
    PASS = "pass"  # noqa: S105
    NO_REFERENCE = "no-reference"
    """There is nothing to judge by, and the reason says what is missing; never healthy, never a fault."""


BAD_GRADES = (Grade.FAIL, Grade.WARN)
"""What somebody has to look at, the gravest first."""


def worst_grade(grades: Iterable[Grade]) -> Grade:
    """Return the gravest; that there is no reference counts only where nothing else is known."""
    return min(grades, key=list(Grade).index, default=Grade.NO_REFERENCE)


class Yardstick(StrEnum):
    """The thing that a measurement is held against."""

    PROFILE = "profile"
    """The typical value of its path class on its platform."""
    LINK = "link"
    """The links, their rate, and the part of it that is payload."""
    PEERS = "peers"
    """The same class between other GPUs of the same run."""


class Direction(StrEnum):
    """One half of a GPU's links."""

    EGRESS = "egress"
    """What leaves the GPU: a row of a matrix."""
    INGRESS = "ingress"
    """What arrives at it: a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One measurement held against one yardstick."""

    yardstick: Yardstick
    grade: Grade
    reason: Plain
    """One sentence with both numbers."""
    value: float
    """The measurement's median, in its own unit."""
    expected: float | None = None
    warn: float | None = None
    """The bound beyond which it is a warning: below it for a bandwidth, above it for a latency."""
    fail: float | None = None
    source: Plain | None = None
    """Where the expectation comes from and how sure it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A measurement and what was judged of it."""

    measurement: int
    """Its place in ``RunReport.measurements``."""
    judgements: tuple[Judgement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A GPU all of whose paths in one direction are weak, or a single pair that is."""

    path_class: Plain
    gpus: tuple[BusId, ...]
    """One GPU, or source and destination of a pair."""
    label: Plain
    """``GPU3``, ``GPU1 -> GPU3``."""
    direction: Direction | None
    """``None`` for a pair, and for a GPU's own memory."""
    ratio: float
    """What it reaches, by what its peers reach; of a latency, how many times theirs."""
    grade: Grade
    reason: Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassVerdict:
    """All measurements of one path class together."""

    path_class: Plain
    """Its name: ``device_to_device_memcpy_write_ce over NV18``."""
    case: Plain
    link: Plain
    """The symbol of the route (:attr:`egmctl.model.route.Route.symbol`)."""
    point: Point = USUAL
    """Where on the axes of the case."""
    grade: Grade
    """The gravest of its measurements, and a pass only where a reference was met; one that broke is a fault."""
    reason: Plain
    by_profile: Grade
    """The gravest judgement against each yardstick."""
    by_link: Grade
    by_peers: Grade
    measurements: tuple[int, ...]
    median: float | None
    """``None`` where none was measured."""
    worst: float | None
    unit: Plain
    expected: float | None = None
    warn: float | None = None
    fail: float | None = None
    source: Plain | None = None

    @property
    def name(self) -> str:
        """The case as people call it."""
        return named(self.case, self.point)

    @property
    def by_speed(self) -> Grade:
        """The gravest judgement of what was measured: what broke has no speed."""
        return worst_grade((self.by_profile, self.by_link, self.by_peers))


class OwnerUnknown(StrEnum):
    """Why the owner of memory is not known."""

    NOT_EGM = "not-egm"
    """Only EGM memory belongs to a GPU."""
    NO_COUNTERS = "no-counters"
    """No counters show which links carried the bytes."""
    TOO_FEW = "too-few"
    """The reads that were measured leave several GPUs."""
    OWN_LINK_EACH = "own-link-each"
    """Every GPU read over its own NVLink-C2C, as memory is read that belongs to none."""
    CONTRADICTORY = "contradictory"
    """The counters of several reads contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOwner:
    """To which GPU HOST_NUMA memory belongs that was allocated while one GPU's context was current."""

    case: Plain
    numa_node: int
    allocated_by: BusId
    allocated_by_label: Plain
    owner: BusId | None = None
    """By the counters of the links; ``None``: see ``unknown``."""
    owner_label: Plain | None = None
    unknown: OwnerUnknown | None = None
    measurements: tuple[int, ...]
    """The copies that tell, by their places in ``RunReport.measurements``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    """A whole run."""

    grade: Grade
    profile: Plain | None
    """The profile's name; ``None`` where none fits, and the reason says so."""
    profile_reason: Plain
    """Why that one."""
    classes: tuple[ClassVerdict, ...]
    culprits: tuple[Culprit, ...]
    judged: tuple[Judged, ...]
    warnings: tuple[Plain, ...] = ()
    """What no yardstick measures: error counters that rose."""
    owners: tuple[MemoryOwner, ...] = ()
    """Of memory that was allocated under each GPU of a NUMA node or, where it is EGM, by a process of one GPU; nothing
    is graded by it."""
    strict: bool = False
    """Warnings end the command with 1 too."""

    @property
    def failed(self) -> bool:
        """Whether the command ends with 1 because of it."""
        return self.grade is Grade.FAIL or (self.strict and self.grade is Grade.WARN)

    @property
    def too_slow(self) -> bool:
        """Whether a path is slower than its references allow, or in a strict run something was warned of."""
        slow = any(verdict.by_speed is Grade.FAIL for verdict in self.classes)
        return slow or (self.strict and self.grade is Grade.WARN)
