"""Whether this process can use a GPU, and how much of its memory: topology, measurements, checks and fleets ask here.

A GPU passes the steps of :class:`Step`. :func:`classify` returns the first step that it fails and the reason.
**Precedence**, the first match counts:

1. The PCI configuration space reads as all ones (:data:`Block.OFF_THE_BUS`). No other fact about the GPU is valid then.
   Next, NVML ended a call about the GPU with GPU_IS_LOST or RESET_REQUIRED: it still lists the GPU, and answers other
   calls from memory.
2. NVML or CUDA lists the GPU in this process. Items 3 and 4 are then skipped, because the device node was opened.
   open(2) counts more than the earlier access(2): as root, NVML creates a missing node, and nvidia-modprobe, which is
   setuid root, corrects its mode. For another process (``--pid``), the lists are ignored: they are those of this
   process.
3. Another kernel driver, or none, is bound; the driver's configuration excludes the GPU.
4. The device node: it was not checked, does not exist, is not a character device, or has the numbers of another device.
   Then the result of access(2): EPERM (the device cgroup, also for root: ``devcgroup_inode_permission``) before EACCES
   (mode bits, security modules). Then a mount with ``nodev``, which access(2) ignores. The type and numbers come first,
   because for a node with the numbers of another device the cgroup was asked about that device.
5. NVML: it did not start, it counts the GPU but cannot open it, or it does not list it.
6. CUDA: it did not start or does not list the GPU. If CUDA was not queried, the step passes.
7. Use of the whole GPU by one more process: MIG is enabled, or the compute mode forbids it.

CUDA_VISIBLE_DEVICES is no obstacle: a hidden GPU can still be opened, its memory imported and EGM routed through it.
"""

from __future__ import annotations

import enum

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.gpu import Gpu
from egmctl.model.host import Confinement, DeviceNode, Driver, LibraryFailure, Process
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Record


class Step(enum.IntEnum):
    """The steps to using a GPU; each requires the previous one."""

    PCI = 0
    DRIVER = 1
    """The kernel module has claimed the GPU."""
    NODE = 2
    """The device node exists."""
    ACCESS = 3
    """This process may open the device node."""
    NVML = 4
    CUDA = 5
    WHOLE = 6
    """A process can create a context on the whole GPU."""


