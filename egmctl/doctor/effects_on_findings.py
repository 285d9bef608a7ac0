"""The conditions under which a finding explains the finding of another check, for rules in :mod:`egmctl.doctor.causes`.

Their parameters are the node, the finding of the cause, and the finding that may be its effect.
"""

from __future__ import annotations

from collections.abc import Callable

from egmctl.doctor.checks.active import KINDS
from egmctl.doctor.checks.gpu import RECOVERY_ACTION
from egmctl.doctor.checks.kernel_log import message_of, xids_of
from egmctl.doctor.kernel_faults import RECOVERY_CHANGED, Action, Blame, is_one_of, meaning
from egmctl.doctor.troubles import RunNode
from egmctl.model.finding import TOLD, Finding, PlaceKind, Status
from egmctl.model.host import Driver, LibraryFailure
from egmctl.model.kernel_log import DriverMessage, EventKind, KernelEvent
from egmctl.model.machine import Machine
from egmctl.model.probes import Probe, ProbeOutcome
from egmctl.topology.access import LOST, Block, classify, cuda_failure, nvml_failure

FindingCondition = Callable[[RunNode, Finding, Finding], bool]
"""A condition: whether, on a node, a cause explains an effect."""

_LINK_EVENT, _PEER_EVENT = 149, 145
"""The Xids NETIR_LINK_EVT of the GPU whose link went down, and RLW_RXPIPE of the GPUs that sent over it."""
_NOT_INITIALIZED, _NO_DEVICE, _SYSTEM_NOT_READY = 3, 100, 802
"""CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_NO_DEVICE and CUDA_ERROR_SYSTEM_NOT_READY (cuda.h)."""
_STARTS = ("cuInit", "cuDriverGetVersion")
_SHORT = (None, 2, 100, 304, 999)
"""The CUresults that CUDA returns when the kernel is out of resources: OUT_OF_MEMORY, NO_DEVICE, OPERATING_SYSTEM and
UNKNOWN (also an NVML error); ``None`` if the process crashed or did not start."""


def always(_node: RunNode, _cause: Finding, _effect: Finding) -> bool:
    """Return ``True``: the cause explains the effect on the same node."""
    return True


def same_gpus(_node: RunNode, cause: Finding, effect: Finding) -> bool:
    """Return whether both findings are about GPUs and share one."""
    return not set(cause.place.ids).isdisjoint(effect.place.ids)


def related(_node: RunNode, cause: Finding, effect: Finding) -> bool:
    """Return whether both findings share a GPU, or one of them is not about GPUs."""
    return cause.place.meets(effect.place)


def no_gpu_left(node: RunNode, cause: Finding, effect: Finding) -> bool:
    """Return whether both findings share a GPU, or the effect is not about GPUs."""
    return effect.place.kind is not PlaceKind.GPU or same_gpus(node, cause, effect)


def undetermined(node: RunNode, cause: Finding, effect: Finding) -> bool:
    """Return whether the effect is ``unknown`` and :func:`related` holds."""
    return effect.status is Status.UNKNOWN and related(node, cause, effect)


# --- libraries that do not start ------------------------------------------------------------------------------------


def control_node_failed(node: RunNode, _cause: Finding, effect: Finding) -> bool:
    """Return whether NVML or CUDA failed to start because this process cannot open a control node."""
    closed = _closed_nodes(node.machine)
    nvml, cuda = nvml_failure(node.machine), cuda_failure(node.machine)
    if nvml is not None and _quotes(effect, nvml):
        return nvml.call == "nvmlInit" and "/dev/nvidiactl" in closed
    return cuda is not None and _quotes(effect, cuda) and cuda.call == "cuInit" and bool(closed)


def _quotes(finding: Finding, failure: LibraryFailure) -> bool:
    """Return whether the evidence of a finding contains the call in which a library failed."""
    return failure.call in {evidence.source for evidence in finding.evidence}


def _closed_nodes(machine: Machine) -> set[str]:
    nodes = (machine.driver or Driver()).nodes or ()
    return {node.path for node in nodes if node.access not in (None, "ok") or node.kind not in (None, "character")}


