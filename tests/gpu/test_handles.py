"""Memory and events that processes on two GPUs share: they arrive, are given back, and a death costs nothing else.

What the numbers were on H200 is in docs/hardware-notes.md; here they are printed (``-s``).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from egmctl.bench.processes.group import Group, GroupFailed
from egmctl.model.measurement import Measurement, MeasurementStatus, Verification
from egmctl.model.route import Rank
from egmctl.model.task import Engine, HandleKind
from tests.gpu.node import Node
from tests.handles.ranks import (
    MIB,
    SETTINGS,
    SHARED,
    ask,
    finish,
    flag_task,
    life_cycle_task,
    message_task,
    stages_of,
    start,
)

pytestmark = pytest.mark.usefixtures("two_gpus")

FABRIC, LEGACY = HandleKind.FABRIC, HandleKind.LEGACY
POOL, POSIX_FD = HandleKind.POOL, HandleKind.POSIX_FD
MIB_LEFT = 8
"""What a GPU may have in use more than before: nothing of ours, but the driver's own books move."""
GOOD = (MeasurementStatus.OK, MeasurementStatus.UNSTABLE)

STEPS = {
    "exported": (0, "cuMemExportToShareableHandle", 2),
    "imported": (1, "cuMemImportFromShareableHandle", 2),
    "mapping": (1, "cuMemMap", 2),
    "mapped": (1, "cuMemSetAccess", 2),
    "copying": (1, "cuMemsetD32Async", 3),
    "closing": (1, "cuMemUnmap", 2),
    "released": (1, "cuMemRelease", 2),
}
"""Which rank dies, having made which call for the how manieth time: in the second life."""


@pytest.fixture
def ranks(node: Node) -> Iterator[list[Rank]]:
    with node.children():
        yield node.ranks()


@pytest.fixture
def group(ranks: list[Rank]) -> Iterator[Group]:
    with start(len(ranks)) as started:
        yield started


@pytest.fixture
def channel(node: Node) -> Iterator[None]:
    with node.channel():
        yield


def show(measured: Measurement, name: str) -> None:
    stages = ", ".join(f"{stage.name} {stage.ms.median:.3f}" for stage in measured.stages)
    latency = measured.latency_ns and f"{measured.latency_ns.median:.0f} ns"
    print(f"{name}: {measured.status} {latency or stages} {measured.reason or ''}")  # noqa: T201 - with -s: what was measured


@pytest.mark.long
@pytest.mark.usefixtures("channel")
def test_each_kind_of_each_memory_arrives_and_leaves_nothing_behind(
    node: Node, group: Group, ranks: list[Rank]
) -> None:
    with node.nothing_left(more_mib=MIB_LEFT, wait_s=10):
        for handle, numa_node in SHARED:
            task = life_cycle_task(ranks, handle, numa_node)
            first = ask(group, ranks, task, lives=1)
            answer = ask(group, ranks, task, lives=100)
            (life,) = answer.measurements
            show(life, f"{handle} {'device' if numa_node is None else 'HOST_NUMA'} 2 MiB, 100 lives")
            assert (life.status, life.verification) == (MeasurementStatus.OK, Verification.GPU_EVERY_SAMPLE), (
                life.reason
            )
            assert [stage.name for stage in life.stages] == stages_of(handle)
            assert all(0 < stage.ms.min <= stage.ms.median <= stage.ms.max for stage in life.stages)
            assert answer.after == answer.before == first.after, (handle, numa_node)
            assert first.before == first.after or not node.is_fake, "a driver keeps things for later, a fake does not"
        finish(group)
        group.close()


def test_large_memory_after_large_memory_of_another_kind(node: Node, group: Group, ranks: list[Rank]) -> None:
    kinds = ((LEGACY, None), (POSIX_FD, None), (POSIX_FD, 0), (POOL, None))
    for again in (False, True):
        for handle, numa_node in kinds:
            task = life_cycle_task(ranks, handle, numa_node, size_bytes=node.large_bytes)
            answer = ask(group, ranks, task, lives=1)
            (life,) = answer.measurements
            show(life, f"{handle} {'device' if numa_node is None else 'HOST_NUMA'} {node.large_bytes // MIB} MiB")
            assert life.status is MeasurementStatus.OK, life.reason
            # What the driver keeps for later it keeps after the first time.
            assert answer.before == answer.after or not again
    finish(group)


