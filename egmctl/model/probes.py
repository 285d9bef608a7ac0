"""Records of doctor's active probes and of the other nodes of a job."""

from __future__ import annotations

from typing import Annotated

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.record import BusId, Plain, Sentence, Share, Uuid


class ProbeKind(StrEnum):
    """The kinds of probes."""

    HOST_NUMA = "host-numa"
    """A GPU writes HOST_NUMA memory and the CPU compares it, then the reverse. All chosen GPUs have the memory
    mapped."""
    DEVICE_POOL = "device-pool"
    """A pool of a NUMA node becomes a GPU's current pool (``cuDeviceSetMemPool``), and memory comes from it without
    naming it, as the chapter on EGM of the CUDA Programming Guide has it."""
    LOCATION_POOL = "location-pool"
    """A pool is set for a NUMA node and asked for (``cuMemSetMemPool``, ``cuMemGetMemPool``: CUDA 13.0)."""
    P2P = "p2p"
    """A GPU writes a peer's memory, then reads it."""
    LEGACY_IPC = "legacy-ipc"
    """GPU memory, shared with ``cuIpcGetMemHandle``."""
    POSIX_FD = "posix-fd"
    """Memory of a GPU or NUMA node, shared by file descriptor."""
    POOL = "pool"
    """Memory from a pool that is shared by file descriptor."""
    FABRIC = "fabric"
    """Memory of a GPU or NUMA node, shared by fabric handle, which needs an IMEX channel."""
    MANAGED_IPC = "managed-ipc"
    """Managed memory, for which the driver is asked for a legacy handle, which CUDA does not document to work."""
    IPC_EVENT = "ipc-event"
    """An event that another process waits for."""
    PIDFD = "pidfd"
    """A file descriptor that one process obtains from another with pidfd_getfd(2), as UCX and PyTorch do."""

    DMA_BUF = "dma-buf"
    """Memory of a GPU or NUMA node, exported as a dma-buf and registered with a NIC."""


class Registration(StrEnum):
    """How a NIC registers a dma-buf."""

    DEFAULT = "default"
    """With CUDA's default mapping, by ``ibv_reg_dmabuf_mr``."""
    DATA_DIRECT = "data-direct"
    """With the mapping over PCIe, through the NIC's Data Direct function, by ``mlx5dv_reg_dmabuf_mr``."""
    DATA_DIRECT_UNALIGNED = "data-direct-unaligned"
    """As ``data-direct``, at a base that is no multiple of the page size."""


class ProbeOutcome(StrEnum):
    """The outcomes of a probe."""

    OK = "ok"
    """All calls succeeded and all bytes were right."""
    ERROR = "error"
    """A call failed."""
    CORRUPT = "corrupt"
    """All calls succeeded, but bytes differ."""
    TIMED_OUT = "timed-out"
    CRASHED = "crashed"
    NOT_RUN = "not-run"
    """The probe could not be run; the detail has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One probe and its outcome."""

    kind: ProbeKind
    gpus: tuple[BusId, ...]
    """For P2P the copying GPU and its peer; for shared memory and events the owner and the importer; else one GPU."""
    numa_node: int | None = None
    """The NUMA node of host memory."""
    nic: Plain | None = None
    """The NIC that registers a dma-buf; ``None``: the memory is only exported."""
    registration: Registration = Registration.DEFAULT
    """How the NIC registers it."""
    outcome: ProbeOutcome
    by: BusId | None = None
    """The GPU that failed."""
    call: Plain | None = None
    """The call that failed, or that was in progress at the end."""
    error_number: int | None = None
    """The CUresult that the call returned; for PIDFD and functions of libibverbs and libmlx5 an errno."""
    error_name: Plain | None = None
    detail: Sentence = ""


