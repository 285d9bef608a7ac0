"""Are the GPUs healthy, and in a mode that lets paths work?"""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.check import Check, Scope, failed, gap, needing, passed, skipped, unknown, unreported, warned
from egmctl.doctor.situation import judged, judged_by_nvml, needs_gpu, usable
from egmctl.model.finding import Evidence, Finding, Guard, Remedy, on_gpus
from egmctl.model.machine import Driver, Gpu, GpuNvml, Machine

RECOVERY_ACTION = "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"
RECOVERY = {
    "gpu-reset": ("reset of the GPU", "Drain the node and reset the GPU.", False),
    "node-reboot": ("reboot of the node", "Drain the node and reboot it.", True),
    "drain-p2p": (
        "stop of the work that uses it as a peer",
        "Stop jobs on other GPUs that use this GPU as a peer.",
        False,
    ),
    "drain-and-reset": (
        "drain of the node, then a reset",
        "Drain the GPU: let its work finish, start no more, then reset it.",
        False,
    ),
    "recover-imex-domain": ("recovery of the IMEX domain", "Restart nvidia-imex on the domain's nodes.", False),
    "bus-reset": ("reset of the bus", "Drain the node and reset the GPU's bus, or reboot.", True),
    "system-reboot": ("reboot of the system", "Drain the node and reboot it.", True),
}
"""Recovery actions (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION): their names, what to do, and whether it needs a reboot."""

SLOWDOWNS = {
    "hw-slowdown": "hardware slowdown (heat or power)",
    "hw-thermal-slowdown": "hardware thermal slowdown",
    "sw-thermal-slowdown": "software thermal slowdown",
    "hw-power-brake-slowdown": "power brake (the power supply limits power)",
}
"""Clocks event reasons that stand for a fault of cooling or power; a power cap under load is none."""


