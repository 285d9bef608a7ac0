"""The nodes of an MPI job tell each other of themselves, and open each other's memory: facts for the checks of peers.

Every command makes the same calls in the same order, whatever became of its own part, so that none waits for another.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from egmctl import __version__
from egmctl.doctor.probes import Part, attempt
from egmctl.doctor.situation import in_domain, usable
from egmctl.errors import EgmctlError
from egmctl.model.codec import to_json
from egmctl.model.machine import (
    Gpu,
    Imex,
    Machine,
    Outcome,
    Peer,
    PeerPort,
    PeerProbe,
    Peers,
    Probe,
    ProbeKind,
)
from egmctl.mpi.world import Refusal, World, check, read_told, refusal

GATHER_S = 120.0
"""How long the slowest rank may take to read its facts and to start a process on its GPU."""
ALL_PAIRS_UP_TO = 36
"""Nodes, or ranks of one node, of which every pair is tried; of more, each with the next one."""

Message = dict[str, Any]


def with_peers(
    world: World, facts: Callable[[], Machine], failed: Callable[[Machine], Sequence[str]], *, active: bool
) -> Machine:
    """Return this rank's machine with what all nodes have told, and with ``active`` what they have tried.

    Parameters
    ----------
    facts
        Reads this rank's machine.
    failed
        Says which checks fail on it.

    Raises
    ------
    NothingToDo, UsageError
        On every rank, with what keeps one from reading its facts.
    RanksMissing
        Some do not answer.
    """
    machine: Machine | None = None
    try:
        machine = facts()
        own: Message = {"peer": to_json(peer(machine, world.host, world.rank, failed(machine)))}
    except EgmctlError as error:
        own = {"refusal": to_json(refusal(world.rank, world.host, error))}
    told = world.all_gather(json.dumps(own).encode(), GATHER_S)
    check(read_told(Refusal, told, key="refusal", optional=True))
    assert machine is not None  # noqa: S101 - no rank has refused
    by_rank = read_told(Peer, told, key="peer")
    nodes: dict[str, Peer] = {}
    for one in by_rank:
        known = nodes.setdefault(one.host, replace(one, ranks=()))
        nodes[one.host] = replace(known, ranks=(*known.ranks, *one.ranks))
    probes = _tried(world, machine, list(nodes.values())) if active else None
    return replace(machine, peers=Peers(nodes=tuple(nodes.values()), probes=probes))


def peer(machine: Machine, host: str, rank: int, failed: Sequence[str]) -> Peer:
    """Return what a rank tells of its node."""
    driver, imex = machine.driver, (machine.system.imex if machine.system else None) or Imex()
    fabrics = [gpu.nvml.fabric for gpu in machine.gpus or () if gpu.nvml and gpu.nvml.fabric and in_domain(machine)]
    channels = driver.imex_channels if driver else None
    return Peer(
        host=(machine.host.hostname if machine.host else None) or host,
        ranks=(rank,),
        tool=__version__,
        driver_version=driver.driver_version if driver else None,
        clusters=tuple(dict.fromkeys(fabric.cluster_uuid for fabric in fabrics if fabric.cluster_uuid)),
        cliques=tuple(dict.fromkeys(fabric.clique_id for fabric in fabrics if fabric.clique_id is not None)),
        imex_channel=None if channels is None else any(channel.access == "ok" for channel in channels),
        imex_daemon=imex.daemon_state,
        imex_domain=imex.domain_status,
        ports=None
        if machine.nics is None
        else tuple(
            PeerPort(
                nic=nic.name,
                number=port.number,
                state=port.state,
                link_layer=port.link_layer,
                rate_gbit_s=port.rate_gbit_s,
            )
            for nic in machine.nics
            for port in nic.ports
        ),
        failed=tuple(failed),
    )


def _tried(world: World, machine: Machine, nodes: Sequence[Peer]) -> tuple[PeerProbe, ...]:
    """Have the first ranks of all nodes, or all ranks of the only one, open each other's memory, both ways."""
    several = len(nodes) > 1
    place = next(node.ranks.index(world.rank) for node in nodes if world.rank in node.ranks)
    gpus = usable(machine, machine.gpus or ())
    gpu = gpus[place % len(gpus)] if gpus else None
    number = next(number for number, node in enumerate(nodes, 1) if world.rank in node.ranks)
    label = f"node{number}:" * several + (f"GPU{gpu.index}" if gpu else "no GPU")
    labels = [part.decode() for part in world.all_gather(label.encode(), GATHER_S)]
    takes_part = [node.ranks[0] for node in nodes] if several else list(nodes[0].ranks)
    host_of = {rank: node.host for node in nodes for rank in node.ranks}
    found: list[PeerProbe] = []
    seat = _Seat(gpu if world.rank in takes_part else None)
    with contextlib.closing(seat):
        for owner, importer in _pairs(takes_part):
            for host_memory in (False, True):
                blank = PeerProbe(
                    owner=owner,
                    importer=importer,
                    hosts=(host_of[owner], host_of[importer]),
                    labels=(labels[owner], labels[importer]),
                    host_memory=host_memory,
                    outcome=Outcome.NOT_RUN,
                )
                found.append(_shared(world, seat, blank))
    return tuple(found)


