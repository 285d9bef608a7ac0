"""What explains what: of the problems that checks found, the root causes, and what follows from each.

Pure. The table says which check's fault can be seen by which other checks too; a finding follows from another one only
where both are about the same GPU, or one of them is about the whole node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from egmctl.model.finding import Finding, PlaceKind, Status

_ACTIVE = (
    "egm.alloc-active",
    "p2p.verify",
    "fabric.alloc-active",
    "ipc.legacy-active",
    "ipc.vmm-active",
    "ipc.pool-active",
    "ipc.event-active",
    "ipc.pidfd-active",
)
_EGM = ("egm.capability", "egm.preconditions", "egm.fabric-address", "egm.cgroup-route", "egm.peer-route")
_LOST = (
    "dev.count-consistency",
    "dev.nodes-missing",
    "env.visible-devices",
    *_EGM,
    "pcie.link",
    "fabric.same-node-isolation",
    "rdma.affinity",
    *_ACTIVE,
)
"""What is seen of a GPU that cannot be used. What NVML says of GPUs is not among it: NVML does not list this one."""

EXPLAINS: Mapping[str, tuple[str, ...]] = {
    "dev.fell-off-bus": ("dev.driver-binding", "dev.permissions", "gpu.health", *_LOST),
    "drv.nouveau": ("dev.driver-binding", "dev.control-nodes", *_LOST),
    "dev.driver-binding": _LOST,
    "dev.excluded": _LOST,
    "dev.cgroup-restricted": ("dev.control-nodes", *_LOST),
    "dev.nodes-missing": tuple(check for check in _LOST if check != "dev.nodes-missing"),
    "dev.permissions": ("dev.control-nodes", *_LOST),
    "dev.control-nodes": ("egm.platform", *_LOST),
    "drv.versions": ("dev.count-consistency", "dev.control-nodes", "egm.platform", *_EGM, *_ACTIVE),
    "gpu.mig": (*_EGM, "nvlink.links", "p2p.status", *_ACTIVE),
    "gpu.health": ("gpu.compute-mode", *_ACTIVE),
    "nvlink.disabled": ("nvlink.links", "p2p.status", "egm.peer-route", "fabric.state", *_ACTIVE),
    "nvlink.bw-mode": ("p2p.status", "egm.peer-route", "fabric.alloc-active", "p2p.verify"),
    "nvlink.links": ("nvlink.errors", "p2p.status", "egm.peer-route", "fabric.state", "p2p.verify"),
    "c2c.link": ("egm.platform", *_EGM, "egm.alloc-active"),
    "egm.hypervisor-mode": (*_EGM, "egm.alloc-active"),
    "egm.override-key": (*_EGM, "egm.alloc-active"),
    "egm.capability": (*(check for check in _EGM if check != "egm.capability"), "egm.alloc-active"),
    "numa.cpuset-mems": ("egm.alloc-active", "ipc.vmm-active", "ipc.pool-active"),
    "numa.mempolicy-syscalls": ("egm.alloc-active",),
    "fabric.management": (
        "fabric.manager",
        "fabric.state",
        "fabric.consistency",
        "nvlink.links",
        "p2p.status",
        *_ACTIVE,
    ),
    "fabric.manager": ("fabric.state", "fabric.consistency", "p2p.status", "egm.fabric-address", *_ACTIVE),
    "egm.fabric-address": ("p2p.status", "egm.peer-route"),
    "fabric.state": ("p2p.status", "fabric.consistency", "imex.domain", "egm.fabric-address", "fabric.alloc-active"),
    "imex.module": ("imex.channel", "imex.daemon", "imex.domain", "fabric.alloc-active", "peers.fabric-active"),
    "imex.daemon": ("imex.domain", "peers.imex", "peers.fabric-active"),
    "imex.channel": ("fabric.alloc-active", "peers.fabric-active"),
    "imex.domain": ("peers.fabric-active",),
    "ipc.ptrace": ("ipc.pidfd-active",),
    "ipc.pid-namespace": ("ipc.legacy-active", "ipc.event-active", "ipc.pidfd-active"),
    "ipc.ipc-namespace": ("ipc.legacy-active", "ipc.event-active"),
    "rdma.devices-cgroup": ("rdma.gdr-path", "rdma.coherent-dmabuf"),
}
"""By check: the checks whose findings its fault explains; an earlier one explains a later one."""

_PROBLEMS = (Status.FAIL, Status.WARN)


@dataclass(frozen=True, slots=True)
class Cause:
    """A problem that no other explains, and the findings that it does."""

    finding: Finding
    explains: tuple[Finding, ...]

    @property
    def status(self) -> Status:
        """The gravest of them all."""
        return min((one.status for one in (self.finding, *self.explains)), key=list(Status).index)


def causes(findings: Sequence[Finding]) -> tuple[Cause, ...]:
    """Return the root causes of all failures and warnings, the gravest first; each finding is in one of them.

    What could not be determined is explained too, where a cause says why.
    """
    order = {check: place for place, check in enumerate(EXPLAINS)}
    problems = [one for one in findings if one.status in _PROBLEMS]
    problems.sort(key=lambda one: order.get(one.check, len(order)))
    roots: list[tuple[Finding, list[Finding]]] = []
    for problem in problems:
        if not any(_explains(root, problem) for root, _ in roots):
            roots.append((problem, []))
    own = {id(root) for root, _ in roots}
    for finding in findings:
        if id(finding) not in own and finding.status in (*_PROBLEMS, Status.UNKNOWN):
            root = next((those for root, those in roots if _explains(root, finding)), None)
            if root is not None:
                root.append(finding)
    found = [Cause(root, tuple(those)) for root, those in roots]
    places = {id(one): place for place, one in enumerate(findings)}
    gravity = list(Status)
    found.sort(key=lambda cause: (gravity.index(cause.status), places[id(cause.finding)]))
    return tuple(found)


def _explains(cause: Finding, other: Finding) -> bool:
    if other.check not in EXPLAINS.get(cause.check, ()):
        return False
    gpus, others = _gpus(cause), _gpus(other)
    return gpus is None or others is None or bool(gpus & others)


def _gpus(finding: Finding) -> frozenset[str] | None:
    """Return the bus ids of the GPUs that a finding is about; ``None`` where it is about something else."""
    match finding.place.kind:
        case PlaceKind.GPU:
            return frozenset(finding.place.ids)
        case PlaceKind.PAIR:
            return frozenset(end for pair in finding.place.ids for end in pair.split(">"))
        case _:
            return None
