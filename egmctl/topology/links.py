"""The link between two GPUs or NICs, the rates of links, and the drivers' P2P capabilities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import permutations, takewhile

from egmctl.dataclass import dataclass
from egmctl.model.gpu import Gpu, GpuPair, NvLink
from egmctl.model.host import Nic
from egmctl.model.machine import Machine, remembered
from egmctl.model.record import Reason
from egmctl.model.route import Hop, LinkClass, LinkKind
from egmctl.topology import platform
from egmctl.topology.access import without_nvml
from egmctl.units import grouped

NEAR = (LinkClass.PIX, LinkClass.PXB)
"""The link classes of a NIC that shares PCIe bridges with a GPU, below the host bridge; the nearest first."""


@dataclass(frozen=True, slots=True)
class Link:
    """The best link between two devices. It is undirected."""

    kind: LinkClass
    nvlinks: int | None = None
    """The number of active NVLinks between the two; ``None`` if it is unknown or does not apply (NICs)."""
    nvlinks_expected: int | None = None
    """The expected number of NVLinks, if fewer are active."""
    through: str | None = None
    """``direct`` or ``switch`` for NVLink."""
    pci: LinkClass = LinkClass.UNKNOWN
    """The class without NVLink, as in ``nvidia-smi topo -mp``."""
    reason: str = ""
    """The reason why :attr:`kind` is unknown."""
    unlisted: bool = False
    """Whether it is unknown because NVML does not list one of the two GPUs."""
    source: str = ""
    target: str = ""
    """The labels of both devices in a :class:`egmctl.topology.topology.Topology`: ``GPU0``, ``NIC1``."""
    symbol: str = field(init=False)
    """The symbol in the matrix, without marks: ``NV18``, ``PIX``, ..., ``?``."""

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
"""The link classes of NVML's topology levels. ``internal`` (two GPUs of one board, as on a Tesla K80) has no symbol of
its own."""


def gpu_link(machine: Machine, first: Gpu, second: Gpu) -> Link:
    """Return the link between two GPUs: NVLink if active links connect them, else their PCIe class.

    The PCIe class is NVML's common ancestor, which nvidia-smi prints; if NVML does not report it, it is derived from
    the PCI paths. If the two directions differ, the one with fewer NVLinks counts.
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


def _pairs(machine: Machine, first: Gpu, second: Gpu) -> list[GpuPair]:
    """Return the pair records of two GPUs that were read, in both directions."""
    pairs = (machine.pair(first.bus_id, second.bus_id), machine.pair(second.bus_id, first.bus_id))
    return [pair for pair in pairs if pair is not None]


def device_link(machine: Machine, first: Gpu | Nic, second: Gpu | Nic) -> Link:
    """Return the link between two devices; if one is a NIC, it is the PCIe class."""
    if isinstance(first, Gpu) and isinstance(second, Gpu):
        return gpu_link(machine, first, second)
    kind, reason = _pci_class(machine, first, second)
    return Link(kind=kind, pci=kind, reason=reason)


def _pci_class(machine: Machine, first: Gpu | Nic, second: Gpu | Nic) -> tuple[LinkClass, str]:
    """Derive nvidia-smi's class from two sysfs paths and NUMA nodes; the second value is the reason if it is unknown.

    In sysfs a PCIe switch is two bridges: its upstream port and one downstream port per device. nvidia-smi's "single
    bridge" is one such switch (nvml.h: NVML_TOPOLOGY_SINGLE, "all devices that only need traverse a single PCIe
    switch"). So two devices are PIX if each has at most one bridge below their deepest shared bridge: its own
    downstream port, or none (two functions of one device, or one bus). They are PXB if either has more. A root complex
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
    if len(machine.cpu_nodes) == 1:
        return LinkClass.NODE, ""
    return LinkClass.UNKNOWN, "two host bridges, and the firmware does not say which NUMA nodes they belong to"


def active_nvlinks(gpu: Gpu) -> int | None:
    """Return the number of a GPU's active NVLinks; ``None`` if NVML did not report the state of every link."""
    links = gpu.nvml.nvlinks if gpu.nvml else None
    states = None if links is None else [link.active for link in links]
    return None if states is None or None in states else sum(map(bool, states))


def nvlinks_between(first: Gpu, second: Gpu) -> tuple[NvLink, ...]:
    """Return the direct NVLinks between two GPUs, up or down, from both ends."""
    ends = ((first, second), (second, first))
    return tuple(link for gpu, other in ends for link in nvlinks_of(gpu) if link.remote_bus_id == other.bus_id)


def nvlink_joins(machine: Machine, first: Gpu, second: Gpu) -> bool:
    """Return whether NVLink connects two GPUs, or did before links went down.

    Switches connect all GPUs that have links. NVML may not report the remote end of a direct link that is down; then
    both GPUs must lack links, because GPUs on different NVLink bridges are never connected.
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
    """Return whether a GPU has inactive links that may lead to a GPU of the node, unlike links that its board omits.

    In a mesh, all GPUs have inactive links to a GPU whose links are down. With a bridge, which connects two GPUs, a GPU
    has them if it has fewer active links than another GPU of the same name.
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
    """Return a GPU's NVLinks, up or down; empty if NVML lists none."""
    return (gpu.nvml.nvlinks if gpu.nvml else None) or ()


