"""The ranks of a run: the GPU of each rank, and whether all ranks fit together. Pure.

Under MPI each rank reports what it finds on its node, and all ranks come to the same result from all reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from egmctl.bench.plan.paths import gpu_waiver
from egmctl.dataclass import dataclass
from egmctl.errors import NothingToDo, UsageError
from egmctl.model.finding import Waiver
from egmctl.model.gpu import Gpu
from egmctl.model.host import DeviceNode
from egmctl.model.machine import Machine
from egmctl.model.route import Rank, node_names
from egmctl.model.task import Endpoint
from egmctl.units import grouped, printable, several


@dataclass(frozen=True, slots=True)
class RankLayout:
    """The ranks of a run and the nodes that they are on."""

    ranks: tuple[Rank, ...]
    machines: Mapping[str, Machine]
    """The nodes by host name."""
    channels: Mapping[int, tuple[DeviceNode, ...] | None] = field(default_factory=dict)
    """IMEX channels that a rank sees, if they differ from the facts of its node."""
    left_out: Mapping[int, Waiver] = field(default_factory=dict)
    """Waivers of selected GPUs that cannot be used. Their ranks are the last ones and get no process."""

    @property
    def taking_part(self) -> tuple[Rank, ...]:
        """The ranks that get a process."""
        return self.ranks[: len(self.ranks) - len(self.left_out)]

    def machine(self, rank: Rank) -> Machine:
        """Return the node that a rank is on."""
        return self.machines[rank.host or ""]

    def node_of(self, end: Endpoint) -> str | None:
        """Return the name of the host of an end's memory or GPU."""
        return None if end.rank is None else self.ranks[end.rank].host

    def gpu(self, rank: Rank) -> Gpu:
        """Return the GPU of a rank."""
        return self.machine(rank).gpu(rank.bus_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """The report of one rank to all others."""

    host: str
    tool: str
    driver: str | None = None
    gpus: tuple[str, ...] = ()
    """Bus ids of the GPUs that it can use and that ``--gpus`` selects, in ascending order."""
    domains: Mapping[str, NvlinkDomain] | None = None
    """The NVLink domain of each GPU. Fabric handles are valid within a domain."""
    waivers: tuple[str, ...] = ()
    """The reasons why it cannot use other GPUs of the node."""
    channels: tuple[DeviceNode, ...] | None = None
    """IMEX channels that this process sees: a container or a cgroup may hide them from one rank only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkDomain:
    """The NVLink domain in which fabric handles of a GPU are valid; if there is none, the reason."""

    cluster: str | None = None
    clique: int | None = None
    reason: str = ""

    def __str__(self) -> str:
        return f"none: {self.reason}" if self.cluster is None else f"cluster {self.cluster}, clique {self.clique}"


def rank_info(machine: Machine, host: str, tool: str, selected: Sequence[Gpu]) -> RankInfo:
    """Return what a rank reports about itself.

    Parameters
    ----------
    selected
        The GPUs of the machine that ``--gpus`` names.
    """
    waivers = {gpu.bus_id: gpu_waiver(machine, gpu) for gpu in selected}
    usable = sorted((gpu for gpu in selected if waivers[gpu.bus_id] is None), key=lambda gpu: gpu.bus_id)
    return RankInfo(
        host=host,
        tool=tool,
        driver=machine.driver.driver_version if machine.driver else None,
        gpus=tuple(gpu.bus_id for gpu in usable),
        domains={gpu.bus_id: domain(gpu) for gpu in usable},
        waivers=tuple(dict.fromkeys(waiver.reason for waiver in waivers.values() if waiver)),
        channels=machine.driver.imex_channels if machine.driver else None,
    )


def domain(gpu: Gpu) -> NvlinkDomain:
    """Return the NVLink domain and the clique of a GPU as NVML reports them.

    Fabric handles of other nodes can be imported within one clique of one cluster (NVIDIA's IMEX guide and NVML's
    documentation of ``nvmlGpuFabricInfo_t``). The HGX board of a single node has no cluster.
    """
    fabric = gpu.nvml.fabric if gpu.nvml else None
    if fabric is None:
        return NvlinkDomain(reason="NVML reports no fabric")
    if fabric.state != "completed":
        return NvlinkDomain(reason=f"the fabric's state is {fabric.state}")
    if fabric.cluster_uuid is None:
        unread = fabric.unread.get("cluster_uuid")
        return NvlinkDomain(reason=f"the cluster's UUID is {unread.detail if unread else 'not reported'}")
    return NvlinkDomain(cluster=fabric.cluster_uuid, clique=fabric.clique_id)


def assign_gpus(infos: Sequence[RankInfo]) -> tuple[str, ...]:
    """Return the GPU of each rank. Every rank gets a GPU of its own node.

    Ranks with few usable GPUs choose first (a launcher that binds gives each rank one). Each takes its first free GPU.

    Raises
    ------
    UsageError
        A node, which the message names, has more ranks than usable GPUs.
    NothingToDo
        A node has no usable GPU.
    """
    assigned: dict[int, str] = {}
    for host, ranks in hosts(infos).items():
        free = set().union(*(infos[rank].gpus for rank in ranks))
        if not free:
            reason = next((reason for rank in ranks for reason in infos[rank].waivers), "no GPU was found")
            raise NothingToDo(f"{printable(host)} has no GPU to measure: {reason}")
        usable = len(free)
        for rank in sorted(ranks, key=lambda rank: (len(infos[rank].gpus), rank)):
            bus_id = next((bus_id for bus_id in infos[rank].gpus if bus_id in free), None)
            if bus_id is None:
                raise UsageError(
                    f"{printable(host)} has {len(ranks)} ranks and {several(usable, 'usable GPU')}: start one "
                    "rank per GPU (--ntasks-per-node, mpirun --map-by ppr:N:node)"
                )
            free.discard(bus_id)
            assigned[rank] = bus_id
    return tuple(assigned[rank] for rank in range(len(infos)))


def check_agreement(infos: Sequence[RankInfo], gpus: Sequence[str], *, one_domain: bool = True) -> None:
    """Check that all ranks have the same versions of egmctl and the driver and, if needed, the same NVLink domain.

    Parameters
    ----------
    one_domain
        Whether fabric handles must be valid across nodes.

    Raises
    ------
    NothingToDo
        A check fails; the message has each difference by node.
    """
    wrong = [
        *_difference("the version of egmctl", infos, lambda rank: infos[rank].tool),
        *_difference("the driver's version", infos, lambda rank: infos[rank].driver or "unknown"),
    ]
    if one_domain and len(hosts(infos)) > 1:
        # Within one node fabric handles need an IMEX channel but no domain.
        none = NvlinkDomain(reason="not reported")
        domains = [(infos[rank].domains or {}).get(gpu, none) for rank, gpu in enumerate(gpus)]
        wrong += _difference("the NVLink domain", infos, lambda rank: str(domains[rank]))
        if not wrong and domains[0].cluster is None:
            wrong.append(f"fabric handles do not go from node to node here ({domains[0]})")
    if wrong:
        raise NothingToDo("; ".join(wrong))


def hosts(infos: Sequence[RankInfo]) -> dict[str, list[int]]:
    """Return the ranks of each node, in the order of their first ranks."""
    return grouped((info.host, rank) for rank, info in enumerate(infos))


def ranks_of(infos: Sequence[RankInfo], gpus: Sequence[str], machines: Mapping[str, Machine]) -> tuple[Rank, ...]:
    """Return the records of the ranks, with labels such as ``node1:GPU0`` if there are several nodes.

    Parameters
    ----------
    machines
        The nodes by host name.
    """
    names = node_names(info.host for info in infos)
    machine_of_rank = [machines[info.host] for info in infos]
    return tuple(
        rank_of(number, machine.gpu(bus_id), machine.cpu_nodes, info.host, names.get(info.host, ""))
        for number, (info, machine, bus_id) in enumerate(zip(infos, machine_of_rank, gpus, strict=True))
    )


def rank_of(number: int, gpu: Gpu, nodes: Sequence[int], host: str | None = None, node: str = "") -> Rank:
    """Return the record of the rank of a GPU.

    Parameters
    ----------
    nodes
        The NUMA nodes with memory, or those that the user selected. Host memory is on the GPU's own node or, if that is
        not among them, on the first. Without any, the rank has no NUMA node.
    host, node
        The name of its node, and the one in its label; empty if there is only one node.
    """
    label = f"{node}:GPU{gpu.index}" if node else f"GPU{gpu.index}"
    nearest = gpu.host_numa_id if gpu.host_numa_id in nodes else next(iter(nodes), None)
    return Rank(number=number, label=label, bus_id=gpu.bus_id, numa_node=nearest, host=host)


def merge_gpus(machine: Machine, others: Iterable[Gpu]) -> Machine:
    """Return a node as all its ranks together see it.

    A device cgroup may show a rank only some GPUs, with other indices. So each rank's own GPU is taken as that rank
    sees it, and all are numbered in the order of bus ids.

    Parameters
    ----------
    machine
        The node as one of the ranks sees it.
    others
        The GPUs of the other ranks, as they see them.
    """
    known = {gpu.bus_id: gpu for gpu in machine.gpus or ()} | {gpu.bus_id: gpu for gpu in others}
    ordered = [known[bus_id] for bus_id in sorted(known)]
    return replace(machine, gpus=tuple(replace(gpu, index=index) for index, gpu in enumerate(ordered)))


def modelled(machine: Machine, ranks: int) -> RankLayout:
    """Return a layout of ``ranks`` ranks, one per GPU, on copies of one machine; the last node may have fewer ranks."""
    gpus = sorted(machine.gpus or (), key=lambda gpu: gpu.bus_id)
    node = [rank_of(0, gpu, machine.cpu_nodes) for gpu in gpus]

    def rank(number: int) -> Rank:
        template, host = node[number % len(node)], f"node{number // len(node) + 1}"
        label = f"{host}:{template.label}" if ranks > len(node) else template.label
        return replace(template, number=number, label=label, host=host)

    all_ranks = tuple(map(rank, range(ranks)))
    return RankLayout(all_ranks, dict.fromkeys((rank.host or "" for rank in all_ranks), machine))


def _difference(subject: str, infos: Sequence[RankInfo], value: Callable[[int], str]) -> Iterator[str]:
    """Yield a sentence with the nodes of each value, if there are several values."""
    nodes_by_value = grouped((value(rank), printable(info.host)) for rank, info in enumerate(infos))
    if len(nodes_by_value) > 1:
        values = [f"{value} on {', '.join(dict.fromkeys(nodes))}" for value, nodes in nodes_by_value.items()]
        yield f"{subject} differs between nodes: {'; '.join(values)}"
