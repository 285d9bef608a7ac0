"""NUMA nodes: has each one with CPUs memory, as much as its siblings, and may this process take it?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from egmctl.doctor.check import Check, Scope, failed, noted, passed, skipped, unknown, warned
from egmctl.doctor.situation import coherent, coherent_gpus, numbers
from egmctl.model.finding import Evidence, Finding, Guard, Remedy, on_gpus, on_numa
from egmctl.model.machine import Driver, Gpu, Host, Machine, NumaKind, NumaNode, Reason
from egmctl.topology.platform import MemoryMode, memory_mode, own_node
from egmctl.units import format_size, parse_kernel_list

SMALL, FULL, SCARCE = 0.75, 0.02, 0.25
"""Our choice: a node is small with less of the largest sibling's memory than this; full with less available than this
part of its memory; scarce with less available than this part of what a sibling has available."""
_FIXED = (595,)
"""The branch of the driver from which on cuMemCreate no longer crashes on nodes of unequal memory (NVIDIA/nccl, issue
2106)."""
_NODES_OF_A_GPU = 8
"""NUMA nodes that a coherent GPU reserves, for MIG."""

FIND_MEMORY = Remedy(
    text="Look for its memory: the firmware's setup and event log, mem= on the kernel's command line, offline blocks "
    "(lsmem).",
    needs_root=True,
)


def _memory(machine: Machine, scope: Scope) -> Iterator[Finding]:
    nodes = (machine.host or Host()).numa_nodes
    if nodes is None:
        yield unknown("the NUMA nodes were not read")
        return
    asked = scope.numa_of(machine)
    with_cpus = [node for node in nodes if node.kind in (NumaKind.CPU, NumaKind.CPU_ONLY)]
    # numa.cpuset-mems reports a node without memory that --numa requires.
    bare = [node for node in with_cpus if node.kind is NumaKind.CPU_ONLY and node.id in asked and scope.numa is None]
    yield from _without_memory(machine, bare)
    yield from _without_cpus(machine, scope, [node for node in nodes if node not in with_cpus])
    siblings = [node for node in with_cpus if node.kind is NumaKind.CPU]
    judged = [node for node in siblings if node.id in asked]
    unread = [node for node in judged if node.memory_total_bytes is None]
    if unread:
        yield unknown("how much memory these NUMA nodes have was not read", place=on_numa(node.id for node in unread))
    small = [node for node in judged if _is_small(node, siblings)]
    if small:
        yield _asymmetric(machine, small, siblings)
    yield from _available(scope, [node for node in judged if node not in (*unread, *small)], siblings)
    if not judged and not bare:
        yield unknown("no NUMA node with CPUs and memory was read")


def _without_memory(machine: Machine, nodes: list[NumaNode]) -> Iterator[Finding]:
    if not nodes:
        return
    tell = failed if _crashes(machine) else warned
    yield tell(
        "CPUs without memory: no HOST_NUMA memory can be allocated here",
        FIND_MEMORY,
        place=on_numa(node.id for node in nodes),
        evidence=(*_sizes(nodes), _driver_evidence(machine)),
        cause="before driver 595 cuMemCreate crashes on nodes of unequal memory, as NCCL does with it "
        "(https://github.com/NVIDIA/nccl, issue 2106)"
        if _crashes(machine)
        else "",
    )


def _crashes(machine: Machine) -> bool:
    version = numbers((machine.driver or Driver()).driver_version)
    return version is not None and version < _FIXED


def _without_cpus(machine: Machine, scope: Scope, nodes: list[NumaNode]) -> Iterator[Finding]:
    gpus = machine.gpus or ()
    for node in nodes:
        local = [gpu for gpu in gpus if gpu.pci is not None and gpu.pci.numa_node == node.id and node.id >= 0]
        if local and (scope.numa is None or node.id in scope.numa):
            yield failed(
                f"no CPUs on the node that {on_gpus(local).label} {'is' if len(local) == 1 else 'are'} local to: the "
                "driver refuses HOST_NUMA memory there",
                Remedy(
                    text="Bring its CPUs online (/sys/devices/system/cpu/offline, maxcpus=, nr_cpus=, the firmware's "
                    "setup).",
                    needs_root=True,
                ),
                place=on_numa([node.id]),
                evidence=_sizes([node]),
                cause="the driver takes HOST_NUMA memory of nodes with CPUs only (https://github.com/NVIDIA/nccl, "
                "issue 2190)",
            )
    elsewhere = [
        node
        for node in nodes
        if node.kind is NumaKind.MEMORY_ONLY
        and not any(_owns(gpu, node.id) for gpu in gpus)
        and not any(gpu.pci is not None and gpu.pci.numa_node == node.id for gpu in gpus)
    ]
    if not elsewhere:
        return
    place = on_numa(node.id for node in elsewhere)
    may_own = () if memory_mode(machine) is MemoryMode.CDMM else coherent_gpus(machine, gpus)
    if len([gpu for gpu in may_own if own_node(gpu) is None]) >= len(elsewhere):
        yield unknown("whether this is a GPU's memory is unknown", place=place)
        return
    summary = "memory without CPUs, and no GPU's: CUDA allocates nothing there"
    remedy = Remedy(text="Find out what it is (lsmem, dmesg), and bind no process to it alone.")
    cause = "see https://github.com/NVIDIA/open-gpu-kernel-modules, issue 885"
    if coherent(machine) or scope.asked_purpose(Guard.EGM):
        yield warned(summary, remedy, place=place, evidence=_sizes(elsewhere), cause=cause)
    else:
        yield noted(summary, remedy=remedy, place=place, evidence=_sizes(elsewhere), cause=cause)


def _owns(gpu: Gpu, node: int) -> bool:
    own = own_node(gpu)
    if own is None:
        return False
    has_mig = gpu.nvml is not None and gpu.nvml.mig_mode is True
    return own <= node < own + (_NODES_OF_A_GPU if has_mig else 1)


def _is_small(node: NumaNode, siblings: list[NumaNode]) -> bool:
    most = max(sibling.memory_total_bytes or 0 for sibling in siblings)
    return node.memory_total_bytes is not None and node.memory_total_bytes < SMALL * most


def _asymmetric(machine: Machine, small: list[NumaNode], siblings: list[NumaNode]) -> Finding:
    return warned(
        "less memory than the other NUMA nodes have",
        FIND_MEMORY,
        place=on_numa(node.id for node in small),
        evidence=(*_sizes(siblings), _driver_evidence(machine)),
        cause="before driver 595 cuMemCreate crashed on nodes of unequal memory (https://github.com/NVIDIA/nccl, issue "
        "2106)"
        if _crashes(machine)
        else "",
    )


def _available(scope: Scope, nodes: list[NumaNode], siblings: list[NumaNode]) -> Iterator[Finding]:
    """Judge how much of each node's memory can be had now."""
    most = max((sibling.memory_free_bytes or 0 for sibling in siblings), default=0)
    full: list[NumaNode] = []
    scarce: list[NumaNode] = []
    unread: list[NumaNode] = []
    good: list[NumaNode] = []
    for node in nodes:
        free, total = node.memory_free_bytes, node.memory_total_bytes or 0
        enough = max(FULL * total, SCARCE * most)
        if free is not None and free < enough:
            # Pages of files come back when memory is asked for.
            reclaimable = node.memory_reclaimable_bytes
            free = None if reclaimable is None else free + reclaimable
        if free is None:
            unread.append(node)
        elif free < FULL * total:
            full.append(node)
        else:
            (scarce if free < enough else good).append(node)
    remedy = Remedy(
        text="Find what holds it (numastat -m, /dev/shm, huge pages, processes), and free it.", command="numastat -m"
    )
    if full:
        yield warned(
            "hardly any memory is available: HOST_NUMA memory of this node fails",
            remedy,
            place=on_numa(node.id for node in full),
            evidence=_sizes(siblings),
        )
    if scarce:
        summary, place = "much less memory is available than on another NUMA node", on_numa(node.id for node in scarce)
        if scope.asked_purpose(Guard.EGM):
            yield warned(summary, remedy, place=place, evidence=_sizes(siblings))
        else:
            yield noted(summary, remedy=remedy, place=place, evidence=_sizes(siblings))
    if unread:
        yield unknown(
            "how much memory is available was not read",
            place=on_numa(node.id for node in unread),
            evidence=_sizes(unread),
        )
    if good:
        yield passed("memory is available", place=on_numa(node.id for node in good), evidence=_sizes(good))


