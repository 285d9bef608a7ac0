"""NUMA nodes: has each one with CPUs memory, as much as its siblings, and may this process take it?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from egmctl.doctor.check import Scope, Verdicts, check, known, skip
from egmctl.doctor.findings import as_root, fact, failed, noted, passed, todo, unknown, warned
from egmctl.doctor.situation import coherent, coherent_gpus, numbers
from egmctl.model.finding import Evidence, Finding, Guard, Place, on_gpus, on_numa
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

FIND_MEMORY = as_root("Look for its memory: firmware setup and event log, the kernel's mem=, offline blocks (lsmem).")


@check("numa.memory", Guard.EGM, Guard.PERF, sections=("host",), wants=("gpus", "driver"))
def _memory(machine: Machine, scope: Scope) -> Verdicts:
    nodes, asked = known((machine.host or Host()).numa_nodes, "the NUMA nodes were not read"), scope.numa_of(machine)
    version = (machine.driver or Driver()).driver_version
    crashes = (numbers(version) or _FIXED) < _FIXED
    # numa.cpuset-mems reports a node without memory that --numa requires.
    bare = [node for node in nodes if node.kind is NumaKind.CPU_ONLY and node.id in asked and scope.numa is None]
    siblings = [node for node in nodes if node.kind is NumaKind.CPU]
    judged = [node for node in siblings if node.id in asked]
    largest = max((node.memory_total_bytes or 0 for node in siblings), default=0)
    crash = "before driver 595 cuMemCreate crashes on nodes of unequal memory (https://github.com/NVIDIA/nccl, "
    crash = f"{crash}issue 2106)" if crashes else ""
    if bare:
        yield (failed if crashes else warned)(
            "CPUs without memory: no HOST_NUMA memory can be allocated here",
            FIND_MEMORY,
            _on(bare),
            evidence=(*_sizes(bare), fact("driver", version)),
            cause=crash,
        )
    yield from _without_cpus(
        machine, scope, [node for node in nodes if node.kind in (NumaKind.MEMORY_ONLY, NumaKind.EMPTY)]
    )
    for node in judged:
        if node.memory_total_bytes is None:
            yield unknown("how much memory these NUMA nodes have was not read", _on([node]))
        elif node.memory_total_bytes < SMALL * largest:
            yield warned(
                "less memory than the other NUMA nodes have",
                FIND_MEMORY,
                _on([node]),
                evidence=(*_sizes(siblings), fact("driver", version)),
                cause=crash,
            )
        else:
            yield _available(scope, node, node.memory_total_bytes, siblings)
    if not judged and not bare:
        yield unknown("no NUMA node with CPUs and memory was read")


def _on(nodes: Sequence[NumaNode]) -> Place:
    return on_numa(node.id for node in nodes)


def _without_cpus(machine: Machine, scope: Scope, nodes: list[NumaNode]) -> Iterator[Finding]:
    gpus = machine.gpus or ()
    nobodys = []
    for node in nodes:
        local = [gpu for gpu in gpus if gpu.pci is not None and gpu.pci.numa_node == node.id]
        if not local and node.kind is NumaKind.MEMORY_ONLY and not any(_owns(gpu, node.id) for gpu in gpus):
            nobodys.append(node)
        elif local and (scope.numa is None or node.id in scope.numa):
            yield failed(
                f"no CPUs on the node that is local to {on_gpus(local).label}: the driver refuses HOST_NUMA memory "
                "there",
                as_root("Bring its CPUs online (see /sys/devices/system/cpu/offline, maxcpus=, nr_cpus=)."),
                _on([node]),
                evidence=_sizes([node]),
                cause="the driver takes HOST_NUMA memory of nodes with CPUs only (https://github.com/NVIDIA/nccl, "
                "issue 2190)",
            )
    if not nobodys:
        return
    may_own = () if memory_mode(machine) is MemoryMode.CDMM else coherent_gpus(machine, gpus)
    if len([gpu for gpu in may_own if own_node(gpu) is None]) >= len(nobodys):
        yield unknown("whether this is a GPU's memory is unknown", _on(nobodys))
        return
    yield (warned if coherent(machine) or scope.asked_purpose(Guard.EGM) else noted)(
        "memory without CPUs, and no GPU's: CUDA allocates nothing there",
        remedy=todo("Find out what it is (lsmem, dmesg), and bind no process to it alone."),
        place=_on(nobodys),
        evidence=_sizes(nobodys),
        cause="see https://github.com/NVIDIA/open-gpu-kernel-modules, issue 885",
    )


def _owns(gpu: Gpu, node: int) -> bool:
    own = own_node(gpu)
    if own is None:
        return False
    has_mig = gpu.nvml is not None and gpu.nvml.mig_mode is True
    return own <= node < own + (_NODES_OF_A_GPU if has_mig else 1)


def _available(scope: Scope, node: NumaNode, total: int, siblings: list[NumaNode]) -> Finding:
    """Judge how much of a node's memory can be had now."""
    place, free = _on([node]), node.memory_free_bytes
    enough = max(FULL * total, SCARCE * max(sibling.memory_free_bytes or 0 for sibling in siblings))
    if free is not None and free < enough:
        # Pages of files come back when memory is asked for.
        free = None if node.memory_reclaimable_bytes is None else free + node.memory_reclaimable_bytes
    remedy = todo("Find what holds it (numastat -m, /dev/shm, huge pages, processes), and free it.", "numastat -m")
    if free is None:
        return unknown("how much memory is available was not read", place, evidence=_sizes([node]))
    if free < FULL * total:
        hardly = "hardly any memory is available: HOST_NUMA memory of this node fails"
        return warned(hardly, remedy, place, evidence=_sizes(siblings))
    if free < enough:
        less = "much less memory is available than on another NUMA node"
        tell = warned if scope.asked_purpose(Guard.EGM) else noted
        return tell(less, remedy=remedy, place=place, evidence=_sizes(siblings))
    return passed("memory is available", place, evidence=_sizes([node]))


