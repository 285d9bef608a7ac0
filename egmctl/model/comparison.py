"""Differences between saved results: made by ``egmctl.comparison`` from the files and nothing else; views show them.

Of two files, the second is held against the first. Of more, each node is held against what the nodes have in common:
the median of their numbers, the most frequent of their words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from egmctl.compat import StrEnum
from egmctl.errors import ExitCode
from egmctl.model.finding import Finding
from egmctl.model.record import Command, Plain
from egmctl.model.task import USUAL, Point, named


class Outcome(StrEnum):
    """The meaning of a difference, the gravest first."""

    WORSE = "worse"
    BETTER = "better"
    DIFFERENT = "different"
    """Neither, or it is unknown: what was measured on one side only."""
    SAME = "same"
    """Within the bound; of more than two nodes such paths are not listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedNode:
    """One file."""

    name: str
    """The file's stem."""
    tool: Plain
    at: Plain
    """When it was measured or recorded, UTC; empty where the file does not say."""
    modelled: bool = False
    """Its machine was put together from public documents: not captured from hardware."""
    fake: bool = False
    """Its GPUs are those of the fake driver of the tests: nothing of it is hardware."""
    busy: tuple[Plain, ...] = ()
    """The GPUs that other processes used while it was measured."""
    problem: str = ""
    """What a reader of its part has to know: that it was interrupted, or why it has no result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathDifference:
    """One path against the reference: its measurements matched by case, ends, size and how it was measured."""

    node: str
    case: Plain
    point: Point = USUAL
    """Where on the axes of the case."""
    stage: Plain = ""
    """The stage of a handle's life cycle."""
    path: Plain
    """``GPU0 -> GPU1``, as the node calls it."""
    source: Plain = ""
    destination: Plain = ""
    """Its two ends."""
    link: Plain
    """The links of its route: ``NV18``, ``NV18>C2C``, ``PCIe``."""
    size_bytes: int
    unit: Plain
    """``GB/s``, ``ns`` or ``ms``."""
    outcome: Outcome
    reference: float | None = None
    """The first file's median, or the median of all nodes' medians; ``None`` where it has none."""
    value: float | None = None
    change: float | None = None
    """``value`` by ``reference``, less 1."""
    bound: float | None = None
    """What the change had to be larger than, in either direction."""
    bound_reason: Plain = ""
    """Where the bound comes from."""
    reason: Plain = ""
    """Why there is no number on one side, or how sure the two are."""

    @property
    def name(self) -> str:
        """The case as people call it."""
        return named(self.case, self.point)

    @property
    def slower(self) -> float | None:
        """By what part of the reference the path is slower, negative where it is faster."""
        if self.change is None:
            return None
        return -self.change if self.unit == "GB/s" else self.change


@dataclass(frozen=True, slots=True, kw_only=True)
class Affected:
    """Paths of one node with the same outcome that have an end in common."""

    node: str
    where: Plain
    """``GPU3 -> *``, ``* -> GPU3``, ``GPU0 -> GPU3``, ``all paths``."""
    outcome: Outcome
    change: float | None
    """The median of their changes; more is slower, of a bandwidth and of a latency alike. ``None`` without numbers."""
    cases: tuple[Plain, ...]
    paths: tuple[int, ...]
    """Places in ``Comparison.paths``."""
    of: int
    """How many paths of these cases have that end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeDifference:
    """A finding or a fact that is not as the reference. Things of a kind with the same difference share one."""

    nodes: tuple[str, ...]
    folded: str
    """The nodes in short: ``node[01-17]``."""
    about: Plain
    """``GPU0-3``, ``NUMA 1``, ``mlx5_0``; empty for the node as a whole."""
    what: Plain
    """The check, or the fact's name."""
    outcome: Outcome
    reference: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonCause:
    """A cause of paths of one node that are worse, which does not hold for the reference."""

    node: str
    finding: Finding
    """By one of doctor's checks, or what the run saw itself (``egmctl.verdict.explain``)."""
    explains: tuple[int, ...]
    """Places in ``Comparison.paths``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two or more results of one kind against each other."""

    SCHEMA: ClassVar[str] = "egmctl.comparison/2"

    kind: Command
    """What wrote the files."""
    nodes: tuple[ComparedNode, ...]
    """Two files stand in their order, more in the natural order of their names."""
    folded: str
    """All of them in short."""
    tolerance: float
    """What a median may differ by without being reported, as a part of the reference."""
    compared: int
    """Paths, findings or facts that two nodes or more have."""
    paths: tuple[PathDifference, ...] = ()
    affected: tuple[Affected, ...] = ()
    """The paths in short."""
    causes: tuple[ComparisonCause, ...] = ()
    """What explains the paths that are worse; a path without one has none that was read."""
    words: tuple[AttributeDifference, ...] = ()
    """Findings that differ, or the facts of snapshots."""
    machines: tuple[AttributeDifference, ...] = ()
    """What differs in the machines that a bench or a doctor ran on. It stands beside the result and judges nothing."""
    touches: tuple[Plain, ...] = ()
    """The fewest ends (GPUs, NUMA nodes) one of which every worse path has; empty where they have none in common."""
    same: tuple[str, ...] = ()
    """The nodes with nothing that is out of line, where there are more than two."""
    same_folded: str = ""
    notes: tuple[Plain, ...] = ()

    @property
    def of_nodes(self) -> bool:
        """Whether these are nodes against each other, not a file against an earlier one."""
        return len(self.nodes) > 2

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The outcome of every difference that counts."""
        return (*(path.outcome for path in self.paths), *(difference.outcome for difference in self.words))

    @property
    def exit_code(self) -> ExitCode:
        """1 where something is worse, 3 where nothing could be compared: ``docs/exit-codes.md``."""
        if Outcome.WORSE in self.outcomes:
            return ExitCode.FAILED
        return ExitCode.OK if self.compared else ExitCode.NOTHING
