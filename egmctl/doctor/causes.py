"""Which fault explains which: one cause is told once, with all that it explains.

A :class:`Rule` is data: the check that finds a cause, the checks whose faults it can explain, and a pure function that
says whether one finding does explain another. Nothing else is concluded: faults without a rule stay faults of their
own, and two causes stay two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from egmctl.doctor.checks.active import KINDS
from egmctl.model.finding import TOLD, Finding, PlaceKind, Status
from egmctl.model.machine import Driver, Machine, Outcome
from egmctl.topology.access import cuda_failure, nvml_failure

Holds = Callable[[Machine, Finding, Finding], bool]


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


def explained(machine: Machine, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings with who explains whom; a cause of a cause explains what that one does.

    What could not be determined is explained too. A cause becomes as grave as what it explains: what was tried and
    failed shows that it does harm.
    """
    faults = [place for place, finding in enumerate(findings) if finding.status in TOLD]
    untold = [place for place, finding in enumerate(findings) if finding.status is Status.UNKNOWN]
    by: dict[int, list[int]] = {}
    for effect in (*faults, *untold):
        causes = [
            cause
            for cause in faults
            if cause != effect
            and _explains(machine, findings[cause], findings[effect])
            # Of two that could explain each other one stays the cause.
            and not _leads_to(by, cause, effect)
        ]
        if causes and _covers(findings, causes, effect):
            by[effect] = causes
    roots = {effect: _roots(effect, by) for effect in by}
    told: dict[int, Finding] = dict(enumerate(findings))
    for effect, found in roots.items():
        if found:
            ids = tuple(dict.fromkeys(findings[cause].check for cause in sorted(found)))
            told[effect] = replace(told[effect], explained_by=ids)
            for cause in found:
                known = told[cause].explains
                grave = told[cause].status
                if findings[effect].status in TOLD:
                    grave = min(grave, findings[effect].status, key=TOLD.index)
                ids = tuple(dict.fromkeys((*known, findings[effect].check)))
                told[cause] = replace(told[cause], explains=ids, status=grave)
    return tuple(told[place] for place in range(len(findings)))


def _explains(machine: Machine, cause: Finding, effect: Finding) -> bool:
    return any(
        rule.cause == cause.check
        and any(fnmatchcase(effect.check, pattern) for pattern in rule.effects)
        and rule.holds(machine, cause, effect)
        for rule in RULES
    )


def _covers(findings: Sequence[Finding], causes: Sequence[int], effect: int) -> bool:
    """Say whether all GPUs that an effect is about are touched by one of the causes, or a cause is the node's."""
    place = findings[effect].place
    if place.kind is not PlaceKind.GPU:
        return True
    if any(findings[cause].place.kind is not PlaceKind.GPU or findings[cause].check in _WHOLE for cause in causes):
        return True
    return set(place.ids) <= {one for cause in causes for one in findings[cause].place.ids}


_WHOLE = ("drv.libraries",)
"""What takes all GPUs, whichever one it was found on."""


def _leads_to(by: Mapping[int, list[int]], start: int, goal: int) -> bool:
    """Say whether one fault is explained by another, through whatever lies between."""
    return any(cause == goal or _leads_to(by, cause, goal) for cause in by.get(start, ()))


def _roots(effect: int, by: Mapping[int, list[int]]) -> set[int]:
    """Return the causes of a fault that nothing explains."""
    found = (_roots(cause, by) if cause in by else {cause} for cause in by[effect])
    return {root for roots in found for root in roots}


# --- when a cause explains an effect ---------------------------------------------------------------------------------


def _always(_machine: Machine, _cause: Finding, _effect: Finding) -> bool:
    return True


def _same_gpus(_machine: Machine, cause: Finding, effect: Finding) -> bool:
    """Both are about GPUs, and about some of the same."""
    return bool(set(cause.place.ids) & set(effect.place.ids))


def alike(_machine: Machine, cause: Finding, effect: Finding) -> bool:
    """Both are about some of the same GPUs, or one of them is about something else than GPUs."""
    gpus, others = _gpus(cause), _gpus(effect)
    return gpus is None or others is None or bool(gpus & others)


