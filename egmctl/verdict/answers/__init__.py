"""One answer for every result: pure functions, one for each kind, which alone decide it.

``egmctl.api`` and the commands call :func:`answered` once a result is complete, and :mod:`egmctl.saved` for documents
of versions that had no answer. Formats, exit codes and views take the answer from the result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from egmctl.model.answer import Answer
from egmctl.model.bringup import Bringup
from egmctl.model.comparison import Comparison
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.evidence import EvidenceReport
from egmctl.model.explanation import Explanations
from egmctl.model.fleet import FleetReport
from egmctl.model.measurement import RunReport
from egmctl.model.profile import MatchResult
from egmctl.topology.topology import Topology
from egmctl.verdict.answers.bringup import of_bringup
from egmctl.verdict.answers.comparison import of_comparison
from egmctl.verdict.answers.doctor import of_doctor
from egmctl.verdict.answers.evidence import of_evidence
from egmctl.verdict.answers.explanations import of_explanations
from egmctl.verdict.answers.fleet import of_fleet
from egmctl.verdict.answers.match import of_match
from egmctl.verdict.answers.run import logged_faults, of_run
from egmctl.verdict.answers.topo import of_topo

Answered = TypeVar(
    "Answered",
    RunReport,
    Diagnosis,
    Bringup,
    EvidenceReport,
    Topology,
    Comparison,
    FleetReport,
    Explanations,
    MatchResult,
)


def answered(result: Answered) -> Answered:
    """Return a result with its answer, and its parts with theirs. A run is judged and explained before.

    After a change of a result, e.g. by pseudonyms, this answers it again.
    """
    whole: Any = result
    if isinstance(whole, Bringup):
        run = None if whole.run is None else answered_for_node(whole.run)
        whole = replace(whole, diagnosis=answered(whole.diagnosis), run=run)
    elif isinstance(whole, EvidenceReport):
        run = None if whole.run is None else answered(whole.run)
        whole = replace(whole, diagnosis=answered(whole.diagnosis), run=run)
    elif isinstance(whole, RunReport):
        whole = replace(whole, logged=logged_faults(whole))
    elif isinstance(whole, FleetReport) and whole.comparison is not None:
        whole = replace(whole, comparison=answered(whole.comparison))
    made: Answered = replace(whole, answer=answer_of(whole))
    return made


def answered_for_node(run: RunReport) -> RunReport:
    """Return a run with its answer to whether all of its nodes can be handed over (:func:`of_run`)."""
    return replace(run, logged=logged_faults(run), answer=of_run(run, whole_node=True))


def answer_of(result: object) -> Answer:
    """Return the answer of a result whose parts have theirs.

    Raises
    ------
    TypeError
        Results of this type have no answer.
    """
    match result:
        case RunReport():
            return of_run(result)
        case Diagnosis():
            return of_doctor(result)
        case Bringup():
            return of_bringup(result)
        case EvidenceReport():
            return of_evidence(result)
        case Topology():
            return of_topo(result)
        case Comparison():
            return of_comparison(result)
        case FleetReport():
            return of_fleet(result)
        case Explanations():
            return of_explanations(result)
        case MatchResult():
            return of_match(result)
    raise TypeError(f"a {type(result).__name__} has no answer")
