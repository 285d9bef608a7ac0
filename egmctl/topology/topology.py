"""All that ``egmctl topo`` says of a machine, judged once and then shown in any form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from egmctl.model.machine import Gpu, Machine, Nic
from egmctl.topology.links import Link, P2pMatrix, cpu_node_ids, gpu_link, gpu_nic_link, matrices, nic_link
from egmctl.topology.notes import Note, notes
from egmctl.topology.platform import PlatformVerdict, platform
from egmctl.topology.routes import HostRoute, route


@dataclass(frozen=True, slots=True)
class Topology:
    """The judged topology of a machine, for a choice of its GPUs and CPU NUMA nodes."""

    machine: Machine
    gpus: Mapping[str, Gpu]
    """By label: ``GPU0``."""
    nics: Mapping[str, Nic]
    """By label: ``NIC0``, numbered by place in the machine's list, as nvidia-smi does."""
    nodes: tuple[int, ...]
    """CPU NUMA nodes."""
    platform: PlatformVerdict
    """Of the whole machine, whatever was chosen."""
    links: Mapping[tuple[str, str], Link]
    """By the labels of both ends, each pair once."""
    routes: tuple[HostRoute, ...]
    """By GPU and then by node, in the order of both."""
    p2p: tuple[P2pMatrix, ...]
    """Of the chosen GPUs that NVML lists."""
    remarks: tuple[Note, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """The remarks in words."""
        return tuple(note.words for note in self.remarks)

    def link(self, first: str, second: str) -> Link:
        """Return the link between two labels, in either order."""
        return self.links.get((first, second)) or self.links[second, first]

    def label(self, bus_id: str) -> str:
        """Return the label of any of the machine's GPUs, chosen or not."""
        return gpu_label(self.machine.gpu(bus_id))


def topology(machine: Machine, gpus: Sequence[Gpu] | None = None, nodes: Sequence[int] | None = None) -> Topology:
    """Judge a machine's topology.

    Parameters
    ----------
    gpus, nodes
        Those to show, in the order to show them; by default all GPUs and all NUMA nodes with CPUs. What is not shown
        still counts: a route may lead over a GPU that was not chosen.
    """
    chosen = {gpu_label(gpu): gpu for gpu in ((machine.gpus or ()) if gpus is None else gpus)}
    nics = {f"NIC{place}": nic for place, nic in enumerate(machine.nics or ())}
    chosen_nodes = cpu_node_ids(machine) if nodes is None else tuple(nodes)
    links = {(a, b): gpu_link(machine, chosen[a], chosen[b]) for a, b in combinations(chosen, 2)}
    links |= {(a, b): gpu_nic_link(machine, chosen[a], nics[b]) for a, b in product(chosen, nics)}
    links |= {(a, b): nic_link(machine, nics[a], nics[b]) for a, b in combinations(nics, 2)}
    found = tuple(route(machine, gpu, node) for gpu, node in product(chosen.values(), chosen_nodes))
    verdict = platform(machine)
    return Topology(
        machine=machine,
        gpus=chosen,
        nics=nics,
        nodes=chosen_nodes,
        platform=verdict,
        links=links,
        routes=found,
        p2p=matrices(machine, {label: gpu for label, gpu in chosen.items() if gpu.nvml is not None}),
        remarks=notes(machine, tuple(chosen.values()), links, found, verdict),
    )


def gpu_label(gpu: Gpu) -> str:
    """``GPU0``: its number on the whole node, for people."""
    return f"GPU{gpu.index}"
