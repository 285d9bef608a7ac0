"""The way that UCX took between two processes, as UCX itself reports it, and what that is in plain words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from egmctl.compat import StrEnum
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
