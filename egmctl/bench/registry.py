"""Every case there is, in the order in which they run and are shown."""

from __future__ import annotations

from egmctl.bench.case import Case
from egmctl.bench.cases import coherent, egm, host, ipc, latency, p2p, rdma, sms

CASES: tuple[Case, ...] = (
    *egm.CASES,
    *sms.CASES,
    *host.CASES,
    *coherent.CASES,
    *p2p.CASES,
    *latency.CASES,
    *coherent.LATENCY_CASES,
    *ipc.CASES,
    *rdma.CASES,
)

FABRIC_CASES: tuple[Case, ...] = ipc.FABRIC_CASES
"""Those between all ranks of a run, on one node or on many (``egmctl/bench/plan/fabric.py``): a run of their own."""
