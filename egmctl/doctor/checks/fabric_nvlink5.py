"""How a node reaches the switches of its NVLink 5 fabric: kernel modules, a subnet manager and a NIC that is none."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.check import Check, failed, passed, skipped, unknown
from egmctl.doctor.scope import Scope
from egmctl.doctor.situation import fabric, manages_nvlink5, services_hidden, virtual
from egmctl.model.finding import Evidence, Finding, Guard, Remedy
from egmctl.model.machine import Machine, System

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
    Check(
        id="fabric.management",
        title="the NVLink 5 switches are reachable",
        guards=(Guard.FABRIC, Guard.P2P),
        sections=("gpus", "system"),
        judge=_management,
        why="On HGX B200 and newer the NVLink switches are reached through a ConnectX-7 on the board, by ib_umad and "
        "the subnet manager nvlsm. If one of these is missing the GPUs look healthy, their fabric stays in progress "
        f"forever, and CUDA ends with 802 ({_SOURCE}).",
        read="/sys/module, the names of running processes, and as root the Vital Product Data of each ConnectX-7: "
        "SW_MNG marks management devices, which topo, bench and rdma.* leave out. Without root they look like NICs.",
        fix="modprobe -a mlx5_ib ib_umad, install nvlsm, restart nvidia-fabricmanager, then reset the GPUs.",
    ),
)
