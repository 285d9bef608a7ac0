"""The EGM platform that a machine is, and whether its GPUs' C2C and EGM are in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from egmctl.compat import StrEnum
from egmctl.model.gpu import Gpu
from egmctl.model.host import Driver
from egmctl.model.machine import Machine
from egmctl.model.record import Reason
from egmctl.topology.access import obstacle, without_nvml
from egmctl.units import gpu_name


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
    if nvml is not None and (nvml.c2c_enabled is False or nvml.reason_of("c2c_enabled") is Reason.NOT_SUPPORTED):
        return C2c.ABSENT
    on_x86 = machine.host is not None and machine.host.architecture == "x86_64"
    return C2c.ABSENT if on_x86 or (nvml is None and "RTX" in (gpu.name or "")) else C2c.UNKNOWN


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
        reason = gpu.nvml.reason_of("capabilities")
        if reason is Reason.DRIVER_TOO_OLD:
            return Egm(None, "NVML is too old for nvmlDeviceGetCapabilities")
        return Egm(None, f"nvmlDeviceGetCapabilities did not answer ({reason.value if reason else 'no reason given'})")
    if state is C2c.UNKNOWN:
        return Egm(None, "NVML does not report the state of NVLink-C2C")
    return Egm(True)


class MemoryMode(StrEnum):
    """How the memory of coherent GPUs is managed."""

    NUMA = "numa"
    """Each GPU's memory is a NUMA node of the kernel: the driver's default."""
    CDMM = "cdmm"
    """Coherent Driver-based Memory Management: it is no node, the driver alone manages it."""
    UNKNOWN = "unknown"


PARAMETERS = ("CoherentGPUMemoryMode", "EnableUserNUMAManagement")
"""The module parameters that decide, as ``/proc/driver/nvidia/params`` names them."""


def memory_mode(machine: Machine) -> MemoryMode:
    """Return how the driver was told to manage coherent memory.

    ``CoherentGPUMemoryMode=driver`` turns CDMM on, from driver 580.65.06 on; ``EnableUserNUMAManagement=0`` does so by
    itself, in older drivers too (open-gpu-kernel-modules 595.45.04, ``os-registry.c``). Where the parameters cannot be
    read (a container may hide them), a GPU whose memory is a NUMA node still tells.
    """
    parameters = (machine.driver or Driver()).module_parameters
    if parameters is None:
        with_node = any(own_node(gpu) is not None for gpu in machine.gpus or ())
        return MemoryMode.NUMA if with_node else MemoryMode.UNKNOWN
    values = {name: parameters.get(name, "").strip('"') for name in PARAMETERS}
    by_driver = values["CoherentGPUMemoryMode"] == "driver" or values["EnableUserNUMAManagement"] == "0"
    return MemoryMode.CDMM if by_driver else MemoryMode.NUMA


def own_node(gpu: Gpu) -> int | None:
    """Return the NUMA node of a GPU's own memory, ``None`` where it is none or not known."""
    candidates = (gpu.nvml.numa_node if gpu.nvml else None, gpu.proc.numa_node if gpu.proc else None)
    return next((node for node in candidates if node is not None and node >= 0), None)


class PlatformKind(StrEnum):
    """The platforms of the CUDA C++ Programming Guide's chapter on EGM, and the two other answers."""

    SINGLE_GPU = "single-node-single-gpu"
    MULTI_GPU = "single-node-multi-gpu"
    MULTI_NODE = "multi-node"
    NO_EGM = "no-egm"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PlatformVerdict:
    """The platform and the one line that says it."""

    kind: PlatformKind
    line: str
    clique_id: int | None = None
    """The NVLink domain's clique, for a multi-node domain."""
    what: str = ""
    """The GPUs and the CPUs' architecture."""
    cause: str = ""
    """Why there is no EGM, or why that is unknown."""
    able: int = 0
    """How many GPUs have EGM."""


def platform(machine: Machine) -> PlatformVerdict:
    """Judge the platform from all of the node's GPUs."""
    gpus = machine.gpus or ()
    if not gpus:
        return PlatformVerdict(PlatformKind.NO_EGM, "no EGM: no NVIDIA GPU", what="no NVIDIA GPU")
    answers = [egm(machine, gpu) for gpu in gpus]
    able = sum(answer.able is True for answer in answers)
    clique = _clique(machine)
    domain = "" if clique is None else f"multi-node NVLink domain (clique {clique})"
    what = _what(machine, gpus)
    if able == 0:
        kind, words = PlatformKind.NO_EGM, "no EGM"
        if any(answer.able is None for answer in answers):
            kind, words = PlatformKind.UNKNOWN, "EGM unknown"
            answers = [answer for answer in answers if answer.able is None]
        causes = "; ".join(dict.fromkeys(answer.cause for answer in answers))
        line = f"{words}: {what}, {causes}"
        return PlatformVerdict(kind, f"{line}; {domain}" if domain else line, clique, what, causes)
    line = what if able == len(gpus) else f"{what}, EGM on {able} of {len(gpus)} GPUs"
    kind, words = PlatformKind.MULTI_GPU, "single-node multi-GPU"
    if domain:
        kind, words = PlatformKind.MULTI_NODE, domain
    elif len(gpus) == 1:
        kind, words = PlatformKind.SINGLE_GPU, "single-node single-GPU"
    return PlatformVerdict(kind, f"EGM, {words}: {line}", clique, what, able=able)


def _clique(machine: Machine) -> int | None:
    """Return the clique id of a multi-node NVLink domain, ``None`` where the fabric is of one node or not ready."""
    for gpu in machine.gpus or ():
        fabric = gpu.nvml.fabric if gpu.nvml else None
        if fabric and fabric.state == "completed" and multi_node(machine, gpu):
            return fabric.clique_id
    return None


def _what(machine: Machine, gpus: Sequence[Gpu]) -> str:
    """Name the GPUs and the CPUs' architecture: ``4 NVIDIA GB200 on aarch64``."""
    names = Counter(gpu.name for gpu in gpus)
    parts = " and ".join(f"{count} {gpu_name(name, count)}" for name, count in names.items())
    architecture = machine.host.architecture if machine.host else None
    return f"{parts} on {architecture}" if architecture else parts
