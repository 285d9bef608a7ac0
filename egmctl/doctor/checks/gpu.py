"""Checks of the GPUs' health and modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from egmctl.doctor.check import Check, Scope, Verdicts, check
from egmctl.doctor.findings import fact, failed, gap, noted, passed, skipped, unknown, unreported, warned
from egmctl.doctor.situation import check_gpus
from egmctl.doctor.troubles import SLOWDOWNS
from egmctl.model.finding import Finding, Guard
from egmctl.model.gpu import Gpu, GpuNvml
from egmctl.model.host import Driver
from egmctl.model.machine import Machine
from egmctl.model.record import Reason
from egmctl.model.remedy import GPUS, Need, as_root, todo
from egmctl.topology.access import cuda_failure
from egmctl.units import listed

RECOVERY_ACTION = "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"
_RESET_COMMAND = f"nvidia-smi --gpu-reset -i {GPUS}"
RESET = as_root(
    "End what uses the GPU and reset it; if the errors return, replace it.", Need.GPU_RESET, run=_RESET_COMMAND
)
_REBOOT = as_root("Reboot the drained node.", Need.REBOOT)
RECOVERY = {
    "gpu-reset": (
        "reset of the GPU",
        as_root("End what uses the GPU, and reset it.", Need.GPU_RESET, run=_RESET_COMMAND),
    ),
    "node-reboot": ("reboot of the node", _REBOOT),
    "drain-p2p": ("stop of its peers' work", todo("Stop jobs on other GPUs that use this GPU as a peer.")),
    "drain-and-reset": (
        "drain of the node, then a reset",
        as_root("Let the GPU's work finish, then reset it.", Need.GPU_RESET, run=_RESET_COMMAND),
    ),
    "recover-imex-domain": (
        "recovery of the IMEX domain",
        todo("Recover the IMEX domain: imex.recovery says how on this node."),
    ),
    "bus-reset": (
        "reset of the bus",
        as_root("Reset the GPU's bus on the drained node, or reboot it.", Need.GPU_RESET, Need.REBOOT),
    ),
    "system-reboot": ("reboot of the system", _REBOOT),
}
"""The recovery actions (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION): name in output, and remedy."""

SIGNS = {
    "uncorrected errors": ("ecc_uncorrected_volatile",),
    "SRAM errors above the driver's threshold": ("sram_threshold_exceeded",),
    "pending row remapping": ("remapped_rows_pending", "remapped_rows_failure"),
    "pending repair": ("channel_repair_pending", "tpc_repair_pending"),
    "recovery action": ("recovery_action",),
}
"""The signs of an unhealthy GPU, and the NVML fields that report them."""


@check_gpus("gpu.health", *Guard)
def _health(_machine: Machine, _scope: Scope, gpu: Gpu) -> Verdicts:
    if gpu.nvml is not None:
        yield from list(_faults(gpu.nvml)) or [_no_fault(gpu.nvml)]


_MAY_LACK = {
    # Only root may read the flag of SRAM, and older recordings lack it.
    "sram_threshold_exceeded": (None, Reason.NO_PERMISSION, Reason.NOT_STATED),
    # Older drivers and recordings lack it.
    "channel_repair_pending": (None, Reason.DRIVER_TOO_OLD, Reason.NOT_STATED),
}
"""The fields that may be missing on a healthy GPU, and for which reasons; ``None``: they are there."""


def _no_fault(nvml: GpuNvml) -> Finding:
    """Return the finding on a GPU without a fault: ``pass`` if the signs were read, else ``unknown``."""
    read = [sign for sign, names in SIGNS.items() if all(getattr(nvml, name) is not None for name in names)]
    lacking = {name for name, reasons in _MAY_LACK.items() if nvml.reason_of(name) in reasons}
    signs = {sign: names for sign, names in SIGNS.items() if lacking.isdisjoint(names)}
    unread = [f"{sign} ({reason})" for sign, names in signs.items() if (reason := gap(nvml, *names))]
    if unread or not read:
        return unknown(f"NVML did not report {'; '.join(unread or SIGNS)}")
    return passed(", ".join(f"no {sign}" for sign in read))


def _faults(nvml: GpuNvml) -> Iterator[Finding]:
    action, errors = nvml.recovery_action, nvml.ecc_uncorrected_volatile
    if action not in (None, "none"):
        request, remedy = RECOVERY.get(action, (action, todo("Look up the action in NVIDIA's NVML reference.")))
        yield failed(f"the driver asks for a {request}", remedy, evidence=(fact(RECOVERY_ACTION, action),))
    if nvml.sram_threshold_exceeded:
        service = todo("Replace the GPU.", look=f"nvidia-smi -i {GPUS} -q -d ECC")
        evidence = (fact("nvmlDeviceGetSramEccErrorStatus", "bThresholdExceeded"),)
        text = "the driver asks to have the GPU serviced: its SRAM had too many uncorrectable errors"
        yield failed(text, service, evidence=evidence)
    if nvml.remapped_rows_failure:
        replace_it = todo("Replace the GPU.", look=f"nvidia-smi -i {GPUS} -q -d ROW_REMAPPER")
        yield failed("a row of the GPU's memory could not be remapped", replace_it)
    elif nvml.remapped_rows_pending:
        cause = "an uncorrectable error was found; it can recur until the reset"
        yield warned("rows of the GPU's memory will be remapped at the next reset", RESET, cause=cause)
    repairs = {"a memory channel": nvml.channel_repair_pending, "a TPC (a part with SMs)": nvml.tpc_repair_pending}
    if pending := [part for part, is_pending in repairs.items() if is_pending]:
        evidence = (fact("nvmlDeviceGetRepairStatus", ", ".join(pending)),)
        yield warned(f"{listed(pending)} will be repaired at the next reset", RESET, evidence=evidence)
    if errors and not nvml.remapped_rows_pending:
        evidence = (fact("nvmlDeviceGetTotalEccErrors(volatile)", errors),)
        yield failed(f"{errors} uncorrectable memory errors since the driver was loaded", RESET, evidence=evidence)


NvmlRule = Callable[[GpuNvml, Scope], Verdicts]


def _check_of_gpus(check_id: str, *guards: Guard) -> Callable[[NvmlRule], Check]:
    """Return a decorator that turns a rule for NVML's data of one GPU into a check."""

    def decorate(rule: NvmlRule) -> Check:
        def judge(_machine: Machine, scope: Scope, gpu: Gpu) -> Verdicts:
            return rule(gpu.nvml, scope) if gpu.nvml else iter(())

        return check_gpus(check_id, *guards)(judge)

    return decorate