def no_device_found(node: RunNode, cause: Finding, effect: Finding) -> bool:
    """Return whether cuInit returned CUDA_ERROR_NO_DEVICE, and both findings share a GPU."""
    failure = cuda_failure(node.machine)
    no_device = failure is not None and failure.call == "cuInit" and _cuda_returned(node, effect, _NO_DEVICE)
    return no_device and same_gpus(node, cause, effect)


def without_instance(node: RunNode, cause: Finding, effect: Finding) -> bool:
    """Return whether no GPU can be used because CUDA finds no MIG instance."""
    failure = cuda_failure(node.machine)
    no_device = failure is not None and failure.number == _NO_DEVICE
    return no_device and cause.status is Status.FAIL and no_gpu_left(node, cause, effect)


def not_ready(node: RunNode, _cause: Finding, effect: Finding) -> bool:
    """Return whether the effect is that CUDA returned CUDA_ERROR_SYSTEM_NOT_READY, because the fabric is not ready."""
    return _cuda_returned(node, effect, _SYSTEM_NOT_READY)


def not_initialized(node: RunNode, _cause: Finding, effect: Finding) -> bool:
    """Return whether the effect is that cuInit returned CUDA_ERROR_NOT_INITIALIZED."""
    return _cuda_returned(node, effect, _NOT_INITIALIZED)


def not_accepting_work(node: RunNode, cause: Finding, effect: Finding) -> bool:
    """Return whether CUDA returned CUDA_ERROR_SYSTEM_NOT_READY, and confidential computing waits for a ready state."""
    return (node.machine.driver or Driver()).confidential_ready is False and not_ready(node, cause, effect)


def _cuda_returned(node: RunNode, effect: Finding, number: int) -> bool:
    failure = cuda_failure(node.machine)
    return failure is not None and failure.number == number and _quotes(effect, failure)


def versions_differ(node: RunNode, _cause: Finding, _effect: Finding) -> bool:
    """Return whether NVML failed because the kernel module has another version."""
    failure = nvml_failure(node.machine)
    return failure is not None and failure.name == "NVML_ERROR_LIB_RM_VERSION_MISMATCH"


def control_denied(_node: RunNode, _cause: Finding, effect: Finding) -> bool:
    """Return whether the effect is that the device cgroup denies /dev/nvidiactl (EPERM)."""
    return any(item.errno == "EPERM" for item in effect.evidence if item.source == "access(/dev/nvidiactl)")


def refused_alike(_node: RunNode, cause: Finding, effect: Finding) -> bool:
    """Return whether both findings are that this user may not open a device node (EACCES)."""
    return all(bool(finding.evidence) and finding.evidence[-1].errno == "EACCES" for finding in (cause, effect))


def cause_quotes(source: str) -> FindingCondition:
    """Return a condition: the cause has evidence of this source, and :func:`related` holds."""
    return lambda node, cause, effect: _has_evidence(cause, source) and related(node, cause, effect)


def effect_quotes(source: str) -> FindingCondition:
    """Return a condition: the effect has evidence of this source, and :func:`related` holds."""
    return lambda node, cause, effect: _has_evidence(effect, source) and related(node, cause, effect)


def _has_evidence(finding: Finding, source: str) -> bool:
    return any(evidence.source == source for evidence in finding.evidence)


# --- probes that fail -----------------------------------------------------------------------------------------------


def _probes(node: RunNode, effect: Finding, *outcomes: ProbeOutcome) -> list[Probe]:
    """Return the probes of the effect's check that ended with one of these outcomes."""
    kind = KINDS.get(effect.check)
    return [probe for probe in node.machine.probes or () if probe.kind is kind and probe.outcome in outcomes]


def cuda_did_not_start(node: RunNode, _cause: Finding, effect: Finding) -> bool:
    """Return whether all unsuccessful probes failed in cuInit, and a control node cannot be opened."""
    failed = _probes(node, effect, *(outcome for outcome in ProbeOutcome if outcome is not ProbeOutcome.OK))
    return bool(failed) and all(probe.call in _STARTS for probe in failed) and bool(_closed_nodes(node.machine))


