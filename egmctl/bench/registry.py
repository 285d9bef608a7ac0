"""Every case there is, in the order in which they run and are shown."""

from __future__ import annotations

from egmctl.bench.case import Case
from egmctl.bench.cases import egm, host, ipc, latency, p2p, rdma

CASES: tuple[Case, ...] = (*egm.CASES, *host.CASES, *p2p.CASES, *latency.CASES, *ipc.CASES, *rdma.CASES)