@_check_of_gpus("gpu.throttle", Guard.PERF)
def _throttle(nvml: GpuNvml, _scope: Scope) -> Verdicts:
    reasons, temperature = nvml.throttle_reasons, nvml.temperature_c
    yield fact("nvmlDeviceGetCurrentClocksEventReasons", None if reasons is None else ", ".join(reasons) or "none")
    if temperature is not None:
        yield fact(f"nvmlDeviceGetTemperature(GPU{nvml.index})", f"{temperature} C")
    if reasons is None:
        yield unreported(nvml, "throttle_reasons", "throttle reasons", "NVML does not report throttle reasons")
    elif slow := [SLOWDOWNS[reason] for reason in reasons if reason in SLOWDOWNS]:
        yield warned(
            f"clocks throttled: {'; '.join(slow)}",
            todo("Check fans, coolant and power supplies.", look=f"nvidia-smi -i {GPUS} -q -d PERFORMANCE,TEMPERATURE"),
        )
    elif held := _held_by_power(nvml):
        yield warned(held, _POWER)
    else:
        yield passed("clocks are not throttled by heat or power supplies")


_POWER = todo(
    "Compare its power limit and draw with those of the other GPUs; then look at its power cables, the power supplies "
    "and the power policy of the board's controller (BMC).",
    look=f"nvidia-smi -i {GPUS} -q -d POWER",
)
_LOW_CLOCK = 0.5
"""The share of the maximum clock below which a power cap is a fault. Our choice; no measurement supports it yet."""


