"""How ranks come to the memory that a step works on: owners make and offer it, those that work on it open it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from egmctl.bench.buffers import Buffer, FlowBuffers
from egmctl.bench.case import End
from egmctl.bench.exchange import Exchange, Item
from egmctl.bench.ranks.team import Team, close_all
from egmctl.bench.rig import Rig
from egmctl.gpu.handles import ImportedMemory
from egmctl.model.measurement import Endpoint, Flow, Task

Seeds = dict[tuple[int, int, End], int]
"""Of each buffer, by the places of its task and its flow and by its end."""


def open_buffers(team: Team, rig: Rig, bus_id: str, assigned: Sequence[Sequence[FlowBuffers]]) -> Seeds:
    """Have all ranks make what they own of the tasks' buffers, and open those of others that they issue work on.

    What a rank has open already stays open. A buffer that its owner has made anew has another seed.

    Parameters
    ----------
    bus_id
        This rank's GPU.
    """
    me = team.exchange.rank
    seeds: Seeds = {}

    def offer(place: int) -> Item:
        offers: list[dict[str, Any]] = []
        fds: list[int] = []
        for end in _ends(team.tasks[place], assigned[place]):
            if end.endpoint.rank != me:
                continue
            held = rig.held(end.buffer)
            offers.append({"flow": end.number, "end": end.end, "seed": held.seed})
            if end.endpoint.handle is not None:
                description, given = held.memory.offer()  # type: ignore[attr-defined]  # made by Rig with a handle
                offers[-1] |= {"offer": description, "fds": len(given)}
                fds += given
        return Item(offers, tuple(fds))

    gathered = team.do(offer)
    offers: dict[tuple[int, int, End], tuple[dict[str, Any], list[int]]] = {}
    for place, items in enumerate(gathered):
        for item in items:
            rest = iter(item.fds)
            for one in item.data or ():
                key = place, one["flow"], End(one["end"])
                seeds[key] = one["seed"]
                if "offer" in one:
                    offers[key] = one["offer"], [next(rest) for _ in range(one["fds"])]

    def open_others(place: int) -> None:
        for end in _ends(team.tasks[place], assigned[place]):
            key = place, end.number, end.end
            if end.flow.initiator_rank != me or end.endpoint.rank == me:
                continue
            if rig.has(end.buffer) and rig.held(end.buffer).seed == seeds[key]:
                continue
            rig.release(end.buffer)
            rig.adopt(end.buffer, ImportedMemory(rig.stream(bus_id).context, *offers[key]), seeds[key])

    try:
        team.do(open_others)
    finally:
        close_all(gathered)
    return seeds


def release(exchange: Exchange, rig: Rig, buffers: Sequence[Buffer]) -> str | None:
    """Let go of buffers, of those of others first and in all ranks; return what went wrong with the last one."""
    problem = None
    for own in (False, True):
        chosen = (buffer for buffer in buffers if (buffer.end.rank == exchange.rank) is own)
        problem = rig.release_all(chosen) or problem
        exchange.barrier()
    return problem


@dataclass(frozen=True, slots=True)
class _End:
    """One end of a flow that is memory."""

    number: int
    flow: Flow
    end: End
    endpoint: Endpoint
    buffer: Buffer


def _ends(task: Task, assigned: Sequence[FlowBuffers]) -> Iterator[_End]:
    for number, (flow, buffers) in enumerate(zip(task.flows, assigned, strict=True)):
        if buffers.source is not None:
            yield _End(number, flow, End.SOURCE, flow.source, buffers.source)
        if buffers.destination is not None:
            yield _End(number, flow, End.DESTINATION, flow.destination, buffers.destination)