class Block(StrEnum):
    """The reasons why a GPU, a NUMA node or the route between them cannot be used.

    Each member has its name in documents, the step that the GPU fails, and the text for display.
    """

    step: Step
    words: str

    def __new__(cls, name: str, step: Step = Step.PCI, words: str = "{detail}") -> Block:
        """Return a member with its name, step and text."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.step, member.words = step, words
        return member

    OFF_THE_BUS = "off-the-bus", Step.PCI, "fell off the PCI bus"
    NOT_BOUND = "not-bound", Step.DRIVER, "bound to {detail}"
    EXCLUDED = "excluded", Step.DRIVER, "excluded by the driver's configuration"
    UNKNOWN = "unknown", Step.NODE, "whether it is accessible is unknown{particular}"
    """The device node could not be checked, or access(2) failed with an unspecific error."""
    NOT_IN_CONTAINER = "not-in-container", Step.NODE, "not passed into this container{answered}"
    """The container was not given the device node."""
    NO_DEVICE_NODE = "no-device-node", Step.NODE, "no device node{answered}"
    """The device node was not created."""
    NOT_A_DEVICE = "not-a-device", Step.NODE, "{path} is not a character device{particular}"
    """A directory, file, FIFO or block device is at the path of the device node."""
    MASKED = "masked", Step.NODE, "{path} is /dev/null: something hides the device node"
    """``/dev/null`` is bind-mounted over the device node."""
    STALE_NODE = "stale-node", Step.NODE, "{path} has the numbers of another device{particular}"
    """The device node has the numbers of another device."""
    DEVICE_CGROUP = "device-cgroup", Step.ACCESS, "denied by the device cgroup{answered}"
    NO_PERMISSION = "no-permission", Step.ACCESS, "denied by mode bits or a security module{answered}"
    """Mode bits, an access control list or a security module deny access."""
    NODEV = "nodev", Step.ACCESS, "{path} lies on a mount with the option nodev"
    """The device node is on a mount with ``nodev``, where devices cannot be opened."""
    NVML_FAILED = "nvml-failed", Step.NVML, "NVML {detail}"
    """NVML did not start, crashed, hung or is missing, so it reports no GPU."""
    GPU_LOST = "gpu-lost", Step.NVML, "NVML cannot open it{particular}"
    """NVML counts the GPU but cannot open it."""
    CALLED_LOST = "called-lost", Step.NVML, "NVML calls it lost ({detail})"
    """NVML lists the GPU and ends calls about it with GPU_IS_LOST."""
    RESET_REQUIRED = "reset-required", Step.NVML, "NVML says that it needs a reset ({detail})"
    """NVML lists the GPU and ends calls about it with RESET_REQUIRED."""
    NOT_LISTED = "not-listed", Step.NVML, "NVML does not list it"
    """All steps before passed, but NVML does not list the GPU."""
    CUDA_FAILED = "cuda-failed", Step.CUDA, "CUDA {detail}"
    """CUDA did not start, crashed, hung, or is missing."""
    NOT_SEEN_BY_CUDA = "not-seen-by-cuda", Step.CUDA, "CUDA does not see it{particular}"
    """NVML lists the GPU, but CUDA does not."""
    MIG = "mig", Step.WHOLE, "MIG is on: it can only be used in parts"
    COMPUTE_MODE = "compute-mode", Step.WHOLE, "its compute mode is prohibited"

    MEMS_ALLOWED = "mems-allowed"
    NO_MEMORY = "no-memory"
    NVLINK_DOWN = "nvlink-down"
    NO_P2P = "no-p2p"


LOST = frozenset({Block.GPU_LOST, Block.CALLED_LOST, Block.RESET_REQUIRED})
"""The blocks by which the driver has given the GPU up: NVML counts it, and nothing else it says of it is believed."""

DENIED = frozenset({Block.DEVICE_CGROUP, Block.NOT_IN_CONTAINER, Block.MASKED})
"""The blocks by configuration: the GPU works, but this process was not given access."""

_NULL_DEVICE = 1, 3
"""The major and minor number of ``/dev/null`` (Documentation/admin-guide/devices.txt)."""
_MAJOR = 195
"""The major number of the GPUs and nvidiactl if /proc/devices was not read (nv-chardev-numbers.h)."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A reason why something cannot be used; :attr:`cause` is the text for display."""

    block: Block
    detail: str = ""
    """Details: the bound driver, the file type, the error of a library."""
    path: str = ""
    """The path of the device node, if the block is about one."""
    answer: str = ""
    """The name of the error number from access(2)."""

    @property
    def cause(self) -> str:
        """The obstacle as text that follows the name of its subject and a colon. It is never parsed."""
        return self.block.words.format(
            detail=self.detail,
            particular=f" ({self.detail})" if self.detail else "",
            path=self.path,
            answered=f" ({self.path}: {self.answer})" if self.path else "",
        )


def obstacle(machine: Machine, gpu: Gpu, through: Step = Step.NVML) -> Obstacle | None:
    """Return why a GPU cannot be used; ``None`` if no obstacle is known.

    It differs from :func:`classify` in that an unchecked device node is no obstacle if NVML lists the GPU.
    """
    failed = classify(machine, gpu, through)
    return None if failed is not None and failed.block is Block.UNKNOWN and gpu.nvml is not None else failed


def classify(machine: Machine, gpu: Gpu, through: Step = Step.CUDA) -> Obstacle | None:
    """Return the first step that a GPU fails for the process of the machine; ``None`` if it passes all.

    Parameters
    ----------
    through
        The last step that counts: topology does not need CUDA, and only measurements need the whole GPU.
    """
    failed = _before_libraries(machine, gpu) or _libraries(machine, gpu) or _whole(gpu)
    return failed if failed is not None and failed.block.step <= through else None


def device_node_obstacle(node: DeviceNode, numbers: tuple[int | None, int | None]) -> Obstacle | None:
    """Return the defect of an existing device node; ``None`` if there is none or the node was not read.

    Parameters
    ----------
    numbers
        The expected major and minor number; ``None`` for one that is unknown.
    """
    path = node.path
    if node.kind not in (None, "character"):
        return Obstacle(Block.NOT_A_DEVICE, node.kind or "", path)
    if (node.major, node.minor) == _NULL_DEVICE:
        return Obstacle(Block.MASKED, path=path)
    pairs = zip((node.major, node.minor), numbers, strict=True)
    if any(number is not None and expected is not None and number != expected for number, expected in pairs):
        wanted = ":".join("?" if number is None else str(number) for number in numbers)
        return Obstacle(Block.STALE_NODE, f"{node.major}:{node.minor}, not {wanted}", path)
    if node.access in ("EPERM", "EACCES"):
        block = Block.DEVICE_CGROUP if node.access == "EPERM" else Block.NO_PERMISSION
        return Obstacle(block, path=path, answer=node.access)
    if node.access not in (None, "ok", "ENOENT"):
        return Obstacle(Block.UNKNOWN, f"{path}: access(2) answers {node.access}")
    return Obstacle(Block.NODEV, path=path) if node.nodev else None


