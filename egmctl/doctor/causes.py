"""Which finding explains which: rules from a cause to its effects, and the engine that applies them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Generic, TypeVar

from egmctl.doctor.checks.access import without_gpus
from egmctl.doctor.checks.active import KINDS
from egmctl.doctor.checks.gpu import RECOVERY_ACTION
from egmctl.doctor.checks.kernel_log import message_of, xids_of
from egmctl.doctor.kernel_faults import C2C_XIDS, RECOVERY_CHANGED, Action, Blame, meaning
from egmctl.model.finding import TOLD, Finding, PlaceKind, Status
from egmctl.model.kernel_log import DriverMessage as M
from egmctl.model.kernel_log import EventKind, KernelEvent
from egmctl.model.machine import Driver, LibraryFailure, Machine, Outcome, Probe
from egmctl.topology.access import Block, classify, cuda_failure, nvml_failure

Scene = TypeVar("Scene")
Effect = TypeVar("Effect")


@dataclass(frozen=True, slots=True)
class Rule(Generic[Scene, Effect]):
    """A cause and its possible effects: other findings on a machine here, paths of a run in verdict/explain.py."""

    causes: tuple[str, ...]
    """Ids, or globs of ids, of the checks that find the cause."""
    effects: Collection[str]
    """Ids of checks; symptoms and kinds of waivers of a path."""
    holds: Callable[[Scene, Finding, Effect], bool]
    """Whether a finding of the cause explains an effect."""
    given: Callable[[Scene, Finding], bool] | None = None
    """Whether a finding of the cause counts at all; by default each does."""


def rules_from(rules: Iterable[Rule[Scene, Effect]], check: str) -> list[Rule[Scene, Effect]]:
    """Return the rules whose cause is a finding of a check."""
    return [rule for rule in rules if any(fnmatchcase(check, pattern) for pattern in rule.causes)]


def explained(machine: Machine, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings, each with those that explain it; a cause of a cause explains what that one does.

    What could not be determined is explained too. A cause becomes as grave as what it explains: what was tried and
    failed shows that it does harm.
    """
    faults = [place for place, finding in enumerate(findings) if finding.status in TOLD]
    unknown = [place for place, finding in enumerate(findings) if finding.status is Status.UNKNOWN]
    if machine.peers and machine.peers.problem:
        # That MPI did not start is why the nodes were not compared, whatever is wrong with this one.
        unknown = [place for place in unknown if not findings[place].check.startswith("peers.")]
    rules = {place: rules_from(RULES, findings[place].check) for place in faults}
    causes_of: dict[int, list[int]] = {}
    for effect in (*faults, *unknown):
        causes = [
            cause
            for cause in faults
            if cause != effect
            and any(
                findings[effect].check in rule.effects and rule.holds(machine, findings[cause], findings[effect])
                for rule in rules[cause]
            )
            # Of two that could explain each other one stays the cause.
            and effect not in _all_causes(cause, causes_of)
        ]
        if causes and _covers([findings[cause] for cause in causes], findings[effect]):
            causes_of[effect] = causes
    result = list(findings)
    for effect in causes_of:
        roots = sorted(_all_causes(effect, causes_of) - causes_of.keys())
        result[effect] = replace(result[effect], explained_by=_checks(result[root] for root in roots))
        for root in roots:
            statuses = {result[root].status, findings[effect].status} & set(TOLD)
            explains = dict.fromkeys((*result[root].explains, findings[effect].check))
            result[root] = replace(result[root], explains=tuple(explains), status=min(statuses, key=TOLD.index))
    return tuple(result)


def _checks(findings: Iterable[Finding]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(finding.check for finding in findings))


def _all_causes(effect: int, causes_of: Mapping[int, list[int]]) -> set[int]:
    """Return the causes of a finding, and theirs."""
    direct = causes_of.get(effect, [])
    return set(direct).union(*(_all_causes(cause, causes_of) for cause in direct))


