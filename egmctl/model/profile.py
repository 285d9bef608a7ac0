"""Performance profiles of machine types: how a type is recognised, its links, and a typical value for each path.

A profile is a TOML file, either one included in the tool or one that a site created from its own runs
(``docs/profiles.md``). Each number in it has a source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, ClassVar

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.answer import UNANSWERED, Answer
from egmctl.model.machine import Origin
from egmctl.model.record import Plain, Share, Shown, Spelling
from egmctl.model.task import USUAL, Point

PROFILE_SCHEMA = "egmctl.profile/2"
"""The schema of the file's content after TOML parsing."""

PciId = Annotated[str, Share.PLAIN, Spelling(example="10de:2335", pattern=r"[0-9a-f]{4}:[0-9a-f]{4}")]
"""A PCI vendor and device id in lower case."""

NvLinkSymbol = Annotated[str, Share.PLAIN, Spelling(example="NV18", pattern=r"NV[0-9]{1,2}")]


class SourceKind(StrEnum):
    """The kinds of sources, the most reliable first."""

    MEASURED = "measured"
    """Measured by this tool on real hardware."""
    PUBLISHED = "published"
    """Measured or specified by a third party."""
    NOMINAL = "nominal"
    """The vendor's link rate, which no transfer reaches."""
    RULE = "rule"
    """Chosen by us; the text has the reason."""


class Unit(StrEnum):
    """The units of references."""

    GB_S = "GB/s"
    """1e9 bytes per second of all flows of a measurement together; higher is better."""
    NS = "ns"
    """Nanoseconds; lower is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The source of a number."""

    kind: SourceKind
    text: Plain
    """One sentence: the author, place and date of the measurement or publication."""
    url: Plain | None = None
    machines: int | None = None
    """The number of machines that were measured."""
    runs: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSignature:
    """The properties that identify a machine type; all must match."""

    gpu_names: tuple[Plain, ...]
    """The permitted product names of every GPU, compared exactly."""
    device_ids: tuple[PciId, ...]
    """The permitted PCI ids of every GPU."""
    least_gpus: int = 1
    most_gpus: int
    """The maximum number of GPUs of the node. A cgroup or virtual machine may show fewer."""
    nvlinks: int | None = None
    """The number of NVLinks per GPU, up or down; ``None`` if it varies or is not published."""
    link: NvLinkSymbol | None = None
    """The link between two GPUs, ``NV18``; ``None`` if it is not published."""
    c2c: bool
    """Whether NVLink-C2C connects the GPUs to their CPU."""
    nvlink_domain: bool | None = None
    """Whether the GPUs belong to a multi-node NVLink domain; ``None`` if the type exists both ways."""
    source: Plain
    """The key of the source in the profile's sources."""

    @property
    def nvlinks_between(self) -> int | None:
        """The number of NVLinks between two GPUs, from :attr:`link`."""
        return None if self.link is None else int(self.link.removeprefix("NV"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFacts:
    """One kind of link of a GPU, in one direction."""

    link: Plain
    """``nvlink``, ``c2c`` or ``pcie``."""
    links: int
    """The number of NVLinks, C2C links or PCIe lanes."""
    rate_gb_s: float
    """The signalling rate of one link or lane."""
    payload: float
    """The fraction of the rate that carries data: 16/17 for NVLink, 128/130 for PCIe up to 5.0."""
    source: Plain
    """The key of the source in the profile's sources."""

    @property
    def gb_s(self) -> float:
        """The payload rate: links x rate x payload."""
        return self.links * self.rate_gb_s * self.payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The reference values for one class of paths."""

    case: Plain
    point: Point = USUAL
    """The point on the axes of the case. The size of buffers has no influence."""
    link: Plain
    """The links in the notation of the bench: ``NV18``, ``PCIe``, ``C2C``, ``NV18>C2C``, ``local``."""
    unit: Unit
    typical: float | None = None
    """The median, if learnt from runs; ``None`` if only thresholds are known."""
    warn: float | None = None
    """The warning threshold: a lower bound in GB/s, an upper bound in ns."""
    fail: float | None = None
    """The fault threshold, in the same direction."""
    flows: int | None = None
    """The number of concurrent flows; ``None`` for any."""
    least_bytes: int = 0
    """The minimum size of buffers."""
    run_to_run: float | None = None
    """The standard deviation of one path's medians between runs, relative to their median: that of the worst path over
    the same link."""
    source: Plain
    """The key of the source, in the profile's sources, of the typical value or else of the thresholds."""
    bounds_source: Plain | None = None
    """The key of the thresholds' source; ``None`` if it is the same."""

    @property
    def kind(self) -> str:
        """The links without the number of NVLinks, as :attr:`egmctl.model.route.Route.kind`."""
        return re.sub(r"\bNV[0-9]+", "NV", self.link)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthyRuns:
    """How often a profile and the rules of a verdict were wrong about idle, healthy machines of its kind."""

    machines: int
    runs: int
    """The number of whole runs of such machines that were judged."""
    alarms: int
    """The number of those runs in which something was called slow, or was not believed."""
    source: Plain
    """The key of the source in the profile's sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A performance profile of one machine type."""

    schema: Plain
    name: Plain
    title: Plain
    """A title in one line."""
    match: MachineSignature
    sources: Mapping[Plain, Source]
    links: tuple[LinkFacts, ...] = ()
    references: tuple[Reference, ...] = ()
    healthy: HealthyRuns | None = None
    """``None`` if no run of a machine of this kind was judged by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchPoint:
    """One property of a profile's signature, compared with a machine."""

    what: Plain
    """``GPU name``, ``PCI device id``, ``GPUs``, ``NVLinks per GPU``, ``link``, ``NVLink-C2C``, ``NVLink domain``."""
    fits: bool
    reason: Plain
    """The expected and the actual value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The result of comparing a machine with a profile's signature."""

    profile: Plain
    points: tuple[MatchPoint, ...] = field(default=())

    @property
    def fits(self) -> bool:
        """Whether all properties match."""
        return all(point.fits for point in self.points)

    @property
    def reason(self) -> str:
        """The properties that do not match, or else all that do."""
        wrong = [point.reason for point in self.points if not point.fits]
        return "; ".join(wrong or [point.reason for point in self.points])


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFile:
    """A profile and its file."""

    file: str
    profile: Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileList:
    """The result of ``egmctl profile list`` and ``show``, in the order in which profiles are tried."""

    SCHEMA: ClassVar[str] = "egmctl.profiles/1"

    profiles: tuple[ProfileFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MatchResult(Shown):
    """The result of ``egmctl profile match``: the profile that matches a machine."""

    SCHEMA: ClassVar[str] = "egmctl.match/1"

    origin: Origin
    """The source of the machine's facts."""
    profile: Plain | None
    """The first profile that matches; ``None`` if none does."""
    reason: Plain
    matches: tuple[Match, ...]
    """The results for all available profiles."""
    answer: Answer = UNANSWERED
    """What the command answers (:mod:`egmctl.verdict.answers`)."""

    @property
    def fault(self) -> str | None:
        """The inconsistency, as half a sentence that begins with the key; ``None`` if there is none."""
        named = [match.profile for match in self.matches].count(self.profile) if self.profile is not None else 1
        return None if named == 1 else "result.profile: it is not among result.matches"
