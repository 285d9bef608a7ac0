"""The verdict on a run: up to three independent judgements of each measurement, and their summary.

``egmctl.verdict`` computes it from a report, its machine and a profile.
"""

from __future__ import annotations

from collections.abc import Iterable

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.profile import HealthyRuns
from egmctl.model.record import BusId, Plain
from egmctl.model.task import USUAL, Point, Quantity


class Grade(StrEnum):
    """The grades of judgements, the most severe first."""

    FAIL = "fail"
    WARN = "warn"
    PASS = "pass"  # noqa: S105
    NO_REFERENCE = "no-reference"
    """No reference is available, for the given reason. It is neither healthy nor a fault."""


BAD_GRADES = (Grade.FAIL, Grade.WARN)
"""The grades that need attention, the most severe first."""


def worst_grade(grades: Iterable[Grade]) -> Grade:
    """Return the most severe grade. ``NO_REFERENCE`` is returned only if there is no other."""
    return min(grades, key=list(Grade).index, default=Grade.NO_REFERENCE)


class Yardstick(StrEnum):
    """The references that measurements are compared with."""

    PROFILE = "profile"
    """The typical value of the path class on this platform."""
    LINK = "link"
    """The ceiling of the path: the nominal payload rate of the links, or the published rate of the memory at its ends
    if it is less."""
    PEERS = "peers"
    """The same path class between other GPUs of the same run."""


class Direction(StrEnum):
    """The directions of a GPU's links."""

    EGRESS = "egress"
    """Traffic from the GPU: a row of a matrix."""
    INGRESS = "ingress"
    """Traffic to the GPU: a column of a matrix."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The comparison of one measurement with one yardstick."""

    yardstick: Yardstick
    grade: Grade
    reason: Plain
    """One sentence with the measured and the expected value."""
    value: float
    """The median of the measurement, in its unit."""
    expected: float | None = None
    warn: float | None = None
    """The warning threshold: a lower bound for a bandwidth, an upper bound for a latency."""
    fail: float | None = None
    source: Plain | None = None
    """The source of the expected value and its reliability."""
    limit: Plain | None = None
    """What limits the path, for the yardstick ``link``: the symbol of a link (``C2C``) or a memory (``LPDDR5X``)."""

    def speed_share(self, quantity: Quantity) -> float | None:
        """Return the speed as a share of the expected one: 0.5 is half as fast, whatever the quantity.

        ``None`` if no value is expected, or if a latency or a duration is 0.
        """
        if not self.expected:
            return None
        if quantity is Quantity.BANDWIDTH:
            return self.value / self.expected
        return self.expected / self.value if self.value else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The judgements of one measurement."""

    measurement: int
    """The index in ``RunReport.measurements``."""
    judgements: tuple[Judgement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A GPU whose paths in one direction are all outliers, or a single pair that is one."""

    path_class: Plain
    gpus: tuple[BusId, ...]
    """One GPU, or the source and destination of a pair."""
    label: Plain
    """``GPU3``, ``GPU1 -> GPU3``."""
    direction: Direction | None
    """The direction; ``None`` for a pair and for a GPU's own memory."""
    ratio: float
    """The value relative to that of the peers; for a latency, more than 1 is slower."""
    grade: Grade
    reason: Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassVerdict:
    """The verdict on all measurements of one path class."""

    path_class: Plain
    """The name of the class: ``device_to_device_memcpy_write_ce over NV18``."""
    case: Plain
    link: Plain
    """The symbol of the route (:attr:`egmctl.model.route.Route.symbol`)."""
    gpus: Plain = ""
    """The kinds of the GPUs at the ends, ``A100 -> H200``; empty if all GPUs of the run are of one kind."""
    point: Point = USUAL
    """The point on the axes of the case."""
    grade: Grade
    """The most severe grade of its measurements. It passes only if a reference was met; a broken measurement is a
    fault."""
    reason: Plain
    by_profile: Grade
    """The most severe grade by profile; the two below by link and by peers."""
    by_link: Grade
    by_peers: Grade
    measurements: tuple[int, ...]
    median: float | None
    """The median; ``None`` if no measurement has a value."""
    worst: float | None
    unit: Plain
    expected: float | None = None
    warn: float | None = None
    fail: float | None = None
    source: Plain | None = None

    @property
    def by_speed(self) -> Grade:
        """The most severe grade of the measured values; broken measurements have none."""
        return worst_grade((self.by_profile, self.by_link, self.by_peers))


class OwnerUnknown(StrEnum):
    """The reasons why the owner of memory is unknown."""

    NOT_EGM = "not-egm"
    """Only EGM memory belongs to a GPU."""
    NO_COUNTERS = "no-counters"
    """No counters report the links that carried the bytes."""
    TOO_FEW = "too-few"
    """The measured reads are consistent with several GPUs."""
    OWN_LINK_EACH = "own-link-each"
    """Every GPU read over its own NVLink-C2C, as it reads memory without an owner."""
    CONTRADICTORY = "contradictory"
    """The counters of several reads contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOwner:
    """The GPU that owns HOST_NUMA memory which was allocated while a given GPU's context was current."""

    case: Plain
    numa_node: int
    allocated_by: BusId
    allocated_by_label: Plain
    owner: BusId | None = None
    """The owner by the link counters; if ``None``, ``unknown`` has the reason."""
    owner_label: Plain | None = None
    unknown: OwnerUnknown | None = None
    measurements: tuple[int, ...]
    """The measurements of that memory, as indices into ``RunReport.measurements``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EgmReads:
    """The copies from EGM memory to GPUs by copy engines, beside copies from other host memory over the same paths.

    Ratios are medians over the paths that both sides measured; ``None``: one side was not measured.
    """

    local_gb_s: float
    """The median over the GPUs, each with the memory of its own CPU."""
    of_pinned: float | None = None
    of_system: float | None = None
    """The ratio to plain memory."""
    remote_of_local: float | None = None
    """The ratio of the median with the memory of other CPUs to ``local_gb_s``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    """The verdict on a whole run."""

    profile: Plain | None
    """The name of the profile; ``None`` if none matches."""
    profile_reason: Plain
    """The reason for that choice."""
    healthy: HealthyRuns | None = None
    """How often the profile called healthy machines slow; ``None`` if it does not say so."""
    classes: tuple[ClassVerdict, ...]
    culprits: tuple[Culprit, ...]
    judged: tuple[Judged, ...]
    warnings: tuple[Plain, ...] = ()
    """Problems outside of the yardsticks: error counters that increased."""
    owners: tuple[MemoryOwner, ...] = ()
    """The owners of memory that was allocated under each GPU of a NUMA node or, if it is EGM, by a process with one
    GPU. They do not influence grades."""
    egm: EgmReads | None = None
    """``None`` if no GPU was measured with EGM memory of its own CPU. It does not influence grades."""
    strict: bool = False
    """Whether warnings also make the exit code 1."""
