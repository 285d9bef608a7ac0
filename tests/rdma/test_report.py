"""UCX's report is read, and the verdict on the way that it tells.

The reports are those that UCX 1.22 and 1.21 printed (with shorter times of the latter), and one as it would be with a
NIC.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from egmctl.bench.evidence import parse_protocols, path_taken
from egmctl.gpu import ucx
from egmctl.launch.channel import memory_file
from egmctl.model.codec import from_json
from egmctl.model.route import Carrier, MemoryKind, Route, UcxPath, UcxProtocol, UcxRoute
from egmctl.model.task import Chase, ChaseOrder, Endpoint, Engine, Flow, Pattern, Quantity, Task
from tests.conftest import ROOT

MIB = 1 << 20
DEVICE, HOST = MemoryKind.DEVICE, MemoryKind.PINNED
DATA = ROOT / "tests" / "data"


HOST_SENDER = """\
[1795212397.588926] [vm:6378 :0]   +-------+----------+-------------------------------------------+-------------+
[1795212397.588926] [vm:6378 :0]   | ucp_context_0 intra-node cfg#0                                             |
[1795212397.588926] [vm:6378 :0]   | tagged message by ucp_tag_send* from host memory                           |
[1795212397.588926] [vm:6378 :0]   +-------+----------+-------------------------------------------+-------------+
[1795212397.588926] [vm:6378 :0]   | Count |  Range   |                Description                |   Config    |
[1795212397.588926] [vm:6378 :0]   +-------+----------+-------------------------------------------+-------------+
[1795212397.588926] [vm:6378 :0]   |     0 |    0..92 | eager short                               | sysv/memory |
[1795212397.588926] [vm:6378 :0]   |     3 | 93..8191 | eager copy-in copy-out                    | sysv/memory |
[1795212397.588926] [vm:6378 :0]   |     9 |  8K..inf | (?) rendezvous zero-copy read from remote | cma/memory  |
[1795212397.588926] [vm:6378 :0]   +-------+----------+-------------------------------------------+-------------+
"""
HOST_RECEIVER = """\
[1795212397.588120] [vm:6379 :0]   +-------+-----------+---------------------------------+-------------+
[1795212397.588120] [vm:6379 :0]   | ucp_context_0 intra-node cfg#0                                    |
[1795212397.588120] [vm:6379 :0]   | rendezvous data fetch into host memory from host                  |
[1795212397.588120] [vm:6379 :0]   +-------+-----------+---------------------------------+-------------+
[1795212397.588120] [vm:6379 :0]   | Count |   Range   |           Description           |   Config    |
[1795212397.588120] [vm:6379 :0]   +-------+-----------+---------------------------------+-------------+
[1795212397.588120] [vm:6379 :0]   |     0 |         0 | no data fetch                   |             |
[1795212397.588120] [vm:6379 :0]   |     0 |   1..1727 | (?) fragmented copy-in copy-out | sysv/memory |
[1795212397.588120] [vm:6379 :0]   |     9 | 1728..inf | zero-copy read from remote      | cma/memory  |
[1795212397.588120] [vm:6379 :0]   +-------+-----------+---------------------------------+-------------+
"""
"""Two processes of one node, numpy memory."""


def table(operation: str, *rows: tuple[int | str, str, str, str]) -> str:
    """Return a table as UCX prints it, without the times: ``count``, ``sizes``, ``description``, ``transports``."""
    lines = ["ucp_context_0 cfg#0", operation, "Count | Range | Description | Config"]
    lines += [f"{count} | {sizes} | {what} | {how}" for count, sizes, what, how in rows]
    return "".join(f"| {line} |\n" for line in lines)


_TO_GPU1 = "rendezvous data fetch into cuda/GPU1 from cuda"
_FROM_GPU0 = "tagged message by ucp_tag_send* from cuda/GPU0"
_FROM_HOST = "tagged message by ucp_tag_send* from host memory"

IPC_SENDER = table(_FROM_GPU0, (314, "8K..inf", "(?) rendezvous zero-copy read from remote", "cuda_ipc/cuda"))
IPC_RECEIVER = table(_TO_GPU1, (314, "1..inf", "zero-copy read from remote", "cuda_ipc/cuda")) + table(
    _FROM_HOST, (0, "8K..inf", "(?) rendezvous zero-copy read from remote", "cma/memory")
)
"""GPU to GPU on one H200 node; the receiver's short answers come from host memory."""