def _gpus(finding: Finding) -> frozenset[str] | None:
    match finding.place.kind:
        case PlaceKind.GPU:
            return frozenset(finding.place.ids)
        case PlaceKind.PAIR:
            return frozenset(end for pair in finding.place.ids for end in pair.split(">"))
        case _:
            return None


def _no_gpu_left(_machine: Machine, cause: Finding, effect: Finding) -> bool:
    """The effect counts GPUs, and the cause has some of them."""
    return effect.place.kind is not PlaceKind.GPU or _same_gpus(_machine, cause, effect)


def _control_node_failed(machine: Machine, _cause: Finding, effect: Finding) -> bool:
    """A library's start failed because one of the nodes that it opens first is closed."""
    closed = _closed_nodes(machine)
    nvml, cuda = nvml_failure(machine), cuda_failure(machine)
    calls = {seen.source for seen in effect.evidence}
    if nvml is not None and nvml.call in calls:
        return nvml.call == "nvmlInit" and "/dev/nvidiactl" in closed
    return cuda is not None and cuda.call in calls and cuda.call == "cuInit" and bool(closed)


def _closed_nodes(machine: Machine) -> set[str]:
    nodes = (machine.driver or Driver()).nodes or ()
    return {node.path for node in nodes if node.access not in (None, "ok") or node.kind not in (None, "character")}


def _cuda_did_not_start(machine: Machine, _cause: Finding, effect: Finding) -> bool:
    """Every probe that this check judges and that failed did so in cuInit."""
    kinds = KINDS.get(effect.check, ())
    calls = {probe.call for probe in machine.probes or () if probe.kind in kinds and probe.outcome is not Outcome.OK}
    return bool(calls) and calls <= {"cuInit", "cuDriverGetVersion"} and bool(_closed_nodes(machine))


def _failed_in(*calls: str, number: int | None = None) -> Holds:
    """Return whether all probes of the effect that failed did so in one of these calls, with this CUresult."""

    def holds(machine: Machine, _cause: Finding, effect: Finding) -> bool:
        kinds = KINDS.get(effect.check, ())
        bad = [probe for probe in machine.probes or () if probe.kind in kinds and probe.outcome is Outcome.ERROR]
        return bool(bad) and all(
            probe.call in calls and (number is None or probe.error_number == number) for probe in bad
        )

    return holds


_ACTIVE = tuple(KINDS)

_EGM = ("egm.capability", "egm.preconditions", "egm.fabric-address", "egm.cgroup-route", "egm.peer-route")
_OF_A_LOST_GPU = (*_EGM, "env.visible-devices", "pcie.link", "fabric.same-node-isolation", "rdma.affinity")
"""What is seen of a GPU that cannot be used. What NVML says of GPUs is not among it: NVML does not list this one."""

