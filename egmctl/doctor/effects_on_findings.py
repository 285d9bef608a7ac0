"""When a fault explains the finding of another check: the conditions of the rules in :mod:`egmctl.doctor.causes`.

Each takes the node, the finding of the cause, and the finding that may be its effect.
"""

from __future__ import annotations

from collections.abc import Callable

from egmctl.doctor.checks.active import KINDS
from egmctl.doctor.checks.gpu import RECOVERY_ACTION
from egmctl.doctor.checks.kernel_log import message_of, xids_of
from egmctl.doctor.effects_on_paths import Node
from egmctl.doctor.kernel_faults import RECOVERY_CHANGED, Action, Blame, is_one_of, meaning
from egmctl.model.finding import TOLD, Finding, PlaceKind, Status
from egmctl.model.host import Driver, LibraryFailure
from egmctl.model.kernel_log import DriverMessage, EventKind, KernelEvent
from egmctl.model.machine import Machine
from egmctl.model.probes import Outcome, Probe
from egmctl.topology.access import Block, classify, cuda_failure, nvml_failure

Holds = Callable[[Node, Finding, Finding], bool]
"""Whether, on a node, a cause explains an effect."""

_NO_DEVICE, _SYSTEM_NOT_READY = 100, 802
"""CUDA_ERROR_NO_DEVICE and CUDA_ERROR_SYSTEM_NOT_READY (cuda.h)."""
_STARTS = ("cuInit", "cuDriverGetVersion")
_SHORT = (None, 2, 100, 304, 999)
"""What CUDA answers where the kernel gives it nothing more: OUT_OF_MEMORY, NO_DEVICE, OPERATING_SYSTEM, UNKNOWN (also
NVML's); nothing of a process that crashed or could not be started."""


def always(_node: Node, _cause: Finding, _effect: Finding) -> bool:
    """Say that one explains the other wherever both are."""
    return True


def same_gpus(_node: Node, cause: Finding, effect: Finding) -> bool:
    """Say whether both are about GPUs, and about some of the same."""
    return not set(cause.place.ids).isdisjoint(effect.place.ids)


def alike(_node: Node, cause: Finding, effect: Finding) -> bool:
    """Say whether both are about some of the same GPUs, or one of them is about something else than GPUs."""
    return cause.place.meets(effect.place)


def no_gpu_left(node: Node, cause: Finding, effect: Finding) -> bool:
    """Say whether the cause has some of the GPUs that the effect counts."""
    return effect.place.kind is not PlaceKind.GPU or same_gpus(node, cause, effect)


def undetermined(node: Node, cause: Finding, effect: Finding) -> bool:
    """Say whether the effect is unknown, of GPUs that the cause has."""
    return effect.status is Status.UNKNOWN and alike(node, cause, effect)


# --- libraries that do not start ------------------------------------------------------------------------------------


def control_node_failed(node: Node, _cause: Finding, effect: Finding) -> bool:
    """Say whether a library's start failed because one of the nodes that it opens first is closed."""
    closed = _closed_nodes(node.machine)
    nvml, cuda = nvml_failure(node.machine), cuda_failure(node.machine)
    if nvml is not None and _quotes(effect, nvml):
        return nvml.call == "nvmlInit" and "/dev/nvidiactl" in closed
    return cuda is not None and _quotes(effect, cuda) and cuda.call == "cuInit" and bool(closed)


def _quotes(finding: Finding, failure: LibraryFailure) -> bool:
    """Say whether a finding quotes the call in which a library failed."""
    return failure.call in {evidence.source for evidence in finding.evidence}


def _closed_nodes(machine: Machine) -> set[str]:
    nodes = (machine.driver or Driver()).nodes or ()
    return {node.path for node in nodes if node.access not in (None, "ok") or node.kind not in (None, "character")}


def none_to_open(node: Node, cause: Finding, effect: Finding) -> bool:
    """Say whether CUDA finds no GPU that it can open, and the cause has some of those."""
    failure = cuda_failure(node.machine)
    no_device = failure is not None and failure.call == "cuInit" and _cuda_gave(node, effect, _NO_DEVICE)
    return no_device and same_gpus(node, cause, effect)


def not_ready(node: Node, _cause: Finding, effect: Finding) -> bool:
    """Say whether CUDA does not start because the fabric is not ready, and the effect is about that."""
    return _cuda_gave(node, effect, _SYSTEM_NOT_READY)


def _cuda_gave(node: Node, effect: Finding, number: int) -> bool:
    failure = cuda_failure(node.machine)
    return failure is not None and failure.number == number and _quotes(effect, failure)


def versions_differ(node: Node, _cause: Finding, _effect: Finding) -> bool:
    """Say whether the libraries refuse a kernel module of another version."""
    failure = nvml_failure(node.machine)
    return failure is not None and failure.name == "NVML_ERROR_LIB_RM_VERSION_MISMATCH"


def control_denied(_node: Node, _cause: Finding, effect: Finding) -> bool:
    """Say whether the cgroup that denies the GPUs denies the node that all of them need as well."""
    return any(item.errno == "EPERM" for item in effect.evidence if item.source == "access(/dev/nvidiactl)")


# --- probes that fail -----------------------------------------------------------------------------------------------


def _probes(node: Node, effect: Finding, *outcomes: Outcome) -> list[Probe]:
    """Return the probes that the effect's check judges and that ended in one of these ways."""
    kind = KINDS.get(effect.check)
    return [probe for probe in node.machine.probes or () if probe.kind is kind and probe.outcome in outcomes]


