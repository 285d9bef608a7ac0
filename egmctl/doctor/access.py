"""Where a GPU is lost on its way to this process, and why: PCI > driver > device node > access > NVML > CUDA."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from egmctl.compat import StrEnum
from egmctl.doctor.scope import Scope
from egmctl.model.machine import Confinement, DeviceNode, Driver, Gpu, Machine, Process, Reason
from egmctl.topology.health import C2c, c2c
from egmctl.topology.routes import owners


class Step(enum.IntEnum):
    """How far a GPU gets; each step needs the one before."""

    PCI = 0
    DRIVER = 1
    """The kernel module has it."""
    NODE = 2
    """Its device node is there."""
    ACCESS = 3
    """This process may open it."""
    NVML = 4
    CUDA = 5


class Loss(StrEnum):
    """Why a GPU gets no further."""

    NONE = "none"
    OFF_THE_BUS = "off-the-bus"
    NOT_BOUND = "not-bound"
    EXCLUDED = "excluded"
    NO_NODE = "no-node"
    """Nothing made its device node."""
    NOT_IN_CONTAINER = "not-in-container"
    """Its device node was not given to this container."""
    DEVICE_CGROUP = "device-cgroup"
    PERMISSION = "permission"
    """Mode bits, an access list or a security module."""
    NODEV = "nodev"
    """The device node lies on a mount that makes device nodes useless."""
    STALE_NODE = "stale-node"
    """The device node has another device's numbers."""
    NOT_STARTED = "not-started"
    """All is open to this process, and yet NVML does not list it."""
    NO_CUDA = "no-cuda"
    """NVML lists it, and yet CUDA does not."""
    UNKNOWN = "unknown"


LOST_AT = {
    Loss.OFF_THE_BUS: Step.PCI,
    Loss.NOT_BOUND: Step.DRIVER,
    Loss.EXCLUDED: Step.DRIVER,
    Loss.NO_NODE: Step.NODE,
    Loss.NOT_IN_CONTAINER: Step.NODE,
    Loss.DEVICE_CGROUP: Step.ACCESS,
    Loss.PERMISSION: Step.ACCESS,
    Loss.NODEV: Step.ACCESS,
    Loss.STALE_NODE: Step.ACCESS,
    Loss.NOT_STARTED: Step.NVML,
    Loss.NO_CUDA: Step.CUDA,
}
"""The step at which each is seen: the GPU has not taken it."""


def loss(machine: Machine, gpu: Gpu) -> Loss:
    """Return what keeps a GPU from this process, by the first sign that fits.

    access(2) decides: EPERM is the device cgroup, as root too; EACCES is mode bits or a security module; ENOENT is a
    node that is not there. NVML honours the cgroup and ignores CUDA_VISIBLE_DEVICES, so that the latter is no loss.
    """
    pci, proc, node = gpu.pci, gpu.proc, gpu.node
    if pci is not None and pci.responds is False:
        return Loss.OFF_THE_BUS
    if pci is not None and pci.driver is not None and pci.driver != "nvidia":
        return Loss.NOT_BOUND
    if proc is not None and proc.excluded:
        return Loss.EXCLUDED
    unread = gpu.unread.get("node")
    if node is None and unread is not None and unread.reason is not Reason.NOT_PRESENT:
        return Loss.UNKNOWN
    if node is None or not node.exists:
        return _without_node(machine, gpu)
    if node.access in ("EPERM", "EACCES"):
        return Loss.DEVICE_CGROUP if node.access == "EPERM" else Loss.PERMISSION
    if node.access != "ok":
        return Loss.UNKNOWN
    listed = gpu.nvml is not None and not elsewhere(machine)
    if not listed and node.nodev:
        return Loss.NODEV
    if not listed and _is_stale(machine, gpu, node):
        return Loss.STALE_NODE
    if gpu.nvml is None:
        return Loss.NOT_STARTED if _listed_others(gpu, "nvml") else Loss.NONE
    if gpu.cuda is None and _listed_others(gpu, "cuda"):
        return Loss.NO_CUDA
    return Loss.NONE


