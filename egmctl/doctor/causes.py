"""The table of causes and their effects, and the functions that apply it.

A rule lists checks whose findings explain findings of other checks (:data:`ON_FINDINGS`) or troubles of a run's paths
(:data:`ON_PATHS`). Its condition is a function of :mod:`egmctl.doctor.effects_on_findings` or
:mod:`egmctl.doctor.effects_on_paths`. Every explanation of a finding or of a slow path comes from a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from egmctl.dataclass import dataclass
from egmctl.doctor import effects_on_findings as when
from egmctl.doctor import effects_on_paths as paths
from egmctl.doctor.checks import egm, fabric, kernel
from egmctl.doctor.checks.access import lacks_all_gpus
from egmctl.doctor.checks.active import KINDS
from egmctl.doctor.effects_on_paths import Flows, on
from egmctl.doctor.kernel_faults import C2C_XIDS, Blame
from egmctl.doctor.troubles import RunNode, Symptom, Trouble
from egmctl.model.finding import TOLD, Finding, PlaceKind, Status, WaiverKind
from egmctl.model.kernel_log import DriverMessage
from egmctl.model.machine import Machine
from egmctl.topology.access import LOST, Block


@dataclass(frozen=True, slots=True)
class Rule:
    """A cause and its possible effects."""

    causes: tuple[str, ...]
    """The ids, or globs of ids, of the checks that detect the cause."""
    effects: Collection[str]
    """The ids of checks, or the kinds of :class:`Trouble` of a path."""
    holds: Callable[[RunNode, Finding, Any], bool]
    """The condition: whether, on a node, a finding of a cause explains a finding or trouble."""
    across: bool = False
    """Whether the cause on one GPU explains the effect on all others."""


def explains(node: RunNode, cause: Finding, effect: Finding | Trouble) -> bool:
    """Return whether a finding explains another finding on the same node, or a trouble of a path that uses the node."""
    kind = effect.check if isinstance(effect, Finding) else effect.kind
    return any(kind in rule.effects and rule.holds(node, cause, effect) for rule in rules_from(cause.check))


@cache
def rules_from(check: str) -> tuple[Rule, ...]:
    """Return the rules whose cause is a finding of a check."""
    rules = (*ON_FINDINGS, *ON_PATHS)
    return tuple(rule for rule in rules if any(fnmatchcase(check, pattern) for pattern in rule.causes))


def explained(machine: Machine, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings with their root causes in ``explained_by`` and the effects of each in ``explains``.

    Findings with status ``unknown`` can be effects too. A root cause gets the most severe status among itself and its
    effects, because a failed trial shows that it does harm.
    """
    node = RunNode(machine)
    faults = [index for index, finding in enumerate(findings) if finding.status in TOLD]
    unknown = [index for index, finding in enumerate(findings) if finding.status is Status.UNKNOWN]
    if machine.peers and machine.peers.problem:
        # The nodes were not compared because MPI did not start, whatever is wrong with this one.
        unknown = [index for index in unknown if not findings[index].check.startswith("peers.")]
    causes_of: dict[int, list[int]] = {}
    for effect in (*faults, *unknown):
        causes = [
            cause
            for cause in faults
            if cause != effect
            and explains(node, findings[cause], findings[effect])
            # If two findings could explain each other, only one of them does.
            and effect not in _all_causes(cause, causes_of)
        ]
        if causes and _covers(node, [findings[cause] for cause in causes], findings[effect]):
            causes_of[effect] = causes
    result = list(findings)
    for effect in causes_of:
        roots = sorted(_all_causes(effect, causes_of) - causes_of.keys())
        checks = tuple(dict.fromkeys(result[root].check for root in roots))
        result[effect] = replace(result[effect], explained_by=checks)
        for root in roots:
            statuses = {result[root].status, findings[effect].status} & set(TOLD)
            effects = dict.fromkeys((*result[root].explains, findings[effect].check))
            result[root] = replace(result[root], explains=tuple(effects), status=min(statuses, key=TOLD.index))
    return tuple(result)


