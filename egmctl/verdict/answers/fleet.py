"""The answer of a fleet and of a rack: the worst of its nodes, of their comparison, of the domain and of the fabric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from egmctl.model.answer import WORDS, Answer, Asked, Gap, GapKind, State, worst
from egmctl.model.comparison import Outcome
from egmctl.model.fleet import FleetReport, Reach, Readiness, Unready, UnreadyGpus, unready_words
from egmctl.model.remedy import Remedy
from egmctl.units import several, shortened

_REASONS = 6
"""The number of reasons why GPUs are not ready in the sentence. The causes have all findings."""


def of_fleet(report: FleetReport) -> Answer:
    """Return whether all nodes, and the fabric between them, can be handed over."""
    gaps = tuple(sorted(_gaps(report), key=lambda gap: list(GapKind).index(gap.kind)))
    state = worst([*(node.state for node in report.answers), *_states(report), *(gap.kind.state for gap in gaps)])
    states = Counter(node.state for node in report.answers)
    return Answer(
        state=state,
        word=WORDS[Asked.BRINGUP][state],
        sentence=_sentence(report, states),
        causes=() if report.fabric is None or report.fabric.run is None else report.fabric.run.answer.causes,
        gaps=gaps,
        next_step=_next_step(report, state, states),
        counts={"nodes": len(report.answers), **{f"nodes_{each}": states[each] for each in State if states[each]}},
    )


def _states(report: FleetReport) -> Iterator[State]:
    """Yield the states of what concerns several nodes.

    Of two nodes, the first is no better reference than the second: one that is better shows that the other is worse.
    A path without a number on one side proves nothing: what broke on a node is in that node's answer.
    """
    if (compared := report.comparison) is not None:
        known = {Outcome.WORSE} if compared.of_nodes else {Outcome.WORSE, Outcome.BETTER}
        outcomes = {path.outcome for path in compared.paths if path.change is not None}
        outcomes |= {difference.outcome for difference in compared.words}
        # Beside other processes, or of a part of a run, nothing is proven; facts of other kinds of nodes prove nothing.
        proven = known & outcomes and compared.answer.state is not State.INCOMPLETE
        differs = compared.answer.state in (State.BAD, State.WARN)
        yield State.BAD if proven else State.WARN if differs else State.GOOD
    yield State.WARN if any(item.slows for item in report.unlike) else State.GOOD
    if (readiness := report.readiness) is not None:
        lacks = readiness.expected not in (None, readiness.gpus)
        not_expected = readiness.expected is not None and any(
            part.kind is Unready.OUTSIDE for part in readiness.unready
        )
        wrong = any(part.kind in (Unready.FAULT, Unready.MISSING) for part in readiness.unready)
        yield State.BAD if lacks or not_expected or wrong else State.GOOD
    if report.fabric is not None and report.fabric.run is not None:
        yield report.fabric.run.answer.state


def _gaps(report: FleetReport) -> Iterator[Gap]:
    """Yield what is not known about nodes, the domain or the fabric."""
    by_reach = {
        GapKind.INTERRUPTED: [node for node in report.answers if node.state is State.INTERRUPTED],
        GapKind.BROKE: [node for node in report.answers if node.state is State.BROKE],
    }
    for kind, nodes in by_reach.items():
        if nodes:
            words = dict.fromkeys(node.reason or node.sentence or node.reach.value for node in nodes)
            yield Gap(kind=kind, reason=shortened(list(words), 1), nodes=tuple(node.node for node in nodes))
    unknown = [node for node in report.answers if node.state is State.INCOMPLETE]
    if unknown:
        words = dict.fromkeys(node.sentence for node in unknown)
        names = tuple(node.node for node in unknown)
        yield Gap(kind=GapKind.NOT_DETERMINED, reason=shortened(list(words), 1), nodes=names)
    for part in report.readiness.unready if report.readiness is not None else ():
        if part.kind is Unready.OUTSIDE:
            yield Gap(kind=GapKind.DOMAIN, reason=_unready(part), nodes=part.nodes)
        elif part.kind is Unready.UNKNOWN and part.reason == Reach.ANSWERED:
            yield Gap(kind=GapKind.NOT_DETERMINED, reason=_unready(part), nodes=part.nodes)
    if report.fabric is not None and report.fabric.run is None:
        yield Gap(kind=GapKind.FABRIC, reason=f"the fabric was not measured: {report.fabric.reason}")


# --- words -----------------------------------------------------------------------------------------------------------


def _sentence(report: FleetReport, states: Counter[State]) -> str:
    """Return the GPUs or nodes that are ready, and the outcome of the fabric if a job measured it."""
    if report.readiness is not None:
        text = _readiness(report.readiness)
    else:
        ready = states[State.GOOD] + states[State.WARN]
        text = f"{ready} of {several(len(report.answers), 'node')} are ready"
    if (fabric := report.fabric) is not None:
        answer = fabric.run.answer if fabric.run is not None else None
        words = f"{answer.word}: {answer.sentence}" if answer else f"not measured: {fabric.reason}"
        text += f"; fabric {words}"
    compared = report.comparison
    is_worse = compared is not None and compared.answer.state is State.BAD
    if compared is not None and is_worse and not states[State.BAD]:
        text += f"; {compared.answer.sentence}"
    return text


def _readiness(readiness: Readiness) -> str:
    """Return the number of GPUs of the domain that are ready, and those that are not, with the reasons."""
    total = readiness.expected or readiness.gpus
    other = [f"these nodes have {readiness.gpus}"] if total != readiness.gpus else []
    reasons = shortened([*map(_unready, readiness.unready), *other], _REASONS)
    where = "" if readiness.domains < 2 and reasons else f" in {several(readiness.domains, 'NVLink domain')}"
    return f"{readiness.ready} of {total} GPUs are ready{where}{': ' if reasons else ''}{reasons}"


def _unready(part: UnreadyGpus) -> str:
    """Return a clause on GPUs that are not ready: where they are, and why."""
    where = f"{part.label} of {part.folded}" if part.label else part.folded
    words = unready_words(part, part.gpus)
    if part.kind is Unready.OUTSIDE:
        verb = "is" if part.gpus == 1 or (len(part.nodes) == 1 and not part.label) else "are"
        return f"{where} {verb} {words}"
    if part.kind is not Unready.UNKNOWN or part.reason == Reach.ANSWERED:
        return f"{where}: {words}"
    gave = "" if part.reason == Reach.UNREACHABLE else "gave "
    return f"{where} {gave}{words} ({several(part.gpus, 'GPU')} assumed)"


def _next_step(report: FleetReport, state: State, states: Counter[State]) -> Remedy | None:
    bad = {each for each in states if each not in (State.GOOD, State.WARN)}
    if report.fabric is not None:
        if bad:
            text = "the causes are below; 'egmctl bringup' on one of these nodes has the evidence; then run it again"
            return Remedy(text=text)
        if state in (State.GOOD, State.WARN):
            return Remedy(text="hand the nodes over")
        if report.fabric.run is not None:
            return report.fabric.run.answer.next_step
        stopped = "'egmctl doctor --active --for fabric' under the same launcher says what stops it; then run it again"
        return Remedy(text=stopped)
    if State.BAD in bad or (state is State.BAD and not bad):
        return Remedy(text="the causes are below; 'egmctl show' reads each node's file; --list bad prints the node set")
    if bad & {State.BROKE, State.INTERRUPTED}:
        return Remedy(text="retry the silent nodes with --resume")
    if state in (State.GOOD, State.WARN):
        return None
    return Remedy(text="see what keeps them from an answer with 'egmctl doctor' there")
