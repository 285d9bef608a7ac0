"""Differences between saved results, computed by ``egmctl.comparison`` from the files alone.

Two files: the second is compared with the first. More than two: each node is compared with the median of all nodes'
numbers and the most frequent of their attribute values.
"""

from __future__ import annotations

from typing import ClassVar

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.answer import UNANSWERED, Answer
from egmctl.model.finding import Finding
from egmctl.model.record import Command, Plain, Shown
from egmctl.model.task import USUAL, Point, named


class Outcome(StrEnum):
    """The outcomes of a comparison, the most severe first."""

    WORSE = "worse"
    BETTER = "better"
    DIFFERENT = "different"
    """Neither better nor worse, or unknown because only one side has a measurement."""
    SAME = "same"
    """The change is within the bound. With more than two nodes, such paths are not listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedNode:
    """One of the compared files."""

    name: str
    """The file name without its extension."""
    tool: Plain
    at: Plain
    """The time of the measurement or recording, UTC; empty if the file does not state it."""
    modelled: bool = False
    """Whether the machine is a model built from public documents, not captured from hardware."""
    fake: bool = False
    """Whether the GPUs are those of the tests' fake driver, not hardware."""
    busy: tuple[Plain, ...] = ()
    """The GPUs that other processes used during the measurement, or that were not measured because of that."""
    interrupted: bool = False
    """Whether the run was interrupted, so that it is a part of one."""
    problem: str = ""
    """A warning about this file: the run was interrupted, or the reason why there is no result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathDifference:
    """One path, or one collective of NCCL, compared with the reference.

    Measurements are matched by case, ends, size and settings, collectives also by program and NVLS.
    """

    node: str
    case: Plain
    point: Point = USUAL
    """The point on the axes of the case."""
    stage: Plain = ""
    """The stage of a handle's life cycle."""
    path: Plain
    """The path with the node's own labels: ``GPU0 -> GPU1``."""
    source: Plain = ""
    destination: Plain = ""
    """The destination's label; ``source`` is the source's. Both are empty for a collective of NCCL."""
    gpus: tuple[Plain, ...] = ()
    """The GPUs of a collective of NCCL; empty for a path."""
    link: Plain
    """The links of the route: ``NV18``, ``NV18>C2C``, ``PCIe``; of a collective the transports that NCCL chose."""
    size_bytes: int
    unit: Plain
    """``GB/s``, ``ns`` or ``ms``."""
    outcome: Outcome
    reference: float | None = None
    """The first file's median, or the median over all nodes' medians; ``None`` if there is none."""
    value: float | None = None
    change: float | None = None
    """``value / reference - 1``."""
    bound: float | None = None
    """The threshold above which a change in either direction is reported."""
    bound_reason: Plain = ""
    """The source of the bound."""
    reason: Plain = ""
    """The reason why one side has no number, or how reliable the two numbers are."""

    @property
    def name(self) -> str:
        """The case and its point."""
        return named(self.case, self.point)

    @property
    def ends(self) -> tuple[str, ...]:
        """The labels of both ends, or of all GPUs of a collective."""
        return self.gpus or (self.source, self.destination)

    @property
    def slower(self) -> float | None:
        """The relative slowdown; negative if the path is faster."""
        if self.change is None:
            return None
        return -self.change if self.unit == "GB/s" else self.change

    @property
    def is_slower(self) -> bool:
        """Whether the path is slower by more than the bound, whatever that is called."""
        return self.slower is not None and self.bound is not None and self.slower > self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Affected:
    """Paths of one node with the same outcome that share an end."""

    node: str
    where: Plain
    """``GPU3 -> *``, ``* -> GPU3``, ``GPU0 -> GPU3``, ``all paths``."""
    outcome: Outcome
    change: float | None
    """The median of the changes; positive is slower, for bandwidth and latency alike. ``None`` without numbers."""
    cases: tuple[Plain, ...]
    paths: tuple[int, ...]
    """Indices into ``Comparison.paths``."""
    of: int
    """The number of paths of these cases that have that end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeDifference:
    """A finding or fact that differs from the reference. Devices of a kind with the same difference share one."""

    nodes: tuple[str, ...]
    folded: str
    """The nodes in short form: ``node[01-17]``."""
    about: Plain
    """The subject: ``GPU0-3``, ``NUMA 1``, ``mlx5_0``; empty for the whole node."""
    what: Plain
    """The check id or the fact's name."""
    outcome: Outcome
    reference: str
    value: str

    def words(self, *, of_nodes: bool) -> str:
        """Return the subject and both values in words; of several nodes with the nodes that differ from most."""
        subject = " ".join(filter(None, (self.about, _fact(self.what))))
        if of_nodes:
            return f"{self.folded}: {subject}: {self.value}; most: {self.reference}"
        return f"{subject}: {self.reference} -> {self.value}"


_FACTS = {"nvml": "", "nvlinks": "NVLink", "c2c": "C2C", "pcie": "PCIe", "vbios": "VBIOS", "ecc": "ECC", "bar1": "BAR1"}
"""The words of facts whose names are others in a document."""


def _fact(what: str) -> str:
    """Return the name of a fact in words: ``NVLink 4 active``; the id of a check as it is."""
    if "." in what:
        return what
    words = (_FACTS.get(word, word) for key in what.split(" ") for word in key.removesuffix("_bytes").split("_"))
    return " ".join(filter(None, words)) or what.upper()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonCause:
    """The cause of slower paths on one node, which is absent on the reference."""

    node: str
    finding: Finding
    """The finding of a doctor check, or of the run itself (``egmctl.verdict.explain``)."""
    explains: tuple[int, ...]
    """Indices into ``Comparison.paths``."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Shown):
    """A comparison of two or more results of one kind."""

    SCHEMA: ClassVar[str] = "egmctl.comparison/2"

    kind: Command
    """The command that wrote the files."""
    nodes: tuple[ComparedNode, ...]
    """Two files keep their order; more are in natural order of their names."""
    folded: str
    """The names of all nodes in short form."""
    tolerance: float
    """The relative difference of medians up to which nothing is reported."""
    compared: int
    """The number of paths, findings or facts that at least two nodes have."""
    paths: tuple[PathDifference, ...] = ()
    affected: tuple[Affected, ...] = ()
    """A summary of the paths."""
    causes: tuple[ComparisonCause, ...] = ()
    """Causes of worse paths. A path without one has no known cause."""
    words: tuple[AttributeDifference, ...] = ()
    """Findings that differ, or facts of snapshots."""
    machines: tuple[AttributeDifference, ...] = ()
    """Differences between the machines of a bench or doctor run. What is worse or better counts, as it does for
    snapshots; what is only different does not."""
    touches: tuple[Plain, ...] = ()
    """The fewest ends (GPUs, NUMA nodes) so that each worse path has one of them; empty if more than a few, or all, are
    needed."""
    same: tuple[str, ...] = ()
    """The nodes without deviations, if there are more than two nodes."""
    same_folded: str = ""
    notes: tuple[Plain, ...] = ()
    answer: Answer = UNANSWERED
    """What the command answers (:mod:`egmctl.verdict.answers`)."""

    @property
    def of_nodes(self) -> bool:
        """Whether nodes are compared with each other, not a file with an earlier one."""
        return len(self.nodes) > 2

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The outcomes of paths and of findings or facts, and of the machines where one is better."""
        known = (Outcome.WORSE, Outcome.BETTER)
        return (
            *(path.outcome for path in self.paths),
            *(difference.outcome for difference in self.words),
            *(difference.outcome for difference in self.machines if difference.outcome in known),
        )