def nvml_failure(machine: Machine) -> LibraryFailure | None:
    """Return how NVML failed as a whole; ``None`` if it succeeded or was not queried."""
    return (machine.driver or Driver()).nvml_failure


def not_loaded(machine: Machine) -> bool:
    """Return whether the NVIDIA kernel module is not loaded: ``/proc/driver/nvidia`` and the list of modules lack it.

    Where the list was not read, a part of the node's files may be hidden.
    """
    driver = machine.driver or Driver()
    has_no_version = driver.module_version is None and driver.reason_of("module_version") is Reason.NOT_PRESENT
    return has_no_version and driver.modules is not None and "nvidia" not in driver.modules


def without_nvml(machine: Machine, names: str) -> str:
    """Return why NVML reports nothing about these GPUs: it failed as a whole, or it does not list them."""
    failed = nvml_failure(machine)
    return f"NVML {failed.words}" if failed else f"NVML does not list {names}"


def cuda_failure(machine: Machine) -> LibraryFailure | None:
    """Return how CUDA failed as a whole; ``None`` if it succeeded or was not queried."""
    return (machine.driver or Driver()).cuda_failure


def elsewhere(machine: Machine) -> bool:
    """Return whether the machine is about another process, for which NVML and CUDA were not queried."""
    return machine.process is not None and machine.process.pid != 0


def given_some(machine: Machine) -> bool:
    """Return whether a container determines the device nodes of this process."""
    process = machine.process or Process()
    return bool(process.container_signs) or bool(node_mounts(machine))


def node_mounts(machine: Machine) -> tuple[str, ...]:
    """Return the mount points of single NVIDIA device nodes and of a tmpfs over the driver's /proc folder."""
    mounts = (machine.confinement or Confinement()).mounts or ()
    return tuple(
        mount.path
        for mount in mounts
        if mount.path.startswith("/dev/nvidia") or (mount.path, mount.kind) == ("/proc/driver/nvidia", "tmpfs")
    )


def _before_libraries(machine: Machine, gpu: Gpu) -> Obstacle | None:
    pci, proc, node = gpu.pci, gpu.proc, gpu.node
    if pci is not None and pci.responds is False:
        return Obstacle(Block.OFF_THE_BUS)
    if gpu.nvml is not None and gpu.nvml.lost_calls:
        errors = gpu.nvml.lost_calls
        block = Block.CALLED_LOST if "NVML_ERROR_GPU_IS_LOST" in errors.values() else Block.RESET_REQUIRED
        return Obstacle(block, next(iter(errors)))
    if (gpu.nvml is not None or gpu.cuda is not None) and not elsewhere(machine):
        return None
    if pci is not None and pci.driver is not None and pci.driver != "nvidia":
        return Obstacle(Block.NOT_BOUND, pci.driver or "no kernel driver")
    if not_loaded(machine) and (pci is None or pci.driver is not None):
        return Obstacle(Block.NOT_BOUND, "nvidia, whose kernel module is not loaded")
    if proc is not None and proc.excluded:
        return Obstacle(Block.EXCLUDED)
    if node is None and gpu.reason_of("node") not in (None, Reason.NOT_PRESENT):
        return Obstacle(Block.UNKNOWN, _because(gpu, "node"))
    if node is None or not node.exists or node.access == "ENOENT":
        return _without_node(machine, gpu)
    major = ((machine.driver or Driver()).majors or {}).get("nvidia", _MAJOR)
    if wrong := device_node_obstacle(node, (major, proc.minor if proc is not None else None)):
        return wrong
    return Obstacle(Block.UNKNOWN, _because(node, "access")) if node.access is None else None


def _without_node(machine: Machine, gpu: Gpu) -> Obstacle | None:
    minor = gpu.proc.minor if gpu.proc is not None else None
    if gpu.node is not None:
        path = gpu.node.path
    elif minor is not None:
        path = f"/dev/nvidia{minor}"
    else:
        path = ""
    if given_some(machine):
        return Obstacle(Block.NOT_IN_CONTAINER, path=path, answer="ENOENT")
    if gpu.node is not None or gpu.proc is not None:
        return Obstacle(Block.NO_DEVICE_NODE, path=path, answer="ENOENT")
    # The path of the node is unknown. If NVML failed for this GPU, that failure is the better reason.
    return None if gpu.reason_of("nvml") is Reason.FAILED else Obstacle(Block.UNKNOWN)