def has_no_nvlink(gpu: Gpu) -> bool:
    """Return whether NVML reports that a GPU has no NVLinks."""
    if gpu.nvml is None:
        return False
    reasons = [gpu.nvml.reason_of(name) for name in ("nvlinks", "nvlink_count")]
    return gpu.nvml.nvlinks == () or Reason.NOT_SUPPORTED in reasons


def _expected_nvlinks(machine: Machine, first: Gpu, second: Gpu, pair: GpuPair) -> int:
    """Return the expected number of NVLinks between two GPUs; 0 if there is no sign that any is missing.

    Through switches, every link of both GPUs leads to every other GPU, so the part's own number is expected. Direct
    links are divided between peers, in some systems unevenly by design (DGX-1), so a pair lacks links only if one of
    its GPUs also has fewer active links than most of its peers.
    """
    most, usual_of_pairs = _nvlinks_of_pairs(machine.pairs or ())
    if pair.nvlink_through == "switch":
        parts = [gpu.nvml.nvlink_count for gpu in (first, second) if gpu.nvml and gpu.nvml.nvlink_count]
        if len(parts) == 2 and parts[0] == parts[1]:
            return max(most, parts[0])
        return most
    usual = _usual(count for gpu in machine.gpus or () if (count := active_nvlinks(gpu)))
    short = any((active_nvlinks(gpu) or usual) < usual for gpu in (first, second))
    return usual_of_pairs if short else 0


@remembered
def _nvlinks_of_pairs(pairs: tuple[GpuPair, ...]) -> tuple[int, int]:
    """Return the largest and the usual number of NVLinks of the pairs that have any."""
    counts = [pair.nvlink_count for pair in pairs if pair.nvlink_count]
    return max(counts, default=0), _usual(counts)


def _usual(counts: Iterable[int]) -> int:
    """Return the most frequent count: the larger one if two are equally frequent, 0 if there is none."""
    often = ((times, count) for count, times in Counter(counts).items())
    return max(often, default=(0, 0))[1]


NVML_INDICES = ("read", "write", "nvlink", "atomics", "pci")
"""The capabilities of ``nvidia-smi topo -p2p``, by their keys in :attr:`GpuPair.p2p_status`."""

CUDA_ATTRIBUTES = {
    "access": "ACCESS_SUPPORTED",
    "native atomics": "NATIVE_ATOMIC_SUPPORTED",
    "array access": "CUDA_ARRAY_ACCESS_SUPPORTED",
    "performance rank": "PERFORMANCE_RANK",
}
"""The names in output of the CUdevice_P2PAttributes, and the attributes."""


@dataclass(frozen=True, slots=True)
class P2pMatrix:
    """The matrix of one P2P capability, or of several with equal values."""

    source: str
    """The library: ``NVML`` or ``CUDA``."""
    names: tuple[str, ...]
    cells: Mapping[tuple[str, str], str]
    """The values by the labels of the accessing and the accessed GPU; ``?`` if a value was not read."""

    @property
    def value(self) -> str | None:
        """The value of all pairs; ``None`` if they differ."""
        values = set(self.cells.values())
        return values.pop() if len(values) == 1 else None


def p2p_matrices(machine: Machine, gpus: Mapping[str, Gpu]) -> tuple[P2pMatrix, ...]:
    """Return the P2P matrices of GPUs, given by label; equal ones of a library are merged. Empty for a single GPU."""
    pairs = {
        (source, target): machine.pair(gpus[source].bus_id, gpus[target].bus_id)
        for source, target in permutations(gpus, 2)
    }
    result: list[P2pMatrix] = []
    for library, names in (("NVML", NVML_INDICES), ("CUDA", tuple(CUDA_ATTRIBUTES))):
        groups = grouped((tuple(_value(pair, name) for pair in pairs.values()), name) for name in names if pairs)
        result += [
            P2pMatrix(library, tuple(alike), dict(zip(pairs, values, strict=True))) for values, alike in groups.items()
        ]
    return tuple(result)


def _value(pair: GpuPair | None, name: str) -> str:
    if pair is None:
        return "?"
    if name in NVML_INDICES:
        return pair.p2p_status.get(name) or "?"
    value = pair.cuda_attributes.get(CUDA_ATTRIBUTES[name])
    if value is None:
        return "?"
    if name == "performance rank":
        return str(value)
    return "yes" if value else "no"


