"""Whether what ``--expect`` states could be read. What could not is neither there nor missing, and must never pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from egmctl.doctor.check import Expectation, Scope
from egmctl.doctor.situation import in_domain, may_have_egm
from egmctl.model.finding import Finding, Guard, Status
from egmctl.model.host import Host
from egmctl.model.machine import Machine

FABRIC_DOMAIN = "fabric.domain"
DECIDING = {
    Guard.EGM: ("egm.platform", "egm.capability"),
    Guard.FABRIC: (FABRIC_DOMAIN,),
    Guard.P2P: ("p2p.status",),
    Guard.RDMA: ("rdma.ports",),
}
"""The checks without which it is not known whether a node has what a purpose is about."""
_NICS, _NUMA = "rdma.ports", "numa.memory"
"""The checks that judge the expected number of NICs and of NUMA nodes."""


def wants_egm(scope: Scope) -> bool:
    """Return whether ``--expect`` states that EGM is on: by that word, or as it was on the machine that it names."""
    expected = scope.expectation
    return expected.egm or (expected.reference is not None and may_have_egm(expected.reference))


def wants_domain(scope: Scope) -> bool:
    """Return whether ``--expect`` states an NVLink domain: by that word, or as that of the machine that it names."""
    expected = scope.expectation
    return expected.domain or (expected.reference is not None and in_domain(expected.reference))


def undecided(machine: Machine, scope: Scope, findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return the ids of the checks that had no data on what ``--expect`` states, in the order of the findings.

    What a node has to serve, as in a bring-up with ``--for``, is expected of it too.
    """
    uncounted = set(_uncounted(machine, scope))
    purposes = set(scope.purposes or ()) if scope.whole_node else set[Guard]()
    if wants_egm(scope):
        purposes.add(Guard.EGM)
    if wants_domain(scope):
        purposes.add(Guard.FABRIC)
    deciding = {check for purpose in purposes for check in DECIDING.get(purpose, ())}
    unread = (
        finding.check
        for finding in findings
        if finding.check in uncounted
        or (finding.check in deciding and finding.status is Status.UNKNOWN and not _of_all_nodes(finding))
    )
    return tuple(dict.fromkeys(unread))


def must_be_known(scope: Scope, check: str) -> bool:
    """Return whether a check decides a purpose that was named: that its section was not recorded is no excuse."""
    return any(check in DECIDING.get(purpose, ()) for purpose in scope.purposes or ())


def unjudged(expected: Expectation, checks: Iterable[str]) -> tuple[str, tuple[str, ...]] | None:
    """Return the first word of ``--expect`` that none of the selected checks judges, and the checks that do."""
    if expected.reference is not None:
        return None
    selected = set(checks)
    stated = {
        "egm": (expected.egm, DECIDING[Guard.EGM]),
        "domain": (expected.domain, DECIDING[Guard.FABRIC]),
        "nics": (expected.nics is not None, (_NICS,)),
        "numa": (expected.numa_nodes is not None, (_NUMA,)),
    }
    left_out = ((word, judges) for word, (is_stated, judges) in stated.items() if is_stated)
    return next(((word, judges) for word, judges in left_out if not selected.intersection(judges)), None)


def _uncounted(machine: Machine, scope: Scope) -> Iterator[str]:
    """Yield the checks of expected counts whose things were not read, or not recorded."""
    expected = scope.expectation
    if expected.nics is not None and machine.nics is None:
        yield _NICS
    if expected.numa_nodes is not None and (machine.host or Host()).numa_nodes is None:
        yield _NUMA


def _of_all_nodes(finding: Finding) -> bool:
    """Return whether a finding is about all nodes of a domain: a fleet counts its GPUs, one node cannot."""
    return finding.check == FABRIC_DOMAIN and finding.place.gpus is None
