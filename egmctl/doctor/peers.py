"""Facts for the checks of peers: the nodes of an MPI job exchange descriptions, and import each other's memory.

Every rank makes the same collective calls in the same order, even if its own part failed, so that no rank blocks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from egmctl import __version__
from egmctl.doctor.prober import Prober
from egmctl.doctor.situation import in_domain, usable
from egmctl.launch import Message
from egmctl.model.gpu import Gpu
from egmctl.model.host import Imex, Nic, NicPort
from egmctl.model.machine import Machine
from egmctl.model.probes import Peer, PeerPort, PeerProbe, Peers, ProbeKind, ProbeOutcome
from egmctl.mpi.world import World

GATHER_S = 120.0
"""The timeout for the slowest rank to read its facts, or to start a process on its GPU."""
ALL_PAIRS_UP_TO = 36
"""The maximum number of nodes, or of ranks on a single node, for which all pairs are tried instead of a ring."""


def with_peers(
    world: World, facts: Callable[[], Machine], failed: Callable[[Machine], Sequence[str]], *, active: bool
) -> Machine:
    """Return this rank's machine with the descriptions of all nodes and, if ``active``, their probes.

    Parameters
    ----------
    facts
        A function that reads this rank's machine.
    failed
        A function that returns the ids of failed checks.

    Raises
    ------
    NothingToDo, UsageError
        A rank cannot read its facts. Every rank raises the same error.
    RanksMissing
        Some ranks do not respond.
    """
    machine, peers = world.share(Peer, facts, lambda own: peer(own, world.host, world.rank, failed(own)), GATHER_S)
    nodes: dict[str, Peer] = {}
    for rank_peer in peers:
        known = nodes.setdefault(rank_peer.host, replace(rank_peer, ranks=()))
        nodes[rank_peer.host] = replace(known, ranks=(*known.ranks, *rank_peer.ranks))
    probes = _try_imports(world, machine, list(nodes.values())) if active else None
    return replace(machine, peers=Peers(nodes=tuple(nodes.values()), probes=probes))


def peer(machine: Machine, host: str, rank: int, failed: Sequence[str]) -> Peer:
    """Return a rank's description of its node."""
    driver, imex = machine.driver, (machine.system.imex if machine.system else None) or Imex()
    fabrics = [gpu.nvml.fabric for gpu in machine.gpus or () if gpu.nvml and gpu.nvml.fabric and in_domain(machine)]
    channels, nics = driver.imex_channels if driver else None, machine.nics
    return Peer(
        host=(machine.host.hostname if machine.host else None) or host,
        ranks=(rank,),
        tool=__version__,
        driver_version=driver.driver_version if driver else None,
        libcuda_version=driver.libcuda_version if driver else None,
        clusters=tuple(dict.fromkeys(fabric.cluster_uuid for fabric in fabrics if fabric.cluster_uuid)),
        cliques=tuple(dict.fromkeys(fabric.clique_id for fabric in fabrics if fabric.clique_id is not None)),
        imex_channel=None if channels is None else any(channel.access == "ok" for channel in channels),
        imex_daemon=imex.daemon_state,
        imex_domain=imex.domain_status,
        ports=None if nics is None else tuple(_port(nic, port) for nic in nics for port in nic.ports),
        failed=tuple(failed),
    )


def _port(nic: Nic, port: NicPort) -> PeerPort:
    state, rate = port.state, port.rate_gbit_s
    return PeerPort(nic=nic.name, number=port.number, state=state, link_layer=port.link_layer, rate_gbit_s=rate)


def _try_imports(world: World, machine: Machine, nodes: Sequence[Peer]) -> tuple[PeerProbe, ...]:
    """Try imports in both directions between the first ranks of all nodes, or between all ranks of a single node."""
    several = len(nodes) > 1
    number, own = next((number, node) for number, node in enumerate(nodes, 1) if world.rank in node.ranks)
    gpus = usable(machine, machine.gpus or ())
    gpu = gpus[own.ranks.index(world.rank) % len(gpus)] if gpus else None
    label = f"GPU{gpu.index}" if gpu else "no GPU"
    if several:
        label = f"node{number}:{label}"
    labels = world.all_gather(label, GATHER_S)
    takes_part = [node.ranks[0] for node in nodes] if several else list(nodes[0].ranks)
    host_of = {rank: node.host for node in nodes for rank in node.ranks}
    probes: list[PeerProbe] = []
    prober = Prober() if gpu and world.rank in takes_part else None
    with contextlib.closing(prober) if prober else contextlib.nullcontext():
        for owner, importer in _pairs(takes_part):
            for host_memory in (False, True):
                blank = PeerProbe(
                    owner=owner,
                    importer=importer,
                    hosts=(host_of[owner], host_of[importer]),
                    labels=(labels[owner], labels[importer]),
                    host_memory=host_memory,
                    outcome=ProbeOutcome.NOT_RUN,
                )
                probes.append(_shared(world, gpu, prober, blank))
    return tuple(probes)


def _pairs(ranks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (owner, importer) pairs of ranks."""
    few = len(ranks) <= ALL_PAIRS_UP_TO
    for owner, importer in combinations(ranks, 2) if few else zip(ranks, [*ranks[1:], ranks[0]], strict=True):
        yield owner, importer
        yield importer, owner


def _shared(world: World, gpu: Gpu | None, prober: Prober | None, probe: PeerProbe) -> PeerProbe:
    """Export memory on the owner, import it on the importer, verify the bytes on both; every rank gets the result."""
    order: Message = {"kind": ProbeKind.FABRIC}
    for rank, step in ((probe.owner, "export"), (probe.importer, "open_exported"), (probe.owner, "verify")):
        answer: Message = {}
        if world.rank == rank:
            answer = _response(gpu, prober, {**order, "do": step}, host_memory=probe.host_memory)
        answer = world.all_gather(answer, GATHER_S)[rank]
        if failed := answer.get("failed"):
            failed.pop("error_name", None)
            return replace(probe, by=rank, **{**failed, "outcome": ProbeOutcome(failed["outcome"])})
        order |= answer
    return replace(probe, outcome=ProbeOutcome.OK)


def _response(gpu: Gpu | None, prober: Prober | None, order: Message, *, host_memory: bool) -> Message:
    """Return the response of this rank's process to an order, or the failure."""
    if gpu is None or prober is None:
        return {"failed": {"outcome": ProbeOutcome.NOT_RUN, "detail": "no GPU of this rank can be used"}}
    node = gpu.host_numa_id if host_memory else None
    if host_memory and node is None:
        return {"failed": {"outcome": ProbeOutcome.NOT_RUN, "detail": "the GPU's NUMA node is not known"}}
    answer, _ = prober.ask({**order, "gpu": gpu.bus_id, "node": node})
    return answer
