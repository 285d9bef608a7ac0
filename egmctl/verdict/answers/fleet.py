"""The answer of a fleet and of a rack: the worst of its nodes, of their comparison, of the domain and of the fabric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from egmctl.model.answer import WORDS, Answer, Clauses, CommandQuestion, Gap, GapKind, State, worst
from egmctl.model.comparison import Outcome
from egmctl.model.finding import Status
from egmctl.model.fleet import FleetReport, GroupLine, Reach, Readiness, Unready, UnreadyGpus, unready_words
from egmctl.model.remedy import Need, Remedy
from egmctl.units import fold, grouped, several, shortened

_REASONS = 6
"""The number of reasons why GPUs are not ready in the sentence. The causes have all findings."""


def of_fleet(report: FleetReport) -> Answer:
    """Return whether all nodes, and the fabric between them, can be handed over."""
    gaps = tuple(sorted(_gaps(report), key=lambda gap: list(GapKind).index(gap.kind)))
    state = _state(report, gaps)
    states = Counter(node.state for node in report.answers)
    return Answer(
        state=state,
        word=WORDS[CommandQuestion.BRINGUP][state],
        sentence=_sentence(report, states),
        causes=() if report.fabric is None or report.fabric.run is None else report.fabric.run.answer.causes,
        gaps=gaps,
        next_step=_next_step(report, state, states),
        counts={"nodes": len(report.answers), **{f"nodes_{each}": states[each] for each in State if states[each]}},
    )


def _state(report: FleetReport, gaps: Iterable[Gap]) -> State:
    return worst([*(node.state for node in report.answers), *_states(report), *(gap.kind.state for gap in gaps)])


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
        if proven:
            yield State.BAD
        else:
            yield State.WARN if differs else State.GOOD
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
        yield Gap(kind=GapKind.FABRIC, reason=Clauses.explained("the fabric was not measured", report.fabric.reason))


# --- words -----------------------------------------------------------------------------------------------------------


def _sentence(report: FleetReport, states: Counter[State]) -> str:
    """Return the GPUs or nodes that are ready, and the outcome of the fabric if a job measured it.

    The fabric comes first if it alone is why the nodes cannot be handed over.
    """
    if (readiness := report.readiness) is not None:
        nodes = _readiness(readiness)
    else:
        ready, bad = states[State.GOOD] + states[State.WARN], states[State.BAD]
        nodes = _counted("node", len(report.answers), ready, bad, len(report.answers) - ready - bad)
    clauses = [nodes]
    if (fabric := report.fabric) is not None:
        answer = fabric.run.answer if fabric.run is not None else None
        word, sentence = (answer.word, answer.sentence) if answer else ("not measured", fabric.reason)
        is_good = answer is not None and answer.state in (State.GOOD, State.WARN)
        nodes_alone = replace(report, fabric=None)
        decides = not is_good and _state(nodes_alone, _gaps(nodes_alone)) in (State.GOOD, State.WARN)
        clauses.insert(0 if decides else 1, Clauses.explained(f"fabric {word}", sentence))
    slowing = [item for item in report.unlike if item.slows]
    if slowing and not states[State.BAD]:
        more = f" and {several(len(slowing) - 1, 'more difference')}" if len(slowing) > 1 else ""
        place = " of ".join(filter(None, (slowing[0].label, slowing[0].node)))
        clauses.append(f"{place}: {slowing[0].words}{more}")
    compared = report.comparison
    is_worse = compared is not None and compared.answer.state is State.BAD
    if compared is not None and is_worse and not states[State.BAD]:
        clauses.append(compared.answer.sentence)
    return Clauses.of("", *clauses)


def _counted(noun: str, total: int, ready: int, bad: int, unknown: int) -> str:
    """Return how many of all are ready, how many are not, and of how many that is not known."""
    parts = [f"{ready} of {several(total, noun)} {_is(total)} ready"]
    for number, what in ((bad, "not"), (unknown, "unknown")):
        if number:
            parts.append(f"{number} {_is(number)} {what}")
    return ", ".join(parts)


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def _readiness(readiness: Readiness) -> str:
    """Return the number of GPUs of the domain that are ready, and those that are not, with the reasons."""
    unknown = sum(part.gpus for part in readiness.unready if part.kind is Unready.UNKNOWN)
    total = readiness.expected or readiness.gpus
    other = [f"these nodes have {readiness.gpus}"] if total != readiness.gpus else []
    reasons = shortened([*map(_unready, readiness.unready), *other], _REASONS)
    where = "" if readiness.domains < 2 and reasons else f" in {several(readiness.domains, 'NVLink domain')}"
    counted = _counted("GPU", total, readiness.ready, readiness.gpus - readiness.ready - unknown, unknown)
    return Clauses.explained(f"{counted}{where}", reasons)


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
    steps = list(_steps(report))
    if State.BAD in bad or (state is State.BAD and not bad):
        seen = "the causes are below; 'egmctl show' reads each node's file; --list bad prints the node set"
        return Remedy(text="; ".join(_first(steps)) or seen)
    if bad & {State.BROKE, State.INTERRUPTED}:
        return Remedy(text="; ".join(_first(["retry the silent nodes with --resume", *steps])))
    if state in (State.GOOD, State.WARN):
        return None
    if steps:
        return Remedy(text="; ".join(_first(steps)))
    return Remedy(text="see what keeps them from an answer with 'egmctl doctor' there")


_STEPS = 3
"""The number of steps in the answer; the causes have all."""
_NOT_IN_USE = (Need.GPU_RESET, Need.NO_JOBS, Need.IDLE_GPUS, Need.DRIVER_RELOAD, Need.REBOOT)
"""What a remedy may need that no job on the node survives."""


def _first(steps: list[str]) -> list[str]:
    more = len(steps) - _STEPS
    return [*steps[:_STEPS], f"{several(more, 'more step')} below"] if more > 0 else steps


def _steps(report: FleetReport) -> Iterator[str]:
    """Yield what to do on which nodes, for what fails and what puts GPUs outside of the domain: one step a remedy."""
    outside = report.readiness.outside if report.readiness is not None else frozenset()
    lines = [(line, group) for group in report.groups for line in dict.fromkeys(group.lines)]
    nodes_of = grouped(
        ((_step(line), line.status != Status.FAIL), group.nodes)
        for line, group in lines
        if line.remedy is not None
        and (line.status == Status.FAIL or (line.status == Status.WARN and outside.issuperset(group.nodes)))
    )
    for (does, _), nodes in sorted(nodes_of.items(), key=lambda item: item[0][1]):
        yield does.format(nodes=fold(node for names in nodes for node in names))


def _step(line: GroupLine) -> str:
    """Return the step of a finding, with ``{nodes}`` for the nodes: a reset, or the remedy's first sentence."""
    if (remedy := line.remedy) is None:
        return ""
    # The step names the hosts.
    text = remedy.first_sentence.replace("{", "{{").replace("}", "}}")
    if remedy.run and Need.GPU_RESET in remedy.needs:
        does = f"reset {remedy.idle or 'its GPUs'}"
    else:
        does = f"{text[:1].lower()}{text[1:]}"
    drains = any(need in remedy.needs for need in _NOT_IN_USE)
    return f"drain {{nodes}}, {does}" if drains else f"{{nodes}}: {does}"
