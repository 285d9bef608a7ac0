"""The NVLink fabric: is every GPU registered and healthy in it, do they agree, and does its manager run?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from egmctl.doctor.check import Check, Scope, failed, gap, needing, passed, skipped, unknown, warned
from egmctl.doctor.situation import (
    by_value,
    coherent,
    fabric,
    in_domain,
    judged,
    kept_away,
    manages_nvlink5,
    needs_gpu,
    services_hidden,
    usable,
    virtual,
)
from egmctl.model.finding import Evidence, Finding, Guard, Remedy, on_gpus
from egmctl.model.machine import Driver, Fabric, Gpu, Machine, Reason, System

INFO = "nvmlDeviceGetGpuFabricInfoV"
NO_FABRIC = "the GPUs are in no fabric"
BOOT_GRACE_S = 300
"""How long after boot a fabric may still be coming up (NVSentinel, fabric-manager-monitor)."""

MASK = {
    "route_unhealthy": ("true", True, "a route through the fabric is unhealthy"),
    "degraded_bandwidth": ("true", False, "the fabric has less than its bandwidth"),
    "route_recovery": ("true", False, "a route through the fabric is being recovered"),
    "access_timeout_recovery": ("true", False, "the fabric is recovering from an access timeout"),
    "fabric_manager": ("disconnected", True, "the fabric manager is disconnected"),
}
"""Fields of the health mask: the word that is a fault, whether it stops work, and what it means (nvml.h)."""

CONFIGURATION = {
    "system-guid": "the system GUID is wrong",
    "chassis-serial": "the chassis serial number is wrong",
    "no-partition": "the GPU is in no partition",
    "insufficient-nvlinks": "too few NVLinks are up",
    "incompatible-gpu-firmware": "the GPU firmware does not match",
    "invalid-location": "the GPU's position is wrong",
    "gpu-state-invalid": "the GPU's state is invalid",
}
"""Values of the mask's field ``incorrect_configuration``."""

MANAGER = Remedy(
    text="Start the fabric manager of the driver's version, and read its log.",
    command="systemctl status nvidia-fabricmanager",
    needs_root=True,
)


RACK_MANAGER = Remedy(
    text="Look at the rack's fabric manager (NMX-C on its switch trays): the tray's GPUs must be in a partition. "
    "Nothing on this node registers them.",
    command="nvidia-smi -q | grep -A12 Fabric",
)
NVLINK5_MANAGER = Remedy(
    text="See fabric.management and fabric.manager, restart nvidia-fabricmanager and read its log; with a "
    "partition mode (FABRIC_MODE=1), activate a partition. Then reset the GPUs.",
    command="systemctl status nvidia-fabricmanager",
    needs_root=True,
)


def _manager_of(machine: Machine) -> Remedy:
    """Return what to do about the manager that such a node's fabric has."""
    if coherent(machine):
        return RACK_MANAGER
    return NVLINK5_MANAGER if manages_nvlink5(machine) else MANAGER


@needing(needs_gpu)
def _state(machine: Machine, scope: Scope) -> Iterator[Finding]:
    return judged(usable(machine, scope.gpus_of(machine)), lambda gpu: _state_of(machine, gpu), on_gpus)


def _state_of(machine: Machine, gpu: Gpu) -> Finding:
    info = fabric(gpu)
    if info is None or info.state is None:
        unread = gpu.nvml.unread.get("fabric") if gpu.nvml and info is None else None
        if unread is not None and unread.reason in (Reason.NOT_SUPPORTED, Reason.DRIVER_TOO_OLD):
            return skipped(NO_FABRIC)
        reason = "no state" if info is not None else unread.reason.value if unread is not None else "no reason"
        return unknown(f"NVML does not report the state of the fabric ({reason})")
    status = "-" if info.status is None else str(info.status)
    evidence = (Evidence(source=f"{INFO}: state, status", value=f"{info.state}, {status}"),)
    if info.state == "not-supported":
        return skipped(NO_FABRIC, evidence=evidence)
    if info.state in ("not-started", "in-progress"):
        return _not_ready(machine, info.state, evidence)
    if info.status:
        ended = f"the fabric's registration ended with NVML error {info.status}"
        return failed(ended, _manager_of(machine), evidence=evidence)
    return _health(info, evidence)


