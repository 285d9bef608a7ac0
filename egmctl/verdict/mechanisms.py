"""What a fault can do to a measurement: data. A cause explains only what its mechanism can produce.

Heat makes copies slow and never wrong; a cgroup takes a GPU away and slows none; pinned memory depends on no EGM route.
Each row has a test in both directions (tests/verdict/test_mechanisms.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from egmctl.doctor.checks.kernel_log import xids_of
from egmctl.doctor.xids import Blame, meaning
from egmctl.model.finding import Finding
from egmctl.model.machine import Gpu
from egmctl.model.measurement import Flow, HandleKind
from egmctl.model.memory import NUMA_MEMORY, MemoryKind
from egmctl.model.route import Carrier, LinkKind
from egmctl.model.waiver import WaiverKind
from egmctl.verdict.nodes import Node


class Symptom(Enum):
    """What is wrong with something that was measured, or tried."""

    SLOW = "slow"
    DEGRADED = "degraded"
    """It went without EGM, whose route is blocked."""
    CORRUPT = "corrupt"
    FAILED = "failed"
    """A driver call failed."""


Crosses = Callable[[Flow], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """What faults of some checks can do."""

    checks: tuple[str, ...]
    """Ids, or globs of ids, of doctor's checks and of what a run sees (:mod:`egmctl.verdict.seen`)."""
    does: frozenset[Symptom] = frozenset()
    stops: frozenset[WaiverKind] = frozenset()
    """Why something was not measured at all because of it."""
    crosses: Crosses | None = None
    """What a flow has to cross for a fault to concern it; ``None``: nothing, the place decides."""
    where: Callable[[Flow, Node], bool] | None = None
    """What has to hold of its GPUs as well."""
    given: Callable[[Finding, Node], bool] | None = None
    """Of which of the checks' findings; ``None``: of all."""
    whole_node: bool = False
    """All GPUs of the node have it, whichever one it was seen on."""
    own_gpu: bool = False
    """Only where the fault is at a GPU: of another device it is not known which paths that is on."""


def mechanisms(check: str) -> Iterator[Mechanism]:
    """Yield what the faults of a check can do; nothing for one that makes no measurement slow, wrong or impossible."""
    return (row for row in MECHANISMS if any(fnmatchcase(check, pattern) for pattern in row.checks))


# --- what a flow crosses ---------------------------------------------------------------------------------------------


def between_gpus(flow: Flow) -> bool:
    """Say whether both ends are the memory of GPUs, of two."""
    return None not in (flow.source.bus_id, flow.destination.bus_id) and (
        (flow.source.bus_id, flow.source.rank) != (flow.destination.bus_id, flow.destination.rank)
    )


def host_memory(flow: Flow) -> bool:
    """Say whether an end is host memory of any kind."""
    return flow.source.numa_node is not None or flow.destination.numa_node is not None


def numa_memory(flow: Flow) -> bool:
    """Say whether an end is host memory that is made by the number of its NUMA node: only that can be EGM."""
    return any(end.memory in NUMA_MEMORY for end in (flow.source, flow.destination))


def managed_memory(flow: Flow) -> bool:
    """Say whether an end is managed memory, which UVM routes by the GPUs of its NUMA node."""
    return MemoryKind.MANAGED in (flow.source.memory, flow.destination.memory)


def blocked_numa_memory(flow: Flow) -> bool:
    """Say whether the EGM route to such memory is blocked, whether or not another way is left."""
    return numa_memory(flow) and (flow.route.degraded or flow.route.carrier is Carrier.NONE)


def gpu_numa_memory(flow: Flow) -> bool:
    """Say whether an end is a GPU's memory as a NUMA node of the host."""
    return MemoryKind.GPU_NUMA in (flow.source.memory, flow.destination.memory)


def pageable_memory(flow: Flow) -> bool:
    """Say whether an end is memory of one page table for GPU and CPU: plain memory, and a GPU's as a NUMA node."""
    return gpu_numa_memory(flow) or MemoryKind.SYSTEM in (flow.source.memory, flow.destination.memory)


def numa_memory_by_handle(flow: Flow) -> bool:
    """Say whether such memory is shared by a fabric handle."""
    return numa_memory(flow) and by_fabric_handle(flow)


def by_nvlink(flow: Flow) -> bool:
    """Say whether a flow goes over NVLink, or would were its route not blocked; nothing else leads to other nodes."""
    nvlink = any(hop.link is LinkKind.NVLINK for hop in flow.route.hops)
    blocked = between_gpus(flow) and flow.route.carrier is Carrier.NONE
    return nvlink or blocked or flow.route.across_nodes


def in_place_of_nvlink(flow: Flow) -> bool:
    """Say whether one GPU works on another's memory, over whatever is left where no NVLink is."""
    return between_gpus(flow) and not flow.route.staged


