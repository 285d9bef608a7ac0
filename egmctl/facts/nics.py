"""InfiniBand and RoCE devices, from sysfs."""

from __future__ import annotations

import re

from egmctl.facts import pci
from egmctl.facts.root import Reasons, Root, Unreadable
from egmctl.model.machine import Nic, NicPort, Reason
from egmctl.units import natural

CLASS = "/sys/class/infiniband"


def nics(root: Root) -> tuple[Nic, ...]:
    """Return every device in natural order of the names; none where the kernel has no InfiniBand class.

    Raises
    ------
    Unreadable
        If there are devices that cannot be listed.
    """
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