def _all_causes(effect: int, causes_of: Mapping[int, list[int]]) -> set[int]:
    """Return the indices of the direct and indirect causes of a finding."""
    direct = causes_of.get(effect, [])
    return set(direct).union(*(_all_causes(cause, causes_of) for cause in direct))


def _covers(node: RunNode, causes: Sequence[Finding], effect: Finding) -> bool:
    """Return whether the causes include each GPU of an effect, and an end of each of its pairs.

    If the effect or a cause is not about GPUs, or a rule says that a GPU harms others, return ``True``.
    """
    if any(_reaches(node, cause, effect) for cause in causes):
        return True
    gpus = effect.place.gpus
    # A library fails for all GPUs, whichever GPU the finding names.
    if gpus is None or any(cause.place.gpus is None or cause.check == "drv.libraries" for cause in causes):
        return True
    touched = {bus_id for cause in causes for bus_id in cause.place.gpus or ()}
    if effect.place.kind is PlaceKind.PAIR:
        return all(touched.intersection(pair.split(">")) for pair in effect.place.ids)
    return gpus <= touched


def _reaches(node: RunNode, cause: Finding, effect: Finding) -> bool:
    rules = (rule for rule in rules_from(cause.check) if rule.across and effect.check in rule.effects)
    return any(rule.holds(node, cause, effect) for rule in rules)


# --- findings ---------------------------------------------------------------------------------------------------------

_MEMORY_XIDS = (48, 63, 64, 92, 94, 95, 140, 156, 157, 160, 161, 168, 171, 172)
"""The Xids that report errors of a GPU's memory (:mod:`egmctl.doctor.kernel_faults`)."""

_ACTIVE = tuple(KINDS)
WITHHELD = ("dev.excluded", "dev.cgroup-restricted", "dev.nodes-missing")
"""The checks that detect that a working GPU is withheld from this or any process."""
_EGM = ("egm.capability", "egm.preconditions", "egm.fabric-address", "egm.cgroup-route", "egm.peer-route")
_BY_NVML = ("nvlink.bw-mode", "fabric.domain", "rdma.bar1")
_LOST_GPU_EFFECTS = (*_EGM, "env.visible-devices", "fabric.same-node-isolation", "rdma.affinity")
"""The checks that a lost GPU affects. Checks that read NVML are not listed, because NVML does not list such a GPU, nor
checks that read sysfs, which needs no permission."""
_NOT_STARTED = tuple(check for check in _LOST_GPU_EFFECTS if check != "egm.preconditions")
_OVER_NVLINK = ("p2p.verify", "fabric.alloc-active")
"""The checks of active probes that use NVLink if there is any."""
_WITHOUT_FABRIC = ("fabric.state", "fabric.domain", "p2p.status", *_OVER_NVLINK)

