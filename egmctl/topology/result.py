"""What ``egmctl topo`` answers, as records of frozen dataclasses: the judged topology, everything that its text says.

The classes are the contract ``egmctl.topo/2``; ``docs/schemas/topo.schema.json`` is made from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from egmctl.errors import ExitCode
from egmctl.model.machine import Gpu, Machine, NumaKind, NumaNode, Pair, Unread
from egmctl.model.route import Hop, LinkClass, LinkKind
from egmctl.topology.access import Block, obstacle
from egmctl.topology.links import Link
from egmctl.topology.notes import Missing, missing
from egmctl.topology.platform import C2c, PlatformKind, c2c, egm, own_node
from egmctl.topology.routes import HostRoute, RouteKind
from egmctl.topology.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class TopoResult:
    """The ``result`` of the envelope."""

    SCHEMA: ClassVar[str] = "egmctl.topo/2"

    platform: PlatformEntry
    gpus: tuple[GpuEntry, ...]
    numa_nodes: tuple[NumaEntry, ...]
    nics: tuple[NicEntry, ...]
    links: tuple[LinkEntry, ...]
    routes: tuple[RouteEntry, ...]
    p2p: tuple[P2pEntry, ...]
    notes: tuple[str, ...]
    missing: Missing | None
    """Why no matrix could be drawn; null where one could."""
    machines: tuple[Machine, ...] = ()
    """The whole node, in a document with pseudonyms for what is private: what the other keys were judged from."""

    @property
    def exit_code(self) -> ExitCode:
        """3 where no matrix could be drawn: ``docs/exit-codes.md``."""
        return ExitCode.OK if self.missing is None else ExitCode.NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformEntry:
    """Which EGM platform the whole machine is."""

    kind: PlatformKind
    line: str
    clique_id: int | None
    """Of a multi-node NVLink domain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEntry:
    """One GPU. ``label`` is how the other records name it."""

    label: str
    index: int
    bus_id: str
    uuid: str | None
    name: str | None
    host_numa_id: int | None
    gpu_numa_id: int | None
    cpu_affinity: str | None
    numa_affinity: str | None
    c2c: C2c
    egm: bool | None
    egm_reason: str
    """Why ``egm`` is not true."""
    sources: tuple[str, ...]
    """Of ``pci``, ``proc``, ``node``, ``nvml``, ``cuda``: those that know it."""
    blocked_by: Block | None
    blocked_reason: str
    """Why it cannot be used from this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaEntry:
    """One NUMA node of any kind."""

    id: int
    kind: NumaKind
    cpus: str
    memory_total_bytes: int | None
    selected: bool
    """Whether ``routes`` lead to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NicEntry:
    """One InfiniBand or RoCE device."""

    label: str
    name: str
    bus_id: str | None
    numa_node: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEntry:
    """The link between two GPUs or NICs, each pair once; it has no direction."""

    source: str
    target: str
    kind: LinkClass
    symbol: str
    """As in the matrix, without marks: ``NV18``."""
    nvlinks: int | None
    nvlinks_expected: int | None
    """Where fewer are active than there should be."""
    through: str | None
    """``direct`` or ``switch``."""
    pci_kind: LinkClass
    """The class without NVLink."""
    reason: str
    """Why ``kind`` is ``?``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteEntry:
    """How one GPU reaches the memory of one CPU NUMA node. Rates are of one direction, in 1e9 bytes a second."""

    gpu: str
    numa_node: int
    kind: RouteKind
    symbol: str
    egm: bool | None
    via: tuple[str, ...]
    """The owner GPUs a remote EGM route can lead over; the driver's choice between several is not documented."""
    siblings: tuple[str, ...]
    """For local EGM: other GPUs of that CPU. Memory that one of these owns is reached over NVLink and its C2C instead
    (read in the driver's source, not measured)."""
    hops: tuple[Hop, ...]
    nominal_gb_s: float | None
    """Of the slowest link; null where a link's rate is not known."""
    at_most_gb_s: float | None
    """Of the slowest link whose rate is known."""
    limited_by: LinkKind | None
    """That link."""
    rate_reason: str
    """Why ``nominal_gb_s`` is null."""
    reason: str
    """Why it is blocked, unknown or not EGM."""
    blocked_by: Block | None


