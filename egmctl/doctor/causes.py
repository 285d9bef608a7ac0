"""Which finding explains which: one table of rules, and the root causes that remain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from egmctl.doctor.checks.access import without_gpus
from egmctl.doctor.checks.active import KINDS
from egmctl.doctor.checks.gpu import RECOVERY_ACTION
from egmctl.doctor.checks.kernel_log import message_of, xids_of
from egmctl.doctor.kernel_faults import C2C_XIDS, RECOVERY_CHANGED, Action, Blame, meaning
from egmctl.model.finding import TOLD, Finding, PlaceKind, Status
from egmctl.model.kernel_log import DriverMessage, EventKind, KernelEvent
from egmctl.model.kernel_log import DriverMessage as M
from egmctl.model.machine import Driver, Machine, Outcome
from egmctl.topology.access import Block, classify, cuda_failure, nvml_failure

Holds = Callable[[Machine, Finding, Finding], bool]
"""Of a machine, the cause and the effect."""


def always(_machine: Machine, _cause: Finding, _effect: Finding) -> bool:
    """Say that one explains the other wherever both are."""
    return True


def same_gpus(_machine: Machine, cause: Finding, effect: Finding) -> bool:
    """Both are about GPUs, and about some of the same."""
    return bool(set(cause.place.ids) & set(effect.place.ids))


def alike(_machine: Machine, cause: Finding, effect: Finding) -> bool:
    """Both are about some of the same GPUs, or one of them is about something else than GPUs."""
    return cause.place.meets(effect.place)


def no_gpu_left(_machine: Machine, cause: Finding, effect: Finding) -> bool:
    """The effect counts GPUs, and the cause has some of them."""
    return effect.place.kind is not PlaceKind.GPU or same_gpus(_machine, cause, effect)


def control_node_failed(machine: Machine, _cause: Finding, effect: Finding) -> bool:
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


def cuda_did_not_start(machine: Machine, _cause: Finding, effect: Finding) -> bool:
    """Every probe that this check judges and that failed did so in cuInit."""
    kinds = KINDS.get(effect.check, ())
    calls = {probe.call for probe in machine.probes or () if probe.kind in kinds and probe.outcome is not Outcome.OK}
    return bool(calls) and calls <= {"cuInit", "cuDriverGetVersion"} and bool(_closed_nodes(machine))


def none_to_open(machine: Machine, cause: Finding, effect: Finding) -> bool:
    """CUDA finds no GPU that it can open, and the cause has some of those."""
    failed = cuda_failure(machine)
    if failed is None or (failed.call, failed.number) != ("cuInit", _NO_DEVICE):
        return False
    return same_gpus(machine, cause, effect) and any(seen.source == failed.call for seen in effect.evidence)


_NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE (cuda.h)."""


def failed_in(*calls: str, number: int | None = None) -> Holds:
    """Return whether all probes of the effect that failed did so in one of these calls, with this CUresult."""

    def holds(machine: Machine, _cause: Finding, effect: Finding) -> bool:
        kinds = KINDS.get(effect.check, ())
        bad = [probe for probe in machine.probes or () if probe.kind in kinds and probe.outcome is Outcome.ERROR]
        return bool(bad) and all(
            probe.call in calls and (number is None or probe.error_number == number) for probe in bad
        )

    return holds


def ran_short(machine: Machine, _cause: Finding, effect: Finding) -> bool:
    """What the effect is about failed as it does where descriptors, processes or addresses run out."""
    if effect.check == "drv.libraries":
        calls = {seen.source for seen in effect.evidence}
        failures = [one for one in (nvml_failure(machine), cuda_failure(machine)) if one is not None]
        ours = [one for one in failures if one.call in calls or (one.call is None and one.how == "not-started")]
        return bool(ours) and all(one.how != "timed-out" and one.number in _SHORT for one in ours)
    kinds = KINDS.get(effect.check, ())
    bad = [one for one in machine.probes or () if one.kind in kinds and one.outcome in _BROKEN]
    return bool(bad) and all(one.outcome is not Outcome.CORRUPT and one.error_number in _SHORT for one in bad)


_SHORT = (None, 2, 100, 304, 999)
"""What CUDA answers where the kernel gives it nothing more: OUT_OF_MEMORY, NO_DEVICE, OPERATING_SYSTEM, UNKNOWN (also
NVML's); nothing of a process that crashed or could not be started."""
_BROKEN = (Outcome.ERROR, Outcome.CRASHED, Outcome.CORRUPT)


def not_ready(machine: Machine, _cause: Finding, effect: Finding) -> bool:
    """CUDA does not start because the fabric is not ready, and this finding is about that."""
    failed = cuda_failure(machine)
    if failed is None or failed.number != _SYSTEM_NOT_READY:
        return False
    return effect.check != "drv.libraries" or any(seen.source == failed.call for seen in effect.evidence)


_SYSTEM_NOT_READY = 802
"""CUDA_ERROR_SYSTEM_NOT_READY (cuda.h)."""


def undetermined(machine: Machine, cause: Finding, effect: Finding) -> bool:
    """The effect is unknown, of GPUs that the cause has."""
    return effect.status is Status.UNKNOWN and alike(machine, cause, effect)


