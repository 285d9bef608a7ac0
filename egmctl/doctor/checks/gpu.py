"""The GPUs themselves: their health, and the modes that keep them from working with each other."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.check import Check, failed, passed, skipped, unknown, warned
from egmctl.doctor.scope import Scope
from egmctl.doctor.situation import NO_GPU, by_value, usable
from egmctl.model.finding import Evidence, Finding, Guard, Remedy, on_gpus
from egmctl.model.machine import Driver, Gpu, GpuNvml, Machine

SHARING = (Guard.P2P, Guard.IPC, Guard.EGM)

RECOVERY = {
    "gpu-reset": ("reset of the GPU", "Drain the node and reset the GPU.", False),
    "node-reboot": ("reboot of the node", "Drain the node and reboot it.", True),
    "drain-p2p": (
        "stop of the work that uses it as a peer",
        "Drain the work that reaches this GPU from others.",
        False,
    ),
    "drain-and-reset": (
        "drain of the node, then a reset",
        "Let the work finish, take no more, then reset the GPU.",
        False,
    ),
    "recover-imex-domain": ("recovery of the IMEX domain", "Restart nvidia-imex on the domain's nodes.", False),
    "bus-reset": ("reset of the bus", "Drain the node and reset the GPU's bus, or reboot.", True),
    "system-reboot": ("reboot of the system", "Drain the node and reboot it.", True),
}
"""Of NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: what is asked for, how it is done, whether it needs a reboot."""

SLOWDOWNS = {
    "hw-slowdown": "the hardware slows the clocks down (heat or power)",
    "hw-thermal-slowdown": "it is too hot",
    "sw-thermal-slowdown": "it is too warm",
    "hw-power-brake-slowdown": "the power supply asks for less",
}
"""Clocks event reasons that stand for a fault of cooling or power; a power cap under load is none."""


def _health(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = usable(machine, scope.gpus_of(machine))
    if not gpus:
        yield skipped(NO_GPU)
        return
    good = []
    for gpu in gpus:
        found = list(_faults(gpu, gpu.nvml or GpuNvml(index=gpu.index)))
        yield from found
        if not found:
            good.append(gpu)
    told = [
        gpu
        for gpu in good
        if gpu.nvml and not (gpu.nvml.recovery_action is None and gpu.nvml.remapped_rows_failure is None)
    ]
    untold = [gpu for gpu in good if gpu not in told]
    if told:
        yield passed("no uncorrected error, no row to be remapped, no recovery asked for", place=on_gpus(told))
    if untold:
        yield unknown("NVML tells neither remapped rows nor a recovery action", place=on_gpus(untold))


def _faults(gpu: Gpu, nvml: GpuNvml) -> Iterator[Finding]:
    place = on_gpus([gpu])
    reset = Remedy(
        text="Drain the node and reset the GPU; if the errors come again, have it replaced.",
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
            evidence=(Evidence(source="NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", value=action),),
        )
    if nvml.remapped_rows_failure:
        yield failed(
            "a row of the GPU's memory could not be remapped",
            Remedy(text="Have the GPU replaced.", command="nvidia-smi -q -d ROW_REMAPPER"),
            place=place,
            evidence=(Evidence(source="nvmlDeviceGetRemappedRows", value="failure occurred"),),
        )
    elif nvml.remapped_rows_pending:
        yield warned(
            "rows of the GPU's memory wait for a reset to be remapped",
            reset,
            place=place,
            evidence=(Evidence(source="nvmlDeviceGetRemappedRows", value="remapping pending"),),
            cause="an uncorrectable error was found; until the reset it may be met again",
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


def _mig(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = usable(machine, scope.gpus_of(machine))
    if not gpus:
        yield skipped(NO_GPU)
    for (mode, pending), group in by_value(
        gpus, lambda gpu: (gpu.nvml.mig_mode, gpu.nvml.mig_mode_pending) if gpu.nvml else (None, None)
    ):
        evidence = (Evidence(source="nvmlDeviceGetMigMode", value=f"current {_on(mode)}, pending {_on(pending)}"),)
        off = Remedy(
            text="Turn MIG off where GPUs are to work together, then reset them.",
            command="nvidia-smi -mig 0",
            needs_root=True,
        )
        if mode:
            asked = any(scope.asked_purpose(guard) for guard in SHARING)
            tell = failed if asked else warned
            yield tell(
                "MIG is on: no P2P, no CUDA IPC and no remote EGM between GPUs",
                off,
                place=on_gpus(group),
                evidence=evidence,
                cause="CUDA gives a process one MIG instance, which has no peers",
            )
        elif mode is False and pending:
            yield warned(
                "MIG will be on after the next reset of the GPU",
                off,
                place=on_gpus(group),
                evidence=evidence,
            )
        elif mode is False:
            yield passed("MIG is off", place=on_gpus(group), evidence=evidence)
        else:
            yield _untold(group, "mig_mode", "MIG", "these GPUs have no MIG")


def _on(value: bool | None) -> str:
    return "not read" if value is None else "on" if value else "off"


def _untold(gpus: tuple[Gpu, ...], name: str, what: str, not_supported: str) -> Finding:
    why = next((why for gpu in gpus if gpu.nvml and (why := gpu.nvml.unread.get(name))), None)
    if why is not None and why.reason.value == "not-supported":
        return skipped(not_supported, place=on_gpus(gpus))
    return unknown(f"{what}: NVML did not tell" + (f" ({why.reason.value})" if why else ""), place=on_gpus(gpus))


def _confidential(machine: Machine, scope: Scope) -> Iterator[Finding]:
    driver = machine.driver or Driver()
    mode = driver.confidential_compute
    evidence = (Evidence(source="nvmlSystemGetConfComputeSettings", value=mode or "not read"),)
    if mode == "off":
        yield passed("confidential computing is off", evidence=evidence)
    elif mode is None:
        why = driver.unread.get("confidential_compute")
        if why is not None and why.reason.value in ("not-supported", "driver-too-old"):
            yield skipped("this driver has no confidential computing", evidence=evidence)
        else:
            yield unknown("NVML does not tell whether confidential computing is on", evidence=evidence)
    elif mode == "on":
        asked = scope.asked_purpose(Guard.P2P) or scope.asked_purpose(Guard.RDMA)
        yield (failed if asked else warned)(
            "confidential computing is on for single GPUs: no P2P, no GPUDirect RDMA",
            Remedy(
                text="Set the GPUs' multi-GPU mode for confidential computing, or turn it off where it is not meant.",
                needs_root=True,
                needs_reboot=True,
            ),
            evidence=evidence,
        )
    else:
        yield passed(
            "confidential computing is on for several GPUs together",
            evidence=evidence,
            note="transfers are encrypted and slower than without",
        )


def _vgpu(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = usable(machine, scope.gpus_of(machine))
    if not gpus:
        yield skipped(NO_GPU)
    for mode, group in by_value(gpus, lambda gpu: gpu.nvml.virtualization if gpu.nvml else None):
        evidence = (Evidence(source="nvmlDeviceGetVirtualizationMode", value=mode or "not read"),)
        if mode == "vgpu":
            yield warned(
                "these are virtual GPUs: what P2P and fabric handles they have is up to their profiles",
                Remedy(text="Use whole GPUs handed into the machine, or time-sliced profiles with NVLink."),
                place=on_gpus(group),
                evidence=evidence,
                cause="MIG-backed profiles have no P2P, and none has it over PCIe (NVIDIA vGPU user guide)",
            )
        elif mode is None:
            yield _untold(group, "virtualization", "virtualisation", "no virtualisation mode")
        else:
            note = "the GPUs are handed into this virtual machine whole" if mode == "passthrough" else ""
            yield passed("whole GPUs", place=on_gpus(group), evidence=evidence, note=note)


def _compute_mode(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = usable(machine, scope.gpus_of(machine))
    if not gpus:
        yield skipped(NO_GPU)
    back = Remedy(text="Set the mode back to default.", command="nvidia-smi -c DEFAULT", needs_root=True)
    for mode, group in by_value(gpus, lambda gpu: gpu.nvml.compute_mode if gpu.nvml else None):
        evidence = (Evidence(source="nvmlDeviceGetComputeMode", value=mode or "not read"),)
        if mode == "prohibited":
            yield failed("no process may use these GPUs with CUDA", back, place=on_gpus(group), evidence=evidence)
        elif mode in ("exclusive-process", "exclusive-thread"):
            yield warned(
                "one process at a time may use each GPU: two ranks cannot share one, nor can one look at another's",
                back,
                place=on_gpus(group),
                evidence=evidence,
                cause="a process that opens another's memory needs a context on that GPU too; with MPS the server has "
                "it",
            )
        elif mode == "default":
            yield passed("any number of processes may use each GPU", place=on_gpus(group), evidence=evidence)
        else:
            yield _untold(group, "compute_mode", "the compute mode", "no compute mode")


def _persistence(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = usable(machine, scope.gpus_of(machine))
    if not gpus:
        yield skipped(NO_GPU)
    for mode, group in by_value(gpus, lambda gpu: gpu.nvml.persistence_mode if gpu.nvml else None):
        evidence = (Evidence(source="nvmlDeviceGetPersistenceMode", value=_on(mode)),)
        if mode:
            yield passed("the driver stays initialised", place=on_gpus(group), evidence=evidence)
        elif mode is False:
            yield warned(
                "persistence mode is off: each first use initialises the GPU, which takes seconds and drops its "
                "settings",
                Remedy(
                    text="Run nvidia-persistenced, or set the mode.",
                    command="nvidia-smi -pm 1",
                    needs_root=True,
                ),
                place=on_gpus(group),
                evidence=evidence,
            )
        else:
            yield _untold(group, "persistence_mode", "persistence mode", "no persistence mode here")


def _throttle(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = usable(machine, scope.gpus_of(machine))
    if not gpus:
        yield skipped(NO_GPU)
    for reasons, group in by_value(gpus, lambda gpu: gpu.nvml.throttle_reasons if gpu.nvml else None):
        evidence = (
            Evidence(source="nvmlDeviceGetCurrentClocksEventReasons", value=", ".join(reasons or ()) or "none"),
            *(
                Evidence(source=f"nvmlDeviceGetTemperature(GPU{gpu.index})", value=f"{gpu.nvml.temperature_c} C")
                for gpu in group
                if gpu.nvml and gpu.nvml.temperature_c is not None
            ),
        )
        slow = [SLOWDOWNS[reason] for reason in reasons or () if reason in SLOWDOWNS]
        if slow:
            yield warned(
                f"the clocks are held down: {'; '.join(slow)}",
                Remedy(
                    text="Look at fans, coolant and power supplies.", command="nvidia-smi -q -d PERFORMANCE,TEMPERATURE"
                ),
                place=on_gpus(group),
                evidence=evidence,
            )
        elif reasons is None:
            yield _untold(group, "throttle_reasons", "what holds the clocks down", "NVML tells no reasons here")
        else:
            yield passed(
                "neither heat nor power supplies hold the clocks down", place=on_gpus(group), evidence=evidence
            )


CHECKS = (
    Check(
        id="gpu.health",
        title="memory errors and what the driver asks for",
        guards=tuple(Guard),
        sections=("gpus",),
        judge=_health,
        why="A GPU with uncorrected errors ends jobs (Xid 48, 63, 64, 94, 95) or waits for a reset; the driver says "
        "so itself as a recovery action.",
        read="NVML: recovery action (field 230), remapped rows, uncorrected volatile ECC errors. Xids are in the "
        "kernel log, which is not read.",
        fix="Do what the driver asks for; replace a GPU whose rows cannot be remapped.",
    ),
    Check(
        id="gpu.mig",
        title="MIG",
        guards=SHARING,
        sections=("gpus",),
        judge=_mig,
        why="MIG instances have no peers: no P2P, no CUDA IPC between GPUs. EGM is routed only through a GPU that has "
        "a single instance in the process (open-gpu-kernel-modules, uvm_va_space.c).",
        read="nvmlDeviceGetMigMode, current and pending. It is a failure where --for names p2p, ipc or egm.",
        fix="nvidia-smi -mig 0, then reset the GPUs.",
    ),
    Check(
        id="gpu.cc-mode",
        title="confidential computing",
        guards=(Guard.P2P, Guard.RDMA),
        sections=("driver",),
        judge=_confidential,
        why="Under confidential computing a GPU talks to nobody but its own virtual machine, unless a mode for "
        "several GPUs is set (NVIDIA confidential computing deployment guide).",
        read="nvmlSystemGetConfComputeSettings.",
        fix="Choose the multi-GPU mode, or turn confidential computing off.",
    ),
    Check(
        id="gpu.vgpu",
        title="whole GPUs, not virtual ones",
        guards=(Guard.P2P, Guard.FABRIC),
        sections=("gpus",),
        judge=_vgpu,
        why="Virtual GPUs have P2P over NVLink only with some profiles, and none over PCIe (NVIDIA vGPU user guide).",
        read="nvmlDeviceGetVirtualizationMode.",
        fix="Hand whole GPUs into the virtual machine.",
    ),
    Check(
        id="gpu.compute-mode",
        title="compute mode",
        guards=(Guard.IPC,),
        sections=("gpus",),
        judge=_compute_mode,
        why="In an exclusive mode a second process gets no context on the GPU, which ranks that share memory need. In "
        "prohibited mode nobody gets one.",
        read="nvmlDeviceGetComputeMode.",
        fix="nvidia-smi -c DEFAULT, or run MPS.",
    ),
    Check(
        id="gpu.persistence",
        title="persistence mode",
        guards=(Guard.PERF,),
        sections=("gpus",),
        judge=_persistence,
        why="Without it the driver shuts a GPU down when its last client leaves: the next one waits seconds, and "
        "clocks and modes are lost (NVIDIA driver persistence documentation).",
        read="nvmlDeviceGetPersistenceMode.",
        fix="Enable nvidia-persistenced.",
    ),
    Check(
        id="gpu.throttle",
        title="clocks that are held down",
        guards=(Guard.PERF,),
        sections=("gpus",),
        judge=_throttle,
        why="Heat and weak power supplies cost more bandwidth than any setting.",
        read="nvmlDeviceGetCurrentClocksEventReasons at this moment. A power cap under load is ordinary and is not "
        "judged.",
        fix="Look at cooling and power.",
    ),
)
