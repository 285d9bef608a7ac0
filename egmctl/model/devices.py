"""PCI functions, device nodes, NVSwitches and NICs."""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.model.record import BusId, KernelList, Plain, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieLink(Record):
    """A PCIe link's state."""

    speed_gt_s: float | None = None
    width: int | None = None
    max_speed_gt_s: float | None = None
    max_width: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PciFunction(Record):
    """One PCI function as sysfs shows it. Not namespaced: containers see all of the machine's."""

    bus_id: BusId
    vendor_id: int | None = None
    device_id: int | None = None
    subsystem_vendor_id: int | None = None
    subsystem_device_id: int | None = None
    class_code: int | None = None
    """24 bits: 0x030200 is a 3D controller, 0x068000 a bridge of another kind (NVSwitch)."""
    path: tuple[Plain, ...] | None = None
    """From the root complex down to, and without, this function: ``("pci0000:16", "0000:16:01.0", ...)``."""
    numa_node: int | None = None
    """sysfs ``numa_node``; -1 where the firmware says nothing."""
    local_cpus: KernelList | None = None
    link: PcieLink | None = None
    driver: Plain | None = None
    """The bound kernel driver; ``""`` where none is bound."""
    responds: bool | None = None
    """False where configuration space reads all ones: the device fell off the bus."""

    @property
    def pci_id(self) -> str | None:
        """Vendor and device, ``10de:2335``; ``None`` where they were not read."""
        return None if None in (self.vendor_id, self.device_id) else f"{self.vendor_id:04x}:{self.device_id:04x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode(Record):
    """A device node and whether this process may use it, by access(2): opening would wake the device."""

    path: Plain
    exists: bool
    kind: Plain | None = "character"
    """What is there: ``character``, or ``block``, ``directory``, ``file``, ``fifo``, ``socket`` in its place."""
    major: int | None = None
    minor: int | None = None
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    access: Plain | None = None
    """``"ok"``, or the errno's name from access(R_OK|W_OK): EPERM is the device cgroup, EACCES mode or LSM, ENOENT
    not there."""
    nodev: bool | None = None
    """Its file system is mounted ``nodev``: open(2) fails with EACCES then, though access(2) does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvSwitch(Record):
    """An NVSwitch that the node itself sees as a PCI function (HGX; on NVL72 the switches are elsewhere)."""

    pci: PciFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class NicPort(Record):
    """One port of ``/sys/class/infiniband/<name>/ports``."""

    number: int
    state: Plain | None = None
    """``ACTIVE``, ``DOWN``, ``INIT``, ``ARMED``."""
    physical_state: Plain | None = None
    """``LinkUp``, ``Disabled``, ``Polling``, ..."""
    link_layer: Plain | None = None
    """``InfiniBand`` or ``Ethernet``."""
    rate_gbit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic(Record):
    """An InfiniBand or RoCE device."""

    name: Plain
    """``mlx5_0``."""
    pci: PciFunction | None = None
    ports: tuple[NicPort, ...] = ()
    firmware: Plain | None = None
    node_guid: str | None = None
    board_id: Plain | None = None
    interfaces: tuple[str, ...] = ()
    """Network interfaces of the same PCI function."""
