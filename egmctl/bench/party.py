"""Who takes part in a run under MPI: which rank works which GPU, and whether all of them fit together. Pure.

Every command tells what it has found on its node; all draw the same conclusions from what all have told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from egmctl.bench.paths import cuda_visible, gpu_waiver
from egmctl.errors import NothingToDo, UsageError
from egmctl.model.machine import DeviceNode, Gpu, Machine
from egmctl.model.rank import Rank
from egmctl.mpi.refusal import Refusal
from egmctl.topology.links import cpu_node_ids
from egmctl.units import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What one rank tells of itself to all others."""

    host: str
    tool: str
    driver: str | None = None
    gpus: tuple[str, ...] = ()
    """Bus ids of those that it may use and was asked to, in their order."""
    domains: Mapping[str, str] | None = None
    """Of each of them the NVLink domain that fabric handles are good in, or why there is none."""
    waivers: tuple[str, ...] = ()
    """Why GPUs of the node cannot be used by this process."""
    channels: tuple[DeviceNode, ...] | None = None
    """IMEX channels as this process sees them: a container or a cgroup may keep them from one rank only."""
    refusal: Refusal | None = None
    """Why it cannot take part."""


NO_DOMAIN = "none"
"""Begins the domain of a GPU that has none."""


def seat(machine: Machine, host: str, tool: str, chosen: Sequence[Gpu]) -> Seat:
    """Return what a rank tells of itself.

    Parameters
    ----------
    chosen
        The GPUs of the machine that ``--gpus`` names.
    """
    visible = cuda_visible(machine)
    waivers = {gpu.bus_id: gpu_waiver(machine, gpu, visible) for gpu in chosen}
    usable = sorted((gpu for gpu in chosen if waivers[gpu.bus_id] is None), key=lambda gpu: gpu.bus_id)
    return Seat(
        host=host,
        tool=tool,
        driver=machine.driver.driver_version if machine.driver else None,
        gpus=tuple(gpu.bus_id for gpu in usable),
        domains={gpu.bus_id: domain(gpu) for gpu in usable},
        waivers=tuple(dict.fromkeys(why for why in waivers.values() if why)),
        channels=machine.driver.imex_channels if machine.driver else None,
    )


def domain(gpu: Gpu) -> str:
    """Return the NVLink domain and the clique of a GPU as NVML tells it, for comparison and for people.

    Fabric handles of other nodes can be imported within one clique of one cluster (NVIDIA's IMEX guide and NVML's
    documentation of ``nvmlGpuFabricInfo_t``); one node's own HGX board has no cluster.
    """
    fabric = gpu.nvml.fabric if gpu.nvml else None
    if fabric is None:
        return f"{NO_DOMAIN}: NVML tells nothing of a fabric"
    if fabric.state != "completed":
        return f"{NO_DOMAIN}: the fabric's state is {fabric.state}"
    if fabric.cluster_uuid is None:
        why = fabric.unread.get("cluster_uuid")
        return f"{NO_DOMAIN}: the cluster's UUID is {why.detail if why else 'not told'}"
    return f"cluster {fabric.cluster_uuid}, clique {fabric.clique_id}"


def assign(seats: Sequence[Seat]) -> tuple[str, ...]:
    """Return the GPU of each rank: the ranks of a node take those that they may use in turn.

    Ranks that may use few choose first (a launcher that binds gives each rank one), and all of them take the first
    that is free.

    Raises
    ------
    UsageError
        If a node has more ranks than GPUs that they may use; it names the node.
    NothingToDo
        If a node has none at all.
    """
    taken: dict[int, str] = {}
    for host, ranks in hosts(seats).items():
        free = set().union(*(seats[rank].gpus for rank in ranks))
        if not free:
            why = next((why for rank in ranks for why in seats[rank].waivers), "no GPU was found")
            raise NothingToDo(f"{printable(host)} has no GPU to measure: {why}")
        there = len(free)
        for rank in sorted(ranks, key=lambda rank: (len(seats[rank].gpus), rank)):
            bus_id = next((bus_id for bus_id in seats[rank].gpus if bus_id in free), None)
            if bus_id is None:
                raise UsageError(
                    f"{printable(host)} has {len(ranks)} ranks and {there} GPU{'s' * (there != 1)} that they may use: "
                    "start one rank for each GPU (--ntasks-per-node, mpirun --map-by ppr:N:node)"
                )
            free.discard(bus_id)
            taken[rank] = bus_id
    return tuple(taken[rank] for rank in range(len(seats)))