def without_links(flow: Flow, node: Node) -> bool:
    """Say whether a GPU of a flow has NVLinks of which none is active."""
    links = [gpu.nvml.nvlinks for gpu in _gpus(flow, node) if gpu.nvml is not None and gpu.nvml.nvlinks]
    return any(not any(link.active for link in those) for those in links)


def far_memory(flow: Flow, node: Node) -> bool:
    """Say whether an end is host memory of a NUMA node that is not a GPU's own."""
    own = [gpu.host_numa_id for gpu in _gpus(flow, node) if gpu.host_numa_id is not None]
    ends = [end.numa_node for end in (flow.source, flow.destination) if end.numa_node is not None]
    return any(one != numa for one in own for numa in ends)


def _gpus(flow: Flow, node: Node) -> list[Gpu]:
    ids = node.gpus(flow)
    return [gpu for gpu in node.machine.gpus or () if gpu.bus_id in ids]


def by_c2c(flow: Flow) -> bool:
    """Say whether a flow goes over C2C, or would where there is C2C and it were up."""
    return host_memory(flow) or any(hop.link is LinkKind.C2C for hop in flow.route.hops)


def over_pcie(flow: Flow) -> bool:
    """Say whether a flow crosses PCIe; of a blocked route, which has no links, whether host memory would."""
    if flow.route.carrier is Carrier.NONE:
        return host_memory(flow)
    return any(hop.link is LinkKind.PCIE for hop in flow.route.hops)


def peers_over_pcie(flow: Flow) -> bool:
    """Say whether one GPU works on another's memory over PCIe: staged copies are between each and the host."""
    return between_gpus(flow) and over_pcie(flow) and not flow.route.staged


_FABRIC = frozenset({HandleKind.FABRIC, HandleKind.POOL_FABRIC})


def by_fabric_handle(flow: Flow) -> bool:
    """Say whether a flow's memory is another process' by a fabric handle."""
    return flow.route.across_nodes or not _FABRIC.isdisjoint((flow.source.handle, flow.destination.handle))


# --- of which findings ------------------------------------------------------------------------------------------------

_SLOWING = (79, 109)
"""Xids that come with clocks or links down, besides those that are blamed on NVLink."""


def slowing_xid(finding: Finding, node: Node) -> bool:
    """Say whether what the kernel logged leaves links or clocks down: a contained ECC error does not."""
    events = xids_of(node.machine, finding)
    return any(event.number in _SLOWING or meaning(event).blame is Blame.LINK for event in events)


# --- the table -------------------------------------------------------------------------------------------------------

_SLOW = frozenset({Symptom.SLOW})
_FAILED = frozenset({Symptom.FAILED})
_BOTH = _SLOW | _FAILED
_GPU = frozenset({WaiverKind.GPU_UNUSABLE})
_NO_P2P = frozenset({WaiverKind.NO_PEER_ACCESS, WaiverKind.NO_ATOMICS})
_NO_FABRIC = frozenset({WaiverKind.NO_IMEX_CHANNEL, WaiverKind.UNSUPPORTED_HANDLE, WaiverKind.REFUSED})
_NVLINK = (
    *("nvlink.*", "kernel.sxid"),
    *("fabric.manager", "fabric.management", "fabric.state", "fabric.consistency"),
)

