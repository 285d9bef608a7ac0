"""Whether the GPUs of all nodes are alike: what ``gpu.uniform`` asks of one node, asked of a fleet.

A node whose GPUs are alike may still have other firmware, ECC or limits than the rest of its rack; its own doctor
cannot see that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from egmctl.dataclass import dataclass
from egmctl.doctor.checks.siblings import PROPERTIES, Property, comparable
from egmctl.model.finding import Status
from egmctl.model.fleet import FleetGpu, GroupLine, NodeResult, UnlikeGpus
from egmctl.model.machine import Machine
from egmctl.units import fold, format_kernel_list, grouped

CHECK = "gpu.uniform"


@dataclass(frozen=True, slots=True)
class GpuValues:
    """What is compared of one GPU."""

    index: int
    bus_id: str
    kind: tuple[str | None, str | None]
    """The PCI id and the name."""
    values: tuple[str | None, ...]
    """The value of each property of :data:`egmctl.doctor.checks.siblings.PROPERTIES`; ``None`` if it is not known."""


def values_of(machine: Machine) -> tuple[GpuValues, ...]:
    """Return what is compared of each GPU of a node that NVML lists."""
    gpus = [gpu for gpu in machine.gpus or () if gpu.nvml is not None]
    own = [{gpu.bus_id for gpu in comparable(machine, gpus, compared)} for compared in PROPERTIES]
    return tuple(
        GpuValues(
            index=gpu.index,
            bus_id=gpu.bus_id,
            kind=(gpu.pci.pci_id if gpu.pci else None, gpu.name),
            values=tuple(
                compared.value_of(gpu) if gpu.bus_id in bus_ids else None
                for compared, bus_ids in zip(PROPERTIES, own, strict=True)
            ),
        )
        for gpu in gpus
    )


def unlike(nodes: Mapping[str, Sequence[GpuValues]]) -> tuple[UnlikeGpus, ...]:
    """Return the GPUs that differ from most of their kind on all nodes, by node; those that their own node names are
    left out.

    Parameters
    ----------
    nodes
        The GPUs of each node that answered.
    """
    kinds = grouped((gpu.kind, (node, gpu)) for node, gpus in nodes.items() for gpu in gpus)
    return tuple(
        item
        for of_kind in kinds.values()
        for place, compared in enumerate(PROPERTIES)
        for item in _differences(place, compared, of_kind)
    )


def _differences(place: int, compared: Property, gpus: Sequence[tuple[str, GpuValues]]) -> Iterator[UnlikeGpus]:
    """Yield the GPUs of one kind whose value of a property is not that of most; of all, if no value is."""
    values = [(node, gpu, value) for node, gpu in gpus if (value := gpu.values[place]) is not None]
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
                label="" if len(alike) == len(members) else f"GPU{format_kernel_list({gpu.index for gpu in alike})}",
                gpus=tuple(gpu.bus_id for gpu in alike),
                name=compared.name,
                value=value,
                usual=usual,
                others=fold(other for other in dict.fromkeys(others) if other != node),
                status=Status.WARN if compared.slows else Status.NOTE,
            )


def _is_named_there(members: Sequence[tuple[str, GpuValues]], value: str) -> bool:
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
    answers: Sequence[NodeResult], differing: Sequence[UnlikeGpus], nodes: Mapping[str, Sequence[GpuValues]]
) -> list[NodeResult]:
    """Return the answers in which GPUs that are slower for it, and of which nothing else is wrong, have that reason."""
    reasons = {(item.node, bus_id): item.words for item in reversed(differing) if item.slows for bus_id in item.gpus}
    return [replace(answer, gpus=tuple(_marked(answer, nodes, reasons))) for answer in answers]


def _marked(
    answer: NodeResult, nodes: Mapping[str, Sequence[GpuValues]], reasons: Mapping[tuple[str, str], str]
) -> Iterator[FleetGpu]:
    bus_ids: dict[int | None, str] = {gpu.index: gpu.bus_id for gpu in nodes.get(answer.node, ())}
    for gpu in answer.gpus:
        reason = reasons.get((answer.node, bus_ids.get(gpu.index, "")))
        yield replace(gpu, reason=reason) if reason and gpu.kind is None and not gpu.reason else gpu
