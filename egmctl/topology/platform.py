"""The EGM platform of a machine, and the state of its GPUs' C2C and EGM."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.files import read_toml
from egmctl.model.codec import from_json
from egmctl.model.gpu import Gpu
from egmctl.model.host import Driver
from egmctl.model.machine import Machine, remembered
from egmctl.model.record import Reason
from egmctl.model.route import PublishedRate
from egmctl.topology.access import obstacle, without_nvml
from egmctl.topology.egm_mode import EgmMode, egm_mode
from egmctl.units import GIB, gpu_name


class C2c(StrEnum):
    """The state of a GPU's NVLink-C2C."""

    UP = "up"
    DOWN = "down"
    """The GPU has NVLink-C2C, but no link is active."""
    ABSENT = "absent"
    UNKNOWN = "unknown"


def c2c(machine: Machine, gpu: Gpu) -> C2c:
    """Return the state of a GPU's NVLink-C2C.

    If NVML does not report it, x86-64 implies that there is none, because only GPUs on one package or board with an Arm
    CPU have NVLink-C2C. So does a product name of the RTX line, whose GPUs are PCIe cards.
    """
    reported = _reported_c2c(gpu)
    on_x86 = machine.host is not None and machine.host.architecture == "x86_64"
    by_name = gpu.nvml is None and "RTX" in (gpu.name or "")
    return C2c.ABSENT if reported is C2c.UNKNOWN and (on_x86 or by_name) else reported


def _reported_c2c(gpu: Gpu) -> C2c:
    """Return the state of a GPU's NVLink-C2C by NVML alone."""
    nvml = gpu.nvml
    if nvml is None:
        return C2c.UNKNOWN
    states = [link.active for link in nvml.c2c_links or () if link.active is not None]
    if any(states) or nvml.c2c_enabled:
        return C2c.UP
    if states:
        return C2c.DOWN
    is_absent = nvml.c2c_enabled is False or nvml.reason_of("c2c_enabled") is Reason.NOT_SUPPORTED
    return C2c.ABSENT if is_absent else C2c.UNKNOWN


def multi_node(machine: Machine, gpu: Gpu) -> bool:
    """Return whether a GPU is in a multi-node NVLink domain.

    The fabric of such a GPU has a cluster UUID. HGX H100 boards have one too
    (https://github.com/meta-pytorch/torchcomms, issue 1315), so NVLink-C2C or a rack slot in the platform information
    is also required.
    """
    nvml = gpu.nvml
    if nvml is None or nvml.fabric is None or not nvml.fabric.has_cluster:
        return False
    return c2c(machine, gpu) is not C2c.ABSENT or bool(nvml.platform and nvml.platform.slot)


def in_rack(machine: Machine, gpu: Gpu) -> bool:
    """Return whether a GPU with a fabric is on a tray of an NVLink rack, in its domain or not.

    A tray has NVLink-C2C, and its NVLinks lead to the rack's switches. HGX boards have switches but no NVLink-C2C; on
    Grace nodes without switches the NVLinks, if any, lead from GPU to GPU (GB200 NVL4, quad GH200).
    """
    links = (gpu.nvml.nvlinks if gpu.nvml else None) or ()
    direct = bool(links) and all(link.remote_type == "gpu" for link in links)
    return c2c(machine, gpu) is not C2c.ABSENT and not direct


def in_chassis(gpu: Gpu) -> bool:
    """Return whether NVML states a slot of a chassis whose GPUs are joined by switches: a rack, whatever its fabric."""
    place = gpu.nvml.platform if gpu.nvml else None
    return place is not None and place.slot is not None and place.peer_type == "switch"


@dataclass(frozen=True, slots=True)
class EgmCapability:
    """Whether a GPU has EGM."""

    able: bool | None
    cause: str = ""
    """The reason why not, or why it is unknown."""