class IsolationKind(StrEnum):
    """The trials of ``egmctl doctor --isolation``. In each the kernel of a GPU reads memory until that is refused."""

    PEER = "peer"
    """A GPU's memory from cuMemCreate, mapped for that GPU alone; a kernel of another GPU of the same process reads
    it."""
    HOST = "host"
    """HOST_NUMA memory, mapped for one GPU alone; a kernel of another GPU of the same process reads it."""
    PROCESS = "process"
    """Memory from cuMemCreate that another process keeps to itself; a kernel reads its address."""
    LEGACY_BLOCK = "legacy-block"
    """Memory from cuMemAlloc, smaller than 2 MiB, that another process exports by legacy handle; a kernel reads what
    lies behind it, up to the end of the block of 2 MiB, and then beyond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationTrial:
    """One trial of ``egmctl doctor --isolation``: what a process may read that was not shared with it."""

    kind: IsolationKind
    owner: BusId
    reader: BusId
    """The GPU whose kernel reads."""
    numa_node: int | None = None
    """The NUMA node of host memory."""
    outcome: ProbeOutcome
    """``ok`` if the trial ran to its end, whatever it has shown."""
    pid: int | None = None
    """The process that the kernel's read has ended, by its id here."""
    access: int | None = None
    """What cuMemGetAccess says of the reader: 0 none, 1 read, 3 read and write."""
    copy_result: int | None = None
    """The CUresult of a copy that the reader issues."""
    peer_copy_result: int | None = None
    """The CUresult of cuMemcpyPeer from the owner's to the reader's context."""
    kernel_result: int | None = None
    """The CUresult of the kernel's read of what was not shared; for a legacy handle, of what is beyond the block."""
    block_bytes: int | None = None
    """For a legacy handle, the bytes from the exported memory to the end of its block."""
    neighbours: int | None = None
    """For a legacy handle, the number of allocations in these bytes that were not exported."""
    disclosed: int | None = None
    """The number of those whose bytes the kernel has read."""
    xids: int | None = None
    """The number of Xids 31 in the kernel log that name the process; ``None`` if the log cannot be read."""
    call: Plain | None = None
    """The call that failed if the trial could not be made, and its CUresult."""
    error_number: int | None = None
    detail: Sentence = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPort:
    """A NIC port of a node."""

    nic: Plain
    number: int
    state: Plain | None = None
    """The state as in :class:`egmctl.model.host.NicPort`; likewise the two below."""
    link_layer: Plain | None = None
    rate_gbit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One node of the job."""

    host: Plain
    ranks: tuple[int, ...]
    tool: Plain
    """The version of ``egmctl``."""
    driver_version: Plain | None = None
    libcuda_version: Plain | None = None
    """The version of the libcuda that the node's first rank has loaded; null unless CUDA was asked (``--active``)."""
    clusters: tuple[Uuid, ...] = ()
    """The distinct NVLink domains of the node's GPUs; empty without a multi-node domain."""
    cliques: tuple[int, ...] = ()
    imex_channel: bool | None = None
    """Whether the process can access an IMEX channel; ``None`` if that was not checked."""
    imex_daemon: Plain | None = None
    imex_domain: Plain | None = None
    ports: tuple[PeerPort, ...] | None = None
    failed: tuple[Plain, ...] = ()
    """The ids of the checks that fail on this node alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerProbe:
    """A probe of memory that one rank exports by fabric handle and another rank opens, compares and writes."""

    owner: int
    importer: int
    """The ranks that export and open the memory."""
    hosts: tuple[Plain, Plain]
    """The nodes of owner and importer."""
    labels: tuple[Plain, Plain]
    """The labels of owner and importer: ``node1:GPU0``."""
    host_memory: bool
    """Whether the memory is on the owner's NUMA node, not its GPU."""
    outcome: ProbeOutcome
    by: int | None = None
    """The rank that failed."""
    call: Plain | None = None
    error_number: int | None = None
    detail: Sentence = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """All nodes of a job."""

    nodes: tuple[Peer, ...]
    probes: tuple[PeerProbe, ...] | None = None
    """The probes between the ranks; ``None`` without ``--active``."""
    problem: Annotated[str, Share.PARAMETER] = ""
    """The reason why the processes of the job could not communicate; then ``nodes`` is empty."""
