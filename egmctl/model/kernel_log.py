"""The kernel's log: typed events about GPUs, NVSwitches and their PCIe links, and no other line.

It holds other people's names and secrets, so nothing else of it is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.compat import StrEnum
from egmctl.model.record import BusId, Plain, Record, Unread


class EventKind(StrEnum):
    """The source of the line."""

    XID = "xid"
    """The GPU driver's error report: ``NVRM: Xid (PCI:0000:06:00): 31, ...``."""
    SXID = "sxid"
    """The NVSwitch driver's: ``nvidia-nvswitch0: SXid (PCI:0000:01:00.0): 12028, ...``."""
    AER = "aer"
    """PCIe Advanced Error Reporting."""
    DRIVER = "driver"
    """A message of the driver that :class:`DriverMessage` knows."""


class DriverMessage(StrEnum):
    """Messages of the driver that name a fault of EGM, NVLink, C2C, the fabric or IMEX, each by a fixed part of it.

    Spelled as in open-gpu-kernel-modules 595.45.04; where older drivers word them otherwise they are not recognised.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEvent(Record):
    """One line of the log."""

    kind: EventKind
    time_s: float
    """Seconds since boot, as the kernel counts them."""
    bus_id: BusId | None = None
    """The GPU, NVSwitch or PCIe device that the line names; a GPU's Xid names no function, which is 0."""
    number: int | None = None
    """The number of an Xid or SXid."""
    message: DriverMessage | None = None
    fatal: bool | None = None
    """The line's own word for the error: NVLink 5's Xids and SXids (Fatal, Nonfatal), and AER."""
    corrected: bool = False
    """AER: the link repaired it."""
    link: int | None = None
    """The NVLink that the line names."""
    pid: int | None = None
    """In the initial PID namespace."""
    process: str | None = None
    """Name of the process that the driver blames or ends."""
    caused_by: int | None = None
    """The earlier Xid that this one only follows."""
    text: Plain = ""
    """The rest of an Xid, SXid or AER line, without the process; it holds nothing but the driver's own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLog(Record):
    """The kernel's log since boot, or as much of it as is still there."""

    source: Plain
    """``/dev/kmsg`` or ``journalctl``."""
    now_s: float
    """When it was read, on the clock of :attr:`KernelEvent.time_s`."""
    first_s: float | None = None
    """Time of the oldest line that was still there: nothing is known of what came before. ``None``: an empty log."""
    overwritten: bool = False
    """Lines were lost while it was read."""
    events: tuple[KernelEvent, ...] = ()
    """In their order, the newest if there are too many."""
    left_out: int = 0
    """Older events that were dropped because there were too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMessages:
    """The kernel's messages while something ran, on the node of the command: under MPI that of rank 0."""

    source: Plain
    unread: Unread | None = None
    """Why the log could not be read: then nothing is known, not even that there was nothing."""
    began_s: float
    """On the clock of :attr:`KernelEvent.time_s`."""
    ended_s: float
    overwritten: bool = False
    """Lines were lost meanwhile."""
    events: tuple[KernelEvent, ...] = ()
    """In their order, the first if there are too many."""
    left_out: int = 0
    """Later events that were dropped because there were too many."""