def _pairs(ranks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield owners and importers."""
    if len(ranks) <= ALL_PAIRS_UP_TO:
        pairs = list(combinations(ranks, 2))
    else:
        pairs = list(zip(ranks, [*ranks[1:], ranks[0]], strict=True))
    for one, other in pairs:
        yield one, other
        yield other, one


def _shared(world: World, seat: _Seat, blank: PeerProbe) -> PeerProbe:
    """Have the owner share memory, the importer open it and both compare; every rank is told how it ended."""
    given: Message = {}
    for who, order in ((blank.owner, "export"), (blank.importer, "import"), (blank.owner, "verify")):
        own = seat.carry_out(order, given, host_memory=blank.host_memory) if world.rank == who else {}
        said = json.loads(world.broadcast(json.dumps(own).encode(), GATHER_S, root=who))
        if "failed" in said:
            return replace(blank, by=who, **{**said["failed"], "outcome": Outcome(said["failed"]["outcome"])})
        given = given or said
    return replace(blank, outcome=Outcome.OK)


class _Seat:
    """This rank's part in the probes: a process on its GPU, started anew where it has come to its end."""

    def __init__(self, gpu: Gpu | None) -> None:
        self._gpu = gpu
        self._part = Part(gpu.bus_id) if gpu else None

    def carry_out(self, do: str, given: Message, *, host_memory: bool) -> Message:
        """Return the answer of the process to an order, or how it failed."""
        if self._gpu is None:
            return {"failed": {"outcome": Outcome.NOT_RUN, "detail": "no GPU of this rank can be used"}}
        part = self._part = self._part or Part(self._gpu.bus_id)
        node = self._gpu.host_numa_id if host_memory else None
        if host_memory and node is None:
            return {"failed": {"outcome": Outcome.NOT_RUN, "detail": "the GPU's NUMA node is not known"}}
        order: Message = {"do": do, "kind": ProbeKind.FABRIC}
        if do == "export":
            order["node"] = node
        elif do == "import":
            order["offer"] = given["offer"]
        answer: Message = {}

        def ask() -> Message:
            answer.update(part.ask(order)[0])
            return answer

        blank = Probe(kind=ProbeKind.FABRIC, gpus=(), numa_node=node, outcome=Outcome.NOT_RUN)
        failed, is_lost = attempt(blank, None, ask)
        if is_lost:
            part.close()
            self._part = None
        if failed is None:
            return {"offer": answer["offer"]} if do == "export" else {}
        details = {name: getattr(failed, name) for name in ("outcome", "call", "error_number", "detail")}
        return {"failed": details}

    def close(self) -> None:
        """End the process."""
        if self._part is not None:
            self._part.close()