def _held_by_power(nvml: GpuNvml) -> str:
    """Return that the power cap holds a GPU below half of its clock, which no load does by itself; else ``""``."""
    clock, most = nvml.sm_clock_mhz, nvml.sm_clock_max_mhz
    capped = "sw-power-cap" in (nvml.throttle_reasons or ())
    if not capped or clock is None or not most or clock >= _LOW_CLOCK * most:
        return ""
    limit = "" if nvml.power_limit_mw is None else f" ({_watts(nvml.power_limit_mw)})"
    return f"the power cap{limit} holds its clock at {clock} of {most} MHz"


_MOST_POWER_MW = 99_999_000
"""The highest limit that goes into a command: a recorded machine can state any number."""


def _watts(milliwatts: int | None) -> str | None:
    return None if milliwatts is None else f"{milliwatts / 1000:g} W"


@_check_of_gpus("gpu.power-limit", Guard.PERF)
def _power_limit(nvml: GpuNvml, _scope: Scope) -> Verdicts:
    limit, default = nvml.power_limit_mw, nvml.power_limit_default_mw
    yield fact(f"nvmlDeviceGetEnforcedPowerLimit(GPU{nvml.index})", _watts(limit))
    yield fact(f"nvmlDeviceGetPowerManagementDefaultLimit(GPU{nvml.index})", _watts(default))
    if limit is None or default is None:
        names = ("power_limit_mw", "power_limit_default_mw")
        reasons = {nvml.reason_of(name) for name in names if getattr(nvml, name) is None}
        if Reason.NOT_STATED in reasons:
            yield skipped("recorded without the power limit")
            return
        yield unreported(
            nvml, "power_limit_mw" if limit is None else "power_limit_default_mw", "the power limit", "no power limit"
        )
    elif limit < default:
        lower = f"the power limit is {_watts(limit)}, below its default of {_watts(default)}"
        note = "a full load runs at lower clocks; a lower limit may be intended"
        command = f"nvidia-smi -i {GPUS} -pl {default // 1000}" if default <= _MOST_POWER_MW else None
        restore = as_root("Where it is not intended, set the default.", run=command)
        yield noted(lower, note=note, remedy=restore)
    else:
        yield passed(f"the power limit is {_watts(limit)}, not below its default")