_RELATED: Mapping[str, tuple[str, ...]] = {
    "dev.fell-off-bus": ("dev.driver-binding", "dev.permissions", "gpu.health", "pcie.link", *_LOST_GPU_EFFECTS),
    "dev.driver-binding": ("dev.control-nodes", "egm.mode", *_LOST_GPU_EFFECTS),
    "dev.excluded": _LOST_GPU_EFFECTS,
    "drv.flavour": ("dev.driver-binding", "dev.count-consistency", "drv.libraries", *_NOT_STARTED),
    "dev.cgroup-restricted": _LOST_GPU_EFFECTS,
    "dev.nodes-missing": _LOST_GPU_EFFECTS,
    "dev.permissions": _LOST_GPU_EFFECTS,
    "dev.control-nodes": ("egm.platform", *_LOST_GPU_EFFECTS),
    "c2c.link": ("egm.platform", *_EGM, "egm.alloc-active"),
    "numa.auto-online": ("numa.mode",),
    "gpu.mig": (*_EGM, "nvlink.links", "p2p.status", *_ACTIVE),
    # On HGX Hopper the confidential mode of single GPUs turns NVLink off (NVIDIA confidential computing guide).
    "gpu.cc-mode": ("p2p.status", "nvlink.links", "fabric.state"),
    "gpu.vgpu": ("p2p.status",),
    "nvlink.disabled": ("nvlink.links", "p2p.status", "egm.peer-route", "fabric.state", *_OVER_NVLINK),
    "nvlink.bw-mode": ("p2p.status", "egm.peer-route", "fabric.alloc-active", "p2p.verify"),
    "nvlink.links": ("nvlink.errors", "p2p.status", "egm.peer-route", "fabric.state", "p2p.verify"),
    "fabric.management": ("fabric.manager", "nvlink.links", *_WITHOUT_FABRIC),
    "fabric.manager": ("egm.fabric-address", *_WITHOUT_FABRIC),
    "fabric.state": ("p2p.status", "fabric.domain", "imex.domain", "egm.fabric-address", "fabric.alloc-active"),
    # IMEX and fabric handles work within one clique of one domain (IMEX guide).
    "fabric.domain": (
        *("imex.daemon", "imex.domain", "p2p.status", "egm.fabric-address", "egm.peer-route"),
        *("fabric.alloc-active", "peers.clique", "peers.imex", "peers.fabric-active"),
    ),
    "drv.libraries": ("egm.platform", "drv.versions", "gpu.cc-mode", *_BY_NVML, *_EGM),
    "gpu.health": _ACTIVE,
    "egm.mode": (*_EGM, "egm.alloc-active"),
    "egm.override-key": (*_EGM, "egm.alloc-active"),
    # Without EGM, the same memory is still available as ordinary system memory.
    "egm.capability": tuple(check for check in _EGM if check != "egm.capability"),
    "egm.fabric-address": ("p2p.status", "egm.peer-route"),
    "p2p.status": ("egm.peer-route", "p2p.verify"),
    "imex.module": ("imex.channel", "imex.daemon", "imex.domain", "fabric.alloc-active", "peers.fabric-active"),
    "imex.daemon": ("imex.domain", "peers.imex", "peers.fabric-active"),
    "imex.channel": ("peers.fabric-active",),
    "imex.domain": ("peers.fabric-active",),
    "ipc.pid-namespace": ("ipc.legacy-active", "ipc.event-active", "ipc.pidfd-active"),
    "ipc.ipc-namespace": ("ipc.legacy-active", "ipc.event-active"),
    "rdma.devices-cgroup": ("rdma.gdr-path", "rdma.coherent-dmabuf", "rdma.dmabuf-active"),
}
"""By check, the checks that detect its fault too (:func:`when.related`)."""

_LOGGED: Mapping[str, tuple[DriverMessage, ...]] = {
    "dev.fell-off-bus": (DriverMessage.FELL_OFF_BUS,),
    "dev.driver-binding": (
        *(DriverMessage.INIT_FAILED, DriverMessage.NEEDS_OPEN_MODULES, DriverMessage.NEEDS_PROPRIETARY_MODULES),
        *(DriverMessage.LEGACY_DRIVER, DriverMessage.NOT_IN_RELEASE),
    ),
    "drv.flavour": (
        DriverMessage.INIT_FAILED,
        DriverMessage.NEEDS_OPEN_MODULES,
        DriverMessage.NEEDS_PROPRIETARY_MODULES,
    ),
    "drv.versions": (DriverMessage.VERSION_MISMATCH,),
    "c2c.link": (DriverMessage.C2C_SELF_TEST, DriverMessage.C2C_P2P, DriverMessage.SYSMEM_LINK_TRAINING),
    "uvm.addressing-mode": (DriverMessage.SMMU_SVA,),
    "numa.auto-online": (DriverMessage.MEMORY_NOT_MOVABLE, DriverMessage.MEMORY_ADD),
    "numa.mode": (DriverMessage.MEMORY_NOT_MOVABLE, DriverMessage.MEMORY_ADD),
    "nvlink.links": (
        *(
            DriverMessage.SWITCH_TRAINING,
            DriverMessage.NVLINK_ACTIVATION,
            DriverMessage.NVLINK_ALI,
            DriverMessage.NVLINK_RECEIVER_DETECT,
        ),
        *(DriverMessage.NVLINK_UNCONTAINED, DriverMessage.NVLINK_DEGRADED),
    ),
    "fabric.state": (DriverMessage.FABRIC_PROBE, DriverMessage.FABRIC_INBAND, DriverMessage.NO_FABRIC_ADDRESS),
    "p2p.status": (DriverMessage.EGM_NO_FABRIC_ADDRESS, DriverMessage.P2P_DISABLED),
    "imex.recovery": (DriverMessage.IMEX_SHUTDOWN,),
}
"""By check, the driver messages that report the same fault."""