TCP_SENDER = table(_FROM_GPU0, (11, "8K..inf", "(?) rendezvous fragmented copy-in copy-out", "tcp/lo")) + table(
    "rendezvous data send from cuda/GPU0 to cuda", (22583, "0..inf", "fragmented copy-in copy-out", "tcp/lo")
)
TCP_RECEIVER = table(_TO_GPU1, (11, "1..inf", "(?) fragmented copy-in copy-out", "tcp/lo"))
"""The same with UCX_TLS=tcp,cuda_copy."""

GPUDIRECT_SENDER = table(
    _FROM_GPU0,
    (9, "8K..inf", "(?) rendezvous zero-copy read from remote", "50% on rc_mlx5/mlx5_0:1/path0"),
    ("", "", "", "50% on rc_mlx5/mlx5_1:1/path0"),
)
STAGED_SENDER = table(
    _FROM_GPU0, (9, "8K..inf", "(?) rendezvous cuda_copy, fenced write to remote, frag host", "rc_mlx5/mlx5_0:1/path0")
)
"""With a NIC, in the words of UCX's documentation: no such node was to be had."""

UCX_1_21 = """\
[1.7] [vm:2311 :0]   +--------------------------+-------------------------------------------------------------+
[1.7] [vm:2311 :0]   | ucp_context_0 self cfg#0 | tagged message by ucp_tag_send* from host memory            |
[1.7] [vm:2311 :0]   +--------------------------+-----------------------------------------------+-------------+
[1.7] [vm:2311 :0]   | 0                0..8184 | eager short                                   | self/memory |
[1.7] [vm:2311 :0]   | 0             8185..8191 | multi-frag eager copy-in copy-out             | self/memory |
[1.7] [vm:2311 :0]   | 1                8K..inf | (?) rendezvous copy from mapped remote memory | self/memory |
[1.7] [vm:2311 :0]   +--------------------------+-----------------------------------------------+-------------+
"""


def task(source: MemoryKind, destination: MemoryKind, *, round_trip: bool = False) -> Task:
    ends = [
        Endpoint(memory=memory, label=f"GPU{rank}", rank=rank, numa_node=None if memory is DEVICE else 0)
        for rank, memory in enumerate((source, destination))
    ]
    flow = Flow(
        source=ends[0],
        destination=ends[1],
        initiator="0000:01:00.0",
        initiator_label="GPU0",
        initiator_rank=0,
        route=Route(carrier=Carrier.UCX),
    )
    chase = Chase(order=ChaseOrder.SEQUENTIAL, stride_bytes=16, warm=True, loads=10) if round_trip else None
    return Task(
        case="ucx",
        family="rdma",
        quantity=Quantity.LATENCY if round_trip else Quantity.BANDWIDTH,
        engine=Engine.UCX,
        pattern=Pattern.PAIR,
        flows=(flow,),
        counted="",
        size_bytes=MIB,
        copies=1,
        chase=chase,
    )


def path(of: Task, sender: str, receiver: str = "", size: int = MIB) -> UcxPath:
    protocols = [*parse_protocols(sender, 0), *parse_protocols(receiver, 1)]
    return path_taken(of, size, protocols, "1.22.0", ("self", "tcp"), {"UCX_TLS": "all"})


def test_every_line_of_a_report_is_read() -> None:
    lines = [
        (one.rank, one.operation, one.sizes, one.description, one.transports, one.messages)
        for one in parse_protocols(HOST_RECEIVER, 1)
    ]
    fetch = "rendezvous data fetch into host memory from host"
    assert lines == [
        (1, fetch, "0", "no data fetch", "", 0),
        (1, fetch, "1..1727", "(?) fragmented copy-in copy-out", "sysv/memory", 0),
        (1, fetch, "1728..inf", "zero-copy read from remote", "cma/memory", 9),
    ]


