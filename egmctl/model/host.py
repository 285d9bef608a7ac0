"""The machine around the GPUs: NUMA nodes and memory, and the driver's parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from egmctl.compat import StrEnum
from egmctl.model.devices import DeviceNode
from egmctl.model.record import BusId, KernelList, Plain, Record, Share


class NumaKind(StrEnum):
    """What a NUMA node has."""

    CPU = "cpu"
    """CPUs and memory."""
    CPU_ONLY = "cpu-only"
    """CPUs, no memory."""
    MEMORY_ONLY = "memory-only"
    """Memory, no CPUs: on Grace, a GPU's own memory onlined as a node."""
    EMPTY = "empty"
    """Neither: on Grace, a placeholder for MIG instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HugePages(Record):
    """One pool of huge pages: of the host (``/sys/kernel/mm/hugepages``), or a NUMA node's part of it."""

    page_size_bytes: int
    total: int | None = None
    free: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode(Record):
    """One node of ``/sys/devices/system/node``."""

    id: int
    kind: NumaKind
    cpus: KernelList = ""
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_reclaimable_bytes: int | None = None
    """Pages of files and reclaimable slabs: the kernel gives them back when memory is asked for."""
    distances: tuple[int, ...] | None = None
    """ACPI SLIT distances to the online nodes, in ascending order of their ids."""
    huge_pages: tuple[HugePages, ...] | None = None
    """Not present where the node has no memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFrequencies(Record):
    """CPUs whose files in ``/sys/devices/system/cpu/cpu*/cpufreq`` say the same."""

    cpus: KernelList
    governor: Plain | None = None
    """``scaling_governor``: ``performance``, ``powersave``, ``schedutil``, ..."""
    limit_khz: int | None = None
    """``scaling_max_freq``: what the governor may go up to."""
    max_khz: int | None = None
    """``cpuinfo_max_freq``: what the hardware can."""

    @property
    def limited(self) -> bool | None:
        """Whether the limit is below what the hardware can; ``None`` where one of them is not known."""
        return None if self.limit_khz is None or self.max_khz is None else self.limit_khz < self.max_khz


@dataclass(frozen=True, slots=True, kw_only=True)
class Host(Record):
    """The machine around the GPUs, and what of it this process may use."""

    hostname: str | None = None
    kernel: Annotated[str, Share.KERNEL_RELEASE] | None = None
    architecture: Plain | None = None
    cpu_model: Plain | None = None
    cpu_count: int | None = None
    page_size_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    numa_nodes: tuple[NumaNode, ...] | None = None
    allowed_cpus: KernelList | None = None
    """``Cpus_allowed_list`` of this process."""
    allowed_numa_nodes: KernelList | None = None
    memory_policy: Plain | None = None
    """The process' NUMA memory policy, as ``numa_maps`` spells it: ``default``, ``bind:0``, ``interleave:0-1``."""
    """``Mems_allowed_list`` of this process: HOST_NUMA memory can come from these only."""
    huge_pages: tuple[HugePages, ...] | None = None
    transparent_huge_pages: Plain | None = None
    """The word in brackets of ``/sys/kernel/mm/transparent_hugepage/enabled``."""
    numa_balancing: int | None = None
    cpu_frequencies: tuple[CpuFrequencies, ...] | None = None
    """Of the online CPUs, those that are alike together; not present where the kernel does not set frequencies."""
    auto_online_blocks: Plain | None = None
    """``/sys/devices/system/memory/auto_online_blocks``: must be ``online_movable`` for GPU memory to become a node."""
    kernel_command_line: Mapping[Plain, Annotated[str, Share.PARAMETER]] | None = None
    """Only the parameters that matter here (``egmctl.facts.host.COMMAND_LINE_KEYS``); a flag has the value ``""``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryFailure:
    """How NVML or CUDA failed as a whole, so that it says nothing of any GPU."""

    how: Plain
    """``error`` (a call returned one), ``crashed``, ``timed-out``, ``missing`` (the library), ``too-old``
    (for the bindings) or ``not-started`` (no child process could be)."""
    call: Plain | None = None
    """The call that failed, or that was under way at the end."""
    gpu: BusId | None = None
    """The GPU that the call was about, where it was about one."""
    number: int | None = None
    """What the call returned."""
    name: Plain | None = None
    """The library's own name for that: ``NVML_ERROR_UNKNOWN``."""
    detail: Plain = ""

    @property
    def words(self) -> str:
        """What happened, as it follows the library's name."""
        where = f" in {self.call}" if self.call else ""
        of = f" of {self.gpu}" if self.gpu else ""
        number = "" if self.number is None else f" ({self.number})"
        match self.how:
            case "error":
                call = f"{self.call}{of}: " if self.call else ""
                return f"fails ({call}{self.name or self.detail or 'no reason given'}{number})"
            case "crashed":
                return f"crashed{where}{of}"
            case "timed-out":
                return f"did not answer in time{f', it hangs{where}{of}' if where else ''}"
            case "missing":
                return "is missing: the library cannot be loaded"
            case "too-old":
                return f"does not fit ({self.detail})" if self.detail else "does not fit the installed bindings"
            case "not-started":
                return "could not be queried: no child process can be started"
            case _:
                return f"failed ({self.how})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver(Record):
    """The driver's parts, their versions and the nodes they are reached through."""

    module_version: Plain | None = None
    module_flavour: Plain | None = None
    """``open`` or ``proprietary``."""
    driver_version: Plain | None = None
    """NVML's ``nvmlSystemGetDriverVersion``."""
    nvml_version: Plain | None = None
    cuda_driver_version: int | None = None
    """``cuDriverGetVersion``: 13000 is 13.0."""
    cuda_error: Plain | None = None
    """The name of cuInit's error; ``None`` if it succeeded or was not asked (then in ``unread``)."""
    nvml_error: Plain | None = None
    nvml_failure: LibraryFailure | None = None
    """How NVML failed; ``None`` where it answered, was not asked, or the document is of before this field."""
    cuda_failure: LibraryFailure | None = None
    confidential_compute: Plain | None = None
    """``off``, ``on``, or how several GPUs are joined under it: ``protected-pcie``, ``nvlink-encryption``
    (``nvmlSystemGetConfComputeSettings``)."""
    nvlink_bandwidth_mode: Plain | None = None
    """``full``, ``off``, ``min``, ``half`` or ``3quarter`` (``nvmlSystemGetNvlinkBwMode``)."""
    modules: tuple[Plain, ...] | None = None
    """Of nvidia, nvidia_uvm, nvidia_peermem, nvgrace_gpu, nvgrace_egm, nouveau, gdrdrv: those loaded."""
    module_parameters: Mapping[Plain, Annotated[str, Share.PARAMETER]] | None = None
    """``/proc/driver/nvidia/params``."""
    uvm_parameters: Mapping[Plain, Annotated[str, Share.PARAMETER]] | None = None
    majors: Mapping[Plain, int] | None = None
    """Character majors of ``/proc/devices`` whose name begins with ``nvidia``."""
    nodes: tuple[DeviceNode, ...] | None = None
    """nvidiactl, nvidia-uvm, nvidia-uvm-tools, nvidia-caps."""
    imex_channels: tuple[DeviceNode, ...] | None = None
    """Nodes in ``/dev/nvidia-caps-imex-channels``; empty where the folder is absent."""