def _sizes(nodes: list[NumaNode]) -> tuple[Evidence, ...]:
    def size(value: int | None) -> str:
        return "not read" if value is None else format_size(value)

    return tuple(
        Evidence(
            source=f"/sys/devices/system/node/node{node.id}",
            value=f"CPUs {node.cpus or 'none'}; MemTotal {size(node.memory_total_bytes)}, MemFree "
            f"{size(node.memory_free_bytes)}, reclaimable {size(node.memory_reclaimable_bytes)}",
        )
        for node in nodes
    )


def _driver_evidence(machine: Machine) -> Evidence:
    return Evidence(source="driver", value=(machine.driver or Driver()).driver_version or "not read")


def _policy(machine: Machine, scope: Scope) -> Iterator[Finding]:
    host = machine.host or Host()
    policy, nodes = host.memory_policy, scope.numa_of(machine)
    if policy is None:
        unread = host.unread.get("memory_policy")
        if unread is not None and unread.reason is Reason.NOT_PRESENT:
            yield skipped("the kernel has no memory policies (no numa_maps)")
        elif unread is not None and unread.reason is Reason.NOT_STATED:
            yield skipped("a process' memory policy is not stated of this machine")
        else:
            yield unknown("the memory policy of this process was not read")
        return
    if not nodes:
        yield unknown("no NUMA node with CPUs was read")
        return
    bound = re.fullmatch(r"bind(?:=\w+)*:([0-9,-]+)", policy)
    denied = [node for node in nodes if bound and node not in parse_kernel_list(bound[1])]
    evidence = (Evidence(source="/proc/self/numa_maps", value=policy),)
    if not denied:
        yield passed("no memory policy keeps this process off a NUMA node", place=on_numa(nodes), evidence=evidence)
        return
    summary = "the memory policy of this process does not allow memory of this NUMA node"
    if scope.numa is not None or scope.asked_purpose(Guard.EGM):
        yield warned(
            summary,
            Remedy(text="Start it without numactl --membind (Slurm: --mem-bind=none), or with all nodes."),
            place=on_numa(denied),
            evidence=evidence,
        )
    else:
        yield passed(
            "the memory policy of this process allows only some NUMA nodes",
            place=on_numa(denied),
            evidence=evidence,
            note="--for egm or --numa makes that a warning",
        )


CHECKS = (
    Check("numa.memory", _memory, guards=(Guard.EGM, Guard.PERF), sections=("host",), wants=("gpus", "driver")),
    Check("numa.policy", _policy, guards=(Guard.EGM, Guard.PERF), sections=("host",)),
)
