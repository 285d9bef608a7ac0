"""The answer of compare: whether something is worse, or whether nothing could be compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from egmctl.model.answer import WORDS, Answer, Cause, Clauses, CommandQuestion, Gap, GapKind, State
from egmctl.model.comparison import Comparison, Outcome
from egmctl.model.record import Command
from egmctl.model.remedy import Remedy
from egmctl.units import listed, natural, several, shortened
from egmctl.verdict.answers import words

_THINGS = {Command.BENCH: "path", Command.BRINGUP: "path", Command.DOCTOR: "finding"}
"""The nouns for what is compared; for other commands it is "fact"."""
_CASES_SHOWN = 3
_STATES = {
    Outcome.WORSE: State.BAD,
    Outcome.DIFFERENT: State.WARN,
    Outcome.BETTER: State.GOOD,
    Outcome.SAME: State.GOOD,
}
"""What each outcome makes of the answer; of several the first here is its word."""


def of_comparison(comparison: Comparison) -> Answer:
    """Return what a comparison answers: its worst outcome, or that nothing could be compared.

    A run that was interrupted, or beside which others used GPUs, is no equal of one that was not: the comparison is
    incomplete unless something else is worse. What is slower only on GPUs that others used is not known to be worse.
    """
    causes = tuple(
        Cause(finding=cause.finding, status=cause.finding.status, node=cause.node, paths=cause.explains)
        for cause in comparison.causes
    )
    outcomes = comparison.outcomes
    counts = {outcome.value: outcomes.count(outcome) for outcome in Outcome} | {"compared": comparison.compared}
    gaps = tuple(_gaps(comparison))
    excused = any(gap.kind is GapKind.EXCUSED for gap in gaps) and not _worse_though_idle(comparison)
    gravest = next((outcome for outcome in _STATES if outcome in outcomes), Outcome.SAME)
    sentence = Clauses.of(_common(comparison) or _first_worse(comparison), _counted(comparison))
    if gaps and (gravest is not Outcome.WORSE or excused or not comparison.compared):
        state, first = State.INCOMPLETE, gaps[0]
        if first.kind is GapKind.NOT_DETERMINED:
            told: str = first.reason
        elif first.kind is GapKind.EXCUSED and _common(comparison):
            # What is slower has its own words for who used the GPUs.
            told = sentence
        else:
            told = Clauses.of(first.reason, sentence)
        step = Remedy(text=_STEPS.get(first.kind, "compare results of the same cases"))
        word = WORDS[CommandQuestion.COMPARE][state]
        return Answer(state=state, word=word, sentence=told, causes=causes, gaps=gaps, next_step=step, counts=counts)
    return Answer(
        state=_STATES[gravest],
        word=gravest.upper(),
        sentence=sentence,
        causes=causes,
        gaps=gaps,
        next_step=Remedy(text=_advice(comparison)) if gravest is Outcome.WORSE else None,
        counts=counts,
    )


_IDLE = "measure again when the GPUs are idle"
_STEPS = {GapKind.EXCUSED: _IDLE, GapKind.NOT_MEASURED: "measure again, to the end"}


def _gaps(comparison: Comparison) -> Iterator[Gap]:
    """Yield why results are not, or not quite, comparable."""
    if not comparison.compared:
        problems = [f"{node.name}: {node.problem}" for node in comparison.nodes if node.problem]
        reason = next(iter([*problems, *comparison.notes]), "the files have nothing in common")
        yield Gap(kind=GapKind.NOT_DETERMINED, reason=reason)
    if stopped := [node.name for node in comparison.nodes if node.interrupted]:
        runs = "the run was" if len(stopped) == 1 else "the runs were"
        reason = f"{runs} interrupted in {shortened(stopped, _CASES_SHOWN)}, and a part was measured"
        yield Gap(kind=GapKind.NOT_MEASURED, reason=reason, nodes=tuple(stopped))
    busy = {node.name: node.busy for node in comparison.nodes if node.busy}
    # Two runs beside which others used the same GPUs were made under the same conditions.
    alike = not comparison.of_nodes and len({node.busy for node in comparison.nodes}) == 1
    if busy and not alike:
        words = [f"{listed(gpus)} in {name}" for name, gpus in busy.items()]
        reason = f"other processes used {shortened(words, _CASES_SHOWN)}"
        yield Gap(kind=GapKind.EXCUSED, reason=reason, nodes=tuple(busy))


def _worse_though_idle(comparison: Comparison) -> bool:
    """Return whether something is worse that no other process has slowed down."""
    busy = {node.name: {*node.busy} for node in comparison.nodes}
    if Outcome.WORSE in (difference.outcome for difference in (*comparison.words, *comparison.machines)):
        return True
    return any(path.outcome is Outcome.WORSE and busy[path.node].isdisjoint(path.ends) for path in comparison.paths)


def _advice(comparison: Comparison) -> str:
    if _got_busy(comparison):
        return _IDLE
    if comparison.causes and comparison.causes[0].finding.remedy is not None:
        return words.advice(comparison.causes[0].finding)
    where = "each node that is worse"
    if not comparison.of_nodes:
        where = f"the node where {comparison.nodes[-1].name} was measured"
    elif bad := dict.fromkeys(row.node for row in comparison.affected if row.outcome is Outcome.WORSE):
        where = shortened(list(bad), _CASES_SHOWN)
    return f"look for the cause with 'egmctl doctor' on {where}"


def _common(comparison: Comparison) -> str:
    worse = [row for row in comparison.affected if row.outcome is Outcome.WORSE and row.change is not None]
    if comparison.of_nodes:
        bad = list(dict.fromkeys(row.node for row in worse))
        if not bad:
            return ""
        where = dict.fromkeys(row.where for row in worse)
        slower = f"only {shortened(bad, _CASES_SHOWN)} {'is' if len(bad) == 1 else 'are'} slower"
        return Clauses.explained(slower, Clauses.of("", *where)) if len(where) <= _CASES_SHOWN else slower
    if not worse:
        return ""
    busy = _got_busy(comparison)
    if comparison.touches:
        pair = _only_pair(comparison)
        ends = f"is between {listed(pair)}" if pair else f"touches {listed(comparison.touches, 'or')}"
        words = f"everything slower {ends}"
        if busy and set(comparison.touches) <= {*busy}:
            return f"{words}, which other processes used in {comparison.nodes[-1].name}"
    else:
        words = _slower_collectives(comparison) or "what is slower has no GPU in common"
    return Clauses.of(words, f"other processes used {listed(busy)} in {comparison.nodes[-1].name}") if busy else words


def _slower_collectives(comparison: Comparison) -> str:
    """Return which collectives of NCCL are slower, in words; empty if a path is slower too."""
    worse = [path for path in comparison.paths if path.outcome is Outcome.WORSE and path.change is not None]
    if not all(path.gpus for path in worse):
        return ""
    return Clauses.explained(f"slower between {worse[0].path}", listed([path.name for path in worse]))


def _first_worse(comparison: Comparison) -> str:
    """Return the first finding or fact that is worse, in words; empty if none is."""
    differences = (*comparison.words, *comparison.machines)
    worse = (each for each in differences if each.outcome is Outcome.WORSE)
    return next((each.words(of_nodes=comparison.of_nodes) for each in worse), "")


def _only_pair(comparison: Comparison) -> Sequence[str]:
    """Return the two ends of the worse paths, sorted, if all have the same; otherwise nothing."""
    worse = [path for path in comparison.paths if path.outcome is Outcome.WORSE and path.change is not None]
    worse = [path for path in worse if not path.gpus]
    pairs = {frozenset((path.source, path.destination)) for path in worse}
    (pair,) = pairs if len(pairs) == 1 else (frozenset(),)
    return sorted(pair, key=natural) if len(pair) > 1 else ()


def _got_busy(comparison: Comparison) -> list[str]:
    """Return the GPUs that other processes used during the second of two runs but not during the first."""
    if comparison.of_nodes or len(comparison.nodes) != 2:
        return []
    before, after = comparison.nodes
    return [gpu for gpu in after.busy if gpu not in before.busy]


def _counted(comparison: Comparison) -> str:
    outcomes = (Outcome.WORSE, Outcome.BETTER, Outcome.DIFFERENT)
    counts = ", ".join(f"{comparison.outcomes.count(outcome)} {outcome}" for outcome in outcomes)
    return Clauses.explained(f"{several(comparison.compared, _THINGS.get(comparison.kind, 'fact'))} compared", counts)
