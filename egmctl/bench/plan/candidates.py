"""The flows of a case within one process, with their paths. Each is made once, for all cases that have it. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from egmctl.bench.case import Case
from egmctl.bench.plan.alike import Known
from egmctl.bench.plan.flows import Ends, flow_shape, initiator, tasks_of
from egmctl.bench.plan.paths import Staging, path_between
from egmctl.bench.plan.task import Candidate
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.model.route import MemoryKind
from egmctl.model.task import CPU_ENGINES, Engine, Flow, Pattern
from egmctl.topology.routes import possible_owners

THERE_AND_BACK = (Pattern.BOTH_DIRECTIONS, Pattern.OWN_NODE_BOTH)
"""Patterns in which every second flow goes in the opposite direction."""


def shape_of(case: Case, known: Known) -> Hashable:
    """Return what the candidates of a case follow from: cases of equal shape have the same ones."""
    return flow_shape(case), _staging(case, known)


def candidates_of(case: Case, known: Known, gpus: Sequence[Gpu], numa_nodes: Sequence[int]) -> Iterator[Candidate]:
    """Yield what a case makes tasks of; see :func:`egmctl.bench.plan.flows.tasks_of`."""
    staging = _staging(case, known)
    there = _Flows(known, case, (case.source, case.destination), staging)
    back = _Flows(known, case, (case.destination, case.source), staging) if case.pattern in THERE_AND_BACK else there
    for ends_of_flows in tasks_of(case, _possible_owners(known.machine, gpus) if case.by_owner else gpus, numa_nodes):
        made = [(back if number % 2 else there).between(ends) for number, ends in enumerate(ends_of_flows)]
        yield made[0] if len(made) == 1 else _at_once(made)


def _at_once(flows: Sequence[Candidate]) -> Candidate:
    """Return the candidate of several flows, from those of each flow alone."""
    return Candidate(
        flows=tuple([alone.flows[0] for alone in flows]),
        paths=tuple([alone.paths[0] for alone in flows]),
        gpus=tuple({gpu.bus_id: gpu for alone in flows for gpu in alone.gpus}.values()),
        cache=flows[0].cache,
    )


class _Flows:
    """The flows of a case between memory of two kinds, each as the candidate that it is alone.

    Parameters
    ----------
    memory
        The kinds of memory of the source and of the destination.
    """

    def __init__(self, known: Known, case: Case, memory: tuple[MemoryKind, MemoryKind], staging: Staging) -> None:
        self._known, self._case, self._memory, self._staging = known, case, memory, staging
        issuing = None if case.engine in CPU_ENGINES else case.initiator
        self._made = known.flows.setdefault((memory, staging, issuing), {})

    def between(self, ends: Ends) -> Candidate:
        """Return the flow between two ends."""
        source, destination, issuer, owner = ends
        key = (
            source.bus_id if isinstance(source, Gpu) else source,
            destination.bus_id if isinstance(destination, Gpu) else destination,
            issuer and issuer.bus_id,
            owner and owner.bus_id,
        )
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._make(ends)
        return made

    def _make(self, ends: Ends) -> Candidate:
        known, issuer = self._known, initiator(self._case, ends)
        path = path_between(
            known.machine,
            self._memory,
            ends[:2],
            issuer,
            staging=self._staging,
            allocated_by=ends.allocated_by,
            device_paths=known.device_paths,
        )
        source = known.endpoint(self._memory[0], ends.source, ends.allocated_by)
        destination = known.endpoint(self._memory[1], ends.destination, ends.allocated_by)
        cpus = source if source.memory is MemoryKind.REGISTERS else destination
        flow = Flow(
            source=source,
            destination=destination,
            initiator=issuer.bus_id if issuer else None,
            initiator_label=f"GPU{issuer.index}" if issuer else cpus.label,
            route=path.route,
        )
        gpus = tuple({end.bus_id: end for end in ends if isinstance(end, Gpu)}.values())
        return Candidate(flows=(flow,), paths=(path,), gpus=gpus, cache=gpus[0] if gpus else None)


def _possible_owners(machine: Machine, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs that can own EGM: without those that lack NVLink-C2C beside others that have it.

    An example is a PCIe card in a DGX Station.
    """
    nodes = {gpu.host_numa_id for gpu in gpus if gpu.host_numa_id is not None}
    possible = [gpu for node in nodes for gpu in possible_owners(machine, node)]
    return [gpu for gpu in gpus if gpu in possible or all(owner.host_numa_id != gpu.host_numa_id for owner in possible)]


def _staging(case: Case, known: Known) -> Staging:
    if case.staged:
        return Staging.ALWAYS
    # The pool's access rights, not peer access, open its memory. No documentation says that such copies are staged.
    pools = MemoryKind.DEVICE_DEFAULT_POOL in (case.source, case.destination)
    alone = case.engine is Engine.COPY_ENGINE and case.pattern is Pattern.PAIR and not pools
    return Staging.WITHOUT_ACCESS if alone and not known.all_have_access else Staging.NEVER
