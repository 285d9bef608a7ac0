"""What one GPU can offer to a route: whether it can be used here, its NVLink-C2C, its EGM bit."""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.compat import StrEnum
from egmctl.model.machine import Gpu, Machine, Reason


class Block(StrEnum):
    """What keeps a GPU or a NUMA node from being used."""

    OFF_THE_BUS = "off-the-bus"
    NOT_BOUND = "not-bound"
    EXCLUDED = "excluded"
    DEVICE_CGROUP = "device-cgroup"
    NOT_IN_CONTAINER = "not-in-container"
    NO_DEVICE_NODE = "no-device-node"
    NO_PERMISSION = "no-permission"
    NOT_LISTED = "not-listed"
    MEMS_ALLOWED = "mems-allowed"
    NO_MEMORY = "no-memory"
    NVLINK_DOWN = "nvlink-down"
    NO_P2P = "no-p2p"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What stands in the way, as a word and in words that follow the name of the thing and a colon."""

    block: Block
    cause: str


def obstacle(machine: Machine, gpu: Gpu) -> Obstacle | None:
    """Return why a GPU cannot be used from the process that the machine is about; ``None`` where nothing stops it.

    NVML lists exactly the GPUs whose device node it could open: it ignores CUDA_VISIBLE_DEVICES and honours the
    device cgroup. access(2) tells the cgroup (EPERM) from mode bits and security modules (EACCES); of another process
    it is all there is, as NVML's list is this process' own.
    """
    elsewhere = machine.process is not None and machine.process.pid != 0
    if gpu.nvml is not None and (not elsewhere or gpu.node is None):
        return None
    pci, node = gpu.pci, gpu.node
    minor = gpu.proc.minor if gpu.proc is not None else None
    path = node.path if node is not None else f"/dev/nvidia{minor}"
    if pci is not None and pci.responds is False:
        return Obstacle(Block.OFF_THE_BUS, "fell off the PCI bus")
    if pci is not None and pci.driver is not None and pci.driver != "nvidia":
        return Obstacle(Block.NOT_BOUND, f"bound to {pci.driver}" if pci.driver else "no kernel driver is bound")
    if gpu.proc is not None and gpu.proc.excluded:
        return Obstacle(Block.EXCLUDED, "excluded by the driver's configuration")
    if node is not None and node.access == "EPERM":
        return Obstacle(Block.DEVICE_CGROUP, f"denied by the device cgroup ({path}: EPERM)")
    if node is not None and node.access == "EACCES":
        return Obstacle(Block.NO_PERMISSION, f"denied by mode bits or a security module ({path}: EACCES)")
    if (node is not None and (not node.exists or node.access == "ENOENT")) or (node is None and minor is not None):
        if machine.process is not None and machine.process.container_signs:
            return Obstacle(Block.NOT_IN_CONTAINER, f"not passed into this container ({path}: ENOENT)")
        return Obstacle(Block.NO_DEVICE_NODE, f"no device node ({path}: ENOENT)")
    return None if gpu.nvml is not None else Obstacle(Block.NOT_LISTED, "NVML does not list it")


class C2c(StrEnum):
    """The state of a GPU's NVLink-C2C."""

    UP = "up"
    DOWN = "down"
    """The part has it, no link is active."""
    ABSENT = "absent"
    UNKNOWN = "unknown"


def c2c(machine: Machine, gpu: Gpu) -> C2c:
    """Return the state of a GPU's NVLink-C2C.

    Without an answer from NVML, x86-64 still means there is none: the GPUs that have NVLink-C2C are those on one
    package or board with an Arm CPU.
    """
    nvml = gpu.nvml
    states = [link.active for link in (nvml.c2c_links if nvml else None) or () if link.active is not None]
    if any(states) or (nvml is not None and nvml.c2c_enabled):
        return C2c.UP
    if states:
        return C2c.DOWN
    if nvml is not None and (nvml.c2c_enabled is False or _reason(gpu, "c2c_enabled") is Reason.NOT_SUPPORTED):
        return C2c.ABSENT
    if machine.host is not None and machine.host.architecture == "x86_64":
        return C2c.ABSENT
    return C2c.UNKNOWN


@dataclass(frozen=True, slots=True)
class Egm:
    """Whether a GPU has EGM."""

    able: bool | None
    cause: str = ""
    """Why not, or why that is unknown."""


def egm(machine: Machine, gpu: Gpu) -> Egm:
    """Return whether a GPU has EGM.

    The driver sets the capability bit only if C2C is up, the firmware has set EGM memory aside (ACPI
    ``nvidia,egm-*``) and the routes could be programmed; so the bit is the answer wherever C2C is up.
    """
    state = c2c(machine, gpu)
    if state is C2c.ABSENT:
        return Egm(False, "no NVLink-C2C")
    if state is C2c.DOWN:
        return Egm(False, "NVLink-C2C is down")
    stopped = obstacle(machine, gpu)
    if stopped is not None:
        return Egm(None, stopped.cause)
    bit = gpu.nvml.egm_capable if gpu.nvml else None
    if bit is False:
        return Egm(False, "the EGM capability bit is clear")
    if bit is None:
        reason = _reason(gpu, "capabilities")
        if reason is Reason.DRIVER_TOO_OLD:
            return Egm(None, "NVML is too old for nvmlDeviceGetCapabilities")
        return Egm(None, f"nvmlDeviceGetCapabilities did not answer ({reason.value if reason else 'no reason given'})")
    if state is C2c.UNKNOWN:
        return Egm(None, "NVML does not tell the state of NVLink-C2C")
    return Egm(True)


def _reason(gpu: Gpu, name: str) -> Reason | None:
    unread = gpu.nvml.unread.get(name) if gpu.nvml else None
    return unread.reason if unread else None
