"""Round trips between two processes, on fake nodes: who sends what, and what becomes of a side that fails."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from egmctl.bench.engines import round_trips as socket_message
from egmctl.bench.engines.round_trips import APART_BYTES, WARM_UP_LAPS, SocketRoundTrips
from egmctl.bench.processes.collective import ResourceScope
from egmctl.bench.processes.group import GroupFailed
from egmctl.gpu import chase
from egmctl.gpu.chase import FLAG_BYTES
from egmctl.model.measurement import MeasurementStatus
from egmctl.model.task import Engine
from tests.fake.machines import nvl4
from tests.fake.plugin import MakeFakeNode
from tests.handles.conftest import RANKS, Launch, nothing_left
from tests.handles.ranks import MIB, SETTINGS, ask, flag_task, message_task, ranks_on

LAPS = WARM_UP_LAPS + 100
TASKS = {
    "flag-device": flag_task(RANKS),
    "flag-host-numa": flag_task(RANKS, node=1),
    "event": message_task(RANKS, Engine.EVENT),
    "socket": message_task(RANKS, Engine.SOCKET),
}


def test_flags_in_device_memory_are_polled_at_home_and_written_far_away(
    fake_node: MakeFakeNode, launch: Launch
) -> None:
    node = fake_node(nvl4())
    ask(launch(node), RANKS, TASKS["flag-device"])
    created = node.calls("cuMemCreate")
    assert sorted(call.arguments["location"] for call in created) == ["DEVICE:0", "DEVICE:1"]
    assert len({call.pid for call in created}) == 2
    assert len(node.calls("cuMemImportFromShareableHandle")) == 2


def test_flags_in_host_memory_lie_apart_in_one_allocation(fake_node: MakeFakeNode, launch: Launch) -> None:
    node = fake_node(nvl4())
    ask(launch(node), RANKS, TASKS["flag-host-numa"])
    (created,) = node.calls("cuMemCreate")
    assert (created.arguments["location"], int(created.arguments["size"])) == ("HOST_NUMA:1", 2 * MIB)
    flags = [call for call in node.calls("cuMemsetD32Async") if int(call.arguments["count"]) == FLAG_BYTES // 4]
    cleared = {(call.pid, int(call.arguments["to"], 16) % (2 * MIB)) for call in flags}
    assert sorted(offset for _, offset in cleared) == [0, APART_BYTES]


@pytest.mark.long
def test_an_events_round_trip_is_two_recordings_a_wait_by_a_stream_and_one_by_the_host(
    fake_node: MakeFakeNode, launch: Launch
) -> None:
    node = fake_node(nvl4())
    ask(launch(node), RANKS, TASKS["event"])
    laps = SETTINGS.samples * LAPS
    counts = {
        name: len(node.calls(name))
        for name in ("cuIpcGetEventHandle", "cuIpcOpenEventHandle", "cuEventRecord", "cuEventSynchronize")
    }
    assert counts == {
        "cuIpcGetEventHandle": 2,
        "cuIpcOpenEventHandle": 2,
        "cuEventRecord": 2 * laps,
        "cuEventSynchronize": laps,
    }


def test_a_message_alone_asks_nothing_of_the_driver(fake_node: MakeFakeNode, launch: Launch) -> None:
    node = fake_node(nvl4())
    group = launch(node)
    ask(group, RANKS, TASKS["flag-device"])
    node.forget_calls()
    ask(group, RANKS, TASKS["socket"])
    assert {call.name for call in node.calls()} <= {"cuCtxSetCurrent", "cuMemGetInfo"}


def test_an_answer_that_came_too_late_is_not_taken_for_that_to_the_next_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket_message, "SILENCE_S", 0.1)
    task = TASKS["socket"]

    def side(rank: int) -> SocketRoundTrips:
        collective: Any = SimpleNamespace(exchange=SimpleNamespace(rank=rank), ranks=RANKS, tasks=[task])
        return SocketRoundTrips(collective, None, 0, ResourceScope())  # type: ignore[arg-type]  # messages ask nothing of the worker

    first, other = side(0), side(1)
    offered = [first.make(), other.make()]
    other.open(offered)
    first.open(offered)
    assert first.run() is None, "the other side is silent"
    assert other.run() is None, "it answers now, and hears nothing more"
    for end in (first, other):
        end.ready()
    with ThreadPoolExecutor() as threads:
        both = [threads.submit(end.run) for end in (first, other)]
    assert all(len(ran.result() or ()) == LAPS for ran in both)
    first._socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        first._socket.recv(1)
    for end in (first, other):
        end.held.own.close()


def test_disjoint_pairs_are_measured_at_the_same_time(fake_node: MakeFakeNode, launch: Launch) -> None:
    ranks = ranks_on([f"{domain}:01:00.0" for domain in ("0008", "0009", "0018", "0019")])
    node = fake_node(nvl4())
    group = launch(node, count=4)
    with nothing_left(node, group):
        trips = ask(group, ranks, flag_task(ranks, first=0, other=3), flag_task(ranks, first=2, other=1)).measurements
    assert [trip.status for trip in trips] == [MeasurementStatus.OK, MeasurementStatus.OK]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "call", "nth"),
    [
        # Rank 1, whose stream has events of its own, and memory for results of kernels.
        *(("event", "cuEventCreate", 5), ("event", "cuEventRecord", 50), ("event", "cuStreamWaitEvent", 50)),
        *(("event", call, 1) for call in ("cuIpcGetEventHandle", "cuIpcOpenEventHandle", "cuEventSynchronize")),
        *(("flag-device", "cuMemAlloc", 2), ("flag-device", "cuMemCreate", 1), ("flag-device", "cuMemsetD32Async", 1)),
        *((name, "cuMemImportFromShareableHandle", 1) for name in ("flag-device", "flag-host-numa")),
    ],
)
def test_a_call_that_fails_ends_it_in_both_and_leaves_nothing(
    fake_node: MakeFakeNode, launch: Launch, name: str, call: str, nth: int
) -> None:
    node = fake_node(nvl4())
    group = launch(node, f"{call}@{nth}=error:999,once")
    with nothing_left(node, group):
        answer = ask(group, RANKS, TASKS[name])
        (trip,) = answer.measurements
        again = ask(group, RANKS, TASKS[name]).measurements[0]
    assert (trip.status, trip.last_call) == (MeasurementStatus.FAILED, call)
    assert answer.before == answer.after
    assert again.status in (MeasurementStatus.OK, MeasurementStatus.UNSTABLE)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "fault", "how", "timeout_s"),
    [
        ("event", "cuStreamWaitEvent@50=kill:9,once", "crashed", 12),
        ("flag-device", "cuLaunchKernel@1=kill:9,once", "crashed", 12),
        # The other side waits for half of the time.
        ("event", "cuStreamWaitEvent@50=hang,once", "timed-out", 4),
    ],
)
def test_a_side_that_dies_or_hangs_releases_the_other(
    fake_node: MakeFakeNode,
    launch: Launch,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    fault: str,
    how: str,
    timeout_s: float,
) -> None:
    monkeypatch.setattr(chase, "TIMEOUT_NS", 2_000_000_000)
    monkeypatch.setattr(socket_message, "SILENCE_S", 2.0)
    node = fake_node(nvl4())
    group = launch(node, fault)
    with pytest.raises(GroupFailed) as failed:
        ask(group, RANKS, TASKS[name], timeout_s=timeout_s)
    assert (failed.value.how, failed.value.last_call) == (how, fault.partition("@")[0])
    (lost,) = {call.pid for call in node.calls() if call.ending}
    left = [line for line in node.leaks() if not line.startswith(f"process {lost}:")]
    assert not [line for line in left if "mapping" in line or "allocation" in line]
