"""Memory of every kind, and the route over which bytes travel between two ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from egmctl.compat import StrEnum, assert_never
from egmctl.model.record import BusId, Plain

INSTALL_UCXX = "pip install 'egmctl[rdma]'"


def unusable(why: str) -> str:
    """Return the sentence for a process that cannot use UCX."""
    return f"UCX cannot be used: {why} ({INSTALL_UCXX})"


class UcxRoute(StrEnum):
    """The way of the bytes, by UCX's report."""

    GPUDIRECT_RDMA = "gpudirect-rdma"
    """A NIC reads or writes GPU memory itself."""
    RDMA_STAGED = "rdma-staged"
    """NICs carry the bytes, which are staged in host memory at a GPU's end."""
    RDMA = "rdma"
    """NICs read and write host memory; no GPU memory takes part."""
    CUDA_IPC = "cuda-ipc"
    """A GPU copies to or from another process' memory on the same node."""
    TCP = "tcp"
    SHARED_MEMORY = "shared-memory"
    """Host memory that both processes map, or the kernel's copy from process to process."""
    UNKNOWN = "unknown"


class UcxStaging(StrEnum):
    """The memory in which bytes were staged on their way."""

    HOST = "host"
    """Device memory goes through host memory."""
    GPU = "gpu"
    """Through fragments of memory that UCX has on a GPU (``UCX_RNDV_FRAG_MEM_TYPE=cuda``)."""


@dataclass(frozen=True, slots=True)
class UcxProtocol:
    """One line of UCX's protocol report (``UCX_PROTO_INFO``): what it does for messages of some sizes."""

    rank: int
    """The rank that reported it."""
    operation: Plain
    """``tagged message by ucp_tag_send* from host memory``."""
    sizes: Plain
    """The sizes of the messages, in bytes: ``8K..inf``."""
    description: Plain
    """``rendezvous zero-copy read from remote``; UCX marks by ``(?)`` what the other side decides."""
    transports: Plain
    """Transport and device of each lane: ``rc_mlx5/mlx5_0:1``; empty where nothing is sent."""
    messages: int
    """The number of messages; UCX does not count the shortest messages from host memory."""


@dataclass(frozen=True, slots=True)
class UcxDevice:
    """The same messages where the sender may use one network device only (``UCX_NET_DEVICES``)."""

    name: Plain
    """``mlx5_0:1``, ``eth0``."""
    bandwidth_gb_s: float | None
    """The bandwidth of one sample; ``None`` where it reached nobody."""
    reason: Plain | None = None
    transports: tuple[Plain, ...] = ()
    distance: Plain | None = None
    """The distance of a NIC from the sender's GPU, as ``nvidia-smi topo -m`` says it: ``PIX``, ``NODE``, ``SYS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UcxPath:
    """The path of one measurement's messages, by UCX's reports."""

    route: UcxRoute
    staging: UcxStaging | None
    """``None`` where the bytes went from memory to memory, or from host memory through more host memory."""
    verdict: Plain
    """The same in one sentence."""
    transports: tuple[Plain, ...]
    """The transports with their devices, ``tcp/lo``, in alphabetical order."""
    protocols: tuple[UcxProtocol, ...]
    """The lines that messages of this size came under."""
    version: Plain
    """UCX's version."""
    components: tuple[Plain, ...]
    """The transports that UCX has found it can use, on both sides: ``cuda_ipc``, ``ib``, ``tcp``."""
    settings: Mapping[Plain, Plain]
    """The variables ``UCX_...`` of the sender, with those that ucxx sets."""
    devices: tuple[UcxDevice, ...] = ()
    """The devices by themselves, for messages through a network where the sender has several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process and its GPU."""

    number: int
    label: Plain
    """The name of its GPU: ``GPU0``; in a run over several nodes ``node1:GPU0``."""
    bus_id: BusId
    numa_node: int | None = None
    """The node of the host memory that it makes: the nearest with memory, ``None`` where that is not known."""
    host: Plain | None = None
    """Its node's name, in a run over several: such a run is about its nodes, so documents keep their names."""


def node_names(hosts: Iterable[str | None]) -> dict[str | None, str]:
    """Return what results call the nodes of a run over several: ``node1`` in the order of their ranks. None for one."""
    ordered = list(dict.fromkeys(hosts))
    return {host: f"node{number}" for number, host in enumerate(ordered, 1)} if len(ordered) > 1 else {}


