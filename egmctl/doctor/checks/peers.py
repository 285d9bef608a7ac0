"""What only the nodes of an MPI job can tell together: ``egmctl doctor`` under mpirun or srun."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

from egmctl.doctor.check import Check, Scope, failed, passed, skipped, unknown, warned
from egmctl.doctor.situation import NO_DOMAIN
from egmctl.driver.signatures import cause_of
from egmctl.model.finding import Evidence, Finding, Guard, Remedy
from egmctl.model.machine import Machine, Outcome, Peer, PeerPort, PeerProbe
from egmctl.units import counted, printable, several, shortened

ALONE = "only under mpirun or srun, with ranks on several nodes"
NOT_TRIED = "only with --active under mpirun or srun"

_SHOWN = 4


def _nodes(machine: Machine) -> tuple[Peer, ...]:
    """Return the nodes of the job, none where there are not several."""
    nodes = machine.peers.nodes if machine.peers else ()
    return nodes if len(nodes) > 1 else ()


def _alone(machine: Machine) -> Finding:
    """Return what is found where no node has told anything."""
    if machine.peers and machine.peers.problem:
        problem = Evidence(source="MPI", value=machine.peers.problem)
        return unknown("the processes of this job could not talk to each other", evidence=(problem,))
    return skipped(ALONE)


def _groups(nodes: Sequence[Peer], value: Callable[[Peer], Hashable]) -> dict[Hashable, list[str]]:
    """Return the names of the nodes by what they have, the largest group first."""
    groups: dict[Hashable, list[str]] = {}
    for node in nodes:
        groups.setdefault(value(node), []).append(printable(node.host))
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def _told(groups: dict[Hashable, list[str]]) -> tuple[Evidence, ...]:
    return tuple(Evidence(source=shortened(names, _SHOWN), value=str(value)) for value, names in groups.items())


def _versions(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    nodes = _nodes(machine)
    if not nodes:
        yield _alone(machine)
        return
    drivers = _groups([node for node in nodes if node.driver_version is not None], lambda node: node.driver_version)
    tools = _groups(nodes, lambda node: node.tool)
    if len(drivers) > 1:
        yield failed(
            f"the nodes have {len(drivers)} versions of the driver",
            Remedy(text="Install one version on all nodes that share memory.", needs_root=True, needs_reboot=True),
            evidence=_told(drivers),
        )
    elif len(tools) > 1:
        yield warned(
            f"the nodes have {len(tools)} versions of egmctl",
            Remedy(text="Install one version on all nodes: their results cannot be compared otherwise."),
            evidence=_told(tools),
        )
    elif unread := [node for node in nodes if node.driver_version is None]:
        yield unknown(f"the driver's version was not read on {_hosts(unread)}", evidence=_told(drivers))
    else:
        yield passed(f"{len(nodes)} nodes have the same driver", evidence=_told(drivers))


def _clique(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    nodes = _nodes(machine)
    if not nodes:
        yield _alone(machine)
        return
    if not any(node.clusters for node in nodes):
        yield skipped(NO_DOMAIN)
        return
    groups = _groups(
        nodes, lambda node: f"cluster {', '.join(node.clusters) or 'none'}, clique {_numbers(node.cliques)}"
    )
    if len(groups) == 1:
        yield passed(f"the GPUs of {len(nodes)} nodes are in one clique of one NVLink domain", evidence=_told(groups))
        return
    yield failed(
        f"the GPUs are in {len(groups)} different NVLink domains or cliques",
        Remedy(
            text="Request nodes of one domain (Slurm's topology/block, a ComputeDomain in Kubernetes), or look at the "
            "fabric manager's partitions."
        ),
        evidence=_told(groups),
        cause="fabric handles work within one clique of one cluster only",
    )


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _imex(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    nodes = _nodes(machine)
    if not nodes:
        yield _alone(machine)
        return
    if not any(node.clusters for node in nodes):
        yield skipped(NO_DOMAIN)
        return
    bad = [(node, why) for node in nodes if (why := _imex_fault(node))]
    if bad:
        yield failed(
            f"IMEX is not ready on {len(bad)} of {len(nodes)} nodes",
            Remedy(text="Check IMEX on these nodes: the checks imex.* say what is wrong there.", command=None),
            evidence=tuple(Evidence(source=printable(node.host), value=why) for node, why in bad[:_SHOWN]),
            cause="fabric handles of other nodes cannot be opened without it",
        )
    elif unread := [node for node in nodes if None in (node.imex_channel, node.imex_daemon, node.imex_domain)]:
        yield unknown(f"an IMEX channel or the state of IMEX was not read on {_hosts(unread)}")
    else:
        yield passed(f"{len(nodes)} nodes have a channel, and no IMEX problem was found")


def _hosts(nodes: Sequence[Peer]) -> str:
    return shortened([printable(node.host) for node in nodes], _SHOWN)


def _imex_fault(node: Peer) -> str | None:
    if node.imex_channel is False:
        return "no IMEX channel can be used"
    if node.imex_daemon not in (None, "READY"):
        return f"the daemon's state is {node.imex_daemon}"
    if node.imex_domain not in (None, "UP"):
        return f"the domain is {node.imex_domain}"
    return None


def _ports(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    nodes = _nodes(machine)
    if not nodes:
        yield _alone(machine)
        return
    known = [node for node in nodes if node.ports is not None]
    if not known:
        yield unknown("the NICs of no node were read")
        return
    if not any(node.ports for node in known):
        yield skipped("no node has an RDMA NIC")
        return
    groups = _groups(known, _active_ports)
    if len(groups) == 1:
        if unread := [node for node in nodes if node not in known or any(map(_is_unread, node.ports or ()))]:
            yield unknown(f"the state or rate of NIC ports was not read on {_hosts(unread)}", evidence=_told(groups))
        else:
            yield passed(f"{len(known)} nodes have the same ports active", evidence=_told(groups))
        return
    usual, odd = next(iter(groups)), [name for names in list(groups.values())[1:] for name in names]
    yield failed(
        f"the active NIC ports of {shortened(odd, _SHOWN)} are not those of the other nodes ({usual})",
        Remedy(text="Check the cables and switches of the ports that are not active there.", command="ibstat"),
        evidence=_told(groups),
    )


def _is_unread(port: PeerPort) -> bool:
    return port.state is None or (port.state == "ACTIVE" and None in (port.rate_gbit_s, port.link_layer))


def _active_ports(node: Peer) -> str:
    active = [port for port in node.ports or () if port.state == "ACTIVE"]
    kinds = [f"{port.rate_gbit_s:g} Gbit/s {port.link_layer}" for port in active if port.rate_gbit_s is not None]
    return counted(sorted(kinds)) or "none active"


def _others(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    nodes = _nodes(machine)
    if not nodes:
        yield _alone(machine)
        return
    groups = _groups([node for node in nodes if node.failed], lambda node: ", ".join(node.failed))
    if not groups:
        yield passed(f"no check fails on any of {len(nodes)} nodes")
        return
    count = sum(map(len, groups.values()))
    yield failed(
        f"checks fail on {count} of {len(nodes)} nodes",
        Remedy(text="Run egmctl doctor on these nodes, or egmctl fleet doctor on all.", command="egmctl doctor"),
        evidence=_told(groups),
    )


def _imports(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    probes = machine.peers.probes if machine.peers else None
    if machine.peers and machine.peers.problem:
        yield _alone(machine)
        return
    if probes is None:
        yield skipped(NOT_TRIED)
        return
    if not probes:
        yield skipped("there is one rank only")
        return
    groups: dict[tuple[object, ...], list[PeerProbe]] = {}
    for probe in probes:
        key = (probe.host_memory, probe.outcome, probe.call, probe.error_number)
        groups.setdefault(key, []).append(probe)
    for those in groups.values():
        yield _import(those)


def _import(probes: Sequence[PeerProbe]) -> Finding:
    first = probes[0]
    what = f"{'HOST_NUMA' if first.host_memory else 'device'} memory by fabric handle"
    paths = [f"{probe.labels[0]} to {probe.labels[1]}" for probe in probes]
    where = f"{shortened(paths, _SHOWN)} (owner to importer)"
    if first.outcome is Outcome.OK:
        return passed(f"{what} arrived, and writes came back: {several(len(probes), 'direction')} between ranks")
    if first.outcome is Outcome.NOT_RUN:
        return unknown(f"{what}: not tried: {first.detail}")
    evidence = tuple(
        Evidence(source=f"rank {probe.by} on {printable(_host_of(probe))}", value=probe.detail)
        for probe in probes[:_SHOWN]
    )
    cause = cause_of(first.call, first.error_number)
    remedy = Remedy(text=cause.remedy if cause else "Look at peers.imex, peers.clique and dmesg on both nodes.")
    how = {
        Outcome.CORRUPT: "bytes are wrong, though every call succeeded",
        Outcome.TIMED_OUT: "did not end in time",
        Outcome.CRASHED: "killed a process",
    }.get(first.outcome, f"{first.call} failed")
    return failed(f"{what}, {where}: {how}", remedy, evidence=evidence, cause=cause.cause if cause else "")


def _host_of(probe: PeerProbe) -> str:
    return probe.hosts[0 if probe.by == probe.owner else 1]


CHECKS = (
    Check("peers.versions", _versions, guards=(Guard.FABRIC, Guard.IPC), sections=()),
    Check("peers.clique", _clique, guards=(Guard.FABRIC,), sections=()),
    Check("peers.imex", _imex, guards=(Guard.FABRIC,), sections=()),
    Check("peers.nics", _ports, guards=(Guard.RDMA,), sections=()),
    Check("peers.nodes", _others, guards=tuple(Guard), sections=()),
    Check("peers.fabric-active", _imports, guards=(Guard.FABRIC,), sections=()),
)