def _because(record: Record, name: str) -> str:
    """Return the reason why a field was not read, as text."""
    unread = record.unread.get(name)
    return (unread.detail or unread.reason.value) if unread is not None else ""


def _libraries(machine: Machine, gpu: Gpu) -> Obstacle | None:
    if elsewhere(machine):
        return None
    reasons = {library: gpu.reason_of(library) for library in ("nvml", "cuda")}
    nvml_works = nvml_failure(machine) is None and (machine.driver or Driver()).driver_version is not None
    if gpu.nvml is None and reasons["nvml"] is Reason.FAILED and nvml_works:
        # CUDA may list it all the same.
        return Obstacle(Block.GPU_LOST, _because(gpu, "nvml"))
    if gpu.nvml is None and gpu.cuda is None:
        if failed := nvml_failure(machine):
            return Obstacle(Block.NVML_FAILED, failed.words)
        match reasons["nvml"]:
            case None | Reason.NOT_PRESENT:
                return Obstacle(Block.NOT_LISTED)
            case Reason.NOT_ASKED:
                return Obstacle(Block.UNKNOWN, "NVML was not queried")
            case _:
                return Obstacle(Block.GPU_LOST, _because(gpu, "nvml"))
    if gpu.cuda is not None or reasons["cuda"] in (None, Reason.NOT_ASKED, Reason.NOT_STATED):
        return None
    if failed := cuda_failure(machine):
        return Obstacle(Block.CUDA_FAILED, failed.words)
    return Obstacle(Block.NOT_SEEN_BY_CUDA, gpu.unread["cuda"].detail)


def _whole(gpu: Gpu) -> Obstacle | None:
    if gpu.nvml is not None and gpu.nvml.mig_mode:
        return Obstacle(Block.MIG)
    prohibited = gpu.nvml is not None and gpu.nvml.compute_mode == "prohibited"
    return Obstacle(Block.COMPUTE_MODE) if prohibited else None


# --- how much of its memory -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The lowest limit in force for a process on a GPU's memory."""

    max_bytes: int
    held_bytes: int = 0
    """What the cgroup holds already; 0 if unknown."""
    cgroup: str | None = None
    """The path of the cgroup that sets it; ``None`` if only NVML reports the limit."""

    @property
    def left_bytes(self) -> int:
        """What the process can still allocate under the limit."""
        return max(0, self.max_bytes - self.held_bytes)


def memory_limit(machine: Machine, gpu: Gpu) -> MemoryLimit | None:
    """Return the limit that leaves the least memory; ``None`` if no limit is known.

    The limits of all cgroups above a process apply to it (Linux, Documentation/admin-guide/cgroup-v2.rst). In a
    container those above its own are invisible, and without the controller ``dmem`` the driver keeps the limits
    itself: then only NVML reports one.
    """
    limits = [
        MemoryLimit(entry.max_bytes, entry.current_bytes or 0, entry.cgroup)
        for entry in (machine.process or Process()).device_memory or ()
        if entry.bus_id == gpu.bus_id and entry.max_bytes is not None and entry.max_bytes >= 0
    ]
    by_nvml = gpu.nvml.memory_limit_bytes if gpu.nvml is not None else None
    if by_nvml is not None and by_nvml >= 0 and all(by_nvml < limit.max_bytes for limit in limits):
        held = (gpu.nvml and gpu.nvml.memory_limit_used_bytes) or 0
        limits.append(MemoryLimit(by_nvml, held))
    capacity = ((machine.process or Process()).device_memory_capacity or {}).get(gpu.bus_id)
    limits = [limit for limit in limits if capacity is None or limit.max_bytes < capacity]
    return min(limits, key=lambda limit: limit.left_bytes, default=None)


def gpu_memory_bytes(machine: Machine, gpu: Gpu) -> int | None:
    """Return the size of a GPU's own memory in bytes; ``None`` if unknown, as where a limit hides it."""
    capacity = ((machine.process or Process()).device_memory_capacity or {}).get(gpu.bus_id)
    if capacity is not None:
        return capacity
    reported = gpu.nvml.memory_total_bytes if gpu.nvml is not None else None
    limit = memory_limit(machine, gpu)
    # A total above the limit is the GPU's: this driver does not report the limit as the total.
    return reported if limit is None or (reported is not None and reported > limit.max_bytes) else None