class MemoryKind(StrEnum):
    """How memory was allocated."""

    DEVICE = "device"
    """cuMemAlloc."""
    DEVICE_DEFAULT_POOL = "device-default-pool"
    """cuMemAllocFromPoolAsync from the driver's own pool of a GPU (cuDeviceGetDefaultMemPool)."""
    HOST_NUMA = "host-numa"
    """cuMemCreate on a host NUMA node. It is EGM only where the platform has EGM: see
    :attr:`egmctl.model.route.Route.egm`."""
    HOST_NUMA_POOL = "host-numa-pool"
    """cuMemAllocFromPoolAsync from a pool that cuMemPoolCreate made on a host NUMA node."""
    HOST_NUMA_DEFAULT_POOL = "host-numa-default-pool"
    """cuMemAllocFromPoolAsync from the driver's own pool of a host NUMA node (cuMemGetDefaultMemPool, CUDA 13.0)."""
    HOST_DEFAULT_POOL = "host-default-pool"
    """cuMemAllocFromPoolAsync from the driver's own pool of the host (cuMemGetDefaultMemPool with
    CU_MEM_LOCATION_TYPE_HOST, CUDA 13.0), by a thread bound to the node."""
    PINNED = "pinned"
    """cuMemHostAlloc, by a thread bound to the node."""
    REGISTERED = "registered"
    """mmap, bound to the node, then cuMemHostRegister."""
    HUGETLB = "hugetlb"
    """mmap of huge pages (MAP_HUGETLB, hugetlbfs), bound to the node, then cuMemHostRegister."""
    THP = "thp"
    """mmap, advised to be transparent huge pages (MADV_HUGEPAGE), bound to the node, then cuMemHostRegister."""
    MANAGED = "managed"
    """cuMemAllocManaged, preferred on the node, mapped by the GPUs, and first written by threads on the node."""
    SYSTEM = "system"
    """mmap, bound to the node, and nothing else: only GPUs with access to pageable memory reach it."""
    GPU_NUMA = "gpu-numa"
    """mmap, bound to the NUMA node that a GPU's own memory is on a coherent platform: CPUs reach it as memory."""
    REGISTERS = "registers"
    """No memory: the end of a kernel or of a CPU thread that only reads or only writes."""


POOLS = frozenset({MemoryKind.HOST_NUMA_POOL, MemoryKind.HOST_NUMA_DEFAULT_POOL})
"""HOST_NUMA memory from a pool: one of our own, or the driver's."""

NUMA_MEMORY = frozenset({MemoryKind.HOST_NUMA, *POOLS})
"""What the driver allocates on a NUMA node by number: EGM where the platform has it. Other host memory never is; of
managed memory that is not known there."""

HOST_NAMES = {
    MemoryKind.HOST_NUMA: "HOST_NUMA",
    MemoryKind.HOST_NUMA_POOL: "HOST_NUMA pool",
    MemoryKind.HOST_NUMA_DEFAULT_POOL: "HOST_NUMA default pool",
    MemoryKind.HOST_DEFAULT_POOL: "HOST default pool",
    MemoryKind.PINNED: "pinned",
    MemoryKind.REGISTERED: "registered",
    MemoryKind.HUGETLB: "hugetlb",
    MemoryKind.THP: "THP",
    MemoryKind.MANAGED: "managed",
    MemoryKind.SYSTEM: "system",
}
"""Memory of the host as people call it."""

HOST_MEMORY = frozenset(HOST_NAMES)


class LinkKind(StrEnum):
    """A kind of link."""

    NVLINK = "nvlink"
    C2C = "c2c"
    """NVLink-C2C, between a GPU and the CPU of its package."""
    PCIE = "pcie"
    SMP = "smp"
    """The CPUs' own interconnect between NUMA nodes. Nothing reports its rate."""
    UNKNOWN = "unknown"


class LinkClass(StrEnum):
    """How two devices are joined; the values are nvidia-smi's symbols."""

    NVLINK = "NV"
    """NVLinks; how many stands beside it."""
    PIX = "PIX"
    """At most a single PCIe bridge."""
    PXB = "PXB"
    """Several PCIe bridges, without the host bridge."""
    PHB = "PHB"
    """A PCIe host bridge."""
    NODE = "NODE"
    """The interconnect between host bridges of one NUMA node."""
    SYS = "SYS"
    """The interconnect between NUMA nodes."""
    UNKNOWN = "?"


