"""The CPUs of a NUMA node that this process may run on."""

from __future__ import annotations

import os

from egmctl.facts.host import NODES
from egmctl.facts.root import Root, Unreadable
from egmctl.units import parse_kernel_list

THREADS_LIMIT = 32
"""On a virtual machine with 64 CPUs 32 threads read 143 to 160 GB/s, 64 threads 109."""


class NoCpus(Exception):
    """This process may run on none of a node's CPUs; the message says so."""


def cpus_of(node: int) -> tuple[int, ...]:
    """Return the CPUs of a NUMA node to use: at most :data:`THREADS_LIMIT`, spread over those that are allowed.

    Raises
    ------
    NoCpus
        If there is none.
    """
    try:
        cpus = set(parse_kernel_list(Root.from_environment().kernel_list(f"{NODES}/node{node}/cpulist")))
    except Unreadable as why:
        raise NoCpus(str(why)) from None
    allowed = sorted(cpus & os.sched_getaffinity(0))
    if not allowed:
        raise NoCpus(f"this process may run on none of the CPUs of NUMA node {node}")
    return tuple(allowed[:: -(-len(allowed) // THREADS_LIMIT)])