def _covers(causes: Sequence[Finding], effect: Finding) -> bool:
    """Say whether all GPUs or pairs that an effect is about are touched by one of the causes, or one is the node's."""
    gpus = effect.place.gpus
    # Libraries fail for all GPUs, whichever one that was seen on.
    if gpus is None or any(cause.place.gpus is None or cause.check == "drv.libraries" for cause in causes):
        return True
    touched = {bus_id for cause in causes for bus_id in cause.place.gpus or ()}
    if effect.place.kind is PlaceKind.PAIR:
        return all(touched.intersection(pair.split(">")) for pair in effect.place.ids)
    return gpus <= touched


# --- when a finding explains another ---------------------------------------------------------------------------------

Holds = Callable[[Machine, Finding, Finding], bool]
"""Whether, on a machine, a cause explains an effect."""


def always(_machine: Machine, _cause: Finding, _effect: Finding) -> bool:
    """Say that one explains the other wherever both are."""
    return True


def same_gpus(_machine: Machine, cause: Finding, effect: Finding) -> bool:
    """Say whether both are about GPUs, and about some of the same."""
    return not set(cause.place.ids).isdisjoint(effect.place.ids)


def alike(_machine: Machine, cause: Finding, effect: Finding) -> bool:
    """Say whether both are about some of the same GPUs, or one of them is about something else than GPUs."""
    return cause.place.meets(effect.place)


def no_gpu_left(machine: Machine, cause: Finding, effect: Finding) -> bool:
    """Say whether the cause has some of the GPUs that the effect counts."""
    return effect.place.kind is not PlaceKind.GPU or same_gpus(machine, cause, effect)


def undetermined(machine: Machine, cause: Finding, effect: Finding) -> bool:
    """Say whether the effect is unknown, of GPUs that the cause has."""
    return effect.status is Status.UNKNOWN and alike(machine, cause, effect)


def control_node_failed(machine: Machine, _cause: Finding, effect: Finding) -> bool:
    """Say whether a library's start failed because one of the nodes that it opens first is closed."""
    closed = _closed_nodes(machine)
    nvml, cuda = nvml_failure(machine), cuda_failure(machine)
    if _is_about(effect, nvml):
        return nvml is not None and nvml.call == "nvmlInit" and "/dev/nvidiactl" in closed
    return _is_about(effect, cuda) and cuda is not None and cuda.call == "cuInit" and bool(closed)


def _is_about(finding: Finding, failure: LibraryFailure | None) -> bool:
    """Say whether a finding quotes the call in which a library failed."""
    return failure is not None and failure.call in {evidence.source for evidence in finding.evidence}


def _closed_nodes(machine: Machine) -> set[str]:
    nodes = (machine.driver or Driver()).nodes or ()
    return {node.path for node in nodes if node.access not in (None, "ok") or node.kind not in (None, "character")}


def none_to_open(machine: Machine, cause: Finding, effect: Finding) -> bool:
    """Say whether CUDA finds no GPU that it can open, and the cause has some of those."""
    failure = cuda_failure(machine)
    no_device = failure is not None and (failure.call, failure.number) == ("cuInit", _NO_DEVICE)
    return no_device and _is_about(effect, failure) and same_gpus(machine, cause, effect)


def not_ready(machine: Machine, _cause: Finding, effect: Finding) -> bool:
    """Say whether CUDA does not start because the fabric is not ready, and the effect is about that."""
    failure = cuda_failure(machine)
    return failure is not None and failure.number == _SYSTEM_NOT_READY and _is_about(effect, failure)


_NO_DEVICE, _SYSTEM_NOT_READY = 100, 802
"""CUDA_ERROR_NO_DEVICE and CUDA_ERROR_SYSTEM_NOT_READY (cuda.h)."""


