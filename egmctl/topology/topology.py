"""The topology of a machine, derived once for all output formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations, product
from typing import ClassVar

from egmctl.dataclass import dataclass
from egmctl.model.answer import UNANSWERED, Answer
from egmctl.model.gpu import Gpu
from egmctl.model.host import Nic
from egmctl.model.machine import Machine
from egmctl.model.record import BusId, Shown
from egmctl.topology.access import Block, obstacle
from egmctl.topology.links import Link, P2pMatrix, device_link, p2p_matrices
from egmctl.topology.notes import MissingTopology, TopologyNote, missing, notes
from egmctl.topology.platform import C2c, EgmCapability, PlatformVerdict, c2c, egm, own_node, platform
from egmctl.topology.routes import HostRoute, route

SECTIONS = ("host", "gpus", "pairs", "switches", "nics", "driver", "process")
"""The sections of a machine that a topology shows, and that its answer rests on, also if a recording has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """The state of one GPU; ``machines`` has its facts."""

    label: str
    """The label of the GPU in ``links``: ``GPU0``."""
    bus_id: BusId
    """The bus id of the GPU in ``routes`` and ``machines``."""
    own_node: int | None
    """The NUMA node of the GPU's own memory."""
    c2c: C2c
    egm: EgmCapability
    blocked_by: Block | None
    """The obstacle to using the GPU from this process; null if there is none."""
    blocked_reason: str


@dataclass(frozen=True, kw_only=True, repr=False)
class Topology(Shown):
    """The topology of a machine, for a selection of its GPUs and CPU NUMA nodes."""

    SCHEMA: ClassVar[str] = "egmctl.topo/2"

    platform: PlatformVerdict
    """The platform of the whole machine, regardless of the selection."""
    gpu_states: tuple[GpuState, ...]
    numa_nodes: tuple[int, ...]
    """The CPU NUMA nodes that are destinations of routes."""
    links: tuple[Link, ...]
    """The link between each pair of GPUs and NICs, once; ``NIC0`` is the first of the machine's NICs."""
    routes: tuple[HostRoute, ...]
    """The routes, by GPU and then by node, in the order of both."""
    notes: tuple[TopologyNote, ...]
    missing: MissingTopology | None
    """The reason why no matrix could be drawn; null if one could."""
    machines: tuple[Machine, ...]
    """The whole node, from which the other fields are derived; in a document with pseudonyms for private data."""
    strict: bool = False
    """Whether what doctor finds to be wrong with the connections makes the answer bad."""
    answer: Answer = UNANSWERED
    """What the command answers (:mod:`egmctl.verdict.answers`)."""

    @property
    def machine(self) -> Machine:
        """The whole node."""
        return self.machines[0]

    @cached_property
    def gpus(self) -> Mapping[str, Gpu]:
        """The selected GPUs by label: ``GPU0``."""
        return {state.label: self.machine.gpu(state.bus_id) for state in self.gpu_states}

    @cached_property
    def nics(self) -> Mapping[str, Nic]:
        """The NICs by label: ``NIC0``, numbered in the order of the machine's list, as nvidia-smi does."""
        return _nics(self.machine)

    @cached_property
    def p2p(self) -> tuple[P2pMatrix, ...]:
        """The P2P capabilities between the selected GPUs that NVML lists."""
        return p2p_matrices(self.machine, {label: gpu for label, gpu in self.gpus.items() if gpu.nvml is not None})

    def link(self, first: str, second: str) -> Link:
        """Return the link between two labels, in either order."""
        return self._link_by_ends[frozenset((first, second))]

    @cached_property
    def _link_by_ends(self) -> Mapping[frozenset[str], Link]:
        return {frozenset((link.source, link.target)): link for link in self.links}

    def label(self, bus_id: str) -> str:
        """Return the label of a GPU of the machine, selected or not."""
        return gpu_label(self.machine.gpu(bus_id))

    def judged_again(self, machine: Machine) -> Topology:
        """Return the topology of another machine record, for the same selection of GPUs and nodes."""
        gpus = {gpu.bus_id: gpu for gpu in machine.gpus or ()}
        chosen = dict.fromkeys(state.bus_id for state in self.gpu_states if state.bus_id in gpus)
        again = topology(machine, [gpus[bus_id] for bus_id in chosen], list(dict.fromkeys(self.numa_nodes)))
        return replace(again, strict=self.strict)


def topology(machine: Machine, gpus: Sequence[Gpu] | None = None, nodes: Sequence[int] | None = None) -> Topology:
    """Return the topology of a machine.

    Parameters
    ----------
    gpus, nodes
        The selection in the order of display; by default all GPUs and all NUMA nodes with CPUs. GPUs outside of the
        selection still count: a route may lead over them.
    """
    chosen = {gpu_label(gpu): gpu for gpu in ((machine.gpus or ()) if gpus is None else gpus)}
    nics = _nics(machine)
    numa_nodes = machine.cpu_nodes if nodes is None else tuple(nodes)
    devices: dict[str, Gpu | Nic] = {**chosen, **nics}
    links = tuple(
        replace(device_link(machine, devices[source], devices[target]), source=source, target=target)
        for source, target in (*combinations(chosen, 2), *product(chosen, nics), *combinations(nics, 2))
    )
    routes = tuple(route(machine, gpu, node) for gpu, node in product(chosen.values(), numa_nodes))
    verdict = platform(machine)
    return Topology(
        platform=verdict,
        gpu_states=tuple(_state(machine, gpu) for gpu in chosen.values()),
        numa_nodes=numa_nodes,
        links=links,
        routes=routes,
        notes=notes(machine, tuple(chosen.values()), links, routes, verdict),
        missing=missing(machine),
        machines=(machine,),
    )


def _state(machine: Machine, gpu: Gpu) -> GpuState:
    stopped = obstacle(machine, gpu)
    return GpuState(
        label=gpu_label(gpu),
        bus_id=gpu.bus_id,
        own_node=own_node(gpu),
        c2c=c2c(machine, gpu),
        egm=egm(machine, gpu),
        blocked_by=stopped.block if stopped else None,
        blocked_reason=stopped.cause if stopped else "",
    )


def _nics(machine: Machine) -> Mapping[str, Nic]:
    return {f"NIC{place}": nic for place, nic in enumerate(machine.nics or ())}


def gpu_label(gpu: Gpu) -> str:
    """Return the display label of a GPU: ``GPU0``, numbered on the whole node."""
    return f"GPU{gpu.index}"
