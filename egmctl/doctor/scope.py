"""What the user asked about: the same fact is a fault in one scope and ordinary in another."""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.model.finding import Guard
from egmctl.model.machine import Gpu, Machine, NumaKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What ``--expect`` says the node has; ``None``: it does not say."""

    gpus: int | None = None
    nics: int | None = None
    numa_nodes: int | None = None
    """CPU NUMA nodes."""
    reference: Machine | None = None
    """The recorded machine that the counts were taken from: what it has and this one has not is missing here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """GPUs, NUMA nodes and purposes that the findings are about."""

    gpus: tuple[str, ...] | None = None
    """Bus ids that the user named; ``None``: the user named none, and all count."""
    numa: tuple[int, ...] | None = None
    """Ids of CPU NUMA nodes that the user named; ``None`` as above."""
    purposes: tuple[Guard, ...] | None = None
    """The words of ``--for``; ``None`` as above."""
    expectation: Expectation | None = None
    since_s: float | None = None
    """Events of the kernel's log that are older than so many seconds do not count; ``None``: all since boot."""

    def gpus_of(self, machine: Machine) -> tuple[Gpu, ...]:
        """Return the machine's GPUs in this scope, in the order of their indices."""
        return tuple(gpu for gpu in machine.gpus or () if self.gpus is None or gpu.bus_id in self.gpus)

    def numa_of(self, machine: Machine) -> tuple[int, ...]:
        """Return the ids of the machine's CPU NUMA nodes in this scope, ascending."""
        nodes = (machine.host.numa_nodes if machine.host else None) or ()
        cpu = (node.id for node in nodes if node.kind in (NumaKind.CPU, NumaKind.CPU_ONLY))
        return tuple(node for node in cpu if self.numa is None or node in self.numa)

    def asked_for(self, gpu: Gpu) -> bool:
        """Say whether the user named this GPU: that it cannot be used is a fault then."""
        return self.gpus is not None and gpu.bus_id in self.gpus

    def asked_purpose(self, guard: Guard) -> bool:
        """Say whether the user named this purpose with ``--for``."""
        return self.purposes is not None and guard in self.purposes


EVERYTHING = Scope()
"""What is checked where the user named nothing."""