def versions_differ(machine: Machine, _cause: Finding, _effect: Finding) -> bool:
    """Say whether the libraries refuse a kernel module of another version."""
    failure = nvml_failure(machine)
    return failure is not None and failure.name == "NVML_ERROR_LIB_RM_VERSION_MISMATCH"


def control_denied(_machine: Machine, _cause: Finding, effect: Finding) -> bool:
    """Say whether the cgroup that denies the GPUs denies the node that all of them need as well."""
    return any(item.errno == "EPERM" for item in effect.evidence if item.source == "access(/dev/nvidiactl)")


def _probes(machine: Machine, check: str, *outcomes: Outcome) -> list[Probe]:
    """Return the probes that a check judges and that ended in one of these ways."""
    kinds = KINDS.get(check, ())
    return [probe for probe in machine.probes or () if probe.kind in kinds and probe.outcome in outcomes]


def cuda_did_not_start(machine: Machine, _cause: Finding, effect: Finding) -> bool:
    """Say whether every probe that this check judges and that failed did so in cuInit, which closed nodes stop."""
    bad = _probes(machine, effect.check, *(outcome for outcome in Outcome if outcome is not Outcome.OK))
    return bool(bad) and all(probe.call in _STARTS for probe in bad) and bool(_closed_nodes(machine))


_STARTS = ("cuInit", "cuDriverGetVersion")


def failed_in(*calls: str, number: int | None = None) -> Holds:
    """Return whether all probes of the effect that failed did so in one of these calls, with this CUresult."""

    def holds(machine: Machine, _cause: Finding, effect: Finding) -> bool:
        bad = _probes(machine, effect.check, Outcome.ERROR)
        return bool(bad) and all(probe.call in calls and number in (None, probe.error_number) for probe in bad)

    return holds


def cuda_failed(machine: Machine, cause: Finding, effect: Finding) -> bool:
    """Say whether CUDA failed as a whole, and what was tried in its first calls."""
    return cuda_failure(machine) is not None and failed_in(*_STARTS)(machine, cause, effect)


def ran_short(machine: Machine, _cause: Finding, effect: Finding) -> bool:
    """Say whether the effect failed as it does where descriptors, processes or addresses run out."""
    if effect.check == "drv.libraries":
        failures = [failure for failure in (nvml_failure(machine), cuda_failure(machine)) if failure is not None]
        ours = [f for f in failures if _is_about(effect, f) or (f.call is None and f.how == "not-started")]
        return bool(ours) and all(failure.how != "timed-out" and failure.number in _SHORT for failure in ours)
    bad = _probes(machine, effect.check, Outcome.ERROR, Outcome.CRASHED, Outcome.CORRUPT)
    return bool(bad) and all(probe.outcome is not Outcome.CORRUPT and probe.error_number in _SHORT for probe in bad)


_SHORT = (None, 2, 100, 304, 999)
"""What CUDA answers where the kernel gives it nothing more: OUT_OF_MEMORY, NO_DEVICE, OPERATING_SYSTEM, UNKNOWN (also
NVML's); nothing of a process that crashed or could not be started."""


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
            status in (None, cause.status)
            and same_gpus(machine, cause, effect)
            and all((stopped := classify(machine, gpu)) is not None and stopped.block in blocks for gpu in gpus)
        )

    return holds


def logged(*messages: M) -> Holds:
    """Return whether the effect is that the driver logged one of these messages, of a GPU that the cause may have."""
    return lambda machine, cause, effect: alike(machine, cause, effect) and message_of(machine, effect) in messages


def asks_to_recover(finding: Finding) -> bool:
    """Say whether a finding of ``gpu.health`` is about the recovery action that the driver asks for."""
    return {evidence.source for evidence in finding.evidence} == {RECOVERY_ACTION}


def needs_recovery(machine: Machine, cause: Finding, effect: Finding) -> bool:
    """Say whether the driver asks for a recovery because of an Xid after which a GPU needs one."""
    grave = (Action.RESET, Action.REBOOT, Action.LINKS)
    serious = any(meaning(event).action in grave for event in xids_of(machine, cause))
    return asks_to_recover(effect) and same_gpus(machine, cause, effect) and serious


