"""The limits that cgroups set on the memory of GPUs: the ``dmem`` controller of Linux 6.14.

Its files have a line for each region, ``REGION BYTES`` or ``REGION max``. The driver's region of a GPU's memory is
``nvidia/BUS_ID/vidmem`` (NVIDIA's guide to MPS v3 memory partitioning; not seen on hardware). Whether memory of
HOST_NUMA is charged is not documented.
"""

from __future__ import annotations

import re
from functools import partial

from egmctl.driver.reading import BUS_ID, Reasons, Unreadable, if_present, normal_bus_id
from egmctl.facts.inside import device_cgroup
from egmctl.facts.root import Root
from egmctl.model.host import DeviceMemoryLimit
from egmctl.model.record import Reason

_REGION = re.compile(
    rf"nvidia/(?P<bus_id>{BUS_ID.pattern})/vidmem (?P<limit>[0-9]{{1,20}}|max)", re.ASCII | re.IGNORECASE
)


def directory(root: Root, pid: int) -> str:
    """Return the directory of a process' cgroup of version 2, ``pid`` 0 for this process.

    Raises
    ------
    Unreadable
        The process is in no such cgroup, or the hierarchy is not mounted here.
    """
    return root.path(device_cgroup(root, f"/proc/{pid or 'self'}", 2)[-1])


def limits(root: Root, folder: str) -> tuple[DeviceMemoryLimit, ...]:
    """Return what the cgroups of a process state about the memory of each GPU, the outermost cgroup first.

    Parameters
    ----------
    folder
        The ``/proc`` folder of the process.

    Raises
    ------
    Unreadable
        The process is in no cgroup of version 2, or the hierarchy is not mounted here, or a file that is there cannot
        be read or says something else of an NVIDIA GPU.
    """
    places = device_cgroup(root, folder, 2)
    return tuple(limit for place in places for limit in _limits_in(root, place, place.removeprefix(places[0]) or "/"))


def capacity(root: Root, folder: str) -> dict[str, int]:
    """Return the memory of each GPU by bus id, as the root cgroup states it.

    Raises
    ------
    Unreadable
        As for :func:`limits`, or the kernel lacks the controller, or a cgroup namespace hides the root.
    """
    return _regions(root, f"{device_cgroup(root, folder, 2)[0]}/dmem.capacity")


def _limits_in(root: Root, place: str, cgroup: str) -> tuple[DeviceMemoryLimit, ...]:
    names = ("max", "min", "low", "current")
    # The root cgroup has none of the first three, and a cgroup whose parent did not turn the controller on has no file.
    files: dict[str, dict[str, int]] = {
        f"{name}_bytes": if_present({}, partial(_regions, root, f"{place}/dmem.{name}")) for name in names
    }
    bus_ids = dict.fromkeys(bus_id for regions in files.values() for bus_id in regions)
    absent = Unreadable(Reason.NOT_PRESENT, f"{place}: no dmem file names it")
    return tuple(
        Reasons().record(
            DeviceMemoryLimit,
            cgroup=cgroup,
            bus_id=bus_id,
            **{name: regions.get(bus_id, absent) for name, regions in files.items()},
        )
        for bus_id in bus_ids
    )


def _regions(root: Root, path: str) -> dict[str, int]:
    regions = {}
    for line in root.lines(path):
        if not line.startswith("nvidia/"):
            continue
        if (match := _REGION.fullmatch(line)) is None:
            raise Unreadable(Reason.FAILED, f"{path}: an unknown line of a region of nvidia")
        limit = match["limit"]
        regions[normal_bus_id(match["bus_id"])] = -1 if limit == "max" else int(limit)
    return regions