def egm(machine: Machine, gpu: Gpu) -> EgmCapability:
    """Return whether a GPU has EGM.

    The driver sets the capability bit only if C2C is up, the firmware has reserved EGM memory (ACPI ``nvidia,egm-*``)
    and the routes could be programmed. So if C2C is up, the bit is the answer, unless that memory is carved out for
    virtual machines.
    """
    state = c2c(machine, gpu)
    if state is C2c.ABSENT:
        return EgmCapability(False, "no NVLink-C2C")
    if state is C2c.DOWN:
        return EgmCapability(False, "NVLink-C2C is down")
    stopped = obstacle(machine, gpu)
    if stopped is not None:
        return EgmCapability(None, stopped.cause)
    if gpu.nvml is None:
        return EgmCapability(None, without_nvml(machine, "it"))
    if egm_mode(machine).mode is EgmMode.CARVED_OUT:
        return EgmCapability(False, "the firmware carves out EGM memory for virtual machines")
    bit = gpu.nvml.egm_capable
    if bit is False:
        return EgmCapability(False, "the EGM capability bit is clear")
    if bit is None:
        reason = gpu.nvml.reason_of("capabilities")
        if reason is Reason.DRIVER_TOO_OLD:
            return EgmCapability(None, "NVML is too old for nvmlDeviceGetCapabilities")
        return EgmCapability(
            None, f"nvmlDeviceGetCapabilities did not answer ({reason.value if reason else 'no reason given'})"
        )
    if state is C2c.UNKNOWN:
        return EgmCapability(None, "NVML does not report the state of NVLink-C2C")
    return EgmCapability(True)


@dataclass(frozen=True, slots=True)
class _Published:
    """One entry of ``published.toml``."""

    name: str
    gpus: tuple[str, ...]
    """Words of product names, by product, or its PCI id where the name is not known."""
    gb_s: float
    source: str
    gib: int | None = None
    """The nominal capacity of the CPU's memory."""
    c2c_links: int | None = None
    """The number of a GPU's NVLink-C2C links."""

    def fits(self, gpu: Gpu, gib: float | None) -> bool:
        """Return whether the entry is about a GPU and a CPU with ``gib`` of memory, of which firmware keeps a part."""
        words = {*(gpu.name or "").split(), f"10de:{(gpu.pci and gpu.pci.device_id) or 0:04x}"}
        links = (gpu.nvml and gpu.nvml.c2c_links) or ()
        return (
            any(words.issuperset(name.split()) for name in self.gpus)
            and (self.gib is None or (gib is not None and 0.85 * self.gib <= gib <= 1.1 * self.gib))
            and self.c2c_links in (None, len(links))
        )


@cache
def _tables() -> dict[str, tuple[_Published, ...]]:
    return {
        part: tuple(from_json(_Published, entry) for entry in entries)
        for part, entries in read_toml(Path(__file__).with_name("published.toml").read_text(encoding="utf-8")).items()
    }


def _published(part: str, gpu: Gpu | None, gib: float | None = None) -> PublishedRate | None:
    if gpu is None:
        return None
    entry = next((entry for entry in _tables()[part] if entry.fits(gpu, gib)), None)
    return None if entry is None else PublishedRate(name=entry.name, gb_s=entry.gb_s, source=entry.source)


def gpu_memory_rate(gpu: Gpu) -> PublishedRate | None:
    """Return the published rate of a GPU's own memory; ``None`` if none is known."""
    return _published("gpu_memory", gpu)


def cpu_memory_rate(machine: Machine, node: int | None) -> PublishedRate | None:
    """Return the published rate of a Grace CPU's memory, by its module and capacity; ``None`` if none is known.

    The capacity is that of the NUMA node or, if it was not read, the number in the GPU's name (NVIDIA GH200 120GB).
    """
    gpu = _coherent_gpu(machine.gpus or ())
    sizes = (n.memory_total_bytes for n in (machine.host and machine.host.numa_nodes) or () if n.id == node)
    gib = next((size / GIB for size in sizes if size), None)
    named = re.search(r"(\d+)GB$", (gpu and gpu.name) or "")
    return _published("cpu_memory", gpu, gib or (float(named[1]) if named else None))


