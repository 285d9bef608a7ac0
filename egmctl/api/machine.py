"""Reads a machine, derives its topology, and watches its traffic."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import replace

from egmctl import launch
from egmctl.api.options import select_gpus, select_numa
from egmctl.errors import NothingToDo
from egmctl.facts.redact import redact
from egmctl.facts.replay import load_machine, machine_names
from egmctl.model.codec import from_json, to_json
from egmctl.model.machine import SECTION_VERSIONS, Machine, TrafficSample
from egmctl.topology.access import LOST, obstacle
from egmctl.topology.links import links_at
from egmctl.topology.topology import Topology, missing, topology
from egmctl.verdict.answers import answered

__all__ = ["machine_names", "read_machine", "topology_of", "traffic"]

SECTIONS = tuple(name for name in SECTION_VERSIONS if name != "probes")
"""The sections that can be read. The section ``probes`` is the result of :meth:`egmctl.Doctor.probe`."""


def read_machine(
    name: str | None = None, *, sections: Iterable[str] = SECTIONS, cuda: bool = True, pid: int = 0
) -> Machine:
    """Return this node, or a machine to replay: the record of the schema ``egmctl.machine/1``.

    Parameters
    ----------
    name
        The name of a shipped machine (:func:`machine_names`) or a file of ``egmctl snapshot``; ``None``: this node.
    sections
        The sections to read from this node. A machine to replay has all sections of its file.
    cuda
        Whether to query CUDA too, in a child process. Without CUDA, no GPU is initialised and no job is disturbed.
    pid
        The process whose view is read; 0: this process.

    Raises
    ------
    UsageError
        If there is no such machine, section or process.
    """
    if name is not None:
        return load_machine(name)
    # What reads a node takes long to import, and a machine to replay needs none of it.
    from egmctl.facts.collect import collect

    return collect(sections, cuda=cuda, pid=pid)


def topology_of(
    machine: Machine, *, gpus: str = "all", numa: str = "all", strict: bool = False, redacted: bool = False
) -> Topology:
    """Return how GPUs, NICs and host memory are connected, and which routes are EGM.

    Parameters
    ----------
    gpus, numa
        The GPUs and NUMA nodes to include, in the syntax of ``--gpus`` and ``--numa``: ``"0-3"``, ``"all"``.
    strict
        Whether what doctor finds to be wrong with the connections makes the answer bad.
    redacted
        Whether names, serial numbers and UUIDs become pseudonyms, for documents that leave the site.

    Raises
    ------
    UsageError
        If the machine lacks a selected GPU or NUMA node.
    """
    chosen = machine.gpus or ()
    if chosen or gpus != "all":
        chosen = tuple(select_gpus(gpus, chosen))
    nodes = select_numa(numa, machine, chosen) if numa != "all" else None
    if redacted:
        machine = redact(machine)
        chosen = tuple(machine.gpu(gpu.bus_id) for gpu in chosen)
    return answered(replace(topology(machine, chosen, nodes), strict=strict))


def traffic(gpus: str = "all", interval_s: float = 1.0) -> Generator[TrafficSample, None, None]:
    """Yield the traffic of this node's GPUs at the end of each interval, read from NVML in a child process.

    Parameters
    ----------
    gpus
        As for :func:`topology_of`.

    Raises
    ------
    UsageError
        If the node lacks a selected GPU.
    NothingToDo
        If NVML lists no GPU.
    ChildFailed
        If a call of NVML crashes or hangs.
    """
    from egmctl.facts.collect import DEADLINE_S, collect

    node = collect(("host", "gpus", "driver"), cuda=False)
    if nothing := missing(node):
        raise NothingToDo(nothing.sentence)
    chosen = select_gpus(gpus, node.gpus or ())
    rates = {gpu.bus_id: {hop.link: hop.nominal_gb_s for hop in links_at(node, gpu)} for gpu in chosen}
    known = [{"index": gpu.index, "bus_id": gpu.bus_id, "name": gpu.name} for gpu in chosen]
    obstacles = {gpu.bus_id: obstacle(node, gpu) for gpu in chosen}
    lost = {bus_id: stopped.cause for bus_id, stopped in obstacles.items() if stopped and stopped.block in LOST}
    arguments, origin = {"gpus": known, "rates": rates, "lost": lost, "interval_s": interval_s}, to_json(node.origin)
    with launch.Child("egmctl.gpu.telemetry:watch", arguments, grace_s=0) as child:
        child.receive(DEADLINE_S)
        while True:
            yield from_json(TrafficSample, {"origin": origin, **child.receive(interval_s + DEADLINE_S)[0]})
