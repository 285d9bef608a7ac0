"""The judgement of the GPUs of all nodes together: which are ready, as parts of their NVLink domain."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import mode

from egmctl.dataclass import dataclass
from egmctl.fleet.numbers import GpuNumbers, answerable, numbers_of, slot_of
from egmctl.model.answer import State
from egmctl.model.bringup import Bringup
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import UNEXPLAINED, Status
from egmctl.model.fleet import FleetGpu, NodeCommand, NodeResult, Reach, Readiness, Unready, UnreadyGpus
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.model.measurement import BROKEN, RunReport
from egmctl.model.record import Command
from egmctl.model.verdict import BAD_GRADES, Grade
from egmctl.saved import Saved
from egmctl.topology.platform import in_rack, multi_node
from egmctl.units import fold, grouped

DomainId = tuple[str | None, int | None]
"""A cluster UUID, as a pseudonym, and a clique; of a GPU in no domain, ``None`` and the clique that NVML reports."""
UNKNOWN: DomainId = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpus:
    """What the document of a node says about its GPUs."""

    domains: Mapping[str, DomainId]
    """The domain and clique of each GPU by bus id."""
    indices: Mapping[str, int]
    numbers: Mapping[str, GpuNumbers]
    slot: int | None
    """The slot of a rack that the node is in."""
    is_board: bool
    """Whether none of them is in a rack."""
    failed: Sequence[tuple[Iterable[str], FleetGpu]]
    """What fails, with the bus ids of its GPUs."""
    warned: Sequence[tuple[Iterable[str], FleetGpu]]
    is_unclear: bool
    """Whether the state of the other GPUs is not known."""


def node_gpus(answer: NodeResult, saved: Saved) -> NodeGpus | None:
    """Return what the document of a node that answered says about its GPUs; ``None`` if it has no machine."""
    if not saved.machines:
        return None
    machine, result = saved.machines[-1], saved.result
    domains = {gpu.bus_id: _identity(machine, gpu) for gpu in machine.gpus or ()}
    failed, warned = _states(domains, result)
    is_unknown = isinstance(result, Diagnosis) and bool(result.answer.gaps)
    return NodeGpus(
        domains=domains,
        indices={gpu.bus_id: gpu.index for gpu in machine.gpus or ()},
        numbers=numbers_of(machine, result),
        slot=slot_of(machine),
        is_board=bool(machine.gpus) and not any(in_rack(machine, gpu) for gpu in machine.gpus or ()),
        failed=failed,
        warned=warned,
        # A failure sets the state, whatever else is unknown.
        is_unclear=answer.state not in (State.GOOD, State.WARN) and (not failed or is_unknown),
    )


def judged_gpus(
    asked: NodeCommand, answers: Sequence[NodeResult], by_node: Mapping[str, NodeGpus]
) -> tuple[list[NodeResult], Readiness | None]:
    """Return the answers with the state of each GPU, and which GPUs are ready as parts of their NVLink domain.

    Nodes deviate if most GPUs of their cluster are in another clique, or if they are alone in theirs and others are
    not; with ``--expect domain-gpus=N``, if they are not in the largest clique. A silent node is assumed to have as
    many GPUs as most others.

    Parameters
    ----------
    by_node
        What the documents of the nodes that answered say about their GPUs, if they have a machine.
    """
    if asked.command not in (Command.DOCTOR, Command.BRINGUP, Command.BENCH):
        return list(answers), None
    # HGX boards beside a rack are no part of the answer, unless a number of GPUs is expected.
    boards = {node for node, gpus in by_node.items() if gpus.is_board} if asked.domain_gpus is None else set()
    racks = {node: gpus.domains for node, gpus in by_node.items() if node not in boards}
    expected = asked.domain_gpus if any(answer.reach is Reach.ANSWERED for answer in answers) else None
    homes = _homes(racks, expected)
    usual = mode(len(of_node) for of_node in racks.values() or (g.domains for g in by_node.values())) if by_node else 0
    judged: list[NodeResult] = []
    for answer in answers:
        node, known = answer.node, by_node.get(answer.node)
        own = known.domains if known else {}
        states: dict[str, FleetGpu] = {}
        expects = None if node in boards else homes
        for bus_ids, state in _all_states(answer, known, expects) if known else ():
            states = dict.fromkeys(bus_ids, state) | states
        gpus = [_with_numbers(states.get(gpu, FleetGpu()), known, gpu) for gpu in own] if known else []
        kind = Unready.UNKNOWN if known is None else Unready.MISSING
        lacking = 0 if node in boards and racks else usual - len(own)
        gpus += [FleetGpu(kind=kind, reason=answer.reach.value)] * lacking
        home = next((f"cluster {own[0]}, clique {own[1]}" for own in own.values() if own in (homes or ())), "")
        judged.append(replace(answer, gpus=tuple(gpus), domain=home, slot=known.slot if known else None))
    if asked.command is Command.BENCH or homes is None:
        return judged, None
    return judged, _readiness([answer for answer in judged if answer.node not in boards], expected, len(homes))


def _with_numbers(state: FleetGpu, node: NodeGpus, bus_id: str) -> FleetGpu:
    numbers = node.numbers[bus_id]
    return replace(
        state,
        index=node.indices[bus_id],
        share=numbers.share,
        links_active=numbers.links_active,
        links=numbers.links,
    )


def _homes(racks: Mapping[str, Mapping[str, DomainId]], expected: int | None) -> Sequence[DomainId] | None:
    """Return where the GPUs of the nodes are expected; ``None`` if none is in a domain and no number is expected."""
    # The node of each GPU of a domain.
    members = grouped((own, node) for node, of_node in racks.items() for own in of_node.values() if own[0])
    if not members and not expected:
        return None
    ordered = sorted(members, key=lambda own: -len(members[own]))
    largest = {own[0]: len(members[own]) for own in reversed(ordered)}
    homes = [own for own in ordered if len(members[own]) == largest[own[0]] and len({*members[own]}) > 1] or ordered
    return homes[:1] if expected else homes


def _readiness(answers: Sequence[NodeResult], expected: int | None, domains: int) -> Readiness:
    """Return which GPUs of the nodes are ready."""
    lost: list[tuple[UnreadyGpus, str]] = []
    for answer in answers:
        for label, number, state in answer.by_state:
            if state.kind is not None:
                part = UnreadyGpus(kind=state.kind, label=label, reason=state.reason, clique_id=state.clique_id)
                lost += [(part, answer.node)] * number
    unready = [
        replace(part, nodes=tuple(dict.fromkeys(nodes)), folded=fold(nodes), gpus=len(nodes))
        for part, nodes in sorted(grouped(lost).items(), key=lambda item: list(Unready).index(item[0].kind))
    ]
    known = sum(len(answer.gpus) for answer in answers)
    return Readiness(gpus=known, ready=known - len(lost), expected=expected, domains=domains, unready=tuple(unready))


def _all_states(
    answer: NodeResult, gpus: NodeGpus, homes: Sequence[DomainId] | None
) -> Iterator[tuple[Iterable[str], FleetGpu]]:
    """Yield GPUs of a node by bus id with their state, the gravest first: the domain, findings, paths, warnings."""
    for own, members in grouped((own, bus_id) for bus_id, own in gpus.domains.items()).items():
        if homes is not None and own not in (UNKNOWN, *homes):
            yield members, FleetGpu(kind=Unready.OUTSIDE, clique_id=own[1])
    yield from gpus.failed
    is_outside = homes is not None
    rest = [bus_id for bus_id, own in gpus.domains.items() if gpus.is_unclear or (is_outside and own == UNKNOWN)]
    yield rest, FleetGpu(kind=Unready.UNKNOWN, reason=answer.reach.value)
    yield from gpus.warned


States = list[tuple[Iterable[str], FleetGpu]]


def _states(all_gpus: Iterable[str], result: object) -> tuple[States, States]:
    """Return the GPUs that fail in a node's result, by bus id, and those with a warning: findings, then paths."""
    measured = result.run if isinstance(result, Bringup) else result
    run = measured if isinstance(measured, RunReport) else None
    causes = result.answer.causes if isinstance(result, Diagnosis | Bringup | RunReport) else ()
    # What crashed, or was slow beside others, proves nothing: the node's answer says so too.
    proven = {number for cause in causes if cause.state is State.BAD for number in cause.measurements}
    paths = [] if run is None else sorted(_slow_paths(run), key=lambda path: path[:2])
    failed: States = []
    for cause in causes:
        gpus = cause.finding.place.gpus
        # The paths of the run say whose paths no cause explains.
        if cause.status is Status.FAIL and not (cause.finding.check == UNEXPLAINED and paths):
            reason = cause.finding.summary
            failed.append((all_gpus if gpus is None else gpus, FleetGpu(kind=Unready.FAULT, reason=reason)))
    failed += [
        (ends, FleetGpu(kind=Unready.FAULT, reason=reason)) for _, _, path, ends, reason in paths if path in proven
    ]
    warned: States = [
        (cause.finding.place.gpus, FleetGpu(reason=cause.finding.summary))
        for cause in causes
        if cause.status is Status.WARN and cause.finding.place.gpus
    ]
    warned += [(ends, FleetGpu(reason=reason)) for _, _, _, ends, reason in paths]
    return failed, warned


