"""How much memory a run may take: at most a share of what is free, so that no host is driven out of memory. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from egmctl.bench.buffers import Peak, peaks
from egmctl.errors import UsageError
from egmctl.model.machine import Machine
from egmctl.model.measurement import Task
from egmctl.units import MIB, format_size

if TYPE_CHECKING:
    from egmctl.bench.plan import Plan


def check_memory(plan: Plan, machine: Machine, cgroup_left_bytes: int | None = None) -> None:
    """Refuse a plan whose buffers would take more than its share of what is free on a GPU, a NUMA node or the host.

    Parameters
    ----------
    cgroup_left_bytes
        What the cgroup's limit leaves to this process, ``None`` without one.

    Raises
    ------
    UsageError
        Naming the first place that is too small and the size that would fit it.
    """
    share = plan.settings.memory_percent
    for peak, free in _excesses(plan.peaks, machine, share, cgroup_left_bytes):
        fits = _fitting_mib(plan, peak, free)
        raise UsageError(
            f"--size {format_size(plan.settings.size_bytes)} {_takes(peak, free, share)}; "
            + (f"at most --size {fits}M fits" if fits else "nothing fits")
        )


def smaller_size(plan: Plan, machine: Machine, cgroup_left_bytes: int | None = None) -> tuple[int, str] | None:
    """Return a size with which a plan fits and the place that asks for it; ``None`` where it fits, or none would.

    For a size that nobody chose: it gives way to what is free, and the report says so.
    """
    excesses = _excesses(plan.peaks, machine, plan.settings.memory_percent, cgroup_left_bytes)
    sizes = [(_fitting_mib(plan, peak, free), peak) for peak, free in excesses]
    fits, peak = min(sizes, key=lambda item: item[0], default=(0, None))
    return (fits * MIB, _name(peak)) if fits and peak else None


def too_large(machine: Machine, task: Task, share: int) -> str | None:
    """Say why a task whose size nobody chose does not fit by itself; ``None`` if it does.

    Parameters
    ----------
    share
        Per cent of what is free.
    """
    for peak, free in _excesses(peaks([[task]]), machine, share):
        return f"it {_takes(peak, free, share)}"
    return None


def free_bytes(machine: Machine, peak: Peak) -> int | None:
    """Return what is free at a place, ``None`` where the facts do not say."""
    host, place = machine.host, peak.place
    if place is None:
        return host.memory_available_bytes if host else None
    if place.bus_id is None:
        nodes = (host.numa_nodes if host else None) or ()
        return next((node.memory_free_bytes for node in nodes if node.id == place.numa_node), None)
    nvml = machine.gpu(place.bus_id).nvml
    if nvml is None or nvml.memory_total_bytes is None or nvml.memory_used_bytes is None:
        return None
    return nvml.memory_total_bytes - nvml.memory_used_bytes


def _excesses(
    wanted: Iterable[Peak], machine: Machine, share: int, cgroup_left_bytes: int | None = None
) -> Iterator[tuple[Peak, int]]:
    """Yield what takes more than its share of a place, with the bytes free there."""
    for peak in wanted:
        free = free_bytes(machine, peak)
        if peak.place is None and cgroup_left_bytes is not None:
            free = cgroup_left_bytes if free is None else min(free, cgroup_left_bytes)
        if free is not None and peak.bytes > free * share // 100:
            yield peak, free


def _fitting_mib(plan: Plan, peak: Peak, free: int) -> int:
    return plan.settings.size_bytes * (free * plan.settings.memory_percent // 100) // peak.bytes // MIB


def _name(peak: Peak) -> str:
    return peak.place.label if peak.place else "the host"


def _takes(peak: Peak, free: int, share: int) -> str:
    part = "half" if share == 50 else f"{share} %"
    return f"takes {format_size(peak.bytes)} on {_name(peak)}, more than {part} of the {format_size(free)} free there"
