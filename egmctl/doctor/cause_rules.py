"""Which fault explains which: rules as data with pure functions; each pair has a test (tests/doctor/test_causes.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from egmctl.doctor.cause_conditions import (
    Holds,
    alike,
    always,
    announces_recovery,
    control_node_failed,
    cuda_did_not_start,
    failed_in,
    logged,
    lost_as,
    needs_recovery,
    no_gpu_left,
    none_to_open,
    not_ready,
    precedes_recovery,
    ran_short,
    same_gpus,
    undetermined,
    xids,
)
from egmctl.doctor.checks.access import without_gpus
from egmctl.doctor.checks.active import KINDS
from egmctl.doctor.xids import C2C_XIDS, RECOVERY_CHANGED, Blame, meaning
from egmctl.model.finding import Status
from egmctl.model.kernel_log import DriverMessage as M
from egmctl.topology.access import Block, cuda_failure, nvml_failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One cause and what it can explain."""

    cause: str
    """Id of the check that finds it."""
    effects: tuple[str, ...]
    """Ids, or globs of ids, of checks."""
    holds: Holds
    """Whether a finding of the cause explains a finding of an effect."""
    why: str
    """Why it does, one clause."""


_OF_MEMORY = frozenset({48, 63, 64, 92, 94, 95, 140, 156, 157, 160, 161, 168, 171, 172, RECOVERY_CHANGED})
"""Xids of a GPU's memory (:mod:`egmctl.doctor.xids`), and the one that asks for the reset that mends it."""
_IMEX_RECOVERY = "recover-imex-domain"
_OFF_THE_BUS = frozenset({79, RECOVERY_CHANGED})

_ACTIVE = tuple(KINDS)

_EGM = ("egm.capability", "egm.preconditions", "egm.fabric-address", "egm.cgroup-route", "egm.peer-route")
_OF_A_LOST_GPU = (*_EGM, "env.visible-devices", "fabric.same-node-isolation", "rdma.affinity")
"""What is seen of a GPU that cannot be used. What NVML says of GPUs is not among it: NVML does not list this one; nor
what sysfs says, which needs nobody's leave."""
_OVER_NVLINK = ("p2p.verify", "fabric.alloc-active")
"""What is tried over NVLink where there is any."""

_ALIKE: Mapping[str, tuple[str, ...]] = {
    "dev.fell-off-bus": ("dev.driver-binding", "dev.permissions", "gpu.health", "pcie.link", *_OF_A_LOST_GPU),
    "dev.driver-binding": ("dev.control-nodes", *_OF_A_LOST_GPU),
    "dev.excluded": _OF_A_LOST_GPU,
    "dev.cgroup-restricted": _OF_A_LOST_GPU,
    "dev.nodes-missing": _OF_A_LOST_GPU,
    "dev.permissions": _OF_A_LOST_GPU,
    "dev.control-nodes": ("egm.platform", *_OF_A_LOST_GPU),
    "drv.libraries": ("egm.platform", "drv.versions", "gpu.cc-mode", *_EGM),
    "gpu.mig": (*_EGM, "nvlink.links", "p2p.status", *_ACTIVE),
    "gpu.cc-mode": ("p2p.status",),
    "gpu.vgpu": ("p2p.status",),
    "gpu.health": _ACTIVE,
    "nvlink.disabled": ("nvlink.links", "p2p.status", "egm.peer-route", "fabric.state", *_OVER_NVLINK),
    "nvlink.bw-mode": ("p2p.status", "egm.peer-route", "fabric.alloc-active", "p2p.verify"),
    "nvlink.links": ("nvlink.errors", "p2p.status", "egm.peer-route", "fabric.state", "p2p.verify"),
    "c2c.link": ("egm.platform", *_EGM, "egm.alloc-active"),
    "egm.hypervisor-mode": (*_EGM, "egm.alloc-active"),
    "egm.override-key": (*_EGM, "egm.alloc-active"),
    # Without EGM the same memory can be had as ordinary system memory.
    "egm.capability": tuple(check for check in _EGM if check != "egm.capability"),
    "fabric.management": (
        "fabric.manager",
        "fabric.state",
        "fabric.consistency",
        "nvlink.links",
        "p2p.status",
        *_OVER_NVLINK,
    ),
    "fabric.manager": ("fabric.state", "fabric.consistency", "p2p.status", "egm.fabric-address", *_OVER_NVLINK),
    "egm.fabric-address": ("p2p.status", "egm.peer-route"),
    "p2p.status": ("egm.peer-route", "p2p.verify"),
    "fabric.state": ("p2p.status", "fabric.consistency", "imex.domain", "egm.fabric-address", "fabric.alloc-active"),
    "numa.auto-online": ("numa.mode",),
    "imex.module": ("imex.channel", "imex.daemon", "imex.domain", "fabric.alloc-active", "peers.fabric-active"),
    "imex.daemon": ("imex.domain", "peers.imex", "peers.fabric-active"),
    "imex.channel": ("peers.fabric-active",),
    "imex.domain": ("peers.fabric-active",),
    "ipc.pid-namespace": ("ipc.legacy-active", "ipc.event-active", "ipc.pidfd-active"),
    "ipc.ipc-namespace": ("ipc.legacy-active", "ipc.event-active"),
    "rdma.devices-cgroup": ("rdma.gdr-path", "rdma.coherent-dmabuf"),
}
"""By check: the checks that see its fault too, on the same GPUs."""

