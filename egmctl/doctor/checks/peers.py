"""Checks that compare the nodes of an MPI job: ``egmctl doctor`` under mpirun or srun."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from egmctl.doctor.check import Scope, Verdicts, check, end, skip
from egmctl.doctor.findings import fact, failed, passed, skipped, unknown, warned
from egmctl.doctor.situation import NO_DOMAIN
from egmctl.driver.signatures import cause_of
from egmctl.model.finding import Finding, Guard
from egmctl.model.machine import Machine
from egmctl.model.probes import Peer, PeerPort, PeerProbe, ProbeOutcome
from egmctl.model.remedy import Need, as_root, todo
from egmctl.units import counted, group_by, printable, several, shortened

ALONE = "only under mpirun or srun, with ranks on several nodes"

_SHOWN = 4


def _nodes(machine: Machine) -> tuple[Peer, ...]:
    """Return the nodes of the job; end the check if there is only one, or if MPI failed."""
    if machine.peers is None:
        skip(ALONE)
    if machine.peers.problem:
        sentence = "the processes of this job could not talk to each other"
        end(unknown(sentence, evidence=(fact("MPI", machine.peers.problem),)))
    return machine.peers.nodes if len(machine.peers.nodes) > 1 else skip(ALONE)


class _Groups:
    """The nodes grouped by a value, the largest group first."""

    def __init__(self, nodes: Iterable[Peer], value: Callable[[Peer], Hashable]) -> None:
        groups = sorted(group_by(nodes, value), key=lambda group: -len(group[1]))
        self.values = [value for value, _ in groups]
        self.nodes = [members for _, members in groups]
        self.evidence = tuple(fact(_hosts(members), value) for value, members in groups)


@check("peers.versions", Guard.FABRIC, Guard.IPC, sections=())
def _versions(machine: Machine, _scope: Scope) -> Verdicts:
    nodes = _nodes(machine)
    unread = [node for node in nodes if node.driver_version is None]
    drivers = _Groups((node for node in nodes if node not in unread), lambda node: node.driver_version)
    libraries = _Groups((node for node in nodes if node.libcuda_version), lambda node: node.libcuda_version)
    tools = _Groups(nodes, lambda node: node.tool)
    yield from drivers.evidence
    if len(drivers.values) > 1:
        remedy = as_root("Install one version on all nodes that share memory.", Need.REBOOT)
        yield failed(f"the nodes have {len(drivers.values)} versions of the driver", remedy)
    elif len(libraries.values) > 1:
        yield from libraries.evidence
        remedy = todo("Start all ranks with the same libraries: one image, or the same LD_LIBRARY_PATH.")
        cause = "processes that share memory must run with one CUDA driver and runtime (CUDA programming guide, IPC)"
        yield warned(f"the ranks have loaded {len(libraries.values)} versions of libcuda", remedy, cause=cause)
    elif len(tools.values) > 1:
        yield from tools.evidence
        remedy = todo("Install one version on all nodes: their results cannot be compared otherwise.")
        yield warned(f"the nodes have {len(tools.values)} versions of egmctl", remedy)
    elif unread:
        yield unknown(f"the driver's version was not read on {_hosts(unread)}")
    else:
        yield passed(f"{len(nodes)} nodes have the same driver")


def _nodes_in_domain(machine: Machine) -> tuple[Peer, ...]:
    nodes = _nodes(machine)
    return nodes if any(node.clusters for node in nodes) else skip(NO_DOMAIN)


@check("peers.clique", Guard.FABRIC, sections=())
def _clique(machine: Machine, _scope: Scope) -> Verdicts:
    nodes = _nodes_in_domain(machine)
    groups = _Groups(nodes, _domain)
    yield from groups.evidence
    if len(groups.values) == 1:
        yield passed(f"the GPUs of {len(nodes)} nodes are in one clique of one NVLink domain")
    else:
        remedy = todo("Request nodes of one domain (Slurm: topology/block; Kubernetes: a ComputeDomain).")
        cause = "fabric handles work within one clique of one cluster only"
        yield failed(f"the GPUs are in {len(groups.values)} different NVLink domains or cliques", remedy, cause=cause)


def _domain(node: Peer) -> str:
    cliques = ", ".join(map(str, node.cliques)) or "none"
    return f"cluster {', '.join(node.clusters) or 'none'}, clique {cliques}"


@check("peers.imex", Guard.FABRIC, sections=())
def _imex(machine: Machine, _scope: Scope) -> Verdicts:
    nodes = _nodes_in_domain(machine)
    faults = [(node, fault) for node in nodes if (fault := _imex_fault(node))]
    unread = [node for node in nodes if None in (node.imex_channel, node.imex_daemon, node.imex_domain)]
    if faults:
        yield from (fact(printable(node.host), fault) for node, fault in faults[:_SHOWN])
        remedy = todo("Check IMEX on these nodes: the checks imex.* say what is wrong there.")
        cause = "fabric handles of other nodes cannot be opened without it"
        yield failed(f"IMEX is not ready on {len(faults)} of {len(nodes)} nodes", remedy, cause=cause)
    elif unread:
        yield unknown(f"an IMEX channel or the state of IMEX was not read on {_hosts(unread)}")
    else:
        yield passed(f"{len(nodes)} nodes have a channel, and no IMEX problem was found")


def _hosts(nodes: Sequence[Peer]) -> str:
    return shortened([printable(node.host) for node in nodes], _SHOWN)


def _imex_fault(node: Peer) -> str:
    if node.imex_channel is False:
        return "no IMEX channel can be used"
    bad_daemon = f"the daemon's state is {node.imex_daemon}" if node.imex_daemon not in (None, "READY") else ""
    return bad_daemon or (f"the domain is {node.imex_domain}" if node.imex_domain not in (None, "UP") else "")


@check("peers.nics", Guard.RDMA, sections=())
def _ports(machine: Machine, _scope: Scope) -> Verdicts:
    nodes = _nodes(machine)
    known = [node for node in nodes if node.ports is not None]
    if not known:
        end(unknown("the NICs of no node were read"))
    if not any(node.ports for node in known):
        skip("no node has an RDMA NIC")
    groups = _Groups(known, _active_ports)
    unread = [node for node in nodes if node.ports is None or any(map(_is_unread, node.ports))]
    yield from groups.evidence
    if len(groups.values) > 1:
        differing = [node for nodes in groups.nodes[1:] for node in nodes]
        remedy = todo("Check the cables and switches of the ports that are not active there.", look="ibstat")
        other = f"are not those of the other nodes ({groups.values[0]})"
        yield failed(f"the active NIC ports of {_hosts(differing)} {other}", remedy)
    elif unread:
        yield unknown(f"the state or rate of NIC ports was not read on {_hosts(unread)}")
    else:
        yield passed(f"{len(known)} nodes have the same ports active")


def _is_unread(port: PeerPort) -> bool:
    return port.state is None or (port.state == "ACTIVE" and None in (port.rate_gbit_s, port.link_layer))


def _active_ports(node: Peer) -> str:
    active = [port for port in node.ports or () if port.state == "ACTIVE"]
    kinds = [f"{port.rate_gbit_s:g} Gbit/s {port.link_layer}" for port in active if port.rate_gbit_s is not None]
    return counted(sorted(kinds)) or "none active"


@check("peers.nodes", *Guard, sections=())
def _others(machine: Machine, _scope: Scope) -> Verdicts:
    nodes = _nodes(machine)
    failing = [node for node in nodes if node.failed]
    yield from _Groups(failing, lambda node: ", ".join(node.failed)).evidence
    if failing:
        remedy = todo("Run egmctl doctor on these nodes, or egmctl fleet doctor on all.", look="egmctl doctor")
        yield failed(f"checks fail on {len(failing)} of {len(nodes)} nodes", remedy)
    else:
        yield passed(f"no check fails on any of {len(nodes)} nodes")


@check("peers.fabric-active", Guard.FABRIC, sections=())
def _imports(machine: Machine, _scope: Scope) -> Verdicts:
    if machine.peers and machine.peers.problem:
        _nodes(machine)
    if machine.peers is None or machine.peers.probes is None:
        skip("only with --active under mpirun or srun")
    if not machine.peers.probes:
        yield skipped("there is one rank only")
    alike = group_by(machine.peers.probes, lambda p: (p.host_memory, p.outcome, p.call, p.error_number))
    yield from (_import(group) for _, group in alike)


def _import(probes: Sequence[PeerProbe]) -> Finding:
    first = probes[0]
    subject = f"{'HOST_NUMA' if first.host_memory else 'device'} memory by fabric handle"
    if first.outcome is ProbeOutcome.OK:
        return passed(f"{subject} arrived, and writes came back: {several(len(probes), 'direction')} between ranks")
    if first.outcome is ProbeOutcome.NOT_RUN:
        return unknown(f"{subject}: not tried: {first.detail}")
    paths = shortened([f"{probe.labels[0]} to {probe.labels[1]}" for probe in probes], _SHOWN)
    failure = {
        ProbeOutcome.CORRUPT: "bytes are wrong, though every call succeeded",
        ProbeOutcome.TIMED_OUT: "did not end in time",
        ProbeOutcome.CRASHED: "killed a process",
    }.get(first.outcome, f"{first.call} failed")
    cause = cause_of(first.call, first.error_number)
    return failed(
        f"{subject}, {paths} (owner to importer): {failure}",
        cause.remedy if cause else todo("Look at peers.imex, peers.clique and dmesg on both nodes."),
        evidence=tuple(
            fact(f"rank {probe.by} on {printable(probe.hosts[0 if probe.by == probe.owner else 1])}", probe.detail)
            for probe in probes[:_SHOWN]
        ),
        cause=cause.cause if cause else "",
    )
