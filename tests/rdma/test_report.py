"""UCX's report is read, and the verdict on the way that it tells."""

from __future__ import annotations

import pytest

from egmctl.bench.ucx_report import parse, path_of
from egmctl.model.measurement import Chase, ChaseOrder, Endpoint, Engine, Flow, MemoryKind, Pattern, Quantity, Task
from egmctl.model.ucx import UcxPath, UcxRoute
from tests.rdma import reports

MIB = 1 << 20
DEVICE, HOST = MemoryKind.DEVICE, MemoryKind.PINNED


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
        wire="UCX",
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
    protocols = [*parse(sender, 0), *parse(receiver, 1)]
    return path_of(of, size, protocols, "1.22.0", ("self", "tcp"), {"UCX_TLS": "all"})


def test_every_line_of_a_report_is_read() -> None:
    lines = [
        (one.rank, one.operation, one.sizes, one.description, one.transports, one.messages)
        for one in parse(reports.HOST_RECEIVER, 1)
    ]
    fetch = "rendezvous data fetch into host memory from host"
    assert lines == [
        (1, fetch, "0", "no data fetch", "", 0),
        (1, fetch, "1..1727", "(?) fragmented copy-in copy-out", "sysv/memory", 0),
        (1, fetch, "1728..inf", "zero-copy read from remote", "cma/memory", 9),
    ]


def test_ucx_1_21_says_the_same_in_fewer_cells() -> None:
    sent = "tagged message by ucp_tag_send* from host memory"
    assert [(one.operation, one.sizes, one.transports, one.messages) for one in parse(reports.UCX_1_21, 0)] == [
        (sent, "0..8184", "self/memory", 0),
        (sent, "8185..8191", "self/memory", 0),
        (sent, "8K..inf", "self/memory", 1),
    ]


def test_lanes_over_several_lines_are_one_protocol() -> None:
    (one,) = parse(reports.GPUDIRECT_SENDER, 0)
    assert one.transports == "50% on rc_mlx5/mlx5_0:1/path0, 50% on rc_mlx5/mlx5_1:1/path0"


@pytest.mark.parametrize("text", ["", "no table at all", "| one |", "| 1 | 2 |", "|||||", "| x | y | z | w |"])
def test_what_is_no_table_tells_nothing(text: str) -> None:
    assert list(parse(text, 0)) == []


@pytest.mark.parametrize(
    ("source", "destination", "sender", "receiver", "route", "staged", "transports"),
    [
        (HOST, HOST, reports.HOST_SENDER, reports.HOST_RECEIVER, "shared-memory", False, ("cma/memory",)),
        (DEVICE, DEVICE, reports.IPC_SENDER, reports.IPC_RECEIVER, "cuda-ipc", False, ("cuda_ipc/cuda",)),
        (DEVICE, DEVICE, reports.TCP_SENDER, reports.TCP_RECEIVER, "tcp", True, ("tcp/lo",)),
        (
            DEVICE,
            DEVICE,
            reports.GPUDIRECT_SENDER,
            "",
            "gpudirect-rdma",
            False,
            ("rc_mlx5/mlx5_0:1", "rc_mlx5/mlx5_1:1"),
        ),
        (DEVICE, HOST, reports.STAGED_SENDER, "", "rdma-staged", True, ("rc_mlx5/mlx5_0:1",)),
        (DEVICE, DEVICE, "", "", "unknown", False, ()),
    ],
)
def test_the_way_is_named_by_what_carried_the_bytes(
    source: MemoryKind,
    destination: MemoryKind,
    sender: str,
    receiver: str,
    route: str,
    staged: bool,
    transports: tuple[str, ...],
) -> None:
    found = path(task(source, destination), sender, receiver)
    assert (found.route, found.staged, found.transports) == (route, staged, transports)


def test_only_gpudirect_is_called_gpudirect() -> None:
    verdicts = {
        path(task(DEVICE, DEVICE), sender).verdict
        for sender in (reports.IPC_SENDER, reports.TCP_SENDER, reports.STAGED_SENDER)
    }
    assert all("no GPUDirect RDMA" in verdict for verdict in verdicts)
    assert path(task(DEVICE, DEVICE), reports.GPUDIRECT_SENDER).verdict.startswith("GPUDirect RDMA in use")


def test_between_host_memories_nothing_is_said_of_gpudirect() -> None:
    assert "GPUDirect" not in path(task(HOST, HOST), reports.TCP_SENDER).verdict
    assert path(task(HOST, HOST), reports.STAGED_SENDER).route is UcxRoute.RDMA


def test_lines_for_other_sizes_do_not_count() -> None:
    found = path(task(HOST, HOST), reports.HOST_SENDER, size=1024)
    assert [(one.sizes, one.transports) for one in found.protocols] == [("93..8191", "sysv/memory")]


def test_the_shortest_messages_from_host_memory_are_found_although_ucx_does_not_count_them() -> None:
    found = path(task(HOST, HOST, round_trip=True), reports.HOST_SENDER, size=16)
    assert [one.sizes for one in found.protocols] == ["0..92"]
    # From a GPU all are counted: what the line for host memory says is about something else.
    assert path(task(DEVICE, DEVICE, round_trip=True), reports.HOST_SENDER, size=16).route is UcxRoute.UNKNOWN