MECHANISMS: tuple[Mechanism, ...] = (
    # A GPU that is taken away is slow nowhere: nothing is measured on it.
    Mechanism(checks=("dev.*",), does=_FAILED, stops=_GPU),
    Mechanism(checks=("drv.libraries", "drv.versions", "drv.nouveau"), does=_FAILED, stops=_GPU, whole_node=True),
    Mechanism(checks=("gpu.compute-mode",), does=_FAILED, stops=_GPU),
    Mechanism(checks=("gpu.mig",), stops=_GPU | _NO_P2P),
    Mechanism(checks=("env.visible-devices",), stops=frozenset({WaiverKind.GPU_HIDDEN})),
    # Uncorrectable errors of a GPU's memory end what touches it; ECC does not make it slow.
    Mechanism(checks=("gpu.health",), does=_FAILED | {Symptom.CORRUPT}, stops=_GPU),
    # Of the many Xids some end contexts, and some leave clocks or links down.
    Mechanism(checks=("kernel.xid",), does=_FAILED, stops=_GPU, own_gpu=True),
    Mechanism(checks=("kernel.xid",), does=_SLOW, own_gpu=True, given=slowing_xid),
    Mechanism(checks=("gpu.throttle", "bench.throttled", "bench.other-processes", "bench.other-link"), does=_SLOW),
    # Host memory is reached through encrypted bounce buffers, and single GPUs have no peers.
    Mechanism(checks=("gpu.cc-mode",), does=_BOTH, stops=_NO_P2P | {WaiverKind.UNSUPPORTED_HANDLE}),
    Mechanism(checks=("gpu.vgpu",), does=_BOTH, stops=_NO_P2P | _NO_FABRIC | {WaiverKind.UNSUPPORTED_MEMORY}),
    # NVLink replays what arrives wrong: errors cost time, no bytes.
    Mechanism(checks=_NVLINK, does=_BOTH, stops=_NO_P2P | {WaiverKind.NO_NVLINK}, crosses=by_nvlink),
    # These take NVLink from all pairs of a GPU; NVML may list no link any more.
    Mechanism(checks=("nvlink.disabled", "nvlink.bw-mode"), does=_BOTH, stops=_NO_P2P, crosses=in_place_of_nvlink),
    # Some pairs have no NVLink by design: only where a GPU has none left is another path what is left of it.
    Mechanism(checks=_NVLINK, does=_BOTH, stops=_NO_P2P, crosses=in_place_of_nvlink, where=without_links),
    Mechanism(
        checks=("fabric.*", "imex.*"),
        does=_FAILED,
        stops=_NO_FABRIC,
        crosses=by_fabric_handle,
    ),
    # Without P2P copies between GPUs are staged in host memory.
    Mechanism(checks=("p2p.status",), does=_BOTH, stops=_NO_P2P, crosses=between_gpus),
    Mechanism(checks=("p2p.verify",), does=_FAILED | {Symptom.CORRUPT}, crosses=between_gpus),
    Mechanism(checks=("pcie.acs",), does=_BOTH, crosses=peers_over_pcie),
    # "Silent device memory corruption" (CUDA C++ Programming Guide, "IOMMU on Linux").
    Mechanism(checks=("pcie.iommu",), does=_BOTH | {Symptom.CORRUPT}, crosses=peers_over_pcie),
    Mechanism(checks=("pcie.link",), does=_SLOW, crosses=over_pcie),
    Mechanism(checks=("kernel.aer",), does=_BOTH, crosses=over_pcie, own_gpu=True),
    # Where C2C is down the same memory is reached over PCIe.
    Mechanism(
        checks=("c2c.link",),
        does=_BOTH,
        stops=frozenset({WaiverKind.UNSUPPORTED_MEMORY, WaiverKind.REFUSED}),
        crosses=by_c2c,
    ),
    # Without EGM the same memory is ordinary system memory, which can be had as well.
    Mechanism(checks=("egm.capability", "egm.preconditions", "egm.override-key"), does=_SLOW, crosses=numa_memory),
    Mechanism(checks=("egm.hypervisor-mode",), does=_BOTH, crosses=numa_memory),
    # Managed memory goes over C2C as ordinary system memory then, and nothing says so (open-gpu-kernel-modules,
    # uvm_va_block.c: read there, not measured).
    Mechanism(
        checks=("egm.capability", "egm.preconditions", "egm.cgroup-route"),
        does=_SLOW,
        crosses=managed_memory,
    ),
    Mechanism(
        checks=("egm.cgroup-route",),
        does=_BOTH | {Symptom.DEGRADED},
        stops=frozenset({WaiverKind.EGM_BLOCKED, WaiverKind.REFUSED}),
        crosses=numa_memory,
    ),
    # It is the route to other nodes' memory: the GPU's own C2C has no part in it.
    Mechanism(checks=("egm.peer-route",), does=_SLOW, crosses=managed_memory, where=far_memory),
    Mechanism(
        checks=("egm.peer-route",),
        does=_BOTH | {Symptom.DEGRADED},
        stops=frozenset({WaiverKind.EGM_BLOCKED, WaiverKind.REFUSED}),
        crosses=blocked_numa_memory,
    ),
    Mechanism(
        checks=("egm.fabric-address",),
        does=_FAILED,
        stops=frozenset({WaiverKind.UNSUPPORTED_MEMORY, WaiverKind.REFUSED}),
        crosses=numa_memory_by_handle,
    ),
    Mechanism(
        checks=("egm.alloc-active",),
        does=_FAILED | {Symptom.CORRUPT},
        stops=frozenset({WaiverKind.REFUSED}),
        crosses=numa_memory,
    ),
    Mechanism(
        checks=("numa.cpuset-mems",),
        does=_FAILED,
        stops=frozenset({WaiverKind.NO_NUMA_MEMORY}),
        crosses=host_memory,
    ),
    Mechanism(
        checks=("numa.mempolicy-syscalls",),
        does=_FAILED,
        stops=frozenset({WaiverKind.REFUSED}),
        crosses=host_memory,
    ),
    # Without common page tables a GPU has no plain memory, and CPUs have none of a GPU's.
    Mechanism(
        checks=("uvm.addressing-mode",), stops=frozenset({WaiverKind.UNSUPPORTED_MEMORY}), crosses=pageable_memory
    ),
    Mechanism(checks=("numa.mode",), stops=frozenset({WaiverKind.UNSUPPORTED_MEMORY}), crosses=gpu_numa_memory),
    Mechanism(checks=("numa.balancing", "numa.cmdline"), does=_SLOW, crosses=host_memory),
)
"""A check that is in no row explains no measurement: the bench uses neither NCCL's variables nor NICs."""
