"""The GPUs themselves: memory errors, what the driver asks for, and heat."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.check import Check, failed, gap, passed, skipped, unknown, unreported, warned
from egmctl.doctor.scope import Scope
from egmctl.doctor.situation import NO_GPU, by_value, usable
from egmctl.model.finding import Evidence, Finding, Guard, Remedy, on_gpus
from egmctl.model.machine import Gpu, GpuNvml, Machine

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
"""Of NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: what is asked for, how it is done, whether it needs a reboot."""

SLOWDOWNS = {
    "hw-slowdown": "hardware slowdown (heat or power)",
    "hw-thermal-slowdown": "hardware thermal slowdown",
    "sw-thermal-slowdown": "software thermal slowdown",
    "hw-power-brake-slowdown": "power brake (the power supply limits power)",
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
    for (read, unread), group in by_value(good, _read):
        if unread:
            yield unknown(f"NVML did not report {'; '.join(unread)}", place=on_gpus(group))
        elif read:
            yield passed(", ".join(read), place=on_gpus(group))
        else:
            yield unknown("NVML reports neither memory errors nor a recovery action", place=on_gpus(group))


_SIGNS = {
    "uncorrected errors": ("ecc_uncorrected_volatile",),
    "pending row remapping": ("remapped_rows_pending", "remapped_rows_failure"),
    "recovery action": ("recovery_action",),
}
"""What a healthy GPU has none of, and the fields of NVML that say so."""


def _read(gpu: Gpu) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return which signs of a healthy GPU were read, and which could not be, with the reasons."""
    read = (what for what, names in _SIGNS.items() if all(getattr(gpu.nvml, name) is not None for name in names))
    unread = (f"{what} ({why})" for what, names in _SIGNS.items() if (why := gap(gpu.nvml, *names)))
    return tuple(f"no {what}" for what in read), tuple(unread)


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
                f"clocks throttled: {'; '.join(slow)}",
                Remedy(
                    text="Check fans, coolant and power supplies.", command="nvidia-smi -q -d PERFORMANCE,TEMPERATURE"
                ),
                place=on_gpus(group),
                evidence=evidence,
            )
        elif reasons is None:
            yield unreported(group, "throttle_reasons", "throttle reasons", "NVML does not report throttle reasons")
        else:
            yield passed("clocks are not throttled by heat or power supplies", place=on_gpus(group), evidence=evidence)


CHECKS = (
    Check(
        id="gpu.health",
        title="no memory errors and no recovery action pending",
        guards=tuple(Guard),
        sections=("gpus",),
        judge=_health,
        why="A GPU with uncorrected errors ends jobs (Xid 48, 63, 64, 94, 95) or needs a reset; the driver reports "
        "this as a recovery action.",
        read="NVML: recovery action (field 230), remapped rows, uncorrected volatile ECC errors. kernel.xid reads the "
        "Xids.",
        fix="Do what the recovery action says; replace a GPU whose rows cannot be remapped.",
    ),
    Check(
        id="gpu.throttle",
        title="clocks are not throttled",
        guards=(Guard.PERF,),
        sections=("gpus",),
        judge=_throttle,
        why="Heat and weak power supplies cost more bandwidth than any wrong setting.",
        read="nvmlDeviceGetCurrentClocksEventReasons at this moment. A power cap under load is normal and is not "
        "judged.",
        fix="Check cooling and power.",
    ),
)