def _not_ready(machine: Machine, state: str, evidence: tuple[Evidence, ...]) -> Finding:
    uptime = (machine.system or System()).uptime_s
    if uptime is not None and uptime < BOOT_GRACE_S:
        return warned(
            f"the fabric is not ready yet ({state}, {uptime:.0f} s after boot)",
            Remedy(text=f"Check again {BOOT_GRACE_S} s after boot."),
            evidence=evidence,
        )
    return failed(
        f"the fabric is not ready ({state}): CUDA ends with CUDA_ERROR_SYSTEM_NOT_READY (802)",
        _manager_of(machine),
        evidence=(*evidence, *_since_boot(machine)),
        cause="the fabric manager (on this node, or of the rack) has not registered the GPUs"
        + (f", and later than {BOOT_GRACE_S} s after boot it does not by itself" if uptime is not None else ""),
    )


def _since_boot(machine: Machine) -> Iterator[Evidence]:
    uptime, error = (machine.system or System()).uptime_s, (machine.driver or Driver()).cuda_error
    if uptime is not None:
        yield Evidence(source="/proc/uptime", value=f"{uptime:.0f} s")
    if error is not None:
        yield Evidence(source="cuInit", value=error)


def _health(info: Fabric, evidence: tuple[Evidence, ...]) -> Finding:
    health: Mapping[str, str] = info.health or {}
    faults = [(grave, words) for name, (bad, grave, words) in MASK.items() if health.get(name) == bad]
    configuration = health.get("incorrect_configuration", "none")
    if configuration not in ("none", "not-supported"):
        faults.append((True, CONFIGURATION.get(configuration, f"its configuration is wrong ({configuration})")))
    if info.health_summary in ("unhealthy", "limited-capacity"):
        grave = info.health_summary == "unhealthy"
        if not faults:
            faults.append((grave, f"its health is {info.health_summary.replace('-', ' ')}"))
        faults = [(grave or fault, words) for fault, words in faults]
    evidence = (
        *evidence,
        Evidence(source=f"{INFO}: health", value=", ".join(f"{k}={v}" for k, v in health.items()) or "not read"),
        Evidence(source=f"{INFO}: health summary", value=info.health_summary or "not read"),
    )
    if faults:
        return (failed if any(grave for grave, _ in faults) else warned)(
            f"the fabric's registration is complete, but {'; '.join(words for _, words in faults)}",
            Remedy(
                text="Check these GPUs in the fabric manager (NMX-C, or nvidia-fabricmanager's log); drain the node "
                "while a route is unhealthy.",
                command="nvidia-smi -q | grep -A12 Fabric",
            ),
            evidence=evidence,
        )
    if unread := gap(info, "status") or gap(info, "health", "health_summary", newer=True):
        return unknown(
            f"registered in the fabric, but its status or health was not read ({unread})",
            evidence=evidence,
        )
    return passed("registered in the fabric, and healthy", evidence=evidence)


