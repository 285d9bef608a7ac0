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
from egmctl.doctor.xids import C2C_XIDS, Blame, meaning
from egmctl.model.finding import Finding
from egmctl.model.kernel_log import KernelEvent
from egmctl.model.measurement import Flow
from egmctl.model.waiver import WaiverKind
from egmctl.verdict.crossings import (
    across_nodes,
    between_gpus,
    blocked_numa_memory,
    by_c2c,
    by_fabric_handle,
    by_nvlink,
    errors_on_the_way,
    far_memory,
    gpu_numa_memory,
    host_memory,
    in_place_of_nvlink,
    joined_by_nvlink,
    lost_nvlink,
    managed_memory,
    numa_memory,
    numa_memory_by_handle,
    over_pcie,
    pageable_memory,
    peers_over_pcie,
    short_of_nvlinks,
)
from egmctl.verdict.nodes import RunNode


class Symptom(Enum):
    """What is wrong with something that was measured, or tried."""

    SLOW = "slow"
    DEGRADED = "degraded"
    """It went without EGM, whose route is blocked."""
    CORRUPT = "corrupt"
    FAILED = "failed"
    """A driver call failed."""
    LOST = "lost"
    """It crashed, hung, or failed for no cause that the call names."""


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
    where: Callable[[Flow, RunNode], bool] | None = None
    """What has to hold of its GPUs as well."""
    given: Callable[[Finding, RunNode], bool] | None = None
    """Whether a finding of the checks counts; ``None``: all do."""
    whole_node: bool = False
    """All GPUs of the node have it, whichever one it was seen on."""
    of_links: bool = False
    """Also at the GPU whose links a flow takes on its way: the owner of EGM memory."""
    own_gpu: bool = False
    """Only where the fault is at a GPU: of another device it is not known which paths that is on."""


def mechanisms(check: str) -> Iterator[Mechanism]:
    """Yield what the faults of a check can do; nothing for one that makes no measurement slow, wrong or impossible."""
    return (row for row in MECHANISMS if any(fnmatchcase(check, pattern) for pattern in row.checks))


# --- of which findings ------------------------------------------------------------------------------------------------


def _xid(fits: Callable[[KernelEvent], bool]) -> Callable[[Finding, RunNode], bool]:
    """Return whether one of the Xids that a finding is about is such one."""
    return lambda finding, node: any(map(fits, xids_of(node.machine, finding)))


# Off the bus, or its clocks and links in an unknown state.
_slows_all = _xid(lambda event: event.number in (79, 109))
_of_nvlink = _xid(lambda event: meaning(event).blame is Blame.LINK)
_of_c2c = _xid(lambda event: event.number in C2C_XIDS)


# --- the table -------------------------------------------------------------------------------------------------------

_SLOW = frozenset({Symptom.SLOW})
_FAILED = frozenset({Symptom.FAILED})
_BOTH = _SLOW | _FAILED
_GPU = frozenset({WaiverKind.GPU_UNUSABLE})
_NO_P2P = frozenset({WaiverKind.NO_PEER_ACCESS, WaiverKind.NO_ATOMICS})
_NO_HANDLE = frozenset({WaiverKind.UNSUPPORTED_HANDLE, WaiverKind.REFUSED})
_NO_FABRIC = _NO_HANDLE | {WaiverKind.NO_IMEX_CHANNEL}
_NVLINK = (
    *("nvlink.bw-mode", "nvlink.disabled", "kernel.sxid"),
    *("fabric.manager", "fabric.management", "fabric.state", "fabric.consistency"),
)