def cpu_link(machine: Machine) -> PublishedRate | None:
    """Return the published rate of the link between two Grace CPUs, in one direction; ``None`` if none is known."""
    return _published("cpu_link", _coherent_gpu(machine.gpus or ()))


@remembered
def _coherent_gpu(gpus: tuple[Gpu, ...]) -> Gpu | None:
    """Return a GPU that NVLink-C2C connects to its CPU: all such GPUs of a machine are of one product."""
    return next((gpu for gpu in gpus if _reported_c2c(gpu) in (C2c.UP, C2c.DOWN)), None)


class MemoryMode(StrEnum):
    """The ways in which the memory of coherent GPUs is managed."""

    NUMA = "numa"
    """Each GPU's memory is a NUMA node of the kernel. This is the driver's default."""
    CDMM = "cdmm"
    """Coherent Driver-based Memory Management: only the driver manages the memory, which is no NUMA node."""
    UNKNOWN = "unknown"


PARAMETERS = ("CoherentGPUMemoryMode", "EnableUserNUMAManagement")
"""The module parameters that select the mode, as ``/proc/driver/nvidia/params`` names them."""


def memory_mode(machine: Machine) -> MemoryMode:
    """Return the configured management of coherent memory.

    ``CoherentGPUMemoryMode=driver`` enables CDMM from driver 580.65.06 on; ``EnableUserNUMAManagement=0`` does so too,
    also in older drivers (open-gpu-kernel-modules 595.45.04, ``os-registry.c``). If the parameters cannot be read (a
    container may hide them), a GPU whose memory is a NUMA node implies ``NUMA``.
    """
    parameters = (machine.driver or Driver()).module_parameters
    if parameters is None:
        with_node = any(own_node(gpu) is not None for gpu in machine.gpus or ())
        return MemoryMode.NUMA if with_node else MemoryMode.UNKNOWN
    values = {name: parameters.get(name, "").strip('"') for name in PARAMETERS}
    by_driver = values["CoherentGPUMemoryMode"] == "driver" or values["EnableUserNUMAManagement"] == "0"
    return MemoryMode.CDMM if by_driver else MemoryMode.NUMA


def own_node(gpu: Gpu) -> int | None:
    """Return the NUMA node of a GPU's own memory; ``None`` if there is none or it is unknown."""
    candidates = (gpu.nvml.numa_node if gpu.nvml else None, gpu.proc.numa_node if gpu.proc else None)
    return next((node for node in candidates if node is not None and node >= 0), None)


class PlatformKind(StrEnum):
    """The platforms of the chapter on EGM in the CUDA C++ Programming Guide, no EGM, and unknown."""

    SINGLE_GPU = "single-node-single-gpu"
    MULTI_GPU = "single-node-multi-gpu"
    MULTI_NODE = "multi-node"
    NO_EGM = "no-egm"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PlatformVerdict:
    """The platform and its description in one line."""

    kind: PlatformKind
    line: str
    clique_id: int | None = None
    """The clique of a multi-node NVLink domain."""
    what: str = ""
    """The GPUs and the CPU architecture."""
    cause: str = ""
    """The reason why there is no EGM, or why it is unknown."""
    able: int = 0
    """The number of GPUs with EGM."""


def platform(machine: Machine) -> PlatformVerdict:
    """Return the platform of a machine, from all of its GPUs."""
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
    """Return the clique id of a multi-node NVLink domain; ``None`` if the node is in none or it is not ready."""
    for gpu in machine.gpus or ():
        fabric = gpu.nvml.fabric if gpu.nvml else None
        if fabric and fabric.state == "completed" and multi_node(machine, gpu):
            return fabric.clique_id or None
    return None


def _what(machine: Machine, gpus: Sequence[Gpu]) -> str:
    """Return the GPUs and the CPU architecture: ``4 NVIDIA GB200 on aarch64``."""
    names = Counter(gpu.name for gpu in gpus)
    parts = " and ".join(f"{count} {gpu_name(name, count)}" for name, count in names.items())
    architecture = machine.host.architecture if machine.host else None
    return f"{parts} on {architecture}" if architecture else parts