ON_FINDINGS: tuple[Rule, ...] = (
    *(Rule((cause,), effects, when.related) for cause, effects in _RELATED.items()),
    *(Rule((cause,), ("kernel.driver-messages",), when.logged(*messages)) for cause, messages in _LOGGED.items()),
    Rule(("dev.fell-off-bus", *WITHHELD, "dev.permissions"), ("drv.libraries",), when.no_device_found),
    Rule(("dev.fell-off-bus", "dev.driver-binding", *WITHHELD), ("dev.count-consistency",), when.no_gpu_left),
    Rule(("dev.fell-off-bus",), ("kernel.xid",), when.xids(79)),
    Rule(("dev.fell-off-bus",), ("kernel.aer",), when.same_gpus),
    # The driver times out while it waits for a link that has errors.
    Rule(("kernel.aer",), ("kernel.xid",), when.xids(Blame.PCIE)),
    # A GPU has one kernel driver, and the libraries list only GPUs that are bound to NVIDIA's.
    Rule(("drv.nouveau",), ("dev.driver-binding", "drv.libraries", "dev.count-consistency"), when.always),
    Rule(("dev.driver-binding",), ("drv.libraries",), when.same_gpus),
    Rule(("drv.versions",), ("drv.libraries",), when.versions_differ),
    # An update of the packages replaces the fabric manager's too, and the old module stays loaded.
    Rule(("drv.versions",), ("fabric.manager",), when.effect_quotes(fabric.MANAGER_VERSION)),
    Rule(("dev.driver-binding", *WITHHELD), ("pcie.link",), when.undetermined),
    Rule(("drv.flavour",), ("egm.preconditions",), when.effect_quotes(egm.FLAVOUR)),
    # A GB10 with the proprietary modules logs Xid 169 and RmInitAdapter failed (tests/incidents, gb10-proprietary).
    Rule(("drv.flavour",), ("kernel.xid",), when.xids(169)),
    Rule(("dev.cgroup-restricted",), ("dev.control-nodes",), when.control_denied),
    # A container that was started without GPUs has no NVIDIA device nodes.
    Rule(("dev.nodes-missing",), ("dev.control-nodes",), lambda node, _cause, _effect: lacks_all_gpus(node.machine)),
    # NVML and CUDA open /dev/nvidiactl first; cuInit, which every use of CUDA needs, then opens /dev/nvidia-uvm.
    Rule(("dev.control-nodes",), ("drv.libraries",), when.control_node_failed),
    Rule(("dev.control-nodes",), _ACTIVE, when.cuda_did_not_start),
    Rule(("dev.permissions", "dev.control-nodes", "drv.libraries"), ("dev.count-consistency",), when.no_gpu_left),
    # One reason, a mode or a security module, for the nodes of GPUs and the control nodes.
    Rule(("dev.permissions",), ("dev.control-nodes",), when.refused_alike),
    Rule(("env.limits",), ("drv.libraries", *_ACTIVE), when.out_of_resources),
    # A GPU that shares the CPU's page tables needs a translating SMMU.
    Rule(("numa.cmdline",), ("uvm.addressing-mode",), when.cause_quotes(kernel.PASSTHROUGH)),
    # A GPU with NVLink-C2C cannot start without ATS (tests/incidents, gb10-kernel-without-sva).
    Rule(("uvm.addressing-mode",), ("drv.libraries",), when.not_initialized),
    Rule(("c2c.link",), ("kernel.xid",), when.xids(*C2C_XIDS)),
    # The driver cannot allocate memory on that NUMA node.
    Rule(
        ("numa.cpuset-mems", "numa.mempolicy-syscalls", "numa.memory"),
        ("egm.alloc-active", "ipc.vmm-active", "ipc.pool-active", "fabric.alloc-active"),
        when.calls_failed("cuMemCreate", "cuMemPoolCreate"),
    ),
    Rule(("gpu.cc-mode",), ("drv.libraries",), when.not_accepting_work),
    # In MIG mode without an instance CUDA lists nothing (https://github.com/wilicc/gpu-burn/issues/36).
    Rule(("gpu.mig",), ("drv.libraries",), when.no_device_found, across=True),
    Rule(("gpu.mig",), ("dev.count-consistency",), when.without_instance, across=True),
    # With MIG, CUDA lists MIG instances instead of the GPU. It does not list a GPU in prohibited compute mode.
    Rule(("gpu.mig",), ("dev.count-consistency",), when.are_lost(Block.NOT_SEEN_BY_CUDA)),
    Rule(("gpu.compute-mode",), ("dev.count-consistency",), when.are_lost(Block.NOT_SEEN_BY_CUDA, status=Status.FAIL)),
    Rule(("fabric.management", "fabric.manager", "fabric.state"), ("drv.libraries",), when.not_ready),
    Rule(("nvlink.links", "nvlink.errors"), ("kernel.xid",), when.xids(Blame.LINK)),
    Rule(("drv.libraries",), _ACTIVE, when.cuda_failed),
    # The driver gave up the GPU and logged the reason.
    Rule(("kernel.xid",), ("dev.count-consistency",), when.are_lost(*LOST, Block.NOT_LISTED, status=Status.FAIL)),
    Rule(("kernel.driver-messages",), ("dev.count-consistency",), when.could_not_start),
    Rule(("kernel.driver-messages",), ("dev.driver-binding",), when.fell_off_at_probe),
    Rule(("kernel.xid",), ("kernel.driver-messages",), when.xid_before_start),
    Rule(("kernel.xid",), ("kernel.xid",), when.link_of_a_peer, across=True),
    # The driver logs the errors that it counts.
    Rule(("gpu.health",), ("kernel.xid",), when.xids(*_MEMORY_XIDS)),
    Rule(("kernel.xid",), ("gpu.health",), when.needs_recovery),
    Rule(("gpu.health",), ("kernel.xid",), when.announces_recovery),
    Rule(("kernel.xid",), ("kernel.xid",), when.precedes_recovery),
    # What turns EGM off, before that it is off.
    Rule(("egm.preconditions",), ("egm.capability",), when.cause_quotes(egm.ACPI_NUMA)),
    Rule(("imex.recovery",), ("gpu.health",), when.imex_to_recover),
    # Fabric handles need an IMEX channel (cuda.h, CUDA_ERROR_NOT_PERMITTED).
    Rule(
        ("imex.channel",),
        ("fabric.alloc-active",),
        when.calls_failed("cuMemCreate", "cuMemPoolCreate", "cuMemImportFromShareableHandle", number=800),
    ),
    # pidfd_getfd(2) needs ptrace(2) permission.
    Rule(("ipc.ptrace",), ("ipc.pidfd-active",), when.always),
)
"""The rules for findings that explain findings, from upstream to downstream: device, module, access, platform, mode,
fabric, start, log, feature. A test holds their order and direction (tests/doctor/test_causes_upstream.py); each pair
has one too (tests/doctor/test_causes.py)."""


