"""The kernel log: typed events about GPUs, NVSwitches and their PCIe links.

The log may contain private names and secrets, so no other lines are kept.
"""

from __future__ import annotations

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.finding import Status
from egmctl.model.record import BusId, Plain, Record, Unread
from egmctl.model.remedy import Remedy


class EventKind(StrEnum):
    """The sources of log lines."""

    XID = "xid"
    """An error report of the GPU driver: ``NVRM: Xid (PCI:0000:06:00): 31, ...``."""
    SXID = "sxid"
    """An error report of the NVSwitch driver: ``nvidia-nvswitch0: SXid (PCI:0000:01:00.0): 12028, ...``."""
    AER = "aer"
    """A report of PCIe Advanced Error Reporting."""
    DRIVER = "driver"
    """A driver message that is a :class:`DriverMessage`."""


class DriverMessage(StrEnum):
    """Driver messages about faults of EGM, NVLink, C2C, the fabric or IMEX. A value is a fixed part of the text.

    The texts are those of open-gpu-kernel-modules 595.45.04. Messages that older drivers word differently are not
    recognised.
    """

    EGM_ADDRESS = "SBIOS allocated EGM address is incorrect"
    EGM_HSHUB = "HSHUB programming failed for EGM Peer ID"
    EGM_PEER_IN_USE = "Peer ID specified for local EGM already in use"
    EGM_NO_FABRIC_ADDRESS = "doesn't have a EGM fabric address"
    EGM_UNEXPECTED_FABRIC_ADDRESS = "has a valid EGM fabric address"
    EGM_NOT_ENABLED = "EGM is not enabled in RM for GPU"
    EGM_FABRIC_BASE = "EGM Fabric base addr validation failed"
    EGM_INVALID_FABRIC_ADDRESS = "Invalid EGM fabric address"
    EGM_PEER_MISSING = "remote EGM peer id not found"
    NO_P2P_FOR_SYSTEM_MEMORY = "No P2P for system memory."
    NO_FABRIC_ADDRESS = "doesn't have a fabric address"
    P2P_DISABLED = "P2P is Disabled, cannot create mappings"
    C2C_P2P = "Failed to create C2C P2P mapping"
    C2C_SELF_TEST = "Coherent Link test readback"
    SWITCH_TRAINING = "and SWITCH failed with status"
    SYSMEM_LINK_TRAINING = "FAILED TO TRAIN CPU/SYSMEM LINKS TO ACTIVE"
    NVLINK_ACTIVATION = "Failed to activate link"
    NVLINK_ALI = "ALI Error for GPU"
    NVLINK_RECEIVER_DETECT = "postRxDetLinkMask failed"
    NVLINK_UNCONTAINED = "Failed to recover from uncontained NVLINK error"
    NVLINK_DEGRADED = "marked Degraded. Error originated on linkId"
    COHERENT_MAPPINGS_OFF = "Force disabling NVLINK/C2C mappings through regkey"
    FABRIC_PROBE = "Fabric Probe failed"
    FABRIC_INBAND = "retrying to send inband data"
    CLIQUE_MISMATCH = "cliqueId does not match"
    BANDWIDTH_MODE_MISMATCH = "bwMode does not match"
    OWNER_NOT_ACCESSIBLE = "Failed to find parent"
    IMEX_SHUTDOWN = "Abrupt nvidia-imex daemon shutdown detected, disabled fabric allocations"
    IMEX_RECOVERY = "robust channel recovery invoked"
    MEMORY_NOT_MOVABLE = "onlining zone is not movable"
    MEMORY_ADD = "Memory add failed. base"
    SMMU_SVA = "Enabling SMMU SVA feature failed"
    FELL_OFF_BUS = "fallen off the bus"
    INIT_FAILED = "RmInitAdapter failed"
    NEEDS_OPEN_MODULES = "requires use of the NVIDIA open kernel modules"
    """The proprietary modules write it about a GPU from Blackwell on
    (https://github.com/NVIDIA/open-gpu-kernel-modules/issues/872)."""
    NEEDS_PROPRIETARY_MODULES = "is not supported by open nvidia.ko"
    """The open modules write it about a GPU before Turing (open-gpu-kernel-modules, nv-pci.c)."""
    LEGACY_DRIVER = "Legacy drivers. Please"
    """The driver has dropped the GPU's generation, and names the last branch that has it
    (https://github.com/NixOS/nixos-hardware/issues/1880). The line names no bus id."""
    NOT_IN_RELEASE = "is not supported by the NVIDIA"
    """The driver does not know the GPU: it is newer than the driver, or hides what it is
    (https://github.com/NVIDIA/nvtrust/issues/55)."""
    VERSION_MISMATCH = "API mismatch: the client"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEvent(Record):
    """One event in the log."""

    kind: EventKind
    time_s: float
    """The time stamp of the kernel, in seconds since boot."""
    bus_id: BusId | None = None
    """The GPU, NVSwitch or PCIe device in the line. An Xid contains no function number, so function 0 is assumed."""
    number: int | None = None
    """The Xid or SXid number."""
    message: DriverMessage | None = None
    fatal: bool | None = None
    """Whether the line calls the error fatal: Xids of NVLink 5, SXids (Fatal, Nonfatal) and AER."""
    corrected: bool = False
    """Whether the link corrected the error (AER)."""
    link: int | None = None
    """The NVLink in the line."""
    pid: int | None = None
    """The process id in the initial PID namespace."""
    process: str | None = None
    """The name of the process that the driver blames or terminates."""
    caused_by: int | None = None
    """The earlier Xid that caused this one."""
    text: Plain = ""
    """The rest of an Xid, SXid or AER line, without the process. It contains only text of the driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLog(Record):
    """The kernel log since boot, as far as it is still available."""

    source: Plain
    """``/dev/kmsg`` or ``journalctl``."""
    now_s: float
    """The time of reading, on the clock of :attr:`KernelEvent.time_s`."""
    first_s: float | None = None
    """The time of the oldest available line; earlier events are unknown. ``None`` if the log is empty."""
    overwritten: bool = False
    """Whether lines were lost during reading."""
    events: tuple[KernelEvent, ...] = ()
    """The events in order; the newest if there are too many."""
    left_out: int = 0
    """The number of older events that were dropped because there are too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMessages:
    """The kernel messages during a run, on the node of the command (under MPI the node of rank 0)."""

    source: Plain
    unread: Unread | None = None
    """The reason why the log could not be read. Then an empty list of events says nothing."""
    began_s: float
    """The start of the run, on the clock of :attr:`KernelEvent.time_s`."""
    ended_s: float
    overwritten: bool = False
    """Whether lines were lost during the run."""
    events: tuple[KernelEvent, ...] = ()
    """The events in order; the first if there are too many."""
    left_out: int = 0
    """The number of later events that were dropped because there are too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedFault:
    """Messages of one kind on one device, and what they mean: an entry of egmctl's catalogue."""

    status: Status
    """The severity; ``pass`` if no operator is needed."""
    words: Plain
    """What was logged, how often, and what is responsible: ``GPU2: Xid 79, GPU fell off the bus (hardware)``."""
    remedy: Remedy
