"""Whether the GPUs of all nodes are alike: what ``gpu.uniform`` asks of one node, asked of a fleet.

A node whose GPUs are alike may still have other firmware, ECC or limits than the rest of its rack; its own doctor
cannot see that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from egmctl.doctor.checks.siblings import PROPERTIES, Property, comparable
from egmctl.model.finding import Status, on_gpus
from egmctl.model.fleet import FleetGpu, GroupLine, NodeResult, UnlikeGpus
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.units import fold, grouped

CHECK = "gpu.uniform"


def unlike(machines: Mapping[str, Machine]) -> tuple[UnlikeGpus, ...]:
    """Return the GPUs that differ from most of their kind on all nodes, by node; those that their own node names are
    left out.

    Parameters
    ----------
    machines
        The machine of each node that answered.
    """
    return tuple(item for compared in PROPERTIES for item in _unlike_in(compared, machines))


def _unlike_in(compared: Property, machines: Mapping[str, Machine]) -> Iterator[UnlikeGpus]:
    gpus = [
        (node, gpu)
        for node, machine in machines.items()
        for gpu in comparable(machine, machine.gpus or (), compared)
        if gpu.nvml is not None
    ]
    kinds = grouped(((gpu.pci and gpu.pci.pci_id, gpu.name), (node, gpu)) for node, gpu in gpus)
    for of_kind in kinds.values():
        yield from _differences(compared, of_kind)


def _differences(compared: Property, gpus: Sequence[tuple[str, Gpu]]) -> Iterator[UnlikeGpus]:
    """Yield the GPUs of one kind whose value of a property is not that of most; of all, if no value is."""
    values = [(node, gpu, value) for node, gpu in gpus if (value := compared.value_of(gpu)) is not None]
    by_node = grouped((node, (value, gpu)) for node, gpu, value in values)
    counts = Counter(value for _, _, value in values)
    if len(counts) < 2 or len(by_node) < 2:
        return
    most, number = counts.most_common(1)[0]
    usual = most if 2 * number > len(values) else None
    nodes_of = grouped((value, node) for node, _, value in values)
    for node, members in by_node.items():
        for value, alike in grouped(members).items():
            if value == usual or (compared.slows and _is_named_there(members, value)):
                continue
            others = nodes_of[usual] if usual is not None else by_node
            yield UnlikeGpus(
                node=node,
                label="" if len(alike) == len(members) else on_gpus(alike).label,
                gpus=tuple(gpu.bus_id for gpu in alike),
                name=compared.name,
                value=value,
                usual=usual,
                others=fold(other for other in dict.fromkeys(others) if other != node),
                status=Status.WARN if compared.slows else Status.NOTE,
            )


def _is_named_there(members: Sequence[tuple[str, Gpu]], value: str) -> bool:
    """Return whether the node's own doctor names GPUs with this value: fewer than most of the node have it."""
    having = sum(own == value for own, _ in members)
    return having < len(members) and 2 * having <= len(members)


def lines(differing: Sequence[UnlikeGpus]) -> dict[str, tuple[GroupLine, ...]]:
    """Return what is unlike on each node, as lines of its group."""
    by_node = grouped((item.node, item) for item in differing)
    return {node: tuple(map(_line, items)) for node, items in by_node.items()}


def _line(item: UnlikeGpus) -> GroupLine:
    key = " ".join(filter(None, (CHECK, item.label)))
    return GroupLine(key=key, value=item.words, check=CHECK, status=item.status.value)


def marked(
    answers: Sequence[NodeResult], differing: Sequence[UnlikeGpus], machines: Mapping[str, Machine]
) -> list[NodeResult]:
    """Return the answers in which GPUs that are slower for it, and of which nothing else is wrong, have that reason."""
    reasons = {(item.node, bus_id): item.words for item in reversed(differing) if item.slows for bus_id in item.gpus}
    return [replace(answer, gpus=tuple(_marked(answer, machines, reasons))) for answer in answers]


def _marked(
    answer: NodeResult, machines: Mapping[str, Machine], reasons: Mapping[tuple[str, str], str]
) -> Iterator[FleetGpu]:
    own = machines[answer.node].gpus if answer.node in machines else None
    bus_ids: dict[int | None, str] = {gpu.index: gpu.bus_id for gpu in own or ()}
    for gpu in answer.gpus:
        reason = reasons.get((answer.node, bus_ids.get(gpu.index, "")))
        yield replace(gpu, reason=reason) if reason and gpu.kind is None and not gpu.reason else gpu
