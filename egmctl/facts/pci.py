"""NVIDIA's PCI functions, and where a PCI function sits, from sysfs.

sysfs shows all of the machine's functions, in a container as well, and whether or not a driver is bound: this is
the universe that a lost GPU is missing from.
"""

from __future__ import annotations

import re
from contextlib import suppress

from egmctl.facts.root import Reasons, Root, Unreadable
from egmctl.model.machine import PcieLink, PciFunction, Reason

DEVICES = "/sys/bus/pci/devices"
NVIDIA = 0x10DE

_GPU_CLASSES = (0x0300, 0x0302)
"""VGA controller and 3D controller: base class and subclass of PCI's class code."""
_NVSWITCH_CLASS = 0x0680
"""Bridge device, other."""

_DATA_DIRECT = (0x15B3, 0x2100)
"""Vendor and device of a ConnectX-8's DMA controller (rdma-core, kernel-boot/rdma_topo)."""

BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
"""A bus id; a domain has more than four digits behind Intel's VMD."""


def nvidia_functions(root: Root) -> tuple[PciFunction, ...]:
    """Return NVIDIA's GPUs and NVSwitches in the order of their bus ids.

    A big node has over a thousand functions: of the others only the vendor is read.

    Raises
    ------
    Unreadable
        If there is no list of PCI devices.
    """
    found = []
    for bus_id in root.names(DEVICES):
        if not BUS_ID.fullmatch(bus_id):
            continue
        try:
            wanted = root.number(f"{DEVICES}/{bus_id}/vendor", 16) == NVIDIA and root.number(
                f"{DEVICES}/{bus_id}/class", 16
            ) >> 8 in (*_GPU_CLASSES, _NVSWITCH_CLASS)
        except Unreadable:
            continue
        if wanted:
            found.append(function(root, f"{DEVICES}/{bus_id}"))
    return tuple(found)


def data_direct(root: Root) -> tuple[PciFunction, ...]:
    """Return the Data Direct functions of NICs, in the order of their bus ids.

    Raises
    ------
    Unreadable
        If there is no list of PCI devices.
    """
    found = []
    for bus_id in root.names(DEVICES):
        folder = f"{DEVICES}/{bus_id}"
        with suppress(Unreadable):
            if (root.number(f"{folder}/vendor", 16), root.number(f"{folder}/device", 16)) == _DATA_DIRECT:
                found.append(function(root, folder))
    return tuple(found)


def is_gpu(found: PciFunction) -> bool:
    """Return whether one of :func:`nvidia_functions` is a GPU; else it is an NVSwitch."""
    return found.class_code is not None and found.class_code >> 8 in _GPU_CLASSES


def function(root: Root, place: str) -> PciFunction:
    """Read one function.

    Parameters
    ----------
    place
        A sysfs link to it: ``/sys/bus/pci/devices/0000:1b:00.0``, ``/sys/class/infiniband/mlx5_0/device``.

    Raises
    ------
    Unreadable
        If the link leads nowhere or to something that is not a PCI function.
    """
    components = root.resolve(place).split("/")
    bus_id = components[-1]
    if not BUS_ID.fullmatch(bus_id):
        raise Unreadable(Reason.NOT_PRESENT, f"{place}: not a PCI function")
    folder = f"{DEVICES}/{bus_id}"
    why = Reasons()
    return PciFunction(
        bus_id=bus_id,
        vendor_id=why.read("vendor_id", lambda: root.number(f"{folder}/vendor", 16)),
        device_id=why.read("device_id", lambda: root.number(f"{folder}/device", 16)),
        subsystem_vendor_id=why.read("subsystem_vendor_id", lambda: root.number(f"{folder}/subsystem_vendor", 16)),
        subsystem_device_id=why.read("subsystem_device_id", lambda: root.number(f"{folder}/subsystem_device", 16)),
        class_code=why.read("class_code", lambda: root.number(f"{folder}/class", 16)),
        path=why.read("path", lambda: _path(components)),
        numa_node=why.read("numa_node", lambda: root.number(f"{folder}/numa_node")),
        local_cpus=why.read("local_cpus", lambda: root.kernel_list(f"{folder}/local_cpulist")),
        link=link(root, folder),
        driver=why.read("driver", lambda: _driver(root, folder)),
        responds=why.read("responds", lambda: _responds(root, folder)),
        unread=why.unread,
    )


def _path(place: list[str]) -> tuple[str, ...]:
    """Return the components of a sysfs path from the root complex (``pci0000:16``) to the last one but one."""
    for i, component in enumerate(place):
        if re.fullmatch(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", component):
            return tuple(place[i:-1])
    raise Unreadable(Reason.NOT_PRESENT, f"{DEVICES}/{place[-1]}: not below a root complex")


def link(root: Root, folder: str) -> PcieLink:
    """Read the link's state in a function's folder; of a bridge it is the link below."""
    why = Reasons()
    return PcieLink(
        speed_gt_s=why.read("speed_gt_s", lambda: _speed(root, f"{folder}/current_link_speed")),
        width=why.read("width", lambda: _width(root, f"{folder}/current_link_width")),
        max_speed_gt_s=why.read("max_speed_gt_s", lambda: _speed(root, f"{folder}/max_link_speed")),
        max_width=why.read("max_width", lambda: _width(root, f"{folder}/max_link_width")),
        unread=why.unread,
    )


def _speed(root: Root, path: str) -> float:
    text = root.read(path)
    # "32.0 GT/s PCIe"; "8 GT/s" before Linux 5.7; "Unknown" where the link is down or the device is gone.
    if match := re.match(r"([0-9]{1,4}(?:\.[0-9]{1,3})?) GT/s", text, re.ASCII):
        return float(match[1])
    raise Unreadable(Reason.NOT_SUPPORTED if text.startswith("Unknown") else Reason.FAILED, f"{path}: no speed")


def _width(root: Root, path: str) -> int:
    width = root.number(path)
    # PCI_EXP_LNKSTA_NLW of a link that is down is 0; PCIE_LNK_WIDTH_UNKNOWN is 255 (include/linux/pci.h).
    if width in (0, 255):
        raise Unreadable(Reason.NOT_SUPPORTED, f"{path}: {width}, no width")
    return width


def _driver(root: Root, folder: str) -> str:
    try:
        return root.resolve(f"{folder}/driver").rpartition("/")[2]
    except Unreadable as error:
        if error.unread.reason is Reason.NOT_PRESENT:
            return ""
        raise


def _responds(root: Root, folder: str) -> bool:
    # Reads of a device that is gone end in all ones; the other files of sysfs are the kernel's own memory.
    vendor_and_device = root.read_bytes(f"{folder}/config", 4)
    if len(vendor_and_device) < 4:
        raise Unreadable(Reason.FAILED, f"{folder}/config: shorter than 4 bytes")
    return vendor_and_device != b"\xff\xff\xff\xff"