# --- paths ------------------------------------------------------------------------------------------------------------

_SLOW = frozenset({Symptom.SLOW})
_FAILED = frozenset({Symptom.FAILED})
_CORRUPT = frozenset({Symptom.CORRUPT})
_BOTH = _SLOW | _FAILED
_NO_GPU = frozenset({WaiverKind.GPU_UNUSABLE})
_NO_P2P = frozenset({WaiverKind.NO_PEER_ACCESS, WaiverKind.NO_ATOMICS})
_REFUSED = frozenset({WaiverKind.REFUSED})
_NO_MEMORY = frozenset({WaiverKind.UNSUPPORTED_MEMORY})
_NO_HANDLE = _REFUSED | {WaiverKind.UNSUPPORTED_HANDLE}
_NO_FABRIC = _NO_HANDLE | {WaiverKind.NO_IMEX_CHANNEL}
_LESS_NVLINK = _BOTH | _NO_P2P | {WaiverKind.NO_NVLINK}
_EGM_BLOCKED = _BOTH | _REFUSED | {Symptom.DEGRADED, WaiverKind.EGM_BLOCKED}
_NVLINK = (
    *("nvlink.bw-mode", "nvlink.disabled", "kernel.sxid"),
    *("fabric.manager", "fabric.management", "fabric.state", "fabric.domain"),
)

