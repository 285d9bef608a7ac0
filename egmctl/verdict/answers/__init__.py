"""One answer for every result: pure functions, one for each kind, which alone decide it.

``egmctl.api`` and the commands call :func:`answered` once a result is complete, and :mod:`egmctl.saved` for documents
of versions that had no answer. Formats, exit codes and views take the answer from the result.
"""

from __future__ import annotations

from dataclasses import replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

from egmctl.model.answer import Answer, clauses_of, lead_of
from egmctl.model.record import Shown

if TYPE_CHECKING:
    from egmctl.model.measurement import RunReport

Answered = TypeVar("Answered", bound=Shown)

_FUNCTIONS = {
    "RunReport": "run:of_run",
    "Diagnosis": "doctor:of_doctor",
    "Bringup": "bringup:of_bringup",
    "EvidenceReport": "evidence:of_evidence",
    "Topology": "topo:of_topo",
    "Comparison": "comparison:of_comparison",
    "FleetReport": "fleet:of_fleet",
    "Explanations": "explanations:of_explanations",
    "MatchResult": "match:of_match",
}
"""The function that decides the answer of each kind of result. A command imports those of its own results only."""


def answered(result: Answered) -> Answered:
    """Return a result with its answer, and its parts with theirs. A run is judged and explained before.

    After a change of a result, e.g. by pseudonyms, this answers it again.

    Raises
    ------
    TypeError
        Results of this type have no answer.
    """
    whole: Any = result
    kind = type(result).__name__
    if kind in ("Bringup", "EvidenceReport"):
        run = whole.run
        if run is not None:
            run = answered_for_node(run) if kind == "Bringup" else answered(run)
        whole = replace(whole, diagnosis=answered(whole.diagnosis), run=run)
    elif kind == "RunReport":
        whole = _with_logged(whole)
    elif kind == "FleetReport" and whole.comparison is not None:
        whole = replace(whole, comparison=answered(whole.comparison))
    made: Answered = replace(whole, answer=with_clauses(answer_of(whole)))
    return made


def answered_for_node(run: RunReport) -> RunReport:
    """Return a run with its answer to whether all of its nodes can be handed over
    (:func:`egmctl.verdict.answers.run.of_run`)."""
    from egmctl.verdict.answers.run import of_run

    return replace(_with_logged(run), answer=with_clauses(of_run(run, whole_node=True)))


def answer_of(result: object) -> Answer:
    """Return the answer of a result whose parts have theirs.

    Raises
    ------
    TypeError
        Results of this type have no answer.
    """
    function = _FUNCTIONS.get(type(result).__name__)
    if function is None:
        raise TypeError(f"a {type(result).__name__} has no answer")
    made: Answer = resolve_name(f"egmctl.verdict.answers.{function}")(result)
    return made


def with_clauses(answer: Answer) -> Answer:
    """Return an answer with the clauses of its sentence, which a document keeps too."""
    return replace(answer, clauses=clauses_of(answer.sentence), lead=lead_of(answer.sentence) or ())


def _with_logged(run: RunReport) -> RunReport:
    from egmctl.verdict.answers.run import logged_faults

    return replace(run, logged=logged_faults(run))
