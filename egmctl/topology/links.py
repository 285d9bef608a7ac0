"""The link between two GPUs, two NICs, or a GPU and a NIC, in the words of ``nvidia-smi topo -m``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from egmctl.model.machine import Gpu, Machine, Nic, NumaKind, NvLink, Pair, PciFunction, Reason
from egmctl.model.route import LinkClass
from egmctl.topology.access import without_nvml


@dataclass(frozen=True, slots=True)
class Link:
    """The best link between two devices. It has no direction."""

    kind: LinkClass
    nvlinks: int | None = None
    """Active NVLinks that join the two; ``None`` where that is not known or makes no sense (NICs)."""
    nvlinks_expected: int | None = None
    """How many there should be, where fewer are active."""
    through: str | None = None
    """``direct`` or ``switch``, for NVLink."""
    pci: LinkClass = LinkClass.UNKNOWN
    """The class without NVLink, as ``nvidia-smi topo -mp`` shows it."""
    reason: str = ""
    """Why :attr:`kind` is unknown."""
    unlisted: bool = False
    """That is because NVML does not list one of the two GPUs."""

    @property
    def symbol(self) -> str:
        """``NV18``, ``PIX``, ..., ``?``."""
        return f"NV{self.nvlinks}" if self.kind is LinkClass.NVLINK else self.kind.value


_ANCESTORS = {
    "internal": LinkClass.PIX,
    "single": LinkClass.PIX,
    "multiple": LinkClass.PXB,
    "hostbridge": LinkClass.PHB,
    "node": LinkClass.NODE,
    "system": LinkClass.SYS,
}
"""NVML's topology levels. ``internal`` (two GPUs of one board, as on a Tesla K80) has no symbol of its own."""


def gpu_link(machine: Machine, first: Gpu, second: Gpu) -> Link:
    """Return the link between two GPUs: NVLink where active links join them, else their place on PCIe.

    The PCIe class is NVML's common ancestor, which is what nvidia-smi prints; where NVML does not say, it is derived
    from the PCI paths. Where the two directions differ, the link is the lesser one.
    """
    first, second = sorted((first, second), key=lambda gpu: gpu.bus_id)
    pairs = [p for p in (machine.pair(first.bus_id, second.bus_id), machine.pair(second.bus_id, first.bus_id)) if p]
    ancestor = next((p.common_ancestor for p in pairs if p.common_ancestor), None)
    if ancestor in _ANCESTORS:
        pci, reason = _ANCESTORS[ancestor], ""
    else:
        pci, reason = _pci_class(machine, (first.pci, first.host_numa_id), (second.pci, second.host_numa_id))
    counts = [p.nvlink_count for p in pairs if p.nvlink_count is not None]
    if counts and min(counts) > 0:
        nvlinks = min(counts)
        expected = _expected_nvlinks(machine, first, second, pairs[0])
        return Link(
            kind=LinkClass.NVLINK,
            nvlinks=nvlinks,
            nvlinks_expected=expected if expected > nvlinks else None,
            through=pairs[0].nvlink_through,
            pci=pci,
        )
    if not counts and not has_no_nvlink(first) and not has_no_nvlink(second):
        unlisted = [f"GPU{gpu.index}" for gpu in (first, second) if gpu.nvml is None]
        why = without_nvml(machine, " and ".join(unlisted)) if unlisted else "NVML does not report the NVLinks"
        return Link(kind=LinkClass.UNKNOWN, pci=pci, reason=why, unlisted=bool(unlisted))
    return Link(kind=pci, nvlinks=0, pci=pci, reason=reason)


def gpu_nic_link(machine: Machine, gpu: Gpu, nic: Nic) -> Link:
    """Return the link between a GPU and a NIC, from their PCI paths and NUMA nodes."""
    return _pci_link(machine, (gpu.pci, gpu.host_numa_id), _nic_location(nic))


def nic_link(machine: Machine, first: Nic, second: Nic) -> Link:
    """Return the link between two NICs, from their PCI paths and NUMA nodes."""
    return _pci_link(machine, _nic_location(first), _nic_location(second))


_Location = tuple[PciFunction | None, int | None]
"""A PCI function and its CPU NUMA node."""


def _nic_location(nic: Nic) -> _Location:
    return nic.pci, None if nic.pci is None else nic.pci.numa_node


def _pci_link(machine: Machine, first: _Location, second: _Location) -> Link:
    kind, reason = _pci_class(machine, first, second)
    return Link(kind=kind, pci=kind, reason=reason)


def _pci_class(machine: Machine, first: _Location, second: _Location) -> tuple[LinkClass, str]:
    """Derive nvidia-smi's class from two sysfs paths; the second value says why where it is unknown.

    In sysfs a PCIe switch is two bridges, its upstream port and one downstream port for each device; nvidia-smi's
    "single bridge" is one such switch (nvml.h: NVML_TOPOLOGY_SINGLE, "all devices that only need traverse a single
    PCIe switch"). So two devices are PIX if below the deepest bridge they share each has at most one more (its own
    downstream port), or none (two functions of one device, or one bus), and PXB if either has more. A root complex
    is no bridge: devices that share nothing else meet in the host bridge.
    """
    one, other = first[0], second[0]
    if one is None or other is None or not one.path or not other.path:
        return LinkClass.UNKNOWN, "the PCI path was not read"
    if one.bus_id.rpartition(".")[0] == other.bus_id.rpartition(".")[0]:
        return LinkClass.PIX, ""
    alike = (a == b for a, b in zip(one.path, other.path, strict=False))
    shared = sum(takewhile(bool, alike))
    if shared >= 2:
        below = max(len(one.path), len(other.path)) - shared
        return (LinkClass.PIX if below <= 1 else LinkClass.PXB), ""
    if shared == 1:
        return LinkClass.PHB, ""
    nodes = [-1 if node is None else node for _, node in (first, second)]
    if min(nodes) >= 0:
        return (LinkClass.NODE if nodes[0] == nodes[1] else LinkClass.SYS), ""
    if len(cpu_node_ids(machine)) == 1:
        return LinkClass.NODE, ""
    return LinkClass.UNKNOWN, "two host bridges, and the firmware does not say which NUMA nodes they belong to"