def announces_recovery(machine: Machine, cause: Finding, effect: Finding) -> bool:
    """Say whether the effect is Xid 154, with which the driver logs that it asks for a recovery."""
    numbers = {event.number for event in xids_of(machine, effect)}
    return numbers == {RECOVERY_CHANGED} and asks_to_recover(cause) and same_gpus(machine, cause, effect)


def precedes_recovery(machine: Machine, cause: Finding, effect: Finding) -> bool:
    """Say whether the effect is Xid 154, and the cause the last Xid of the GPU before it that needs an operator."""
    announced = {(event.number, event.bus_id) for event in xids_of(machine, effect)}
    reasons = {(event.number, event.bus_id) for event in xids_of(machine, cause)}
    if any(number != RECOVERY_CHANGED for number, _ in announced):
        return False
    last: dict[str | None, int | None] = {}
    for event in _xids(machine):
        if event.number != RECOVERY_CHANGED:
            last[event.bus_id] = event.number
        elif (event.number, event.bus_id) in announced and (last.get(event.bus_id), event.bus_id) in reasons:
            return True
    return False


def _xids(machine: Machine) -> list[KernelEvent]:
    """Return the Xids of the kernel's log that need an operator."""
    events = () if machine.kernel_log is None else machine.kernel_log.events
    return [event for event in events if event.kind is EventKind.XID and meaning(event).status in TOLD]


def xids(fits: Callable[[KernelEvent], bool]) -> Holds:
    """Return whether all Xids of the effect's GPU that need an operator are such ones, and the cause has that GPU."""

    def holds(machine: Machine, cause: Finding, effect: Finding) -> bool:
        events = [event for event in _xids(machine) if event.bus_id in effect.place.ids]
        return same_gpus(machine, cause, effect) and bool(events) and all(map(fits, events))

    return holds


def blamed_on(blame: Blame) -> Holds:
    """Return whether all Xids of the effect's GPU are of a part, or ask for the recovery after one that is."""
    return xids(lambda event: meaning(event).blame is blame or event.number == RECOVERY_CHANGED)


def of_numbers(*numbers: int) -> Holds:
    """Return whether all Xids of the effect's GPU are of these numbers, or ask for the recovery after one."""
    return xids(lambda event: event.number in (*numbers, RECOVERY_CHANGED))


def imex_to_recover(machine: Machine, cause: Finding, effect: Finding) -> bool:
    """Say whether the recovery action that the driver asks for is that of an IMEX domain."""
    actions = {evidence.value for evidence in effect.evidence}
    return actions == {"recover-imex-domain"} and same_gpus(machine, cause, effect)


# --- the table -------------------------------------------------------------------------------------------------------

_MEMORY_XIDS = (48, 63, 64, 92, 94, 95, 140, 156, 157, 160, 161, 168, 171, 172)
"""Xids of a GPU's memory (:mod:`egmctl.doctor.kernel_faults`)."""

_ACTIVE = tuple(KINDS)
_TAKEN = ("dev.excluded", "dev.cgroup-restricted", "dev.nodes-missing")
"""What takes a GPU away from this process, or from all, while it works."""
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

