"""The modes of GPUs that keep them from working with each other, or make a first use wait."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.check import Check, failed, passed, skipped, unknown, unreported, warned
from egmctl.doctor.scope import Scope
from egmctl.doctor.situation import NO_GPU, by_value, usable
from egmctl.model.finding import Evidence, Finding, Guard, Remedy, on_gpus
from egmctl.model.machine import Driver, Machine

SHARING = (Guard.P2P, Guard.IPC, Guard.EGM)


def _mig(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = usable(machine, scope.gpus_of(machine))
    if not gpus:
        yield skipped(NO_GPU)
    for (mode, pending), group in by_value(
        gpus, lambda gpu: (gpu.nvml.mig_mode, gpu.nvml.mig_mode_pending) if gpu.nvml else (None, None)
    ):
        evidence = (Evidence(source="nvmlDeviceGetMigMode", value=f"current {_on(mode)}, pending {_on(pending)}"),)
        off = Remedy(
            text="Turn MIG off if GPUs work together, then reset them.",
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
        elif mode is False and pending is None:
            yield unreported(group, "mig_mode_pending", "the MIG mode after the next reset", "MIG is off")
        elif mode is False:
            yield passed("MIG is off", place=on_gpus(group), evidence=evidence)
        else:
            yield unreported(group, "mig_mode", "MIG", "these GPUs do not support MIG")


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


def _vgpu(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = usable(machine, scope.gpus_of(machine))
    if not gpus:
        yield skipped(NO_GPU)
    for mode, group in by_value(gpus, lambda gpu: gpu.nvml.virtualization if gpu.nvml else None):
        evidence = (Evidence(source="nvmlDeviceGetVirtualizationMode", value=mode or "not read"),)
        if mode == "vgpu":
            yield warned(
                "these are vGPUs: their profiles decide whether P2P and fabric handles work",
                Remedy(
                    text="Pass physical GPUs through to the virtual machine, or use time-sliced profiles with NVLink."
                ),
                place=on_gpus(group),
                evidence=evidence,
                cause="MIG-backed profiles have no P2P, and none has it over PCIe (NVIDIA vGPU user guide)",
            )
        elif mode is None:
            yield unreported(group, "virtualization", "virtualisation", "no virtualisation mode")
        else:
            note = "passed through to this virtual machine" if mode == "passthrough" else ""
            yield passed("physical GPUs", place=on_gpus(group), evidence=evidence, note=note)


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
                "one process at a time may use each GPU: two ranks cannot share a GPU, nor import each other's memory",
                back,
                place=on_gpus(group),
                evidence=evidence,
                cause="a process that opens another's memory needs a context on that GPU too; with MPS the server has "
                "it",
            )
        elif mode == "default":
            yield passed("compute mode allows any number of processes", place=on_gpus(group), evidence=evidence)
        else:
            yield unreported(group, "compute_mode", "the compute mode", "no compute mode")


def _persistence(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = usable(machine, scope.gpus_of(machine))
    if not gpus:
        yield skipped(NO_GPU)
    for mode, group in by_value(gpus, lambda gpu: gpu.nvml.persistence_mode if gpu.nvml else None):
        evidence = (Evidence(source="nvmlDeviceGetPersistenceMode", value=_on(mode)),)
        if mode:
            yield passed("persistence mode is on", place=on_gpus(group), evidence=evidence)
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
            yield unreported(group, "persistence_mode", "persistence mode", "no persistence mode here")


CHECKS = (
    Check(
        id="gpu.mig",
        title="MIG is off",
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
        title="confidential computing allows P2P",
        guards=(Guard.P2P, Guard.RDMA),
        sections=("driver",),
        judge=_confidential,
        why="Under confidential computing a GPU communicates with its own virtual machine only, unless a multi-GPU "
        "mode is set (NVIDIA confidential computing deployment guide).",
        read="nvmlSystemGetConfComputeSettings.",
        fix="Choose the multi-GPU mode, or turn confidential computing off.",
    ),
    Check(
        id="gpu.vgpu",
        title="GPUs are physical, not vGPUs",
        guards=(Guard.P2P, Guard.FABRIC),
        sections=("gpus",),
        judge=_vgpu,
        why="Virtual GPUs have P2P over NVLink only with some profiles, and none over PCIe (NVIDIA vGPU user guide).",
        read="nvmlDeviceGetVirtualizationMode.",
        fix="Pass physical GPUs through to the virtual machine.",
    ),
    Check(
        id="gpu.compute-mode",
        title="compute mode allows several processes",
        guards=(Guard.IPC,),
        sections=("gpus",),
        judge=_compute_mode,
        why="In an exclusive mode a second process gets no context on the GPU, which ranks that share memory need. In "
        "prohibited mode no process gets one.",
        read="nvmlDeviceGetComputeMode.",
        fix="nvidia-smi -c DEFAULT, or run MPS.",
    ),
    Check(
        id="gpu.persistence",
        title="persistence mode is on",
        guards=(Guard.PERF,),
        sections=("gpus",),
        judge=_persistence,
        why="Without it the driver shuts a GPU down when its last client leaves: the next one waits seconds, and "
        "clocks and modes are lost (NVIDIA driver persistence documentation).",
        read="nvmlDeviceGetPersistenceMode.",
        fix="Enable nvidia-persistenced.",
    ),
)