SHARING = (Guard.P2P, Guard.IPC, Guard.EGM)
_NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE (cuda.h)."""
_INSTANCES = as_root(
    "Create an instance on each of these GPUs (nvidia-smi mig -cgi PROFILE -C), or turn MIG off.",
    Need.IDLE_GPUS,
    look="nvidia-smi -L",
    run=f"nvidia-smi -i {GPUS} -mig 0",
)


@check_gpus("gpu.mig", *SHARING)
def _mig(machine: Machine, _scope: Scope, gpu: Gpu) -> Verdicts:
    nvml = gpu.nvml
    if nvml is None:
        return
    mode, pending = nvml.mig_mode, nvml.mig_mode_pending
    yield fact("nvmlDeviceGetMigMode", f"current {_on(mode)}, pending {_on(pending)}")
    # MIG guide: instances and whatever uses them must be gone; Ampere also resets the GPU.
    disable = as_root(
        "Where these GPUs are to work together, turn MIG off: that destroys its instances.",
        Need.IDLE_GPUS,
        look=f"nvidia-smi -i {GPUS} -q",
        run=f"nvidia-smi -i {GPUS} -mig 0",
    )
    if mode is None:
        yield unreported(nvml, "mig_mode", "MIG", "these GPUs do not support MIG")
    elif mode and (failure := cuda_failure(machine)) is not None and failure.number == _NO_DEVICE:
        cause = "CUDA finds no device (100): in MIG mode it lists instances instead of the GPU"
        yield failed("MIG is on, and there is no instance that this process may use", _INSTANCES, cause=cause)
    elif mode:
        no_peers = "MIG is on: no P2P, no CUDA IPC and no remote EGM between GPUs"
        note = "instances are a choice; --for p2p, ipc or egm makes that a fault"
        yield noted(no_peers, note=note, remedy=disable, blocks=SHARING)
    elif pending is None:
        yield unreported(nvml, "mig_mode_pending", "the MIG mode after the next reset", "MIG is off")
    elif pending:
        yield warned("MIG will be on after the next reset of the GPU", disable)
    else:
        yield passed("MIG is off")


def _on(value: bool | None) -> str:
    if value is None:
        return "not read"
    return "on" if value else "off"


@check("gpu.cc-mode", Guard.P2P, Guard.RDMA, sections=("driver",))
def _confidential(machine: Machine, _scope: Scope) -> Verdicts:
    driver = machine.driver or Driver()
    mode = driver.confidential_compute
    yield fact("nvmlSystemGetConfComputeSettings", mode)
    if mode is None and not gap(driver, "confidential_compute"):
        yield skipped("this driver does not support confidential computing")
    elif mode is None:
        yield unknown("NVML does not report whether confidential computing is on")
    elif mode == "off":
        yield passed("confidential computing is off")
    elif driver.confidential_ready is False:
        yield fact("nvmlSystemGetConfComputeGpusReadyState", "not accepting work")
        yield failed(
            "under confidential computing the GPUs do not accept work yet: CUDA ends with "
            "CUDA_ERROR_SYSTEM_NOT_READY (802)",
            as_root("Attest the GPUs, then set their ready state.", run="nvidia-smi conf-compute -srs 1"),
        )
    elif driver.confidential_ready is None and gap(driver, "confidential_ready", newer=True):
        yield unknown("NVML does not report whether the GPUs accept work under confidential computing")
    elif mode == "on":
        yield warned(
            "confidential computing is on for single GPUs: no P2P, no GPUDirect RDMA",
            as_root("Set its multi-GPU mode, or turn confidential computing off.", Need.REBOOT),
            blocks=(Guard.P2P, Guard.RDMA),
        )
    else:
        note = "transfers are encrypted and slower"
        yield passed("confidential computing is on for several GPUs together", note=note)


@_check_of_gpus("gpu.vgpu", Guard.P2P, Guard.FABRIC)
def _vgpu(nvml: GpuNvml, _scope: Scope) -> Verdicts:
    mode = nvml.virtualization
    yield fact("nvmlDeviceGetVirtualizationMode", mode)
    if mode is None:
        yield unreported(nvml, "virtualization", "virtualisation", "no virtualisation mode")
    elif mode == "vgpu":
        remedy = todo("Pass physical GPUs through to the virtual machine, or use time-sliced profiles with NVLink.")
        profiles = "these are vGPUs: their profiles decide whether P2P and fabric handles work"
        yield warned(profiles, remedy, cause="MIG-backed profiles have no P2P, and none has it over PCIe")
    else:
        yield passed("physical GPUs", note="passed through to this virtual machine" if mode == "passthrough" else "")


@_check_of_gpus("gpu.compute-mode", Guard.IPC)
def _compute_mode(nvml: GpuNvml, _scope: Scope) -> Verdicts:
    mode = nvml.compute_mode
    yield fact("nvmlDeviceGetComputeMode", mode)
    restore = as_root("Set the mode back to default.", run=f"nvidia-smi -i {GPUS} -c DEFAULT")
    if mode == "prohibited":
        yield failed("no process may use these GPUs with CUDA", restore)
    elif mode in ("exclusive-process", "exclusive-thread"):
        one_process = (
            f"compute mode {mode}: one process at a time may use each GPU, so two ranks can neither share it nor "
            "import from it"
        )
        yield warned(
            one_process, restore, cause="an import needs a context on the owner's GPU; with MPS the server has it"
        )
    elif mode == "default":
        yield passed("compute mode allows any number of processes")
    else:
        yield unreported(nvml, "compute_mode", "the compute mode", "no compute mode")


@_check_of_gpus("gpu.persistence", Guard.PERF)
def _persistence(nvml: GpuNvml, _scope: Scope) -> Verdicts:
    mode = nvml.persistence_mode
    yield fact("nvmlDeviceGetPersistenceMode", _on(mode))
    if mode is None:
        yield unreported(nvml, "persistence_mode", "persistence mode", "no persistence mode here")
    elif mode:
        yield passed("persistence mode is on")
    else:
        remedy = as_root("Run nvidia-persistenced, or set the mode.", run=f"nvidia-smi -i {GPUS} -pm 1")
        yield warned("persistence mode is off: each first use takes seconds and drops the GPU's settings", remedy)