def test_ucx_1_21_says_the_same_in_fewer_cells() -> None:
    sent = "tagged message by ucp_tag_send* from host memory"
    assert [(one.operation, one.sizes, one.transports, one.messages) for one in parse_protocols(UCX_1_21, 0)] == [
        (sent, "0..8184", "self/memory", 0),
        (sent, "8185..8191", "self/memory", 0),
        (sent, "8K..inf", "self/memory", 1),
    ]


def test_lanes_over_several_lines_are_one_protocol() -> None:
    (one,) = parse_protocols(GPUDIRECT_SENDER, 0)
    assert one.transports == "50% on rc_mlx5/mlx5_0:1/path0, 50% on rc_mlx5/mlx5_1:1/path0"


@pytest.mark.parametrize("text", ["", "no table at all", "| one |", "| 1 | 2 |", "|||||", "| x | y | z | w |"])
def test_what_is_no_table_tells_nothing(text: str) -> None:
    assert list(parse_protocols(text, 0)) == []


@pytest.mark.parametrize(
    ("source", "destination", "sender", "receiver", "route", "staging", "transports"),
    [
        (HOST, HOST, HOST_SENDER, HOST_RECEIVER, "shared-memory", None, ("cma/memory",)),
        (DEVICE, DEVICE, IPC_SENDER, IPC_RECEIVER, "cuda-ipc", None, ("cuda_ipc/cuda",)),
        (DEVICE, DEVICE, TCP_SENDER, TCP_RECEIVER, "tcp", "host", ("tcp/lo",)),
        (DEVICE, DEVICE, GPUDIRECT_SENDER, "", "gpudirect-rdma", None, ("rc_mlx5/mlx5_0:1", "rc_mlx5/mlx5_1:1")),
        (DEVICE, HOST, STAGED_SENDER, "", "rdma-staged", "host", ("rc_mlx5/mlx5_0:1",)),
        (DEVICE, DEVICE, "", "", "unknown", None, ()),
    ],
)
def test_the_way_is_named_by_what_carried_the_bytes(
    source: MemoryKind,
    destination: MemoryKind,
    sender: str,
    receiver: str,
    route: str,
    staging: str | None,
    transports: tuple[str, ...],
) -> None:
    found = path(task(source, destination), sender, receiver)
    assert (found.route, found.staging, found.transports) == (route, staging, transports)


SIZES = ("_64k", "_1m", "_16m", "")
SEEN: dict[str, dict[tuple[str, ...], tuple[str, str | None, tuple[str, ...]]]] = {
    "default": {
        ("device_to_device",): ("cuda-ipc", None, ("cuda_ipc/cuda",)),
        ("device_to_host_numa",): ("cuda-ipc", None, ("cuda_ipc/cuda",)),
        ("device_to_host", "host_to_device", "host_numa_to_device"): ("cuda-ipc", "gpu", ("cuda_ipc/cuda",)),
        ("host_numa_to_host", "host_numa_to_host_numa"): ("cuda-ipc", "gpu", ("cuda_ipc/cuda",)),
        ("host_to_host",): ("shared-memory", None, ("cma/memory",)),
        # The receiver expects CUDA IPC; the sender copies by shared memory: 0.8 GB/s.
        ("host_to_host_numa",): ("shared-memory", None, ("sysv/memory",)),
    },
    "tcp,cuda_copy": {
        ("device_to_device", "host_numa_to_device"): ("tcp", "host", ("tcp/lo",)),
        ("host_to_host",): ("tcp", None, ("tcp/lo",)),
    },
    "posix,sysv,cuda_copy,self": {("device_to_device",): ("shared-memory", "host", ("sysv/memory",))},
}
"""By UCX_TLS and by case, without what messages of 4 KiB do: those are short to UCX."""