def cuda_did_not_start(node: Node, _cause: Finding, effect: Finding) -> bool:
    """Say whether every probe that this check judges and that failed did so in cuInit, which closed nodes stop."""
    failed = _probes(node, effect, *(outcome for outcome in Outcome if outcome is not Outcome.OK))
    return bool(failed) and all(probe.call in _STARTS for probe in failed) and bool(_closed_nodes(node.machine))


def failed_in(*calls: str, number: int | None = None) -> Holds:
    """Return whether all probes of the effect that failed did so in one of these calls, with this CUresult."""

    def holds(node: Node, _cause: Finding, effect: Finding) -> bool:
        failed = _probes(node, effect, Outcome.ERROR)
        return bool(failed) and all(probe.call in calls and number in (None, probe.error_number) for probe in failed)

    return holds


def cuda_failed(node: Node, cause: Finding, effect: Finding) -> bool:
    """Say whether CUDA failed as a whole, and what was tried in its first calls."""
    return cuda_failure(node.machine) is not None and failed_in(*_STARTS)(node, cause, effect)


def ran_short(node: Node, _cause: Finding, effect: Finding) -> bool:
    """Say whether the effect failed as it does where descriptors, processes or addresses run out."""
    if effect.check == "drv.libraries":
        failures = [f for f in (nvml_failure(node.machine), cuda_failure(node.machine)) if f is not None]
        own = [f for f in failures if _quotes(effect, f) or (f.call is None and f.how == "not-started")]
        return bool(own) and all(failure.how != "timed-out" and failure.number in _SHORT for failure in own)
    failed = _probes(node, effect, Outcome.ERROR, Outcome.CRASHED, Outcome.CORRUPT)
    return bool(failed) and all(
        probe.outcome is not Outcome.CORRUPT and probe.error_number in _SHORT for probe in failed
    )


# --- GPUs that are lost, and what the kernel logged ------------------------------------------------------------------


def lost_as(*blocks: Block, status: Status | None = None) -> Holds:
    """Return whether the effect is about GPUs of the cause, all of which are lost in one of these ways.

    Parameters
    ----------
    status
        The status that the cause must have.
    """

    def holds(node: Node, cause: Finding, effect: Finding) -> bool:
        gpus = [gpu for gpu in node.machine.gpus or () if gpu.bus_id in effect.place.ids]
        obstacles = [classify(node.machine, gpu) for gpu in gpus]
        lost = all(obstacle is not None and obstacle.block in blocks for obstacle in obstacles)
        return lost and status in (None, cause.status) and same_gpus(node, cause, effect)

    return holds


def logged(*messages: DriverMessage) -> Holds:
    """Return whether the effect is that the driver logged one of these messages, of a GPU that the cause may have."""
    return lambda node, cause, effect: alike(node, cause, effect) and message_of(node.machine, effect) in messages


def asks_to_recover(finding: Finding) -> bool:
    """Say whether a finding of ``gpu.health`` is about the recovery action that the driver asks for."""
    return {evidence.source for evidence in finding.evidence} == {RECOVERY_ACTION}


def needs_recovery(node: Node, cause: Finding, effect: Finding) -> bool:
    """Say whether the driver asks for a recovery because of an Xid after which a GPU needs one."""
    grave = (Action.RESET, Action.REBOOT, Action.LINKS)
    serious = any(meaning(event).action in grave for event in xids_of(node.machine, cause))
    return asks_to_recover(effect) and same_gpus(node, cause, effect) and serious


def announces_recovery(node: Node, cause: Finding, effect: Finding) -> bool:
    """Say whether the effect is Xid 154, with which the driver logs that it asks for a recovery."""
    numbers = {event.number for event in xids_of(node.machine, effect)}
    return numbers == {RECOVERY_CHANGED} and asks_to_recover(cause) and same_gpus(node, cause, effect)


def precedes_recovery(node: Node, cause: Finding, effect: Finding) -> bool:
    """Say whether the effect is Xid 154, and the cause the last Xid of the GPU before it that needs an operator."""
    announced = {(event.number, event.bus_id) for event in xids_of(node.machine, effect)}
    reasons = {(event.number, event.bus_id) for event in xids_of(node.machine, cause)}
    if any(number != RECOVERY_CHANGED for number, _ in announced):
        return False
    last: dict[str | None, int | None] = {}
    for event in _serious_xids(node.machine):
        if event.number != RECOVERY_CHANGED:
            last[event.bus_id] = event.number
        elif (event.number, event.bus_id) in announced and (last.get(event.bus_id), event.bus_id) in reasons:
            return True
    return False


def _serious_xids(machine: Machine) -> list[KernelEvent]:
    """Return the Xids of the kernel's log that need an operator."""
    events = () if machine.kernel_log is None else machine.kernel_log.events
    return [event for event in events if event.kind is EventKind.XID and meaning(event).status in TOLD]


def xids(*numbers_or_parts: int | Blame) -> Holds:
    """Return whether all Xids of the effect's GPU that need an operator are of these numbers, or blame these parts.

    Xid 154, which asks for the recovery after another one, always fits. The cause must have that GPU.
    """
    fitting = (RECOVERY_CHANGED, *numbers_or_parts)

    def holds(node: Node, cause: Finding, effect: Finding) -> bool:
        events = [event for event in _serious_xids(node.machine) if event.bus_id in effect.place.ids]
        return same_gpus(node, cause, effect) and bool(events) and all(is_one_of(event, fitting) for event in events)

    return holds


def imex_to_recover(node: Node, cause: Finding, effect: Finding) -> bool:
    """Say whether the recovery action that the driver asks for is that of an IMEX domain."""
    actions = {evidence.value for evidence in effect.evidence}
    return actions == {"recover-imex-domain"} and same_gpus(node, cause, effect)