@dataclass(frozen=True, slots=True, kw_only=True)
class P2pEntry:
    """What the drivers say of one ordered pair of GPUs."""

    source: str
    target: str
    status: Mapping[str, str | None]
    can_access_peer: bool | None
    cuda_attributes: Mapping[str, int | None]
    atomics: Mapping[str, tuple[str, ...]] | None = None
    """What the link does natively of each atomic operation."""
    unread: Mapping[str, Unread] = field(default_factory=dict)
    """Why values are null; absent where none is."""


def topo_result(topology: Topology) -> TopoResult:
    """Return the records of a topology."""
    machine = topology.machine
    verdict = topology.platform
    pairs = [
        (source, target, machine.pair(one.bus_id, other.bus_id))
        for source, one in topology.gpus.items()
        for target, other in topology.gpus.items()
    ]
    return TopoResult(
        platform=PlatformEntry(kind=verdict.kind, line=verdict.line, clique_id=verdict.clique_id),
        gpus=tuple(_gpu(topology, label, gpu) for label, gpu in topology.gpus.items()),
        numa_nodes=tuple(_numa(topology, node) for node in (machine.host.numa_nodes if machine.host else None) or ()),
        nics=tuple(
            NicEntry(
                label=label,
                name=nic.name,
                bus_id=None if nic.pci is None else nic.pci.bus_id,
                numa_node=None if nic.pci is None else nic.pci.numa_node,
            )
            for label, nic in topology.nics.items()
        ),
        links=tuple(_link(source, target, link) for (source, target), link in topology.links.items()),
        routes=tuple(_route(topology, route) for route in topology.routes),
        p2p=tuple(_p2p(source, target, pair) for source, target, pair in pairs if pair is not None),
        notes=topology.notes,
        missing=missing(machine),
        machines=(machine,),
    )


def _gpu(topology: Topology, label: str, gpu: Gpu) -> GpuEntry:
    able = egm(topology.machine, gpu)
    stopped = obstacle(topology.machine, gpu)
    nvml = gpu.nvml
    return GpuEntry(
        label=label,
        index=gpu.index,
        bus_id=gpu.bus_id,
        uuid=gpu.uuid,
        name=gpu.name,
        host_numa_id=gpu.host_numa_id,
        gpu_numa_id=own_node(gpu),
        cpu_affinity=nvml.cpu_affinity if nvml else None,
        numa_affinity=nvml.numa_affinity if nvml else None,
        c2c=c2c(topology.machine, gpu),
        egm=able.able,
        egm_reason=able.cause,
        sources=gpu.sources,
        blocked_by=stopped.block if stopped else None,
        blocked_reason=stopped.cause if stopped else "",
    )


def _numa(topology: Topology, node: NumaNode) -> NumaEntry:
    return NumaEntry(
        id=node.id,
        kind=node.kind,
        cpus=node.cpus,
        memory_total_bytes=node.memory_total_bytes,
        selected=node.id in topology.nodes,
    )


def _link(source: str, target: str, link: Link) -> LinkEntry:
    return LinkEntry(
        source=source,
        target=target,
        kind=link.kind,
        symbol=link.symbol,
        nvlinks=link.nvlinks,
        nvlinks_expected=link.nvlinks_expected,
        through=link.through,
        pci_kind=link.pci,
        reason=link.reason,
    )


def _route(topology: Topology, route: HostRoute) -> RouteEntry:
    return RouteEntry(
        gpu=topology.label(route.gpu),
        numa_node=route.node,
        kind=route.kind,
        symbol=route.symbol,
        egm=route.egm,
        via=tuple(map(topology.label, route.via)),
        siblings=tuple(map(topology.label, route.siblings)),
        hops=route.hops,
        nominal_gb_s=route.nominal_gb_s,
        at_most_gb_s=route.at_most_gb_s,
        limited_by=route.limited_by,
        rate_reason="" if route.nominal_gb_s is not None else route.rate_reason,
        reason=route.reason,
        blocked_by=route.blocked_by,
    )


def _p2p(source: str, target: str, pair: Pair) -> P2pEntry:
    return P2pEntry(
        source=source,
        target=target,
        status=pair.p2p_status,
        can_access_peer=pair.can_access_peer,
        cuda_attributes=pair.cuda_attributes,
        atomics=pair.atomics,
        unread=pair.unread,
    )