@pytest.mark.parametrize("transports", SEEN)
def test_on_two_h200_each_way_is_the_one_that_was_taken(transports: str) -> None:
    recorded = json.loads((DATA / "ucx-h200.json").read_text())[transports]
    found = {case: recorded_path(case, **seen) for case, seen in recorded.items()}
    long = {f"ucx_{pair}{size}": way for pairs, way in SEEN[transports].items() for pair in pairs for size in SIZES}
    for case, seen in found.items():
        told = (seen.route, seen.staging, seen.transports)
        if case in long:
            assert told == long[case], case
        else:
            on_gpu = "device" in case
            shared = ("tcp", "tcp/lo") if "tcp" in transports else ("shared-memory", "sysv/memory")
            assert told == (shared[0], "host" if on_gpu else None, (shared[1],)), case
    assert set(found) & set(long)


def recorded_path(case: str, message_bytes: int, protocols: list[dict[str, Any]]) -> UcxPath:
    memory = {"device": DEVICE, "host": HOST, "host_numa": MemoryKind.HOST_NUMA}
    match = re.fullmatch(r"ucx_(.*)_to_(host_numa|host|device)(_round_trip|_\d+[km])?", case)
    assert match is not None
    of = task(memory[match[1]], memory[match[2]], round_trip=match[3] == "_round_trip")
    return path_taken(of, message_bytes, [from_json(UcxProtocol, one) for one in protocols], "1.22.0", (), {})


def test_what_the_sender_only_expects_of_the_receiver_is_called_so() -> None:
    alone = path(task(DEVICE, DEVICE), IPC_SENDER)
    assert alone.route is UcxRoute.CUDA_IPC
    assert alone.verdict.endswith("the receiver's report is missing; this is what the sender expected")
    assert "expected" not in path(task(DEVICE, DEVICE), IPC_SENDER, IPC_RECEIVER).verdict


def test_only_gpudirect_is_called_gpudirect() -> None:
    verdicts = {path(task(DEVICE, DEVICE), sender).verdict for sender in (IPC_SENDER, TCP_SENDER, STAGED_SENDER)}
    assert all("no GPUDirect RDMA" in verdict for verdict in verdicts)
    assert path(task(DEVICE, DEVICE), GPUDIRECT_SENDER).verdict.startswith("GPUDirect RDMA in use")


def test_between_host_memories_nothing_is_said_of_gpudirect() -> None:
    assert "GPUDirect" not in path(task(HOST, HOST), TCP_SENDER).verdict
    assert path(task(HOST, HOST), STAGED_SENDER).route is UcxRoute.RDMA


def test_lines_for_other_sizes_do_not_count() -> None:
    found = path(task(HOST, HOST), HOST_SENDER, size=1024)
    assert [(one.sizes, one.transports) for one in found.protocols] == [("93..8191", "sysv/memory")]


def test_the_shortest_messages_from_host_memory_are_found_although_ucx_does_not_count_them() -> None:
    found = path(task(HOST, HOST, round_trip=True), HOST_SENDER, size=16)
    assert [one.sizes for one in found.protocols] == ["0..92"]
    # From a GPU all are counted: what the line for host memory says is about something else.
    assert path(task(DEVICE, DEVICE, round_trip=True), HOST_SENDER, size=16).route is UcxRoute.UNKNOWN


@pytest.mark.parametrize("count", ["\u00b2", "9" * 5000, "\u0663", "-1", "1e9"])
def test_a_count_that_is_no_number_is_no_line(count: str) -> None:
    text = f"| tagged message by ucp_tag_send* from host |\n| {count} | 0..inf | copy | tcp/lo |\n"
    assert list(parse_protocols(text, 0)) == []
    assert next(iter(parse_protocols(text.replace(count, "3"), 0))).messages == 3


def test_no_more_of_a_report_is_read_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    with memory_file("report") as log:
        monkeypatch.setattr(ucx, "_log", lambda: log)
        log.write(b"of an earlier one\n")
        link = object.__new__(ucx.UcxConnection)
        link._endpoint = link._worker = link._context = None
        link._log_start = ucx._log_size()
        log.write(b"of this one\n")
        log.truncate(1 << 30)
        report = link.close()
    assert report.startswith("of this one\n")
    assert len(report) == ucx.REPORT_LIMIT
