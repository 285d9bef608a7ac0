"""Whether what ``--expect`` states could be read. What could not is neither there nor missing, and must never pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from egmctl.doctor.check import Scope
from egmctl.doctor.situation import in_domain, may_have_egm
from egmctl.model.finding import Finding, Guard, Status
from egmctl.model.host import Host
from egmctl.model.machine import Machine


def wants_egm(scope: Scope) -> bool:
    """Return whether ``--expect`` states that EGM is on: by that word, or as it was on the machine that it names."""
    expected = scope.expectation
    return expected is not None and (
        expected.egm or (expected.reference is not None and may_have_egm(expected.reference))
    )


def wants_domain(scope: Scope) -> bool:
    """Return whether ``--expect`` states an NVLink domain: by that word, or as that of the machine that it names."""
    expected = scope.expectation
    return expected is not None and (
        expected.domain or (expected.reference is not None and in_domain(expected.reference))
    )


def undecided(machine: Machine, scope: Scope, findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return the ids of the checks that had no data on what ``--expect`` states, in the order of the findings.

    What a node has to serve, as in a bring-up with ``--for``, is expected of it too.
    """
    uncounted = set(_uncounted(machine, scope))
    deciding: set[str] = set()
    if wants_egm(scope) or _has_to_serve(scope, Guard.EGM):
        deciding.update(_OF_EGM)
    if wants_domain(scope) or _has_to_serve(scope, Guard.FABRIC):
        deciding.update(_OF_DOMAIN)
    unread = (
        finding.check
        for finding in findings
        if finding.check in uncounted
        or (finding.check in deciding and finding.status is Status.UNKNOWN and not _of_all_nodes(finding))
    )
    return tuple(dict.fromkeys(unread))


_OF_EGM, _OF_DOMAIN = ("egm.platform", "egm.capability"), ("fabric.domain",)


def _has_to_serve(scope: Scope, purpose: Guard) -> bool:
    return scope.whole_node and purpose in (scope.purposes or ())


def _uncounted(machine: Machine, scope: Scope) -> Iterator[str]:
    """Yield the checks of expected counts whose things were not read, or not recorded."""
    expected = scope.expectation
    if expected is not None and expected.nics is not None and machine.nics is None:
        yield "rdma.ports"
    if expected is not None and expected.numa_nodes is not None and (machine.host or Host()).numa_nodes is None:
        yield "numa.memory"


def _of_all_nodes(finding: Finding) -> bool:
    """Return whether a finding is about all nodes of a domain: a fleet counts its GPUs, one node cannot."""
    return finding.check == "fabric.domain" and finding.place.gpus is None
