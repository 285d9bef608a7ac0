"""UCX's own report of the protocols that it used, read, and what it means for the bytes of a measurement: pure.

The report is a table for each operation and kind of memory (UCX 1.22, ``UCX_PROTO_INFO=used``)::

    +-------+-----------+-----------------------------------+-------------+
    | ucp_context_0 intra-node cfg#0                                      |
    | rendezvous data fetch into host memory from host                    |
    +-------+-----------+-----------------------------------+-------------+
    | Count |   Range   |            Description            |   Config    |
    +-------+-----------+-----------------------------------+-------------+
    |     9 | 1728..inf | zero-copy read from remote        | cma/memory  |
    +-------+-----------+-----------------------------------+-------------+

UCX 1.21 has the context and the operation in one line of two cells, and the count and the range in one cell.

``(?)`` marks what the other side decides (``is_estimation`` in UCX's ``proto.h``): a guess, and sometimes a wrong one.
What was really done is in the other side's report. Only the copy out of fragments, at the end of a receiver's line, is
the receiver's own decision in spite of the mark (``ucp_proto_rndv_rtr_mtype_query``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from egmctl.model.measurement import MemoryKind, Quantity, Task
from egmctl.model.ucx import UcxPath, UcxProtocol, UcxRoute, UcxStaging

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_RDMA = ("rc", "dc", "ud", "gga", "srd")
"""The transports over InfiniBand and RoCE begin so: ``rc_mlx5``, ``ud_verbs`` (``ucx_info -d`` lists them)."""
OVER_NETWORK = (UcxRoute.GPUDIRECT_RDMA, UcxRoute.RDMA_STAGED, UcxRoute.RDMA, UcxRoute.TCP)
_SHARED_MEMORY = ("posix", "sysv", "cma", "knem", "xpmem")
_SENDING = "tagged message by ucp_tag_send*"
_GUESS = "(?)"
_COUNT = re.compile("[0-9]{1,18}", re.ASCII)
_FRAGMENTS_ON_GPU = re.compile(r"\bfrag cuda\b")
_COPIES = re.compile(r"cuda_copy|gdr_copy|copy-in|copy-out|\bfrag\b|fragmented")
"""In the description of a protocol that copies; without fragments on a GPU, through host memory."""
_UNPACKS = re.compile(r"\b(?:cuda|gdr)_copy, frag \w+$")


def parse(text: str, rank: int) -> Iterator[UcxProtocol]:
    """Yield every line of the tables of a report.

    Parameters
    ----------
    rank
        Whose report it is.
    """
    operation = ""
    line: UcxProtocol | None = None
    for cells in _rows(text):
        if len(cells) == 1:
            operation = cells[0]
        elif len(cells) == 4 and _COUNT.fullmatch(cells[0]):
            if line is not None:
                yield line
            line = UcxProtocol(
                rank=rank,
                operation=operation,
                sizes=cells[1],
                description=cells[2],
                transports=cells[3],
                messages=int(cells[0]),
            )
        elif len(cells) == 4 and not cells[0] and line is not None:
            # One more lane of the line above.
            line = UcxProtocol(
                rank=rank,
                operation=line.operation,
                sizes=line.sizes,
                description=" ".join(filter(None, (line.description, cells[2]))),
                transports=", ".join(filter(None, (line.transports, cells[3]))),
                messages=line.messages,
            )
    if line is not None:
        yield line


def path_of(
    task: Task,
    message_bytes: int,
    protocols: Sequence[UcxProtocol],
    version: str,
    components: Iterable[str],
    settings: Mapping[str, str],
) -> UcxPath:
    """Return the way that the messages of a task took.

    Parameters
    ----------
    message_bytes
        Of each message.
    protocols
        What both processes reported.
    """
    used = tuple(one for one in protocols if _was_used(one, message_bytes, _uncounted(task)))
    known = [one for one in used if not one.description.startswith(_GUESS)]
    by = "".join(f" {one.transports}" for one in known or used)
    transports = tuple(sorted(set(re.findall(r"\b([a-z][a-z0-9_]*/[\w:.-]+)", by))))
    names = {pair.partition("/")[0] for pair in transports}
    flow = task.flows[0]
    on_gpu = MemoryKind.DEVICE in (flow.source.memory, flow.destination.memory)
    staging = _staging(known or used, [one for one in used if one.rank == flow.destination.rank], on_gpu)
    if any(map(_is_rdma, names)):
        staged = staging is UcxStaging.HOST
        route = UcxRoute.RDMA if not on_gpu else UcxRoute.RDMA_STAGED if staged else UcxRoute.GPUDIRECT_RDMA
    elif "cuda_ipc" in names:
        route = UcxRoute.CUDA_IPC
    elif "tcp" in names:
        route = UcxRoute.TCP
    elif names & set(_SHARED_MEMORY):
        route = UcxRoute.SHARED_MEMORY
    else:
        route = UcxRoute.UNKNOWN
    guessed = "; the receiver's report is missing; this is what the sender expected" if used and not known else ""
    return UcxPath(
        route=route,
        staging=staging,
        verdict=_verdict(route, staging, on_gpu, transports) + guessed,
        transports=transports,
        protocols=used,
        version=version,
        components=tuple(components),
        settings=dict(settings),
    )


def network_devices(devices: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the NICs' ports among a process' devices by transport; without any, its network interfaces."""
    nics = [name for transport, names in devices.items() if _is_rdma(transport) for name in names]
    return list(dict.fromkeys(nics or devices.get("tcp", ())))


