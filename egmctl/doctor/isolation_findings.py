"""Findings from the trials of ``egmctl doctor --isolation``, which no other run of doctor has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from egmctl.doctor.check import Check, Scope
from egmctl.doctor.findings import fact, failed, passed, skipped, unknown, warned
from egmctl.model.finding import Evidence, Finding, Guard, Place, on_gpus
from egmctl.model.host import Driver
from egmctl.model.machine import Machine
from egmctl.model.probes import IsolationKind, IsolationTrial, ProbeOutcome
from egmctl.model.remedy import todo
from egmctl.units import several

ILLEGAL_ADDRESS, INVALID_VALUE, SUCCESS = 700, 1, 0
"""CUDA_ERROR_ILLEGAL_ADDRESS, _INVALID_VALUE, CUDA_SUCCESS (cuda.h)."""
NOT_ASKED = "only with --isolation"
_OPEN = todo(
    "Do not run jobs that must not see each other's data on this driver, and report it to NVIDIA with the driver's "
    "version."
)
_WHOLE_BLOCKS = todo(
    "Round memory that cuIpcGetMemHandle exports up to 2 MiB (2097152 bytes), or share memory from cuMemCreate by file "
    "descriptor, whose unit is 2 MiB."
)
_SUBJECTS = {
    IsolationKind.PEER: "memory of {owner} that is mapped for it alone",
    IsolationKind.HOST: "HOST_NUMA memory that is mapped for {owner} alone",
    IsolationKind.PROCESS: "memory of {owner} that another process keeps to itself",
}


def _unshared(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    if machine.isolation is None:
        yield skipped(NOT_ASKED)
        return
    trials = [trial for trial in machine.isolation if trial.kind in _SUBJECTS]
    if not trials:
        yield skipped("no GPU to try it on")
    for trial in trials:
        owner, reader = _label(machine, trial.owner), _label(machine, trial.reader)
        subject = _SUBJECTS[trial.kind].format(owner=owner)
        yield replace(_closed(trial, subject, reader), place=_place(machine, trial), evidence=_evidence(machine, trial))


def _closed(trial: IsolationTrial, subject: str, reader: str) -> Finding:
    if (finding := _without_result(trial, subject)) is not None:
        return finding
    if trial.kernel_result == SUCCESS:
        return failed(f"{subject}: a kernel of {reader} read it", _OPEN)
    if trial.kernel_result != ILLEGAL_ADDRESS:
        return unknown(f"{subject}: a kernel of {reader} ended with CUresult {trial.kernel_result}, not with 700")
    if trial.copy_result == SUCCESS:
        return failed(f"{subject}: kernels of {reader} are refused, but a copy by {reader} read it", _OPEN)
    note = ""
    if trial.peer_copy_result == SUCCESS:
        note = "cuMemcpyPeer copies it without any mapping, within the process that has contexts on both GPUs"
    refused = f"{subject}: a kernel of {reader} was refused (700)"
    return passed(refused if trial.copy_result is None else f"{refused}, and its copies too", note=note)


def _legacy_block(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    if machine.isolation is None:
        yield skipped(NOT_ASKED)
        return
    trials = [trial for trial in machine.isolation if trial.kind is IsolationKind.LEGACY_BLOCK]
    if not trials:
        yield skipped("no GPU to try it on")
    for trial in trials:
        yield replace(_disclosed(trial), place=_place(machine, trial), evidence=_evidence(machine, trial))


def _disclosed(trial: IsolationTrial) -> Finding:
    if (finding := _without_result(trial, "legacy IPC", needs_read=False)) is not None:
        return finding
    if trial.neighbours == 0:
        return unknown("legacy IPC: no other allocation lies behind the exported one in its block of 2 MiB")
    if trial.disclosed is None:
        return unknown("legacy IPC: what lies behind the exported memory was not read")
    if not trial.disclosed:
        return passed("a legacy IPC handle of 64 KiB opens nothing of what lies behind it in its block of 2 MiB")
    count = f"{trial.disclosed} of {several(trial.neighbours or 0, 'allocation')} behind it that were not exported"
    end = {
        ILLEGAL_ADDRESS: "up to the end of the block of 2 MiB",
        SUCCESS: "and beyond the block of 2 MiB",
    }.get(trial.kernel_result if trial.kernel_result is not None else -1, "in the block of 2 MiB")
    note = "copies are refused there, so that only kernels find it" if trial.copy_result == INVALID_VALUE else ""
    return warned(f"a legacy IPC handle of 64 KiB also opens {count}, {end}", _WHOLE_BLOCKS, note=note)


def _without_result(trial: IsolationTrial, subject: str, *, needs_read: bool = True) -> Finding | None:
    """Return the finding for a trial that was not made to its end; ``None`` if it was."""
    if trial.outcome is ProbeOutcome.OK and (trial.kernel_result is not None or not needs_read):
        return None
    if trial.outcome is ProbeOutcome.NOT_RUN:
        return skipped(f"{subject}: {trial.detail or 'not tried'}")
    return unknown(f"{subject}: {trial.detail or 'the trial did not end'}")


def _evidence(machine: Machine, trial: IsolationTrial) -> tuple[Evidence, ...]:
    """Return what was read, in the order of the trial; CUresults by their number."""
    driver = machine.driver or Driver()
    seen = (
        ("driver", driver.driver_version or driver.module_version),
        ("cuMemGetAccess", trial.access),
        ("copy by the reader", trial.copy_result),
        ("cuMemcpyPeer", trial.peer_copy_result),
        ("kernel", trial.kernel_result),
        ("bytes to the end of the block", trial.block_bytes),
    )
    evidence = [fact(source, str(value)) for source, value in seen if value is not None]
    if trial.pid is not None:
        evidence.append(fact("kernel log", _xids(trial)))
    return tuple(evidence)


def _xids(trial: IsolationTrial) -> str:
    if trial.xids is None:
        return f"not readable; Xid 31 of process {trial.pid} is from this trial"
    if not trial.xids:
        return f"no Xid 31 of process {trial.pid} so far"
    return f"Xid 31 of process {trial.pid}: from this trial, expected"


def _place(machine: Machine, trial: IsolationTrial) -> Place:
    ends = (trial.owner, trial.reader)
    return on_gpus([gpu for gpu in machine.gpus or () if gpu.bus_id in ends])


def _label(machine: Machine, bus_id: str) -> str:
    return next((f"GPU{gpu.index}" for gpu in machine.gpus or () if gpu.bus_id == bus_id), bus_id)


ISOLATION_CHECKS = (
    Check("isolation.unshared", _unshared, guards=(Guard.IPC, Guard.P2P), sections=("gpus",)),
    Check("isolation.legacy-block", _legacy_block, guards=(Guard.IPC,), sections=("gpus",)),
)