RULES: tuple[Rule[Machine, Finding], ...] = (
    *(Rule((cause,), effects, alike) for cause, effects in _ALIKE.items()),
    *(Rule((cause,), ("kernel.driver-messages",), logged(*messages)) for cause, messages in _LOGGED.items()),
    # A GPU has one kernel driver, and the libraries find none whose driver is not NVIDIA's.
    Rule(("drv.nouveau",), ("dev.driver-binding", "drv.libraries", "dev.count-consistency"), always),
    Rule(("dev.driver-binding",), ("drv.libraries",), same_gpus),
    Rule(("dev.fell-off-bus", *_TAKEN, "dev.permissions"), ("drv.libraries",), none_to_open),
    Rule(("drv.versions",), ("drv.libraries",), versions_differ),
    Rule(("dev.cgroup-restricted",), ("dev.control-nodes",), control_denied),
    # A container that is started without GPUs has none of NVIDIA's device nodes.
    Rule(("dev.nodes-missing",), ("dev.control-nodes",), lambda machine, _cause, _effect: without_gpus(machine)),
    # NVML and CUDA open /dev/nvidiactl first, CUDA then /dev/nvidia-uvm: in cuInit, with which every use begins.
    Rule(("dev.control-nodes",), ("drv.libraries",), control_node_failed),
    Rule(("dev.control-nodes",), _ACTIVE, cuda_did_not_start),
    Rule(("drv.libraries",), _ACTIVE, cuda_failed),
    Rule(
        (
            *("dev.fell-off-bus", "dev.driver-binding", *_TAKEN),
            *("dev.permissions", "dev.control-nodes", "drv.libraries"),
        ),
        ("dev.count-consistency",),
        no_gpu_left,
    ),
    Rule(("dev.driver-binding", *_TAKEN), ("pcie.link",), undetermined),
    Rule(("fabric.management", "fabric.manager", "fabric.state"), ("drv.libraries",), not_ready),
    # CUDA lists parts of a GPU with MIG, and no prohibited one.
    Rule(("gpu.mig",), ("dev.count-consistency",), lost_as(Block.NOT_SEEN_BY_CUDA)),
    Rule(("gpu.compute-mode",), ("dev.count-consistency",), lost_as(Block.NOT_SEEN_BY_CUDA, status=Status.FAIL)),
    # The driver gave the GPU up and said why.
    Rule(("kernel.xid",), ("dev.count-consistency",), lost_as(Block.GPU_LOST, Block.NOT_LISTED, status=Status.FAIL)),
    Rule(("dev.fell-off-bus",), ("kernel.xid",), of_numbers(79)),
    Rule(("dev.fell-off-bus",), ("kernel.aer",), same_gpus),
    # The driver logs the errors that it counts.
    Rule(("gpu.health",), ("kernel.xid",), of_numbers(*_MEMORY_XIDS)),
    Rule(("nvlink.links", "nvlink.errors"), ("kernel.xid",), blamed_on(Blame.LINK)),
    Rule(("c2c.link",), ("kernel.xid",), of_numbers(*C2C_XIDS)),
    # It times out waiting for a link that has errors.
    Rule(("kernel.aer",), ("kernel.xid",), blamed_on(Blame.PCIE)),
    Rule(("kernel.xid",), ("gpu.health",), needs_recovery),
    Rule(("gpu.health",), ("kernel.xid",), announces_recovery),
    Rule(("kernel.xid",), ("kernel.xid",), precedes_recovery),
    Rule(("imex.recovery",), ("gpu.health",), imex_to_recover),
    # Fabric handles need an IMEX channel (cuda.h, CUDA_ERROR_NOT_PERMITTED).
    Rule(
        ("imex.channel",),
        ("fabric.alloc-active",),
        failed_in("cuMemCreate", "cuMemPoolCreate", "cuMemImportFromShareableHandle", number=800),
    ),
    # The driver cannot take memory of that NUMA node.
    Rule(
        ("numa.cpuset-mems", "numa.mempolicy-syscalls", "numa.memory"),
        ("egm.alloc-active", "ipc.vmm-active", "ipc.pool-active", "fabric.alloc-active"),
        failed_in("cuMemCreate", "cuMemPoolCreate"),
    ),
    Rule(("env.limits",), ("drv.libraries", *_ACTIVE), ran_short),
    # pidfd_getfd needs the rights of ptrace(2).
    Rule(("ipc.ptrace",), ("ipc.pidfd-active",), always),
)
"""What explains what; each pair has a test (tests/doctor/test_causes.py)."""