def agree(seats: Sequence[Seat], gpus: Sequence[str], *, one_domain: bool = True) -> None:
    """See that what has to be the same on all ranks is.

    Parameters
    ----------
    one_domain
        Fabric handles are to go from node to node.

    Raises
    ------
    NothingToDo
        With each difference by node.
    """
    wrong = [
        *_difference("the version of egmctl", seats, lambda rank: seats[rank].tool),
        *_difference("the driver's version", seats, lambda rank: seats[rank].driver or "unknown"),
    ]
    if one_domain and len(hosts(seats)) > 1:
        # Within one node fabric handles need no domain: an IMEX channel is enough.
        domains = [(seats[rank].domains or {}).get(gpu, NO_DOMAIN) for rank, gpu in enumerate(gpus)]
        wrong += _difference("the NVLink domain", seats, lambda rank: domains[rank])
        if not wrong and domains[0].startswith(NO_DOMAIN):
            wrong.append(f"fabric handles do not go from node to node here ({domains[0]})")
    if wrong:
        raise NothingToDo("; ".join(wrong))


def hosts(seats: Sequence[Seat]) -> dict[str, list[int]]:
    """Return the ranks of each node, in the order of their first ranks."""
    found: dict[str, list[int]] = {}
    for rank, of in enumerate(seats):
        found.setdefault(of.host, []).append(rank)
    return found


def ranks_of(seats: Sequence[Seat], gpus: Sequence[str], machines: Mapping[str, Machine]) -> tuple[Rank, ...]:
    """Return the ranks as results name them: ``node1:GPU0`` where there are several nodes.

    Parameters
    ----------
    machines
        By host.
    """
    numbers = {host: number for number, host in enumerate(hosts(seats), 1)}

    def one(number: int) -> Rank:
        host, bus_id = seats[number].host, gpus[number]
        machine = machines[host]
        gpu = machine.gpu(bus_id)
        node = f"node{numbers[host]}:" if len(numbers) > 1 else ""
        return Rank(
            number=number,
            label=f"{node}GPU{gpu.index}",
            bus_id=bus_id,
            numa_node=nearest_node(machine, gpu),
            host=host,
        )

    return tuple(one(number) for number in range(len(seats)))


def nearest_node(machine: Machine, gpu: Gpu) -> int | None:
    """Return the NUMA node of the host memory that a rank makes; ``None`` where no node has memory."""
    nodes = cpu_node_ids(machine)
    if gpu.host_numa_id in nodes:
        return gpu.host_numa_id
    return min(nodes, default=None)


def whole(machine: Machine, others: Iterable[Gpu]) -> Machine:
    """Return a node as all its ranks together see it.

    A device cgroup shows a rank only some of the GPUs, and numbers them anew: each rank's own GPU is taken as that rank
    sees it, and all are numbered in the order of their bus ids.

    Parameters
    ----------
    machine
        As one of the ranks sees it.
    others
        The GPUs of the others, as they see them.
    """
    known = {gpu.bus_id: gpu for gpu in machine.gpus or ()} | {gpu.bus_id: gpu for gpu in others}
    ordered = [known[bus_id] for bus_id in sorted(known)]
    return replace(machine, gpus=tuple(replace(gpu, index=place) for place, gpu in enumerate(ordered)))


def _difference(what: str, seats: Sequence[Seat], value: Callable[[int], str]) -> Iterator[str]:
    """Yield in words which nodes have which value, if there are several."""
    having: dict[str, dict[str, None]] = {}
    for rank, of in enumerate(seats):
        having.setdefault(value(rank), {})[of.host] = None
    if len(having) > 1:
        told = [f"{found} on {', '.join(map(printable, on))}" for found, on in having.items()]
        yield f"{what} is not the same everywhere: {'; '.join(told)}"
