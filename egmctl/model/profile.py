"""Profiles say what a kind of machine reaches: how it is recognised, its links, and a typical value for each path.

A profile is a TOML file: one that ships with the tool, or one that a site has made of its own runs
(``docs/profiles.md``). No number stands in one without the source it comes from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from egmctl.compat import StrEnum
from egmctl.errors import ExitCode
from egmctl.model.machine import Origin
from egmctl.model.record import Plain, Share, Spelling
from egmctl.model.task import USUAL, Point

PROFILE_SCHEMA = "egmctl.profile/2"
"""The schema of the file, once its TOML is read."""

PciId = Annotated[str, Share.PLAIN, Spelling(example="10de:2335", pattern=r"[0-9a-f]{4}:[0-9a-f]{4}")]
"""PCI vendor and device id, lower case."""

NvLinkSymbol = Annotated[str, Share.PLAIN, Spelling(example="NV18", pattern=r"NV[0-9]{1,2}")]


class SourceKind(StrEnum):
    """How sure a number is, the surest first."""

    MEASURED = "measured"
    """By this tool, on real machines."""
    PUBLISHED = "published"
    """Somebody else's measurement or threshold."""
    NOMINAL = "nominal"
    """The link's rate by its maker: nothing reaches it."""
    RULE = "rule"
    """Chosen, and the text says why."""


class Unit(StrEnum):
    """The unit that a reference counts in."""

    GB_S = "GB/s"
    """1e9 bytes a second: the more the better. Of all flows of a measurement together."""
    NS = "ns"
    """Nanoseconds: the fewer the better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a number comes from."""

    kind: SourceKind
    text: Plain
    """One sentence: who measured or published it, where, when."""
    url: Plain | None = None
    machines: int | None = None
    """Of what was measured: on how many machines."""
    runs: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """How a machine is recognised: all of it has to fit."""

    gpu_names: tuple[Plain, ...]
    """The product name of every GPU is one of these, letter for letter."""
    device_ids: tuple[PciId, ...]
    """The PCI id of every GPU is one of these."""
    least_gpus: int = 1
    most_gpus: int
    """Of the node. A cgroup or a virtual machine may show fewer than there are."""
    nvlinks: int | None = None
    """NVLinks that one GPU has, up or down; ``None`` where that differs or is not published."""
    link: NvLinkSymbol | None = None
    """The link between two GPUs, ``NV18``; ``None`` where it is not published."""
    c2c: bool
    """Whether the GPUs are joined to their CPU by NVLink-C2C."""
    nvlink_domain: bool | None = None
    """Whether the GPUs belong to a multi-node NVLink domain; ``None`` where both do."""
    source: Plain
    """A key of the profile's sources."""

    @property
    def nvlinks_between(self) -> int | None:
        """How many NVLinks join two GPUs: the number in :attr:`link`."""
        return None if self.link is None else int(self.link.removeprefix("NV"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFacts:
    """A GPU's link of one kind, in one direction."""

    link: Plain
    """``nvlink``, ``c2c`` or ``pcie``."""
    links: int
    """NVLinks, C2C links or PCIe lanes."""
    rate_gb_s: float
    """Of one of them, on the link."""
    payload: float
    """The part of the rate that carries data: 16/17 of NVLink, 128/130 of PCIe up to 5.0."""
    source: Plain
    """A key of the profile's sources."""

    @property
    def gb_s(self) -> float:
        """Links times rate times payload."""
        return self.links * self.rate_gb_s * self.payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The values that one class of paths reaches."""

    case: Plain
    point: Point = USUAL
    """Where on the axes of the case; the size of buffers does not count."""
    link: Plain
    """The links, as the bench calls them: ``NV18``, ``PCIe``, ``C2C``, ``NV18>C2C``, ``local``."""
    unit: Unit
    typical: float | None = None
    """The middle of what is known; ``None`` where only a bound is."""
    warn: float | None = None
    """Beyond this it is a warning: below it in GB/s, above it in ns."""
    fail: float | None = None
    """Beyond this it is a fault."""
    flows: int | None = None
    """Only of measurements with so many flows at the same time; ``None``: of any."""
    least_bytes: int = 0
    """Only of buffers of this size or larger."""
    run_to_run: float | None = None
    """Standard deviation of one path's medians from run to run, as a part of their middle: of the worst path over the
    same link."""
    source: Plain
    """A key of the profile's sources: of the typical value, where there is one."""
    bounds_source: Plain | None = None
    """Of the bounds; ``None`` where they come from the same."""

    @property
    def kind(self) -> str:
        """The links without the number of NVLinks, as :attr:`egmctl.model.route.Route.kind`: people write profiles."""
        return re.sub(r"\bNV[0-9]+", "NV", self.link)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One kind of machine."""

    schema: Plain
    name: Plain
    title: Plain
    """One line for people."""
    match: Signature
    sources: Mapping[Plain, Source]
    links: tuple[LinkFacts, ...] = ()
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchPoint:
    """One thing that a profile asks of a machine."""

    what: Plain
    """``GPU name``, ``PCI device id``, ``GPUs``, ``NVLinks per GPU``, ``link``, ``NVLink-C2C``, ``NVLink domain``."""
    fits: bool
    reason: Plain
    """What is expected and what was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Whether a machine is of a profile's kind, and why."""

    profile: Plain
    points: tuple[MatchPoint, ...] = field(default=())

    @property
    def fits(self) -> bool:
        """Whether everything fits."""
        return all(point.fits for point in self.points)

    @property
    def reason(self) -> str:
        """The points that do not fit, or else those that do."""
        wrong = [point.reason for point in self.points if not point.fits]
        return "; ".join(wrong or [point.reason for point in self.points])


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFile:
    """A profile and where it was found."""

    file: str
    profile: Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileList:
    """The answer of ``egmctl profile list`` and ``show``, in the order in which profiles are asked."""

    SCHEMA: ClassVar[str] = "egmctl.profiles/1"

    profiles: tuple[ProfileFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchResult:
    """The answer of ``egmctl profile match``: which profile fits a machine."""

    SCHEMA: ClassVar[str] = "egmctl.match/1"

    origin: Origin
    """Where the facts of the machine came from."""
    profile: Plain | None
    """The one that fits and is asked first; ``None`` where none fits."""
    reason: Plain
    matches: tuple[Match, ...]
    """How well each profile that there is fits."""

    @property
    def exit_code(self) -> ExitCode:
        """3 where no profile fits."""
        return ExitCode.OK if self.profile is not None else ExitCode.NOTHING

    @property
    def fault(self) -> str | None:
        """The contradiction in the record, as half a sentence that names the place."""
        named = [match.profile for match in self.matches].count(self.profile) if self.profile is not None else 1
        return None if named == 1 else "result.profile: it is not among result.matches"