def cpu_node_ids(machine: Machine) -> tuple[int, ...]:
    """Return the ids of the NUMA nodes with CPUs; empty where the nodes were not read."""
    nodes = (machine.host.numa_nodes if machine.host else None) or ()
    return tuple(node.id for node in nodes if node.kind in (NumaKind.CPU, NumaKind.CPU_ONLY))


def active_nvlinks(gpu: Gpu) -> int | None:
    """Return how many of a GPU's NVLinks are active; ``None`` where NVML did not say it of each of them."""
    links = gpu.nvml.nvlinks if gpu.nvml else None
    states = None if links is None else [link.active for link in links]
    return None if states is None or None in states else sum(map(bool, states))


def nvlinks_between(first: Gpu, second: Gpu) -> tuple[NvLink, ...]:
    """Return the direct links of both ends that lead from one GPU to the other, up or down."""
    ends = ((first, second), (second, first))
    return tuple(link for gpu, other in ends for link in nvlinks_of(gpu) if link.remote_bus_id == other.bus_id)


def nvlink_joins(machine: Machine, first: Gpu, second: Gpu) -> bool:
    """Say whether NVLink joins two GPUs, or did before links went down.

    Switches join all GPUs that have links. NVML need not say where a direct link leads that is down: then both GPUs
    must lack some, because on bridges two GPUs of different bridges are never joined.
    """
    pairs = [p for p in (machine.pair(first.bus_id, second.bus_id), machine.pair(second.bus_id, first.bus_id)) if p]
    if any(pair.nvlink_count for pair in pairs) or nvlinks_between(first, second):
        return True
    if has_no_nvlink(first) or has_no_nvlink(second):
        return False
    gpus = machine.gpus or ()
    if machine.switches or any(link.remote_type == "switch" for gpu in gpus for link in nvlinks_of(gpu)):
        return True
    fabrics = [gpu.nvml.fabric.state if gpu.nvml and gpu.nvml.fabric else None for gpu in (first, second)]
    if all(state in ("not-started", "in-progress", "completed") for state in fabrics):
        return True
    return all(_lacks_nvlinks(gpu, gpus) for gpu in (first, second))


def _lacks_nvlinks(gpu: Gpu, gpus: Sequence[Gpu]) -> bool:
    """Say whether a GPU has links that are down and may lead to a GPU of the node: not those that its board leaves out.

    In a mesh all lack those to a GPU whose links are down; of a bridge, which leads to one GPU, the other end does.
    """
    down = [link for link in nvlinks_of(gpu) if link.active is False]
    if not any(link.remote_bus_id is None for link in down):
        return False
    usual = max((active_nvlinks(other) or 0 for other in gpus if other.name == gpu.name), default=0)
    meshed = any(
        len({link.remote_bus_id for link in nvlinks_of(other) if link.active and link.remote_bus_id}) > 1
        for other in gpus
    )
    return meshed or (active_nvlinks(gpu) or 0) < usual


def nvlinks_of(gpu: Gpu) -> tuple[NvLink, ...]:
    """Return a GPU's NVLinks, up or down; none where NVML lists none."""
    return (gpu.nvml.nvlinks if gpu.nvml else None) or ()


def has_no_nvlink(gpu: Gpu) -> bool:
    """Say whether NVML says that a GPU has no NVLinks."""
    if gpu.nvml is None:
        return False
    unsupported = [gpu.nvml.unread.get(name) for name in ("nvlinks", "nvlink_count")]
    return gpu.nvml.nvlinks == () or any(u is not None and u.reason is Reason.NOT_SUPPORTED for u in unsupported)


def _expected_nvlinks(machine: Machine, first: Gpu, second: Gpu, pair: Pair) -> int:
    """Return how many NVLinks should join two GPUs; 0 where nothing says that any is missing.

    Through switches every link of both GPUs leads to every other GPU, so the part's own count is the measure. Direct
    links are shared out between peers, in some systems unevenly by design (DGX-1), so there a pair falls short only if
    one of its GPUs also has fewer active links than most of its peers.
    """
    siblings = [p.nvlink_count for p in machine.pairs or () if p.nvlink_count]
    if pair.nvlink_through == "switch":
        parts = [gpu.nvml.nvlink_count for gpu in (first, second) if gpu.nvml and gpu.nvml.nvlink_count]
        return max([*siblings, *(parts if len(parts) == 2 and parts[0] == parts[1] else [])])
    usual = _usual([count for gpu in machine.gpus or () if (count := active_nvlinks(gpu))])
    short = any((active_nvlinks(gpu) or usual) < usual for gpu in (first, second))
    return _usual(siblings) if short else 0


def _usual(counts: Sequence[int]) -> int:
    """Return the most frequent count, the larger of two equally frequent ones, 0 of none."""
    return max(Counter(counts).items(), key=lambda item: (item[1], item[0]), default=(0, 0))[0]