@pytest.mark.long
def test_pools_of_host_memory_go_both_ways_and_leave_nothing_behind(
    node: Node, group: Group, ranks: list[Rank]
) -> None:
    def both_ways() -> None:
        for size_bytes in (2 * MIB, node.large_bytes // 4):
            for handle, numa_node in ((POOL, 0), (POSIX_FD, 0), (POOL, None), (POSIX_FD, None)):
                for owner in (0, 1):
                    task = life_cycle_task(
                        ranks, handle, numa_node, size_bytes=size_bytes, owner=owner, importer=1 - owner
                    )
                    (life,) = ask(group, ranks, task, lives=1).measurements
                    memory = "device" if numa_node is None else "HOST_NUMA"
                    show(life, f"{handle} {memory} {size_bytes // MIB} of {owner}")
                    assert life.status is MeasurementStatus.OK, life.reason

    with node.nothing_left(more_mib=MIB_LEFT, wait_s=10):
        both_ways()
        task = life_cycle_task(ranks, POOL, 0)
        first, free = ask(group, ranks, task, lives=1), node.free_bytes(0)
        for _ in range(3 if free else 1):
            both_ways()
        last = ask(group, ranks, task, lives=1)
        assert [rank["files"] for rank in last.after] == [rank["files"] for rank in first.after]
        assert node.free_bytes(0) > free - 512 * MIB
        finish(group)
        group.close()


def test_both_sides_of_a_round_trip_agree_and_flags_take_less_than_messages_and_those_less_than_events(
    node: Node, group: Group, ranks: list[Rank]
) -> None:
    def latency_ns(name: str) -> float:
        answer = ask(group, ranks, tasks[name])
        (round_trip,) = answer.measurements
        show(round_trip, name)
        assert round_trip.status in GOOD, round_trip.reason
        assert len(round_trip.samples) == SETTINGS.samples
        for sample in round_trip.samples:
            assert 0 < (sample.p50_ns or 0) <= (sample.p99_ns or 0)
            if tasks[name].engine is Engine.PING_PONG:
                assert sample.elapsed_ms == pytest.approx(100 * (sample.latency_ns or 0) / 1e6)
            else:
                assert sample.latency_ns == sample.p50_ns
        assert answer.before == answer.after or not node.is_fake
        assert round_trip.latency_ns is not None
        return round_trip.latency_ns.median

    tasks = {
        "flag in device memory": flag_task(ranks),
        "flag in HOST_NUMA memory": flag_task(ranks, node=0),
        "event": message_task(ranks, Engine.EVENT),
        "message": message_task(ranks, Engine.SOCKET),
    }
    with node.nothing_left(more_mib=MIB_LEFT, wait_s=10):
        device, host, event, message = map(latency_ns, tasks)
        finish(group)
        group.close()
    assert node.is_fake or device < host < message < event


@pytest.mark.parametrize("step", STEPS)
def test_a_rank_killed_at_a_step_leaves_no_process_and_no_memory(node: Node, ranks: list[Rank], step: str) -> None:
    rank, call, nth = STEPS[step]
    task = life_cycle_task(ranks, POSIX_FD)
    dead: list[int] = []
    with node.nothing_left(dead=dead):
        with start(2) as group:
            dead.append(group._members[rank].pid)
            with pytest.raises(GroupFailed) as failed:
                ask(group, ranks, task, lives=5, death={"rank": rank, "call": call, "nth": nth})
        assert (failed.value.rank, failed.value.how, failed.value.last_call) == (rank, "crashed", call)


DENIED = {
    (LEGACY, None): "cuIpcOpenMemHandle failed: CUDA_ERROR_INVALID_VALUE (1)",
    (POSIX_FD, None): "cuMemImportFromShareableHandle failed: CUDA_ERROR_INVALID_DEVICE (101)",
    (POSIX_FD, 0): "cuMemImportFromShareableHandle failed: CUDA_ERROR_INVALID_DEVICE (101)",
    (FABRIC, None): "cuMemImportFromShareableHandle failed: CUDA_ERROR_NOT_SUPPORTED (801)",
    (FABRIC, 0): "cuMemImportFromShareableHandle failed: CUDA_ERROR_NOT_SUPPORTED (801)",
}
"""What an importer meets whose device cgroup denies the owner."""
OF_FAKE_POOLS = {(POOL, 0): "cuMemPoolImportPointer failed: CUDA_ERROR_INVALID_DEVICE (101)"}
"""On hardware, what pools answer is not the same on all drivers."""


@pytest.mark.usefixtures("channel")
def test_with_cuda_visible_devices_the_importer_needs_not_see_the_owner(node: Node, ranks: list[Rank]) -> None:
    hidden = {"environment": {"CUDA_VISIBLE_DEVICES": node.gpus[1].uuid}}
    with node.nothing_left(), start(2, last=hidden) as group:
        for handle, numa_node in (*DENIED, (POOL, None), (POOL, 0)):
            (life,) = ask(group, ranks, life_cycle_task(ranks, handle, numa_node)).measurements
            assert life.status is MeasurementStatus.OK, life.reason
        finish(group)


@pytest.mark.usefixtures("channel")
def test_an_owner_that_a_device_cgroup_denies_to_the_importer_is_named_as_the_cause(
    node: Node, ranks: list[Rank]
) -> None:
    with node.nothing_left(), node.denying(node.gpus[0]) as confined, start(2, last=confined) as group:
        for (handle, numa_node), words in (DENIED | (OF_FAKE_POOLS if node.is_fake else {})).items():
            # What the driver opens for a kind of handle it keeps open after the first time.
            ask(group, ranks, life_cycle_task(ranks, handle, numa_node))
            answer = ask(group, ranks, life_cycle_task(ranks, handle, numa_node))
            (life,) = answer.measurements
            show(life, f"{handle} {'device' if numa_node is None else 'HOST_NUMA'}, owner denied")
            assert (life.status, life.failed_rank, life.known_cause) == (MeasurementStatus.FAILED, 1, True), life
            assert words in (life.reason or "")
            assert "its device cgroup or container denies it" in (life.reason or "")
            assert answer.before == answer.after
        finish(group)
