"""InfiniBand and RoCE devices, from sysfs, without those that only manage NVLink switches.

From NVLink 5 on the switches of an HGX board are no PCI devices: a ConnectX-7 on the board leads to them, for the
fabric manager and the NVLink subnet manager. It looks like a NIC in all but its Vital Product Data, which says
``SW_MNG`` (Fabric Manager User Guide; https://github.com/NVIDIA/gpu-driver-container). Only root may read these: to
others the management devices are NICs.
"""

from __future__ import annotations

import re

from egmctl.facts import pci
from egmctl.facts.root import Reasons, Root, Unreadable
from egmctl.model.machine import Nic, NicPort, Reason
from egmctl.units import natural

CLASS = "/sys/class/infiniband"
_MANAGER = 0x15B3, 0x1021
"""Vendor and device of a ConnectX-7: the only part that is known to manage NVLink switches."""
_MANAGES = b"SW_MNG"
_VPD_BYTES = 4096
"""More than the Vital Product Data of such a part has."""


def nics(root: Root) -> tuple[Nic, ...]:
    """Return every NIC in natural order of the names; none where the kernel has no InfiniBand class.

    Raises
    ------
    Unreadable
        If there are devices that cannot be listed.
    """
    return tuple(found for found in _devices(root) if not _known_to_manage(root, found))


def management(root: Root) -> tuple[Nic, ...]:
    """Return the devices by which this node manages its NVLink switches.

    Raises
    ------
    Unreadable
        If there are devices that cannot be listed, or one may be such a device and its Vital Product Data are hidden.
    """
    return tuple(found for found in _devices(root) if _manages(root, found))


def _known_to_manage(root: Root, device: Nic) -> bool:
    try:
        return _manages(root, device)
    except Unreadable:
        return False


def _manages(root: Root, device: Nic) -> bool:
    function = device.pci
    if function is None or (function.vendor_id, function.device_id) != _MANAGER:
        return False
    return _MANAGES in root.read_bytes(f"{CLASS}/{device.name}/device/vpd", _VPD_BYTES)


def _devices(root: Root) -> tuple[Nic, ...]:
    try:
        names = root.names(CLASS)
    except Unreadable as error:
        if error.unread.reason is Reason.NOT_PRESENT:
            return ()
        raise
    return tuple(_nic(root, name) for name in sorted(names, key=natural))


def _nic(root: Root, name: str) -> Nic:
    folder = f"{CLASS}/{name}"
    why = Reasons()
    return Nic(
        name=name,
        pci=why.read("pci", lambda: pci.function(root, f"{folder}/device")),
        ports=why.read("ports", lambda: _ports(root, f"{folder}/ports")) or (),
        firmware=why.read("firmware", lambda: root.read(f"{folder}/fw_ver")),
        node_guid=why.read("node_guid", lambda: root.read(f"{folder}/node_guid")),
        board_id=why.read("board_id", lambda: root.read(f"{folder}/board_id")),
        interfaces=tuple(why.read("interfaces", lambda: root.names(f"{folder}/device/net")) or ()),
        unread=why.unread,
    )


def _ports(root: Root, folder: str) -> tuple[NicPort, ...]:
    numbers = sorted(int(name) for name in root.names(folder) if re.fullmatch(r"[0-9]{1,3}", name))
    return tuple(_port(root, f"{folder}/{number}", number) for number in numbers)


def _port(root: Root, folder: str, number: int) -> NicPort:
    why = Reasons()
    return NicPort(
        number=number,
        state=why.read("state", lambda: _word(root, f"{folder}/state")),
        physical_state=why.read("physical_state", lambda: _word(root, f"{folder}/phys_state")),
        link_layer=why.read("link_layer", lambda: root.read(f"{folder}/link_layer")),
        rate_gbit_s=why.read("rate_gbit_s", lambda: _rate(root, f"{folder}/rate")),
        unread=why.unread,
    )


def _word(root: Root, path: str) -> str:
    """Return the word of ``4: ACTIVE``."""
    return root.read(path).rpartition(":")[2].strip()


def _rate(root: Root, path: str) -> float:
    # "400 Gb/sec (4X NDR)", "2.5 Gb/sec (1X SDR)".
    if match := re.match(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec", root.read(path), re.ASCII):
        return float(match[1])
    raise Unreadable(Reason.FAILED, f"{path}: no rate")