MECHANISMS: tuple[Mechanism, ...] = (
    # A GPU that is taken away is slow nowhere: nothing is measured on it.
    Mechanism(checks=("dev.*",), does=_FAILED, stops=_GPU),
    Mechanism(checks=("drv.libraries", "drv.versions", "drv.nouveau"), does=_FAILED, stops=_GPU, whole_node=True),
    Mechanism(checks=("gpu.compute-mode",), does=_FAILED, stops=_GPU),
    Mechanism(checks=("env.limits",), does=_FAILED | {Symptom.LOST}),
    Mechanism(checks=("gpu.mig",), stops=_GPU | _NO_P2P),
    Mechanism(checks=("env.visible-devices",), stops=frozenset({WaiverKind.GPU_HIDDEN})),
    # Uncorrectable errors of a GPU's memory end what touches it; ECC does not make it slow.
    Mechanism(checks=("gpu.health",), does=_FAILED | {Symptom.CORRUPT}, stops=_GPU),
    # Of the many Xids some end contexts, and some leave clocks or links down.
    Mechanism(checks=("kernel.xid",), does=_FAILED, stops=_GPU, own_gpu=True),
    Mechanism(checks=("kernel.xid",), does=_SLOW, own_gpu=True, given=_slows_all),
    Mechanism(
        checks=("kernel.xid",),
        does=_SLOW,
        crosses=by_nvlink,
        where=joined_by_nvlink,
        own_gpu=True,
        given=_of_nvlink,
    ),
    Mechanism(checks=("kernel.xid",), does=_SLOW, crosses=by_c2c, own_gpu=True, given=_of_c2c),
    Mechanism(checks=("gpu.throttle", "bench.throttled", "bench.other-processes", "bench.other-link"), does=_SLOW),
    # Others' CPUs take bandwidth from host memory, and nothing from links between GPUs.
    Mechanism(checks=("bench.host-busy",), does=_SLOW, crosses=host_memory),
    # Host memory is reached through encrypted bounce buffers, and single GPUs have no peers.
    Mechanism(checks=("gpu.cc-mode",), does=_BOTH, stops=_NO_P2P | {WaiverKind.UNSUPPORTED_HANDLE}),
    Mechanism(checks=("gpu.vgpu",), does=_BOTH, stops=_NO_P2P | _NO_FABRIC | {WaiverKind.UNSUPPORTED_MEMORY}),
    # NVLink replays what arrives wrong: errors cost time, no bytes.
    *(
        Mechanism(
            checks=checks,
            does=_BOTH,
            stops=_NO_P2P | {WaiverKind.NO_NVLINK},
            crosses=by_nvlink,
            where=on_its_way,
            of_links=True,
        )
        for checks, on_its_way in (
            (("nvlink.links",), short_of_nvlinks),
            (("nvlink.errors",), errors_on_the_way),
            (_NVLINK, joined_by_nvlink),
        )
    ),
    # These take NVLink from all pairs of a GPU; NVML may list no link any more.
    Mechanism(checks=("nvlink.disabled", "nvlink.bw-mode"), does=_BOTH, stops=_NO_P2P, crosses=in_place_of_nvlink),
    Mechanism(
        checks=("nvlink.links", "nvlink.errors", *_NVLINK),
        does=_BOTH,
        stops=_NO_P2P,
        crosses=in_place_of_nvlink,
        where=lost_nvlink,
    ),
    # A fabric handle needs a channel on one node too (800 without one, measured on HGX H200), other handles need none.
    Mechanism(checks=("imex.module", "imex.channel"), does=_FAILED, stops=_NO_FABRIC, crosses=by_fabric_handle),
    # The driver makes no fabric memory at all until the domain is recovered (open-gpu-kernel-modules,
    # imex_session_api.c: read there, not tried).
    Mechanism(checks=("fabric.*", "imex.recovery"), does=_FAILED, stops=_NO_HANDLE, crosses=by_fabric_handle),
    # Only memory of other nodes is imported with the service: within HGX H200 all handles worked without it.
    Mechanism(checks=("imex.daemon", "imex.domain"), does=_FAILED, stops=_NO_HANDLE, crosses=across_nodes),
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
        of_links=True,
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
    Mechanism(checks=("numa.memory",), does=_FAILED, stops=frozenset({WaiverKind.REFUSED}), crosses=host_memory),
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