ON_PATHS: tuple[Rule, ...] = (
    # An unusable GPU is never slow, because nothing is measured on it.
    Rule(("dev.*", "gpu.compute-mode"), _FAILED | _NO_GPU, on()),
    Rule(("drv.libraries", "drv.versions", "drv.nouveau"), _FAILED | _NO_GPU, on(whole_node=True)),
    Rule(("drv.libraries",), {Symptom.BLIND}, on(whole_node=True)),
    Rule(("env.limits",), _FAILED | {Symptom.LOST}, on()),
    Rule(("gpu.mig",), _NO_GPU | _NO_P2P, on()),
    Rule(("env.visible-devices",), {WaiverKind.GPU_HIDDEN}, on()),
    # Uncorrectable memory errors end the work that accesses the memory; ECC does not slow it down.
    Rule(("gpu.health",), _FAILED | _CORRUPT | _NO_GPU, on()),
    Rule(("gpu.memory-limit",), _FAILED | {Symptom.LOST, WaiverKind.NO_ROOM}, paths.on_allocation),
    # An Xid can end contexts. Only 79 (off the bus), 109 and Xids of links explain slow paths.
    Rule(("kernel.xid",), _FAILED | _NO_GPU, on(given=paths.hits_gpu)),
    Rule(("kernel.xid",), _SLOW, on(given=paths.has_xid(79, 109))),
    Rule(("kernel.xid",), _SLOW, on(Flows.NVLINK, where=paths.joined_by_nvlink, given=paths.has_xid(Blame.LINK))),
    Rule(("kernel.xid",), _SLOW, on(Flows.C2C, given=paths.has_xid(*C2C_XIDS))),
    Rule(("gpu.throttle",), _SLOW, on()),
    # GPUs access host memory through encrypted bounce buffers, and in single-GPU mode they have no peers.
    Rule(("gpu.cc-mode",), _BOTH | _NO_P2P | {WaiverKind.UNSUPPORTED_HANDLE}, on()),
    Rule(("gpu.vgpu",), _BOTH | _NO_P2P | _NO_FABRIC | _NO_MEMORY, on()),
    # NVLink replays corrupt packets, so errors cost time but do not corrupt data.
    Rule(("nvlink.links",), _LESS_NVLINK, on(Flows.NVLINK, where=paths.short_of_nvlinks, via_owner=True)),
    Rule(("nvlink.errors",), _LESS_NVLINK, on(Flows.NVLINK, where=paths.errors_on_path, via_owner=True)),
    Rule(_NVLINK, _LESS_NVLINK, on(Flows.NVLINK, where=paths.joined_by_nvlink, via_owner=True)),
    # These disable NVLink for all pairs of a GPU; NVML may then list no links.
    Rule(("nvlink.disabled", "nvlink.bw-mode"), _BOTH | _NO_P2P, on(Flows.DIRECT_PEERS)),
    Rule(("nvlink.links", "nvlink.errors", *_NVLINK), _BOTH | _NO_P2P, on(Flows.DIRECT_PEERS, where=paths.lost_nvlink)),
    # Fabric handles need a channel even within one node (error 800 without one, measured on HGX H200); others do not.
    Rule(("imex.module", "imex.channel"), _FAILED | _NO_FABRIC, on(Flows.FABRIC_HANDLE)),
    # The driver allocates no fabric memory until the domain is recovered (open-gpu-kernel-modules,
    # imex_session_api.c; not tested).
    Rule(("fabric.*", "imex.recovery"), _FAILED | _NO_HANDLE, on(Flows.FABRIC_HANDLE)),
    # Only imports of memory of other nodes need the service: within HGX H200 all handles worked without it.
    Rule(("imex.daemon", "imex.domain"), _FAILED | _NO_HANDLE, on(Flows.OTHER_NODE)),
    # Without P2P, copies between GPUs are staged in host memory.
    Rule(("p2p.status",), _BOTH | _NO_P2P, on(Flows.PEERS)),
    Rule(("p2p.verify",), _FAILED | _CORRUPT, on(Flows.PEERS)),
    Rule(("pcie.acs",), _BOTH, on(Flows.PCIE_PEERS)),
    # "Silent device memory corruption" (CUDA C++ Programming Guide, "IOMMU on Linux").
    Rule(("pcie.iommu",), _BOTH | _CORRUPT, on(Flows.PCIE_PEERS)),
    Rule(("pcie.link",), _SLOW, on(Flows.PCIE)),
    Rule(("kernel.aer",), _BOTH, on(Flows.PCIE, given=paths.hits_gpu)),
    # If C2C is down, the GPU accesses the same memory over PCIe.
    Rule(("c2c.link",), _BOTH | _NO_MEMORY | _REFUSED, on(Flows.C2C, via_owner=True)),
    # Without EGM, the same memory is still available as ordinary system memory.
    Rule(("egm.capability", "egm.preconditions", "egm.override-key"), _SLOW, on(Flows.NUMA)),
    Rule(("egm.mode",), _BOTH, on(Flows.NUMA)),
    # Managed memory is then accessed over C2C as ordinary system memory, without an error (open-gpu-kernel-modules,
    # uvm_va_block.c; not measured).
    Rule(("egm.capability", "egm.preconditions", "egm.cgroup-route"), _SLOW, on(Flows.MANAGED)),
    Rule(("egm.cgroup-route",), _EGM_BLOCKED, on(Flows.NUMA)),
    # This is the route to the memory of other NUMA nodes, which does not use the GPU's own C2C.
    Rule(("egm.peer-route",), _SLOW, on(Flows.MANAGED, where=paths.uses_remote_memory)),
    Rule(("egm.peer-route",), _EGM_BLOCKED, on(Flows.BLOCKED_NUMA)),
    Rule(("egm.fabric-address",), _FAILED | _NO_MEMORY | _REFUSED, on(Flows.SHARED_NUMA)),
    Rule(("egm.alloc-active",), _FAILED | _CORRUPT | _REFUSED, on(Flows.NUMA)),
    Rule(("numa.cpuset-mems",), _FAILED | {WaiverKind.NO_NUMA_MEMORY}, on(Flows.HOST)),
    Rule(("numa.memory", "numa.mempolicy-syscalls"), _FAILED | _REFUSED, on(Flows.HOST)),
    # Without shared page tables, GPUs cannot access malloc'ed memory, nor CPUs the memory of a GPU.
    Rule(("uvm.addressing-mode",), _NO_MEMORY, on(Flows.PAGEABLE)),
    Rule(("numa.mode",), _NO_MEMORY, on(Flows.GPU_NUMA)),
    Rule(("numa.balancing", "numa.cmdline"), _SLOW, on(Flows.HOST)),
)
"""The rules for findings that explain troubles of paths.

A check in no row explains no measurement, e.g. checks of NCCL variables and NICs, which the bench does not use.
"""