_LOGGED: Mapping[str, tuple[M, ...]] = {
    "dev.fell-off-bus": (M.FELL_OFF_BUS,),
    "c2c.link": (M.C2C_SELF_TEST, M.C2C_P2P, M.SYSMEM_LINK_TRAINING),
    "nvlink.links": (
        *(M.SWITCH_TRAINING, M.NVLINK_ACTIVATION, M.NVLINK_ALI, M.NVLINK_RECEIVER_DETECT),
        *(M.NVLINK_UNCONTAINED, M.NVLINK_DEGRADED),
    ),
    "fabric.state": (M.FABRIC_PROBE, M.FABRIC_INBAND, M.NO_FABRIC_ADDRESS),
    "p2p.status": (M.EGM_NO_FABRIC_ADDRESS, M.P2P_DISABLED),
    "imex.recovery": (M.IMEX_SHUTDOWN,),
    "uvm.addressing-mode": (M.SMMU_SVA,),
    "numa.auto-online": (M.MEMORY_NOT_MOVABLE, M.MEMORY_ADD),
    "numa.mode": (M.MEMORY_NOT_MOVABLE, M.MEMORY_ADD),
}
"""By check: the messages in which the driver says what it finds."""

RULES: tuple[Rule, ...] = (
    *(
        Rule(cause=cause, effects=effects, holds=alike, why="they see the same fault")
        for cause, effects in _ALIKE.items()
    ),
    *(
        Rule(cause=cause, effects=("kernel.driver-messages",), holds=logged(*messages), why="the driver logged it")
        for cause, messages in _LOGGED.items()
    ),
    Rule(
        cause="drv.nouveau",
        effects=("dev.driver-binding", "drv.libraries", "dev.count-consistency"),
        holds=always,
        why="a GPU has one kernel driver",
    ),
    Rule(
        cause="dev.driver-binding",
        effects=("drv.libraries",),
        holds=same_gpus,
        why="the libraries find no GPU whose kernel driver is not NVIDIA's",
    ),
    *(
        Rule(cause=cause, effects=("drv.libraries",), holds=none_to_open, why="cuInit finds no GPU that it can open")
        for cause in (
            "dev.fell-off-bus",
            "dev.excluded",
            "dev.cgroup-restricted",
            "dev.nodes-missing",
            "dev.permissions",
        )
    ),
    Rule(
        cause="drv.versions",
        effects=("drv.libraries",),
        holds=lambda machine, _cause, _effect: (
            (failed := nvml_failure(machine)) is not None and failed.name == "NVML_ERROR_LIB_RM_VERSION_MISMATCH"
        ),
        why="the libraries refuse a kernel module of another version",
    ),
    Rule(
        cause="dev.cgroup-restricted",
        effects=("dev.control-nodes",),
        holds=lambda _machine, _cause, effect: any(
            seen.errno == "EPERM" for seen in effect.evidence if seen.source == "access(/dev/nvidiactl)"
        ),
        why="one cgroup denies the GPUs and the node that all of them need",
    ),
    Rule(
        cause="dev.nodes-missing",
        effects=("dev.control-nodes",),
        holds=lambda machine, _cause, _effect: without_gpus(machine),
        why="a container that is started without GPUs has none of NVIDIA's device nodes",
    ),
    Rule(
        cause="dev.control-nodes",
        effects=("drv.libraries",),
        holds=control_node_failed,
        why="NVML and CUDA open /dev/nvidiactl first, CUDA then /dev/nvidia-uvm",
    ),
    Rule(
        cause="dev.control-nodes",
        effects=_ACTIVE,
        holds=cuda_did_not_start,
        why="cuInit opens /dev/nvidiactl and /dev/nvidia-uvm",
    ),
    Rule(
        cause="drv.libraries",
        effects=_ACTIVE,
        holds=lambda machine, cause, effect: (
            cuda_failure(machine) is not None and failed_in("cuInit", "cuDriverGetVersion")(machine, cause, effect)
        ),
        why="every use of CUDA begins with cuInit",
    ),
    *(
        Rule(cause=cause, effects=("dev.count-consistency",), holds=no_gpu_left, why="it takes the GPUs away")
        for cause in (
            "dev.fell-off-bus",
            "dev.driver-binding",
            "dev.excluded",
            "dev.cgroup-restricted",
            "dev.nodes-missing",
            "dev.permissions",
            "dev.control-nodes",
            "drv.libraries",
        )
    ),
    *(
        Rule(cause=cause, effects=("pcie.link",), holds=undetermined, why="the link of this GPU was not read")
        for cause in ("dev.driver-binding", "dev.excluded", "dev.cgroup-restricted", "dev.nodes-missing")
    ),
    *(
        Rule(cause=cause, effects=("drv.libraries",), holds=not_ready, why="cuInit waits for the fabric")
        for cause in ("fabric.management", "fabric.manager", "fabric.state")
    ),
    Rule(
        cause="gpu.mig",
        effects=("dev.count-consistency",),
        holds=lost_as(Block.NOT_SEEN_BY_CUDA),
        why="CUDA lists parts of it, not the GPU",
    ),
    Rule(
        cause="gpu.compute-mode",
        effects=("dev.count-consistency",),
        holds=lost_as(Block.NOT_SEEN_BY_CUDA, status=Status.FAIL),
        why="a prohibited GPU is none of CUDA's",
    ),
    Rule(
        cause="kernel.xid",
        effects=("dev.count-consistency",),
        holds=lost_as(Block.GPU_LOST, Block.NOT_LISTED, status=Status.FAIL),
        why="the driver gave the GPU up and said why",
    ),
    Rule(
        cause="dev.fell-off-bus",
        effects=("kernel.xid",),
        holds=xids(lambda event: event.number in _OFF_THE_BUS),
        why="the driver said so in the kernel's log",
    ),
    Rule(
        cause="dev.fell-off-bus",
        effects=("kernel.aer",),
        holds=same_gpus,
        why="its link went down",
    ),
    Rule(
        cause="gpu.health",
        effects=("kernel.xid",),
        holds=xids(lambda event: event.number in _OF_MEMORY),
        why="the driver logs the memory errors that it counts",
    ),
    *(
        Rule(
            cause=cause,
            effects=("kernel.xid",),
            holds=xids(lambda event: meaning(event).blame is Blame.LINK or event.number == RECOVERY_CHANGED),
            why="the driver logs errors of these links",
        )
        for cause in ("nvlink.links", "nvlink.errors")
    ),
    Rule(
        cause="c2c.link",
        effects=("kernel.xid",),
        holds=xids(lambda event: event.number in C2C_XIDS or event.number == RECOVERY_CHANGED),
        why="the driver logs errors of this link",
    ),
    Rule(
        cause="kernel.aer",
        effects=("kernel.xid",),
        holds=xids(lambda event: meaning(event).blame is Blame.PCIE or event.number == RECOVERY_CHANGED),
        why="the driver times out waiting for a link that has errors",
    ),
    Rule(
        cause="kernel.xid",
        effects=("gpu.health",),
        holds=needs_recovery,
        why="after it the GPU has to be reset, and the driver asks for that",
    ),
    Rule(
        cause="gpu.health",
        effects=("kernel.xid",),
        holds=announces_recovery,
        why="the driver logs that it asks for a recovery",
    ),
    Rule(
        cause="kernel.xid",
        effects=("kernel.xid",),
        holds=precedes_recovery,
        why="after it the driver logs, as Xid 154, that it asks for a recovery",
    ),
    Rule(
        cause="imex.recovery",
        effects=("gpu.health",),
        holds=lambda machine, cause, effect: (
            same_gpus(machine, cause, effect) and {seen.value for seen in effect.evidence} == {_IMEX_RECOVERY}
        ),
        why="it is the recovery action that the driver asks for",
    ),
    Rule(
        cause="imex.channel",
        effects=("fabric.alloc-active",),
        holds=failed_in("cuMemCreate", "cuMemPoolCreate", "cuMemImportFromShareableHandle", number=800),
        why="fabric handles need an IMEX channel (cuda.h, CUDA_ERROR_NOT_PERMITTED)",
    ),
    *(
        Rule(
            cause=cause,
            effects=("egm.alloc-active", "ipc.vmm-active", "ipc.pool-active", "fabric.alloc-active"),
            holds=failed_in("cuMemCreate", "cuMemPoolCreate"),
            why="the driver cannot take memory of that NUMA node",
        )
        for cause in ("numa.cpuset-mems", "numa.mempolicy-syscalls", "numa.memory")
    ),
    Rule(
        cause="env.limits",
        effects=("drv.libraries", *_ACTIVE),
        holds=ran_short,
        why="a process that gets no more descriptors, threads or addresses fails",
    ),
    Rule(
        cause="ipc.ptrace",
        effects=("ipc.pidfd-active",),
        holds=always,
        why="pidfd_getfd needs the rights of ptrace(2)",
    ),
)
"""What explains what; each pair has a test (tests/doctor/test_causes.py)."""
