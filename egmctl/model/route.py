"""Kinds of memory, and the route of bytes between two endpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.record import BusId, Plain

INSTALL_UCXX = "pip install 'egmctl[rdma]'"


def unusable(why: str) -> str:
    """Return the message for a process that cannot use UCX."""
    return f"UCX cannot be used: {why} ({INSTALL_UCXX})"


class UcxRoute(StrEnum):
    """The routes that UCX reports."""

    GPUDIRECT_RDMA = "gpudirect-rdma"
    """A NIC reads or writes GPU memory directly."""
    RDMA_STAGED = "rdma-staged"
    """NICs carry the bytes, which are staged in host memory at a GPU."""
    RDMA = "rdma"
    """NICs read and write host memory; no GPU memory is involved."""
    CUDA_IPC = "cuda-ipc"
    """A GPU copies to or from the memory of another process on the same node."""
    TCP = "tcp"
    SHARED_MEMORY = "shared-memory"
    """Both processes map the same host memory, or the kernel copies from process to process."""
    UNKNOWN = "unknown"


class UcxStaging(StrEnum):
    """The memory through which bytes were staged."""

    HOST = "host"
    """Host memory between device memory and the transport."""
    GPU = "gpu"
    """Fragments that UCX allocates on a GPU (``UCX_RNDV_FRAG_MEM_TYPE=cuda``)."""


@dataclass(frozen=True, slots=True)
class UcxProtocol:
    """One line of UCX's protocol report (``UCX_PROTO_INFO``): the protocol for a range of message sizes."""

    rank: int
    """The rank that reported it."""
    operation: Plain
    """The operation: ``tagged message by ucp_tag_send* from host memory``."""
    sizes: Plain
    """The sizes of the messages, in bytes: ``8K..inf``."""
    description: Plain
    """The protocol: ``rendezvous zero-copy read from remote``. UCX marks what the other side decides with ``(?)``."""
    transports: Plain
    """The transport and device of each lane: ``rc_mlx5/mlx5_0:1``; empty if nothing is sent."""
    messages: int
    """The number of messages; UCX does not count the shortest messages from host memory."""


@dataclass(frozen=True, slots=True)
class UcxDevice:
    """The same messages with a single network device of the sender (``UCX_NET_DEVICES``)."""

    name: Plain
    """The device: ``mlx5_0:1``, ``eth0``."""
    bandwidth_gb_s: float | None
    """The bandwidth of one sample; ``None`` if the receiver could not be reached."""
    reason: Plain | None = None
    transports: tuple[Plain, ...] = ()
    distance: Plain | None = None
    """The distance between the sender's GPU and a NIC in the notation of ``nvidia-smi topo -m``: ``PIX``, ``NODE``,
    ``SYS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UcxPath:
    """The path of the messages of one measurement, by UCX's reports."""

    route: UcxRoute
    staging: UcxStaging | None
    """``None`` if the bytes were not staged, or went from host memory through other host memory."""
    verdict: Plain
    """The path in one sentence."""
    transports: tuple[Plain, ...]
    """The transports with their devices, ``tcp/lo``, sorted by name."""
    protocols: tuple[UcxProtocol, ...]
    """The lines that apply to messages of this size."""
    version: Plain
    """The version of UCX."""
    components: tuple[Plain, ...]
    """The transports that UCX can use on both sides: ``cuda_ipc``, ``ib``, ``tcp``."""
    settings: Mapping[Plain, Plain]
    """The ``UCX_...`` variables of the sender, including those that ucxx sets."""
    devices: tuple[UcxDevice, ...] = ()
    """The result of each network device alone, if the sender has several and the messages use the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process of a measurement and its GPU."""

    number: int
    label: Plain
    """The label of its GPU: ``GPU0``; in a run over several nodes ``node1:GPU0``."""
    bus_id: BusId
    numa_node: int | None = None
    """The NUMA node on which it allocates host memory: the nearest with memory. ``None`` if that is unknown."""
    host: Plain | None = None
    """The host name of its node, in a run over several nodes. Documents contain it, because such a run is about its
    nodes."""


def node_names(hosts: Iterable[str | None]) -> dict[str | None, str]:
    """Return the names of several nodes in results, by host: ``node1``, ... in rank order. A single node has none."""
    ordered = list(dict.fromkeys(hosts))
    return {host: f"node{number}" for number, host in enumerate(ordered, 1)} if len(ordered) > 1 else {}