def _sizes(nodes: list[NumaNode]) -> tuple[Evidence, ...]:
    def size(value: int | None) -> str:
        return "not read" if value is None else format_size(value)

    return tuple(
        fact(
            f"/sys/devices/system/node/node{node.id}",
            f"CPUs {node.cpus or 'none'}; MemTotal {size(node.memory_total_bytes)}, MemFree "
            f"{size(node.memory_free_bytes)}, reclaimable {size(node.memory_reclaimable_bytes)}",
        )
        for node in nodes
    )


@check("numa.policy", Guard.EGM, Guard.PERF, sections=("host",))
def _policy(machine: Machine, scope: Scope) -> Verdicts:
    host, nodes = machine.host or Host(), scope.numa_of(machine)
    unread = host.unread.get("memory_policy")
    if host.memory_policy is None and unread is not None and unread.reason is Reason.NOT_PRESENT:
        skip("the kernel has no memory policies (no numa_maps)")
    if host.memory_policy is None and unread is not None and unread.reason is Reason.NOT_STATED:
        skip("a process' memory policy is not stated of this machine")
    policy = known(host.memory_policy, "the memory policy of this process was not read")
    yield fact("/proc/self/numa_maps", policy)
    bound = re.fullmatch(r"bind(?:=\w+)*:([0-9,-]+)", policy)
    denied = [node for node in nodes if bound and node not in parse_kernel_list(bound[1])]
    if not nodes:
        yield unknown("no NUMA node with CPUs was read")
    elif not denied:
        yield passed("no memory policy keeps this process off a NUMA node", on_numa(nodes))
    elif scope.numa is not None or scope.asked_purpose(Guard.EGM):
        yield warned(
            "the memory policy of this process does not allow memory of this NUMA node",
            todo("Start it without numactl --membind (Slurm: --mem-bind=none), or with all nodes."),
            on_numa(denied),
        )
    else:
        allows_some = "the memory policy of this process allows only some NUMA nodes"
        yield passed(allows_some, on_numa(denied), note="--for egm or --numa makes that a warning")