def _slow_paths(run: RunReport) -> Iterator[tuple[Grade, float, int, Collection[str], str]]:
    """Yield the grade, the speed as a share of what is expected, the measurement, the GPUs and the reason of each path
    that fails or warns.

    The GPUs are those of its cause, else those that are outliers among their peers, else all on the path.
    """
    gpus = answerable(run)
    bad = [
        (number, Grade.FAIL, 0.0, m.reason or m.status)
        for number, m in enumerate(run.measurements)
        if m.status in BROKEN
    ]
    for entry in run.verdict.judged if run.verdict else ():
        worst = min(entry.judgements, key=lambda judgement: list(Grade).index(judgement.grade))
        share = worst.speed_share(run.measurements[entry.measurement].quantity)
        if worst.grade in BAD_GRADES:
            bad.append((entry.measurement, worst.grade, 1.0 if share is None else min(share, 1.0), worst.reason))
    for number, grade, share, reason in bad:
        yield grade, share, number, gpus(number), reason


def _identity(machine: Machine, gpu: Gpu) -> DomainId:
    """Return the domain and clique of a GPU."""
    info = gpu.nvml.fabric if gpu.nvml else None
    if info is None or not info.registered:
        return UNKNOWN
    return info.identity if info.has_clique and multi_node(machine, gpu) else (None, info.clique_id)
