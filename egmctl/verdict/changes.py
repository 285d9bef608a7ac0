"""Compares what was read of a node before and after a run: what changed meanwhile is the first cause of what failed."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.model.change import Change, ChangeKind
from egmctl.model.gpu import Gpu, GpuNvml
from egmctl.model.machine import Machine
from egmctl.topology.access import device_node_obstacle, obstacle
from egmctl.units import several


def changes(before: Machine, after: Machine) -> tuple[Change, ...]:
    """Return what got worse on the GPUs of a node between two readings; what was not read both times is no change."""
    now = {gpu.bus_id: gpu for gpu in after.gpus or ()}
    return tuple(
        Change(kind=kind, bus_id=gpu.bus_id, label=f"GPU{gpu.index}", before=was, after=became)
        for gpu in before.gpus or ()
        if gpu.bus_id in now
        for kind, was, became in _of_gpu(before, gpu, after, now[gpu.bus_id])
    )


_Difference = tuple[ChangeKind, str, str]


def _of_gpu(before: Machine, gpu: Gpu, after: Machine, now: Gpu) -> Iterator[_Difference]:
    if (denied := _denied(now)) is not None and _denied(gpu) is None:
        # A library that opened the device before goes on; a new process cannot.
        yield ChangeKind.ACCESS, "usable", denied
        return
    was, became = obstacle(before, gpu), obstacle(after, now)
    if gpu.nvml is not None and now.nvml is None:
        yield ChangeKind.LOST, "listed by NVML", became.cause if became else "not listed by NVML"
        return
    if was is None and became is not None:
        yield ChangeKind.LOST, "usable", became.cause
        return
    if gpu.nvml is None or now.nvml is None:
        return
    yield from _of_fabric(gpu.nvml, now.nvml)
    links, links_now = _active_links(gpu.nvml), _active_links(now.nvml)
    if links is not None and links_now is not None and links_now < links:
        yield ChangeKind.NVLINKS, f"{several(links, 'NVLink')} active", f"{links_now} active"
    lanes, lanes_now = _lanes(gpu), _lanes(now)
    # An idle link lowers its rate, and only from PCI Express 6.0 on its width.
    if lanes is not None and lanes_now is not None and lanes_now < lanes:
        yield ChangeKind.PCIE, f"PCIe x{lanes}", f"x{lanes_now}"


def _denied(gpu: Gpu) -> str | None:
    """Return why a GPU's device node cannot be opened; ``None`` if it can, or if that was not read."""
    if gpu.node is None:
        return None
    if not gpu.node.exists:
        return f"{gpu.node.path} is gone"
    obstacle_of_node = device_node_obstacle(gpu.node, (None, None))
    return None if obstacle_of_node is None else obstacle_of_node.cause


def _active_links(nvml: GpuNvml) -> int | None:
    states = [link.active for link in nvml.nvlinks or ()]
    return None if None in states or not states else sum(map(bool, states))


def _lanes(gpu: Gpu) -> int | None:
    link = gpu.pci.link if gpu.pci else None
    return None if link is None or link.sheds_lanes else link.width


def _of_fabric(was: GpuNvml, became: GpuNvml) -> Iterator[_Difference]:
    if was.fabric is None or became.fabric is None or was.fabric.state is None or became.fabric.state is None:
        return
    if was.fabric.registered and not became.fabric.registered:
        status = f", error {became.fabric.status}" if became.fabric.status else ""
        yield ChangeKind.FABRIC, "registered with the fabric", f"{became.fabric.state}{status}"
    elif was.fabric.health is not None and became.fabric.health is not None:
        harmful = ("true", "incorrect")
        worse = [
            name
            for name, value in became.fabric.health.items()
            if value.startswith(harmful) and was.fabric.health.get(name) == "false"
        ]
        if worse:
            yield ChangeKind.FABRIC, "fabric healthy", f"fabric unhealthy: {', '.join(worse)}"
