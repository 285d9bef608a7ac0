"""What one GPU can offer to a route: its NVLink-C2C and its EGM bit."""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.compat import StrEnum
from egmctl.model.machine import Gpu, Machine, Reason
from egmctl.topology.access import obstacle, without_nvml


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
    package or board with an Arm CPU. So does a name of the RTX line, whose parts are cards on PCIe.
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
    if nvml is None and "RTX" in (gpu.name or ""):
        return C2c.ABSENT
    return C2c.UNKNOWN


def multi_node(machine: Machine, gpu: Gpu) -> bool:
    """Say whether a GPU is in a multi-node NVLink domain.

    Its fabric has a cluster UUID then. HGX H100 boards show one too (https://github.com/meta-pytorch/torchcomms,
    issue 1315), so it also takes NVLink-C2C, or a slot in a rack that the platform names.
    """
    nvml = gpu.nvml
    if nvml is None or nvml.fabric is None or not nvml.fabric.has_cluster:
        return False
    return c2c(machine, gpu) is not C2c.ABSENT or bool(nvml.platform and nvml.platform.slot)


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
    if gpu.nvml is None:
        return Egm(None, without_nvml(machine, "it"))
    bit = gpu.nvml.egm_capable
    if bit is False:
        return Egm(False, "the EGM capability bit is clear")
    if bit is None:
        reason = _reason(gpu, "capabilities")
        if reason is Reason.DRIVER_TOO_OLD:
            return Egm(None, "NVML is too old for nvmlDeviceGetCapabilities")
        return Egm(None, f"nvmlDeviceGetCapabilities did not answer ({reason.value if reason else 'no reason given'})")
    if state is C2c.UNKNOWN:
        return Egm(None, "NVML does not report the state of NVLink-C2C")
    return Egm(True)


def _reason(gpu: Gpu, name: str) -> Reason | None:
    unread = gpu.nvml.unread.get(name) if gpu.nvml else None
    return unread.reason if unread else None
