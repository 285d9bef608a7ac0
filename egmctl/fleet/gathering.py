"""The results of a fleet's nodes: each is judged as it arrives, and of it only what the report needs is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from egmctl.comparison import Results
from egmctl.comparison.paths import default_spread, spread_of
from egmctl.errors import UsageError
from egmctl.fleet import uniform
from egmctl.fleet.domain import NodeGpus, judged_gpus, node_gpus
from egmctl.fleet.folder import groups, lines_of
from egmctl.model.answer import State
from egmctl.model.fleet import FleetReport, GroupLine, NodeResult, Reach, reach_counts
from egmctl.model.machine import Machine
from egmctl.model.measurement import RunReport
from egmctl.model.remedy import Remedy
from egmctl.saved import Saved
from egmctl.verdict.answers import answered

_Statements = tuple[tuple[GroupLine, ...], tuple[Remedy | None, ...]]
"""The lines of a node, and their remedies."""


class Gathering:
    """The results of nodes that have answered.

    Runs of the bench are kept until the end: each path is compared with those of all nodes.
    """

    def __init__(self) -> None:
        self._results = Results()
        self._gpus: dict[str, NodeGpus] = {}
        self._values: dict[str, tuple[uniform.GpuValues, ...]] = {}
        self._lines: dict[str, tuple[GroupLine, ...]] = {}
        self._known_lines: dict[_Statements, tuple[GroupLine, ...]] = {}
        self._measured: list[Machine] = []
        """The machines of the runs of the bench."""

    def taken(self, answer: NodeResult, document: Callable[[], Saved]) -> NodeResult:
        """Take in the document of a node, if it answered, and return the answer that counts.

        Parameters
        ----------
        document
            A function that loads the document. If it is invalid, the node has given no answer.
        """
        if answer.reach is not Reach.ANSWERED:
            return answer
        try:
            saved = document()
        except UsageError as error:
            return dataclasses.replace(answer, reach=Reach.GARBAGE, reason=str(error), state=State.BROKE, file="")
        self._results.add(saved)
        lines = lines_of(saved)
        # Lines are equal whatever their remedies name, which differs between nodes.
        self._lines[answer.node] = self._known_lines.setdefault((lines, tuple(line.remedy for line in lines)), lines)
        self._values[answer.node] = tuple(gpu for machine in saved.machines for gpu in uniform.values_of(machine))
        if (gpus := node_gpus(answer, saved)) is not None:
            self._gpus[answer.node] = gpus
        if isinstance(getattr(saved.result, "run", saved.result), RunReport):
            self._measured += saved.machines
        return answer

    def report(self, report: FleetReport, warn: Callable[[str], None]) -> FleetReport:
        """Return a report of the answers taken in with groups of equal nodes, a comparison of their results, and the
        readiness of their GPUs.

        Parameters
        ----------
        warn
            Called with a sentence about each broken profile.
        """
        comparison = None
        if len(self._results) > 1:
            spread = spread_of(self._measured, warn) if self._measured else default_spread
            # Nodes answer in any order.
            order = [answer.node for answer in report.answers]
            comparison = self._results.compared(order=order, spread=spread)
        answers, ready = judged_gpus(report.asked, report.answers, self._gpus)
        unlike = uniform.unlike(self._values)
        more = uniform.lines(unlike)
        lines = {node: (*known, *more.get(node, ())) for node, known in self._lines.items()}
        answers = uniform.marked(answers, unlike, self._values)
        report = dataclasses.replace(
            report, answers=tuple(answers), counts=reach_counts(answers), comparison=comparison, unlike=unlike
        )
        return answered(dataclasses.replace(report, groups=groups(answers, lines), readiness=ready))