class MemoryKind(StrEnum):
    """The methods of memory allocation."""

    DEVICE = "device"
    """Memory from cuMemAlloc."""
    DEVICE_DEFAULT_POOL = "device-default-pool"
    """Memory from cuMemAllocFromPoolAsync with the default pool of a GPU (cuDeviceGetDefaultMemPool)."""
    HOST_NUMA = "host-numa"
    """Memory from cuMemCreate on a host NUMA node. It is EGM only if the platform has EGM: see
    :attr:`egmctl.model.route.Route.egm`."""
    HOST_NUMA_POOL = "host-numa-pool"
    """Memory from cuMemAllocFromPoolAsync with a pool that cuMemPoolCreate created on a host NUMA node."""
    HOST_NUMA_DEFAULT_POOL = "host-numa-default-pool"
    """Memory from cuMemAllocFromPoolAsync with the default pool of a host NUMA node (cuMemGetDefaultMemPool, CUDA
    13.0)."""
    HOST_DEFAULT_POOL = "host-default-pool"
    """Memory from cuMemAllocFromPoolAsync with the default pool of the host (cuMemGetDefaultMemPool with
    CU_MEM_LOCATION_TYPE_HOST, CUDA 13.0), allocated by a thread bound to the node."""
    PINNED = "pinned"
    """Memory from cuMemHostAlloc by a thread bound to the node."""
    REGISTERED = "registered"
    """Memory from mmap, bound to the node and passed to cuMemHostRegister."""
    HUGETLB = "hugetlb"
    """Huge pages from mmap (MAP_HUGETLB, hugetlbfs), bound to the node and passed to cuMemHostRegister."""
    THP = "thp"
    """Memory from mmap with MADV_HUGEPAGE, bound to the node and passed to cuMemHostRegister."""
    MANAGED = "managed"
    """Memory from cuMemAllocManaged, preferred on the node, mapped by the GPUs, first written by threads on the
    node."""
    SYSTEM = "system"
    """Memory from mmap, only bound to the node: accessible to GPUs with pageable memory access."""
    GPU_NUMA = "gpu-numa"
    """Memory from mmap, bound to the NUMA node of a GPU's own memory on a coherent platform; CPUs can access it."""
    REGISTERS = "registers"
    """No memory: the endpoint of a kernel or CPU thread that only reads or only writes."""


POOLS = frozenset({MemoryKind.HOST_NUMA_POOL, MemoryKind.HOST_NUMA_DEFAULT_POOL})
"""HOST_NUMA memory from a pool, created by this tool or the driver's default."""

NUMA_MEMORY = frozenset({MemoryKind.HOST_NUMA, *POOLS})
"""The memory that the driver allocates on a NUMA node by number: EGM if the platform has it. Other host memory is
never EGM; for managed memory this is unknown."""


class _Names(dict[MemoryKind, str]):
    """The names of kinds of memory; a kind that only a newer version knows has its word."""

    def __missing__(self, kind: MemoryKind) -> str:
        return kind.value