def calls_failed(*calls: str, number: int | None = None) -> FindingCondition:
    """Return a condition: all failed probes of the effect failed in one of these calls, with this CUresult."""

    def holds(node: RunNode, _cause: Finding, effect: Finding) -> bool:
        failed = _probes(node, effect, ProbeOutcome.ERROR)
        return bool(failed) and all(probe.call in calls and number in (None, probe.error_number) for probe in failed)

    return holds


def cuda_failed(node: RunNode, cause: Finding, effect: Finding) -> bool:
    """Return whether CUDA failed as a whole, and all failed probes failed in its first calls."""
    return cuda_failure(node.machine) is not None and calls_failed(*_STARTS)(node, cause, effect)


def out_of_resources(node: RunNode, _cause: Finding, effect: Finding) -> bool:
    """Return whether the effect failed in a way that a lack of descriptors, processes or address space explains."""
    if effect.check == "drv.libraries":
        failures = [f for f in (nvml_failure(node.machine), cuda_failure(node.machine)) if f is not None]
        relevant = [f for f in failures if _quotes(effect, f) or (f.call is None and f.how == "not-started")]
        return bool(relevant) and all(failure.how != "timed-out" and failure.number in _SHORT for failure in relevant)
    failed = _probes(node, effect, ProbeOutcome.ERROR, ProbeOutcome.CRASHED, ProbeOutcome.CORRUPT)
    return bool(failed) and all(
        probe.outcome is not ProbeOutcome.CORRUPT and probe.error_number in _SHORT for probe in failed
    )


# --- GPUs that are lost, and what the kernel logged ------------------------------------------------------------------


def are_lost(*blocks: Block, status: Status | None = None) -> FindingCondition:
    """Return a condition: all GPUs of the effect are lost for one of these reasons, and both findings share a GPU.

    Parameters
    ----------
    status
        The status that the cause must have; ``None``: any.
    """

    def holds(node: RunNode, cause: Finding, effect: Finding) -> bool:
        gpus = [gpu for gpu in node.machine.gpus or () if gpu.bus_id in effect.place.ids]
        obstacles = [classify(node.machine, gpu) for gpu in gpus]
        all_lost = all(obstacle is not None and obstacle.block in blocks for obstacle in obstacles)
        return all_lost and status in (None, cause.status) and same_gpus(node, cause, effect)

    return holds


def logged(*messages: DriverMessage) -> FindingCondition:
    """Return a condition: the effect is that the driver logged one of these messages, and :func:`related` holds."""
    return lambda node, cause, effect: related(node, cause, effect) and message_of(node.machine, effect) in messages


def could_not_start(node: RunNode, cause: Finding, effect: Finding) -> bool:
    """Return whether the driver logged that it could not initialize GPUs of the effect, which NVML does not list."""
    if message_of(node.machine, cause) is not DriverMessage.INIT_FAILED or cause.place.gpus is None:
        return False
    return are_lost(*LOST, Block.NOT_LISTED)(node, cause, effect)


def fell_off_at_probe(node: RunNode, cause: Finding, effect: Finding) -> bool:
    """Return whether the driver found the effect's GPUs off the bus when it probed them; it logs no Xid then."""
    return message_of(node.machine, cause) is DriverMessage.FELL_OFF_BUS and same_gpus(node, cause, effect)


def xid_before_start(node: RunNode, cause: Finding, effect: Finding) -> bool:
    """Return whether the effect is that a GPU could not be initialized, and the cause is an Xid of that GPU."""
    is_grave = cause.status is not Status.NOTE
    return is_grave and message_of(node.machine, effect) is DriverMessage.INIT_FAILED and same_gpus(node, cause, effect)


_AT_ONCE_S = 10.0
"""The time in which the peers of a GPU log what its links did, in seconds. Our choice: they do at once."""


