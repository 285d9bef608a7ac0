"""When a finding of a cause explains a finding of an effect: what both are about, and what the machine says. Pure."""

from __future__ import annotations

from collections.abc import Callable

from egmctl.doctor.checks.active import KINDS
from egmctl.doctor.checks.gpu import RECOVERY_ACTION
from egmctl.doctor.checks.kernel_log import message_of, xids_of
from egmctl.doctor.xids import RECOVERY_CHANGED, Action, meaning
from egmctl.model.finding import TOLD, Finding, PlaceKind, Status
from egmctl.model.kernel_log import DriverMessage, EventKind, KernelEvent
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