_ALIKE: Mapping[str, tuple[str, ...]] = {
    "dev.fell-off-bus": ("dev.driver-binding", "dev.permissions", "gpu.health", *_OF_A_LOST_GPU),
    "dev.driver-binding": ("dev.control-nodes", *_OF_A_LOST_GPU),
    "dev.excluded": _OF_A_LOST_GPU,
    "dev.cgroup-restricted": _OF_A_LOST_GPU,
    "dev.nodes-missing": _OF_A_LOST_GPU,
    "dev.permissions": _OF_A_LOST_GPU,
    "dev.control-nodes": ("egm.platform", *_OF_A_LOST_GPU),
    "drv.libraries": ("egm.platform", "drv.versions", "gpu.cc-mode", *_EGM),
    "gpu.mig": (*_EGM, "nvlink.links", "p2p.status", *_ACTIVE),
    "gpu.health": ("gpu.compute-mode", *_ACTIVE),
    "nvlink.disabled": ("nvlink.links", "p2p.status", "egm.peer-route", "fabric.state", *_ACTIVE),
    "nvlink.bw-mode": ("p2p.status", "egm.peer-route", "fabric.alloc-active", "p2p.verify"),
    "nvlink.links": ("nvlink.errors", "p2p.status", "egm.peer-route", "fabric.state", "p2p.verify"),
    "c2c.link": ("egm.platform", *_EGM, "egm.alloc-active"),
    "egm.hypervisor-mode": (*_EGM, "egm.alloc-active"),
    "egm.override-key": (*_EGM, "egm.alloc-active"),
    "egm.capability": (*(check for check in _EGM if check != "egm.capability"), "egm.alloc-active"),
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
    "p2p.status": ("egm.peer-route", "p2p.verify"),
    "fabric.state": ("p2p.status", "fabric.consistency", "imex.domain", "egm.fabric-address", "fabric.alloc-active"),
    "imex.module": ("imex.channel", "imex.daemon", "imex.domain", "fabric.alloc-active", "peers.fabric-active"),
    "imex.daemon": ("imex.domain", "peers.imex", "peers.fabric-active"),
    "imex.channel": ("peers.fabric-active",),
    "imex.domain": ("peers.fabric-active",),
    "ipc.pid-namespace": ("ipc.legacy-active", "ipc.event-active", "ipc.pidfd-active"),
    "ipc.ipc-namespace": ("ipc.legacy-active", "ipc.event-active"),
    "rdma.devices-cgroup": ("rdma.gdr-path", "rdma.coherent-dmabuf"),
}
"""By check: the checks that see its fault too, on the same GPUs."""

RULES: tuple[Rule, ...] = (
    *(
        Rule(cause=cause, effects=effects, holds=alike, why="they see the same fault")
        for cause, effects in _ALIKE.items()
    ),
    Rule(
        cause="drv.nouveau",
        effects=("dev.driver-binding", "drv.libraries", "dev.count-consistency"),
        holds=_always,
        why="a GPU has one kernel driver",
    ),
    Rule(
        cause="dev.driver-binding",
        effects=("drv.libraries",),
        holds=_same_gpus,
        why="the libraries find no GPU whose kernel driver is not NVIDIA's",
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
        cause="dev.control-nodes",
        effects=("drv.libraries",),
        holds=_control_node_failed,
        why="NVML and CUDA open /dev/nvidiactl first, CUDA then /dev/nvidia-uvm",
    ),
    Rule(
        cause="dev.control-nodes",
        effects=_ACTIVE,
        holds=_cuda_did_not_start,
        why="cuInit opens /dev/nvidiactl and /dev/nvidia-uvm",
    ),
    Rule(
        cause="drv.libraries",
        effects=_ACTIVE,
        holds=lambda machine, cause, effect: (
            cuda_failure(machine) is not None and _failed_in("cuInit", "cuDriverGetVersion")(machine, cause, effect)
        ),
        why="every use of CUDA begins with cuInit",
    ),
    *(
        Rule(cause=cause, effects=("dev.count-consistency",), holds=_no_gpu_left, why="it takes the GPUs away")
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
    Rule(
        cause="imex.channel",
        effects=("fabric.alloc-active",),
        holds=_failed_in("cuMemCreate", "cuMemPoolCreate", "cuMemImportFromShareableHandle", number=800),
        why="fabric handles need an IMEX channel (cuda.h, CUDA_ERROR_NOT_PERMITTED)",
    ),
    *(
        Rule(
            cause=cause,
            effects=("egm.alloc-active", "ipc.vmm-active", "ipc.pool-active", "fabric.alloc-active"),
            holds=_failed_in("cuMemCreate", "cuMemPoolCreate"),
            why="the driver cannot take memory of that NUMA node",
        )
        for cause in ("numa.cpuset-mems", "numa.mempolicy-syscalls")
    ),
    Rule(
        cause="ipc.ptrace",
        effects=("ipc.pidfd-active",),
        holds=_always,
        why="pidfd_getfd needs the rights of ptrace(2)",
    ),
)
"""What explains what; each pair has a test (tests/doctor/test_causes.py)."""
