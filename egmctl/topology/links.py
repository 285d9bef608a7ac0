"""The link between two GPUs or network cards, the rates of links, and what the drivers say of peer access."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations, takewhile

from egmctl.model.gpu import Gpu, NvLink, Pair
from egmctl.model.host import Nic, NumaKind
from egmctl.model.machine import Machine
from egmctl.model.record import Reason
from egmctl.model.route import Hop, LinkClass, LinkKind
from egmctl.topology.access import without_nvml

NEAR = (LinkClass.PIX, LinkClass.PXB)
"""The links of a NIC that shares PCIe bridges with a GPU, below the host bridge; the nearest first."""


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
    source: str = ""
    target: str = ""
    """Labels of both ends, ``GPU0`` and ``NIC1``, of a link of a :class:`egmctl.topology.topology.Topology`."""
    symbol: str = field(init=False)
    """As in the matrix, without marks: ``NV18``, ``PIX``, ..., ``?``."""

    def __post_init__(self) -> None:
        symbol = f"NV{self.nvlinks}" if self.kind is LinkClass.NVLINK else self.kind.value
        object.__setattr__(self, "symbol", symbol)


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
    pairs = _pairs(machine, first, second)
    ancestor = next((pair.common_ancestor for pair in pairs if pair.common_ancestor), None)
    pci, reason = _pci_class(machine, first, second)
    if ancestor in _ANCESTORS:
        pci, reason = _ANCESTORS[ancestor], ""
    nvlinks = min((pair.nvlink_count for pair in pairs if pair.nvlink_count is not None), default=None)
    if nvlinks:
        expected = _expected_nvlinks(machine, first, second, pairs[0])
        return Link(
            kind=LinkClass.NVLINK,
            nvlinks=nvlinks,
            nvlinks_expected=expected if expected > nvlinks else None,
            through=pairs[0].nvlink_through,
            pci=pci,
        )
    if nvlinks is None and not has_no_nvlink(first) and not has_no_nvlink(second):
        unlisted = [f"GPU{gpu.index}" for gpu in (first, second) if gpu.nvml is None]
        reason = without_nvml(machine, " and ".join(unlisted)) if unlisted else "NVML does not report the NVLinks"
        return Link(kind=LinkClass.UNKNOWN, pci=pci, reason=reason, unlisted=bool(unlisted))
    return Link(kind=pci, nvlinks=0, pci=pci, reason=reason)


def _pairs(machine: Machine, first: Gpu, second: Gpu) -> list[Pair]:
    """Return what was read of two GPUs, in both directions."""
    pairs = (machine.pair(first.bus_id, second.bus_id), machine.pair(second.bus_id, first.bus_id))
    return [pair for pair in pairs if pair is not None]


def device_link(machine: Machine, first: Gpu | Nic, second: Gpu | Nic) -> Link:
    """Return the link between two devices; to a NIC it is the place of both on PCIe."""
    if isinstance(first, Gpu) and isinstance(second, Gpu):
        return gpu_link(machine, first, second)
    kind, reason = _pci_class(machine, first, second)
    return Link(kind=kind, pci=kind, reason=reason)


def _pci_class(machine: Machine, first: Gpu | Nic, second: Gpu | Nic) -> tuple[LinkClass, str]:
    """Derive nvidia-smi's class from two sysfs paths and NUMA nodes; the second value says why where it is unknown.

    In sysfs a PCIe switch is two bridges, its upstream port and one downstream port for each device; nvidia-smi's
    "single bridge" is one such switch (nvml.h: NVML_TOPOLOGY_SINGLE, "all devices that only need traverse a single
    PCIe switch"). So two devices are PIX if below the deepest bridge they share each has at most one more (its own
    downstream port), or none (two functions of one device, or one bus), and PXB if either has more. A root complex
    is no bridge: devices that share nothing else meet in the host bridge.
    """
    function, other = first.pci, second.pci
    if function is None or other is None or not function.path or not other.path:
        return LinkClass.UNKNOWN, "the PCI path was not read"
    if function.bus_id.rpartition(".")[0] == other.bus_id.rpartition(".")[0]:
        return LinkClass.PIX, ""
    shared = sum(takewhile(bool, (a == b for a, b in zip(function.path, other.path, strict=False))))
    if shared >= 2:
        below = max(len(function.path), len(other.path)) - shared
        return (LinkClass.PIX if below <= 1 else LinkClass.PXB), ""
    if shared == 1:
        return LinkClass.PHB, ""
    nodes = {first.host_numa_id, second.host_numa_id}
    if None not in nodes:
        return (LinkClass.NODE if len(nodes) == 1 else LinkClass.SYS), ""
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
    if any(pair.nvlink_count for pair in _pairs(machine, first, second)) or nvlinks_between(first, second):
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
    reasons = [gpu.nvml.reason_of(name) for name in ("nvlinks", "nvlink_count")]
    return gpu.nvml.nvlinks == () or Reason.NOT_SUPPORTED in reasons


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


NVML_INDICES = ("read", "write", "nvlink", "atomics", "pci")
"""The capabilities of ``nvidia-smi topo -p2p``, by their names in :attr:`Pair.p2p_status`."""

CUDA_ATTRIBUTES = {
    "access": "ACCESS_SUPPORTED",
    "native atomics": "NATIVE_ATOMIC_SUPPORTED",
    "array access": "CUDA_ARRAY_ACCESS_SUPPORTED",
    "performance rank": "PERFORMANCE_RANK",
}
"""What people call the CUdevice_P2PAttributes, and their names."""


@dataclass(frozen=True, slots=True)
class P2pMatrix:
    """One capability, or several that are equal for each pair."""

    source: str
    """``NVML`` or ``CUDA``."""
    names: tuple[str, ...]
    cells: Mapping[tuple[str, str], str]
    """By the labels of the GPU that accesses and of the GPU that is accessed; ``?`` where it was not read."""

    @property
    def uniform(self) -> bool:
        """Whether all pairs have the same value."""
        return len(set(self.cells.values())) == 1

    @property
    def value(self) -> str:
        """The value of a uniform matrix."""
        return next(iter(self.cells.values()))


def matrices(machine: Machine, gpus: Mapping[str, Gpu]) -> tuple[P2pMatrix, ...]:
    """Return the P2P capabilities of some GPUs, by label, those with equal matrices together; none for a single GPU."""
    pairs = {
        (source, target): machine.pair(gpus[source].bus_id, gpus[target].bus_id)
        for source, target in permutations(gpus, 2)
    }
    result: list[P2pMatrix] = []
    for library, names in (("NVML", NVML_INDICES), ("CUDA", tuple(CUDA_ATTRIBUTES))):
        groups: dict[tuple[str, ...], list[str]] = {}
        for name in names if pairs else ():
            groups.setdefault(tuple(_value(pair, name) for pair in pairs.values()), []).append(name)
        result += [
            P2pMatrix(library, tuple(alike), dict(zip(pairs, values, strict=True))) for values, alike in groups.items()
        ]
    return tuple(result)


def _value(pair: Pair | None, name: str) -> str:
    if pair is None:
        return "?"
    if name in NVML_INDICES:
        return pair.p2p_status.get(name) or "?"
    value = pair.cuda_attributes.get(CUDA_ATTRIBUTES[name])
    if value is None:
        return "?"
    return str(value) if name == "performance rank" else ("yes" if value else "no")


def nvlink(gpu: Gpu, links: int) -> Hop:
    """Return ``links`` bonded NVLinks of a GPU with their payload rate.

    Notes
    -----
    NVML reports an NVLink 4 or 5 link's signalling rate, 26562 or 53125 MB/s. The published payload rate is 16/17 of
    it: 18 x 26.5625 x 16/17 = 450 GB/s for H100 (900 GB/s both ways, "NVIDIA H100 Tensor Core GPU" datasheet) and
    18 x 53.125 x 16/17 = 900 GB/s for GB200 (1.8 TB/s both ways, "NVIDIA GB200 NVL72" product page). No such rule is
    published for other generations, so they stay unknown.
    """
    active = [link for link in nvlinks_of(gpu) if link.active]
    speeds = [link.speed_mb_s for link in active if link.speed_mb_s is not None]
    versions = {link.version for link in active}
    gb_s, reason = None, ""
    if not speeds or len(speeds) < len(active):
        reason = "NVML does not report the NVLink speed"
    elif min(speeds) <= 0:
        reason = f"NVML reports an active NVLink of {min(speeds)} MB/s"
    elif not versions <= set(_NVLINK_WITH_16_17):
        reason = "no published rule from signalling to payload rate for this NVLink version"
    else:
        gb_s = links * min(speeds) * 16 / 17 / 1000
    return Hop(link=LinkKind.NVLINK, nvlinks=links, nominal_gb_s=gb_s, reason=reason)


_NVLINK_WITH_16_17 = (6, 7)
"""NVML_NVLINK_VERSION_4_0 and _5_0 (nvml.h)."""


def without_speed(gpu: Gpu) -> dict[LinkKind, tuple[int, ...]]:
    """Return by kind the numbers of a GPU's links that NVML calls active at 0 MB/s: one of its two answers is wrong."""
    nvml = gpu.nvml
    nvlinks = [link.link for link in nvlinks_of(gpu) if link.active and link.speed_mb_s == 0]
    c2cs = [link.link for link in (nvml.c2c_links if nvml else None) or () if link.active and link.max_rate_mb_s == 0]
    return {kind: tuple(links) for kind, links in ((LinkKind.NVLINK, nvlinks), (LinkKind.C2C, c2cs)) if links}


