"""The NICs' ports: whether they are up, and as fast as their siblings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from egmctl.doctor.check import Check, failed, passed, unknown, warned
from egmctl.doctor.checks.rdma import no_nics
from egmctl.doctor.scope import Scope
from egmctl.model.finding import Evidence, Finding, Guard, Remedy, on_nics
from egmctl.model.machine import Machine, Nic, NicPort


def _ports(machine: Machine, scope: Scope) -> Iterator[Finding]:
    if nothing := no_nics(machine, scope):
        yield nothing
        return
    nics = machine.nics or ()
    told = [(nic, port) for nic in nics for port in nic.ports if port.state is not None]
    if not told:
        yield unknown("the ports' states were not read", place=on_nics(nic.name for nic in nics))
        return
    unread = [nic.name for nic in nics for port in nic.ports if port.state is None]
    unread += [nic.name for nic, port in told if port.state == "ACTIVE" and port.rate_gbit_s is None]
    if unread:
        yield unknown("the state or rate of a port was not read", place=on_nics(dict.fromkeys(unread)))
    expected = _expected(scope)
    active = [(nic, port) for nic, port in told if port.state == "ACTIVE"]
    unused: list[str] = []
    for nic, port in told:
        name = f"{nic.name}/{port.number}"
        evidence = (_port_evidence(nic, port),)
        if port.state == "ACTIVE":
            continue
        if (nic.name, port.number) in expected:
            yield failed(
                f"port {port.number} is {port.state}, and was active when the machine of --expect was recorded",
                CABLE,
                place=on_nics([nic.name]),
                evidence=evidence,
            )
        elif port.physical_state == "LinkUp" and port.link_layer == "InfiniBand":
            yield warned(
                f"port {port.number} has a link and is {port.state}: no subnet manager has configured it",
                Remedy(text="Check the subnet manager of that fabric.", command="sminfo", needs_root=True),
                place=on_nics([nic.name]),
                evidence=evidence,
            )
        elif active and scope.asked_purpose(Guard.RDMA):
            yield warned(f"port {port.number} is {port.state}", CABLE, place=on_nics([nic.name]), evidence=evidence)
        else:
            unused.append(name)
    if not active:
        tell = failed if scope.asked_purpose(Guard.RDMA) else warned
        yield tell(
            "no port is active",
            CABLE,
            place=on_nics(nic.name for nic, _ in told),
            evidence=tuple(_port_evidence(nic, port) for nic, port in told),
        )
    else:
        slow = list(_slow(active))
        for nic, port, usual in slow:
            yield warned(
                f"port {port.number} runs at {port.rate_gbit_s:g} Gbit/s, the others at {usual:g}",
                CABLE,
                place=on_nics([nic.name]),
                evidence=(_port_evidence(nic, port),),
            )
        slow_names = {nic.name for nic, _, _ in slow}
        good = dict.fromkeys(nic.name for nic, _ in active if nic.name not in (*slow_names, *unread))
        if good:
            note = f"not active: {', '.join(unused)}; --for rdma or --expect makes that a finding" if unused else ""
            yield passed("ports are active", place=on_nics(good), note=note)


CABLE = Remedy(text="Check the cable, the switch port and the port's configuration.", command="ibstat")


def _expected(scope: Scope) -> set[tuple[str, int]]:
    reference = scope.expectation.reference if scope.expectation else None
    nics = (reference.nics if reference else None) or ()
    return {(nic.name, port.number) for nic in nics for port in nic.ports if port.state == "ACTIVE"}


def _slow(active: list[tuple[Nic, NicPort]]) -> Iterator[tuple[Nic, NicPort, float]]:
    """Find ports slower than most active ports of NICs of the same kind and link layer."""
    rates: dict[object, Counter[float]] = {}
    for nic, port in active:
        if port.rate_gbit_s is not None:
            rates.setdefault(_kind(nic, port), Counter())[port.rate_gbit_s] += 1
    for nic, port in active:
        found = rates.get(_kind(nic, port))
        if port.rate_gbit_s is None or found is None:
            continue
        usual, count = max(found.items(), key=lambda item: (item[1], item[0]))
        if port.rate_gbit_s < usual and count > 1:
            yield nic, port, usual


def _kind(nic: Nic, port: NicPort) -> object:
    return nic.pci.device_id if nic.pci else None, nic.board_id, port.link_layer


def _port_evidence(nic: Nic, port: NicPort) -> Evidence:
    rate = "" if port.rate_gbit_s is None else f", {port.rate_gbit_s:g} Gbit/s"
    words = f"{port.state or '?'}, {port.physical_state or '?'}, {port.link_layer or '?'}{rate}"
    return Evidence(source=f"/sys/class/infiniband/{nic.name}/ports/{port.number}", value=words)


CHECKS = (
    Check(
        id="rdma.ports",
        title="NIC ports are active",
        guards=(Guard.RDMA,),
        sections=("nics",),
        judge=_ports,
        why="A rank whose NIC is down or slow holds up all others. An unplugged port is no fault.",
        read="state, phys_state, rate and link_layer of each port in sysfs. Ports that are not active are findings "
        "with --for rdma, and failures where a recorded machine given with --expect had them active.",
        fix="Cable, switch port, subnet manager, in this order.",
    ),
)