def lost_as(*blocks: Block, status: Status | None = None) -> Holds:
    """Return whether the effect is about GPUs of the cause, all of which are lost in one of these ways.

    Parameters
    ----------
    status
        The cause must have.
    """

    def holds(machine: Machine, cause: Finding, effect: Finding) -> bool:
        gpus = [gpu for gpu in machine.gpus or () if gpu.bus_id in effect.place.ids]
        return (
            (status is None or cause.status is status)
            and same_gpus(machine, cause, effect)
            and all((stopped := classify(machine, gpu)) is not None and stopped.block in blocks for gpu in gpus)
        )

    return holds


def logged(*messages: DriverMessage) -> Holds:
    """Return whether the effect is that the driver logged one of these messages, of a GPU that the cause may have."""

    def holds(machine: Machine, cause: Finding, effect: Finding) -> bool:
        return cause.place.meets(effect.place) and message_of(machine, effect) in messages

    return holds


def asks_to_recover(finding: Finding) -> bool:
    """Say whether a finding of ``gpu.health`` is about the recovery action that the driver asks for."""
    return {seen.source for seen in finding.evidence} == {RECOVERY_ACTION}


def needs_recovery(machine: Machine, cause: Finding, effect: Finding) -> bool:
    """An Xid after which a GPU has to be recovered is why the driver asks for that."""
    grave = (Action.RESET, Action.REBOOT, Action.LINKS)
    return (
        asks_to_recover(effect)
        and same_gpus(machine, cause, effect)
        and any(meaning(event).action in grave for event in xids_of(machine, cause))
    )


def announces_recovery(machine: Machine, cause: Finding, effect: Finding) -> bool:
    """Xid 154 is how the driver logs that it asks for a recovery."""
    events = xids_of(machine, effect)
    only = bool(events) and all(event.number == RECOVERY_CHANGED for event in events)
    return only and asks_to_recover(cause) and same_gpus(machine, cause, effect)


def precedes_recovery(machine: Machine, cause: Finding, effect: Finding) -> bool:
    """The effect is Xid 154, and the cause is the last Xid of the GPU before it that needs an operator."""
    announced = {(event.number, event.bus_id) for event in xids_of(machine, effect)}
    reasons = {(event.number, event.bus_id) for event in xids_of(machine, cause)}
    if machine.kernel_log is None or any(number != RECOVERY_CHANGED for number, _ in announced):
        return False
    last: dict[str | None, int | None] = {}
    for event in machine.kernel_log.events:
        if event.kind is not EventKind.XID or meaning(event).status not in TOLD:
            continue
        if event.number != RECOVERY_CHANGED:
            last[event.bus_id] = event.number
        elif (event.number, event.bus_id) in announced and (last.get(event.bus_id), event.bus_id) in reasons:
            return True
    return False


def xids(fits: Callable[[KernelEvent], bool]) -> Holds:
    """Return whether all Xids of the effect's GPU that need an operator are such ones, and the cause has that GPU."""

    def holds(machine: Machine, cause: Finding, effect: Finding) -> bool:
        events = () if machine.kernel_log is None else machine.kernel_log.events
        those = [
            event
            for event in events
            if event.kind is EventKind.XID and event.bus_id in effect.place.ids and meaning(event).status in TOLD
        ]
        return same_gpus(machine, cause, effect) and bool(those) and all(map(fits, those))

    return holds


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
"""Xids of a GPU's memory (:mod:`egmctl.doctor.kernel_faults`), and the one that asks for the reset that mends it."""
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


def explained(machine: Machine, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings with who explains whom; a cause of a cause explains what that one does.

    What could not be determined is explained too. A cause becomes as grave as what it explains: what was tried and
    failed shows that it does harm.
    """
    faults = [place for place, finding in enumerate(findings) if finding.status in TOLD]
    untold = [place for place, finding in enumerate(findings) if finding.status is Status.UNKNOWN]
    if machine.peers and machine.peers.problem:
        # That MPI did not start is why the nodes were not compared, whatever is wrong with this one.
        untold = [place for place in untold if not findings[place].check.startswith("peers.")]
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
    """Say whether all GPUs or pairs that an effect is about are touched by one of the causes, or one is the node's."""
    place = findings[effect].place
    if place.gpus is None or any(findings[cause].check in _WHOLE for cause in causes):
        return True
    touched: set[str] = set()
    for cause in causes:
        gpus = findings[cause].place.gpus
        if gpus is None:
            return True
        touched |= gpus
    if place.kind is PlaceKind.PAIR:
        return all(touched.intersection(pair.split(">")) for pair in place.ids)
    return place.gpus <= touched


_WHOLE = ("drv.libraries",)
"""What takes all GPUs, whichever one it was found on."""


def _leads_to(by: Mapping[int, list[int]], start: int, goal: int) -> bool:
    """Say whether one fault is explained by another, through whatever lies between."""
    return any(cause == goal or _leads_to(by, cause, goal) for cause in by.get(start, ()))


def _roots(effect: int, by: Mapping[int, list[int]]) -> set[int]:
    """Return the causes of a fault that nothing explains."""
    found = (_roots(cause, by) if cause in by else {cause} for cause in by[effect])
    return {root for roots in found for root in roots}