def _consistency(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = usable(machine, scope.gpus_of(machine))
    complete = [gpu for gpu in gpus if (one := fabric(gpu)) and one.state == "completed"]
    unread = [gpu for gpu in gpus if gap(gpu.nvml, "fabric", newer=True)]
    unread += [gpu for gpu in complete if gap(fabric(gpu), "cluster_uuid", "clique_id", newer=True)]
    if unread:
        yield unknown("the NVLink domain or clique of these GPUs was not read", place=on_gpus(unread))
        complete = [gpu for gpu in complete if gpu not in unread]
    groups = [(found, group) for _, group in by_value(complete, _domain) if (found := fabric(group[0])) is not None]
    evidence = tuple(
        Evidence(
            source=f"{INFO}({on_gpus(group).label})",
            value=f"cluster {one.cluster_uuid or 'none'}, clique {'none' if one.clique_id is None else one.clique_id}",
        )
        for one, group in groups
    )
    if not groups and unread:
        return
    if not groups:
        yield skipped("no GPU is registered in a fabric")
    elif len(groups) > 1:
        yield failed(
            "the GPUs of this node are in different NVLink domains or cliques",
            Remedy(text="Put the tray's GPUs into one partition of the fabric manager (NMX-C), then reset them."),
            evidence=evidence,
            cause="GPUs of different cliques cannot be peers, nor import each other's fabric handles",
        )
    elif in_domain(machine):
        yield passed("all GPUs are in one clique of one NVLink domain", place=on_gpus(complete), evidence=evidence)
    else:
        yield passed(
            "the fabric is this node's own",
            place=on_gpus(complete),
            evidence=evidence,
            note="there is no multi-node NVLink here",
        )


def _domain(gpu: Gpu) -> tuple[str | None, int | None]:
    found = fabric(gpu) or Fabric()
    return found.cluster_uuid, found.clique_id


def _manager(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    system, switches = machine.system or System(), machine.switches or ()
    daemons = system.daemons
    runs = "nv-fabricmanager" in (daemons or ())
    on_board = bool(switches) or manages_nvlink5(machine)
    found = [one for gpu in machine.gpus or () if (one := fabric(gpu)) is not None]
    complete = bool(found) and all(one.state == "completed" and not one.status for one in found)
    evidence = (
        Evidence(source="NVSwitches on PCIe", value=str(len(switches))),
        Evidence(
            source="/proc/*/comm: nv-fabricmanager",
            value="not read" if daemons is None else "runs" if runs else "not seen",
        ),
    )
    if in_domain(machine) and runs:
        yield warned(
            "a fabric manager runs on a node whose fabric is managed from outside",
            Remedy(
                text="Stop it: on trays of an NVLink rack the switches' own manager does its work.",
                command="systemctl disable --now nvidia-fabricmanager",
                needs_root=True,
            ),
            evidence=evidence,
        )
    elif not on_board:
        yield skipped("this node has no NVSwitch: its fabric, if any, is managed elsewhere", evidence=evidence)
    elif runs:
        yield passed("the fabric manager runs", evidence=evidence)
    elif complete:
        yield passed("every GPU is registered in the fabric", evidence=evidence)
    elif daemons is None or services_hidden(machine):
        yield unknown("the host's processes are not visible from here", evidence=evidence)
    else:
        yield failed(
            "no fabric manager runs for this node's NVSwitches",
            Remedy(
                text="Install and start the fabric manager of exactly the driver's version.",
                command="systemctl enable --now nvidia-fabricmanager",
                needs_root=True,
            ),
            evidence=evidence,
            cause="it brings up the NVLinks; without it CUDA ends with CUDA_ERROR_SYSTEM_NOT_READY (802)",
        )


def _isolation(machine: Machine, scope: Scope) -> Iterator[Finding]:
    away = kept_away(machine)
    if not away:
        yield passed("this process can import memory of every GPU")
        return
    evidence = tuple(
        Evidence(source=f"access({gpu.node.path})", value=gpu.node.access or "not read", errno=gpu.node.access)
        for gpu in away
        if gpu.node is not None
    )
    words = f"memory of {on_gpus(away).label} cannot be imported from another process, not even by fabric handle"
    if scope.asked_purpose(Guard.FABRIC) or scope.asked_purpose(Guard.IPC):
        yield warned(
            words,
            Remedy(
                text="Give every rank all of the node's GPUs and choose with CUDA_VISIBLE_DEVICES (Slurm: "
                "--gpu-bind=none with --gpus-per-node; Kubernetes: one pod with all GPUs)."
            ),
            place=on_gpus(away),
            evidence=evidence,
            cause="measured on H200: the import fails with 801 (fabric handle), 101 (POSIX descriptor) or 1 (legacy "
            "IPC) where the device cgroup denies the owner",
        )
    else:
        yield passed("this process cannot open some GPUs", evidence=evidence, note=words)


MODULES = ("mlx5_core", "mlx5_ib", "ib_umad")
"""What the fabric manager and nvlsm need in the kernel (https://github.com/NVIDIA/gpu-driver-container)."""
SUBNET_MANAGER = "nvlsm"
_SOURCE = "https://github.com/NVIDIA/gpu-operator/issues/2781"


def _management(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    if not manages_nvlink5(machine):
        yield skipped("no NVLink 5 fabric is managed from this node")
        return
    system = machine.system or System()
    states = {found.state for gpu in machine.gpus or () if (found := fabric(gpu)) is not None}
    modules, daemons, devices = system.module_versions, system.daemons, system.nvlink_management
    missing = [name for name in MODULES if name not in (modules or {})]
    evidence = (
        Evidence(source="fabric", value=", ".join(sorted(map(str, states))) or "not read"),
        Evidence(source="/sys/module", value=_missing_words(modules is None, missing)),
        Evidence(source=f"/proc/*/comm: {SUBNET_MANAGER}", value=_daemon_words(daemons)),
        Evidence(source="management devices (SW_MNG)", value=_device_words(machine)),
    )
    if states == {"completed"}:
        yield passed("the NVLink 5 switches are reachable: every GPU is registered", evidence=evidence)
    elif virtual(machine) and not devices:
        yield skipped("in a virtual machine without management devices the host manages the switches")
    elif modules is None:
        yield unknown("the loaded kernel modules were not read", evidence=evidence)
    elif missing:
        yield failed(
            f"{' and '.join(missing)} not loaded: nothing reaches the NVLink switches",
            Remedy(
                text="Load them, now and at boot (they may be in the package linux-modules-extra), then restart the "
                "fabric manager.",
                command=f"modprobe -a {' '.join(missing)}",
                needs_root=True,
            ),
            evidence=evidence,
            cause=f"the fabric then stays in progress forever, and CUDA ends with 802 ({_SOURCE})",
        )
    elif daemons is None or services_hidden(machine):
        yield unknown("the host's processes are not visible from here", evidence=evidence)
    elif SUBNET_MANAGER not in daemons:
        yield failed(
            "nvlsm, the NVLink subnet manager, does not run",
            Remedy(
                text="Install nvlsm; the fabric manager's start script starts it. Then restart the fabric manager.",
                command="systemctl restart nvidia-fabricmanager",
                needs_root=True,
            ),
            evidence=evidence,
            cause="without it the fabric manager ends with NV_WARN_NOTHING_TO_DO "
            "(https://github.com/siderolabs/extensions/issues/717)",
        )
    elif devices and not any(port.state == "ACTIVE" for device in devices for port in device.ports):
        yield failed(
            "no port of the switches' management devices is active",
            Remedy(
                text="Check these devices and their switches; nvlsm brings their ports up.",
                command="ibstat",
                needs_root=True,
            ),
            evidence=evidence,
        )
    else:
        yield passed("the NVLink 5 switches are reachable", evidence=evidence)


def _missing_words(unread: bool, missing: list[str]) -> str:
    return "not read" if unread else f"not loaded: {', '.join(missing)}" if missing else "all loaded"


def _daemon_words(daemons: tuple[str, ...] | None) -> str:
    return "not read" if daemons is None else "runs" if SUBNET_MANAGER in daemons else "not seen"


def _device_words(machine: Machine) -> str:
    devices = (machine.system or System()).nvlink_management
    if devices is None:
        return "not read (only root can distinguish them from NICs)"
    states = [f"{device.name} {port.state or '?'}" for device in devices for port in device.ports]
    return ", ".join(states) or "none seen"


CHECKS = (
    Check("fabric.state", _state, guards=(Guard.FABRIC, Guard.P2P, Guard.EGM), sections=("gpus",)),
    Check("fabric.consistency", _consistency, guards=(Guard.FABRIC, Guard.P2P, Guard.EGM), sections=("gpus",)),
    Check("fabric.manager", _manager, guards=(Guard.FABRIC, Guard.P2P), sections=("gpus", "switches", "system")),
    Check("fabric.same-node-isolation", _isolation, guards=(Guard.FABRIC, Guard.IPC), sections=("gpus",)),
    Check("fabric.management", _management, guards=(Guard.FABRIC, Guard.P2P), sections=("gpus", "system")),
)