class Egm(StrEnum):
    """Whether host memory is Extended GPU Memory to the GPU that reaches it."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Carrier(StrEnum):
    """The carrier of the bytes of a flow."""

    LINKS = "links"
    """The links of the route's hops; without any, the bytes stay in one GPU's memory."""
    CPU = "cpu"
    """CPU threads: no link of a GPU."""
    SOCKET = "socket"
    """Messages between two processes, through the kernel."""
    UCX = "ucx"
    """Whatever UCX finds best."""
    NONE = "none"
    """Nothing: the route is blocked, and the measurement says by what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One link of a route."""

    link: LinkKind
    nvlinks: int | None = None
    """How many NVLinks are bonded."""
    pci: LinkClass | None = None
    """Between two GPUs without NVLink: what of the PCIe tree is between them."""
    nominal_gb_s: float | None = None
    """Its rate in one direction by the specification, in GB/s (1e9 bytes a second): see ``egmctl.topology.links``."""
    reason: Plain = ""
    """Why the rate, or the link, is not known."""


_ACROSS = " across nodes"
_NAMES = {LinkKind.NVLINK: "NV", LinkKind.C2C: "C2C", LinkKind.PCIE: "PCIe", LinkKind.SMP: "SMP", LinkKind.UNKNOWN: "?"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How the bytes of a flow travel. It is what is expected before; only UCX says afterwards what it did."""

    symbol: Plain = field(init=False)
    """The links in a word: ``NV18``, ``PHB``, ``PCIe>SMP``, ``C2C-sys``, ``NV18>C2C across nodes``, ``local``, ``CPU``,
    ``PCIe>host>PCIe`` (staged), ``socket``, ``UCX, tcp``, ``blocked``, ``?``. It follows from the rest: written for
    readers, and not read back."""
    carrier: Carrier = Carrier.LINKS
    memory: MemoryKind | None = None
    """Of the host's end; ``None`` where no end is host memory."""
    hops: tuple[Hop, ...] = ()
    """From the GPU that issues the work to the memory at the other end; from host memory to host memory those to the
    source, then those to the destination."""
    across_nodes: bool = False
    """The ends are on different nodes of one NVLink domain."""
    egm: Egm | None = None
    """Whether the host's end is EGM to the GPU that issues the work: by the NVML capability bit and C2C, never by the
    calls alone. ``None`` where no GPU reaches host memory."""
    egm_reason: Plain = ""
    """Why it is not EGM, or why that is unknown."""
    degraded: bool = False
    """The EGM route to NUMA memory is blocked, as :attr:`egm_reason` says: the hops are the way that is left, over
    which the memory is ordinary system memory. It is tried, and slower than EGM where it works."""
    staged: bool = False
    """Between two GPUs without peer access: the driver copies through host memory. The hops are the links of the source
    and of the destination to it."""
    staged_reason: Plain = ""
    """Why there is no peer access; empty where it is there, and kept off to see what it is worth."""
    ucx: UcxRoute | None = None
    """What UCX reported that it did."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "symbol", self._symbol(hop_symbol))

    @property
    def at_most_gb_s(self) -> float | None:
        """The least of the known nominal rates: the route cannot be faster. ``None`` where none is known."""
        return at_most_gb_s(self.hops)

    @property
    def first_link(self) -> LinkKind | None:
        """The link at the GPU that issues the work; ``None`` where no link is crossed or nobody knows which."""
        if self.carrier is not Carrier.LINKS or not self.hops or self.hops[0].link is LinkKind.UNKNOWN:
            return None
        return self.hops[0].link

    @property
    def kind(self) -> str:
        """The symbol without the number of NVLinks: routes over 18 and over 16 of them are of one kind."""
        return self._symbol(_link_name)

    def _symbol(self, name: Callable[[Hop], str]) -> str:
        match self.carrier:
            case Carrier.NONE:
                return "blocked"
            case Carrier.SOCKET:
                return "socket"
            case Carrier.UCX:
                return "UCX" if self.ucx is None else f"UCX, {self.ucx}"
            case Carrier.CPU:
                return ">".join(("CPU", *map(name, self.hops)))
            case Carrier.LINKS:
                if self.staged:
                    return ">host>".join(map(name, self.hops))
                # The same C2C is EGM or ordinary system memory, by how the memory was allocated and by the platform.
                system = self.memory in NUMA_MEMORY and self.egm is Egm.NO and not self.across_nodes
                links = symbol_of(self.hops, system=system, name=name) or "local"
                return f"{links}{_ACROSS}" if self.across_nodes else links
            case _:
                assert_never(self.carrier)


def hop_symbol(hop: Hop) -> str:
    """Return one link in a word: ``NV18``, ``C2C``, ``PCIe``, ``PHB``, ``SMP``, ``?``."""
    return f"NV{'?' if hop.nvlinks is None else hop.nvlinks}" if hop.link is LinkKind.NVLINK else _link_name(hop)


def _link_name(hop: Hop) -> str:
    return hop.pci.value if hop.pci is not None else _NAMES[hop.link]


def symbol_of(hops: Iterable[Hop], *, system: bool = False, name: Callable[[Hop], str] = hop_symbol) -> str:
    """Return links in a word, ``NV18>C2C``; without hops an empty one.

    Parameters
    ----------
    system
        C2C reaches NUMA memory as ordinary system memory, which is not EGM.
    name
        What one link is called.
    """
    return ">".join(f"{name(hop)}{'-sys' * (system and hop.link is LinkKind.C2C)}" for hop in hops)


def at_most_gb_s(hops: Iterable[Hop]) -> float | None:
    """Return the least of the known nominal rates of some hops; ``None`` where none is known."""
    return min((hop.nominal_gb_s for hop in hops if hop.nominal_gb_s is not None), default=None)
