"""Reads a machine and what is connected to what on it."""

from __future__ import annotations

from collections.abc import Iterable

from egmctl.facts.collect import collect
from egmctl.facts.redact import redact
from egmctl.facts.replay import load
from egmctl.facts.replay import names as machine_names
from egmctl.model.machine import SECTION_VERSIONS, Machine
from egmctl.selectors import select_gpus, select_numa
from egmctl.topology.topology import Topology, topology

__all__ = ["machine_names", "read_machine", "topology_of"]

SECTIONS = tuple(name for name in SECTION_VERSIONS if name != "probes")
"""What can be read of a machine; the probes are made by :meth:`egmctl.Doctor.probe`."""


def read_machine(
    name: str | None = None, *, sections: Iterable[str] = SECTIONS, cuda: bool = True, pid: int = 0
) -> Machine:
    """Return this node, or a machine to replay: the record of the schema ``egmctl.machine/1``.

    Parameters
    ----------
    name
        A machine that ships (:func:`machine_names`) or a file of ``egmctl snapshot``; ``None``: this node is read.
    sections
        What to read of this node; of a machine to replay, all there is.
    cuda
        Whether CUDA is asked too, in a child process; without it no GPU is started and no job disturbed.
    pid
        The process whose view is read instead of this one's.

    Raises
    ------
    UsageError
        If there is no such machine, section or process.
    """
    return collect(sections, cuda=cuda, pid=pid) if name is None else load(name)


def topology_of(machine: Machine, *, gpus: str = "all", numa: str = "all", redacted: bool = False) -> Topology:
    """Return how GPUs, NICs and host memory are connected, and which routes are EGM.

    Parameters
    ----------
    gpus, numa
        Which, as ``--gpus`` and ``--numa`` name them: ``"0-3"``, ``"all"``.
    redacted
        Whether names, serial numbers and UUIDs become pseudonyms, for what leaves the site.

    Raises
    ------
    UsageError
        If the machine has no such GPU or NUMA node.
    """
    chosen = machine.gpus or ()
    if chosen or gpus != "all":
        chosen = tuple(select_gpus(gpus, chosen))
    nodes = select_numa(numa, machine, chosen) if numa != "all" else None
    if redacted:
        machine = redact(machine)
        chosen = tuple(machine.gpu(gpu.bus_id) for gpu in chosen)
    return topology(machine, chosen, nodes)
