"""What can be said of messages by UCX before UCX has chosen their way: pure."""

from __future__ import annotations

from egmctl.bench.case import Case, End
from egmctl.bench.plan.flows import own_end
from egmctl.bench.plan.paths import Path, nowhere, path_between
from egmctl.model.machine import Machine
from egmctl.model.measurement import Flow, MemoryKind
from egmctl.model.memory import HOST_MEMORY
from egmctl.model.rank import Rank
from egmctl.model.route import Carrier, Egm, Route

RATE_GB_S = 1.0
"""To plan with: TCP within a node reaches about half of it, CUDA IPC two hundred times as much."""


def ucx_path(case: Case, issuer: Rank, issuers: Machine, other: Rank, others: Machine) -> Path:
    """Return why nothing can be sent, if that is known, and whether an end is EGM.

    Parameters
    ----------
    issuer, other
        The rank that issues the work (the receiver of a get, else the sender), and the one at the other end.
    issuers, others
        The machines that the two are on.
    """
    if case.initiator is End.DESTINATION:
        issuer, issuers, other, others = other, others, issuer, issuers
    memory, egm, why = None, None, ""
    for rank, machine, kind in ((issuer, issuers, case.source), (other, others, case.destination)):
        if kind not in HOST_MEMORY:
            continue
        if rank.numa_node is None:
            waiver = nowhere(kind, rank.label).waiver
            return Path(route=Route(carrier=Carrier.UCX), rate_gb_s=RATE_GB_S, waiver=waiver)
        gpu = machine.gpu(rank.bus_id)
        own = path_between(machine, (kind, MemoryKind.DEVICE), (rank.numa_node, gpu), gpu)
        if own.waiver is not None:
            return Path(route=Route(carrier=Carrier.UCX), rate_gb_s=RATE_GB_S, waiver=own.waiver)
        if memory is None or _ORDER.index(own.route.egm) < _ORDER.index(egm):
            memory, egm, why = kind, own.route.egm, own.route.egm_reason
    return Path(route=Route(carrier=Carrier.UCX, memory=memory, egm=egm, egm_reason=why), rate_gb_s=RATE_GB_S)


_ORDER = (Egm.YES, Egm.NO, Egm.UNKNOWN, None)
"""Of two ends the one that comes first here tells of the flow."""


def ucx_flow(case: Case, issuer: Rank, other: Rank, path: Path) -> Flow:
    """Return messages as results name them: each end is memory of its own rank, of which one issues the work."""
    source, destination = (issuer, other) if case.initiator is End.SOURCE else (other, issuer)
    return Flow(
        source=own_end(case.source, source),
        destination=own_end(case.destination, destination),
        initiator=issuer.bus_id,
        initiator_label=issuer.label,
        initiator_rank=issuer.number,
        route=path.route,
    )