@needing(needs_gpu)
def _health(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = usable(machine, scope.gpus_of(machine))
    faults = {gpu.bus_id: list(_faults(gpu, gpu.nvml)) for gpu in gpus if gpu.nvml}
    for findings in faults.values():
        yield from findings
    yield from judged((gpu for gpu in gpus if not faults[gpu.bus_id]), _no_fault, on_gpus)


def _no_fault(gpu: Gpu) -> Finding:
    """Return the finding on a GPU without a fault: which signs of health were read, and which could not be."""
    read = [sign for sign, names in _SIGNS.items() if all(getattr(gpu.nvml, name) is not None for name in names)]
    unread = [f"{sign} ({reason})" for sign, names in _SIGNS.items() if (reason := gap(gpu.nvml, *names))]
    if unread:
        return unknown(f"NVML did not report {'; '.join(unread)}")
    if read:
        return passed(", ".join(f"no {sign}" for sign in read))
    return unknown("NVML reports neither memory errors nor a recovery action")


_SIGNS = {
    "uncorrected errors": ("ecc_uncorrected_volatile",),
    "pending row remapping": ("remapped_rows_pending", "remapped_rows_failure"),
    "recovery action": ("recovery_action",),
}
"""Signs that a healthy GPU does not show, and the fields of NVML that say so."""


def _faults(gpu: Gpu, nvml: GpuNvml) -> Iterator[Finding]:
    place = on_gpus([gpu])
    reset = Remedy(
        text="Drain the node and reset the GPU; if the errors return, replace it.",
        command=f"nvidia-smi --gpu-reset -i {gpu.bus_id}",
        needs_root=True,
    )
    action = nvml.recovery_action
    if action not in (None, "none"):
        what, how, reboot = RECOVERY.get(action, (action, "Look up the action in NVIDIA's NVML reference.", False))
        yield failed(
            f"the driver asks for a {what}",
            Remedy(
                text=how,
                command=reset.command if action in ("gpu-reset", "drain-and-reset") else None,
                needs_root=True,
                needs_reboot=reboot,
            ),
            place=place,
            evidence=(Evidence(source=RECOVERY_ACTION, value=action),),
        )
    if nvml.remapped_rows_failure:
        yield failed(
            "a row of the GPU's memory could not be remapped",
            Remedy(text="Replace the GPU.", command="nvidia-smi -q -d ROW_REMAPPER"),
            place=place,
            evidence=(Evidence(source="nvmlDeviceGetRemappedRows", value="failure occurred"),),
        )
    elif nvml.remapped_rows_pending:
        yield warned(
            "rows of the GPU's memory will be remapped at the next reset",
            reset,
            place=place,
            evidence=(Evidence(source="nvmlDeviceGetRemappedRows", value="remapping pending"),),
            cause="an uncorrectable error was found; it can recur until the reset",
        )
    if nvml.ecc_uncorrected_volatile and not nvml.remapped_rows_pending:
        yield failed(
            f"{nvml.ecc_uncorrected_volatile} uncorrectable memory errors since the driver was loaded",
            reset,
            place=place,
            evidence=(
                Evidence(source="nvmlDeviceGetTotalEccErrors(volatile)", value=str(nvml.ecc_uncorrected_volatile)),
            ),
        )


@judged_by_nvml
def _throttle(gpu: Gpu, nvml: GpuNvml, _scope: Scope) -> Finding:
    reasons, temperature = nvml.throttle_reasons, nvml.temperature_c
    evidence = [Evidence(source="nvmlDeviceGetCurrentClocksEventReasons", value=", ".join(reasons or ()) or "none")]
    if temperature is not None:
        evidence.append(Evidence(source=f"nvmlDeviceGetTemperature(GPU{gpu.index})", value=f"{temperature} C"))
    if reasons is None:
        return unreported(nvml, "throttle_reasons", "throttle reasons", "NVML does not report throttle reasons")
    if slow := [SLOWDOWNS[reason] for reason in reasons if reason in SLOWDOWNS]:
        return warned(
            f"clocks throttled: {'; '.join(slow)}",
            Remedy(text="Check fans, coolant and power supplies.", command="nvidia-smi -q -d PERFORMANCE,TEMPERATURE"),
            evidence=tuple(evidence),
        )
    return passed("clocks are not throttled by heat or power supplies", evidence=tuple(evidence))


SHARING = (Guard.P2P, Guard.IPC, Guard.EGM)


@judged_by_nvml
def _mig(_gpu: Gpu, nvml: GpuNvml, scope: Scope) -> Finding:
    mode, pending = nvml.mig_mode, nvml.mig_mode_pending
    evidence = (Evidence(source="nvmlDeviceGetMigMode", value=f"current {_on(mode)}, pending {_on(pending)}"),)
    off = Remedy(
        text="Turn MIG off if GPUs work together, then reset them.", command="nvidia-smi -mig 0", needs_root=True
    )
    if mode is None:
        return unreported(nvml, "mig_mode", "MIG", "these GPUs do not support MIG")
    if mode:
        return (failed if any(map(scope.asked_purpose, SHARING)) else warned)(
            "MIG is on: no P2P, no CUDA IPC and no remote EGM between GPUs",
            off,
            evidence=evidence,
            cause="CUDA gives a process one MIG instance, which has no peers",
        )
    if pending is None:
        return unreported(nvml, "mig_mode_pending", "the MIG mode after the next reset", "MIG is off")
    if pending:
        return warned("MIG will be on after the next reset of the GPU", off, evidence=evidence)
    return passed("MIG is off", evidence=evidence)


def _on(value: bool | None) -> str:
    return "not read" if value is None else "on" if value else "off"


def _confidential(machine: Machine, scope: Scope) -> Iterator[Finding]:
    driver = machine.driver or Driver()
    mode = driver.confidential_compute
    evidence = (Evidence(source="nvmlSystemGetConfComputeSettings", value=mode or "not read"),)
    if mode == "off":
        yield passed("confidential computing is off", evidence=evidence)
    elif mode is None:
        why = driver.unread.get("confidential_compute")
        if why is not None and why.reason.value in ("not-supported", "driver-too-old"):
            yield skipped("this driver does not support confidential computing", evidence=evidence)
        else:
            yield unknown("NVML does not report whether confidential computing is on", evidence=evidence)
    elif mode == "on":
        asked = scope.asked_purpose(Guard.P2P) or scope.asked_purpose(Guard.RDMA)
        yield (failed if asked else warned)(
            "confidential computing is on for single GPUs: no P2P, no GPUDirect RDMA",
            Remedy(
                text="Set the multi-GPU mode of confidential computing, or turn confidential computing off.",
                needs_root=True,
                needs_reboot=True,
            ),
            evidence=evidence,
        )
    else:
        yield passed(
            "confidential computing is on for several GPUs together",
            evidence=evidence,
            note="transfers are encrypted and slower",
        )


@judged_by_nvml
def _vgpu(_gpu: Gpu, nvml: GpuNvml, _scope: Scope) -> Finding:
    mode = nvml.virtualization
    evidence = (Evidence(source="nvmlDeviceGetVirtualizationMode", value=mode or "not read"),)
    if mode is None:
        return unreported(nvml, "virtualization", "virtualisation", "no virtualisation mode")
    if mode == "vgpu":
        return warned(
            "these are vGPUs: their profiles decide whether P2P and fabric handles work",
            Remedy(text="Pass physical GPUs through to the virtual machine, or use time-sliced profiles with NVLink."),
            evidence=evidence,
            cause="MIG-backed profiles have no P2P, and none has it over PCIe (NVIDIA vGPU user guide)",
        )
    note = "passed through to this virtual machine" if mode == "passthrough" else ""
    return passed("physical GPUs", evidence=evidence, note=note)


@judged_by_nvml
def _compute_mode(_gpu: Gpu, nvml: GpuNvml, _scope: Scope) -> Finding:
    mode = nvml.compute_mode
    evidence = (Evidence(source="nvmlDeviceGetComputeMode", value=mode or "not read"),)
    back = Remedy(text="Set the mode back to default.", command="nvidia-smi -c DEFAULT", needs_root=True)
    if mode == "prohibited":
        return failed("no process may use these GPUs with CUDA", back, evidence=evidence)
    if mode in ("exclusive-process", "exclusive-thread"):
        return warned(
            "one process at a time may use each GPU: two ranks cannot share a GPU, nor import each other's memory",
            back,
            evidence=evidence,
            cause="a process that opens another's memory needs a context on that GPU too; with MPS the server has it",
        )
    if mode == "default":
        return passed("compute mode allows any number of processes", evidence=evidence)
    return unreported(nvml, "compute_mode", "the compute mode", "no compute mode")


@judged_by_nvml
def _persistence(_gpu: Gpu, nvml: GpuNvml, _scope: Scope) -> Finding:
    mode = nvml.persistence_mode
    evidence = (Evidence(source="nvmlDeviceGetPersistenceMode", value=_on(mode)),)
    if mode is None:
        return unreported(nvml, "persistence_mode", "persistence mode", "no persistence mode here")
    if mode:
        return passed("persistence mode is on", evidence=evidence)
    return warned(
        "persistence mode is off: each first use initialises the GPU, which takes seconds and drops its settings",
        Remedy(text="Run nvidia-persistenced, or set the mode.", command="nvidia-smi -pm 1", needs_root=True),
        evidence=evidence,
    )


CHECKS = (
    Check("gpu.health", _health, guards=tuple(Guard), sections=("gpus",)),
    Check("gpu.throttle", _throttle, guards=(Guard.PERF,), sections=("gpus",)),
    Check("gpu.mig", _mig, guards=SHARING, sections=("gpus",)),
    Check("gpu.cc-mode", _confidential, guards=(Guard.P2P, Guard.RDMA), sections=("driver",)),
    Check("gpu.vgpu", _vgpu, guards=(Guard.P2P, Guard.FABRIC), sections=("gpus",)),
    Check("gpu.compute-mode", _compute_mode, guards=(Guard.IPC,), sections=("gpus",)),
    Check("gpu.persistence", _persistence, guards=(Guard.PERF,), sections=("gpus",)),
)