def c2c(gpu: Gpu) -> Hop:
    """Return a GPU's NVLink-C2C with the sum of the rates of its active links.

    Notes
    -----
    NVML_FI_DEV_C2C_LINK_GET_MAX_BW is one direction of one link: ten links of about 45 GB/s are the 450 GB/s of a
    GH200 (900 GB/s both ways, "NVIDIA GH200 Grace Hopper Superchip" datasheet).
    """
    active = [link for link in (gpu.nvml.c2c_links if gpu.nvml else None) or () if link.active]
    rates = [link.max_rate_mb_s for link in active if link.max_rate_mb_s is not None]
    if not rates or len(rates) < len(active):
        return Hop(link=LinkKind.C2C, reason="NVML does not report the NVLink-C2C rate")
    if min(rates) <= 0:
        return Hop(link=LinkKind.C2C, reason=f"NVML reports an active NVLink-C2C of {min(rates)} MB/s")
    return Hop(link=LinkKind.C2C, nominal_gb_s=sum(rates) / 1000)


def pcie(gpu: Gpu, pci: LinkClass | None = None) -> Hop:
    """Return a GPU's PCIe link with its rate after line encoding, before packet overhead.

    The speed is the highest the GPU and its slot can negotiate, because an idle link may be throttled; the width is
    the present one, because a link that trained narrow stays narrow.

    Parameters
    ----------
    pci
        To another GPU: what of the PCIe tree is between the two.

    Notes
    -----
    Lane rate x width / 8 bits, times the encoding of the PCI Express Base Specification: 8b/10b up to 5 GT/s,
    128b/130b from 8 to 32 GT/s, 242 of 256 bytes of a flit at 64 GT/s.
    """
    links = [link for link in (gpu.nvml and gpu.nvml.link, gpu.pci and gpu.pci.link) if link]
    speed = next((link.max_speed_gt_s for link in links if link.max_speed_gt_s), None)
    width = next((width for link in links if (width := link.width or link.max_width)), None)
    if speed is None or width is None:
        return Hop(link=LinkKind.PCIE, pci=pci, reason="neither NVML nor sysfs reports the PCIe link's speed and width")
    efficiency = 8 / 10 if speed <= 5 else 128 / 130 if speed <= 32 else 242 / 256
    return Hop(link=LinkKind.PCIE, pci=pci, nominal_gb_s=speed * width * efficiency / 8)