def nvlink_hop(gpu: Gpu, links: int, *, direct: bool = False) -> Hop:
    """Return ``links`` bonded NVLinks of a GPU with their payload rate; ``direct`` as in :class:`Hop`.

    Notes
    -----
    NVML reports the signalling rate of an NVLink 4 or 5 link: 26562 or 53125 MB/s. The published payload rate is 16/17
    of it: 18 x 26.5625 x 16/17 = 450 GB/s for H100 (900 GB/s both ways, "NVIDIA H100 Tensor Core GPU" datasheet) and 18
    x 53.125 x 16/17 = 900 GB/s for GB200 (1.8 TB/s both ways, "NVIDIA GB200 NVL72" product page). For other generations
    no such ratio is published, so their rate is unknown.
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
    return Hop(link=LinkKind.NVLINK, nvlinks=links, direct=direct, nominal_gb_s=gb_s, reason=reason)


_NVLINK_WITH_16_17 = (6, 7)
"""The values of NVML_NVLINK_VERSION_4_0 and _5_0 (nvml.h)."""


def without_speed(gpu: Gpu) -> dict[LinkKind, tuple[int, ...]]:
    """Return the numbers of a GPU's links that NVML reports as active at 0 MB/s, which is contradictory, by kind."""
    nvml = gpu.nvml
    nvlinks = [link.link for link in nvlinks_of(gpu) if link.active and link.speed_mb_s == 0]
    c2cs = [link.link for link in (nvml.c2c_links if nvml else None) or () if link.active and link.max_rate_mb_s == 0]
    return {kind: tuple(links) for kind, links in ((LinkKind.NVLINK, nvlinks), (LinkKind.C2C, c2cs)) if links}


def c2c_hop(gpu: Gpu) -> Hop:
    """Return a GPU's NVLink-C2C with the sum of the rates of its active links.

    Notes
    -----
    NVML_FI_DEV_C2C_LINK_GET_MAX_BW is the rate of one direction of one link: ten links of about 45 GB/s are the 450
    GB/s of a GH200 (900 GB/s both ways, "NVIDIA GH200 Grace Hopper Superchip" datasheet).
    """
    active = [link for link in (gpu.nvml.c2c_links if gpu.nvml else None) or () if link.active]
    rates = [link.max_rate_mb_s for link in active if link.max_rate_mb_s is not None]
    if not rates or len(rates) < len(active):
        return Hop(link=LinkKind.C2C, reason="NVML does not report the NVLink-C2C rate")
    if min(rates) <= 0:
        return Hop(link=LinkKind.C2C, reason=f"NVML reports an active NVLink-C2C of {min(rates)} MB/s")
    return Hop(link=LinkKind.C2C, nominal_gb_s=sum(rates) / 1000)


def links_at(machine: Machine, gpu: Gpu) -> tuple[Hop, ...]:
    """Return a GPU's links and their rates: PCIe, and NVLink and NVLink-C2C unless it is known to lack them."""
    active = active_nvlinks(gpu)
    links = []
    if active != 0 and not has_no_nvlink(gpu):
        links.append(nvlink_hop(gpu, active or 0))
    if platform.c2c(machine, gpu) is not platform.C2c.ABSENT:
        links.append(c2c_hop(gpu))
    return (*links, pcie_hop(gpu))


def pcie_hop(gpu: Gpu, pci: LinkClass | None = None) -> Hop:
    """Return a GPU's PCIe link with its rate after line encoding, before packet overhead.

    The speed is the maximum that the GPU and its slot can negotiate, because an idle link may run slower. The width is
    the current one, because a link that trained narrow stays narrow, except where an idle link may shed lanes.

    Parameters
    ----------
    pci
        The part of the PCIe tree between this GPU and another one.

    Notes
    -----
    The rate is lane rate x width / 8 bits x encoding of the PCI Express Base Specification: 8b/10b up to 5 GT/s,
    128b/130b from 8 to 32 GT/s, 242 of 256 bytes of a flit at 64 GT/s.
    """
    links = [link for link in (gpu.nvml and gpu.nvml.link, gpu.pci and gpu.pci.link) if link]
    speed = next((link.max_speed_gt_s for link in links if link.max_speed_gt_s), None)
    widths = ((link.max_width or link.width) if link.sheds_lanes else link.width or link.max_width for link in links)
    width = next((width for width in widths if width), None)
    if speed is None or width is None:
        return Hop(link=LinkKind.PCIE, pci=pci, reason="neither NVML nor sysfs reports the PCIe link's speed and width")
    if speed <= 5:
        efficiency = 8 / 10
    elif speed <= 32:
        efficiency = 128 / 130
    else:
        efficiency = 242 / 256
    return Hop(link=LinkKind.PCIE, pci=pci, nominal_gb_s=speed * width * efficiency / 8)


_ONE_BRIDGE = 4
"""The most NVLinks of a card that one bridge joins: two on Turing's cards, four on Ampere's workstation cards. A100 and
newer have twelve and more, and up to three bridges; Volta's cards have two bridges."""
_TURING = (7, 5)


def has_one_bridge(gpu: Gpu) -> bool:
    """Return whether one bridge joins all NVLinks of a card to another one, as far as its active links tell."""
    nvml, links = gpu.nvml, nvlinks_of(gpu)
    if nvml is None or nvml.compute_capability is None or nvml.compute_capability < _TURING:
        return False
    few = 0 < (nvml.nvlink_count or 0) <= _ONE_BRIDGE
    return few and all(link.remote_type == "gpu" for link in links if link.active)