def elsewhere(machine: Machine) -> bool:
    """Say whether this is about another process, whose place NVML and CUDA were not asked in."""
    return machine.process is not None and machine.process.pid != 0


def _without_node(machine: Machine, gpu: Gpu) -> Loss:
    if gpu.nvml is not None and not elsewhere(machine):
        # As root NVML makes the node that was missing when we looked.
        return Loss.NONE
    if given_some(machine):
        return Loss.NOT_IN_CONTAINER
    return Loss.UNKNOWN if gpu.node is None and gpu.proc is None else Loss.NO_NODE


def _is_stale(machine: Machine, gpu: Gpu, node: DeviceNode) -> bool:
    major = ((machine.driver or Driver()).majors or {}).get("nvidia", 195)
    minor = gpu.proc.minor if gpu.proc else None
    return node.major is not None and (node.major != major or (minor is not None and node.minor != minor))


def _listed_others(gpu: Gpu, library: str) -> bool:
    """Say whether the library was asked, and answered without this GPU."""
    why = gpu.unread.get(library)
    return why is not None and why.reason is Reason.NOT_PRESENT


def given_some(machine: Machine) -> bool:
    """Say whether a container decides which device nodes this process has."""
    process = machine.process or Process()
    return bool(process.container_signs) or bool(node_mounts(machine))


def node_mounts(machine: Machine) -> tuple[str, ...]:
    """Return where device nodes of NVIDIA's are mounted one by one or the driver's folder is hidden: runtimes do so."""
    mounts = (machine.confinement or Confinement()).mounts or ()
    return tuple(
        mount.path
        for mount in mounts
        if mount.path.startswith("/dev/nvidia") or (mount.path, mount.kind) == ("/proc/driver/nvidia", "tmpfs")
    )


def funnel(machine: Machine, gpus: Iterable[Gpu]) -> dict[Step, int | None]:
    """Return how many GPUs get how far; ``None`` for a library that was not asked or did not answer."""
    reached = [LOST_AT.get(loss(machine, gpu), Step.CUDA + 1) for gpu in gpus]
    counts: dict[Step, int | None] = {
        step: sum(lost > step or step is Step.PCI for lost in reached)
        for step in (Step.PCI, Step.DRIVER, Step.NODE, Step.ACCESS)
    }
    for step, library in ((Step.NVML, "nvml"), (Step.CUDA, "cuda")):
        asked = any(getattr(gpu, library) is not None or _listed_others(gpu, library) for gpu in gpus)
        found = sum(getattr(gpu, library) is not None for gpu in gpus)
        counts[step] = found if asked and not elsewhere(machine) else None
    return counts


def requested(machine: Machine, scope: Scope, gpu: Gpu) -> bool:
    """Say whether the user wants this GPU: by ``--gpus``, or by ``--expect``."""
    if scope.asked_for(gpu):
        return True
    expected = scope.expectation
    if expected is None:
        return False
    if expected.reference is not None:
        return any(
            other.bus_id == gpu.bus_id and loss(expected.reference, other) is Loss.NONE
            for other in expected.reference.gpus or ()
        )
    return (
        expected.gpus is not None and sum(loss(machine, one) is Loss.NONE for one in machine.gpus or ()) < expected.gpus
    )


def routers(machine: Machine, scope: Scope) -> dict[int, tuple[Gpu, ...]]:
    """Return the GPUs that EGM traffic to each CPU NUMA node in scope can be routed through: those that sit on it."""
    return {node: found for node in scope.numa_of(machine) if (found := owners(machine, node))}


def may_have_egm(machine: Machine) -> bool:
    """Say whether EGM is or may be on: a GPU says so, or only GPUs that cannot be asked sit on a Grace CPU."""
    listed = [gpu for gpu in machine.gpus or () if gpu.nvml is not None]
    bits = [gpu.nvml.egm_capable for gpu in listed if gpu.nvml is not None and gpu.nvml.egm_capable is not None]
    if bits:
        return any(bits)
    if any(c2c(machine, gpu) is C2c.UP for gpu in listed):
        return True
    return not listed and "Grace" in ((machine.host and machine.host.cpu_model) or "")