def link_of_a_peer(node: RunNode, cause: Finding, effect: Finding) -> bool:
    """Return whether the effect is Xid 145 on GPUs, each at the time of an Xid 149 of the cause on another GPU.

    The peers of a GPU whose NVLinks go down (Xid 149) log Xid 145
    (https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1150).
    """
    link_events = [event for event in xids_of(node.machine, cause) if event.number == _LINK_EVENT]
    peers = xids_of(node.machine, effect)
    return bool(link_events and peers) and all(
        peer.number == _PEER_EVENT
        and any(peer.bus_id != event.bus_id and 0 <= peer.time_s - event.time_s <= _AT_ONCE_S for event in link_events)
        for peer in peers
    )


def asks_to_recover(finding: Finding) -> bool:
    """Return whether a finding of ``gpu.health`` is about the recovery action that the driver requests."""
    return {evidence.source for evidence in finding.evidence} == {RECOVERY_ACTION}


def needs_recovery(node: RunNode, cause: Finding, effect: Finding) -> bool:
    """Return whether the driver requests a recovery after an Xid that needs a reset, a reboot or a repair of links.

    An event of a link that is not fatal needs none of them: the request, which knows more, stands by itself.
    """
    grave = (Action.RESET, Action.REBOOT, Action.LINKS)
    serious = any(meaning(event).action in grave for event in xids_of(node.machine, cause))
    return asks_to_recover(effect) and same_gpus(node, cause, effect) and serious


def announces_recovery(node: RunNode, cause: Finding, effect: Finding) -> bool:
    """Return whether the effect is Xid 154 only, which logs the recovery request that the cause reports."""
    numbers = {event.number for event in xids_of(node.machine, effect)}
    return numbers == {RECOVERY_CHANGED} and asks_to_recover(cause) and same_gpus(node, cause, effect)


def precedes_recovery(node: RunNode, cause: Finding, effect: Finding) -> bool:
    """Return whether the effect is Xid 154, and the cause is the GPU's last Xid before it that needs an operator.

    An event of a link that is not fatal is no such cause: its remedy is less than what Xid 154 requests.
    """
    announced = {(event.number, event.bus_id) for event in xids_of(node.machine, effect)}
    reasons = {(event.number, event.bus_id) for event in xids_of(node.machine, cause)}
    if any(number != RECOVERY_CHANGED for number, _ in announced):
        return False
    last_xid: dict[str | None, int | None] = {}
    for event in _serious_xids(node.machine):
        if event.number != RECOVERY_CHANGED and meaning(event).action is not Action.LINKS_NOT_FATAL:
            last_xid[event.bus_id] = event.number
        elif (event.number, event.bus_id) in announced and (last_xid.get(event.bus_id), event.bus_id) in reasons:
            return True
    return False


def _serious_xids(machine: Machine) -> list[KernelEvent]:
    """Return the Xids in the kernel log that need an operator."""
    events = () if machine.kernel_log is None else machine.kernel_log.events
    return [event for event in events if event.kind is EventKind.XID and meaning(event).status in TOLD]


def xids(*numbers_or_parts: int | Blame) -> FindingCondition:
    """Return a condition: all Xids of the effect's GPUs that need an operator have these numbers or blame these parts.

    Xid 154, which requests the recovery after another Xid, always matches. The findings must share a GPU.
    """
    fitting = (RECOVERY_CHANGED, *numbers_or_parts)

    def holds(node: RunNode, cause: Finding, effect: Finding) -> bool:
        events = [event for event in _serious_xids(node.machine) if event.bus_id in effect.place.ids]
        return same_gpus(node, cause, effect) and bool(events) and all(is_one_of(event, fitting) for event in events)

    return holds


def imex_to_recover(node: RunNode, cause: Finding, effect: Finding) -> bool:
    """Return whether the recovery action that the driver requests is that of an IMEX domain."""
    actions = {evidence.value for evidence in effect.evidence}
    return actions == {"recover-imex-domain"} and same_gpus(node, cause, effect)