HOST_NAMES = _Names(
    {
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
)
"""The names of host memory kinds in output."""

HOST_MEMORY = frozenset(HOST_NAMES)


class LinkKind(StrEnum):
    """The kinds of links."""

    NVLINK = "nvlink"
    C2C = "c2c"
    """NVLink-C2C between a GPU and the CPU of its package."""
    PCIE = "pcie"
    SMP = "smp"
    """The interconnect of the CPUs between NUMA nodes. No driver reports its rate."""
    UNKNOWN = "unknown"


class LinkClass(StrEnum):
    """The connection between two devices, in nvidia-smi's symbols."""

    NVLINK = "NV"
    """NVLinks; their number is a separate field."""
    PIX = "PIX"
    """At most one PCIe bridge."""
    PXB = "PXB"
    """Several PCIe bridges, but no host bridge."""
    PHB = "PHB"
    """A PCIe host bridge."""
    NODE = "NODE"
    """The interconnect between host bridges of one NUMA node."""
    SYS = "SYS"
    """The interconnect between NUMA nodes."""
    UNKNOWN = "?"


class Egm(StrEnum):
    """The answers to whether host memory is Extended GPU Memory for the accessing GPU."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Carrier(StrEnum):
    """The means by which the bytes of a flow travel."""

    LINKS = "links"
    """The links of the route's hops; without hops, the bytes stay in one GPU's memory."""
    CPU = "cpu"
    """CPU threads, without links of a GPU."""
    SOCKET = "socket"
    """Messages between two processes through the kernel."""
    UCX = "ucx"
    """The transport that UCX selects."""
    NONE = "none"
    """No carrier: the route is blocked, and the measurement has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One link of a route."""

    link: LinkKind
    nvlinks: int | None = None
    """The number of bonded NVLinks."""
    pci: LinkClass | None = None
    """The part of the PCIe tree between two GPUs without NVLink."""
    direct: bool = False
    """Whether the NVLinks lead straight to another GPU, so that no path to a third one shares them."""
    nominal_gb_s: float | None = None
    """The specified rate in one direction, in GB/s (1e9 bytes per second): see ``egmctl.topology.links``."""
    source: Plain | None = None
    """The publication of the rate, with its address; ``None`` if the driver reports it."""
    reason: Plain = ""
    """The reason why the rate or the link is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRate:
    """The published bandwidth of memory, or of the link between two CPUs."""

    name: Plain
    """The kind of memory: ``LPDDR5X``, ``HBM3e``; ``SMP`` for the link."""
    gb_s: float
    """The rate in GB/s (1e9 bytes per second): of memory for reads and writes together, of a link in one direction."""
    source: Plain
    """The publication, with its address."""


_ACROSS = " across nodes"
_NAMES = {LinkKind.NVLINK: "NV", LinkKind.C2C: "C2C", LinkKind.PCIE: "PCIe", LinkKind.SMP: "SMP", LinkKind.UNKNOWN: "?"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The expected route of a flow's bytes. Only :attr:`ucx` is known from the transfer."""

    symbol: Plain = field(init=False)
    """The links as a symbol: ``NV18``, ``PHB``, ``PCIe>SMP``, ``C2C-sys``, ``NV18>C2C across nodes``, ``local``,
    ``CPU``, ``PCIe>host>PCIe`` (staged), ``socket``, ``UCX, tcp``, ``blocked``, ``?``. It is derived from the other
    fields: written to documents, but not read back."""
    carrier: Carrier = Carrier.LINKS
    memory: MemoryKind | None = None
    """The kind of host memory; ``None`` if no endpoint is host memory."""
    hops: tuple[Hop, ...] = ()
    """The links from the GPU that issues the work to the memory at the other end. Between host memories, the hops to
    the source come first, then those to the destination."""
    memory_rate: PublishedRate | None = None
    """The rate of the host memory or, if the bytes stay in one GPU, of its own memory; ``None`` if none is published
    for it, or if CPU threads move the bytes (``egmctl/topology/published.toml``)."""
    across_nodes: bool = False
    """Whether the endpoints are on different nodes of one NVLink domain."""
    egm: Egm | None = None
    """Whether the host memory is EGM for the GPU that issues the work, by the NVML capability bit and C2C, not by the
    allocation alone. ``None`` if no GPU accesses host memory."""
    egm_reason: Plain = ""
    """The reason why it is not EGM or why that is unknown."""
    degraded: bool = False
    """Whether the EGM route to NUMA memory is blocked, for the reason in :attr:`egm_reason`. The hops are then the
    remaining route, on which the memory is ordinary system memory. It is tried, and slower than EGM if it works."""
    staged: bool = False
    """Whether the driver copies through host memory, between two GPUs without peer access. The hops are the links of
    the source and of the destination to it."""
    staged_reason: Plain = ""
    """The reason why there is no peer access; empty if peer access is available, and disabled for comparison."""
    ucx: UcxRoute | None = None
    """The route that UCX reported."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "symbol", self._symbol(hop_symbol))

    @property
    def slowest(self) -> Hop | None:
        """The link with the smallest known nominal rate, which the route cannot exceed. ``None`` if none is known."""
        return min((hop for hop in self.hops if hop.nominal_gb_s), key=lambda hop: hop.nominal_gb_s or 0, default=None)

    @property
    def first_link(self) -> LinkKind | None:
        """The link at the GPU that issues the work; ``None`` if no link is crossed or the link is unknown."""
        if self.carrier is not Carrier.LINKS or not self.hops or self.hops[0].link is LinkKind.UNKNOWN:
            return None
        return self.hops[0].link

    @property
    def kind(self) -> str:
        """The symbol without the number of NVLinks: routes over 18 and over 16 NVLinks are of the same kind."""
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
                # The memory behind C2C is EGM or ordinary system memory, depending on its allocation and the platform.
                system = self.memory in NUMA_MEMORY and self.egm is Egm.NO and not self.across_nodes
                links = symbol_of(self.hops, system=system, name=name) or "local"
                return f"{links}{_ACROSS}" if self.across_nodes else links


def hop_symbol(hop: Hop) -> str:
    """Return the symbol of one link: ``NV18``, ``C2C``, ``PCIe``, ``PHB``, ``SMP``, ``?``."""
    if hop.link is not LinkKind.NVLINK:
        return _link_name(hop)
    return "NV?" if hop.nvlinks is None else f"NV{hop.nvlinks}"


def _link_name(hop: Hop) -> str:
    return hop.pci.value if hop.pci is not None else _NAMES[hop.link]


def symbol_of(hops: Iterable[Hop], *, system: bool = False, name: Callable[[Hop], str] = hop_symbol) -> str:
    """Return the symbol of a sequence of links, ``NV18>C2C``; without hops an empty string.

    Parameters
    ----------
    system
        Whether C2C leads to NUMA memory as ordinary system memory, which is not EGM.
    name
        A function that returns the symbol of one link.
    """
    symbols = []
    for hop in hops:
        ordinary = system and hop.link is LinkKind.C2C
        symbols.append(f"{name(hop)}-sys" if ordinary else name(hop))
    return ">".join(symbols)


def at_most_gb_s(hops: Iterable[Hop]) -> float | None:
    """Return the smallest of the known nominal rates of some hops; ``None`` if none is known."""
    return min((hop.nominal_gb_s for hop in hops if hop.nominal_gb_s is not None), default=None)