def _is_rdma(transport: str) -> bool:
    return transport.split("_")[0] in _RDMA


def _staging(known: Sequence[UcxProtocol], received: Sequence[UcxProtocol], on_gpu: bool) -> UcxStaging | None:
    """Return where bytes were copied to on their way, by what is known and by how the receiver unpacks."""
    described = [one.description for one in known]
    copying = [text for text in described if _COPIES.search(text)]
    copying += [one.description for one in received if _UNPACKS.search(one.description)]
    if on_gpu and any(not _FRAGMENTS_ON_GPU.search(text) for text in copying):
        return UcxStaging.HOST
    return UcxStaging.GPU if any(map(_FRAGMENTS_ON_GPU.search, copying)) else None


def _verdict(route: UcxRoute, staging: UcxStaging | None, on_gpu: bool, transports: Sequence[str]) -> str:
    by = ", ".join(transports) or "no transport in its report"
    detour = {
        UcxStaging.HOST: ", copied through host memory",
        UcxStaging.GPU: ", through fragments of GPU memory",
        None: "",
    }[staging]
    match route:
        case UcxRoute.GPUDIRECT_RDMA:
            return f"GPUDirect RDMA in use: the NIC reads and writes GPU memory{detour} ({by})"
        case UcxRoute.RDMA_STAGED:
            return f"no GPUDirect RDMA: RDMA staged through host memory ({by})"
        case UcxRoute.RDMA:
            return f"RDMA between host memories{detour} ({by})"
        case UcxRoute.CUDA_IPC:
            return f"CUDA IPC within the node, no NIC and no GPUDirect RDMA{detour} ({by})"
        case UcxRoute.TCP:
            return f"{'no GPUDirect RDMA: ' * on_gpu}TCP{detour} ({by})"
        case UcxRoute.SHARED_MEMORY:
            return f"{'no GPUDirect RDMA: ' * on_gpu}shared memory within the node{detour} ({by})"
        case _:
            return "UCX's report does not name the transport"


def _was_used(protocol: UcxProtocol, message_bytes: int, uncounted: Collection[int]) -> bool:
    """Say whether the messages that were measured came under a line."""
    if not protocol.transports:
        return False
    if not protocol.operation.startswith(_SENDING):
        return protocol.messages > 0
    short = protocol.rank in uncounted and protocol.operation.endswith("host memory")
    return _holds(protocol.sizes, message_bytes) and (protocol.messages > 0 or short)


def _uncounted(task: Task) -> Collection[int]:
    """Return the ranks that send from host memory: UCX does not count the shortest of such messages."""
    source, destination = task.flows[0].source, task.flows[0].destination
    senders = (source, destination) if task.quantity is Quantity.LATENCY else (source,)
    return {end.rank for end in senders if end.rank is not None and end.memory is not MemoryKind.DEVICE}


def _holds(sizes: str, size: int) -> bool:
    first, _, last = sizes.partition("..")
    return _bytes(first) <= size <= (_bytes(last) if last else _bytes(first))


def _bytes(text: str) -> float:
    if text == "inf":
        return float("inf")
    match = re.fullmatch(r"([0-9]{1,18})([KMG]?)", text, re.ASCII)
    return int(match[1]) * _UNITS[match[2]] if match else float("nan")


def _rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        _, bar, rest = line.partition("|")
        if not bar or not rest.rstrip().endswith("|"):
            continue
        cells = [cell.strip() for cell in rest.rstrip()[:-1].split("|")]
        if len(cells) == 2:
            del cells[0]
        elif len(cells) == 3:
            count, _, sizes = cells[0].partition(" ")
            cells[:1] = [count, sizes.strip()]
        yield cells
