"""What was set up for NVLink: bandwidth modes, of the node and of each GPU, and NVLink turned off."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.check import Check, failed, gap, passed, skipped, unknown, warned
from egmctl.doctor.checks.nvlink import NO_NVLINK
from egmctl.doctor.scope import Scope
from egmctl.doctor.situation import by_value, usable
from egmctl.model.finding import Evidence, Finding, Guard, Remedy, on_gpus
from egmctl.model.machine import Driver, Gpu, Machine
from egmctl.topology.links import nvlinks_of

FULL = Remedy(
    text="Set the mode to FULL, unless you want to save power.",
    command="nvidia-smi nvlink -sBwMode FULL",
    needs_root=True,
)
ALIKE = Remedy(
    text="Give all GPUs one mode (the fabric manager's, or NVreg_RmNvlinkBandwidth and "
    "NVreg_RmNvlinkBandwidthLinkCount in /etc/modprobe.d), then reset them.",
    command="nvidia-smi nvlink -gBwMode",
    needs_root=True,
)
OFF = "off"


def _bandwidth_mode(machine: Machine, scope: Scope) -> Iterator[Finding]:
    driver = machine.driver or Driver()
    mode = driver.nvlink_bandwidth_mode
    parameter = (driver.module_parameters or {}).get("RmNvlinkBandwidthLinkCount", "0")
    evidence = (
        Evidence(source="nvmlSystemGetNvlinkBwMode", value=mode or "not read"),
        Evidence(source="/proc/driver/nvidia/params: RmNvlinkBandwidthLinkCount", value=parameter),
    )
    if not any(nvlinks_of(gpu) for gpu in machine.gpus or ()):
        yield skipped(NO_NVLINK)
        return
    gpus = usable(machine, scope.gpus_of(machine))
    told = tuple(gpu for gpu in gpus if gpu.nvml and gpu.nvml.nvlink_bandwidth_mode)
    unread = [gpu for gpu in gpus if gpu not in told and gap(gpu.nvml, "nvlink_bandwidth_mode", newer=True)]
    if unread:
        yield unknown("NVML did not report the bandwidth mode of these GPUs", place=on_gpus(unread), evidence=evidence)
    if told:
        yield from _of_gpus(told, evidence)
    elif unread and mode in (None, "full"):
        return
    elif mode == OFF:
        yield failed("NVLink's bandwidth mode is OFF: GPUs have no P2P over NVLink", FULL, evidence=evidence)
    elif mode not in (None, "full") or parameter not in ("0", ""):
        yield warned(
            f"the NVLinks are set to less than their bandwidth ({mode or f'{parameter} links'})",
            FULL
            if mode not in (None, "full")
            else Remedy(
                text="Take NVreg_RmNvlinkBandwidthLinkCount out of /etc/modprobe.d and reload the driver.",
                needs_root=True,
            ),
            evidence=evidence,
        )
    elif mode is None:
        why = driver.unread.get("nvlink_bandwidth_mode")
        tell = skipped if why and why.reason.value in ("not-supported", "driver-too-old") else unknown
        yield tell("NVML does not report a bandwidth mode", evidence=evidence)
    elif driver.module_parameters is None:
        yield unknown("/proc/driver/nvidia/params was not read: it may leave out links", evidence=evidence)
    else:
        yield passed("the NVLinks run at full bandwidth", evidence=evidence)


def _of_gpus(gpus: tuple[Gpu, ...], evidence: tuple[Evidence, ...]) -> Iterator[Finding]:
    """Judge the modes that GPUs have each for themselves, from Blackwell on."""
    modes = [(gpu, gpu.nvml.nvlink_bandwidth_mode or "") for gpu in gpus if gpu.nvml]
    best = {gpu.bus_id: gpu.nvml.nvlink_bandwidth_best for gpu in gpus if gpu.nvml}
    found = (
        *evidence,
        *(
            Evidence(
                source=f"nvmlDeviceGetNvlinkBwMode(GPU{gpu.index})",
                value=f"{mode}{', the best it can' if best[gpu.bus_id] else ''}",
            )
            for gpu, mode in modes
        ),
    )
    if len({mode for _, mode in modes}) > 1:
        yield failed(
            "the GPUs' NVLinks are in different bandwidth modes",
            ALIKE,
            place=on_gpus(gpus),
            evidence=found,
            cause="between GPUs of different modes the driver refuses imports and multicast ('bwMode does not match', "
            "open-gpu-kernel-modules, mem_fabric_import_v2.c, mem_multicast_fabric.c)",
        )
        return
    mode_of = {gpu.bus_id: mode for gpu, mode in modes}
    for (mode, is_best), group in by_value(gpus, lambda gpu: (mode_of[gpu.bus_id], best[gpu.bus_id])):
        if mode == OFF:
            yield failed(
                "NVLink's bandwidth mode is OFF: these GPUs have no P2P over NVLink",
                ALIKE,
                place=on_gpus(group),
                evidence=found,
                cause="the driver reports that P2P is not supported, and logs nothing (open-gpu-kernel-modules, "
                "kernel_nvlink.c)",
            )
        elif mode == "full" or is_best:
            note = "" if mode == "full" else f"{mode} is the most that the GPUs and their fabric can do"
            yield passed("the NVLinks run at full bandwidth", place=on_gpus(group), evidence=found, note=note)
        else:
            yield warned(
                f"the NVLinks are set to less than their bandwidth ({mode})",
                ALIKE,
                place=on_gpus(group),
                evidence=found,
            )


def _disabled(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    parameters = (machine.driver or Driver()).module_parameters
    if parameters is None:
        yield unknown("/proc/driver/nvidia/params was not read")
        return
    value = parameters.get("NvLinkDisable", "0")
    evidence = (Evidence(source="/proc/driver/nvidia/params: NvLinkDisable", value=value),)
    if value not in ("0", ""):
        yield failed(
            "a module parameter disables NVLink",
            Remedy(
                text="Take NVreg_NvLinkDisable=1 out of /etc/modprobe.d and reload the driver.",
                needs_root=True,
                needs_reboot=True,
            ),
            evidence=evidence,
        )
    else:
        yield passed("NVLink is not disabled", evidence=evidence)


CHECKS = (
    Check(
        id="nvlink.bw-mode",
        title="NVLinks run at full bandwidth",
        guards=(Guard.PERF, Guard.P2P, Guard.FABRIC),
        sections=("gpus", "driver"),
        judge=_bandwidth_mode,
        why="From Hopper on the NVLinks of a system, from Blackwell on those of each GPU can be set to half of their "
        "bandwidth, fewer links or none, to save power. GPUs of different modes cannot import each other's memory, and "
        "with the mode OFF there is no P2P over NVLink, without a kernel log message (open-gpu-kernel-modules, "
        "mem_fabric_import_v2.c, kernel_nvlink.c).",
        read="nvmlDeviceGetNvlinkBwMode of each GPU; before Blackwell nvmlSystemGetNvlinkBwMode and the module "
        "parameter NVreg_RmNvlinkBandwidthLinkCount.",
        fix="One mode for all GPUs; nvidia-smi nvlink -sBwMode FULL as root, while no GPU is used.",
    ),
    Check(
        id="nvlink.disabled",
        title="NVLink is not disabled",
        guards=(Guard.P2P, Guard.EGM, Guard.FABRIC),
        sections=("driver",),
        judge=_disabled,
        why="With the module parameter NVreg_NvLinkDisable=1 the driver brings up no NVLink at all.",
        read="NvLinkDisable in /proc/driver/nvidia/params.",
        fix="Take the option out of /etc/modprobe.d and reload the driver.",
    ),
)
